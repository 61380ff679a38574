"""The driver of deciders: the one loop in which each of them is asked.

Safe from several threads and processes at once, and may be killed anywhere: a decision holds only for
the state that it was made on.

One act that is one record after one look is not a decider: a person's (a stop, a pin, a quarantine), a
pass's (a checkpoint superseded or deleted), a strike of a node. It goes by `Tracks.decide_run`, or by
that of its own kind of track. A strike is in its pool's track before the decision that avoids the
node: it is work that the decider of retries asks for as `First`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from tracks_dagster.ledger.deciding import Answer, Append, Decider, Decides, First, Wait
from tracks_dagster.ledger.effects.ticks import SEVERAL_AT_ONCE, Tick, TimeSlice, take_turns
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.track.errors import Contended
from tracks_dagster.track.names import run_track, study_track
from tracks_dagster.track.records import Draft, Kind, Record
from tracks_dagster.track.track import DECISIONS_MAX

WAITING, NOTHING = "waiting", "nothing"  # what came of a decider, where it is not a record


class HasTracks(Protocol):
    """What the driver needs of a world; a decider may need more."""

    @property
    def tracks(self) -> Tracks:
        """Every track."""
        ...

    @property
    def ledger(self) -> Ledger:
        """Names what is due; decides nothing."""
        ...


W = TypeVar("W", bound=HasTracks)


@dataclass(frozen=True, slots=True, kw_only=True)
class KindOfTrack:
    """How the driver reads and appends to the tracks of one kind, each known by its name.

    attempt_of: the attempt that an alert on a state concerns, None where there are none.
    """

    track: Callable[[str], str]
    read: Callable[[Tracks, str], Any]
    append: Callable[[Tracks, Any, Draft], Any | None]
    attempt_of: Callable[[Any], int | None] = lambda state: None


OF_RUNS = KindOfTrack(
    track=run_track,
    read=Tracks.run,
    append=Tracks.append_to,
    attempt_of=lambda state: len(state.attempts) or None,
)
OF_STUDIES = KindOfTrack(track=study_track, read=Tracks.study, append=Tracks.append_to_study)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """What came of asking a decider about a run: "opened", "refused", "finished" …, where it appended.

    Else "waiting", or "nothing", where it has nothing to say. record: the one that this call appended,
    the last of several; None where none was, or another did it before. A "paused" is a wait that a
    person was alerted of.
    """

    what: str
    why: str
    record: Record | None = None


def settle(world: W, decider: Decides[W], run_id: str, kind: KindOfTrack = OF_RUNS) -> Settled:
    """Fold the run, ask the decider, and append what it decides at exactly the next seq.

    kind: of the track of that name, where it is not a run's. The decider is asked again wherever
    another record came first, after each `First`, and after a record that is not its last. The track is
    projected once, at the end: also what another appended who died before he did. Raises UnknownRun,
    and Contended when its place was lost 64 times.
    """
    try:
        state = kind.read(world.tracks, run_id)
        return _settle(world, decider, run_id, state, kind)[0]
    finally:
        world.tracks.project(kind.track(run_id))


def decide_due(
    world: W,
    deciders: Sequence[Decider[W]],
    time_slice: TimeSlice = SEVERAL_AT_ONCE,
    kind: KindOfTrack = OF_RUNS,
) -> Tick[Settled]:
    """Ask each decider about the runs that are due for it, in turn, several runs at once.

    done: what was appended. One run's trouble is a problem of its own. Raises LedgerError.
    """
    due = due_by_run(world, deciders)

    def look(run_id: str) -> Tick[Settled]:
        return settle_all(world, due[run_id], run_id, kind)

    return take_turns(list(due), look, time_slice)


def due_by_run(world: W, deciders: Sequence[Decider[W]]) -> dict[str, list[Decider[W]]]:
    """Return who has to be asked about which run, in the order of their turns; raises LedgerError."""
    due: dict[str, list[Decider[W]]] = {}
    for decider in deciders:
        for run_id in decider.due(world):
            due.setdefault(run_id, []).append(decider)
    return due


def settle_all(
    world: W, deciders: Iterable[Decides[W]], run_id: str, kind: KindOfTrack = OF_RUNS
) -> Tick[Settled]:
    """Ask several deciders about one run, one after the other; read it once where nothing happens."""
    done, decided, waiting = [], [], []
    try:
        state = kind.read(world.tracks, run_id)
        for decider in deciders:
            settled, state = _settle(world, decider, run_id, state, kind)
            if settled.record is not None:
                done.append(settled)
                decided.append(f"{run_id}: {settled.what}: {settled.why}")
            elif settled.what == WAITING:
                waiting.append(f"{run_id}: {settled.why}")
    finally:
        world.tracks.project(kind.track(run_id))
    return Tick(done=tuple(done), decided=tuple(decided), waiting=tuple(waiting))


def _settle(
    world: W, decider: Decides[W], run_id: str, state: Any, kind: KindOfTrack
) -> tuple[Settled, Any]:
    """Return what came of it, and the state that was read last.

    state: may be behind; then the place is lost and the decider asked again.
    """
    ask: Callable[[Any, Any], Answer] = decider.decide
    made = Settled(what=NOTHING, why=f"{decider.name} has nothing to decide.")
    for _ in range(DECISIONS_MAX):
        answer = ask(state, world)
        if isinstance(answer, Wait) and answer.alert is not None:
            attempt_id = kind.attempt_of(state)
            alert = world.tracks.draft(Kind.ALERT, answer.alert, attempt_id=attempt_id)
            answer = Append(draft=alert, what="paused", why=answer.why)
        match answer:
            case None:
                return made, state
            case Wait(why=why):
                waits = Settled(what=WAITING, why=why)
                return (waits if made.record is None else made), state
            case First(do=do):
                ask = do() or ask
                state = kind.read(world.tracks, run_id)
            case Append(draft=draft, what=what, why=why):
                after = kind.append(world.tracks, state, draft)
                state = after or kind.read(world.tracks, run_id)
                if after is not None:
                    made = Settled(what=what, why=why, record=after.head)
                    if answer.is_last:
                        return made, state
    if made.record is not None:
        return made, state
    raise Contended(
        f"A decision for {run_id} lost its place {DECISIONS_MAX} times in a row; the next tick decides "
        "again."
    )

"""Starts under holds: refused ones, where a next attempt starts, and what is on hold, in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tracks_dagster.holds.effects.holds import BySource, Holds
from tracks_dagster.holds.hold import (
    CleanStart,
    Hold,
    HoldAct,
    age,
    clean_start,
    find_hold,
    key_of_run,
    key_of_snapshot,
    oldest,
)
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.track.bodies import CodeVersion, SnapshotRef
from tracks_dagster.track.errors import InvalidInput, TrackBroken
from tracks_dagster.track.states.checkpoints import CheckpointRef, checkpoint_at
from tracks_dagster.track.states.run_state import RunState

STEPS_MAX = 10  # of a run, the newest, that are named


def refuse_declaration(
    tracks: Tracks,
    run_id: str,
    code: CodeVersion,
    code_sha256: str | None,
    source: CheckpointRef | None,
) -> None:
    """Raise InvalidInput for a new run whose code, or whose source, descends from one in quarantine.

    code_sha256: of its stored code.
    """
    holds, doing = Holds(tracks), f"{run_id} cannot be declared"
    refuse_code(tracks, code, code_sha256, doing=doing)
    hold = oldest(holds.of_checkpoint(source).values()) if source is not None else None
    if source is not None and hold is not None:
        raise InvalidInput(f"{doing}: {checkpoint_at(source)} {hold.words}")


def refuse_code(tracks: Tracks, code: CodeVersion, code_sha256: str | None, *, doing: str) -> None:
    """Raise InvalidInput for code in quarantine. code_sha256: of the stored code."""
    hold = oldest(Holds(tracks).of_code(code, code_sha256).values())
    if hold is not None:
        raise InvalidInput(f"{doing}: it {hold.words}")


def start_or_refuse(
    state: RunState, snapshot: SnapshotRef | None, holds: Sequence[Hold], *, doing: str
) -> CleanStart:
    """Return where an attempt on `snapshot` (None: on none) that is opened now starts.

    holds: as `Holds.on_run` gives them; doing: what was attempted. Raises InvalidInput when the
    snapshot, the run or all that it could resume from is on hold, naming the source, its record and
    the command that releases it.
    """
    data = [] if snapshot is None else [key_of_snapshot(snapshot)]
    for what in (*data, key_of_run(state.run_id)):
        hold = find_hold(holds, HoldAct.QUARANTINE, what)
        if hold is not None:
            raise InvalidInput(f"{doing}: {hold.sentence}")
    start = clean_start(state, state.resumes_from, holds)
    if start.hold is not None:
        raise InvalidInput(f"{doing}: {start.words}")
    return start


def next_start(holds: Holds, state: RunState) -> CleanStart:
    """Return where the run's next attempt may start, by quarantines and the loss of its source.

    Raises TrackBroken.
    """
    found, lost = holds.on_lineage(state), holds.on_source(state)
    hold = find_hold(found, HoldAct.QUARANTINE, key_of_run(state.run_id))
    if hold is None and not state.resumable:
        hold = lost
    if hold is not None:
        return CleanStart(resume=None, words=hold.sentence, hold=hold)
    return clean_start(state, state.resumes_from, found if lost is None else (*found, lost))


def describe_sources(holds: Holds, state: RunState) -> tuple[str, ...]:
    """Return a sentence for each source in quarantine that the run descends from, oldest first.

    Counted are its code, what it branched from, its attempts and its checkpoints. Where another track
    cannot be read, a sentence about that one.
    """
    source = state.declared.branched_from
    try:
        checkpoints = holds.of_checkpoints(state)
        found = {**holds.of_next_code(state), **holds.of_run(state)}
        found.update(holds.of_checkpoint(source) if source is not None else {})
    except TrackBroken as error:
        return (not_known(error),)
    for by_source in checkpoints.values():
        found.update(by_source)
    oldest_first = sorted(found.items(), key=lambda item: age(item[1]))
    return tuple(_describe(state, checkpoints, key, hold) for key, hold in oldest_first)


def not_known(error: TrackBroken) -> str:
    """Return the sentence for quarantines that cannot be read."""
    return f"Whether it descends from a source in quarantine is not known: {error}"


def _describe(state: RunState, checkpoints: Mapping[str, BySource], key: str, hold: Hold) -> str:
    """Name the source, and the steps of the run's checkpoints that it puts on hold."""
    steps = [
        str(c.ref.step)
        for c in state.checkpoints
        if key in checkpoints.get(c.ref.manifest_sha256, {})
    ]
    older = len(steps) - STEPS_MAX
    named = ", ".join(steps[-STEPS_MAX:]) + (f" and {older} older ones" if older > 0 else "")
    on_hold = f" Nothing new starts from what was saved at step {named}." if steps else ""
    return f"{hold.source} {hold.words_of_source}{on_hold}"

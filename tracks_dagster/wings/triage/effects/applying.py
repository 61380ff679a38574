"""Do what triage proposes: record the ends that nobody recorded, and open the attempts that fit now.

With the services of the watcher and the retry sensors, so the retry policy decides as ever, and a
daemon that comes up meanwhile does no harm. Every act leaves a note with who did it and why.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tracks_dagster.attempts.effects.closing import close_attempt
from tracks_dagster.attempts.effects.evidence import EndProblem
from tracks_dagster.attempts.effects.retry import Retries
from tracks_dagster.attempts.effects.runs import FirstAttempts
from tracks_dagster.attempts.effects.world import World
from tracks_dagster.ledger.deciding import Decider
from tracks_dagster.ledger.effects.deciding import settle
from tracks_dagster.scheduling.model import Waits
from tracks_dagster.track.bodies import Note
from tracks_dagster.track.names import AttemptRef
from tracks_dagster.track.records import Json, Kind
from tracks_dagster.track.unforeseen import problem_of
from tracks_dagster.wings.triage.effects.line import Line
from tracks_dagster.wings.triage.effects.triage import Triage
from tracks_dagster.wings.triage.judging import CLOSABLE, Verdict

CLOSED, OPENED, LEFT, FAILED = "closed", "opened", "left", "failed"
WORDS_MAX = 1000  # characters of a sentence in a note, which is a record of at most 16 KiB
_CLOSABLE = frozenset(verdict.word for verdict in CLOSABLE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """What was done on one run. what: "closed", "opened", "left", "failed", or what a decision came
    to ("refused", "finished", "paused", "waiting"). seq: of the record; None where none was made."""

    run_id: str
    what: str
    why: str
    seq: int | None = None

    @property
    def is_bad(self) -> bool:
        """Whether it could not be done."""
        return self.what == FAILED


@dataclass(frozen=True, slots=True, kw_only=True)
class Acting:
    """In whose name, why, and with what: the watcher's world. took_s: of the triage that it acts on."""

    world: World
    by: str
    why: str
    took_s: float = 0.0


def apply(found: Triage, acting: Acting) -> tuple[Act, ...]:
    """Close what is dead or finished, then open what the plan starts now, in its order.

    What does not fit is left as it is, without an attempt. Safe to repeat, and beside a daemon.
    """
    places = {run_id: place for place, run_id in enumerate(found.plan.order, start=1)}
    lines = sorted(found.lines, key=lambda line: places.get(line.run_id, len(places) + 1))
    acting = replace(acting, took_s=found.took_s)
    acts = [act for line in lines if line.verdict in _CLOSABLE for act in _close(line, acting)]
    failed = {act.run_id for act in acts if act.what != CLOSED}
    for run_id, place in places.items():
        if run_id not in failed:
            acts.append(_start(found.line(run_id), place, found.plan.wait(run_id), acting))
    return tuple(acts)


def _close(line: Line, acting: Acting) -> list[Act]:
    """End the open attempt as the watcher does; a supervisor that lives does it by itself."""
    if line.is_supervised:
        return [Act(run_id=line.run_id, what=LEFT, why="its supervisor lives, and records its end")]
    assert line.attempt_id is not None  # a verdict on an open attempt
    world = acting.world
    message = f"{acting.by} closed it by `tracks triage --apply` ({acting.why}): {line.why}"
    try:
        gangs = world.launcher_of(line.launcher)
        ref = AttemptRef(line.run_id, line.attempt_id)
        problem = EndProblem(message=message)
        ended = close_attempt(world, gangs, ref, by=acting.by, problem=problem)
    except Exception as error:  # noqa: BLE001 - of that run alone
        return [Act(run_id=line.run_id, what=FAILED, why=problem_of(error))]
    words = f"attempt {line.attempt_id} ended as {ended.reason}: {line.why}"
    _note(acting, line, f"Closed {words}")
    return [Act(run_id=line.run_id, what=CLOSED, why=words, seq=ended.ended_seq)]


def _start(line: Line, place: int, waits: Waits | None, acting: Acting) -> Act:
    """Decide what follows, if the plan starts the run now."""
    run_id = line.run_id
    if waits is not None:
        return Act(run_id=run_id, what=LEFT, why=f"place {place}: {waits.why}")
    if line.verdict == Verdict.QUEUED.word:
        why = f"attempt {line.attempt_id} is open already; the daemon starts its gang"
        return Act(run_id=run_id, what=LEFT, why=why)
    try:
        is_first = line.verdict == Verdict.NOT_STARTED.word
        decider: Decider[World] = (
            FirstAttempts(name=acting.by) if is_first else Retries(name=acting.by)
        )
        settled = settle(acting.world.for_tick(), decider, run_id)
    except Exception as error:  # noqa: BLE001 - of that run alone
        return Act(run_id=run_id, what=FAILED, why=problem_of(error))
    seq = settled.record.seq if settled.record is not None else None
    what = LEFT if is_first and settled.what != OPENED else settled.what
    act = Act(run_id=run_id, what=what, why=settled.why, seq=seq)
    if seq is not None:
        _note(acting, line, f"Place {place} of the restart: {act.what}: {act.why}")
    return act


def _note(acting: Acting, line: Line, text: str) -> None:
    """Note in the track who did it, why, and on which evidence."""
    signs = [sign for sign in line.signs if sign.cell == "verdict"]
    data: dict[str, Json] = {
        "command": "tracks triage --apply",
        "why": acting.why,
        "verdict": line.verdict,
        "triage_s": acting.took_s,
        "evidence": [f"{sign.words} ({sign.source})"[:WORDS_MAX] for sign in signs],
    }
    note = Note(by=acting.by, text=f"{text[:WORDS_MAX]} Why: {acting.why}", data=data)
    draft = acting.world.tracks.draft(Kind.NOTE, note, attempt_id=line.attempt_id)
    acting.world.tracks.note_run(line.run_id, draft)

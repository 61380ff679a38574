"""The training runs that a tick has to look at, by the ledger: most need no look.

What the ledger names is then read from the tracks, so a stale row costs a look and decides nothing.
Anyone who looks brings the row up to date; `revisit` does for all other runs.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable
from datetime import datetime, timedelta

from tracks_dagster.ledger.effects.ticks import (
    UPKEEP_S_MAX,
    Seconds,
    Tick,
    TimeSlice,
    take_turns,
)
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.track.names import run_track
from tracks_dagster.track.reasons import TerminationReason
from tracks_dagster.track.records import Json
from tracks_dagster.track.states.evals import HAS_ALL_STEPS
from tracks_dagster.track.states.lifecycle import RunLifecycle

REVISIT_EVERY = timedelta(minutes=5)
WITHHELD_MAX = 50  # runs that one tick reads to see whether their hold was released
WITHHELD_TURN_S = 60.0  # then the next ones have their turn

_OPEN = {"running": RunLifecycle.RUNNING.value, "waiting": RunLifecycle.WAITING.value}
_NEWEST_ATTEMPTS = """
    from training_runs r
    left join training_attempts a on a.run_id = r.run_id and a.attempt_id = r.attempt_count
    where r.state = :running
"""


def runs_with_evals(ledger: Ledger) -> list[str]:
    """Runs that have all their steps, an eval under way, or evals of their commits, oldest first; then
    finished runs with an eval under way."""
    reasons = {f"reason_{i}": reason.value for i, reason in enumerate(sorted(HAS_ALL_STEPS))}
    rows = ledger.query(
        "select r.run_id from training_runs r left join training_attempts a "
        "on a.run_id = r.run_id and a.attempt_id = r.attempt_count "
        "where r.state in (:running, :waiting) and (r.evaluates_commits "
        f"or a.termination_reason in ({_listed(reasons)}) "
        "or exists (select 1 from evals e where e.run_id = r.run_id and e.reason is null)) "
        "order by r.declared_at, r.run_id",
        {**_OPEN, **reasons},
    )
    over = ledger.query(
        "select distinct e.run_id from evals e join training_runs r on r.run_id = e.run_id "
        "where e.reason is null and r.state not in (:running, :waiting) order by e.run_id",
        _OPEN,
    )
    return [row["run_id"] for row in (*rows, *over)]


def runs_with_open_evals(ledger: Ledger) -> list[str]:
    """Runs with an eval under way, oldest first."""
    rows = ledger.query(
        "select e.run_id from evals e where e.reason is null group by e.run_id "
        "order by min(e.opened_at), e.run_id"
    )
    return [row["run_id"] for row in rows]


def runs_without_attempts(ledger: Ledger) -> list[str]:
    """Runs whose first attempt is not opened yet, oldest first."""
    rows = ledger.query(
        f"select r.run_id {_NEWEST_ATTEMPTS} and a.run_id is null order by r.declared_at, r.run_id",
        {"running": RunLifecycle.RUNNING.value},
    )
    return [row["run_id"] for row in rows]


def runs_with_open_attempts(ledger: Ledger) -> list[str]:
    """Runs with an open attempt, oldest first."""
    rows = ledger.query(
        f"select r.run_id {_NEWEST_ATTEMPTS} and a.run_id is not null "
        "and a.termination_reason is null order by a.opened_at, r.run_id",
        {"running": RunLifecycle.RUNNING.value},
    )
    return [row["run_id"] for row in rows]


def runs_between_attempts(
    ledger: Ledger, reasons: Collection[TerminationReason] | None
) -> list[str]:
    """Runs on which a decision is due, the earliest end first.

    reasons: only those whose newest attempt ended for one of these; None: for any, and those that
    have no attempt yet.
    """
    names = [reason.value for reason in sorted(reasons or ())]
    given = {f"reason_{index}": name for index, name in enumerate(names)}
    ended = "a.termination_reason is not null or a.run_id is null"
    if reasons is not None:
        ended = f"a.termination_reason in ({_listed(given)})"
    rows = ledger.query(
        f"select r.run_id {_NEWEST_ATTEMPTS} and ({ended}) "
        "order by coalesce(a.ended_at, r.declared_at), r.run_id",
        {"running": RunLifecycle.RUNNING.value, **given},
    )
    return [row["run_id"] for row in rows]


def runs_with_promotion_on_hold(ledger: Ledger, now: datetime) -> list[str]:
    """Return the finished runs whose promotion was refused for a quarantine and may be decided again
    once that is released: at most WITHHELD_MAX, which take turns by the clock.

    The oldest first, so that of two that want one alias the newer gets it for good. None whose alias
    was given away since: taking it from a later checkpoint needs a person.
    """
    rows = ledger.query(
        "select p.run_id from promotions p join training_runs r on r.run_id = p.run_id "
        "where p.is_withheld and r.state not in (:running, :waiting) "
        "and not exists (select 1 from promotions q where q.run_id = p.run_id and "
        "q.alias = p.alias and q.seq > p.seq) "
        "and not exists (select 1 from promotions q where q.alias = p.alias and "
        "q.decided_at > p.decided_at and q.promoted) "
        "order by p.decided_at, p.run_id",
        _OPEN,
    )
    run_ids = list(dict.fromkeys(row["run_id"] for row in rows))
    turns = max(1, -(-len(run_ids) // WITHHELD_MAX))
    first = int(now.timestamp() // WITHHELD_TURN_S) % turns * WITHHELD_MAX
    return run_ids[first : first + WITHHELD_MAX]


def runs_of_a_person(ledger: Ledger) -> list[str]:
    """Return the runs that wait for a person: drained or refused ones, newest first."""
    rows = ledger.query(
        "select run_id from training_runs where state in (:waiting, :refused) "
        "order by declared_at desc, run_id",
        {"waiting": RunLifecycle.WAITING.value, "refused": RunLifecycle.REFUSED.value},
    )
    return [row["run_id"] for row in rows]


def open_work(ledger: Ledger) -> list[dict[str, Json]]:
    """What a sensor may have to look at: runs that go on, their alerts, evals under way, datasets, and
    open studies with how many of their runs go on.

    Columns: kind, name, number, reason, of a `Work` of the sensors' pace. One query, so that it can be
    asked often.
    """
    return ledger.query(
        "select 'run' as kind, r.run_id as name, r.attempt_count as number, "
        "a.termination_reason as reason "
        f"{_NEWEST_ATTEMPTS} "
        "union all select 'commits', r.run_id, "
        "(select count(*) from checkpoints c where c.run_id = r.run_id), null from training_runs r "
        "where r.state = :running and r.evaluates_commits "
        "union all select 'news', n.run_id, max(n.seq), null from notes n "
        "join training_runs r on r.run_id = n.run_id "
        "where r.state = :running and n.kind = 'alert' group by n.run_id "
        "union all select 'eval', e.run_id || '/' || e.eval_id, e.number, null from evals e "
        "where e.reason is null "
        "union all select 'study', s.study, "
        "(select count(*) from training_runs r "
        "where r.experiment = s.study and r.state = :running), null from studies s "
        "where s.state = 'open' "
        "union all select 'dataset', c.track, c.seq, null from track_cursors c "
        "where c.track >= 'datasets/' and c.track < 'datasets0'",
        {"running": RunLifecycle.RUNNING.value},
    )


def revisit(
    tracks: Tracks, ledger: Ledger, *, after: str | None, seconds: Seconds = time.monotonic
) -> Tick[None]:
    """Bring in, every few minutes, the tracks of runs that wait for a person.

    Nothing is due on them, and no tick looks at them. But a person's command that was killed right
    after its record had left it out of the ledger, and the run would wait on. Where there are too many
    for one tick, the next time goes on with the others.
    """

    def look(run_id: str) -> Tick[None]:
        tracks.project(run_track(run_id))
        return Tick()

    time_slice = TimeSlice(after=after, seconds_max=UPKEEP_S_MAX, seconds=seconds)
    return take_turns(runs_of_a_person(ledger), look, time_slice)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f":{name}" for name in names)

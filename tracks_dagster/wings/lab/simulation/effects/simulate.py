"""Replays the ledger's ended attempts under other policies and cadences.

Reads the ledger only and writes nothing. The assumptions are in `simulation.past_runs`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import groupby, pairwise
from operator import itemgetter
from statistics import median, median_low

from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.retry.policy import HOUR_S, RetryPolicy
from tracks_dagster.track.bodies import CheckpointCadence
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.json_text import parse_json
from tracks_dagster.track.reasons import TerminationReason
from tracks_dagster.track.records import Json, format_time
from tracks_dagster.wings.lab.simulation.compare import (
    ADVISED,
    FIXED_RETRIES,
    OURS,
    Row,
    advised,
    always,
    choices,
    fixed_retries,
    ours,
    retries_name,
)
from tracks_dagster.wings.lab.simulation.finishing import FinishChance, finish_chances
from tracks_dagster.wings.lab.simulation.outcome import DONE, sum_outcomes
from tracks_dagster.wings.lab.simulation.past_runs import (
    PastAttempt,
    PastRun,
    as_it_was,
    as_one_history,
    dead_retries,
)
from tracks_dagster.wings.lab.simulation.play import Pacer, simulate

ATTEMPTS_MAX = 100_000  # ended ones of the window, the newest

AS_IT_WAS = "as it was"
ITS_OWN = "its own"

ASSUMPTIONS = (
    "An attempt ends for the reason and after the time that it really had, whatever a policy changes.",
    "So a fixed number of retries is given the remedies that were really made, which flatters it.",
    "A policy that retries more than was retried ends where the history does.",
    "A person takes a refused run up when one really did, and is not called earlier.",
    "Attempts that ended before the window are not counted against a budget.",
)
SAVES_UNKNOWN = (
    "What imported attempts saved is not known ({count}): as much counts as kept as the attempt after "
    "it began with, and all steps of a run's last; without steps, all the time of one that completed "
    "and nothing of another; more where a row saves more often. What a save and a restart took is not "
    "known either, and counts as nothing."
)

_ATTEMPTS = """
select a.run_id, a.attempt_id, a.cause, a.config_json, a.nodes_json, a.ranks, a.opened_at,
       a.started_at, a.restored_at, a.ended_at, a.termination_reason, a.root_message, a.fingerprint,
       a.gpu_seconds, a.resumed_from_step, a.last_step, a.kept_steps, r.estimated_device_s,
       r.roles_json, r.state = 'imported' as is_imported
from training_attempts a join training_runs r on r.run_id = a.run_id
where a.termination_reason is not null and a.ended_at >= :since
order by a.ended_at desc, a.run_id, a.attempt_id desc
limit :attempts_max
"""
_SAVES = """
select c.run_id, c.attempt_id, c.step, c.trigger, c.blocking_s
from checkpoints c join training_attempts a on a.run_id = c.run_id and a.attempt_id = c.attempt_id
where a.termination_reason is not null and a.ended_at >= :since
order by c.run_id, c.attempt_id, c.step
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Saving:
    """What a policy would have spared, in device-hours. kept_less: work that it would not have had."""

    policy: str
    cadence: str
    wasted_less_h: float
    kept_less_h: float
    attempts_less: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """The comparison. rows: the history as it was comes first.

    dead: device-hours by reason of attempts that met the failure of the attempt before them once
    more and kept nothing; dead_count: how many these were. finishing: what a run with our retries and
    advised saves would have made of the capacity that all these attempts had. assumptions: sentences.
    """

    rows: tuple[Row, ...]
    savings: tuple[Saving, ...]
    dead: dict[str, float]
    dead_count: int
    run_count: int
    finishing: tuple[FinishChance, ...]
    assumptions: tuple[str, ...]


def replay(
    ledger: Ledger, policy: RetryPolicy, *, since: datetime, every_s: Sequence[float]
) -> Replayed:
    """Return what other policies would have made of the attempts that ended after `since`.

    Raises InvalidInput when none did, and LedgerError.
    """
    runs = past_runs(ledger, since)
    if not runs:
        raise InvalidInput(
            f"No attempt has ended since {since:%Y-%m-%d %H:%M} UTC, so there is no history to "
            "replay; look further back with --last, or give --trace FILE or --llama3."
        )
    rows = _rows(runs, policy, every_s)
    dead = [(run, attempt) for run in runs for attempt in dead_retries(run)]
    hours: defaultdict[str, float] = defaultdict(float)
    for run, attempt in dead:
        hours[attempt.reason.value] += attempt.held_s * run.devices / HOUR_S
    return Replayed(
        rows=tuple(rows),
        savings=tuple(_saving(rows[0], row) for row in rows[1:]),
        dead=dict(hours),
        dead_count=len(dead),
        run_count=len({run.run_id for run in runs}),
        finishing=tuple(_finishing(runs, policy)),
        assumptions=(*ASSUMPTIONS, *_unseen(runs)),
    )


def _unseen(runs: Sequence[PastRun]) -> list[str]:
    count = sum(not attempt.is_seen for run in runs for attempt in run.attempts)
    return [SAVES_UNKNOWN.format(count=count)] if count else []


def _finishing(runs: Sequence[PastRun], policy: RetryPolicy) -> list[FinishChance]:
    history = as_one_history(runs)
    if history is None:
        return []
    return finish_chances([history], next(choices(policy, blocking_s=history.costs.blocking_s)))


def _rows(runs: Sequence[PastRun], policy: RetryPolicy, every_s: Sequence[float]) -> list[Row]:
    past = tuple(as_it_was(run) for run in runs)
    rows = [Row(policy=AS_IT_WAS, cadence=ITS_OWN, outcome=sum_outcomes("all", past), runs=past)]
    deciders = {OURS: ours(policy)}
    deciders |= {retries_name(count): fixed_retries(count) for count in FIXED_RETRIES}
    chosen: list[tuple[str, str, float | None]] = [(name, ITS_OWN, None) for name in deciders]
    chosen.append((OURS, ADVISED, None))
    chosen += [(OURS, f"{seconds:g} s", seconds) for seconds in every_s]
    for name, cadence, seconds in chosen:
        outcomes = tuple(
            simulate(run.scenario, deciders[name], _pacer(run, cadence, seconds)) for run in runs
        )
        rows.append(
            Row(policy=name, cadence=cadence, outcome=sum_outcomes("all", outcomes), runs=outcomes)
        )
    return rows


def _pacer(run: PastRun, cadence: str, every_s: float | None) -> Pacer:
    if cadence == ADVISED:
        return advised(run.blocking_s)
    if every_s is not None:
        return always(CheckpointCadence(every_s=every_s))
    return always(run.cadence)


def _saving(past: Row, row: Row) -> Saving:
    was, now = past.outcome, row.outcome
    return Saving(
        policy=row.policy,
        cadence=row.cadence,
        wasted_less_h=(was.wasted_device_s - now.wasted_device_s) / HOUR_S,
        kept_less_h=(was.kept_device_s - now.kept_device_s) / HOUR_S,
        attempts_less=was.attempts - now.attempts,
    )


def past_runs(ledger: Ledger, since: datetime) -> list[PastRun]:
    """Return the runs of the window, in the order of their names; what one does after it completed
    is a run of its own."""
    given: dict[str, Json] = {"since": format_time(since)}
    rows = ledger.query(_ATTEMPTS, given | {"attempts_max": ATTEMPTS_MAX})
    saves: defaultdict[str, list[dict[str, Json]]] = defaultdict(list)
    for save in ledger.query(_SAVES, given):
        saves[save["run_id"]].append(save)
    found: list[PastRun] = []
    by_run = groupby(
        sorted(rows, key=lambda row: (row["run_id"], row["attempt_id"])), itemgetter("run_id")
    )
    for run_id, of_run in by_run:
        parts: list[list[dict[str, Json]]] = [[]]
        for row in of_run:
            if parts[-1] and _is_done(parts[-1][-1]):
                parts.append([])
            parts[-1].append(row)
        found += [
            replace(_past_run(part, saves[run_id], since), part=number)
            for number, part in enumerate(parts, 1)
        ]
    return found


def _is_done(row: dict[str, Json]) -> bool:
    return TerminationReason(row["termination_reason"]) in DONE


def _past_run(
    rows: list[dict[str, Json]], of_run: list[dict[str, Json]], since: datetime
) -> PastRun:
    devices, estimated = max(1, rows[0]["ranks"]), rows[0]["estimated_device_s"]
    mine = {row["attempt_id"] for row in rows}
    saves = [save for save in of_run if save["attempt_id"] in mine]
    counts = Counter(save["attempt_id"] for save in saves)
    drained = {save["attempt_id"] for save in saves if save["trigger"] == "sigterm"}
    periodic = [save for save in saves if save["trigger"] not in ("sigterm", "final")]
    apart = [
        after["step"] - before["step"]
        for before, after in pairwise(periodic)
        if before["attempt_id"] == after["attempt_id"]
    ]
    attempts = [_past_attempt(row, since) for row in rows]
    attempts[-1] = _as_saved(attempts[-1], rows[-1], saves)
    return PastRun(
        run_id=rows[0]["run_id"],
        devices=devices,
        estimated_s=None if estimated is None else estimated / devices,
        config=parse_json(rows[0]["config_json"]),
        roles=parse_json(rows[0]["roles_json"]),
        attempts=tuple(
            replace(
                attempt,
                save_count=counts[row["attempt_id"]],
                saved_at_end=attempt.saved_at_end or row["attempt_id"] in drained,
            )
            for attempt, row in zip(attempts, rows, strict=True)
        ),
        blocking_s=median(save["blocking_s"] for save in periodic) if periodic else 0.0,
        every_steps=max(1, median_low(apart)) if apart else None,
    )


def _as_saved(last: PastAttempt, row: dict[str, Json], saves: list[dict[str, Json]]) -> PastAttempt:
    """Count of the newest attempt what was saved: the ledger counts its steps as kept until another
    attempt begins before them."""
    if last.reason in DONE or not last.is_seen:
        return last
    resumed = row["resumed_from_step"] or 0
    saved = max((s["step"] for s in saves if s["attempt_id"] == row["attempt_id"]), default=resumed)
    return replace(last, kept_steps=min(last.kept_steps, max(0, saved - resumed)))


def _past_attempt(row: dict[str, Json], since: datetime) -> PastAttempt:
    restored_s = None
    if row["restored_at"] is not None:
        restored_s = max(0.0, (row["restored_at"] - row["started_at"]).total_seconds())
    resumed = row["resumed_from_step"] or 0
    nodes = parse_json(row["nodes_json"])
    past = PastAttempt(
        cause=row["cause"],
        opened_s=(row["opened_at"] - since).total_seconds(),
        ended_s=(row["ended_at"] - since).total_seconds(),
        held_s=(row["gpu_seconds"] or 0.0) / max(1, row["ranks"]),
        restart_s=restored_s,
        reason=TerminationReason(row["termination_reason"]),
        message=row["root_message"] or "",
        fingerprint=row["fingerprint"],
        node=nodes[0] if nodes else "",
        steps=max(0, (row["last_step"] or resumed) - resumed),
        kept_steps=row["kept_steps"],
        save_count=0,
        saved_at_end=False,
    )
    return past.unseen() if row["is_imported"] else past

"""Random tracks, legal record by record: every kind of record of a run and of a dataset occurs.

The same `Random` seed gives the same track. A test that fails must say its seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from random import Random

from tests.bodies import BEGIN
from tests.histories import DatasetHistory, History
from tracks_dagster.track.bodies import ConfigChange, Debit
from tracks_dagster.track.reasons import TerminationReason
from tracks_dagster.track.records import Kind
from tracks_dagster.track.states.checkpoints import CheckpointRef
from tracks_dagster.track.states.run_state import RunState


def random_run(
    rng: Random, run_id: str = "r-1", *, records_max: int = 40, begin: datetime = BEGIN
) -> History:
    """Return a legal history of up to `records_max` records, of every kind a run's track knows."""
    family = rng.choice(["gpt", "tabular", "reasoning"])
    history = History(run_id, begin=begin).declare(model_family=family)
    for _ in range(rng.randrange(records_max)):
        _grow(history, rng)
        history.at += timedelta(seconds=rng.randrange(1000))
    return history


def random_dataset(
    rng: Random, dataset: str = "aws-docs", *, records_max: int = 10, begin: datetime = BEGIN
) -> DatasetHistory:
    """Return a legal history of up to `records_max` records of a dataset."""
    history = DatasetHistory(dataset, begin=begin).declare()
    for _ in range(rng.randrange(records_max)):
        known = [s.body.snapshot_id for s in history.state.snapshots]
        kinds = [Kind.SNAPSHOT_QUARANTINED, Kind.SNAPSHOT_RELEASED]
        match rng.randrange(4 if known else 2):
            case 0:
                history.commit()
            case 1:
                history.note()
            case _:
                history.decide(rng.choice(kinds), rng.choice(known))
    return history


def _grow(history: History, rng: Random) -> None:
    """Append one record that the state allows."""
    state = history.state
    choices = ["note", "alert", "waive"]
    if state.checkpoints:
        choices += ["checkpoint"] * 3 + ["eval"] * 4
    if state.evals:
        choices += ["promote"] * 2
    if state.attempts and state.attempts[-1].ended:
        choices += ["reclassify"]
    if state.finished is None:
        choices += _choices_unfinished(state)
    match rng.choice(choices):
        case "note":
            history.note(f"note {rng.randrange(100)}")
        case "alert":
            history.alert()
        case "waive":
            history.waive_eval()
        case "checkpoint":
            _decide_some_checkpoint(history, rng)
        case "eval":
            _move_an_eval(history, rng)
        case "promote":
            history.promote(rng.choice(state.evals).opened, promoted=rng.random() < 0.5)
        case "reclassify":
            attempt = rng.choice([a for a in state.attempts if a.ended])
            history.reclassify(attempt.attempt_id, rng.choice(list(TerminationReason)))
        case "open":
            _open_some_attempt(history, rng)
        case "refuse":
            history.refuse()
        case "finish":
            history.finish(rng.choice(["step_budget", "converged", "user", "cost_stop"]))
        case "stop":
            history.stop(rng.choice(["stop", "drain"]))
        case "work":
            _work(history, rng)


def _choices_unfinished(state: RunState) -> list[str]:
    if state.open_attempt is not None:
        return ["work"] * 16 + ["stop"]
    if not state.attempts:
        return ["open"] * 8
    return ["open"] * 6 + ["refuse", "finish"]


def _open_some_attempt(history: History, rng: Random) -> None:
    manual = rng.random() < 0.3
    debit = Debit(reason="preempted", amount=rng.choice([0, 1]), fingerprint=None, why="by policy")
    change = ConfigChange(key="micro_batch", before=4, after=2, why="out of memory")
    history.open(
        **({"cause": "manual_retry"} if manual else {"debit": debit}),
        remediation=(change,) if rng.random() < 0.3 else (),
    )


def _work(history: History, rng: Random) -> None:
    """Let the open attempt come one record further."""
    attempt = history.state.attempts[-1]
    commits = [
        c.ref.step
        for c in history.state.checkpoints
        if c.ref.attempt_id == len(history.state.attempts)
    ]
    done = max([attempt.resumed_step, *commits])
    if rng.random() < 0.2:
        ran = rng.choice([None, done, done + rng.randrange(10)])
        unknown_times = {"started_at": None, "finished_at": None} if rng.random() < 0.2 else {}
        history.end(rng.choice(list(TerminationReason)), last_step=ran, **unknown_times)
    elif attempt.placed is None:
        history.place() if rng.random() < 0.5 else history.supervise(f"dagster-{rng.random()}")
    elif attempt.restored is None:
        known: Sequence[CheckpointRef] = history.state.resumable
        history.restore(rng.choice(known) if known and rng.random() < 0.3 else None)
    else:
        history.commit(done + rng.randrange(1, 10))


def _decide_some_checkpoint(history: History, rng: Random) -> None:
    kind = rng.choice(
        [
            Kind.CHECKPOINT_QUARANTINED,
            Kind.CHECKPOINT_SUPERSEDED,
            Kind.CHECKPOINT_DELETED,
            Kind.CHECKPOINT_PINNED,
            Kind.CHECKPOINT_UNPINNED,
        ]
    )
    history.decide_checkpoint(kind, rng.choice(history.state.checkpoints).ref, pin="hold:ann")


def _move_an_eval(history: History, rng: Random) -> None:
    running = [e for e in history.state.evals if e.ended is None]
    if running and rng.random() < 0.7:
        reason = rng.choice(["completed", "evaluator_error"])
        history.end_eval(rng.choice(running).opened, reason)
    else:
        history.open_eval(rng.choice(history.state.checkpoints).ref)

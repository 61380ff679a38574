"""Facts of a checkpoint, and of each try at an eval of one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from tracks_dagster.ledger.facts.fact import Absence, Fact, Type
from tracks_dagster.ledger.timeline import micros, time_of
from tracks_dagster.track.bodies import EvalEnded, EvalOpened, TimeSpent
from tracks_dagster.track.names import checkpoint_key
from tracks_dagster.track.states.checkpoints import CheckpointRef
from tracks_dagster.track.states.run_state import CheckpointState, EvalState, RunState


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalView:
    """A try at an eval. committed_at: of the checkpoint; opened_at, ended_at: of its records. A reader
    that has the bodies alone does without these times."""

    run_id: str
    opened: EvalOpened
    ended: EvalEnded | None
    opened_at: datetime | None = None
    ended_at: datetime | None = None
    committed_at: datetime | None = None


def eval_view(state: RunState, evaluation: EvalState) -> EvalView:
    """Return the view of one of the run's evals."""
    checkpoint = state.checkpoint(evaluation.opened.checkpoint.manifest_sha256)
    return EvalView(
        run_id=state.run_id,
        opened=evaluation.opened,
        ended=evaluation.ended,
        opened_at=evaluation.opened_at,
        ended_at=evaluation.ended_at,
        committed_at=checkpoint.at if checkpoint else None,
    )


def partition_key(ref: CheckpointRef) -> str:
    """Return the checkpoint's partition key in Dagster."""
    return checkpoint_key(ref.run_id, ref.attempt_id, ref.step)


def _spent(read: Callable[[TimeSpent], float]) -> Callable[[CheckpointState], float | None]:
    return lambda c: read(c.body.spent) if c.body.spent else None


def _ended(read: Callable[[EvalEnded], Any]) -> Callable[[EvalView], Any]:
    return lambda v: read(v.ended) if v.ended else None


def _scored(view: EvalView) -> str | None:
    scored = view.opened.scored
    return None if scored is None else f"{scored.eval_id}/{scored.number}"


def _lag_s(view: EvalView) -> float | None:
    if view.ended_at is None or view.committed_at is None:
        return None
    return max(0.0, (view.ended_at - view.committed_at).total_seconds())


def _started_us(view: EvalView) -> int | None:
    """The evaluator's clock may differ from those of the records."""
    started_at = time_of(view.ended.started_at) if view.ended else None
    if started_at is None or view.opened_at is None or view.ended_at is None:
        return None
    return micros(min(max(started_at, view.opened_at), max(view.opened_at, view.ended_at)))


UNMEASURED: Absence[CheckpointState] = Absence(
    "unmeasured", "its launch did not measure its time", lambda c: c.body.spent is None
)
OWN_ORDER: Absence[CheckpointState] = Absence(
    "own_order", "the order of samples is the script's own", lambda c: c.body.cursor is None
)
NO_LENGTH: Absence[CheckpointState] = Absence(
    "no_length", "an older version recorded no length", lambda c: c.body.pass_samples is None
)
OUR_ORDER: Absence[CheckpointState] = Absence(
    "our_order",
    "the order of samples is a.sampler's: the cursor has it",
    lambda c: c.body.cursor is not None,
)
NO_STATE: Absence[CheckpointState] = Absence(
    "no_state", "the script's loader has no state that says it", lambda c: not c.body.data_state
)
NO_PASSES: Absence[CheckpointState] = Absence(
    "no_passes",
    "the script fetches its batches itself, so nobody counts its passes",
    lambda c: c.body.epoch is None,
)
NOT_SUPERSEDED: Absence[CheckpointState] = Absence(
    "not_superseded", "retention has not let go of it", lambda c: not c.superseded
)
NOT_QUARANTINED: Absence[CheckpointState] = Absence(
    "not_quarantined", "nobody has put it in quarantine", lambda c: not c.quarantined
)
NOT_DELETED: Absence[CheckpointState] = Absence(
    "not_deleted", "its deletion was not decided", lambda c: not c.deleted
)
RESUMABLE: Absence[CheckpointState] = Absence(
    "resumable", "a run may resume from it", lambda c: c.is_resumable
)
NOT_ENDED: Absence[EvalView] = Absence(
    "not_ended", "the eval has not ended", lambda v: v.ended is None
)
NOT_LEASED: Absence[EvalView] = Absence(
    "not_leased",
    "no devices of this machine were given out to it",
    lambda v: v.ended is not None and v.ended.held is None,
)
NO_DAGSTER_RUN: Absence[EvalView] = Absence(
    "no_dagster_run",
    "no Dagster run measured it",
    lambda v: v.ended is not None and v.ended.dagster_run_id is None,
)
NO_DATA: Absence[EvalView] = Absence(
    "no_data", "the eval reads no snapshot", lambda v: v.opened.snapshot is None
)
NO_SCORER: Absence[EvalView] = Absence(
    "no_scorer", "it measures the checkpoint itself", lambda v: v.opened.scored is None
)
NOT_COUNTED: Absence[EvalView] = Absence(
    "not_counted",
    "the eval did not say how many samples it measured",
    lambda v: v.ended is not None and v.ended.sample_count is None,
)
NOT_COMMITTED: Absence[EvalView] = Absence(
    "not_committed", "its checkpoint is not in the track", lambda v: v.committed_at is None
)

TEXT, INTEGER, REAL, TIME = Type.TEXT, Type.INTEGER, Type.REAL, Type.TIME

# Tables, to be read by the line:
# fmt: off
CHECKPOINT: tuple[Fact[CheckpointState], ...] = (
    Fact("run_id", TEXT, lambda c: c.ref.run_id, "the training run", is_key=True,
         ui="training_run_id"),
    Fact("manifest_sha256", TEXT, lambda c: c.ref.manifest_sha256, "of its manifest", is_key=True,
         ui="manifest_sha256"),
    Fact("attempt_id", INTEGER, lambda c: c.ref.attempt_id, "the attempt that made it",
         ui="attempt_id"),
    Fact("step", INTEGER, lambda c: c.ref.step, "after which it was saved", ui="step",
         diff="steps/step"),
    Fact("status", TEXT, lambda c: c.status, "committed, superseded, quarantined or deleted",
         diff="steps/status"),
    Fact("pins", Type.NAMES, lambda c: sorted(c.pins), "who holds it by a record of their own"),
    Fact("object_prefix", TEXT, lambda c: c.ref.object_prefix, "where it lies in the store",
         ui="object_prefix"),
    Fact("launch_id", TEXT, lambda c: c.body.launch_id, "the launch that made it"),
    Fact("kind", TEXT, lambda c: c.body.kind,
         "what it holds: tensors that the script registered, or files of a folder that it wrote",
         ui="kind"),
    Fact("cursor", INTEGER, lambda c: c.body.cursor, "samples of the order consumed by then",
         absent=(OWN_ORDER,), ui="samples_consumed"),
    Fact("pass_samples", INTEGER, lambda c: c.body.pass_samples,
         "samples that are one pass over the data", absent=(OWN_ORDER, NO_LENGTH), since=10),
    Fact("data_state", TEXT, lambda c: c.body.data_state,
         "where the script's own loader said that it stands, by its numbers on rank 0",
         absent=(OUR_ORDER, NO_STATE), ui="data_state"),
    Fact("epoch", INTEGER, lambda c: c.body.epoch, "passes over the data by then",
         absent=(NO_PASSES,), diff="steps/epoch"),
    Fact("trigger", TEXT, lambda c: c.body.trigger, "interval, time, demand, sigterm or final",
         ui="trigger", diff="steps/trigger"),
    Fact("total_bytes", INTEGER, lambda c: c.body.total_bytes, "of its tensors or files",
         ui="total_bytes"),
    Fact("written_bytes", INTEGER, lambda c: c.body.written_bytes, "of its new chunks",
         ui="written_bytes"),
    Fact("blocking_s", REAL, lambda c: c.body.blocking_s, "training waited for it",
         ui="blocking_s"),
    Fact("metrics", Type.MAPPING, lambda c: c.body.metrics, "of training, at that step"),
    Fact("committed_at", TIME, lambda c: c.at, "recorded", diff="steps/committed_at"),
    Fact("committed_us", INTEGER, lambda c: micros(c.at), "the same in microseconds since 1970"),
    Fact("spent_steps_s", REAL, _spent(lambda s: s.steps_s),
         "its launch had spent on steps by then", absent=(UNMEASURED,)),
    Fact("spent_data_s", REAL, _spent(lambda s: s.data_s), "on waiting for data",
         absent=(UNMEASURED,)),
    Fact("spent_saving_s", REAL, _spent(lambda s: s.saving_s), "on saves", absent=(UNMEASURED,)),
    Fact("spent_eval_s", REAL, _spent(lambda s: s.eval_s), "on evaluations inside the loop",
         absent=(UNMEASURED,)),
    Fact("superseded_at", TIME, lambda c: c.superseded_at, "first decided",
         absent=(NOT_SUPERSEDED,)),
    Fact("quarantined_at", TIME, lambda c: c.quarantined_at, "first decided",
         absent=(NOT_QUARANTINED,)),
    Fact("deleted_at", TIME, lambda c: c.deleted_at, "first decided", absent=(NOT_DELETED,)),
    Fact("withdrawn_us", INTEGER, lambda c: micros(c.unusable_at) if c.unusable_at else None,
         "first quarantined or deleted, in microseconds since 1970", absent=(RESUMABLE,)),
)

EVAL: tuple[Fact[EvalView], ...] = (
    Fact("run_id", TEXT, lambda v: v.run_id, "the training run", is_key=True, ui="training_run_id"),
    Fact("eval_id", TEXT, lambda v: v.opened.eval_id, "SUITE@STEP", is_key=True),
    Fact("number", INTEGER, lambda v: v.opened.number, "which try at it, from 1", is_key=True,
         ui="attempt_at_this_eval"),
    Fact("attempt_id", INTEGER, lambda v: v.opened.checkpoint.attempt_id, "of the checkpoint"),
    Fact("step", INTEGER, lambda v: v.opened.checkpoint.step, "of the checkpoint",
         json="checkpoint_step"),
    Fact("checkpoint", TEXT, lambda v: partition_key(v.opened.checkpoint),
         "its partition in Dagster", has_column=False, ui="checkpoint"),
    Fact("manifest_sha256", TEXT, lambda v: v.opened.checkpoint.manifest_sha256,
         "of the checkpoint", ui="manifest_sha256"),
    Fact("suite", TEXT, lambda v: v.opened.suite, "what is measured", ui="suite"),
    Fact("suite_version", TEXT, lambda v: v.opened.suite_version, "of the suite",
         ui="suite_version"),
    Fact("dataset", TEXT, lambda v: v.opened.snapshot and v.opened.snapshot.dataset,
         "that is evaluated on", absent=(NO_DATA,), ui="dataset"),
    Fact("snapshot_id", TEXT, lambda v: v.opened.snapshot and v.opened.snapshot.snapshot_id,
         "that is evaluated on", absent=(NO_DATA,), ui="snapshot_id"),
    Fact("scored", TEXT, _scored, "the try at another eval whose files it scores, EVAL_ID/NUMBER",
         absent=(NO_SCORER,), ui="scored", since=10),
    Fact("seed", INTEGER, lambda v: v.opened.seed, "of the samples", ui="seed"),
    Fact("decision", TEXT, lambda v: v.opened.decision, "why it was opened, in words",
         ui="opened_because"),
    Fact("decided_by", TEXT, lambda v: v.opened.decided_by, "the sensor or person"),
    Fact("skipped", Type.NAMES, lambda v: [str(step) for step in v.opened.skipped],
         "steps whose own eval was left out, as this commit is newer", ui="skipped_steps"),
    Fact("dagster_run_id", TEXT, _ended(lambda e: e.dagster_run_id),
         "the Dagster run that measured", absent=(NOT_ENDED, NO_DAGSTER_RUN)),
    Fact("opened_at", TIME, lambda v: v.opened_at, "recorded"),
    Fact("started_at", TIME, _ended(lambda e: time_of(e.started_at)), "the evaluator started",
         absent=(NOT_ENDED,), ui="started_at"),
    Fact("ended_at", TIME, _ended(lambda e: time_of(e.finished_at)), "the evaluator ended",
         absent=(NOT_ENDED,), ui="finished_at"),
    Fact("reason", TEXT, _ended(lambda e: e.reason), "completed, or why it failed",
         absent=(NOT_ENDED,), ui="reason"),
    Fact("message", TEXT, _ended(lambda e: e.message), "of the failure", absent=(NOT_ENDED,)),
    Fact("metrics", Type.MAPPING, _ended(lambda e: e.metrics), "what was measured",
         absent=(NOT_ENDED,)),
    Fact("sample_count", INTEGER, _ended(lambda e: e.sample_count), "samples evaluated",
         absent=(NOT_ENDED, NOT_COUNTED), ui="sample_count"),
    Fact("seconds", Type.MAPPING, _ended(lambda e: e.seconds),
         "fetch, evaluate; load, infer, score where the eval says so", absent=(NOT_ENDED,),
         ui="seconds"),
    Fact("artifacts", Type.NAMES, _ended(lambda e: [each.name for each in e.artifacts]),
         "the files that it left", absent=(NOT_ENDED,), ui="artifacts"),
    Fact("leased_devices", Type.NAMES, _ended(lambda e: list(e.held.devices) if e.held else None),
         "the devices of this machine that it was given, by name", absent=(NOT_ENDED, NOT_LEASED),
         ui="leased_devices", since=10),
    Fact("device_seconds", REAL, _ended(lambda e: e.device_seconds), "devices times seconds",
         absent=(NOT_ENDED,), ui="device_seconds"),
    Fact("environment", Type.MAPPING, _ended(lambda e: e.environment),
         "versions of python, libraries and platform", absent=(NOT_ENDED,), has_column=False,
         ui="environment"),
    Fact("environment_sha256", TEXT, _ended(lambda e: e.environment_sha256), "of these versions",
         absent=(NOT_ENDED,), ui="environment_sha256"),
    Fact("opened_us", INTEGER, lambda v: micros(v.opened_at) if v.opened_at else None,
         "recorded, in microseconds since 1970", since=10),
    Fact("started_us", INTEGER, _started_us,
         "the evaluator started, between `opened_us` and `ended_us`", absent=(NOT_ENDED,),
         since=10),
    Fact("ended_us", INTEGER, lambda v: micros(v.ended_at) if v.ended_at else None,
         "its end was recorded, in microseconds since 1970", absent=(NOT_ENDED,)),
    Fact("lag_s", REAL, _lag_s, "from the checkpoint's commit to the record of its end",
         absent=(NOT_ENDED, NOT_COMMITTED)),
)
# fmt: on

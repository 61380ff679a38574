"""Facts of a training run, of its promotions, notes and alerts, and of which alerts are muted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from tracks_dagster.ledger.facts.checkpoint import partition_key
from tracks_dagster.ledger.facts.fact import Absence, Fact, Type
from tracks_dagster.track.bodies import Note, Program, PromotionDecided, SkippedGates, SnapshotRef
from tracks_dagster.track.body_json import to_json
from tracks_dagster.track.declared_fields import FIELDS, ROWS, Column, Field, Kind
from tracks_dagster.track.reasons import TerminationReason
from tracks_dagster.track.states.accounting import newest_step
from tracks_dagster.track.states.alerts import AlertState
from tracks_dagster.track.states.checkpoints import CheckpointRef
from tracks_dagster.track.states.evals import evaluates_commits
from tracks_dagster.track.states.lifecycle import RunStatus, run_status
from tracks_dagster.track.states.metric_values import MetricValues, metric_values
from tracks_dagster.track.states.mute_state import Mute, Unmute
from tracks_dagster.track.states.run_state import Dated, RunState, steps_of
from tracks_dagster.track.states.validity import why_invalid


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView:
    """All that the facts of a run are computed from."""

    state: RunState
    status: RunStatus
    metrics: MetricValues


def run_view(state: RunState) -> RunView:
    """Return the view of a run."""
    return RunView(state=state, status=run_status(state), metrics=metric_values(state))


@dataclass(frozen=True, slots=True, kw_only=True)
class PromotionView:
    """A decision on a promotion; seq and at are those of its record, once it is appended."""

    run_id: str
    body: PromotionDecided
    seq: int | None = None
    at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NoteView:
    """A note or an alert of a run."""

    run_id: str
    note: Dated[Note] | AlertState


NO_CHECKOUT: Absence[RunView] = Absence(
    "no_checkout",
    "the run was declared outside of a git checkout",
    lambda v: v.state.declared.code.git_commit is None,
)
NO_BRANCH: Absence[RunView] = Absence(
    "no_branch", "HEAD was detached", lambda v: v.state.declared.code.branch is None
)
NO_SOURCE: Absence[RunView] = Absence(
    "no_source",
    "the run started at step 0, as no branch of another",
    lambda v: v.state.declared.branched_from is None,
)
NO_SNAPSHOT: Absence[RunView] = Absence(
    "no_snapshot", "no snapshot was named", lambda v: v.state.declared.snapshot is None
)
NO_STEPS_NAMED: Absence[RunView] = Absence(
    "no_steps_named",
    "its config names no number of steps",
    lambda v: steps_of(v.state) is None,
)
NOT_FINISHED: Absence[RunView] = Absence(
    "not_finished", "the run is not finished", lambda v: v.state.finished is None
)
NO_ATTEMPT: Absence[RunView] = Absence(
    "no_attempt", "no attempt was opened yet", lambda v: not v.state.attempts
)
NOT_ENDED: Absence[RunView] = Absence(
    "not_ended", "its newest attempt is open", lambda v: v.state.open_attempt is not None
)
NOT_CALLED: Absence[RunView] = Absence(
    "not_called", "nobody gave it a name", lambda v: not v.state.labels.name
)
NOT_ARCHIVED: Absence[RunView] = Absence(
    "not_archived",
    "it is not archived, or an attempt was opened since",
    lambda v: v.state.archived_at is None,
)
NOT_PROMOTED: Absence[RunView] = Absence(
    "not_promoted", "none of its checkpoints was promoted", lambda v: _alias(v) is None
)
NO_RULE: Absence[RunView] = Absence(
    "no_rule", "its project names no rule", lambda v: v.state.declared.promotion is None
)
NOTHING_SAVED: Absence[RunView] = Absence(
    "nothing_saved",
    "the run finished without a checkpoint",
    lambda v: v.state.finished is not None and v.state.finished.final is None,
)
NOT_MEASURED: Absence[PromotionView] = Absence(
    "not_measured",
    "the eval did not measure that metric",
    lambda v: v.body.metric not in v.body.metrics,
)
WITHOUT_RULE: Absence[PromotionView] = Absence(
    "no_rule",
    "the run was declared without a promotion rule: a person promoted it without a threshold",
    lambda v: v.body.threshold is None,
)
NO_EVAL_DONE: Absence[PromotionView] = Absence(
    "no_eval", "no eval of the checkpoint was completed", lambda v: not v.body.eval_id
)
NO_EVAL_DATA: Absence[PromotionView] = Absence(
    "no_data", "its eval reads no snapshot", lambda v: v.body.snapshot is None
)
NOT_COMPARED: Absence[PromotionView] = Absence(
    "not_compared",
    "the rule does not compare with what has the alias",
    lambda v: v.body.better_by is None,
)
NO_HOLDER: Absence[PromotionView] = Absence(
    "no_holder",
    "nothing else of the project had the alias, or the record is of an older version",
    lambda v: v.body.holder is None,
)
HOLDER_NOT_MEASURED: Absence[PromotionView] = Absence(
    "holder_not_measured",
    "that has no eval of the same suite, version, snapshot and seed",
    lambda v: v.body.holder is not None and v.body.holder_value is None,
)
NO_STOP_CAUSE: Absence[PromotionView] = Absence(
    "no_stop_cause", "an older version recorded none", lambda v: v.body.stop_cause is None
)
OF_THE_RUN: Absence[NoteView] = Absence(
    "of_the_run", "it concerns no single attempt", lambda v: v.note.attempt_id is None
)
A_NOTE: Absence[NoteView] = Absence("a_note", "it is a note", lambda v: _alert(v) is None)
OLDER_ALERT: Absence[NoteView] = Absence(
    "not_recorded",
    "its record does not say: docs/health.md has it by the rule",
    lambda v: (alert := _alert(v)) is not None and alert.body.severity is None,
)
STILL_OPEN: Absence[NoteView] = Absence(
    "still_open",
    "the alert's episode is not over",
    lambda v: (alert := _alert(v)) is not None and alert.is_open,
)
EVERY_RUN: Absence[Mute] = Absence(
    "every_run", "it concerns every run", lambda m: m.body.run_id is None
)
NOT_UNMUTED: Absence[Mute] = Absence(
    "not_unmuted", "nobody has ended it early", lambda m: m.unmute is None
)


NO_ESTIMATE: Absence[RunView] = Absence(
    "no_estimate",
    "its config names no number of steps, so nobody knows how long it takes",
    lambda v: v.state.declared.estimated_device_s is None,
)


VALID: Absence[RunView] = Absence(
    "valid", "nothing is missing", lambda v: why_invalid(v.state) is None
)
SHOWS_NOTHING: Absence[RunView] = Absence(
    "shows_nothing",
    "it plays drills, or is of an older version",
    lambda v: v.state.declared.gate_key is None,
)
NOTHING_SKIPPED: Absence[RunView] = Absence(
    "nothing_skipped", "it was declared by the rules", lambda v: v.state.declared.skipped is None
)
NO_TIME_LIMIT: Absence[RunView] = Absence(
    "no_time_limit", "its stage has no limit", lambda v: v.state.declared.max_device_s is None
)
NOT_JUDGED: Absence[RunView] = Absence(
    "not_judged",
    "it is not a canary or kitchen sink that succeeded",
    lambda v: v.state.judged is None,
)
NO_PROGRAM: Absence[RunView] = Absence(
    "no_program",
    "an older version started its code in its own way",
    lambda v: v.state.declared.program is None,
)
NO_FOLDER: Absence[RunView] = Absence(
    "no_folder",
    "it is of an older version, which recorded no folder",
    lambda v: v.state.declared.folder is None,
)
OWN_INTERPRETER: Absence[RunView] = Absence(
    "own_interpreter",
    "the Python that `tracks` runs in",
    lambda v: v.state.declared.program is None or v.state.declared.program.python is None,
)


def _alert(view: NoteView) -> AlertState | None:
    return view.note if isinstance(view.note, AlertState) else None


def _of_alert(read: Callable[[AlertState], Any]) -> Callable[[NoteView], Any]:
    def of(view: NoteView) -> Any:
        alert = _alert(view)
        return None if alert is None else read(alert)

    return of


def _unmuted(read: Callable[[Unmute], Any]) -> Callable[[Mute], Any]:
    return lambda mute: None if mute.unmute is None else read(mute.unmute)


def _entry(program: Program | None) -> str | None:
    return None if program is None else " ".join(program.entry)


def _replay_steps(program: Program | None) -> int:
    return 0 if program is None else program.replay_steps


def _interpreter(program: Program | None) -> str | None:
    return None if program is None else program.python


def _snapshot(read: Callable[[SnapshotRef], str]) -> Callable[[RunView], Any]:
    def of(view: RunView) -> Any:
        snapshot = view.state.declared.snapshot
        return read(snapshot) if snapshot else None

    return of


def _skipped(read: Callable[[SkippedGates], Any]) -> Callable[[RunView], Any]:
    def of(view: RunView) -> Any:
        skipped = view.state.declared.skipped
        return read(skipped) if skipped else None

    return of


def _branched(read: Callable[[CheckpointRef], Any]) -> Callable[[RunView], Any]:
    def of(view: RunView) -> Any:
        source = view.state.declared.branched_from
        return read(source) if source else None

    return of


def _final(read: Callable[[CheckpointRef], Any]) -> Callable[[RunView], Any]:
    def of(view: RunView) -> Any:
        finished = view.state.finished
        return read(finished.final) if finished and finished.final else None

    return of


def _rule(view: RunView) -> Any:
    rule = view.state.declared.promotion
    return None if rule is None else to_json(rule)


def _newest_reason(view: RunView) -> Any:
    attempt = view.state.last_attempt
    return attempt.reason.value if attempt and attempt.reason else None


def _newest_config(view: RunView) -> Mapping[str, Any]:
    attempt = view.state.last_attempt
    return view.state.declared.config if attempt is None else attempt.opened.config


def _measured(view: RunView) -> Mapping[str, Mapping[str, float]]:
    """Return the metrics by suite: of its newest checkpoint that the suite has measured and that is not
    in quarantine, of two such evals the later one."""
    found: dict[str, tuple[tuple[int, int, int], Mapping[str, float]]] = {}
    for each in view.state.evals:
        ref, ended = each.opened.checkpoint, each.ended
        checkpoint = view.state.checkpoint(ref.manifest_sha256)
        if ended is None or ended.reason != TerminationReason.COMPLETED:
            continue
        if checkpoint is None or checkpoint.quarantined:
            continue
        place = (ref.attempt_id, ref.step, each.ended_seq or 0)
        if each.opened.suite not in found or place > found[each.opened.suite][0]:
            found[each.opened.suite] = (place, ended.metrics)
    return {suite: metrics for suite, (_, metrics) in found.items()}


def _alias(view: RunView) -> str | None:
    promoted = (each.body.alias for each in reversed(view.state.promotions) if each.body.promoted)
    return next(promoted, None)


def _device_seconds(view: RunView) -> float:
    ends = [attempt.ended for attempt in view.state.attempts if attempt.ended]
    return sum((ended.device_seconds for ended in ends), start=0.0)


TEXT, INTEGER, REAL, TRUTH, TIME = Type.TEXT, Type.INTEGER, Type.REAL, Type.TRUTH, Type.TIME

# Tables, to be read by the line:
_TYPES = {
    **dict.fromkeys((Kind.TEXT, Kind.NAME), TEXT),
    **dict.fromkeys((Kind.COUNT, Kind.STEPS, Kind.SIZE), INTEGER),
    Kind.NUMBER: REAL,
    Kind.NAMES: Type.NAMES,
    Kind.LABELS: Type.MAPPING,
    Kind.TOLERATIONS: Type.ROWS,
}


def _columns(names: Iterable[str]) -> Iterator[Fact[RunView]]:
    """Yield the facts of these fields of a declaration."""
    for row, column in ((ROWS[name], ROWS[name].column) for name in names):
        if column is not None:
            absent = tuple(_absence(each) for each in (column.beside, row.name) if each)
            yield Fact(
                row.name,
                _TYPES[row.kind],
                _of_row(row),
                column.meaning,
                absent=absent if column.absent else (),
                since=column.since,
            )


def _of_row(row: Field) -> Callable[[RunView], Any]:
    return lambda view: row.of_run(view.state.declared)


def _absence(name: str) -> Absence[RunView]:
    of, column = _of_row(ROWS[name]), ROWS[name].column or Column("")
    return Absence(column.absent, column.why, lambda view: of(view) is None)


_OWN = ("stage", "owner", "team", "workload_class", "intent")
_ASKED = ("launcher", "ranks", "device_class")
_OTHERS = [row.name for row in FIELDS if row.column and row.name not in (*_OWN, *_ASKED)]

# fmt: off
RUN: tuple[Fact[RunView], ...] = (
    Fact("run_id", TEXT, lambda v: v.state.run_id, "the training run", is_key=True),
    Fact("model_family", TEXT, lambda v: v.state.declared.model_family, "which trainer and model"),
    *_columns(_OWN),
    Fact("dataset", TEXT, _snapshot(lambda s: s.dataset), "the dataset it trains on",
         absent=(NO_SNAPSHOT,)),
    Fact("snapshot_id", TEXT, _snapshot(lambda s: s.snapshot_id),
         "the snapshot it was declared with", absent=(NO_SNAPSHOT,)),
    Fact("git_commit", TEXT, lambda v: v.state.declared.code.git_commit, "the commit of the code",
         absent=(NO_CHECKOUT,)),
    Fact("git_branch", TEXT, lambda v: v.state.declared.code.branch, "of the checkout",
         absent=(NO_CHECKOUT, NO_BRANCH)),
    Fact("git_dirty", TRUTH, lambda v: v.state.declared.code.dirty,
         "whether the checkout had local changes", absent=(NO_CHECKOUT,)),
    Fact("package_version", TEXT, lambda v: v.state.declared.code.package_version,
         "of this program"),
    Fact("trainer", TEXT, lambda v: v.state.declared.trainer,
         "key of the stored code; `family` of older runs"),
    *_columns(_ASKED),
    Fact("max_steps", INTEGER, lambda v: steps_of(v.state),
         "how many steps it is to have, as its newest attempt has it", absent=(NO_STEPS_NAMED,)),
    Fact("config", Type.MAPPING, lambda v: v.state.declared.config,
         "its whole config, as declared"),
    Fact("roles", Type.MAPPING, lambda v: v.state.declared.roles,
         "which of its keys mean what: role → key, where the project says so"),
    Fact("project_folder", TEXT, lambda v: v.state.declared.folder,
         "where its project lay when it was declared", absent=(NO_FOLDER,)),
    Fact("entry", TEXT, lambda v: _entry(v.state.declared.program),
         "what each rank starts, with the config's keys in braces", absent=(NO_PROGRAM,)),
    Fact("interpreter", TEXT, lambda v: _interpreter(v.state.declared.program),
         "the project's own Python, as declared", absent=(OWN_INTERPRETER,)),
    Fact("replay_steps", INTEGER, lambda v: _replay_steps(v.state.declared.program),
         "steps it trains on after the checkpoint of a SIGTERM, for the resume to be compared with"),
    Fact("evaluates_commits", TRUTH, lambda v: evaluates_commits(v.state),
         "whether evals of its commits run while it trains"),
    Fact("estimated_device_s", REAL, lambda v: v.state.declared.estimated_device_s,
         "device seconds of an undisturbed run, as declared", absent=(NO_ESTIMATE,)),
    *_columns(_OTHERS),
    Fact("is_valid", TRUTH, lambda v: why_invalid(v.state) is None,
         "whether it has left what the policy asked for when it was declared", since=10),
    Fact("invalid_why", TEXT, lambda v: why_invalid(v.state),
         "what is missing, with the policy's rule", absent=(VALID,), since=10),
    Fact("environment", Type.MAPPING, lambda v: v.state.declared.environment,
         "what its gang was to find when it was declared", since=10),
    Fact("gate_key", TEXT, lambda v: v.state.declared.gate_key,
         "sha256 of code, config, data and environment: what a stage shows, it shows for this key",
         absent=(SHOWS_NOTHING,), since=10),
    Fact("passed_gates", Type.MAPPING, lambda v: v.state.declared.passed_gates,
         "what its stage needs, by the run or certificate that showed it", since=10),
    Fact("skipped_gates", Type.NAMES, _skipped(lambda s: s.gates),
         "what it was declared without", absent=(NOTHING_SKIPPED,), since=10),
    Fact("skipped_by", TEXT, _skipped(lambda s: s.by), "the person", absent=(NOTHING_SKIPPED,),
         since=10),
    Fact("skipped_why", TEXT, _skipped(lambda s: s.why), "in words", absent=(NOTHING_SKIPPED,),
         since=10),
    Fact("max_device_s", REAL, lambda v: v.state.declared.max_device_s,
         "how long each of its devices may work, by its stage", absent=(NO_TIME_LIMIT,), since=10),
    Fact("stage_passed", TRUTH, lambda v: v.state.judged and v.state.judged.body.passed,
         "whether a canary or a kitchen sink shows what it is for", absent=(NOT_JUDGED,), since=10),
    Fact("stage_why", TEXT, lambda v: v.state.judged and v.state.judged.body.why,
         "the same in words, with the numbers", absent=(NOT_JUDGED,), since=10),
    Fact("state", TEXT, lambda v: v.status.state,
         "running, waiting, succeeded, refused or cancelled"),
    Fact("state_why", TEXT, lambda v: v.status.why, "the same in a sentence", json="why"),
    Fact("declared_at", TIME, lambda v: v.state.declared_at, "recorded"),
    Fact("finished_at", TIME, lambda v: v.state.finished_at, "recorded", absent=(NOT_FINISHED,)),
    Fact("stop_cause", TEXT, lambda v: v.state.finished.stop_cause if v.state.finished else None,
         "converged, step_budget, early_stop, cost_stop or user", absent=(NOT_FINISHED,)),
    Fact("attempt_count", INTEGER, lambda v: len(v.state.attempts),
         "attempts, an open one included"),
    Fact("device_seconds", REAL, _device_seconds, "of the attempts that have ended"),
    Fact("step", INTEGER, lambda v: newest_step(v.state),
         "the newest step on record: its newest attempt ran it or resumes from it",
         absent=(NO_ATTEMPT,), since=10),
    Fact("newest_reason", TEXT, _newest_reason, "why its newest attempt ended",
         absent=(NO_ATTEMPT, NOT_ENDED), since=10),
    Fact("newest_config", Type.MAPPING, _newest_config, "as its newest attempt has it", since=10),
    Fact("newest_metrics", Type.MAPPING, lambda v: v.metrics.newest,
         "the newest value on record of each: of its checkpoints, of the ends of its attempts; of what "
         "it rests on, none in quarantine", since=10),
    Fact("newest_metric_steps", Type.MAPPING, lambda v: v.metrics.steps,
         "the step of each of these; without those of an imported run", since=10),
    Fact("best_metrics", Type.MAPPING, lambda v: v.metrics.best,
         "the best value of each at a checkpoint that is not in quarantine", since=10),
    Fact("best_metric_steps", Type.MAPPING, lambda v: v.metrics.best_steps,
         "the step of each of these", since=10),
    Fact("measured", Type.MAPPING, _measured,
         "suite → metrics, of the newest checkpoint that it has measured and that is not in quarantine",
         since=10),
    Fact("alias", TEXT, _alias, "what one of its checkpoints was promoted to last",
         absent=(NOT_PROMOTED,), since=10),
    Fact("called", TEXT, lambda v: v.state.labels.name or None,
         "its name for people; imported: what it was called there", absent=(NOT_CALLED,), since=10),
    Fact("tags", Type.NAMES, lambda v: v.state.labels.tags, "in the order of the alphabet",
         since=10),
    Fact("archived_at", TIME, lambda v: v.state.archived_at, "tables leave it out since",
         absent=(NOT_ARCHIVED,), since=10),
    Fact("promotion", Type.MAPPING, _rule,
         "its rule: the eval, metric, direction and threshold that a promotion asks for",
         absent=(NO_RULE,), since=10),
    Fact("final_step", INTEGER, _final(lambda c: c.step), "the step of its final checkpoint",
         absent=(NOT_FINISHED, NOTHING_SAVED)),
    Fact("final_manifest_sha256", TEXT, _final(lambda c: c.manifest_sha256),
         "the manifest of its final checkpoint", absent=(NOT_FINISHED, NOTHING_SAVED)),
    Fact("branched_from_run_id", TEXT, _branched(lambda c: c.run_id), "the run it branched from",
         absent=(NO_SOURCE,)),
    Fact("branched_from_step", INTEGER, _branched(lambda c: c.step), "the step it branched from",
         absent=(NO_SOURCE,)),
    Fact("branched_from_manifest_sha256", TEXT, _branched(lambda c: c.manifest_sha256),
         "the manifest of that checkpoint", absent=(NO_SOURCE,)),
)

PROMOTION: tuple[Fact[PromotionView], ...] = (
    Fact("run_id", TEXT, lambda v: v.run_id, "the training run", is_key=True, ui="training_run_id"),
    Fact("seq", INTEGER, lambda v: v.seq, "of the record that decided", is_key=True, ui="record"),
    Fact("alias", TEXT, lambda v: v.body.alias, "the name that is given", ui="alias"),
    Fact("promoted", TRUTH, lambda v: v.body.promoted, "false is a refusal, which is recorded too",
         ui="promoted"),
    Fact("attempt_id", INTEGER, lambda v: v.body.checkpoint.attempt_id, "of the checkpoint"),
    Fact("step", INTEGER, lambda v: v.body.checkpoint.step, "of the checkpoint"),
    Fact("checkpoint", TEXT, lambda v: partition_key(v.body.checkpoint), "its partition in Dagster",
         has_column=False, ui="checkpoint"),
    Fact("manifest_sha256", TEXT, lambda v: v.body.checkpoint.manifest_sha256, "of the checkpoint",
         ui="manifest_sha256"),
    Fact("eval_id", TEXT, lambda v: v.body.eval_id or None, "the eval it rests on",
         absent=(NO_EVAL_DONE,)),
    Fact("eval", TEXT, lambda v: f"{v.run_id}/{v.body.eval_id}" if v.body.eval_id else None,
         "the eval's partition in Dagster", absent=(NO_EVAL_DONE,), has_column=False, ui="eval"),
    Fact("eval_number", INTEGER, lambda v: v.body.eval_number or None, "which try at that eval",
         absent=(NO_EVAL_DONE,)),
    Fact("suite", TEXT, lambda v: v.body.suite or None, "of the eval", absent=(NO_EVAL_DONE,),
         ui="suite"),
    Fact("suite_version", TEXT, lambda v: v.body.suite_version or None, "of the eval",
         absent=(NO_EVAL_DONE,), ui="suite_version"),
    Fact("dataset", TEXT, lambda v: v.body.snapshot and v.body.snapshot.dataset,
         "that was evaluated on", absent=(NO_EVAL_DONE, NO_EVAL_DATA)),
    Fact("snapshot_id", TEXT, lambda v: v.body.snapshot and v.body.snapshot.snapshot_id,
         "that was evaluated on", absent=(NO_EVAL_DONE, NO_EVAL_DATA), ui="snapshot_id"),
    Fact("seed", INTEGER, lambda v: v.body.seed if v.body.eval_id else None, "of the eval",
         absent=(NO_EVAL_DONE,), ui="seed"),
    Fact("environment_sha256", TEXT, lambda v: v.body.environment_sha256 or None,
         "of the versions that evaluated", absent=(NO_EVAL_DONE,), ui="environment_sha256"),
    Fact("metric", TEXT, lambda v: v.body.metric or None, "the metric that decides",
         absent=(WITHOUT_RULE,), ui="metric"),
    Fact("value", REAL, lambda v: v.body.metrics.get(v.body.metric), "its value",
         absent=(WITHOUT_RULE, NOT_MEASURED)),
    Fact("direction", TEXT, lambda v: v.body.direction or None,
         "min: at most the threshold; max: at least", absent=(WITHOUT_RULE,), ui="direction"),
    Fact("threshold", REAL, lambda v: v.body.threshold, "of the rule", absent=(WITHOUT_RULE,),
         ui="threshold"),
    Fact("better_by", REAL, lambda v: v.body.better_by,
         "how much better the rule asks to be than what has the alias", absent=(NOT_COMPARED,),
         ui="better_by"),
    Fact("holder_run_id", TEXT, lambda v: v.body.holder and v.body.holder.run_id,
         "the run of the checkpoint that had the alias", absent=(NO_HOLDER,), ui="holder_run_id"),
    Fact("holder_step", INTEGER, lambda v: v.body.holder and v.body.holder.step,
         "the step of that checkpoint", absent=(NO_HOLDER,), ui="holder_step"),
    Fact("holder_value", REAL, lambda v: v.body.holder_value, "its metric",
         absent=(NO_HOLDER, HOLDER_NOT_MEASURED), ui="holder_value"),
    Fact("stop_cause", TEXT, lambda v: v.body.stop_cause,
         "why training stopped at the checkpoint: converged, step_budget, early_stop, cut_off; "
         "or trained_on or open, where it went on", absent=(NO_STOP_CAUSE,), ui="stop_cause",
         since=10),
    Fact("metrics", Type.MAPPING, lambda v: v.body.metrics, "all metrics of the eval"),
    Fact("decided_by", TEXT, lambda v: v.body.decided_by, "the sensor or person", ui="decided_by"),
    Fact("why", TEXT, lambda v: v.body.why, "in words", ui="why"),
    Fact("decided_at", TIME, lambda v: v.at, "recorded", ui="decided_at"),
    Fact("is_withheld", TRUTH, lambda v: v.body.is_withheld,
         "refused while a source was in quarantine"),
)

NOTE: tuple[Fact[NoteView], ...] = (
    Fact("run_id", TEXT, lambda v: v.run_id, "the training run", is_key=True),
    Fact("seq", INTEGER, lambda v: v.note.seq, "of the record", is_key=True),
    Fact("kind", TEXT, lambda v: "note" if isinstance(v.note.body, Note) else "alert",
         "note or alert"),
    Fact("attempt_id", INTEGER, lambda v: v.note.attempt_id, "the attempt it concerns",
         absent=(OF_THE_RUN,)),
    Fact("author", TEXT,
         lambda v: v.note.body.by if isinstance(v.note.body, Note) else v.note.body.rule,
         "who wrote the note, or the rule that raised the alert"),
    Fact("text", TEXT, lambda v: v.note.body.text, "its words"),
    Fact("data", Type.MAPPING, lambda v: v.note.body.data, "what a program may want of it"),
    Fact("noted_at", TIME, lambda v: v.note.at, "recorded"),
    Fact("severity", TEXT, _of_alert(lambda a: a.body.severity), "of the alert: yellow or red",
         absent=(A_NOTE, OLDER_ALERT), since=10),
    Fact("light", TEXT, _of_alert(lambda a: a.body.light),
         "that the alert colours: healthy, improving or resources", absent=(A_NOTE, OLDER_ALERT),
         since=10),
    Fact("cleared_at", TIME, _of_alert(lambda a: a.cleared_at), "the alert's episode was over",
         absent=(A_NOTE, STILL_OPEN), since=10),
    Fact("cleared_why", TEXT, _of_alert(lambda a: a.cleared_why), "in words",
         absent=(A_NOTE, STILL_OPEN), since=10),
)

MUTE: tuple[Fact[Mute], ...] = (
    Fact("seq", INTEGER, lambda m: m.seq, "of the record", is_key=True, since=10),
    Fact("rule", TEXT, lambda m: m.body.rule, "whose alerts are sent to nobody; * for every rule",
         since=10),
    Fact("run_id", TEXT, lambda m: m.body.run_id, "only those of this run", absent=(EVERY_RUN,),
         since=10),
    Fact("muted_by", TEXT, lambda m: m.body.by, "the person", since=10),
    Fact("why", TEXT, lambda m: m.body.why, "in words", since=10),
    Fact("muted_at", TIME, lambda m: m.at, "recorded", since=10),
    Fact("until_at", TIME, lambda m: m.until_at, "it ends then by itself", since=10),
    Fact("unmuted_at", TIME, _unmuted(lambda u: u.at), "recorded", absent=(NOT_UNMUTED,), since=10),
    Fact("unmuted_by", TEXT, _unmuted(lambda u: u.body.by), "the person", absent=(NOT_UNMUTED,),
         since=10),
)
# fmt: on

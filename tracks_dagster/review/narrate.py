"""One sentence for each record of a run's track, for people who follow a run or read its history.

For reading only: programs read the records.
"""

from __future__ import annotations

from tracks_dagster.attempts.gates import skipped_words
from tracks_dagster.reasons.endings import Ending, ending_named
from tracks_dagster.track.bodies import (
    AttemptEnded,
    AttemptOpened,
    AttemptPlaced,
    AttemptReclassified,
    AttemptRestored,
    CheckpointCommitted,
    CheckpointDecision,
    CheckpointVerified,
    EvalEnded,
    EvalOpened,
    EvalWaived,
    Note,
    PromotionDecided,
    RetryRefused,
    RunDeclared,
    RunFinished,
    RunLabelled,
    StageJudged,
    StopRequested,
)
from tracks_dagster.track.body_json import from_json
from tracks_dagster.track.placement import nodes_of
from tracks_dagster.track.reasons import TerminationReason
from tracks_dagster.track.records import Kind, Record
from tracks_dagster.track.roles import STEPS, value_of
from tracks_dagster.track.states.checkpoints import checkpoint_at
from tracks_dagster.track.states.end_words import sentence_of
from tracks_dagster.track.text.safe_text import one_line
from tracks_dagster.track.text.units import counted

QUOTED_CHARACTERS_MAX = 200  # of the line that decided, after the sentence


def sentence(record: Record) -> str:
    """Return what `record` says, in one or two sentences."""
    teller = _TELLERS.get(record.kind)
    return one_line(teller(record) if teller else f"{record.kind.value.replace('_', ' ')}.")


def _declared(record: Record) -> str:
    body = from_json(RunDeclared, record.body)
    branch = f", a branch of {checkpoint_at(body.branched_from)}" if body.branched_from else ""
    steps = value_of(body.config, body.roles, STEPS)
    count = "" if steps is None else f"{steps} steps "
    skipped = "" if body.skipped is None else f"; {skipped_words(body.skipped)}"
    ranks = counted(body.compute.ranks, "rank")
    return f"run declared: {body.model_family}, {count}on {ranks}{branch}; {body.intent}{skipped}"


def _opened(record: Record) -> str:
    body = from_json(AttemptOpened, record.body)
    start = f"from step {body.resume.step}" if body.resume else "afresh"
    changes = "".join(f", {c.key} {c.before} → {c.after}" for c in body.remediation)
    allowed = ", in another environment if need be" if body.allows_environment_change else ""
    return f"attempt {record.attempt_id} opened by {body.decided_by}, {start}{changes}{allowed}"


def _placed(record: Record) -> str:
    body = from_json(AttemptPlaced, record.body)
    nodes = ", ".join(nodes_of(body))
    return f"attempt {record.attempt_id} placed: {counted(body.world_size, 'rank')} on {nodes}"


def _restored(record: Record) -> str:
    body = from_json(AttemptRestored, record.body)
    what = f"restored step {body.step}" if body.step else "began at step 0"
    fallback = f" ({body.fallback_why})" if body.fallback_why else ""
    return f"attempt {record.attempt_id} {what}{fallback}"


def _committed(record: Record) -> str:
    body = from_json(CheckpointCommitted, record.body)
    return f"checkpoint committed at step {body.ref.step} ({body.trigger})"


def _ended(record: Record) -> str:
    body = from_json(AttemptEnded, record.body)
    last = f" after step {body.last_step}" if body.last_step is not None else ""
    how = sentence_of(body, body.root_message)
    return f"attempt {record.attempt_id} ended{last}: {body.reason}. {how}{_quoted(body, how)}"


def _quoted(body: AttemptEnded, how: str) -> str:
    """Return the first line of what decided a failure, so that nobody has to ask for it."""
    is_shown = body.reason == TerminationReason.UNKNOWN or how.rstrip(".") in body.root_message
    if is_shown or not body.lines or ending_named(body.reason) is not Ending.FAILURE:
        return ""
    quoted = one_line(body.lines[0])[:QUOTED_CHARACTERS_MAX]
    if quoted.count("`") % 2:  # half a command would be none
        quoted = quoted.rpartition("`")[0]
    return f" {quoted.rstrip()}"


def _reclassified(record: Record) -> str:
    body = from_json(AttemptReclassified, record.body)
    return f"attempt {record.attempt_id} reclassified: {body.reason}; {body.why}"


def _refused(record: Record) -> str:
    body = from_json(RetryRefused, record.body)
    return f"no automatic retry: {body.decision}"


def _stop(record: Record) -> str:
    body = from_json(StopRequested, record.body)
    return f"{body.mode} requested by {body.by}: {body.why}"


def _checkpoint(record: Record) -> str:
    body = from_json(CheckpointDecision, record.body)
    verb = record.kind.value.removeprefix("checkpoint_")
    return f"checkpoint {body.manifest_sha256[:12]} {verb} by {body.by}: {body.why}"


def _verified(record: Record) -> str:
    body = from_json(CheckpointVerified, record.body)
    read = f"{body.total_bytes} bytes read"
    return f"checkpoint {body.manifest_sha256[:12]} verified by {body.by}: {read}"


def _eval_opened(record: Record) -> str:
    body = from_json(EvalOpened, record.body)
    scored = body.scored
    of = "" if scored is None else f", scores {scored.eval_id} (try {scored.number})"
    return f"eval {body.eval_id} opened (try {body.number}{of})"


def _eval_ended(record: Record) -> str:
    body = from_json(EvalEnded, record.body)
    if body.reason != TerminationReason.COMPLETED:
        return f"eval {body.eval_id} ended: {body.reason}; {body.message}"
    metrics = ", ".join(f"{name} {value:.4g}" for name, value in sorted(body.metrics.items()))
    return f"eval {body.eval_id} completed: {metrics}"


def _waived(record: Record) -> str:
    body = from_json(EvalWaived, record.body)
    return f"eval {body.suite} waived by {body.by}: {body.why}"


def _promotion(record: Record) -> str:
    body = from_json(PromotionDecided, record.body)
    verb = "promoted" if body.promoted else "not promoted"
    return f"step {body.checkpoint.step} {verb} to {body.alias} by {body.decided_by}: {body.why}"


def _note(record: Record) -> str:
    body = from_json(Note, record.body)
    return f"note by {body.by}: {body.text}"


def _labelled(record: Record) -> str:
    body = from_json(RunLabelled, record.body)
    done = [f"tagged {', '.join(body.added)}"] if body.added else []
    done += [f"no longer tagged {', '.join(body.removed)}"] if body.removed else []
    if body.called is not None:
        done.append(f"called {body.called!r}" if body.called else "no longer called otherwise")
    if body.is_archived is not None:
        done.append("archived" if body.is_archived else "taken out of the archive")
    why = f": {body.why}" if body.why else ""
    return f"{'; '.join(done)} by {body.by}{why}"


def _finished(record: Record) -> str:
    body = from_json(RunFinished, record.body)
    return f"run finished ({body.stop_cause}): {body.why}"


def _judged(record: Record) -> str:
    body = from_json(StageJudged, record.body)
    verdict = "passed" if body.passed else "did not pass"
    return f"{verdict} as {body.stage}: {body.why}"


_TELLERS = {
    Kind.RUN_DECLARED: _declared,
    Kind.ATTEMPT_OPENED: _opened,
    Kind.ATTEMPT_SUPERVISED: lambda r: f"attempt {r.attempt_id} supervised by a Dagster run",
    Kind.ATTEMPT_PLACED: _placed,
    Kind.ATTEMPT_RESTORED: _restored,
    Kind.CHECKPOINT_COMMITTED: _committed,
    Kind.ATTEMPT_ENDED: _ended,
    Kind.ATTEMPT_RECLASSIFIED: _reclassified,
    Kind.RETRY_REFUSED: _refused,
    Kind.STOP_REQUESTED: _stop,
    Kind.CHECKPOINT_VERIFIED: _verified,
    Kind.CHECKPOINT_QUARANTINED: _checkpoint,
    Kind.CHECKPOINT_SUPERSEDED: _checkpoint,
    Kind.CHECKPOINT_DELETED: _checkpoint,
    Kind.CHECKPOINT_PINNED: _checkpoint,
    Kind.CHECKPOINT_UNPINNED: _checkpoint,
    Kind.EVAL_OPENED: _eval_opened,
    Kind.EVAL_ENDED: _eval_ended,
    Kind.EVAL_WAIVED: _waived,
    Kind.PROMOTION_DECIDED: _promotion,
    Kind.NOTE: _note,
    Kind.ALERT: lambda r: f"alert: {r.body.get('text', '')}",
    Kind.ALERT_CLEARED: lambda r: f"alert {r.body.get('rule', '')} over: {r.body.get('why', '')}",
    Kind.RUN_FINISHED: _finished,
    Kind.STAGE_JUDGED: _judged,
    Kind.RUN_LABELLED: _labelled,
}

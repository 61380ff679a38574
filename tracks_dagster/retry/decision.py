"""What may follow on the state of a run: a retry, a wait, a refusal, or its end. Plain values.

`decide` gives one of them, `attempts.effects.retry` appends the record that it makes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from tracks_dagster.ledger.deciding import Wait
from tracks_dagster.retry.limits import Limit
from tracks_dagster.retry.remediation import Remedied
from tracks_dagster.retry.rollback import CheckpointQuarantine, Rollback
from tracks_dagster.retry.stage_time import over_stage_time
from tracks_dagster.track.bodies import (
    AttemptOpened,
    CheckpointCadence,
    CodeVersion,
    ComputeRequest,
    ConfigChange,
    Debit,
    Program,
    RetryRefused,
    SnapshotRef,
)
from tracks_dagster.track.errors import RecordTooLarge
from tracks_dagster.track.json_text import RECORD_BYTES_MAX
from tracks_dagster.track.names import LOCAL
from tracks_dagster.track.reasons import TerminationReason
from tracks_dagster.track.records import Draft, Json, canonical_json
from tracks_dagster.track.roles import (
    ACCUMULATION,
    LOADER_WORKERS,
    LR,
    MICRO_BATCH,
    key_of,
    value_of,
)
from tracks_dagster.track.states.checkpoints import CheckpointRef, checkpoint_at
from tracks_dagster.track.states.end_words import end_label
from tracks_dagster.track.states.run_state import AttemptState, RunState, program_of, trainer_of

_R = TerminationReason
COUNTED_SEQS_MAX = 100  # named in a record of at most 16 KiB; the newest ones
NAMED_SEQS_MAX = 10  # in its words
MIB = 1024**2


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """Open the next attempt; everything that its `attempt_opened` holds, and what comes before it.

    quarantine: a record each, in this order, without those that are in the track already.
    collects_first: superseded checkpoints are removed before it is opened; failing to does not stop it.
    avoided_nodes: as in `AttemptOpened`, once the holds on nodes were looked at; trainer, program,
    code: likewise.
    """

    decision: str
    debit: Debit
    remediation: tuple[ConfigChange, ...]
    config: Mapping[str, Json]
    compute: ComputeRequest
    snapshot: SnapshotRef | None
    resume: CheckpointRef | None
    counted_seqs: tuple[int, ...]
    allows_environment_change: bool
    cadence: CheckpointCadence | None = None
    quarantine: tuple[CheckpointQuarantine, ...] = ()
    collects_first: bool = False
    avoided_nodes: Mapping[str, str] = field(default_factory=dict)
    trainer: str | None = None
    program: Program | None = None
    code: CodeVersion | None = None

    def opened(self, *, decided_by: str, policy_version: str = "") -> AttemptOpened:
        """Return the body of its record."""
        return AttemptOpened(
            cause="retry",
            decided_by=decided_by,
            decision=self.decision,
            config=self.config,
            compute=self.compute,
            snapshot=self.snapshot,
            resume=self.resume,
            debit=self.debit,
            remediation=self.remediation,
            counted_seqs=self.counted_seqs,
            policy_version=policy_version,
            allows_environment_change=self.allows_environment_change,
            cadence=self.cadence,
            avoided_nodes=self.avoided_nodes,
            trainer=self.trainer,
            program=self.program,
            code=self.code,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Refuse:
    """No automatic retry. limit: as in `RetryRefused`, the first of those that are exhausted.

    quarantine: checkpoints that a person's retry may not resume from either, a record each before.
    quarantines_snapshot: the snapshot that it trained on is quarantined before, whose rows are bad.
    """

    reason: TerminationReason
    limit: str
    decision: str
    what_to_do: str
    counted_seqs: tuple[int, ...]
    quarantine: tuple[CheckpointQuarantine, ...] = ()
    quarantines_snapshot: SnapshotRef | None = None

    def refused(self, *, decided_by: str, policy_version: str = "") -> RetryRefused:
        """Return the body of its record."""
        return RetryRefused(
            reason=self.reason.value,
            limit=self.limit,
            decision=self.decision,
            counted_seqs=self.counted_seqs,
            what_to_do=self.what_to_do,
            decided_by=decided_by,
            policy_version=policy_version,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """The run is over. stop_cause: as in `RunFinished`.

    quarantine: what was saved after the numbers of a stopped run went wrong, a record each before.
    """

    stop_cause: str
    why: str
    final: CheckpointRef | None
    quarantine: tuple[CheckpointQuarantine, ...] = ()


Decision = Retry | Wait | Refuse | Finish


def describe_plan(
    state: RunState,
    remedied: Remedied,
    failed: AttemptState,
    resume: CheckpointRef | None,
    rollback: Rollback | None,
) -> str:
    """Return where the next attempt begins and what is changed, in one or a few sentences."""
    changes = ", ".join(f"{c.key} {c.before} → {c.after}" for c in remedied.changes)
    if resume is None:
        start = "starts afresh" if rollback else f"starts afresh: {_why_afresh(state)}"
    elif resume.run_id == state.run_id:
        start = f"resumes from step {resume.step} of attempt {resume.attempt_id}"
    else:
        start = f"resumes from {checkpoint_at(resume)}, which the run branched from"
    changed = f"with {changes}" if changes else "with nothing changed"
    back = f"{rollback.words} " if rollback else ""
    return f"{back}Attempt {failed.attempt_id + 1} {start}, {changed}."


def _why_afresh(state: RunState) -> str:
    if not state.checkpoints:
        return "no checkpoint was committed"
    return f"none of its {len(state.checkpoints)} checkpoints may be resumed from any more"


def format_limits(counted: Sequence[Limit], *, named: bool = False) -> str:
    """Return the limits in words. named: each with the records that it counted, and the rules of the
    policy file that set it."""
    return "; ".join(
        f"{limit.words}{_records(limit.seqs)}{_rules(limit.rules)}" if named else limit.words
        for limit in counted
    )


def _rules(rules: tuple[str, ...]) -> str:
    return f" (policy {' and '.join(rules)})" if rules else ""


def _records(seqs: tuple[int, ...]) -> str:
    """Return the newest of these records for people, for example " (records 5 and 12)"."""
    if not seqs:
        return ""
    *others, last = [str(seq) for seq in seqs[-NAMED_SEQS_MAX:]]
    if not others:
        return f" (record {last})"
    before = f"{len(seqs) - NAMED_SEQS_MAX} before, " if len(seqs) > NAMED_SEQS_MAX else ""
    return f" (records {before}{', '.join(others)} and {last})"


def seqs_of(
    failed: AttemptState,
    counted: Sequence[Limit],
    quarantined: tuple[int, ...] = (),
) -> tuple[int, ...]:
    """Return the records counted, in order: the end that is decided on, those of the limits, and the
    quarantines of a rollback."""
    seqs = {*quarantined, *(seq for limit in counted for seq in limit.seqs)}
    if failed.ended_seq is not None:
        seqs.add(failed.ended_seq)
    return tuple(sorted(seqs))[-COUNTED_SEQS_MAX:]


# --- refusals -------------------------------------------------------------------------------------
#
# Why no next attempt is opened though its limits would allow one.

BRANCH_LIMIT, SNAPSHOT_LIMIT, QUARANTINE_LIMIT = "branch", "snapshot", "quarantine"
MONEY_LIMIT, TIME_LIMIT = "money", "stage_time"
MORE_TIME = (
    "Declare another run: with fewer steps, or once its stage has more time in policy.yaml; this one "
    "keeps the limit that it was declared with."
)

_UNTIL = {  # what a person does about each of these limits
    BRANCH_LIMIT: (
        "Declare another branch (`tracks run --from RUN@STEP`): this one can resume "
        "only from that checkpoint."
    ),
    SNAPSHOT_LIMIT: (
        "Give it another snapshot: `{retry_on}`; or release this one and resume with `{retry}`."
    ),
    QUARANTINE_LIMIT: (
        "Declare a run that does not rest on it, or release it and resume with `{retry}`."
    ),
}


def ended_as(failed: AttemptState) -> str:
    """Return how an attempt ended, with the number of the record."""
    return f"Attempt {failed.attempt_id} ended as {end_label(failed)} (record {failed.ended_seq})"


def refuse_for_hold(state: RunState, failed: AttemptState, limit: str, why: str) -> Refuse:
    """Refuse what a hold forbids; limit: one of the three above; why: the hold as a sentence."""
    to_do = _UNTIL[limit].format(
        retry=retry_command(state.run_id),
        retry_on=retry_command(state.run_id, "--snapshot SNAPSHOT"),
    )
    return Refuse(
        reason=failed.reason or TerminationReason.UNKNOWN,
        limit=limit,
        decision=f"{ended_as(failed)} and is not retried: {why}",
        what_to_do=to_do,
        counted_seqs=seqs_of(failed, ()),
    )


def refuse_at_cap(state: RunState, failed: AttemptState, why: str) -> Refuse:
    """Refuse where a cap in money or time is reached; why: which one, with the numbers."""
    is_time = over_stage_time(state, failed.ended_at or state.head.at) is not None
    return Refuse(
        reason=failed.reason or TerminationReason.UNKNOWN,
        limit=TIME_LIMIT if is_time else MONEY_LIMIT,
        decision=f"{ended_as(failed)} and is not retried: {why}.",
        what_to_do=MORE_TIME
        if is_time
        else (
            "Decide whether it is worth more: "
            f"`{retry_command(state.run_id, '--max-cost AMOUNT')}` resumes the run, with so much for "
            "all of it; a cap of a day starts over at midnight UTC."
        ),
        counted_seqs=seqs_of(failed, ()),
    )


def refuse_too_large(
    state: RunState, decision: Retry | Refuse, draft: Draft, error: RecordTooLarge
) -> Refuse:
    """Refuse in place of a decision whose record is too large to be stored: tried again, it would fail
    for ever."""
    failed = state.attempts[-1]
    sizes = {key: len(canonical_json(value)) for key, value in draft.body.items()}
    largest = max(sizes, key=lambda key: sizes[key])
    return Refuse(
        reason=failed.reason or TerminationReason.UNKNOWN,
        limit="record",
        decision=(
            f"Attempt {failed.attempt_id} ended as {failed.reason} (record {failed.ended_seq}), and "
            f"what was decided cannot be stored: {error} The largest part of it is {largest}, "
            f"{sizes[largest]} bytes of at most {RECORD_BYTES_MAX} in all."
        ),
        what_to_do=(
            f'Make {largest} smaller: `tracks retry {state.run_id} --why "…" --set KEY=VALUE` '
            f"changes the config; `tracks run --from {state.run_id}@STEP` continues in a new run, "
            "which has none of what was added to this one."
        ),
        counted_seqs=decision.counted_seqs,
    )


# --- advice ---------------------------------------------------------------------------------------
#
# What a person does about a refused retry: what to change, and the command that then resumes the run.
#
# Every command can be run as it is, but for what nobody else can know: `…`, KEY=VALUE, SIZE,
# CLASS, FILE.py and SNAPSHOT. A test runs each of them.


@dataclass(frozen=True, slots=True)
class Advice:
    """words: what to do first, as a sentence or more; options: of the `tracks retry` that follows."""

    words: str
    options: str = ""


_Case = Callable[[RunState, AttemptState], Advice]


def what_to_do(state: RunState, failed: AttemptState) -> str:
    """Return what to change after `failed`, and the command that then resumes the run."""
    reason = failed.reason or _R.UNKNOWN
    root = _last_line(failed.ended.root_message if failed.ended else "")
    end = "" if root.endswith((".", "!", "?", "…")) else "."
    met = f"It ended with: {root}{end} " if root else ""
    found = ADVICE.get(reason, _ANYTHING)
    advice = found if isinstance(found, Advice) else found(state, failed)
    words = advice.words.replace("{run_id}", state.run_id)
    return f"{met}{words} Then `{retry_command(state.run_id, advice.options)}` resumes the run."


def retry_command(run_id: str, options: str = "") -> str:
    """Return the `tracks retry` that opens the next attempt of a run."""
    return " ".join(filter(None, (f'tracks retry {run_id} --why "…"', options)))


def _code_error(state: RunState, failed: AttemptState) -> Advice:
    if trainer_of(state, failed) == "family":
        return Advice("Correct the training code.")
    if program_of(state, failed) is None:
        return Advice("Correct the script.", "--trainer FILE.py")
    return Advice("Correct the code.", "--code")


def _config_error(state: RunState, failed: AttemptState) -> Advice:
    is_missing = failed.ended is not None and failed.ended.rule.endswith("/missing_file")
    if is_missing and program_of(state, failed) is not None:
        return Advice(
            "An attempt starts in a copy of the project's files, without what git ignores: freeze data "
            "as a snapshot and read it from a.data(), or name it by an absolute path (docs/join.md).",
            "--code",
        )
    return Advice("Correct the configuration.", "--set KEY=VALUE")


def _gpu_oom(state: RunState, failed: AttemptState) -> Advice:
    smaller = _smaller_micro_batch(state, failed)
    if smaller is not None:
        return Advice("Use a smaller micro-batch; the global batch stays.", smaller)
    if failed.opened.compute.launcher != LOCAL:
        return Advice("Ask for a device with more memory.", "--device-class CLASS")
    return Advice(
        "Free memory on the device. A smaller batch, model or context is a run of its own; where the "
        "script reads keys that mean micro_batch and accumulation, retries make room by themselves."
    )


def _host_oom(state: RunState, failed: AttemptState) -> Advice:
    fewer = _fewer_workers(state, failed)
    has = failed.opened.compute.memory_bytes
    if failed.opened.compute.launcher != LOCAL:
        more = "--memory SIZE" if has is None else f"--memory {2 * has // MIB}MiB"
        return Advice(
            "Give each pod more host memory" + (" and fewer loader workers." if fewer else "."),
            " ".join(filter(None, (more, fewer))),
        )
    if fewer:
        return Advice("Use fewer loader workers, or free memory on the machine.", fewer)
    smaller = _smaller_micro_batch(state, failed)
    if smaller is not None:
        return Advice("Free memory on the machine, or use a smaller micro-batch.", smaller)
    return Advice("Free memory on the machine.")


def _shm_exhausted(state: RunState, failed: AttemptState) -> Advice:
    is_local = failed.opened.compute.launcher == LOCAL
    where = "the machine (/dev/shm)" if is_local else "pods (`shared_memory`, cluster's settings)"
    fewer = _fewer_workers(state, failed)
    words = f"Give {where} more shared memory" + (
        ", or use fewer loader workers." if fewer else "."
    )
    return Advice(words, fewer)


def _numbers(state: RunState, failed: AttemptState) -> Advice:
    config = failed.opened.config
    key = key_of(config, state.declared.roles, LR)
    key = key if key is not None and type(config[key]) in (int, float) else None
    words = "Lower the learning rate, or look at the data of the steps before it went wrong."
    return Advice(words, "--set KEY=VALUE" if key is None else f"--set {key}={config[key] / 2:g}")


def _scheduling_timeout(state: RunState, failed: AttemptState) -> Advice:
    if failed.opened.compute.launcher == LOCAL:
        return Advice("Wait until devices are free.")
    other = retry_command(state.run_id, "--device-class CLASS")
    return Advice(f"Wait until devices are free, or ask for others: `{other}`.")


def _fewer_workers(state: RunState, failed: AttemptState) -> str:
    key = key_of(failed.opened.config, state.declared.roles, LOADER_WORKERS)
    workers = None if key is None else failed.opened.config[key]
    if type(workers) is not int or workers < 1:
        return ""
    return f"--set {key}={workers // 2}"


def _smaller_micro_batch(state: RunState, failed: AttemptState) -> str | None:
    """Return the option that about halves the micro-batch; None where it cannot be smaller."""
    config, roles = failed.opened.config, state.declared.roles
    micro_batch = value_of(config, roles, MICRO_BATCH)
    accumulation = value_of(config, roles, ACCUMULATION)
    if type(micro_batch) is not int or type(accumulation) is not int or micro_batch < 2:
        return None
    share = micro_batch * accumulation
    half = next(size for size in range(micro_batch // 2, 0, -1) if share % size == 0)
    return f"--set {key_of(config, roles, MICRO_BATCH)}={half}"


_ANYTHING = Advice("Read what the attempts have in common in `tracks explain {run_id} --full`.")

ADVICE: dict[TerminationReason, Advice | _Case] = {
    _R.CODE_ERROR: _code_error,
    _R.CONFIG_ERROR: _config_error,
    _R.DEPENDENCY_MISMATCH: Advice(
        "Install the library, or the version of it, that the run needs."
    ),
    _R.PERMISSION_DENIED: Advice(
        "Grant the permission, or renew the credential, that was refused."
    ),
    _R.BAD_INPUT_DATA: Advice(
        "Look at the rows that it names, and make a snapshot without them.", "--snapshot SNAPSHOT"
    ),
    _R.GPU_OOM: _gpu_oom,
    _R.HOST_OOM: _host_oom,
    _R.SHM_EXHAUSTED: _shm_exhausted,
    _R.DISK_FULL: Advice(
        "Free space where the attempt writes: checkpoints, journals, temporary files."
    ),
    _R.CHECKPOINT_WRITE_FAILED: Advice("See that the object store has space and accepts writes."),
    _R.CHECKPOINT_CORRUPT: Advice(
        "See `tracks checkpoints list {run_id}` for one that can be read."
    ),
    _R.NAN_LOSS: _numbers,
    _R.LOSS_DIVERGENCE: _numbers,
    _R.SCHEDULING_TIMEOUT: _scheduling_timeout,
    _R.IMAGE_PULL: Advice("See that the image exists and that its registry lets the cluster in."),
    _R.BUDGET_EXHAUSTED: Advice("Decide whether the run is worth more device-hours."),
    _R.UNKNOWN: Advice(
        "Read how each rank ended in `tracks explain {run_id} --full`; the evidence says no more."
    ),
}


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""

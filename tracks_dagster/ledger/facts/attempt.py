"""Facts of an attempt, each once, in the order in which people ask for them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

from tracks_dagster.ledger.facts.fact import Absence, Fact, Type
from tracks_dagster.ledger.timeline import accelerator_of, time_of
from tracks_dagster.track import bodies
from tracks_dagster.track.bodies import (
    AttemptEnded,
    AttemptReclassified,
    CodeVersion,
    MemoryPeak,
    Program,
    RunDeclared,
)
from tracks_dagster.track.body_json import to_json
from tracks_dagster.track.names import IMPORTED, LOCAL, attempt_key
from tracks_dagster.track.placement import nodes_of, pool_of
from tracks_dagster.track.records import canonical_json, sha256_hex
from tracks_dagster.track.states.accounting import StepAccount, cursor_from, kept_and_lost
from tracks_dagster.track.states.end_words import end_sentence
from tracks_dagster.track.states.run_state import AttemptState, RunState, stored_code_sha256


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptView:
    """All that the facts of an attempt are computed from.

    account: changes when a later attempt resumes before this one's last step. journal_step,
    journal_cursor: of the newest step in the journal, for a reader that has it; the ledger does
    without. is_evidence_there: the stored evidence has the hash that the verdict's record names.
    """

    declared: RunDeclared
    attempt: AttemptState
    account: StepAccount
    checkpoint_count: int
    journal_step: int | None = None
    journal_cursor: int | None = None
    is_evidence_there: bool = True

    @property
    def trainer(self) -> str:
        """The key of the code that it runs; "family" of an older version's family."""
        return self.attempt.opened.trainer or self.declared.trainer

    @property
    def program(self) -> Program | None:
        """How it starts its code; None of older versions."""
        return self.attempt.opened.program or self.declared.program

    @property
    def code(self) -> CodeVersion:
        """The checkout that its code is of."""
        return self.attempt.opened.code or self.declared.code

    @property
    def code_sha256(self) -> str | None:
        """Of its stored code; None of an older version's family."""
        return stored_code_sha256(self.trainer)

    @property
    def cursor_from(self) -> int | None:
        """How many samples of the order were consumed before it."""
        return cursor_from(self.attempt)

    @property
    def cursor_to(self) -> int | None:
        """How many samples of the order were consumed after it, by its journal where that is known."""
        ended = self.attempt.ended
        recorded = ended.cursor_to if ended else None
        return recorded if self.journal_cursor is None else self.journal_cursor

    @property
    def is_journal_whole(self) -> bool:
        """Whether the journal has steps and reaches the last one."""
        ended = self.attempt.ended
        last_step = ended.last_step or 0 if ended else 0
        return self.journal_step is not None and last_step <= self.journal_step


def attempt_views(
    state: RunState, journal_steps: Mapping[int, int] | None = None
) -> list[AttemptView]:
    """Return the view of every attempt, oldest first; journal_steps: as of `kept_and_lost`."""
    counts = Counter(checkpoint.ref.attempt_id for checkpoint in state.checkpoints)
    accounts = kept_and_lost(state, journal_steps)
    return [
        AttemptView(
            declared=state.declared,
            attempt=attempt,
            account=account,
            checkpoint_count=counts[attempt.attempt_id],
        )
        for attempt, account in zip(state.attempts, accounts, strict=True)
    ]


# --- why a fact may be unknown ---------------------------------------------------------------------


Why = Absence[AttemptView]


def _has_run_no_step(view: AttemptView) -> bool:
    ended = view.attempt.ended
    return ended is not None and (ended.last_step or 0) <= view.attempt.resumed_step


def _memory_of(view: AttemptView) -> MemoryPeak | None:
    return view.attempt.ended.memory if view.attempt.ended else None


def _used_gpu_memory(view: AttemptView) -> bool:
    memory = _memory_of(view)
    return memory is not None and memory.device_bytes is not None


def _was_never_started(view: AttemptView) -> bool:
    ended = view.attempt.ended
    return view.attempt.placed is None and (ended is None or ended.started_at is None)


OPEN: Why = Absence("open", "the attempt has not ended", lambda v: v.attempt.ended is None)
NEVER_PLACED: Why = Absence(
    "never_placed",
    "no rank 0 came up, so nobody could tell",
    lambda v: v.attempt.placed is None,
)
NEVER_STARTED: Why = Absence("never_started", "no rank was seen to start", _was_never_started)
NEVER_RESTORED: Why = Absence(
    "never_restored",
    "it has not come to restore anything",
    lambda v: v.attempt.restored is None,
)
OLDER_OR_FRAMEWORK: Why = Absence(
    "not_registered",
    "a framework has them, or an older version trained it",
    lambda v: v.attempt.restored is not None and v.attempt.restored.in_use is None,
)
OWN_ORDER: Why = Absence(
    "own_order",
    "the order of samples is the script's own; its checkpoints have what its loader says",
    lambda v: v.attempt.restored is not None and v.attempt.restored.cursor is None,
)
NO_FALLBACK: Why = Absence(
    "no_fallback",
    "it restored what it was opened with",
    lambda v: v.attempt.restored is None or v.attempt.restored.fallback_why is None,
)
AFRESH: Why = Absence("afresh", "it started at step 0", lambda v: v.attempt.resumed_step == 0)
NO_PACKAGES: Why = Absence(
    "no_packages",
    "a version that listed no packages placed it",
    lambda v: v.attempt.placed is not None and v.attempt.placed.packages_sha256 is None,
)
NO_PROGRAM: Why = Absence(
    "no_program",
    "an older version started its code in its own way",
    lambda v: v.program is None,
)
OWN_INTERPRETER: Why = Absence(
    "own_interpreter",
    "the Python that `tracks` runs in",
    lambda v: v.program is None or v.program.python is None,
)
NO_CLASS: Why = Absence(
    "no_class",
    "none was named: it is of the policy's default_class",
    lambda v: v.declared.workload_class is None,
)
NO_SNAPSHOT: Why = Absence(
    "no_snapshot", "no snapshot was named", lambda v: v.attempt.opened.snapshot is None
)
NO_CONTAINER: Why = Absence(
    "no_container",
    "its processes ran on the machine itself, in no container",
    lambda v: v.attempt.opened.compute.launcher == LOCAL,
)
NOTHING_ASKED: Why = Absence(
    "nothing_asked",
    "its manifest named no queue, priority, scheduler or topology, or an older version recorded none",
    lambda v: v.attempt.placed is not None and not v.attempt.placed.asked,
)
NOT_WRITTEN: Why = Absence(
    "not_said",
    "what queued it writes no such thing on its pods, as Kueue before 0.17",
    lambda v: v.attempt.placed is not None and not v.attempt.placed.granted,
)
NO_CHECKOUT: Why = Absence(
    "no_checkout",
    "its code was in no git checkout",
    lambda v: v.code.git_commit is None,
)
NOT_STORED: Why = Absence(
    "not_stored",
    "it is of an older version, which stored no code of a family",
    lambda v: v.code_sha256 is None,
)
FIRST_ATTEMPT: Why = Absence(
    "first_attempt",
    "a first attempt spends nothing from the retry budget",
    lambda v: v.attempt.opened.cause == bodies.FIRST,
)
MANUAL: Why = Absence(
    "manual",
    "what a person opens spends nothing from the retry budget",
    lambda v: v.attempt.opened.cause == bodies.MANUAL,
)
NO_STEP: Why = Absence("no_step", "it ran no step", _has_run_no_step)
NOT_SHIPPED: Why = Absence(
    "not_shipped", "the end of its journal was not shipped", lambda v: not v.is_journal_whole
)
EVIDENCE_LOST: Why = Absence(
    "evidence_lost",
    "the stored evidence is gone or was changed",
    lambda v: not v.is_evidence_there,
)
NOT_CLAIMED: Why = Absence(
    "not_claimed", "no Dagster run has claimed it", lambda v: not v.attempt.claims
)
NOT_LEASED: Why = Absence(
    "not_leased",
    "no devices of this machine were given out to it, or it ended before it had begun on them",
    lambda v: bool(v.attempt.claims) and v.attempt.claims[-1].body.held is None,
)
NOT_COUNTED: Why = Absence(
    "not_counted",
    "its place does not say how many devices it gave; each rank counts as one",
    lambda v: v.attempt.ended is not None and v.attempt.ended.devices is None,
)
NOT_READ_AGAIN: Why = Absence(
    "not_read_again", "its end was read once", lambda v: v.attempt.reclassified is None
)

NOT_IN_HISTORY: Why = Absence(
    "not_in_history",
    "it ran elsewhere, and what was imported does not say",
    lambda v: v.attempt.opened.compute.launcher == IMPORTED,
)
NO_GPU: Why = Absence(
    "no_gpu", "it ran on a CPU, or its journal does not say", lambda v: not _used_gpu_memory(v)
)
NO_NEW_CAP: Why = Absence(
    "no_new_cap", "the cap is as it was before", lambda v: v.attempt.opened.max_cost is None
)
NO_MEMORY: Why = Absence(
    "no_memory",
    "its journal does not say: it is of an older version, was killed early, or watched a command",
    lambda v: _memory_of(v) is None,
)

DEBITED = (FIRST_ATTEMPT, MANUAL)


# --- from which part of the view a fact is read ----------------------------------------------------

Part = TypeVar("Part")
Read = Callable[[AttemptView], Any]


def _part(find: Callable[[AttemptView], Part | None]) -> Callable[[Callable[[Part], Any]], Read]:
    """Return what makes a fact of a part of the view, unknown while the part is not there."""

    def of_part(read: Callable[[Part], Any]) -> Read:
        def of(view: AttemptView) -> Any:
            part = find(view)
            return None if part is None else read(part)

        return of

    return of_part


_run = _part(lambda v: v.declared)
_opened = _part(lambda v: v.attempt.opened)
_lease = _part(lambda v: v.attempt.held)
_debit = _part(lambda v: v.attempt.opened.debit)
_placed = _part(lambda v: v.attempt.placed)
_restored = _part(lambda v: v.attempt.restored)
_source = _part(lambda v: v.attempt.resumed_from)
_ended = _part(lambda v: v.attempt.ended)
_memory = _part(_memory_of)
_reason = _part(lambda v: v.attempt.reason)
_reclassified = _part(lambda v: v.attempt.reclassified)
_reading: Callable[[Callable[[AttemptEnded | AttemptReclassified], Any]], Read]
_reading = _part(lambda v: v.attempt.reclassified or v.attempt.ended)


# --- what takes more than a line -------------------------------------------------------------------


def _ranks(view: AttemptView) -> int:
    placed = view.attempt.placed
    return placed.world_size if placed else view.attempt.opened.compute.ranks


def _nodes(view: AttemptView) -> list[str]:
    return list(nodes_of(view.attempt.placed)) if view.attempt.placed else []


def _devices(view: AttemptView) -> list[str]:
    return [rank.device for rank in view.attempt.placed.ranks] if view.attempt.placed else []


def _is_cursor_range_known(view: AttemptView) -> bool:
    ended = view.attempt.ended
    is_cursor_known = ended is not None and ended.cursor_to is not None
    is_ours = view.cursor_from is not None
    return is_ours and (view.is_journal_whole or is_cursor_known)


def _started_at(view: AttemptView) -> datetime:
    ended = view.attempt.ended
    seen = time_of(ended.started_at) if ended else None
    return seen or view.attempt.placed_at or view.attempt.opened_at


def _ended_at(view: AttemptView) -> datetime | None:
    ended = view.attempt.ended
    return (time_of(ended.finished_at) if ended else None) or view.attempt.ended_at


def _wall_s(view: AttemptView) -> float | None:
    attempt = view.attempt
    return (attempt.ended_at - attempt.opened_at).total_seconds() if attempt.ended_at else None


def _last_step(view: AttemptView) -> int | None:
    account = view.account
    return account.last if account.last > account.resume else None


TEXT, INTEGER, REAL, TRUTH, TIME = Type.TEXT, Type.INTEGER, Type.REAL, Type.TRUTH, Type.TIME

# A table, to be read by the line:
# fmt: off
ATTEMPT: tuple[Fact[AttemptView], ...] = (
    # --- what it was for, with which code ---
    Fact("run_id", TEXT, _run(lambda r: r.run_id), "the training run", is_key=True,
         label="training run"),
    Fact("attempt_id", INTEGER, lambda v: v.attempt.attempt_id, "counts from 1", is_key=True,
         label="attempt"),
    Fact("partition_key", TEXT, lambda v: attempt_key(v.declared.run_id, v.attempt.attempt_id),
         "its partition in Dagster, RUN/aNN", json="key"),
    Fact("model_family", TEXT, _run(lambda r: r.model_family), "of its run", group="tried"),
    Fact("stage", TEXT, _run(lambda r: r.stage), "of its run: smoke, canary or full",
         group="tried"),
    Fact("owner", TEXT, _run(lambda r: r.owner), "of its run", group="tried", label="owner"),
    Fact("team", TEXT, _run(lambda r: r.team), "of its run", group="tried", has_column=False),
    Fact("workload_class", TEXT, _run(lambda r: r.workload_class), "of its run, as declared",
         absent=(NO_CLASS,), group="tried", has_column=False, ui="where/workload_class", since=10),
    Fact("intent", TEXT, _run(lambda r: r.intent), "what its run is for, in a sentence",
         group="tried", label="intent"),
    Fact("trainer", TEXT, lambda v: v.trainer, "key of the stored code; `family` of older runs",
         group="tried", has_column=False),
    Fact("entry", TEXT, lambda v: v.program and " ".join(v.program.entry),
         "what each rank starts, with the config's keys in braces", absent=(NO_PROGRAM,),
         group="tried", has_column=False, diff="code/entry"),
    Fact("interpreter", TEXT, lambda v: v.program and v.program.python, "the project's own Python",
         absent=(OWN_INTERPRETER,), group="tried", has_column=False, diff="code/interpreter"),
    Fact("config", Type.MAPPING, _opened(lambda o: o.config), "its whole config, as remedied",
         group="tried", ui="config/all", label="config"),
    Fact("config_sha256", TEXT, _opened(lambda o: sha256_hex(canonical_json(o.config))),
         "of the config", group="tried"),
    Fact("remediation", Type.ROWS, _opened(lambda o: [to_json(each) for each in o.remediation]),
         "what the retry changed, and why: key, before, after, why", group="tried",
         ui="decided/changes", label="config change"),
    Fact("max_cost", REAL, _opened(lambda o: o.max_cost),
         "what its run may cost from then on, as a person gave it", absent=(NO_NEW_CAP,),
         group="tried", since=10),
    Fact("git_commit", TEXT, lambda v: v.code.git_commit, "of its code",
         absent=(NOT_IN_HISTORY, NO_CHECKOUT),
         group="code", label="code commit", diff="code/commit"),
    Fact("dirty", TRUTH, lambda v: v.code.dirty, "whether the checkout had local changes",
         absent=(NOT_IN_HISTORY, NO_CHECKOUT), group="code", has_column=False, label="local changes",
         diff="code/dirty"),
    Fact("package_version", TEXT, lambda v: v.code.package_version,
         "of tracks-dagster, as its code was given", group="code"),
    Fact("code_sha256", TEXT, lambda v: v.code_sha256, "of its stored code",
         absent=(NOT_IN_HISTORY, NOT_STORED), group="code", diff="code/sha256"),
    Fact("environment", Type.MAPPING,
         lambda v: v.attempt.placed.environment if v.attempt.placed else {},
         "versions of python, libraries and platform", absent=(NEVER_PLACED,), instead="none",
         group="where", has_column=False, ui="where/environment", label="environment"),
    Fact("environment_sha256", TEXT, _placed(lambda p: p.environment_sha256 or None),
         "of these versions", absent=(NOT_IN_HISTORY, NEVER_PLACED), group="where"),
    Fact("packages_sha256", TEXT, _placed(lambda p: p.packages_sha256),
         "of the stored list of all packages of its interpreter, name==version",
         absent=(NOT_IN_HISTORY, NEVER_PLACED, NO_PACKAGES), group="where", label="packages"),
    Fact("image", TEXT, _placed(lambda p: p.image), "the container image",
         absent=(NO_CONTAINER, NOT_IN_HISTORY, NEVER_PLACED), group="where", ui="where/image",
         label="image",
         diff="placement/image"),
    # --- on which data ---
    Fact("dataset", TEXT, _opened(lambda o: o.snapshot and o.snapshot.dataset),
         "the dataset it trained on", absent=(NO_SNAPSHOT,), group="data", ui="data/dataset"),
    Fact("snapshot_id", TEXT, _opened(lambda o: o.snapshot and o.snapshot.snapshot_id),
         "the snapshot of it, by the sha256 of its manifest", absent=(NO_SNAPSHOT,), group="data",
         ui="data/snapshot_id", label="snapshot"),
    Fact("cursor_from", INTEGER, lambda v: v.cursor_from,
         "how many samples of the order were consumed before it",
         absent=(NOT_IN_HISTORY, NEVER_RESTORED, OWN_ORDER), group="data"),
    Fact("cursor_to", INTEGER, lambda v: v.cursor_to,
         "how many samples of the order were consumed after it",
         absent=(NOT_IN_HISTORY, NEVER_PLACED, OWN_ORDER, OPEN, NO_STEP, NOT_SHIPPED),
         is_known=_is_cursor_range_known,
         group="data", label="cursor range"),
    # --- where ---
    Fact("launch_id", TEXT, _placed(lambda p: p.launch_id), "the launch that was placed",
         absent=(NEVER_PLACED,), group="where", ui="where/launch_id", label="launch"),
    Fact("ranks", INTEGER, _ranks, "processes of its gang, one device each", absent=(NEVER_PLACED,),
         instead="what was asked for", json="where.rank_count", label="ranks"),
    Fact("nodes", Type.NAMES, _nodes, "the nodes that it was placed on, by name",
         absent=(NEVER_PLACED,), instead="none", group="where", ui="where/nodes", label="nodes",
         diff="placement/nodes"),
    Fact("devices", Type.NAMES, _devices, "the device of each rank: `cpu` or the GPU's UUID",
         absent=(NEVER_PLACED,), instead="none", group="where", label="devices"),
    Fact("leased_devices", Type.NAMES, _lease(lambda h: list(h.devices)),
         "the devices of this machine that it was given, by name", absent=(NOT_CLAIMED, NOT_LEASED),
         group="where", ui="where/leased_devices", since=10),
    Fact("lease_seq", INTEGER, _lease(lambda h: h.seq),
         "the record of that in the pool's track", absent=(NOT_CLAIMED, NOT_LEASED),
         group="where", has_column=False, since=10),
    Fact("lease_why", TEXT, _lease(lambda h: h.why), "why these devices, and why then",
         absent=(NOT_CLAIMED, NOT_LEASED), group="where", ui="where/leased_because", since=10),
    Fact("accelerator", TEXT, lambda v: accelerator_of(v.attempt), "the model of its devices",
         absent=(OPEN,), instead="what was placed, else asked for", group="cost",
         ui="cost/accelerator"),
    Fact("pool", TEXT, _opened(lambda o: pool_of(o.compute)), "the compute pool it was asked for",
         group="where"),
    Fact("dagster_run_id", TEXT,
         lambda v: v.attempt.claims[-1].body.dagster_run_id if v.attempt.claims else None,
         "the Dagster run that supervised it last", absent=(NOT_CLAIMED,), group="where",
         label="Dagster run"),
    Fact("dagster_run_ids", Type.NAMES,
         lambda v: [claim.body.dagster_run_id for claim in v.attempt.claims],
         "every Dagster run that supervised it, the first one first", group="where",
         has_column=False),
    Fact("asked_of_cluster", Type.MAPPING, _placed(lambda p: p.asked or None),
         "what its manifest asked for: class, queue, priorities, scheduler, topology",
         absent=(NO_CONTAINER, NEVER_PLACED, NOTHING_ASKED), group="where",
         ui="where/asked_of_cluster", since=10),
    Fact("granted_by_cluster", Type.MAPPING, _placed(lambda p: p.granted or None),
         "what its queue says that it gave: the cluster queue; its nodes are in `nodes`",
         absent=(NO_CONTAINER, NEVER_PLACED, NOTHING_ASKED, NOT_WRITTEN), group="where",
         ui="where/granted_by_cluster", since=10),
    # --- from where ---
    Fact("step", INTEGER, lambda v: v.attempt.resumed_step, "the step it started from, 0 afresh",
         group="resumed", has_column=False, label="checkpoint resumed from",
         ui="steps/resumed_from_step", diff="steps/from_step"),
    Fact("newest_step", INTEGER, lambda v: v.account.last, "the last step that it ran, else `step`",
         group="cost", has_column=False, ui="steps/last_step", diff="steps/last_step"),
    Fact("checkpoint", Type.MAPPING, _source(to_json), "the checkpoint it started from",
         absent=(AFRESH,), group="resumed", has_column=False),
    Fact("resumed_from_step", INTEGER, lambda v: v.account.resume or None, "the step it started from",
         absent=(AFRESH,), group="resumed"),
    Fact("resumed_from_run_id", TEXT, _source(lambda c: c.run_id),
         "the run of that checkpoint: its own, or the one it branched from", absent=(AFRESH,),
         group="resumed"),
    Fact("resumed_from_manifest_sha256", TEXT, _source(lambda c: c.manifest_sha256),
         "the manifest of that checkpoint", absent=(AFRESH,), group="resumed"),
    Fact("fallback_why", TEXT, _restored(lambda r: r.fallback_why),
         "why it restored another checkpoint than it was opened with", absent=(NO_FALLBACK,),
         group="resumed", has_column=False),
    Fact("inexact", Type.LINES, _restored(lambda r: list(r.inexact)),
         "what its framework cannot restore exactly, and why", absent=(NEVER_RESTORED,),
         group="resumed", has_column=False, ui="resumed/inexact"),
    Fact("changed", Type.LINES, _restored(lambda r: list(r.changed)),
         "what its optimizers and schedules were built with otherwise than for that checkpoint",
         absent=(NEVER_RESTORED,), group="resumed", has_column=False, ui="resumed/changed",
         since=10),
    Fact("in_use", Type.MAPPING, _restored(lambda r: r.in_use),
         "the numbers of optimizers, schedules and scaler as its first step began",
         absent=(NOT_IN_HISTORY, NEVER_RESTORED, OLDER_OR_FRAMEWORK), group="resumed", has_column=False,
         ui="resumed/in_use", since=10),
    Fact("allows_environment_change", TRUTH, _opened(lambda o: o.allows_environment_change),
         "whether it may resume with other libraries than those that wrote the checkpoint",
         group="resumed", has_column=False),
    Fact("checkpoint_count", INTEGER, lambda v: v.checkpoint_count, "checkpoints that it committed",
         group="cost", label="checkpoints made"),
    # --- why it was opened ---
    Fact("cause", TEXT, _opened(lambda o: o.cause), "first, retry or manual_retry", group="tried",
         label="cause"),
    Fact("decided_by", TEXT, _opened(lambda o: o.decided_by), "the sensor or person", group="tried",
         ui="decided/opened_by"),
    Fact("decision", TEXT, _opened(lambda o: o.decision), "why it was opened, in words",
         group="tried", ui="decided/opened_because"),
    Fact("policy_version", TEXT, _opened(lambda o: o.policy_version),
         "of the retry policy that decided", group="tried"),
    Fact("debit", Type.MAPPING, _debit(to_json), "what it spent from the retry budget",
         absent=DEBITED, group="cost", has_column=False),
    Fact("debit_reason", TEXT, _debit(lambda d: d.reason), "whose budget paid for it",
         absent=DEBITED, group="cost", label="budget debit"),
    Fact("debit_amount", REAL, _debit(lambda d: d.amount), "how many retries it counts as",
         absent=DEBITED, group="cost"),
    Fact("debit_why", TEXT, _debit(lambda d: d.why), "why it costs that", absent=DEBITED,
         group="cost"),
    # --- why it ended, by the newest reading ---
    Fact("termination_reason", TEXT, _reason(lambda r: r.value), "one word of docs/reasons.md",
         absent=(OPEN,), json="ended.reason", ui="ended/termination_reason",
         label="termination reason"),
    Fact("sentence", TEXT, lambda v: end_sentence(v.attempt) or None,
         "how it ended, in words", absent=(OPEN,), group="ended", has_column=False, ui="ended/meaning"),
    Fact("reason_family", TEXT, _reason(lambda r: r.family.value), "the family of the reason",
         absent=(OPEN,), group="ended"),
    Fact("confidence", REAL, _reading(lambda r: r.confidence), "of the reason, 0 to 1",
         absent=(OPEN,), group="ended", ui="ended/confidence"),
    Fact("root_message", TEXT, _ended(lambda e: e.root_message),
         "the last words of the rank that failed first", absent=(OPEN,), group="ended",
         ui="ended/what_was_said"),
    Fact("rule", TEXT, _reading(lambda r: r.rule), "the rule of the classifier that decided",
         absent=(OPEN,), group="ended", ui="ended/by_rule"),
    Fact("lines", Type.LINES, _reading(lambda r: r.lines), "the lines that decided", absent=(OPEN,),
         group="ended", has_column=False, ui="ended/evidence"),
    Fact("classifier_version", TEXT, _reading(lambda r: r.classifier_version),
         "of the classifier that decided", absent=(OPEN,), group="ended"),
    Fact("fingerprint", TEXT, lambda v: v.attempt.fingerprint, "the same for the same failure",
         absent=(OPEN,), group="ended"),
    Fact("reclassified_why", TEXT, _reclassified(lambda r: r.why), "why its end was read again",
         absent=(NOT_READ_AGAIN,), group="ended", has_column=False),
    Fact("evidence_key", TEXT, _ended(lambda e: e.evidence_key), "the stored evidence of its end",
         absent=(OPEN, EVIDENCE_LOST),
         is_known=lambda v: v.attempt.ended is not None and v.is_evidence_there, group="ended",
         label="evidence"),
    Fact("evidence_sha256", TEXT, _reading(lambda r: r.evidence_sha256), "of the evidence",
         absent=(OPEN,), group="ended"),
    Fact("closed_by", TEXT, _ended(lambda e: e.closed_by), "who recorded its end", absent=(OPEN,),
         group="ended", ui="ended/closed_by"),
    Fact("first_line_ran", TRUTH, _ended(lambda e: e.first_line_ran),
         "whether any rank ran its first line", absent=(OPEN,), group="ended"),
    # --- what it cost ---
    Fact("gpu_seconds", REAL, _ended(lambda e: e.device_seconds),
         "device seconds, whatever the accelerator: devices times seconds", absent=(OPEN,),
         json="cost.device_seconds", ui="cost/device_seconds", label="device seconds",
         diff="steps/device_seconds"),
    Fact("allocated_devices", INTEGER, _ended(lambda e: e.devices),
         "devices that its place says it was given", absent=(OPEN, NOT_COUNTED), group="cost",
         since=10),
    Fact("last_step", INTEGER, _last_step, "the last step that it ran",
         absent=(NOT_IN_HISTORY, NO_STEP, OPEN),
         group="cost"),
    Fact("kept_steps", INTEGER, lambda v: v.account.kept, "its steps that the run rests on",
         absent=(OPEN,), instead="all of its steps", group="cost", label="steps kept and lost",
         diff="steps/kept"),
    Fact("lost_steps", INTEGER, lambda v: v.account.lost, "its other steps", absent=(OPEN,),
         instead="0", group="cost", diff="steps/lost"),
    Fact("device_memory_bytes", INTEGER, _memory(lambda m: m.device_bytes),
         "the most that torch had in use on one of its GPUs", absent=(OPEN, NO_GPU), group="memory",
         since=10),
    Fact("reserved_memory_bytes", INTEGER, _memory(lambda m: m.reserved_bytes),
         "the most that its allocator held there", absent=(OPEN, NO_GPU), group="memory", since=10),
    Fact("host_memory_bytes", INTEGER, _memory(lambda m: m.host_bytes),
         "the most that the process of one of its ranks had, resident",
         absent=(OPEN, NOT_IN_HISTORY, NO_MEMORY),
         group="memory", since=10),
    Fact("host_base_bytes", INTEGER, _memory(lambda m: m.host_base_bytes),
         "of that, before the script had built anything", absent=(OPEN, NOT_IN_HISTORY, NO_MEMORY),
         group="memory", since=10),
    # --- when ---
    Fact("opened_at", TIME, lambda v: v.attempt.opened_at, "recorded", group="tried",
         label="opened at"),
    Fact("placed_at", TIME, lambda v: v.attempt.placed_at, "its ranks had come together",
         absent=(NEVER_PLACED,), group="where"),
    Fact("started_at", TIME, _started_at, "its first rank started", absent=(NEVER_STARTED,),
         instead="when it was opened", group="where", label="started at"),
    Fact("restored_at", TIME, lambda v: v.attempt.restored_at, "it had restored",
         absent=(NEVER_RESTORED,), group="resumed"),
    Fact("ended_at", TIME, _ended_at, "its last rank ended; where that was not seen, `closed_at`",
         absent=(OPEN,), group="ended", ui="ended/at", label="ended at"),
    Fact("closed_at", TIME, lambda v: v.attempt.ended_at, "its end was recorded", absent=(OPEN,),
         group="ended"),
    Fact("wall_s", REAL, _wall_s, "from `opened_at` to `closed_at`", absent=(OPEN,), group="cost",
         has_column=False, ui="cost/wall_seconds"),
)
# fmt: on

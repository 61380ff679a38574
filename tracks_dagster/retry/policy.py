"""What a retry policy is: one row a termination reason, and the limits over all.

`default_policy` has the numbers. Nothing here decides: `decide` applies a policy to a run's history,
`remediation` makes the changes that its rows name.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from tracks_dagster.holds.storm import StormRule
from tracks_dagster.reasons.evidence import RECORDED_RULES
from tracks_dagster.retry.contracts import LIGHT, Contracts
from tracks_dagster.retry.environments import EnvironmentRule
from tracks_dagster.retry.node_health import NodeRule
from tracks_dagster.retry.stages import StagePolicy
from tracks_dagster.scheduling.policy import SchedulingPolicy
from tracks_dagster.track.body_json import to_json
from tracks_dagster.track.reasons import TerminationReason
from tracks_dagster.track.records import canonical_json, sha256_hex
from tracks_dagster.track.states.run_state import AttemptState

VERSION_DIGITS = 12

HOUR_S = 3600.0

_R = TerminationReason


class Remedy(StrEnum):
    """What a retry changes (`remediation`, `rollback`), or what is done before it is opened."""

    RESUME = "resume"  # nothing changes
    OTHER_NODE = "other_node"  # the node that it ran on is excluded
    SMALLER_MICRO_BATCH = "smaller_micro_batch"  # and what else saves device memory
    MORE_MEMORY = "more_memory"  # and fewer loader workers
    ADOPT = "adopt"  # the supervisor adopts the living gang
    OTHER_POOL = "other_pool"  # the launcher looks elsewhere
    EARLIER_CHECKPOINT = "earlier_checkpoint"  # the trainer saves twice as often
    ROLL_BACK = "roll_back"  # from before the onset; then without the data, then more slowly
    ROLL_BACK_ELSEWHERE = "roll_back_elsewhere"  # two checkpoints back, and the node is excluded
    QUARANTINE_SNAPSHOT = "quarantine_snapshot"  # when the confirmation failed too
    COLLECT_CHECKPOINTS = "collect_checkpoints"  # superseded ones go first
    RETRY_EVAL = "retry_eval"  # the eval only; training is untouched
    STOP = "stop"  # a person changes something


# The place is taken away, and nothing is wrong with the run: where a control plane recorded it, it is
# retried as often as it happens.
MAY_BE_UNLIMITED = frozenset({_R.PREEMPTED, _R.NODE_DRAINED})


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryRule:
    """One row: what may follow on attempts that ended for `reason`.

    count: retries inside the windows; None does not limit them by number.
    count_before_first_step: the same for an attempt that finished no step; None: as `count`. An
    attempt that never started is then not free either: what fails at once fails again.
    count_by_words: the same where no control plane recorded the end and only words in a log tell of it;
    progress then gives a debit back, and one and the same failure is limited as well. None: as `count`.
    window_s, window_steps: how far back a debit counts, in record time and in steps; None: all.
    time_s: in place of count: how long attempts with this end may take together without progress.
    refund: share of a debit, 0 to 1, that a checkpoint gives back which was committed after it and
    verified by a read.
    refund_past_onset: only one beyond the step at which the numbers of the failed attempt went wrong.
    backoff_s, backoff_s_max: delay of the first retry, doubled by each debit that still counts.
    other_node_from: the number of such ends inside `other_node_window_s` from which the node is
    excluded; None never does.
    fingerprint_limited: whether the limit for one and the same failure holds here as well.
    counts_as: the reason whose debits and row this one shares.
    """

    reason: TerminationReason
    remedy: Remedy
    count: int | None = None
    count_before_first_step: int | None = None
    count_by_words: int | None = None
    window_s: float | None = None
    window_steps: int | None = None
    time_s: float | None = None
    refund: float = 0.0
    refund_past_onset: bool = False
    backoff_s: float = 0.0
    backoff_s_max: float = 0.0
    other_node_from: int | None = None
    other_node_window_s: float | None = None
    fingerprint_limited: bool = True
    counts_as: TerminationReason | None = None

    def __post_init__(self) -> None:
        problem = _problem(self)
        if problem is not None:
            raise ValueError(f"The retry rule for {self.reason} cannot hold: {problem}.")

    @property
    def budget(self) -> TerminationReason:
        """The reason under which debits are counted."""
        return self.counts_as or self.reason

    @property
    def is_unlimited(self) -> bool:
        """Whether device time alone limits it, with or without progress."""
        return self.count is None and self.time_s is None and not self.fingerprint_limited


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """All rows, and the limits over all reasons.

    fingerprint_limit: debits for one and the same failure without progress in between.
    never_started_limit: free retries of attempts in which no rank ran its first line, in a run;
    never_started_backoff_s, _max: their delay, doubled each time.
    device_hours_factor, device_s_floor: the cap of a run is the greater of the factor times its
    estimated device seconds and the floor.
    checkpoints_may_be_off: whether a run may be declared that saves neither by steps nor by time.
    memory_growth, memory_growth_max: a step of more host memory, and the cap, as a multiple of what
    the run was declared with.
    larger_devices: device class → the next larger one, where a cluster has such.
    other_pools: pool → the one to try when nothing starts in it, or it keeps taking devices away. A
    launcher's own, which has no name, is "<launcher>/<device class>". other_pool_from: preemptions of
    a run inside `other_pool_window_s` from which on it leaves its pool; other_pool_s: how long it
    stays away from its own.
    environment: which differences between the libraries that wrote a checkpoint and those of the gang
    that would resume from it refuse the resume; all others are only reported.
    storm: when the retries in a pool pause. nodes: what strikes a node, and when it is quarantined.
    scheduling: who gets devices first. contracts: what is asked of runs beside their retries.
    stages: what a stage of a run may use, and needs.
    """

    rules: tuple[RetryRule, ...]
    fingerprint_limit: int = 3
    never_started_limit: int = 20
    never_started_backoff_s: float = 2.0
    never_started_backoff_s_max: float = 300.0
    device_hours_factor: float = 1.5
    device_s_floor: float = HOUR_S
    memory_growth: float = 1.5
    memory_growth_max: float = 4.0
    checkpoints_may_be_off: bool = False
    larger_devices: Mapping[str, str] = field(default_factory=dict)
    other_pools: Mapping[str, str] = field(default_factory=dict)
    other_pool_from: int = 2
    other_pool_window_s: float = HOUR_S
    other_pool_s: float = HOUR_S
    environment: tuple[EnvironmentRule, ...] = ()
    storm: StormRule = field(default_factory=StormRule)
    nodes: NodeRule = field(default_factory=NodeRule)
    scheduling: SchedulingPolicy = field(default_factory=SchedulingPolicy)
    contracts: Contracts = LIGHT
    stages: StagePolicy = field(default_factory=StagePolicy)

    def __post_init__(self) -> None:
        reasons = [rule.reason for rule in self.rules]
        missing = NEED_A_RULE - set(reasons)
        if missing or len(reasons) != len(set(reasons)):
            raise ValueError(
                "A retry policy needs exactly one rule for each reason that an attempt can fail "
                f"for; missing: {sorted(missing)}, given: {sorted(reasons)}."
            )
        if min(self.fingerprint_limit, self.never_started_limit) < 0:
            raise ValueError("The limits of a retry policy cannot be negative.")
        if not 0 < self.never_started_backoff_s <= self.never_started_backoff_s_max:
            raise ValueError("Free retries need a backoff, or they would spin.")
        if self.device_hours_factor <= 0 or self.device_s_floor < 0:
            raise ValueError("The device-hours cap of a retry policy must be above zero.")
        if self.memory_growth <= 1 or self.memory_growth_max < 1:
            raise ValueError("More memory means a factor above 1.")
        if self.other_pool_from < 1 or min(self.other_pool_window_s, self.other_pool_s) <= 0:
            raise ValueError("A pool is left from a 1st preemption or later on, for more than 0 s.")
        keys = [rule.key for rule in self.environment]
        if len(keys) != len(set(keys)):
            raise ValueError(f"A retry policy has one environment rule a key at most, not {keys}.")
        if any(self.rule(r.budget).counts_as is not None for r in self.rules):
            raise ValueError("A retry rule may share only the debits of a row of its own.")

    @property
    def version(self) -> str:
        """A digest of all rows and limits: the same text means the same policy."""
        return sha256_hex(canonical_json(to_json(self)))[:VERSION_DIGITS]

    def rule(self, reason: TerminationReason) -> RetryRule:
        """Return the row for `reason`; that of `unknown` for one that ends no attempt."""
        for rule in self.rules:
            if rule.reason is reason:
                return rule
        return self.rule(_R.UNKNOWN)

    def rule_for(self, attempt: AttemptState) -> RetryRule:
        """Return the row for how an attempt ended, as it counts for what is known of that end."""
        rule = self.rule(attempt.reason or _R.UNKNOWN)
        if rule.count_by_words is None or attempt.rule in RECORDED_RULES:
            return rule
        return replace(rule, count=rule.count_by_words, refund=1.0, fingerprint_limited=True)

    def device_s_cap(self, estimated_device_s: float | None) -> float:
        """Return the device seconds that all attempts of a run may use together; no limit for None."""
        if estimated_device_s is None:
            return math.inf
        return max(self.device_hours_factor * estimated_device_s, self.device_s_floor)


# Ended as meant: nothing to retry. A `fenced` launch ends no attempt.
NEED_A_RULE = frozenset(_R) - {
    _R.COMPLETED,
    _R.EARLY_STOPPED,
    _R.USER_CANCELLED,
    _R.BUDGET_EXHAUSTED,
    _R.FENCED,
}


def _problem(rule: RetryRule) -> str | None:
    """Return what is wrong with a row, or None."""
    counts = (
        *(rule.count, rule.count_before_first_step, rule.count_by_words),
        rule.other_node_from,
    )
    spans = (rule.window_s, rule.window_steps, rule.time_s, rule.other_node_window_s)
    if any(count is not None and count < 0 for count in counts) or rule.other_node_from == 0:
        return "a count is negative, or the node is excluded from the 0th end on"
    if any(span is not None and span <= 0 for span in spans):
        return "a window is empty"
    if not 0.0 <= rule.refund <= 1.0:
        return f"a refund of {rule.refund} is not a share of a debit"
    if not 0.0 <= rule.backoff_s <= rule.backoff_s_max:
        return f"a backoff grows from {rule.backoff_s:g} s to no more than {rule.backoff_s_max:g} s"
    if rule.time_s is not None and (rule.count is not None or rule.backoff_s == 0):
        return "a budget by time has no count (`time: none` takes it away), and needs a backoff"
    if rule.is_unlimited and (rule.reason not in MAY_BE_UNLIMITED or rule.count_by_words is None):
        return (
            "it would be retried for ever: give it a count (of a preemption or drain, "
            "`count_by_words`) or a time, or limit one and the same failure (`fingerprint_limited`)"
        )
    return None

"""The retry policy: every row of the design's table, what cannot hold, and who decides."""

from __future__ import annotations

import dataclasses

import pytest

from tracks_dagster.retry.default_policy import DEFAULT_POLICY
from tracks_dagster.retry.next_sensor import reasons_of, sensor_of
from tracks_dagster.retry.policy import (
    NEED_A_RULE,
    Remedy,
    RetryPolicy,
    RetryRule,
)
from tracks_dagster.track.names import (
    RETRY_INFRASTRUCTURE,
    RETRY_NUMERICS,
    RETRY_OOM,
    RETRY_PREEMPTED,
    WATCH_ATTEMPTS,
)
from tracks_dagster.track.reasons import TerminationReason as R

HOUR = 3600.0
DAY = 24 * HOUR

# reason: (count, window in s, time in s, refund), as in the table of the design, section 7
TABLE: dict[R, tuple[int | None, float | None, float | None, float]] = {
    R.PREEMPTED: (None, None, None, 0),
    R.NODE_DRAINED: (None, None, None, 0),
    R.ORCHESTRATOR_LOST: (10, None, None, 1),  # the table has none; no reason is retried for ever
    R.SCHEDULING_TIMEOUT: (None, None, DAY, 0),
    R.IMAGE_PULL: (None, None, HOUR, 0),
    R.WALLTIME_TIMEOUT: (3, None, None, 1),
    R.NODE_FAILURE: (5, 7 * DAY, None, 1),
    R.GPU_HARDWARE: (5, 7 * DAY, None, 1),
    R.NETWORK_FABRIC: (5, DAY, None, 1),
    R.STORAGE_IO: (5, DAY, None, 1),
    R.HANG: (3, DAY, None, 1),
    R.DATA_LOADER_STALL: (3, DAY, None, 1),
    R.NATIVE_CRASH: (2, DAY, None, 1),
    R.UNKNOWN: (2, DAY, None, 1),
    R.RANK_LOST_SECONDARY: (2, DAY, None, 1),
    R.SILENT_CORRUPTION: (1, 7 * DAY, None, 0),  # the table has no window: docs/simulation.md
    R.GPU_OOM: (3, None, None, 0),
    R.HOST_OOM: (3, None, None, 0),
    R.SHM_EXHAUSTED: (3, None, None, 0),
    R.DISK_FULL: (2, DAY, None, 0.5),
    R.CHECKPOINT_WRITE_FAILED: (2, DAY, None, 0.5),
    R.NAN_LOSS: (3, None, None, 1),
    R.LOSS_DIVERGENCE: (3, None, None, 1),
    R.BAD_INPUT_DATA: (1, None, None, 0),
    R.CODE_ERROR: (1, None, None, 0),
    R.CONFIG_ERROR: (1, None, None, 0),
    R.DEPENDENCY_MISMATCH: (1, None, None, 0),
    R.PERMISSION_DENIED: (1, None, None, 0),
    R.CHECKPOINT_CORRUPT: (0, None, None, 0),
    R.EVALUATOR_ERROR: (3, None, None, 0),
}


@pytest.mark.parametrize("reason", sorted(NEED_A_RULE))
def test_the_default_policy_is_the_table_of_the_design(reason: R) -> None:
    rule = DEFAULT_POLICY.rule(reason)
    assert (rule.count, rule.window_s, rule.time_s, rule.refund) == TABLE[reason]


def test_software_errors_before_the_first_step_are_not_retried_and_numerics_count_in_steps() -> (
    None
):
    before = {r.reason for r in DEFAULT_POLICY.rules if r.count_before_first_step == 0}
    assert before == {
        R.CODE_ERROR,
        R.CONFIG_ERROR,
        R.DEPENDENCY_MISMATCH,
        R.PERMISSION_DENIED,
    }
    past_onset = {r.reason: r.window_steps for r in DEFAULT_POLICY.rules if r.refund_past_onset}
    assert past_onset == {R.NAN_LOSS: 10_000, R.LOSS_DIVERGENCE: 10_000}


def test_a_lost_peer_shares_the_debits_of_unknown() -> None:
    assert DEFAULT_POLICY.rule(R.RANK_LOST_SECONDARY).budget is R.UNKNOWN


def test_a_reason_that_ends_no_attempt_is_treated_as_unknown() -> None:
    assert DEFAULT_POLICY.rule(R.FENCED).reason is R.UNKNOWN


def test_the_cap_in_device_hours_is_half_more_than_the_estimate_and_never_below_an_hour() -> None:
    assert DEFAULT_POLICY.device_s_cap(200) == 3600  # 1.5 × 200 = 300, below the floor
    assert DEFAULT_POLICY.device_s_cap(10_000) == 15_000


def test_equal_policies_have_one_version_and_every_change_has_another() -> None:
    same = dataclasses.replace(DEFAULT_POLICY)
    assert same.version == DEFAULT_POLICY.version
    changed = dataclasses.replace(DEFAULT_POLICY, fingerprint_limit=4)
    assert changed.version != DEFAULT_POLICY.version


@pytest.mark.parametrize(
    "changes",
    [
        {"count": -1},
        {"count_before_first_step": -1},
        {"window_s": 0},
        {"window_steps": -5},
        {"refund": 1.5},
        {"backoff_s": 10.0, "backoff_s_max": 1.0},
        {"time_s": 60.0, "count": 3, "backoff_s": 1.0, "backoff_s_max": 1.0},
        {"time_s": 60.0},  # without a backoff it would spin for its whole time
        {"other_node_from": 0},
        {"count": None, "fingerprint_limited": False},  # for ever
    ],
)
def test_a_row_that_cannot_hold_is_refused(changes: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="unknown cannot hold"):
        RetryRule(reason=R.UNKNOWN, remedy=Remedy.RESUME, **changes)  # type: ignore[arg-type]


def test_a_policy_needs_one_row_for_every_failure() -> None:
    with pytest.raises(ValueError, match=r"missing: .*unknown"):
        RetryPolicy(rules=tuple(r for r in DEFAULT_POLICY.rules if r.reason is not R.UNKNOWN))
    with pytest.raises(ValueError, match="exactly one rule"):
        RetryPolicy(rules=(*DEFAULT_POLICY.rules, DEFAULT_POLICY.rules[0]))


@pytest.mark.parametrize(
    "changes",
    [
        {"fingerprint_limit": -1},
        {"never_started_backoff_s": 0.0},
        {"device_hours_factor": 0.0},
        {"memory_growth": 1.0},
    ],
)
def test_limits_that_cannot_hold_are_refused(changes: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"limits|backoff|device-hours|memory"):
        dataclasses.replace(DEFAULT_POLICY, **changes)


def test_every_reason_is_decided_by_exactly_one_sensor() -> None:
    assert reasons_of(RETRY_PREEMPTED) == {R.PREEMPTED, R.NODE_DRAINED}
    assert reasons_of(RETRY_OOM) == {R.GPU_OOM, R.HOST_OOM, R.SHM_EXHAUSTED}
    assert reasons_of(RETRY_NUMERICS) == {
        R.NAN_LOSS,
        R.LOSS_DIVERGENCE,
        R.BAD_INPUT_DATA,
        R.SILENT_CORRUPTION,
    }
    assert {R.NODE_FAILURE, R.HANG, R.DISK_FULL, R.IMAGE_PULL} < reasons_of(RETRY_INFRASTRUCTURE)
    assert sensor_of(R.UNKNOWN) == sensor_of(R.CODE_ERROR) == WATCH_ATTEMPTS
    sensors = (
        RETRY_PREEMPTED,
        RETRY_OOM,
        RETRY_NUMERICS,
        RETRY_INFRASTRUCTURE,
        WATCH_ATTEMPTS,
    )
    assert sum(len(reasons_of(sensor)) for sensor in sensors) == len(R)

"""The default retry policy: one row a reason, as docs/retries.md has it.

To give a reason another budget, change its row; `policy.RetryRule` explains the fields.
"""

from __future__ import annotations

import dataclasses

from tracks_dagster.retry.environments import EnvironmentRule
from tracks_dagster.retry.node_health import DAY_S
from tracks_dagster.retry.policy import HOUR_S, Remedy, RetryPolicy, RetryRule
from tracks_dagster.track.reasons import TerminationReason

_R = TerminationReason


def _rows(*reasons: TerminationReason, like: RetryRule) -> tuple[RetryRule, ...]:
    return tuple(dataclasses.replace(like, reason=reason) for reason in (like.reason, *reasons))


DEFAULT_POLICY = RetryPolicy(
    rules=(
        # No count: a preemption that a control plane recorded is limited in device time alone.
        *_rows(
            _R.NODE_DRAINED,
            like=RetryRule(
                reason=_R.PREEMPTED,
                remedy=Remedy.OTHER_NODE,
                count_by_words=3,
                other_node_from=3,
                other_node_window_s=HOUR_S,
                backoff_s=1.0,
                backoff_s_max=600.0,
                fingerprint_limited=False,
            ),
        ),
        RetryRule(
            reason=_R.ORCHESTRATOR_LOST,
            remedy=Remedy.ADOPT,
            count=10,
            refund=1.0,
            backoff_s=1.0,
            backoff_s_max=600.0,
        ),
        RetryRule(
            reason=_R.SCHEDULING_TIMEOUT,
            remedy=Remedy.OTHER_POOL,
            time_s=DAY_S,
            backoff_s=60.0,
            backoff_s_max=HOUR_S / 2,
            fingerprint_limited=False,
        ),
        RetryRule(
            reason=_R.IMAGE_PULL,
            remedy=Remedy.OTHER_POOL,
            time_s=HOUR_S,
            backoff_s=60.0,
            backoff_s_max=HOUR_S / 2,
            fingerprint_limited=False,
        ),
        RetryRule(
            reason=_R.WALLTIME_TIMEOUT, remedy=Remedy.EARLIER_CHECKPOINT, count=3, refund=1.0
        ),
        *_rows(
            _R.GPU_HARDWARE,
            like=RetryRule(
                reason=_R.NODE_FAILURE,
                remedy=Remedy.OTHER_NODE,
                count=5,
                window_s=7 * DAY_S,
                refund=1.0,
                backoff_s=5.0,
                backoff_s_max=600.0,
                other_node_from=1,
            ),
        ),
        *_rows(
            _R.STORAGE_IO,
            like=RetryRule(
                reason=_R.NETWORK_FABRIC,
                remedy=Remedy.OTHER_NODE,
                count=5,
                window_s=DAY_S,
                refund=1.0,
                backoff_s=10.0,
                backoff_s_max=600.0,
                other_node_from=2,
                other_node_window_s=DAY_S,
            ),
        ),
        *_rows(
            _R.DATA_LOADER_STALL,
            like=RetryRule(
                reason=_R.HANG,
                remedy=Remedy.OTHER_NODE,
                count=3,
                window_s=DAY_S,
                refund=1.0,
                backoff_s=5.0,
                backoff_s_max=600.0,
                other_node_from=2,
                other_node_window_s=DAY_S,
            ),
        ),
        *_rows(
            _R.UNKNOWN,
            like=RetryRule(
                reason=_R.NATIVE_CRASH,
                remedy=Remedy.OTHER_NODE,
                count=2,
                window_s=DAY_S,
                refund=1.0,
                backoff_s=2.0,
                backoff_s_max=300.0,
                other_node_from=1,
            ),
        ),
        RetryRule(
            reason=_R.RANK_LOST_SECONDARY,
            remedy=Remedy.OTHER_NODE,
            count=2,
            window_s=DAY_S,
            refund=1.0,
            backoff_s=2.0,
            backoff_s_max=300.0,
            other_node_from=1,
            counts_as=_R.UNKNOWN,
        ),
        RetryRule(
            reason=_R.SILENT_CORRUPTION,
            remedy=Remedy.ROLL_BACK_ELSEWHERE,
            count=1,
            # A fleet of 16 384 devices meets one every 11 days, each on another node: a run of months
            # would wait for a person each time after the first.
            window_s=7 * DAY_S,
            other_node_from=1,
        ),
        RetryRule(reason=_R.GPU_OOM, remedy=Remedy.SMALLER_MICRO_BATCH, count=3),
        *_rows(
            _R.SHM_EXHAUSTED,
            like=RetryRule(reason=_R.HOST_OOM, remedy=Remedy.MORE_MEMORY, count=3),
        ),
        *_rows(
            _R.CHECKPOINT_WRITE_FAILED,
            like=RetryRule(
                reason=_R.DISK_FULL,
                remedy=Remedy.COLLECT_CHECKPOINTS,
                count=2,
                window_s=DAY_S,
                refund=0.5,
                backoff_s=10.0,
                backoff_s_max=600.0,
            ),
        ),
        *_rows(
            _R.LOSS_DIVERGENCE,
            like=RetryRule(
                reason=_R.NAN_LOSS,
                remedy=Remedy.ROLL_BACK,
                count=3,
                window_steps=10_000,
                refund=1.0,
                refund_past_onset=True,
            ),
        ),
        RetryRule(reason=_R.BAD_INPUT_DATA, remedy=Remedy.QUARANTINE_SNAPSHOT, count=1),
        *_rows(
            _R.CONFIG_ERROR,
            _R.DEPENDENCY_MISMATCH,
            _R.PERMISSION_DENIED,
            like=RetryRule(
                reason=_R.CODE_ERROR, remedy=Remedy.STOP, count=1, count_before_first_step=0
            ),
        ),
        # The trainer quarantines a checkpoint that it cannot read and falls back while it restores;
        # an attempt that ends so has found none that it could read.
        RetryRule(reason=_R.CHECKPOINT_CORRUPT, remedy=Remedy.STOP, count=0),
        RetryRule(reason=_R.EVALUATOR_ERROR, remedy=Remedy.RETRY_EVAL, count=3),
    ),
    # What sums in another order, or draws other random numbers, makes no exact resume. Another
    # platform, thread count or training code is reported, for anyone who compares losses.
    environment=(
        EnvironmentRule(key="torch"),
        EnvironmentRule(key="cuda"),
        EnvironmentRule(key="python", parts=2),
        EnvironmentRule(key="numpy", parts=2),
    ),
)

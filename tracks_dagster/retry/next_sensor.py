"""Which sensor has to act next: by how an attempt ended, and by what its run still owes. Pure."""

from __future__ import annotations

from tracks_dagster.track.names import (
    LAUNCH_ATTEMPTS,
    RETRY_INFRASTRUCTURE,
    RETRY_NUMERICS,
    RETRY_OOM,
    RETRY_PREEMPTED,
    RUN_EVALS,
    WATCH_ATTEMPTS,
)
from tracks_dagster.track.reasons import TerminationReason
from tracks_dagster.track.states.evals import HAS_ALL_STEPS, evals_settled, promotion_is_due
from tracks_dagster.track.states.run_state import RunState

_R = TerminationReason


def next_sensor(state: RunState) -> str | None:
    """Return the sensor that has to act next on an unfinished run, or None when a gang works."""
    attempt = state.last_attempt
    if attempt is None or attempt.reason is None:
        has_begun = attempt is not None and (attempt.claims or attempt.placed is not None)
        return None if has_begun else LAUNCH_ATTEMPTS
    owes_evals = attempt.reason in HAS_ALL_STEPS and not evals_settled(state)
    if owes_evals or promotion_is_due(state):
        return RUN_EVALS
    return sensor_of(attempt.reason)


def sensor_of(reason: TerminationReason) -> str:
    """Return the name of the sensor that decides what follows on `reason`."""
    return _SENSORS.get(reason, WATCH_ATTEMPTS)


def reasons_of(sensor: str) -> frozenset[TerminationReason]:
    """Return the reasons that a sensor decides."""
    return frozenset(reason for reason in _R if sensor_of(reason) == sensor)


_REASONS = {
    RETRY_PREEMPTED: (_R.PREEMPTED, _R.NODE_DRAINED),
    RETRY_OOM: (_R.GPU_OOM, _R.HOST_OOM, _R.SHM_EXHAUSTED),
    RETRY_NUMERICS: (
        _R.NAN_LOSS,
        _R.LOSS_DIVERGENCE,
        _R.BAD_INPUT_DATA,
        _R.SILENT_CORRUPTION,
    ),
    RETRY_INFRASTRUCTURE: (
        _R.NODE_FAILURE,
        _R.GPU_HARDWARE,
        _R.NETWORK_FABRIC,
        _R.STORAGE_IO,
        _R.HANG,
        _R.DATA_LOADER_STALL,
        _R.NATIVE_CRASH,
        _R.RANK_LOST_SECONDARY,
        _R.SCHEDULING_TIMEOUT,
        _R.IMAGE_PULL,
        _R.WALLTIME_TIMEOUT,
        _R.ORCHESTRATOR_LOST,
        _R.DISK_FULL,
        _R.CHECKPOINT_WRITE_FAILED,
    ),
}
_SENSORS = {reason: sensor for sensor, reasons in _REASONS.items() for reason in reasons}

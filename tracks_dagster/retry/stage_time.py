"""How long the devices of a run have worked, beside what its stage lets them. Pure."""

from __future__ import annotations

from datetime import datetime

from tracks_dagster.track.states.run_state import AttemptState, RunState
from tracks_dagster.track.text.units import about, duration


def over_stage_time(state: RunState, now: datetime) -> str | None:
    """Say that the devices of the run have worked for as long as its stage lets them; None before."""
    most = state.declared.max_device_s
    if most is None:
        return None
    # From its placement on, as the record of its end counts: then both say the same of one attempt.
    worked_s = sum(
        device_s(each, now, each.placed_at) / max(1, each.devices) for each in state.attempts
    )
    if worked_s < most:
        return None
    stage = state.declared.stage
    return (
        f"each of its devices has worked for {about(worked_s)} of at most {duration(most)} (time of "
        f"stages.{stage} in policy.yaml)"
    )


def device_s(attempt: AttemptState, now: datetime, began_at: datetime | None) -> float:
    """Return the seconds of all its devices: as its end recorded them, else from `began_at` to now."""
    if attempt.ended is not None:
        return attempt.ended.device_seconds
    if began_at is None:
        return 0.0
    return attempt.devices * max(0.0, (now - began_at).total_seconds())

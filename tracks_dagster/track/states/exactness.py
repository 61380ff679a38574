"""Which resumes of a run were not exact, in words, as far as its track knows. Pure."""

from __future__ import annotations

from tracks_dagster.track.states.run_state import RunState

NOT_EXACT = "not exact"


def inexact_resumes(state: RunState, *, attempt_id_max: int | None = None) -> str:
    """Return a sentence on the attempts that ran a step again and came to another loss; "" for none.

    attempt_id_max: the newest attempt that counts, of what rests on the checkpoints of that one.
    """
    found = [
        f"attempt {attempt.attempt_id} differs from step {attempt.ended.differs_from_step} on"
        for attempt in state.attempts
        if attempt.ended is not None
        and attempt.ended.differs_from_step is not None
        and (attempt_id_max is None or attempt.attempt_id <= attempt_id_max)
    ]
    if not found:
        return ""
    which = "A resume was" if len(found) == 1 else "Resumes were"
    return f"{which} {NOT_EXACT}: {'; '.join(found)} (tracks explain {state.run_id} --full)."

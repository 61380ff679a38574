"""A person's verdict on an attempt whose evidence does not tell why it ended.

A record as any other correction, in the person's name; reading the evidence again leaves it as it is.
"""

from __future__ import annotations

from tracks_dagster.attempts.effects.closing import find_attempt
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.reasons.finding import STATED
from tracks_dagster.reasons.fingerprints import fingerprint
from tracks_dagster.track.bodies import AttemptReclassified
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.names import AttemptRef, attempt_key
from tracks_dagster.track.placement import nodes_of
from tracks_dagster.track.reasons import ReasonFamily, TerminationReason
from tracks_dagster.track.records import Draft, Kind, Record
from tracks_dagster.track.states.run_state import AttemptState, RunState
from tracks_dagster.track.text.nearest import instead

_R = TerminationReason

BY_PERSON = "by_person"  # the rule of such a verdict
LINE_CHARACTERS_MAX = 500  # of the why in the verdict's line; the record holds all of it

# Nobody may say that it did what it did not, and that nobody knows is no verdict; the others left out
# end no attempt.
VALID = tuple(
    reason.value
    for reason in TerminationReason
    if reason is TerminationReason.USER_CANCELLED
    or (
        reason.family is not ReasonFamily.AS_MEANT
        and reason not in (_R.EVALUATOR_ERROR, _R.UNKNOWN)
    )
)


def give_verdict(
    tracks: Tracks, run_id: str, attempt_id: int, reason: str, *, by: str, why: str
) -> Record | None:
    """Record that the attempt ended for `reason`; None when that is what its newest reading says.

    The budget moves with it, nothing is opened or closed. Raises UnknownRun, and InvalidInput for an
    attempt that has not ended or a reason that none can end for.
    """
    given = _valid(reason)
    find_attempt(tracks, AttemptRef(run_id=run_id, attempt_id=attempt_id))

    def choose(state: RunState | None) -> Draft | None:
        attempt = state.attempt(attempt_id) if state is not None else None
        if attempt is None or attempt.ended is None:
            key = attempt_key(run_id, attempt_id)
            raise InvalidInput(f"{key} has not ended; a verdict is on an end.")
        if attempt.reason is given and _is_by_person(attempt):
            return None
        body = _correction(attempt, given, by=by, why=why)
        return tracks.draft(Kind.ATTEMPT_RECLASSIFIED, body, attempt_id=attempt_id)

    return tracks.decide_run(run_id, choose)


def _valid(reason: str) -> TerminationReason:
    if reason not in VALID:
        raise InvalidInput(
            f"{reason!r} is no verdict on an attempt; "
            + instead(reason, VALID, f"there are: {', '.join(VALID)}.")
        )
    return TerminationReason(reason)


def _is_by_person(attempt: AttemptState) -> bool:
    return attempt.reclassified is not None and attempt.reclassified.rule == BY_PERSON


def _correction(
    attempt: AttemptState, reason: TerminationReason, *, by: str, why: str
) -> AttemptReclassified:
    ended = attempt.ended
    assert ended is not None, "only an attempt that has ended is corrected"
    nodes = tuple(sorted(set(nodes_of(attempt.placed)))) if attempt.placed else ()
    opened = attempt.opened
    return AttemptReclassified(
        reason=reason.value,
        confidence=STATED,
        rule=BY_PERSON,
        lines=(f"{by}: {why}"[:LINE_CHARACTERS_MAX],),
        classifier_version=ended.classifier_version,
        evidence_sha256=ended.evidence_sha256,
        why=f"{by}: {why}",
        fingerprint=fingerprint(reason, ended.root_message, opened.config, opened.snapshot, nodes),
    )

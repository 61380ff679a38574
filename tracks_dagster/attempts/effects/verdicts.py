"""Verdicts after the end: stored evidence read again, or a person's own verdict.

After a rule of the classifier has changed, `reclassify` reads stored evidence again and appends a
correction where the verdict is another one. The debit of the retry that followed is charged to the new
reason from then on, since spending is folded from the newest reading. Nothing is opened or closed: a
run that was refused still waits for a person. A person's verdict is a record as any other correction;
reading the evidence again leaves it as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tracks_dagster.attempts.effects.closing import find_attempt, fingerprint_of, record_lines
from tracks_dagster.attempts.effects.evidence import read_evidence
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.reasons.classify import classifier_version, classify
from tracks_dagster.reasons.evidence import Verdict
from tracks_dagster.reasons.fingerprints import fingerprint
from tracks_dagster.reasons.rules.cause import STATED
from tracks_dagster.reasons.user_rules import UserRules
from tracks_dagster.track.bodies import AttemptReclassified
from tracks_dagster.track.errors import InvalidInput, StoreError, TrackError, UnknownRun
from tracks_dagster.track.names import AttemptRef, attempt_key
from tracks_dagster.track.placement import nodes_of
from tracks_dagster.track.reasons import ReasonFamily, TerminationReason
from tracks_dagster.track.records import Draft, Kind, Record
from tracks_dagster.track.states.run_state import AttemptState, RunState
from tracks_dagster.track.text.nearest import instead

_R = TerminationReason

BY_PERSON = "by_person"  # the rule of such a verdict
VERDICT_LINE_CHARACTERS_MAX = 500  # of the why in the verdict's line; the record holds all of it

# Nobody may say that it did what it did not, and that nobody knows is not a verdict; the others left
# out end no attempt.
VALID = tuple(
    reason.value
    for reason in TerminationReason
    if reason is TerminationReason.USER_CANCELLED
    or (
        reason.family is not ReasonFamily.AS_MEANT
        and reason not in (_R.EVALUATOR_ERROR, _R.UNKNOWN)
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reread:
    """One ended attempt read again. now: None where its evidence cannot be read; `problem` says why.

    key, before: of a run whose rest cannot be read its id, and None. recorded: whether the correction
    is in the track.
    """

    key: str
    before: str | None
    now: str | None
    confidence: float | None = None
    rule: str | None = None
    lines: tuple[str, ...] = ()
    problem: str | None = None
    recorded: bool = False

    @property
    def differs(self) -> bool:
        """Whether the reading is another one than before."""
        return self.now is not None and self.now != self.before


def reclassify(
    tracks: Tracks,
    run_id: str,
    rules: UserRules,
    *,
    why: str,
    attempt_id: int | None = None,
    dry_run: bool = False,
) -> Iterator[Reread]:
    """Read every ended attempt of the run again, or only `attempt_id`, and append what differs.

    Yields each as it is done: what was recorded before an error is known. why: written in each
    correction. Safe from two processes: the second finds nothing that differs. Raises UnknownRun.
    """
    for attempt in tracks.run(run_id).attempts:
        if not attempt.is_open and attempt_id in (None, attempt.attempt_id):
            yield _reread(tracks, run_id, attempt, rules, why, dry_run=dry_run)


def reclassify_all(
    tracks: Tracks, rules: UserRules, *, why: str, dry_run: bool = False
) -> Iterator[Reread]:
    """Yield what comes of every run; one that cannot be read is reported and delays no other."""
    for run_id in tracks.store.folders("runs/"):
        try:
            yield from reclassify(tracks, run_id, rules, why=why, dry_run=dry_run)
        except (StoreError, TrackError, UnknownRun) as error:
            yield Reread(key=run_id, before=None, now=None, problem=str(error))


def _reread(
    tracks: Tracks,
    run_id: str,
    attempt: AttemptState,
    rules: UserRules,
    why: str,
    *,
    dry_run: bool,
) -> Reread:
    key, before = attempt_key(run_id, attempt.attempt_id), str(attempt.reason)
    newest = attempt.reclassified
    if newest is not None and newest.rule == BY_PERSON:  # knew more than the evidence
        return Reread(key=key, before=before, now=before, lines=newest.lines, rule=BY_PERSON)
    evidence, problem = read_evidence(tracks.store, attempt)
    if evidence is None or attempt.ended is None:
        return Reread(key=key, before=before, now=None, problem=problem)
    verdict = classify(evidence, rules)
    recorded = False
    if verdict.reason != before and not dry_run:
        body = _correction(attempt, verdict, rules, why)
        draft = tracks.draft(Kind.ATTEMPT_RECLASSIFIED, body, attempt_id=attempt.attempt_id)
        recorded = tracks.decide_run(run_id, _unless_corrected(draft, attempt)) is not None
    return Reread(
        key=key,
        before=before,
        now=verdict.reason,
        confidence=verdict.confidence,
        rule=verdict.rule,
        lines=verdict.lines,
        recorded=recorded,
    )


def _correction(
    attempt: AttemptState, verdict: Verdict, rules: UserRules, why: str
) -> AttemptReclassified:
    return AttemptReclassified(
        reason=verdict.reason,
        confidence=verdict.confidence,
        rule=verdict.rule,
        lines=record_lines(verdict),
        classifier_version=classifier_version(rules),
        evidence_sha256=attempt.ended.evidence_sha256 if attempt.ended else "",
        why=why,
        fingerprint=fingerprint_of(verdict, attempt),
    )


def _unless_corrected(
    draft: Draft, seen: AttemptState
) -> Callable[[RunState | None], Draft | None]:
    """Return a choice that appends, unless somebody corrected the attempt since it was `seen`."""

    def choose(state: RunState | None) -> Draft | None:
        attempt = state.attempt(seen.attempt_id) if state else None
        is_same = attempt is not None and attempt.reclassified_seq == seen.reclassified_seq
        return draft if is_same else None

    return choose


def give_verdict(
    tracks: Tracks, run_id: str, attempt_id: int, reason: str, *, by: str, why: str
) -> Record | None:
    """Record that the attempt ended for `reason`; None when its newest reading says so already.

    The budget moves with it, nothing is opened or closed. Raises UnknownRun, and InvalidInput for an
    attempt that has not ended or a reason that none can end for.
    """
    given = _valid(reason)
    find_attempt(tracks, AttemptRef(run_id, attempt_id))

    def choose(state: RunState | None) -> Draft | None:
        attempt = state.attempt(attempt_id) if state is not None else None
        if attempt is None or attempt.ended is None:
            key = attempt_key(run_id, attempt_id)
            raise InvalidInput(f"{key} has not ended; a verdict is on an end.")
        if attempt.reason is given and _is_by_person(attempt):
            return None
        body = _personal_verdict(attempt, given, by=by, why=why)
        return tracks.draft(Kind.ATTEMPT_RECLASSIFIED, body, attempt_id=attempt_id)

    return tracks.decide_run(run_id, choose)


def _valid(reason: str) -> TerminationReason:
    if reason not in VALID:
        raise InvalidInput(
            f"{reason!r} is not a verdict on an attempt; "
            + instead(reason, VALID, f"there are: {', '.join(VALID)}.")
        )
    return TerminationReason(reason)


def _is_by_person(attempt: AttemptState) -> bool:
    return attempt.reclassified is not None and attempt.reclassified.rule == BY_PERSON


def _personal_verdict(
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
        lines=(f"{by}: {why}"[:VERDICT_LINE_CHARACTERS_MAX],),
        classifier_version=ended.classifier_version,
        evidence_sha256=ended.evidence_sha256,
        why=f"{by}: {why}",
        fingerprint=fingerprint(reason, ended.root_message, opened.config, opened.snapshot, nodes),
    )

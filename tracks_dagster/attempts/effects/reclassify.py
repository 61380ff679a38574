"""Read the stored evidence of ended attempts again, after a rule of the classifier has changed.

Where the verdict is another one, a correction is appended, and the debit of the retry that followed is
charged to the new reason from then on, since spending is folded from the newest reading. Nothing is
opened or closed by it: a run that was refused waits for a person still.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tracks_dagster.attempts.effects.closing import fingerprint_of, record_lines
from tracks_dagster.attempts.effects.given_verdict import BY_PERSON
from tracks_dagster.attempts.effects.kept_logs import read_evidence
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.reasons.classify import classifier_version, classify
from tracks_dagster.reasons.evidence import Verdict
from tracks_dagster.reasons.user_rules import UserRules
from tracks_dagster.track.bodies import AttemptReclassified
from tracks_dagster.track.errors import StoreError, TrackError, UnknownRun
from tracks_dagster.track.names import attempt_key
from tracks_dagster.track.records import Draft, Kind
from tracks_dagster.track.states.run_state import AttemptState, RunState


@dataclass(frozen=True, slots=True, kw_only=True)
class Reread:
    """One ended attempt read again. now: None where its evidence cannot be read; `problem` says why.

    key, before: of a run whose rest cannot be read its id, and None. recorded: whether the correction
    stands in the track.
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

    Yields each as it is done: what was recorded before an error is known. why: stands in each
    correction. Safe from two processes: the second finds nothing that differs. Raises UnknownRun.
    """
    for attempt in tracks.run(run_id).attempts:
        if not attempt.is_open and attempt_id in (None, attempt.attempt_id):
            yield _reread(tracks, run_id, attempt, rules, why, dry_run=dry_run)


def reclassify_all(
    tracks: Tracks, rules: UserRules, *, why: str, dry_run: bool = False
) -> Iterator[Reread]:
    """Yield what comes of every run; one that cannot be read is told and holds up no other."""
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
    if newest is not None and newest.rule == BY_PERSON:  # knew more than the evidence tells
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

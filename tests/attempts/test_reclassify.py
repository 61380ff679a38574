"""Reading stored evidence again: corrections where the reason differs, nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from tests.evidences import end, evidence
from tests.fakes import FakeObjectStore
from tests.histories import History
from tracks_dagster.attempts.effects.verdicts import Reread, reclassify
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.reasons.classify import CLASSIFIER_VERSION, classify
from tracks_dagster.reasons.evidence import Evidence
from tracks_dagster.reasons.user_rules import NO_RULES, Where, make_rule, make_rules
from tracks_dagster.retry.default_policy import DEFAULT_POLICY
from tracks_dagster.retry.limits import spendings
from tracks_dagster.review.effects.explain.run import ExplainContext, explain_attempt
from tracks_dagster.track.bodies import Debit
from tracks_dagster.track.body_json import to_json
from tracks_dagster.track.reasons import TerminationReason
from tracks_dagster.track.records import Kind, canonical_json, sha256_hex

FABRIC_DOWN = "my.FabricDownError: plane 3 is dark"
OURS = make_rules(
    [
        make_rule(
            name="ours",
            reason=TerminationReason.NETWORK_FABRIC,
            pattern="FabricDown",
            confidence=0.9,
            where=Where.ANY,
        )
    ]
)


def ended(history: History, store: FakeObjectStore, given: Evidence, reason: str) -> History:
    data = canonical_json(to_json(given))
    key = f"runs/r-1/attempts/{given.attempt_id}/evidence/{sha256_hex(data)}.json"
    store.put(key, data)
    return history.end(reason, evidence_key=key, evidence_sha256=sha256_hex(data))


@pytest.fixture
def history(store: FakeObjectStore) -> History:
    history = History("r-1").declare().open().place()
    given = evidence(end(code=1, log=FABRIC_DOWN))
    return ended(history, store, given, classify(given).reason)


def again(tracks: Tracks, **more: Any) -> tuple[Reread, ...]:
    return tuple(reclassify(tracks, "r-1", OURS, why="the fabric team says so", **more))


def test_a_new_rule_corrects_the_reason_once(
    tracks: Tracks, store: FakeObjectStore, history: History
) -> None:
    history.write_to(store)
    [first] = again(tracks)
    assert (first.now, first.differs, first.recorded) == ("network_fabric", True, True)
    [attempt] = tracks.run("r-1").attempts
    assert attempt.reason == "network_fabric"
    assert attempt.reclassified is not None
    assert attempt.reclassified.classifier_version == f"{CLASSIFIER_VERSION}+rules:{OURS.digest}"
    assert attempt.reclassified.why == "the fabric team says so"
    count = len(tracks.records("runs/r-1"))
    [second] = again(tracks)
    assert not second.differs
    assert len(tracks.records("runs/r-1")) == count


def test_what_speaks_against_a_users_rule_is_reported_with_that_rule(
    tracks: Tracks, store: FakeObjectStore
) -> None:
    """Without the rule the same evidence is read otherwise today, which is what speaks against."""
    given = evidence(end(code=1, log=f"{FABRIC_DOWN}\nValueError: bad shape"))
    history = ended(History("r-1").declare().open().place(), store, given, "network_fabric")
    history.write_to(store)
    with_rule = explain_attempt(tracks, "r-1", 1, ExplainContext(rules=OURS)).ended
    without = explain_attempt(tracks, "r-1", 1).ended
    assert with_rule is not None
    assert without is not None
    assert [line for line in with_rule.against if "code_error" in line]
    [read_otherwise] = without.against
    assert "speaks for code_error as it is read today: " in read_otherwise


def test_a_dry_run_tells_and_writes_nothing(
    tracks: Tracks, store: FakeObjectStore, history: History
) -> None:
    history.write_to(store)
    before = tracks.records("runs/r-1")
    [result] = again(tracks, dry_run=True)
    assert (result.differs, result.recorded) == (True, False)
    assert tracks.records("runs/r-1") == before


def test_the_debit_moves_with_the_reason(
    tracks: Tracks, store: FakeObjectStore, history: History
) -> None:
    cost = Debit(reason="code_error", amount=1.0, fingerprint="f", why="the retry")
    history.open(debit=cost).write_to(store)
    before = [spent.budget for spent in spendings(tracks.run("r-1"), DEFAULT_POLICY)]
    again(tracks)
    after = [spent.budget for spent in spendings(tracks.run("r-1"), DEFAULT_POLICY)]
    assert len(before) == len(after) == 1
    assert before == [DEFAULT_POLICY.rule(TerminationReason.CODE_ERROR).budget]
    assert after == [DEFAULT_POLICY.rule(TerminationReason.NETWORK_FABRIC).budget]


def test_nothing_is_opened_by_it(tracks: Tracks, store: FakeObjectStore, history: History) -> None:
    history.refuse().write_to(store)
    again(tracks)
    state = tracks.run("r-1")
    assert state.refusal is not None
    assert len(state.attempts) == 1
    assert tracks.records("runs/r-1")[-1].kind is Kind.ATTEMPT_RECLASSIFIED


def test_an_open_attempt_and_one_not_asked_for_are_left_alone(
    tracks: Tracks, store: FakeObjectStore, history: History
) -> None:
    history.open().write_to(store)
    assert [each.key for each in again(tracks)] == ["r-1/a01"]
    assert again(tracks, attempt_id=2) == ()


def test_evidence_that_is_gone_or_changed_is_reported_and_the_reason_stays(
    tracks: Tracks, store: FakeObjectStore, history: History
) -> None:
    history.write_to(store)
    [attempt] = tracks.run("r-1").attempts
    assert attempt.ended is not None
    store.put(attempt.ended.evidence_key, b"{}")
    [result] = again(tracks)
    assert result.now is None
    assert result.problem is not None
    assert not result.recorded


def test_the_same_rules_find_nothing_to_correct(
    tracks: Tracks, store: FakeObjectStore, history: History
) -> None:
    history.write_to(store)
    [result] = reclassify(tracks, "r-1", NO_RULES, why="to be sure")
    assert not result.differs

"""Every field of a receipt is recorded, or there is a reason why not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.histories import History
from tracks_dagster.ledger.facts import attempt as facts
from tracks_dagster.ledger.facts.attempt import attempt_views
from tracks_dagster.review.completeness import Completeness, completeness
from tracks_dagster.track.bodies import CodeVersion, ComputeRequest, Debit

DEBIT = Debit(reason="preempted", amount=0.0, fingerprint=None, why="free")


def score(
    history: History,
    number: int = 1,
    *,
    is_journal_whole: bool = True,
    is_evidence_there: bool = True,
) -> Completeness:
    view = attempt_views(history.state)[number - 1]
    ended = view.attempt.ended
    last_step = (ended.last_step if ended else None) or 0
    return completeness(
        replace(
            view,
            journal_step=last_step if is_journal_whole else None,
            is_evidence_there=is_evidence_there,
        )
    )


def absences(result: Completeness) -> dict[str, str | None]:
    return {each.name: each.absence for each in result.fields if not each.is_recorded}


def trained() -> History:
    return History().declare().open().supervise().place(image="sha256:77").restore().commit(10)


def test_a_closed_attempt_has_every_field_but_what_a_first_one_does_not_spend() -> None:
    result = score(trained().end("preempted", last_step=12))
    assert absences(result) == {"budget debit": facts.FIRST_ATTEMPT.name}
    assert result.recorded_count == len(result.fields) - 1
    assert result.gaps == ()
    assert result.sentence == (
        "29 of 30 fields are recorded; not budget debit: a first attempt spends nothing from the "
        "retry budget"
    )


def test_a_retry_with_its_debit_is_whole() -> None:
    history = trained().end("preempted", last_step=12).open(debit=DEBIT)
    history.supervise().place(image="sha256:77").restore().end("completed", last_step=40)
    assert absences(score(history, 2)) == {}


def test_an_open_attempt_says_of_its_end_that_it_is_to_come() -> None:
    result = absences(score(trained(), is_journal_whole=False))
    for name in ("termination reason", "evidence", "device seconds", "ended at"):
        assert result[name] == facts.OPEN.name


@pytest.mark.parametrize("name", ["launch", "ranks", "nodes", "devices", "environment"])
def test_what_nobody_could_tell_has_its_reason(name: str) -> None:
    history = History().declare(compute=ComputeRequest(launcher="kubernetes")).open().supervise()
    result = absences(score(history.end("scheduling_timeout"), is_journal_whole=False))
    assert result[name] == facts.NEVER_PLACED.name
    assert result["cursor range"] == facts.NEVER_PLACED.name
    assert score(history).gaps == ()


def test_an_image_is_not_asked_of_processes_on_the_machine_itself_but_of_pods_it_is() -> None:
    local = History().declare().open().supervise().place().restore().end("preempted")
    assert absences(score(local))["image"] == facts.NO_CONTAINER.name
    pods = History().declare(compute=ComputeRequest(launcher="kubernetes"))
    pods.open().supervise().place().restore().end("preempted")
    assert "image" in score(pods).gaps


def test_what_was_lost_after_the_fact_is_distinguished() -> None:
    history = trained().end("preempted", last_step=12)
    result = absences(score(history, is_journal_whole=False, is_evidence_there=False))
    assert result["cursor range"] == facts.NOT_SHIPPED.name
    assert result["evidence"] == facts.EVIDENCE_LOST.name


def test_outside_of_a_checkout_there_is_no_commit_and_no_flag() -> None:
    code = CodeVersion(git_commit=None, branch=None, dirty=None, package_version="1")
    history = History().declare(code=code).open().supervise().place().restore().end("preempted")
    result = absences(score(history))
    assert result["code commit"] is result["local changes"] == facts.NO_CHECKOUT.name


def test_a_field_that_is_not_recorded_says_why_in_words() -> None:
    result = score(History().declare().open(), is_journal_whole=False)
    assert all(each.why for each in result.fields if not each.is_recorded)

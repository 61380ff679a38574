"""Searching what was said, and on demand the evidence, which no record holds."""

from __future__ import annotations

from datetime import datetime

import pytest

from tests.stories import RUN_ID, Story
from tracks_dagster.attempts.effects.notes import note
from tracks_dagster.ledger.effects.projector import Projector
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.ledger.texts import parse_question
from tracks_dagster.review.effects import search as searching
from tracks_dagster.review.effects.search import Found, Scope, search, search_deep
from tracks_dagster.track.errors import InvalidInput, UnknownRun
from tracks_dagster.track.records import parse_time


@pytest.fixture
def whole(story: Story, ledger: Ledger) -> Story:
    """The whole story, taken in by the ledger."""
    story.whole()
    Projector(story.store, ledger).scan()
    return story


def found(ledger: Ledger, text: str, **scope: object) -> Found:
    return search(ledger, parse_question(text), Scope(**scope))  # type: ignore[arg-type]


def deep(whole: Story, ledger: Ledger, text: str, **scope: object) -> Found:
    asked = Scope(**scope)  # type: ignore[arg-type]
    return search_deep(ledger, whole.store, parse_question(text), asked)


def test_a_note_is_found_with_its_record_and_the_command_that_shows_more(
    whole: Story, tracks: Tracks, ledger: Ledger
) -> None:
    written = note(tracks, RUN_ID, attempt_id=2, by="ann", text="Shard 7 has longer rows.")
    [hit] = found(ledger, '"longer rows"').hits
    assert (hit.seq, hit.kind, hit.author) == (written.seq, "note", "ann")
    assert (hit.run_id, hit.attempt_id) == (RUN_ID, 2)
    assert hit.more == f"tracks explain {RUN_ID}/a02"
    assert hit.excerpt == "Shard 7 has longer rows."


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("accumulation learns", ["run_declared"]),
        ("half activations", ["attempt_opened"]),
        ("preempted story", ["attempt_ended"]),
        ("low enough", ["promotion_decided"]),
    ],
)
def test_intents_changes_ends_and_decisions_are_found(
    whole: Story, ledger: Ledger, text: str, kinds: list[str]
) -> None:
    assert [hit.kind for hit in found(ledger, text).hits] == kinds


def test_a_search_says_that_it_is_cut(whole: Story, ledger: Ledger) -> None:
    assert found(ledger, "attempt", limit=2).is_cut
    assert not found(ledger, "attempt", limit=50).is_cut


def test_only_a_deep_search_reads_the_evidence(whole: Story, ledger: Ledger) -> None:
    assert found(ledger, "traceback").hits == ()
    result = deep(whole, ledger, "traceback")
    assert [(hit.kind, hit.attempt_id) for hit in result.hits] == [("evidence", 2), ("evidence", 1)]
    assert result.hits[0].seq is None
    assert result.hits[0].excerpt.startswith("Traceback (most recent call last)")
    assert (result.evidence_read, result.evidence_left) == (3, 0)


def test_a_deep_search_keeps_to_the_run_the_attempt_and_the_time(
    whole: Story, ledger: Ledger
) -> None:
    one = deep(whole, ledger, "traceback", run_id=RUN_ID, attempt_id=1)
    assert ([hit.attempt_id for hit in one.hits], one.evidence_read) == ([1], 1)
    ended = whole.history.state.attempts[1].ended
    assert ended is not None
    assert ended.finished_at is not None
    since: datetime = parse_time(ended.finished_at)
    assert [hit.attempt_id for hit in deep(whole, ledger, "traceback", since=since).hits] == [2]
    assert deep(whole, ledger, "traceback", run_id="other").evidence_read == 0


def test_a_deep_search_is_bounded_and_says_what_it_left(
    whole: Story, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(searching, "EVIDENCE_READ_MAX", 2)
    result = deep(whole, ledger, "traceback")
    assert (result.evidence_read, result.evidence_left) == (2, 1)
    assert [hit.attempt_id for hit in result.hits] == [2]


def test_evidence_that_is_gone_or_garbled_is_reported(whole: Story, ledger: Ledger) -> None:
    ends = [a.ended.evidence_key for a in whole.history.state.attempts if a.ended]
    whole.store.delete(ends[0])
    whole.store.put(ends[1], b"{")
    result = deep(whole, ledger, "traceback")
    assert sorted(result.unread) == sorted(ends[:2])
    assert result.evidence_read == 1


def test_a_note_of_an_attempt_that_is_not_there_is_refused(whole: Story, tracks: Tracks) -> None:
    with pytest.raises(UnknownRun, match=f"it has {RUN_ID}/a01 to {RUN_ID}/a03"):
        note(tracks, RUN_ID, attempt_id=4, by="ann", text="hello")
    with pytest.raises(InvalidInput, match="note is empty"):
        note(tracks, RUN_ID, attempt_id=None, by="ann", text=" ")

"""A track is explained as far as it holds, and the break is named."""

from __future__ import annotations

import json

import pytest

from tests.fakes import FakeObjectStore
from tests.stories import RUN_ID, Story
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.review.effects.explain.reading import read_run
from tracks_dagster.review.effects.explain.run import ExplainContext, explain_attempt, explain_run
from tracks_dagster.review.explain.text import attempt_text, run_text
from tracks_dagster.track.errors import RecordNewer, TrackBroken, UnknownRun
from tracks_dagster.track.names import run_track
from tracks_dagster.track.records import Draft, Kind, canonical_json, format_time, seal
from tracks_dagster.track.track import log_key

TRACK = run_track(RUN_ID)


def edit(store: FakeObjectStore, seq: int) -> None:
    """Change a word in the body of a stored record, as somebody with access to the bucket could."""
    stored = json.loads(store.objects[log_key(TRACK, seq)])
    stored["body"]["edited"] = "by hand"
    store.objects[log_key(TRACK, seq)] = json.dumps(
        stored, sort_keys=True, separators=(",", ":")
    ).encode()


def end_of(story: Story, number: int) -> int:
    seq = story.history.state.attempts[number - 1].ended_seq
    assert seq is not None
    return seq


def test_a_whole_track_has_no_break(story: Story, tracks: Tracks) -> None:
    story.whole()
    read = read_run(tracks, RUN_ID)
    assert read.broken is None
    assert read.state == story.history.state


def test_a_missing_record_ends_the_telling_where_it_was(
    story: Story, tracks: Tracks, store: FakeObjectStore
) -> None:
    story.whole()
    seq = end_of(story, 2)
    store.delete(log_key(TRACK, seq))
    result = explain_run(tracks, RUN_ID)
    assert result.broken is not None
    assert result.broken.seq == seq
    assert "is gone" in result.broken.meaning
    assert [attempt.attempt_id for attempt in result.attempts] == [1, 2]
    assert result.attempts[1].ended is None  # as things stood before
    assert f"THE RECORD BREAKS at record {seq}" in run_text(result)


def test_an_edited_record_is_found_by_the_one_after_it(
    story: Story, tracks: Tracks, store: FakeObjectStore
) -> None:
    story.whole()
    seq = end_of(story, 1)
    edit(store, seq)
    result = explain_attempt(tracks, RUN_ID, 1)
    assert result.broken is not None
    assert result.broken.seq == seq + 1  # one of the two was edited: nothing after the first holds
    text = attempt_text(result)
    assert text.index("THE RECORD BREAKS") < text.index("why it ended")
    assert "Restore the object" in text


def test_a_record_that_does_not_parse_is_a_break_too(
    story: Story, tracks: Tracks, store: FakeObjectStore
) -> None:
    story.whole()
    store.objects[log_key(TRACK, 5)] = b"no json"
    assert read_run(tracks, RUN_ID).broken is not None
    assert len(read_run(tracks, RUN_ID).records) == 5


def test_a_last_record_that_was_cut_off_or_edited_is_known_to_the_ledger_alone(
    story: Story, tracks: Tracks, store: FakeObjectStore, ledger: Ledger
) -> None:
    story.whole()
    tracks.project(TRACK)
    last = len(story.history.records) - 1
    edit(store, last)
    assert read_run(tracks, RUN_ID).broken is None  # the track has no witness for its own end
    edited = read_run(tracks, RUN_ID, witness=ledger)
    assert edited.broken is not None
    assert (edited.broken.seq, len(edited.records)) == (last, last)
    store.delete(log_key(TRACK, last))
    cut = explain_run(tracks, RUN_ID, ExplainContext(ledger=ledger))
    assert cut.broken is not None
    assert cut.broken.seq == last
    assert "deleted or damaged" in cut.broken.meaning


def test_without_its_first_record_nothing_can_be_explained_and_that_is_said(
    story: Story, tracks: Tracks, store: FakeObjectStore
) -> None:
    story.whole()
    store.delete(log_key(TRACK, 0))
    with pytest.raises(TrackBroken, match="Nothing of gpt-story can be explained: Record 0"):
        explain_run(tracks, RUN_ID)


def test_a_run_that_does_not_exist_is_met_with_the_nearest(story: Story, tracks: Tracks) -> None:
    story.whole()
    with pytest.raises(UnknownRun, match="did you mean gpt-story\\?"):
        explain_run(tracks, "gpt-stroy")


def append_newer(story: Story, store: FakeObjectStore) -> int:
    """Append a record that chains, as a newer version may write it; return its seq."""
    last = story.history.records[-1]
    stored = {"seq": last.seq + 1, "uid": "f" * 32, "at": format_time(last.at), "body": {}}
    data = canonical_json({**stored, "kind": "attempt_paused", "prev_sha256": last.sha256})
    store.put(log_key(TRACK, last.seq + 1), data)
    return last.seq + 1


def test_a_record_of_a_newer_version_is_reported_as_that_and_not_as_a_break(
    story: Story, tracks: Tracks, store: FakeObjectStore
) -> None:
    story.begin()
    story.write_tracks()
    seq = append_newer(story, store)
    result = explain_attempt(tracks, RUN_ID, 1)
    assert result.broken is not None
    assert (result.broken.seq, result.broken.is_newer) == (seq, True)
    text = attempt_text(result)
    assert f"A NEWER VERSION WROTE record {seq}: " in text
    assert "kind 'attempt_paused'" in text
    assert "Install the version of the machine that wrote it" in result.what_to_do
    assert f"what came after record {seq - 1} cannot be read" in text
    for word in ("BREAKS", "breaks", "damage or tampering.", "mend"):
        assert word not in text
    with pytest.raises(
        RecordNewer, match=r"Update this checkout.*`tracks explain gpt-story` shows"
    ):
        tracks.run(RUN_ID)


def test_a_reason_of_a_newer_version_is_reported_as_that(
    story: Story, tracks: Tracks, store: FakeObjectStore
) -> None:
    story.whole()
    last = story.history.records[-1]
    ended = story.history.records[end_of(story, 1)]
    body = {**ended.body, "reason": "bored"}
    draft = Draft(uid="e" * 32, kind=Kind.ATTEMPT_RECLASSIFIED, body=body, attempt_id=1)
    data = seal(draft, seq=last.seq + 1, at=last.at, prev_sha256=last.sha256)
    store.put(log_key(TRACK, last.seq + 1), data)
    broken = read_run(tracks, RUN_ID).broken
    assert broken is not None
    assert broken.is_newer
    assert "bored" in broken.meaning or "AttemptReclassified" in broken.meaning

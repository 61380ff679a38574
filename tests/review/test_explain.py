"""An attempt explained from the record alone: the five questions of a night."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.fakes import FakeObjectStore
from tests.histories import History
from tests.stories import RUN_ID, Story
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.reasons.evidence import Evidence, RankEnd
from tracks_dagster.review.effects.explain.end import rank_ends
from tracks_dagster.review.effects.explain.run import explain_attempt, explain_run
from tracks_dagster.review.explain.explanation import FAILED_FIRST, AttemptExplanation
from tracks_dagster.review.explain.summary import attempt_summary
from tracks_dagster.review.explain.text import (
    LABEL_WIDTH,
    MARGIN,
    attempt_text,
    glossary_text,
    run_text,
)
from tracks_dagster.review.narrate import sentence
from tracks_dagster.track.bodies import CheckpointDecision, ComputeRequest
from tracks_dagster.track.body_json import to_json
from tracks_dagster.track.errors import UnknownRun
from tracks_dagster.track.reasons import TerminationReason
from tracks_dagster.track.records import Kind

WHERE = (
    'tracks sql "select fingerprint, run_id, attempt_id from training_attempts where fingerprint'
)


def test_the_retry_after_an_oom_names_what_changed_and_what_was_counted(
    story: Story, tracks: Tracks
) -> None:
    story.whole()
    third = explain_attempt(tracks, RUN_ID, 3)
    assert [(c.key, c.before, c.after) for c in third.tried.changes] == [
        ("accumulation", 6, 12),
        ("micro_batch", 4, 2),
    ]
    resumed, data = third.facts["resumed"], third.facts["data"]
    assert resumed["step"] == 30
    assert resumed["checkpoint"] == to_json(story.history.state.checkpoints[2].ref)
    assert (data["cursor_from"], data["cursor_to"]) == (720, 960)  # 30 and 40 steps of 24
    assert [made.step for made in third.checkpoints] == [40]
    assert third.next.what == "finished"


def test_the_text_begins_with_the_reason_and_names_what_triggered_a_save(
    story: Story, tracks: Tracks
) -> None:
    """What else stands in it is asked of every incident: tests/incidents/test_smell.py."""
    story.whole()
    text = attempt_text(explain_attempt(tracks, RUN_ID, 2))
    assert text.startswith("gpt-story/a02: gpu_oom")
    assert "step 30: committed (interval)" in text


@pytest.mark.parametrize("make", [attempt_text, lambda of: attempt_summary(of, width=80)])
def test_every_label_has_a_gap_between_it_and_its_line(
    story: Story, tracks: Tracks, make: Callable[[AttemptExplanation], str]
) -> None:
    story.whole()
    lines = make(explain_attempt(tracks, RUN_ID, 2)).splitlines()
    labelled = [line for line in lines if re.match(r"  [a-z]", line)]
    assert "what it tried" in {line.strip().split("  ")[0] for line in labelled}
    for line in labelled:
        assert line[LABEL_WIDTH : LABEL_WIDTH + 2] == "  ", line


def test_what_was_asked_of_a_cluster_and_what_its_queue_gave_is_reported(
    store: FakeObjectStore, tracks: Tracks
) -> None:
    history = History("r-1").declare(compute=ComputeRequest(launcher="kubernetes", ranks=2))
    asked, granted = {"queue": "urgent", "workload_priority": "high"}, {"cluster_queue": "tracks"}
    history.open().place(asked=asked, granted=granted).write_to(store)
    found = explain_attempt(tracks, "r-1", 1)
    assert found.facts["where"]["asked_of_cluster"] == asked
    assert found.facts["where"]["granted_by_cluster"] == granted
    words = (
        "asked of the cluster: queue urgent, workload_priority high; granted: cluster_queue tracks"
    )
    assert words in re.sub(r"\s+", " ", attempt_text(found))


def test_only_of_a_failure_the_same_elsewhere_is_offered(story: Story, tracks: Tracks) -> None:
    story.whole()
    result = {number: attempt_text(explain_attempt(tracks, RUN_ID, number)) for number in (2, 3)}
    before, failed, completed = (a.fingerprint for a in story.history.state.attempts)
    assert f"the same failure, elsewhere: `{WHERE} = '{failed}'" in result[2]
    assert f"the failure before it, elsewhere: `{WHERE} = '{before}'" in result[2]
    assert f"the failure before it, elsewhere: `{WHERE} = '{failed}'" in result[3]
    assert str(completed) not in result[3]


def test_a_fallback_names_object_hashes_checkpoint_and_quarantine_record_in_one_place(
    store: FakeObjectStore, tracks: Tracks
) -> None:
    history = History("r-1").declare().open().place().restore().commit(10).commit(20)
    older, newer = (checkpoint.ref for checkpoint in history.state.checkpoints)
    problem = "runs/r-1/chunks/ab has blake3 cd; expected ab."
    history.end("preempted", last_step=23).open().place()
    history.add(
        Kind.CHECKPOINT_QUARANTINED,
        CheckpointDecision(
            manifest_sha256=newer.manifest_sha256, by="attempt 2, at restore", why=problem
        ),
        attempt_id=2,
    )
    seq = history.records[-1].seq
    result = f"Step 20 of attempt 1: {problem} — resumed from step 10 of attempt 1 instead."
    history.restore(older, fallback_why=result)
    history.commit(20).decide_checkpoint(
        Kind.CHECKPOINT_QUARANTINED, history.state.checkpoints[-1].ref
    )
    history.write_to(store)
    began = attempt_text(explain_attempt(tracks, "r-1", 2)).partition("  began")[2]
    began = began.partition("  checkpoints")[0]
    assert f"a fallback: {result}" in began
    quarantine = f"record {seq}: checkpoint {newer.manifest_sha256[:12]} quarantined by attempt 2"
    assert quarantine in began
    assert began.count("record ") == 1  # a later quarantine is not why it fell back


def test_a_refused_run_shows_the_traceback_and_what_to_do(story: Story, tracks: Tracks) -> None:
    story.refused()
    result = explain_attempt(tracks, RUN_ID, 1)
    assert result.ended is not None
    assert result.ended.traceback_tail[-1] == "RuntimeError: code_error as the story wants it"
    assert result.next.what == "refused"
    assert [record.seq for record in result.next.counted] == [1]
    assert result.what_to_do == "Look at the traceback, then `tracks retry`."


def test_an_end_that_the_supervisor_recorded_names_it_and_not_a_bare_id(
    story: Story, tracks: Tracks
) -> None:
    story.whole()
    result = explain_attempt(tracks, RUN_ID, 2)
    [dagster_run_id] = result.facts["where"]["dagster_run_ids"]
    assert result.ended is not None
    by_it = replace(result, ended=replace(result.ended, closed_by=dagster_run_id))
    assert f"closed by the supervisor of Dagster run {dagster_run_id}" in attempt_text(by_it)
    by_sensor = replace(result, ended=replace(result.ended, closed_by="watch_attempts"))
    assert "closed by watch_attempts" in attempt_text(by_sensor)


def test_an_early_attempt_of_a_run_that_was_refused_later_says_what_to_do(
    story: Story, tracks: Tracks
) -> None:
    story.attempt("preempted", last_step=12, commits=(10,))
    story.attempt("code_error", last_step=15, commits=())
    story.history.refuse()
    story.write_tracks()
    result = explain_attempt(tracks, RUN_ID, 1).what_to_do
    assert "`tracks explain gpt-story/a02` shows how. But attempt 2 ended as code_error" in result
    assert result.endswith("Look at the traceback, then `tracks retry`.")


def test_what_the_record_does_not_hold_is_listed_as_missing(
    story: Story, tracks: Tracks, store: FakeObjectStore
) -> None:
    story.whole()
    [journal] = [key for key in store.objects if "attempts/1/" in key and "journal" in key]
    [evidence] = [key for key in store.objects if "attempts/1/evidence" in key]
    store.delete(journal)
    store.delete(evidence)
    missing = explain_attempt(tracks, RUN_ID, 1).missing
    assert any("journal holds no step" in line for line in missing)
    assert any(evidence in line for line in missing)


def test_evidence_that_was_changed_is_not_believed(
    story: Story, tracks: Tracks, store: FakeObjectStore
) -> None:
    story.whole()
    [evidence] = [key for key in store.objects if "attempts/1/evidence" in key]
    store.put(evidence, store.objects[evidence].replace(b"preempted", b"completed"))
    result = explain_attempt(tracks, RUN_ID, 1)
    assert result.ended is not None
    assert result.ended.traceback_tail == ()
    assert any("; expected sha256" in line for line in result.missing)


def test_an_open_attempt_that_nobody_claimed_says_so(story: Story, tracks: Tracks) -> None:
    story.history.open()
    story.write_tracks()
    result = explain_attempt(tracks, RUN_ID, 1)
    assert result.ended is None
    assert result.missing[0] == "No Dagster run has claimed it."
    assert "gpt-story/a01: open" in attempt_text(result)


def test_words_of_people_stand_with_the_attempt_they_were_said_in(
    story: Story, tracks: Tracks
) -> None:
    story.attempt("preempted", last_step=3, commits=())
    story.history.note("the rack is being rewired")
    story.begin()
    story.history.stop("drain")
    story.write_tracks()
    run = explain_run(tracks, RUN_ID)
    assert [w.text for w in run.attempts[0].words] == ["the rack is being rewired"]
    assert [w.text for w in run.attempts[1].words] == ["drain: enough"]
    assert "the rack is being rewired" in run_text(run)


def test_an_attempt_that_does_not_exist_is_named(story: Story, tracks: Tracks) -> None:
    story.whole()
    with pytest.raises(UnknownRun, match="no attempt 4; it has 3, the newest is gpt-story/a03"):
        explain_attempt(tracks, RUN_ID, 4)


def test_with_a_width_lines_hang_below_themselves_and_commands_stay_whole(
    story: Story, tracks: Tracks
) -> None:
    story.whole()
    explained = explain_attempt(tracks, RUN_ID, 2)
    whole = attempt_text(explained)
    for width in (80, 120):
        text = attempt_text(explained, width=width)
        assert " ".join(text.split()) == " ".join(whole.split())  # not a word is lost
        for command in re.findall(r"`[^`]*`", whole):
            assert command in text
        for line in text.splitlines():
            rest = re.sub(r"`[^`]*`", "`", line).strip()
            assert len(line) <= width or "`" in line or " " not in rest.split(": ")[-1], line
        [hangs] = re.findall(r"  what follows  .*\n(.*)\n", text)
        assert hangs.startswith(" " * (LABEL_WIDTH + len(MARGIN)))
        words = glossary_text(whole, width=width).splitlines()
        assert all(each.startswith(" " * (LABEL_WIDTH + len(MARGIN))) for each in words[1:])


def test_of_many_notes_the_newest_are_reported_and_the_others_counted(
    story: Story, tracks: Tracks
) -> None:
    story.attempt("preempted", last_step=3, commits=())
    for number in range(1000):
        story.history.note(f"note number {number}")
    story.write_tracks()
    explained = explain_attempt(tracks, RUN_ID, 1)
    assert len(explained.words) == 1000  # --json has all
    text = attempt_text(explained)
    assert "note number 999" in text
    assert "note number 979" not in text
    assert "980 older notes are left out: `tracks search WORD --run gpt-story`" in text


def test_an_alert_of_the_run_is_reported_with_the_notes(story: Story, tracks: Tracks) -> None:
    story.attempt("preempted", last_step=3, commits=())
    story.history.alert("10 retries in a row")
    story.write_tracks()
    assert "alert slow-saves: 10 retries in a row" in attempt_text(
        explain_attempt(tracks, RUN_ID, 1)
    )


# Each record in a sentence.


def test_every_record_of_a_whole_run_has_a_sentence(story: Story) -> None:
    story.whole()
    result = [sentence(record) for record in story.history.records]
    assert all(result)
    assert result[0].startswith("run declared: gpt, 40 steps on 1 rank;")
    assert "attempt 1 ended after step 23: preempted. The machine was taken" in "\n".join(result)
    assert (
        "attempt 3 opened by tests, from step 30, micro_batch 4 → 2, accumulation 6 → 12" in result
    )
    assert "checkpoint committed at step 40 (interval)" in result
    assert result[-1] == "step 40 promoted to best by tests: The loss is low enough."


@pytest.mark.parametrize(
    ("history", "expected"),
    [
        (History().declare().stop("drain"), "drain requested by ann: enough"),
        (History().declare().alert("slow"), "alert: slow"),
        (History().declare().note("hm"), "note by ann: hm"),
        (History().declare().waive_eval(), "eval heldout-loss waived by ann: not needed"),
        (
            History().declare().open().end("unknown").reclassify(1, "preempted"),
            "attempt 1 reclassified: preempted; The node's log came in late.",
        ),
    ],
)
def test_what_happens_between_attempts_is_reported_too(history: History, expected: str) -> None:
    assert sentence(history.records[-1]) == expected


def test_a_checkpoints_fate_is_reported_with_its_reason() -> None:
    history = History().declare().open().place().restore().commit(10)
    ref = history.state.checkpoints[0].ref
    history.decide_checkpoint(Kind.CHECKPOINT_QUARANTINED, ref)
    digest = ref.manifest_sha256[:12]
    expected = f"checkpoint {digest} quarantined by tests: for the test"
    assert sentence(history.records[-1]) == expected


def test_the_cap_of_a_run_is_part_of_what_it_cost(tracks: Tracks, store: FakeObjectStore) -> None:
    history = History("capped").declare(max_cost=5.0).open().place().restore().commit(10)
    history.write_to(store)
    text = run_text(explain_run(tracks, "capped"))
    assert "at most 5.00 by its max cost" in text
    assert "at most" not in run_text(replace(explain_run(tracks, "capped"), cap=None))


def test_a_rank_that_survived_another_one_is_not_shown_as_the_first_to_fail() -> None:
    lost = "RuntimeError: Connection closed by peer [10.0.0.2]:4021"
    survivor = RankEnd(rank=0, exit_code=1, log_tail=lost)
    ends = (survivor, RankEnd(rank=1))
    evidence = Evidence(run_id="r", attempt_id=1, launch_id=None, ranks=ends)
    reason = TerminationReason.RANK_LOST_SECONDARY
    assert not any(FAILED_FIRST in line for line in rank_ends(evidence, reason))
    crashed = (survivor, RankEnd(rank=1, exit_code=1, log_tail="ValueError: mine"))
    (first, _) = rank_ends(replace(evidence, ranks=crashed), TerminationReason.CODE_ERROR)
    assert first.startswith(f"rank 1, {FAILED_FIRST},")

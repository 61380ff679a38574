"""The short answer of `tracks explain`: one screen, whatever happened, and true in every state."""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import ceil
from random import Random

import pytest

from tests.fakes import FakeObjectStore
from tests.incidents.parts import parts_of
from tests.random_histories import random_run
from tests.stories import RUN_ID, Story
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.review.effects.explain.run import ExplainContext, explain_attempt, explain_run
from tracks_dagster.review.explain.summary import LINES_MAX, attempt_summary, run_summary
from tracks_dagster.track.bodies import RetryRefused
from tracks_dagster.track.names import run_track
from tracks_dagster.track.records import Kind
from tracks_dagster.track.track import log_key

SEEDS = 20
WIDTHS = (60, 80, 100)


def of_attempt(tracks: Tracks, attempt_id: int, around: ExplainContext | None = None) -> str:
    explained = explain_attempt(tracks, RUN_ID, attempt_id, around or ExplainContext())
    return attempt_summary(explained, width=100)


def of_run(tracks: Tracks) -> str:
    return run_summary(explain_run(tracks, RUN_ID, attempts_max=1), width=100)


def summaries(tracks: Tracks, run_id: str) -> Iterator[tuple[int, str]]:
    """Yield the summaries of a run and of each of its attempts, at several widths."""
    run = explain_run(tracks, run_id, attempts_max=1)
    for width in WIDTHS:
        yield width, run_summary(run, width=width)
    for attempt_id in range(1, len(tracks.run(run_id).attempts) + 1):
        explained = explain_attempt(tracks, run_id, attempt_id)
        for width in WIDTHS:
            yield width, attempt_summary(explained, width=width)


def rows(text: str, width: int) -> int:
    """Return how many rows of a terminal `text` fills: a command that is longer than one fills more."""
    return sum(max(1, ceil(len(line) / width)) for line in text.splitlines())


def test_an_attempt_that_failed_has_its_answers_in_order(story: Story, tracks: Tracks) -> None:
    story.whole()
    text = of_attempt(tracks, 2)
    assert text.startswith("gpt-story/a02: gpu_oom. A device ran out of memory.\n")
    parts = parts_of(text)
    assert list(parts)[:5] == [
        "why it ended",
        "what follows",
        "what to do",
        "what it cost",
        "checkpoint",
    ]
    assert parts["what it cost"][0] == "10 steps kept, 0 lost; 35 s, 35 device seconds (cpu)"
    assert parts["history"][1].startswith("a02 gpu_oom: steps 20 to 30")


def test_a_finished_run_says_what_came_of_it_and_what_all_of_it_cost(
    story: Story, tracks: Tracks
) -> None:
    story.whole()
    text = of_run(tracks)
    assert text.startswith("gpt-story: succeeded. All steps are done.\n")
    parts = parts_of(text)
    assert parts["promotion"] == ["step 40 promoted to best by tests: The loss is low enough."]
    assert parts["what it cost"][0].startswith("40 steps kept, 3 lost; 2 min 34 s, 112 device")
    assert [line[:3] for line in parts["history"]] == ["a01", "a02", "a03"]


def test_an_open_attempt_says_how_far_it_is_and_nothing_of_an_end(
    story: Story, tracks: Tracks
) -> None:
    story.begin()
    story.ship(range(1, 15))
    story.commit(10)
    story.write_tracks()
    text = of_attempt(
        tracks, 1, ExplainContext(waits=lambda state: "waiting: sensor retry_oom is off")
    )
    assert text.startswith("gpt-story/a01: open.\nwaiting: sensor retry_oom is off\n")
    parts = parts_of(text)
    assert parts["how far it is"][0].startswith("It is still running: step 14 of 40")
    assert parts["what to do"][0].startswith("Nothing yet: it is open;")
    assert not {"why it ended", "what follows"} & set(parts)


def test_a_run_without_an_attempt_names_what_shows_what_it_waits_for(
    story: Story, tracks: Tracks
) -> None:
    story.write_tracks()
    text = of_run(tracks)
    assert text.startswith("gpt-story: running. Declared; its first attempt is about to be opened.")
    assert "`tracks status gpt-story`" in parts_of(text)["what to do"][0]


def test_a_decision_that_is_due_is_undecided_and_asks_nothing_of_a_person(
    story: Story, tracks: Tracks
) -> None:
    story.attempt("preempted", last_step=23, commits=(20,))
    story.write_tracks()
    for text in (of_attempt(tracks, 1), of_run(tracks)):
        parts = parts_of(text)
        assert parts["what follows"][0].startswith("undecided: ")
        assert parts["what to do"][0].startswith("Nothing yet; `tracks status gpt-story`")


def test_an_end_that_a_person_asked_for_waits_for_a_person_and_says_so_once(
    story: Story, tracks: Tracks
) -> None:
    story.attempt("user_cancelled", last_step=23, commits=(20,))
    story.write_tracks()
    text = of_run(tracks)
    assert text.startswith("gpt-story: waiting, attempt 1 ended as user_cancelled: a person ended")
    assert parts_of(text)["what follows"] == ["undecided: a person has to decide"]
    assert text.count("`tracks retry gpt-story") == 1


def test_a_refusal_has_its_reason_and_what_to_do(story: Story, tracks: Tracks) -> None:
    story.refused()
    parts = parts_of(of_run(tracks))
    assert parts["what follows"] == ["refused by tests: The budget is used up."]
    assert parts["what to do"] == ["Look at the traceback, then `tracks retry`."]
    assert "Its journal holds no step" in parts["missing"][0]


def test_where_the_record_breaks_nothing_behind_it_is_said_to_be_open(
    story: Story, tracks: Tracks, store: FakeObjectStore
) -> None:
    story.whole()
    seq = story.history.state.attempts[1].ended_seq or 0
    store.delete(log_key(run_track(RUN_ID), seq))
    attempt, run = of_attempt(tracks, 2), of_run(tracks)
    assert attempt.startswith("gpt-story/a02: end not known.")
    assert run.startswith("gpt-story: not known, running before the break.")
    for text in (attempt, run):
        parts = parts_of(text)
        assert f"THE RECORD BREAKS at record {seq}" in text
        assert parts["what follows"] == [
            f"not known: what came after record {seq - 1} cannot be read"
        ]
        assert parts["what to do"][0].startswith("First mend the record: Restore the object")
        assert "a02 end not known: steps 20 to 30" in text
        assert "open" not in text


def test_a_run_of_which_only_the_declaration_holds_says_how_to_mend_it(
    story: Story, tracks: Tracks, store: FakeObjectStore
) -> None:
    story.whole()
    store.delete(log_key(run_track(RUN_ID), 1))
    text = of_run(tracks)
    assert text.startswith("gpt-story: not known, running before the break.")
    assert parts_of(text)["what to do"][0].startswith("Restore the object")


def test_evidence_that_is_gone_is_not_said_to_speak_for_the_reason(
    story: Story, tracks: Tracks, store: FakeObjectStore
) -> None:
    story.whole()
    assert "nothing against it" in of_attempt(tracks, 1)
    [evidence] = [key for key in store.objects if "attempts/1/evidence" in key]
    store.delete(evidence)
    text = of_attempt(tracks, 1)
    assert "nothing against it" not in text
    assert "what speaks against it is not known: the stored evidence is gone" in text
    assert "is missing" in " ".join(" ".join(parts_of(text)["missing"]).split())


def test_of_many_attempts_the_history_is_that_around_the_one_that_is_asked_about(
    story: Story, tracks: Tracks
) -> None:
    for number in range(1, 60):
        reason = "gpu_oom" if number % 3 == 0 else "preempted"
        story.attempt(reason, last_step=number, commits=(number,))
    story.write_tracks()
    early = parts_of(of_attempt(tracks, 3))["history"]
    assert [line.partition(" ")[0] for line in early] == ["a01", "a03", "a04", "…", "a58"]
    newest = parts_of(of_run(tracks))["history"]
    assert newest[0] == "50 older attempts, then"
    assert newest[-1].startswith("a58 to a59")


def test_words_without_an_end_do_not_push_the_answer_off_the_screen(
    story: Story, tracks: Tracks
) -> None:
    story.attempt("code_error", last_step=3, commits=())
    story.history.note("the rack is being rewired " * 400)
    story.history.note("x" * 5000)
    refused = RetryRefused(
        reason="code_error",
        limit="reason",
        decision="The budget is used up. " * 60,
        counted_seqs=(1,),
        what_to_do=f"It ended with: {'y' * 3000}. `tracks retry gpt-story` goes on.",
        decided_by="tests",
    )
    story.history.add(Kind.RETRY_REFUSED, refused, attempt_id=1)
    story.write_tracks()
    for width, text in summaries(tracks, RUN_ID):
        assert rows(text, width) <= LINES_MAX
        assert max(len(line) for line in text.splitlines()) <= 200
        assert "`tracks retry gpt-story` goes on." in " ".join(text.split())
        assert " steps kept, " in text


@pytest.mark.parametrize("seed", range(SEEDS))
def test_every_state_of_a_run_fits_a_screen_and_says_what_to_do(
    seed: int, store: FakeObjectStore, tracks: Tracks
) -> None:
    history = random_run(Random(seed), RUN_ID)
    history.write_to(store)
    for width, text in summaries(tracks, RUN_ID):
        assert rows(text, width) <= LINES_MAX, text
        assert text.startswith(RUN_ID)
        labels = list(parts_of(text))
        assert "what to do" in labels
        assert labels[-1] == "more"
        assert all(len(line) <= width or "`" in line for line in text.splitlines())
        for command in re.findall(r"`[^`]*`?", text):
            assert command.endswith("`"), f"seed {seed}: cut in two: {command}"


def test_a_resume_that_was_not_exact_is_reported_above_all_else(
    story: Story, tracks: Tracks
) -> None:
    story.attempt("preempted", last_step=23, commits=(10, 20))
    story.attempt("gpu_oom", last_step=30, commits=(30,), differs_from=22)
    story.attempt("code_error", last_step=33, commits=())
    story.write_tracks()
    words = "continuity broken: of 3 steps compared, step 22 is the first with another loss"
    assert of_attempt(tracks, 2).splitlines()[1].startswith(words)
    assert "continuity" not in of_attempt(tracks, 3)
    assert f"attempt 2: {words}" in of_run(tracks)


def test_once_the_record_has_it_it_is_reported_once(story: Story, tracks: Tracks) -> None:
    story.attempt("preempted", last_step=23, commits=(10, 20))
    story.begin()
    story.ship(range(21, 41), differs_from=22)
    story.commit(40)
    story.history.end("completed", last_step=40, differs_from_step=22).finish()
    story.write_tracks()
    assert of_run(tracks).count("not exact") == 1
    assert "attempt 2 differs from step 22 on" in " ".join(of_run(tracks).split())

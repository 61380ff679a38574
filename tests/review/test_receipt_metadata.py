"""A receipt as the UI shows it: grouped, in order, with what to look up next."""

from __future__ import annotations

from itertools import groupby

import pytest

from tests.fakes import FakeObjectStore, Fault
from tests.stories import RUN_ID, Story
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.review.effects.metadata import Show, attempt_metadata, ending_tags, runs_address
from tracks_dagster.review.effects.picture import SMALL_CHARACTERS_MAX
from tracks_dagster.track import names
from tracks_dagster.track.errors import UnknownRun
from tracks_dagster.track.names import run_track
from tracks_dagster.track.reasons import TerminationReason
from tracks_dagster.track.records import Kind
from tracks_dagster.track.track import log_key

GROUPS = [
    "ended",
    "lights",
    "curve",
    "look_up",
    "cost",
    "steps",
    "decided",
    "data",
    "where",
    "config",
]


def test_why_it_ended_comes_first_and_groups_stay_together(story: Story, tracks: Tracks) -> None:
    story.whole()
    result = attempt_metadata(tracks, RUN_ID, 2)
    groups = [group for group, _ in groupby(name.split("/")[0] for name in result if "/" in name)]
    assert groups == GROUPS
    assert list(result)[:3] == ["attempt", "training_run_id", "ended/termination_reason"]
    assert result["ended/termination_reason"] == "gpu_oom"
    assert result["ended/kind"].startswith("failure: ")


def test_the_lights_are_those_of_its_last_line(story: Story, tracks: Tracks) -> None:
    story.attempt("hang", last_step=100, commits=(100,))
    story.write_tracks()
    result = attempt_metadata(tracks, RUN_ID, 1)
    picture = "![healthy green, improving green, resources green](data:image/svg+xml;base64,"
    assert result["lights/at_its_end"].startswith(picture)
    assert len(result["lights/at_its_end"]) < SMALL_CHARACTERS_MAX
    assert result["lights/improving"].startswith("green: The loss")
    story.refused()
    assert not any(name.startswith("lights/") for name in attempt_metadata(tracks, RUN_ID, 2))


def test_what_it_cost_and_what_no_checkpoint_holds_is_reported_with_units(
    story: Story, tracks: Tracks
) -> None:
    story.whole()
    result = attempt_metadata(tracks, RUN_ID, 1)
    assert (
        result["cost/steps_after_the_last_commit"] == 3
    )  # of 23 steps the commit of 20 holds all but 3
    assert result["cost/device_seconds"] > 0
    assert (result["steps/resumed_from"], result["steps/last_committed_step"]) == ("afresh", 20)


def test_the_commands_that_go_on_from_here_are_ready_to_copy(story: Story, tracks: Tracks) -> None:
    story.whole()
    result = attempt_metadata(tracks, RUN_ID, 2)
    assert result["look_up/everything"] == f"tracks explain {RUN_ID}/a02 --full"
    assert result["look_up/where_it_comes_from"] == f"tracks lineage attempt:{RUN_ID}/a02"
    assert result["look_up/what_rests_on_it"] == f"tracks blast checkpoint:{RUN_ID}@30"
    assert result["look_up/report"] == f"tracks report {RUN_ID}"
    written = attempt_metadata(tracks, RUN_ID, 2, report="/reports/story.html")
    assert written["look_up/report"] == "/reports/story.html"


def test_an_attempt_that_committed_nothing_is_looked_up_by_itself(
    story: Story, tracks: Tracks
) -> None:
    story.refused()
    result = attempt_metadata(tracks, RUN_ID, 1)
    assert result["look_up/what_rests_on_it"] == f"tracks blast attempt:{RUN_ID}/a01"
    assert "steps/last_committed_step" not in result


def test_lists_are_markdown_and_pages_are_links_of_the_ui(story: Story, tracks: Tracks) -> None:
    story.whole()
    show = Show(
        markdown=lambda text: ("markdown", text),
        link=lambda text: ("link", text),
        dagster_run=lambda text: ("dagster run", text),
        address="http://ui:3000/",
        board="http://127.0.0.1:3001",
    )
    result = attempt_metadata(tracks, RUN_ID, 3, show)
    kind, changes = result["decided/changes"]
    assert kind == "markdown"
    assert "| micro\\_batch | 4 | 2 | half the activations |" in changes
    assert result["decided/changes_in_short"] == "micro_batch 4 → 2, accumulation 6 → 12"
    assert result["look_up/dagster_run"] == ("dagster run", "dagster-3")
    assert result["look_up/live"] == ("link", f"http://127.0.0.1:3001/runs/{RUN_ID}")
    kind, address = result["look_up/all_completed"]
    assert kind == "link"
    assert address.startswith("http://ui:3000/runs?q[0]=tag%3Atracks%2Ftermination_reason")
    kind, evidence = attempt_metadata(tracks, RUN_ID, 2, show)["ended/evidence"]
    assert evidence == "- gpu\\_oom as the story wants it"


def test_digests_in_tables_are_short_so_that_the_page_does_not_grow_too_wide(
    story: Story, tracks: Tracks
) -> None:
    story.whole()
    table = attempt_metadata(tracks, RUN_ID, 1)["where/environment"]
    assert max(len(word) for word in table.split()) < 40


def test_an_open_attempt_says_so_and_what_is_known(story: Story, tracks: Tracks) -> None:
    story.begin()
    story.write_tracks()
    result = attempt_metadata(tracks, RUN_ID, 1)
    assert result["ended/how"] == "It has not ended."
    assert result["where/nodes"] == "node-1"
    assert not any(name.startswith("cost/") for name in result)


def test_where_the_track_cannot_be_read_it_says_so_and_how_to_look_again(
    story: Story, tracks: Tracks, store: FakeObjectStore
) -> None:
    story.whole()
    store.fail("get", 1, Fault.LOST_BEFORE)
    result = attempt_metadata(tracks, RUN_ID, 2)
    assert result["receipt"].startswith("It could not be read when the attempt ended: ")
    assert result["look_up/everything"] == f"tracks explain {RUN_ID}/a02 --full"
    assert attempt_metadata(tracks, RUN_ID, 2)["ended/termination_reason"] == "gpu_oom"


@pytest.mark.parametrize("lost", ["the first", "of its opening", "of its end"])
def test_what_lies_behind_a_lost_record_could_not_be_read(
    story: Story, tracks: Tracks, store: FakeObjectStore, lost: str
) -> None:
    story.whole()
    records = story.history.records
    ours = [r.seq for r in records if r.attempt_id == 2]
    ended = next(r.seq for r in records if r.attempt_id == 2 and r.kind is Kind.ATTEMPT_ENDED)
    seq = {"the first": 0, "of its opening": ours[0], "of its end": ended}[lost]
    store.delete(log_key(run_track(RUN_ID), seq))
    result = attempt_metadata(tracks, RUN_ID, 2)
    assert result["receipt"].startswith("It could not be read when the attempt ended: ")
    assert log_key(run_track(RUN_ID), seq) in result["receipt"]


def test_an_attempt_that_never_was_is_refused(story: Story, tracks: Tracks) -> None:
    story.whole()
    for run_id in (RUN_ID, "nobody"):
        with pytest.raises(UnknownRun):
            attempt_metadata(tracks, run_id, 9)


def test_tags_tell_failures_from_interruptions() -> None:
    assert ending_tags(TerminationReason.PREEMPTED) == {
        names.TAG_REASON: "preempted",
        names.TAG_ENDING: "interruption",
    }
    assert runs_address("tracks/ending", "failure") == "/runs?q[0]=tag%3Atracks%2Fending%3Dfailure"

"""What `tracks run` prints last, field by field."""

from __future__ import annotations

import hashlib

from tests.fakes import FakeObjectStore
from tests.stories import RUN_ID, Story
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.review.effects.explain.run import explain_attempt
from tracks_dagster.review.effects.outcome import read_outcome
from tracks_dagster.review.explain.text import attempt_text
from tracks_dagster.track.errors import StoreUnavailable
from tracks_dagster.track.ports import ObjectStore
from tracks_dagster.track.records import Json, format_time
from tracks_dagster.track.states.checkpoints import CheckpointRef
from tracks_dagster.training.saves.manifest import weights_sha256


def digest(store: ObjectStore, ref: CheckpointRef) -> str:
    return f"weights of step {ref.step}"


def outcome_of(tracks: Tracks) -> dict[str, Json]:
    return read_outcome(tracks, RUN_ID, digest, by="ann")


def test_the_outcome_of_a_whole_run_has_exactly_these_fields(story: Story, tracks: Tracks) -> None:
    state = story.whole().history.state
    final = state.checkpoints[-1].ref
    samples = "".join(f"{step:064x}" for step in range(1, 41)).encode()
    assert outcome_of(tracks) == {
        "run_id": RUN_ID,
        "state": "succeeded",
        "attempts": [
            {
                "attempt_id": 1,
                "termination_reason": "preempted",
                "resumed_from_step": None,
                "last_step": 23,
                "kept_steps": 20,  # up to the checkpoint that attempt 2 resumed from
                "lost_steps": 3,  # 21, 22, 23
                "gpu_seconds": state.attempts[0].ended.device_seconds,
                "continuity": None,
            },
            {
                "attempt_id": 2,
                "termination_reason": "gpu_oom",
                "resumed_from_step": 20,
                "last_step": 30,
                "kept_steps": 10,
                "lost_steps": 0,
                "gpu_seconds": state.attempts[1].ended.device_seconds,
                "continuity": {
                    "steps_compared": 3,
                    "agree": True,
                    "first_difference": None,
                    "reason": None,
                    "other_code": None,
                },
            },
            {
                "attempt_id": 3,
                "termination_reason": "completed",
                "resumed_from_step": 30,
                "last_step": 40,
                "kept_steps": 10,
                "lost_steps": 0,
                "gpu_seconds": state.attempts[2].ended.device_seconds,
                "continuity": {
                    "steps_compared": 0,
                    "agree": None,
                    "first_difference": None,
                    "reason": "no step had been run past step 30",
                    "other_code": None,
                },
            },
        ],
        "final": {
            "step": 40,
            "weights_sha256": "weights of step 40",
            "manifest_sha256": final.manifest_sha256,
            "samples_sha256": hashlib.sha256(samples).hexdigest(),
            "problem": None,
        },
        "evals": [
            {
                "checkpoint_step": 40,
                "manifest_sha256": final.manifest_sha256,
                "suite": "heldout-loss",
                "snapshot_id": state.evals[0].opened.snapshot.snapshot_id,
                "metrics": {"loss": 3.25},
            }
        ],
        "promotion": {
            "alias": "best",
            "manifest_sha256": final.manifest_sha256,
            "decided_by": "tests",
            "at": format_time(state.promotions[0].at),
        },
    }


def test_a_run_that_never_saved_has_no_final_checkpoint(story: Story, tracks: Tracks) -> None:
    story.refused()
    found = outcome_of(tracks)
    assert (found["state"], found["final"], found["promotion"]) == ("refused", None, None)
    assert found["attempts"][0]["last_step"] is None


def test_an_open_attempt_counts_the_steps_that_its_journal_shows(
    story: Story, tracks: Tracks
) -> None:
    story.begin()
    story.ship(range(1, 14))
    story.commit(10)
    story.write_tracks()
    [attempt] = outcome_of(tracks)["attempts"]
    assert (attempt["last_step"], attempt["kept_steps"], attempt["lost_steps"]) == (13, 13, 0)
    assert (attempt["termination_reason"], attempt["gpu_seconds"]) == (None, None)
    assert outcome_of(tracks)["final"]["step"] == 10  # what it would resume from


def test_without_the_journal_of_a_kept_step_the_samples_are_not_known(
    story: Story, tracks: Tracks, store: FakeObjectStore
) -> None:
    story.whole()
    [journal] = [key for key in store.objects if "attempts/2/" in key and "journal" in key]
    store.delete(journal)
    assert outcome_of(tracks)["final"]["samples_sha256"] is None


def flip(store: FakeObjectStore, step: int) -> None:
    """Change one bit of the chunk of a step's checkpoint."""
    [chunk] = [key for key in store.objects if f"step-{step}/chunks/" in key]
    data = store.objects[chunk]
    store.put(chunk, bytes([data[0] ^ 1]) + data[1:])


def test_a_final_checkpoint_that_is_corrupt_is_quarantined_and_the_one_before_it_named(
    story: Story, tracks: Tracks, store: FakeObjectStore
) -> None:
    story.whole()
    flip(store, 40)
    found = read_outcome(tracks, RUN_ID, weights_sha256, by="ann")
    assert [each["attempt_id"] for each in found["attempts"]] == [1, 2, 3]
    final, quarantined = found["final"], tracks.run(RUN_ID).checkpoints[-1]
    assert quarantined.quarantined
    assert (final["step"], final["weights_sha256"]) == (40, None)
    assert "expected" in final["problem"]  # the object, what was found and what was not
    assert f"Quarantined by record {quarantined.quarantined_seq}." in final["problem"]
    assert "A resume falls back to step 30 of attempt 2" in final["problem"]
    assert f"`tracks run --from {RUN_ID}@30 " in final["problem"]
    again = read_outcome(tracks, RUN_ID, weights_sha256, by="ann")["final"]["problem"]
    assert "Quarantined by an earlier record." in again


def test_an_explanation_never_rests_on_a_checkpoint_that_was_read_as_corrupt(
    story: Story, tracks: Tracks, store: FakeObjectStore
) -> None:
    story.begin()
    story.ship(range(1, 24))
    story.commit(10)
    story.commit(20)
    story.write_tracks()
    flip(store, 20)
    problem = read_outcome(tracks, RUN_ID, weights_sha256, by="ann")["final"]["problem"]
    assert f"`tracks run --run-id {RUN_ID}`" in problem
    text = attempt_text(explain_attempt(tracks, RUN_ID, 1))
    assert "step 20: quarantined" in text
    assert "resumes from: step 10 of attempt 1" in text


def test_a_finished_run_whose_final_checkpoint_is_corrupt_says_so_in_its_explanation(
    story: Story, tracks: Tracks, store: FakeObjectStore
) -> None:
    story.whole()
    flip(store, 40)
    read_outcome(tracks, RUN_ID, weights_sha256, by="ann")
    text = attempt_text(explain_attempt(tracks, RUN_ID, 3))
    assert "final checkpoint: step 40 of attempt 3" in text
    assert "quarantined; the newest that may be used is step 30 of attempt 2" in text
    assert "whatever comes next" not in text


def test_a_store_that_is_away_at_the_end_leaves_the_table_and_quarantines_nothing(
    story: Story, tracks: Tracks
) -> None:
    def away(store: ObjectStore, ref: CheckpointRef) -> str:
        raise StoreUnavailable("The bucket cannot be reached.")

    story.whole()
    found = read_outcome(tracks, RUN_ID, away, by="ann")
    assert len(found["attempts"]) == 3
    assert found["final"]["weights_sha256"] is None
    assert "The bucket cannot be reached." in found["final"]["problem"]
    assert (
        f"`tracks checkpoints verify {RUN_ID} --step 40 --attempt 3`" in found["final"]["problem"]
    )
    assert not tracks.run(RUN_ID).checkpoints[-1].quarantined

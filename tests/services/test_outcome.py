"""What `tracks run` prints last, field by field."""

from __future__ import annotations

import hashlib

from tests.fakes import FakeObjectStore
from tests.stories import RUN_ID, Story
from tracks_dagster.core.checkpoints import CheckpointRef
from tracks_dagster.core.ports import ObjectStore
from tracks_dagster.core.records import Json, format_time
from tracks_dagster.services.outcome import outcome
from tracks_dagster.services.receipts import read_receipts
from tracks_dagster.services.tracks import Tracks


def digest(store: ObjectStore, ref: CheckpointRef) -> str:
    return f"weights of step {ref.step}"


def told(tracks: Tracks) -> dict[str, Json]:
    return outcome(read_receipts(tracks, RUN_ID), tracks.store, digest)


def test_the_outcome_of_a_whole_run_has_exactly_these_fields(story: Story, tracks: Tracks) -> None:
    state = story.whole().history.state
    final = state.checkpoints[-1].ref
    samples = "".join(f"{step:064x}" for step in range(1, 41)).encode()
    assert told(tracks) == {
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
                },
            },
        ],
        "final": {
            "step": 40,
            "weights_sha256": "weights of step 40",
            "manifest_sha256": final.manifest_sha256,
            "samples_sha256": hashlib.sha256(samples).hexdigest(),
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
    found = told(tracks)
    assert (found["state"], found["final"], found["promotion"]) == ("refused", None, None)
    assert found["attempts"][0]["last_step"] is None


def test_an_open_attempt_counts_the_steps_that_its_journal_shows(
    story: Story, tracks: Tracks
) -> None:
    story.begin()
    story.ship(range(1, 14))
    story.commit(10)
    story.write_tracks()
    [attempt] = told(tracks)["attempts"]
    assert (attempt["last_step"], attempt["kept_steps"], attempt["lost_steps"]) == (13, 13, 0)
    assert (attempt["termination_reason"], attempt["gpu_seconds"]) == (None, None)
    assert told(tracks)["final"]["step"] == 10  # what it would resume from


def test_without_the_journal_of_a_kept_step_the_samples_are_not_known(
    story: Story, tracks: Tracks, store: FakeObjectStore
) -> None:
    story.whole()
    [journal] = [key for key in store.objects if "attempts/2/" in key and "journal" in key]
    store.delete(journal)
    assert told(tracks)["final"]["samples_sha256"] is None

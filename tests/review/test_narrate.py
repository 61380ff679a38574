"""Each record in a sentence."""

from __future__ import annotations

import pytest

from tests.histories import History
from tests.stories import Story
from tracks_dagster.review.effects.narrate import sentence
from tracks_dagster.track.records import Kind


def test_every_record_of_a_whole_run_has_a_sentence(story: Story) -> None:
    story.whole()
    told = [sentence(record) for record in story.history.records]
    assert all(told)
    assert told[0].startswith("run declared: gpt, 40 steps on 1 rank(s)")
    assert "attempt 1 ended after step 23: preempted. The machine was taken" in "\n".join(told)
    assert "attempt 3 opened by tests, from step 30, micro_batch 4 → 2, accumulation 6 → 12" in told
    assert "checkpoint committed at step 40 (interval)" in told
    assert told[-1] == "step 40 promoted to best by tests: The loss is low enough."


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
def test_what_happens_between_attempts_is_told_too(history: History, expected: str) -> None:
    assert sentence(history.records[-1]) == expected


def test_a_checkpoints_fate_is_told_with_its_reason() -> None:
    history = History().declare().open().place().restore().commit(10)
    ref = history.state.checkpoints[0].ref
    history.decide_checkpoint(Kind.CHECKPOINT_QUARANTINED, ref)
    digest = ref.manifest_sha256[:12]
    expected = f"checkpoint {digest} quarantined by tests: for the test"
    assert sentence(history.records[-1]) == expected

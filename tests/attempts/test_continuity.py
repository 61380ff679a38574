"""Losses of a resumed attempt against those that the dead one had computed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tracks_dagster.attempts.continuity import AttemptLosses, Continuity, continuity

CONFIG = {"micro_batch": 4, "accumulation": 6, "lr": 0.003}

# Attempt 1 ran 1 to 23 and its last checkpoint is of step 20; attempt 2 resumed there.
DEAD = AttemptLosses(
    attempt_id=1,
    config=CONFIG,
    ranks=1,
    resumed_step=0,
    last_step=23,
    losses={step: 1.0 / step for step in range(1, 24)},
)
RESUMED = AttemptLosses(
    attempt_id=2,
    config=CONFIG,
    ranks=1,
    resumed_step=20,
    last_step=40,
    losses={step: 1.0 / step for step in range(21, 41)},
)


def test_the_steps_run_twice_are_compared() -> None:
    expected = Continuity(steps_compared=3, agree=True, first_difference=None, reason=None)
    assert continuity(RESUMED, [DEAD]) == expected
    assert expected.sentence == "verified over 3 steps"


def test_the_last_bit_of_a_loss_counts() -> None:
    nearly = {**RESUMED.losses, 22: 1.0 / 22 * (1 + 2**-52)}
    found = continuity(replace(RESUMED, losses=nearly), [DEAD])
    assert found == Continuity(steps_compared=3, agree=False, first_difference=22, reason=None)


def test_a_fresh_attempt_has_nothing_to_continue() -> None:
    assert continuity(DEAD, []) is None
    assert continuity(replace(RESUMED, resumed_step=0), [DEAD]) is None


OTHER_BATCH = {**CONFIG, "micro_batch": 2, "accumulation": 12}


@pytest.mark.parametrize(
    ("resumed", "earlier", "reason"),
    [
        (
            replace(RESUMED, config=OTHER_BATCH),
            [DEAD],
            "attempt 1 had another config (accumulation 6 → 12, micro_batch 4 → 2)",
        ),
        (replace(RESUMED, ranks=2), [DEAD], "attempt 1 ran on 1 rank, attempt 2 on 2"),
        (
            replace(RESUMED, beside={"device": "NVIDIA H100"}),
            [replace(DEAD, beside={"device": "cpu"})],
            "attempt 1 had another device (cpu → NVIDIA H100)",
        ),
        (RESUMED, [replace(DEAD, last_step=20)], "no step had been run past step 20"),
        (RESUMED, [replace(DEAD, last_step=None, losses={})], "no step had been run past step 20"),
        (
            RESUMED,
            [replace(DEAD, losses=dict.fromkeys(range(1, 21), 1.0))],
            "the journal of attempt 1 was not shipped past step 20; its last step was 23",
        ),
        (
            replace(RESUMED, losses={}, last_step=20),
            [DEAD],
            "steps 21 to 23 of an earlier attempt cannot be found in this one's journal: it ended "
            "before it got there, or the journal was not shipped",
        ),
    ],
)
def test_where_nothing_can_be_compared_it_says_why(
    resumed: AttemptLosses, earlier: list[AttemptLosses], reason: str
) -> None:
    found = continuity(resumed, earlier)
    assert found is not None
    assert (found.steps_compared, found.agree, found.first_difference) == (0, None, None)
    assert found.reason == reason


def test_of_several_dead_attempts_the_newest_that_ran_a_step_counts() -> None:
    # Attempt 2 resumed at 20 and died after 21, attempt 3 resumes at 20: 21 is attempt 2's by now.
    second = replace(RESUMED, last_step=21, losses={21: 5.0})
    third = replace(RESUMED, attempt_id=3, losses={21: 5.0, 22: 1.0 / 22, 23: 1.0 / 23, 24: 9.0})
    assert continuity(third, [DEAD, second]) == Continuity(
        steps_compared=3, agree=True, first_difference=None, reason=None
    )


def test_steps_from_before_a_change_that_was_taken_back_are_not_compared() -> None:
    # Attempt 1 ran to 23, attempt 2 went on from 20 with another micro-batch and committed 22;
    # attempt 3 has the first config again, but its weights of step 22 are attempt 2's.
    second = replace(RESUMED, config=OTHER_BATCH, last_step=22, losses={21: 5.0, 22: 5.0})
    third = replace(RESUMED, attempt_id=3, resumed_step=22, losses={23: 7.0, 24: 7.0})
    found = continuity(third, [DEAD, second])
    assert found is not None
    assert found.agree is None
    assert "attempt 2 had another config" in str(found.reason)


@pytest.mark.parametrize(
    ("loss", "says"),
    [
        (1.0 / 22, "verified over 3 steps; attempt 1 ran other code (old → new)"),
        (
            9.0,
            "of 3 steps compared, step 22 is the first with another loss; attempt 1 ran other code "
            "(old → new), which may be why",
        ),
    ],
)
def test_with_other_code_the_steps_are_compared_and_it_is_said(loss: float, says: str) -> None:
    losses = {**RESUMED.losses, 22: loss}
    found = continuity(replace(RESUMED, code="new", losses=losses), [replace(DEAD, code="old")])
    assert found is not None
    assert found.sentence == says


def test_other_code_of_who_saved_the_checkpoint_is_said_where_nothing_is_compared() -> None:
    ended = replace(DEAD, last_step=20, code="old")
    found = continuity(replace(RESUMED, code="new", resumed_from=1), [ended])
    assert found is not None
    assert found.sentence == (
        "not compared: no step had been run past step 20; attempt 1 ran other code (old → new)"
    )
    # Attempt 3 goes on from attempt 2, with its code: what attempt 1 ran does not concern it.
    second = replace(RESUMED, code="new", last_step=22, losses={21: 1.0 / 21, 22: 1.0 / 22})
    third = replace(RESUMED, code="new", attempt_id=3, resumed_step=21, resumed_from=2)
    found = continuity(third, [ended, second])
    assert found is not None
    assert found.sentence == "verified over 1 step"

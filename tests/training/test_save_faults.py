"""Saves that one rank of several breaks: no commit, every rank hears of it, and no rank is left."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.training import save_faults, sharded_trainer
from tests.training.gangs import Gang, TrainingRun
from tests.training.sharded_trainer import Task
from tracks_dagster.track.names import EXIT_FENCED
from tracks_dagster.track.records import Kind

STEPS = 4


def train(
    folder: Path, fault: str, *, ranks: int = 2, is_sharded: bool = True
) -> tuple[TrainingRun, Gang]:
    """Train with a save after every second step; `fault` breaks the first one."""
    assert save_faults.STEP == 2
    Task(steps=STEPS, is_sharded=is_sharded, fault=fault).write(folder)
    script = Path(sharded_trainer.__file__)
    run = TrainingRun(folder, ranks=ranks, steps=STEPS, every_steps=2, script=script)
    return run, run.train()


def commits(run: TrainingRun) -> list[int]:
    return [checkpoint.ref.step for checkpoint in run.state.checkpoints]


def kinds(run: TrainingRun, rank: int) -> list[str]:
    """Return how each save ended, as a rank's journal tells it."""
    return [line["kind"] for line in run.journal(1, rank) if line["kind"].startswith("save")]


@pytest.mark.parametrize(
    "is_sharded", [True, pytest.param(False, marks=pytest.mark.full)], ids=["FSDP2", "DDP"]
)
@pytest.mark.parametrize(
    ("fault", "says"),
    [("part_is_lost", "Rank 1 had not stored its part"), ("store_fails", "as meant")],
)
def test_a_part_that_is_missing_means_no_commit_and_training_goes_on(
    tmp_path: Path, fault: str, says: str, is_sharded: bool
) -> None:
    run, gang = train(tmp_path, fault, is_sharded=is_sharded)
    assert gang.exit_codes == [0, 0], gang.log()
    assert commits(run) == [4]
    (alert,) = run.state.alerts
    assert alert.body.rule == "save_failed"
    assert says in alert.body.text
    for rank in range(2):
        assert kinds(run, rank) == ["save_failed", "save"]


def test_a_rank_that_dies_before_its_part_is_stored_leaves_the_others_time_for_a_last_word(
    tmp_path: Path,
) -> None:
    run, gang = train(tmp_path, "rank_dies_before_its_part", ranks=3)
    assert gang.exit_codes == [1, -signal.SIGKILL, 1], gang.log()
    assert commits(run) == []
    assert [word.reason for word in run.last_words(1)] == ["rank_lost_secondary"] * 2
    (alert,) = run.state.alerts
    assert "Rank 1 had not stored its part before a rank was lost" in alert.body.text


def test_a_save_that_has_all_its_parts_is_committed_though_a_rank_died(tmp_path: Path) -> None:
    run, gang = train(tmp_path, "rank_dies_after_its_part")
    assert gang.exit_codes == [1, -signal.SIGKILL], gang.log()
    assert commits(run) == [STEPS // 2]
    assert [word.reason for word in run.last_words(1)] == ["rank_lost_secondary"]


def test_a_rank_that_missed_the_commit_learns_of_it_before_the_next_save(
    tmp_path: Path,
) -> None:
    run, gang = train(tmp_path, "outcome_is_lost")
    assert gang.exit_codes == [0, 0], gang.log()
    assert commits(run) == [2, 4]
    assert kinds(run, 1) == ["save_failed", "save"]  # what it knew when it wrote that


def test_a_rank_that_hears_nothing_of_the_last_commit_still_ends_with_the_others(
    tmp_path: Path,
) -> None:
    run, gang = train(tmp_path, "outcome_never_arrives")
    assert gang.exit_codes == [0, 0], gang.log()
    assert commits(run) == [2, 4]
    assert [word.reason for word in run.last_words(1)] == ["completed", "completed"]


@pytest.mark.parametrize(("fault", "committed"), [("thread_dies", [2]), ("commit_dies", [])])
def test_a_thread_that_dies_in_one_rank_ends_all_ranks_with_its_error(
    tmp_path: Path, fault: str, committed: list[int]
) -> None:
    run, gang = train(tmp_path, fault, ranks=3)
    assert gang.exit_codes == [1, 1, 1]
    assert commits(run) == committed
    for word in run.last_words(1):
        assert word.reason == "code_error"
        assert "LookupError: as meant" in word.message


def test_nan_in_the_shard_of_one_rank_ends_all_ranks_as_that(tmp_path: Path) -> None:
    run, gang = train(tmp_path, "shard_is_nan", ranks=3)
    assert gang.exit_codes == [1, 1, 1]
    assert commits(run) == []
    words = run.last_words(1)
    assert [word.reason for word in words] == ["nan_loss"] * 3
    assert {"model.frozen" in word.message for word in words} == {True}


def test_when_rank_0_is_fenced_every_rank_ends_fenced(tmp_path: Path) -> None:
    Task(steps=100_000, is_sharded=True).write(tmp_path)
    script = Path(sharded_trainer.__file__)
    run = TrainingRun(tmp_path, ranks=3, steps=100_000, every_steps=10, script=script)
    gang = run.start()
    gang.wait(until=lambda: bool(run.records(Kind.CHECKPOINT_COMMITTED)))
    run.open()
    fence = run.records(Kind.ATTEMPT_ENDED)[-1].seq
    gang.wait()
    assert gang.exit_codes == [EXIT_FENCED] * 3
    assert [record.kind for record in run.records() if record.seq > fence] == [Kind.ATTEMPT_OPENED]
    assert [word.reason for word in run.last_words(1)] == ["fenced"] * 3

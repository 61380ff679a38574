"""Checkpoints of several ranks: who writes what, and that any number of ranks can read it.

Real ranks, with FSDP2 or DDP. What the ranks held when they ended, what lies in the store, and what
other ranks hold after restoring it are the same tensors, to the bit.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.training import sharded_trainer
from tests.training.gangs import Gang, TrainingRun
from tests.training.sharded_trainer import Task
from tracks_dagster.training.saves.manifest import Manifest, read_tensors

SCRIPT = Path(sharded_trainer.__file__)
BATCH = 24  # over all ranks: 1 to 4 share it in micro-batches of 2
STEPS = 4  # of the first attempt; the second goes on to twice as many
ADAM = ("step", "exp_avg", "exp_avg_sq")
TRAINED = ("lift.weight", "lift.bias", "head.weight", "head.bias")


def start(folder: Path, *, ranks: int, is_sharded: bool, every_steps: int = STEPS) -> TrainingRun:
    """Declare a run and train its first steps."""
    run = TrainingRun(
        folder,
        ranks=ranks,
        steps=2 * STEPS,
        every_steps=every_steps,
        script=SCRIPT,
        global_batch=BATCH,
    )
    go_on(run, until=STEPS, ranks=ranks, is_sharded=is_sharded)
    return run


def go_on(run: TrainingRun, *, until: int, ranks: int, is_sharded: bool) -> Gang:
    """Train on with another number of ranks."""
    Task(steps=until, is_sharded=is_sharded, checks_names=True).write(run.folder)
    run.ranks = ranks
    gang = run.train()
    assert gang.exit_codes == [0] * ranks, gang.log()
    return gang


def held(run: TrainingRun, moment: str, attempt_id: int) -> dict[str, torch.Tensor]:
    """Return what the ranks held, whole, when an attempt "began" or "ended"."""
    tensors: dict[str, torch.Tensor] = torch.load(run.folder / f"{moment}-{attempt_id}.pt")
    return tensors


def stored(run: TrainingRun) -> dict[str, torch.Tensor]:
    """Return what the newest checkpoint holds, read without DCP."""
    manifest = run.manifest_of(run.final())
    return {
        f"{member}.{entry.name}": torch.frombuffer(
            bytearray(data), dtype=getattr(torch, entry.dtype)
        ).reshape(entry.shape)
        for member in ("model", "optimizer")
        for entry, data in read_tensors(run.store, manifest, member)
    }


def assert_equal(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> None:
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        assert tensor.dtype == theirs[name].dtype
        assert torch.equal(tensor, theirs[name]), name


def rows_of(manifest: Manifest, member: str, name: str) -> list[int]:
    """Return how many rows each stored shard of a tensor has."""
    (entry,) = [e for e in manifest.members[member].tensors if e.name == name]
    return [shard.shape[0] for shard in entry.shards]


def bytes_by_shard(manifest: Manifest) -> list[int]:
    """Return the bytes of the first shards of all sharded tensors, of the second ones, …"""
    sums: dict[int, int] = {}
    for member in manifest.members.values():
        for entry in member.tensors:
            for number, shard in enumerate(entry.shards if len(entry.shards) > 1 else ()):
                sums[number] = sums.get(number, 0) + sum(p.size_bytes for p in shard.pieces)
    return list(sums.values())


@pytest.mark.full
@pytest.mark.parametrize("is_sharded", [True, False], ids=["FSDP2", "DDP"])
@pytest.mark.parametrize("before", [1, 2, 3, 4])
@pytest.mark.parametrize("after", [1, 2, 3, 4])
def test_what_any_number_of_ranks_saved_any_other_restores(
    tmp_path: Path, is_sharded: bool, before: int, after: int
) -> None:
    check(tmp_path, is_sharded=is_sharded, before=before, after=after)


@pytest.mark.parametrize(
    ("is_sharded", "before", "after"), [(True, 2, 1), (True, 2, 3), (False, 1, 2)]
)
def test_what_was_saved_by_some_ranks_is_restored_by_others(
    tmp_path: Path, is_sharded: bool, before: int, after: int
) -> None:
    check(tmp_path, is_sharded=is_sharded, before=before, after=after)


def check(folder: Path, *, is_sharded: bool, before: int, after: int) -> None:
    """Save with some ranks and restore with others: all that any of them holds is equal."""
    run = start(folder, ranks=before, is_sharded=is_sharded)
    assert_equal(stored(run), held(run, "ended", 1))
    go_on(run, until=2 * STEPS, ranks=after, is_sharded=is_sharded)
    assert_equal(held(run, "began", 2), held(run, "ended", 1))
    assert_equal(stored(run), held(run, "ended", 2))


def test_a_checkpoint_of_fsdp2_is_restored_by_ddp(tmp_path: Path) -> None:
    run = start(tmp_path, ranks=2, is_sharded=True)
    go_on(run, until=2 * STEPS, ranks=3, is_sharded=False)
    assert_equal(held(run, "began", 2), held(run, "ended", 1))


def test_a_sharded_model_resumes_to_the_bit_on_as_many_ranks(tmp_path: Path) -> None:
    run = start(tmp_path / "resumed", ranks=2, is_sharded=True)
    go_on(run, until=2 * STEPS, ranks=2, is_sharded=True)
    calm = TrainingRun(
        tmp_path / "calm", ranks=2, steps=2 * STEPS, script=SCRIPT, global_batch=BATCH
    )
    go_on(calm, until=2 * STEPS, ranks=2, is_sharded=True)
    assert_equal(held(run, "ended", 2), held(calm, "ended", 1))
    losses = {step: line["loss"] for step, line in calm.steps(1).items()}
    assert {step: line["loss"] for step, line in run.steps(2).items()} == {
        step: losses[step] for step in range(STEPS + 1, 2 * STEPS + 1)
    }


def test_with_fsdp2_each_rank_writes_its_own_shards(tmp_path: Path) -> None:
    manifest_of_2, manifest_of_3 = (
        run.manifest_of(run.final())
        for run in (
            start(tmp_path / "2", ranks=2, is_sharded=True),
            start(tmp_path / "3", ranks=3, is_sharded=True),
        )
    )
    for member, name in [("model", "lift.weight"), ("optimizer", "state.lift.weight.exp_avg")]:
        assert rows_of(manifest_of_2, member, name) == [4, 3]
        assert rows_of(manifest_of_3, member, name) == [3, 3, 1]
    assert rows_of(manifest_of_3, "model", "head.weight")[:2] == [
        1,
        1,
    ]  # nothing is left for rank 2
    first, second = bytes_by_shard(manifest_of_2)
    assert 0.5 < second / first <= 1
    kinds = {entry.name: entry.dtype for entry in manifest_of_3.members["model"].tensors}
    assert kinds.keys() == {*TRAINED, "frozen", "count", "average"}
    assert (kinds["count"], kinds["average"]) == ("int64", "bfloat16")
    states = {entry.name for entry in manifest_of_3.members["optimizer"].tensors}
    assert states == {
        f"state.{name}.{kind}" for name in TRAINED for kind in ADAM
    }  # none of `frozen`


@pytest.mark.parametrize("is_sharded", [True, False], ids=["FSDP2", "DDP"])
def test_ranks_share_the_writing(tmp_path: Path, is_sharded: bool) -> None:
    run = start(tmp_path, ranks=2, is_sharded=is_sharded)
    (commit,) = [checkpoint.body for checkpoint in run.state.checkpoints]
    written = [
        sum(line["written_bytes"] for line in run.journal(1, rank) if line["kind"] == "save")
        for rank in range(2)
    ]
    assert sum(written) == commit.written_bytes
    assert min(written) > 0.3 * sum(written)

"""check_same beside a model in real shards: two ranks over gloo, torch's own tensor parallelism."""

from __future__ import annotations

from copy import deepcopy
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import multiprocessing, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from tracks_dagster.testing import Finding, check_same

RANKS = 2
MEETING_S_MAX = 120  # of any wait for the other rank


class TwoLayers(nn.Module):
    """(B, 6) to (B, 5)."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 16), nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.second(F.gelu(self.first(x)))
        return y


class SummedTwice(nn.Module):
    """Sums what the ranks returned, though each returned the sum already."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.module(x)
        total = output.detach().clone()
        dist.all_reduce(total)
        return output + (total - output.detach())


def rank_main(rank: int, folder: str) -> None:
    """Ask check_same of right shards and of wrong ones; leave each answer in a file."""
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/meeting",
        rank=rank,
        world_size=RANKS,
        timeout=timedelta(seconds=MEETING_S_MAX),
    )
    try:
        torch.manual_seed(0)
        whole, x = TwoLayers(), torch.randn(3, 6)
        mesh = init_device_mesh("cpu", (RANKS,))
        sharded = parallelize_module(
            deepcopy(whole), mesh, {"first": ColwiseParallel(), "second": RowwiseParallel()}
        )
        fully_sharded = deepcopy(whole)
        fully_shard(fully_sharded, mesh=mesh)
        fully_sharded(x)  # without a backward pass, after which it holds the whole weights
        paths = {"right": sharded, "fsdp": fully_sharded, "wrong": SummedTwice(sharded)}
        for name, path in paths.items():
            try:
                check_same(whole, path, x, names=("single", "parallel"))
                words = ""
            except Finding as finding:
                words = str(finding)
            (Path(folder) / f"{name} {rank}").write_text(words, encoding="utf-8")
    finally:
        dist.destroy_process_group()


@pytest.mark.slow
def test_a_shard_that_two_ranks_sum_twice_is_found_and_right_shards_are_equal(
    tmp_path: Path,
) -> None:
    multiprocessing.spawn(rank_main, args=(str(tmp_path),), nprocs=RANKS)  # type: ignore[no-untyped-call]
    for rank in range(RANKS):
        for right in ("right", "fsdp"):
            assert (tmp_path / f"{right} {rank}").read_text(encoding="utf-8") == ""
        wrong = (tmp_path / f"wrong {rank}").read_text(encoding="utf-8")
        assert "1 of 5 tensors differ between single and parallel" in wrong
        assert "output (3, 5): parallel is 2 times single" in wrong

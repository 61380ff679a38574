"""What a checkpoint costs: how long training is blocked, when it is durable, restoring, memory.

Ours is measured as a script sees it: `join`, `report`, the commit record in the track, a second
`join`. Every figure is a ratio of two medians, measured in turns in this process: against a memcpy of
the same tensors into buffers that are there, against one raw write and fsync of as many bytes, and
against reading them. torch.save, DCP and safetensors (with an fsync each) are measured beside it.
"""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import HashStore
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.distributed.checkpoint.state_dict_saver import async_save
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save

from tracks_dagster.stores import open_store
from tracks_dagster.track.records import Kind
from tracks_dagster.track.track import Track
from tracks_dagster.training import attempt
from tracks_dagster.training.attempt import Attempt
from tracks_dagster.training.saves import state_dict
from tracks_dagster.training.saves.trained import Trained

SIZES_MB = (100, 500)
ROUNDS = 7  # at the least; the first warms up and is not counted
ROUNDS_MB = 2000  # small states are saved more often, until so much was
SAVES = 10  # of which all but the first change a tenth of the layers
COMMIT_S_MAX = 120.0
SETTLE_S = 0.05  # after a commit, for the thread that made it

BARS = {  # figure, without its size: at most
    "blocked_to_memcpy": 1.2,
    "durable_to_raw_write_fsync": 1.3,
    "restore_to_reading": 1.3,
    "stored_share_of_ten_saves": 0.27,
    "peak_extra_mb_beyond_one_copy": 256.0,
}
WHY = {  # what else is in a figure that misses its bar
    "blocked_to_memcpy": "beside the copy: naming the state's tensors and RNG, waking a thread; a few "
    "ms whatever the size, and cold caches after the other savers",
    "durable_to_raw_write_fsync": "beside the write: the copy, hashes, an fsync for each chunk, the "
    "manifest and the record, some ms whatever the size; a shared disk",
    "restore_to_reading": "beside reading: hashing on a second thread, copying into the model; a busy "
    "core is missed",
    "stored_share_of_ten_saves": "chunks that hold changed and unchanged tensors are written whole",
    "peak_extra_mb_beyond_one_copy": "buffers of the writers, one chunk each",
}


def run(sizes_mb: tuple[int, ...] = SIZES_MB) -> dict[str, float]:
    """Return all figures, by name and size."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)  # for async_save
    figures: dict[str, float] = {}
    for size_mb in sizes_mb:
        measured = _measure(size_mb)
        figures |= {f"{name} @{size_mb} MB": value for name, value in measured.items()}
    dist.destroy_process_group()
    return figures


def _rounds(size_mb: int) -> int:
    return max(ROUNDS, ROUNDS_MB // size_mb)


class Subject:
    """A model and its AdamW, `size_mb` in all; `change` moves every element, or those of one layer."""

    def __init__(self, size_mb: int) -> None:
        torch.manual_seed(0)
        width = 512 if size_mb < 300 else 1024
        layers = max(10, round(size_mb * 1e6 / 3 / 4 / (width * (width + 1) * 4)))
        # Four weights to a layer, as a transformer block has; all of them the same size.
        blocks = [
            nn.Sequential(*[nn.Linear(width, width) for _ in range(4)]) for _ in range(layers)
        ]
        self.model = nn.Sequential(*blocks)
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.train(self.model)
        self.trained = Trained(model=self.model, optimizer=self.optimizer)

    def train(self, part: nn.Module) -> None:
        """Step `part` once with some gradient; the others keep weights and optimizer state."""
        for parameter in self.model.parameters():
            parameter.grad = None
        for parameter in part.parameters():
            parameter.grad = torch.randn_like(parameter)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def tensors(self) -> list[torch.Tensor]:
        """Return every tensor of the state."""
        return list(state_dict.collect(self.trained).tensors.values())


def _measure(size_mb: int) -> dict[str, float]:
    subject = Subject(size_mb)
    total_bytes = sum(t.numel() * t.element_size() for t in subject.tensors())
    with tempfile.TemporaryDirectory(prefix="tracks-bench-") as name:
        folder = Path(name)
        figures = _memory(subject, folder / "memory", total_bytes)
        seconds = _saves(subject, folder, _rounds(size_mb))
        seconds |= _restores(subject, folder, _rounds(size_mb))
        figures |= {
            "blocked_to_memcpy": seconds["blocked"] / seconds["memcpy"],
            "dcp_async_blocked_to_memcpy": seconds["dcp_async blocked"] / seconds["memcpy"],
            "durable_to_raw_write_fsync": seconds["durable"] / seconds["raw"],
        }
        for other in ("torch_save", "dcp", "safetensors"):
            figures[f"{other}_to_raw_write_fsync"] = seconds[other] / seconds["raw"]
        figures["restore_to_reading"] = seconds["restore"] / seconds["read"]
        for other in ("torch_load", "dcp_load", "safetensors_load"):
            figures[f"{other}_to_reading"] = seconds[other] / seconds["read"]
        figures["stored_share_of_ten_saves"] = _stored_share(subject, folder / "share")
        figures |= {f"{name} (s)": seconds[name] for name in ("memcpy", "raw", "read")}
    return figures


def _saves(subject: Subject, folder: Path, rounds: int) -> dict[str, float]:
    """Return the medians of every kind of save, measured in turns."""
    buffers = [torch.empty_like(tensor) for tensor in subject.tensors()]
    flat = torch.cat([b.reshape(-1).view(torch.uint8) for b in buffers]).numpy().data
    seen: dict[str, list[float]] = defaultdict(list)
    with training(subject, folder / "ours", steps=rounds) as steps:
        for a, step in steps:
            _clear(folder, keep_step=step - 1)
            seen["memcpy"].append(_seconds(partial(_copy, subject.tensors(), buffers)))
            seen["raw"].append(_seconds(lambda: _write(folder / "raw", flat)))
            _clear(folder, keep_step=step - 1)
            a.save_soon()
            began = time.perf_counter()
            a.report(step, loss=1.0)
            seen["blocked"].append(time.perf_counter() - began)
            seen["durable"].append(_wait_for_commit(folder / "ours", step) - began)
            for name, save in _OTHERS.items():
                _clear(folder, keep_step=step)
                seen[name].append(_seconds(partial(save, subject, folder / name)))
            _clear(folder, keep_step=step)
            seen["dcp_async blocked"].append(_dcp_async(subject, folder / "dcp_async"))
            subject.train(subject.model)
    return {name: statistics.median(values[1:]) for name, values in seen.items()}


def _restores(subject: Subject, folder: Path, rounds: int) -> dict[str, float]:
    """Return the medians of every kind of restore, measured in turns; files are in the page cache."""
    seen: dict[str, list[float]] = defaultdict(list)
    whole = b"".join(p.read_bytes() for p in sorted((folder / "ours").rglob("chunks/*")))
    _write(folder / "raw", memoryview(whole))
    for name, save in _OTHERS.items():
        save(subject, folder / name)
    for _ in range(rounds):
        seen["read"].append(_seconds(lambda: (folder / "raw").read_bytes()))
        seen["restore"].append(_restore(subject, folder / "ours", rounds))
        seen["torch_load"].append(_seconds(lambda: torch.load(folder / "torch_save")))
        seen["dcp_load"].append(_seconds(lambda: _dcp_load(subject, folder / "dcp")))
        seen["safetensors_load"].append(
            _seconds(partial(_safetensors_load, folder / "safetensors"))
        )
    return {name: statistics.median(values[1:]) for name, values in seen.items()}


def _memory(subject: Subject, folder: Path, total_bytes: int) -> dict[str, float]:
    """Return how far three saves raise the peak of this process above one staged copy."""
    with training(subject, folder, steps=3) as steps:
        before = _peak_bytes(reset=True)
        for a, step in steps:
            a.save_soon()
            a.report(step, loss=1.0)
            subject.train(subject.model)
        extra = _peak_bytes(reset=False) - before
    shutil.rmtree(folder)
    return {"peak_extra_mb_beyond_one_copy": (extra - total_bytes) / 1e6}


def _stored_share(subject: Subject, folder: Path) -> float:
    """Return the bytes that ten saves stored as a share of ten whole states."""
    layers = list(subject.model.children())
    tenth = nn.Sequential(*layers[: max(1, len(layers) // 10)])
    with training(subject, folder, steps=SAVES) as steps:
        for a, step in steps:
            a.save_soon()
            a.report(step, loss=1.0)
            _wait_for_commit(folder, step)
            subject.train(tenth)
    commits = [record.body for record in _commits(folder)]
    return float(sum(c["written_bytes"] for c in commits) / sum(c["total_bytes"] for c in commits))


@contextmanager
def training(
    subject: Subject, folder: Path, *, steps: int
) -> Iterator[Iterator[tuple[Attempt, int]]]:
    """Join alone and give (attempt, step) for each step; the body reports it."""
    with attempt.join(folder=folder, config={"global_batch": 1, "micro_batch": 1}) as a:
        a.register(model=subject.model, optimizer=subject.optimizer)
        a.sampler(steps + 1, seed=0)
        # One step more than is asked for: the last one's save waits for its commit, on purpose.
        asked = islice(a.steps([torch.zeros(1)] * (steps + 1), until=steps + 1), steps)
        yield ((a, step) for step, _ in asked)


def _restore(subject: Subject, folder: Path, rounds: int) -> float:
    """Return how long it takes from a joined attempt to its first step."""
    with attempt.join(folder=folder, config={"global_batch": 1, "micro_batch": 1}) as a:
        a.register(model=subject.model, optimizer=subject.optimizer)
        a.sampler(rounds + 1, seed=0)
        steps = a.steps([torch.zeros(1)] * (rounds + 1), until=rounds + 1)
        began = time.perf_counter()
        next(steps)
        return time.perf_counter() - began


def _copy(tensors: list[torch.Tensor], buffers: list[torch.Tensor]) -> None:
    for buffer, tensor in zip(buffers, tensors, strict=True):
        buffer.copy_(tensor)


def _write(path: Path, data: memoryview) -> None:
    path.unlink(missing_ok=True)
    with path.open("wb", buffering=0) as file:
        done = 0
        while done < len(data):
            done += file.write(data[done:]) or 0
        os.fsync(file.fileno())


def _torch_save(subject: Subject, path: Path) -> None:
    state = {"model": subject.model.state_dict(), "optimizer": subject.optimizer.state_dict()}
    with path.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())


def _safetensors_save(subject: Subject, path: Path) -> None:
    tensors = state_dict.collect(subject.trained).tensors
    safetensors.torch.save_file({n: t.contiguous() for n, t in tensors.items()}, path)
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _safetensors_load(path: Path) -> None:
    loaded = safetensors.torch.load_file(path)
    for tensor in loaded.values():  # it maps the file; nothing is read until it is touched
        tensor.clone()


def _dcp_state(subject: Subject) -> dict[str, Any]:
    model, optimizer = get_state_dict(subject.model, subject.optimizer)
    return {"model": model, "optimizer": optimizer}


def _dcp_save(subject: Subject, path: Path) -> None:
    dcp_save(_dcp_state(subject), storage_writer=FileSystemWriter(path, sync_files=True))


def _dcp_async(subject: Subject, path: Path) -> float:
    """Return how long DCP's asynchronous save blocks."""
    began = time.perf_counter()
    future = async_save(_dcp_state(subject), storage_writer=FileSystemWriter(path))
    blocked_s = time.perf_counter() - began
    future.result()  # type: ignore[union-attr]
    return blocked_s


def _dcp_load(subject: Subject, path: Path) -> None:
    dcp_load(_dcp_state(subject), storage_reader=FileSystemReader(path))


_OTHERS: dict[str, Callable[[Subject, Path], None]] = {
    "torch_save": _torch_save,
    "dcp": _dcp_save,
    "safetensors": _safetensors_save,
}


def _commits(folder: Path) -> list[Any]:
    track = Track(open_store(str(folder / "store")), "runs/notebook", now=lambda: datetime.now(UTC))
    return [r for r in track.refresh() if r.kind is Kind.CHECKPOINT_COMMITTED]


def _wait_for_commit(folder: Path, step: int) -> float:
    """Return when (`perf_counter`) the commit record of `step` was seen in the track."""
    track = Track(open_store(str(folder / "store")), "runs/notebook", now=lambda: datetime.now(UTC))
    deadline = time.monotonic() + COMMIT_S_MAX
    while time.monotonic() < deadline:
        newest = [r for r in track.refresh() if r.kind is Kind.CHECKPOINT_COMMITTED][-1:]
        if newest and newest[0].body["ref"]["step"] == step:
            seen_at = time.perf_counter()
            time.sleep(SETTLE_S)
            return seen_at
        time.sleep(0.001)
    raise TimeoutError(f"step {step} was not committed within {COMMIT_S_MAX:g} s")


def _clear(folder: Path, *, keep_step: int) -> None:
    """Remove what was saved, but our newest checkpoint, and let the disk rest.

    Each save finds the same room then: on a virtual machine a page that was never touched costs ten
    times one that was freed (measured), and what is left for the disk would be paid for by the next.
    """
    for path in folder.iterdir():
        if path.is_dir() and path.name != "ours":
            shutil.rmtree(path)
        elif path.is_file():
            path.unlink()
    for path in (folder / "ours").rglob("step-*"):
        if path.name != f"step-{keep_step}":
            shutil.rmtree(path)
    os.sync()


def _peak_bytes(*, reset: bool) -> int:
    """Return this process's largest resident size since the last reset (Linux)."""
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    lines = Path("/proc/self/status").read_text().splitlines()
    (peak,) = [line.split()[1] for line in lines if line.startswith("VmHWM")]
    return int(peak) * 1024


def _seconds(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began

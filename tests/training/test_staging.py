"""Staging memory: what lies where, what it costs, and threads that keep no rank from ending."""

from __future__ import annotations

import math
import os
import random
import subprocess
import sys
import textwrap
from typing import Any

import pytest
import torch

from tests.fakes import FakeObjectStore
from tracks_dagster.track.errors import NonFinite
from tracks_dagster.training.saves import layout, storage_writer
from tracks_dagster.training.saves.chunk_writer import KnownChunks, store_chunks
from tracks_dagster.training.saves.layout import Extent, Layout, lay_out
from tracks_dagster.training.saves.staging import GROW_BYTES, Arena

SEED = int(os.environ.get("TRACKS_LAYOUT_SEED") or random.SystemRandom().randrange(2**32))


def pieces_by_looking_everywhere(made: Layout, slot: Extent) -> list[tuple[int, Extent]]:
    found = []
    for index, chunk in enumerate(made.chunks):
        first = max(slot.offset_bytes, chunk.offset_bytes)
        size = min(slot.end_bytes, chunk.end_bytes) - first
        if size > 0:
            found.append((index, Extent(first - chunk.offset_bytes, size)))
    return found


def test_every_byte_of_every_tensor_lies_in_a_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    print(f"TRACKS_LAYOUT_SEED={SEED}")
    draw = random.Random(SEED)
    monkeypatch.setattr(layout, "CHUNK_BYTES_MAX", 640)
    monkeypatch.setattr(layout, "SHARED_BYTES_MAX", 320)
    for _ in range(300):
        sizes = [draw.choice((0, 1, 63, 64, 65, 320, 321, 640, 2000)) for _ in range(12)]
        made = lay_out([(draw.choice("ab"), size) for size in sizes])
        for slot, pieces in zip(made.slots, made.pieces, strict=True):
            assert list(pieces) == pieces_by_looking_everywhere(made, slot)
            assert sum(extent.size_bytes for _, extent in pieces) == slot.size_bytes


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64, torch.float64])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_one_element_that_is_not_finite_is_found(
    dtype: torch.dtype, bad: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage_writer, "FINITE_PIECE", 7)
    tensor = torch.full((5, 5), 3.0).to(dtype)
    assert storage_writer.is_finite(tensor)
    tensor[3, 2] = bad
    assert not storage_writer.is_finite(tensor)


def test_a_sum_that_overflows_is_not_a_finding() -> None:
    assert storage_writer.is_finite(torch.full((4,), 1e308, dtype=torch.float64))


def test_a_block_of_more_than_twice_what_a_save_needs_is_let_go() -> None:
    arena = Arena(torch.device("cpu"))
    arena.take(10 * GROW_BYTES)
    assert len(arena.fit(6 * GROW_BYTES)) == 6 * GROW_BYTES
    assert arena._bytes.numel() == 10 * GROW_BYTES
    arena.fit(2 * GROW_BYTES)
    assert arena._bytes.numel() == 2 * GROW_BYTES


def test_what_is_found_meanwhile_stops_the_chunks_that_are_not_begun() -> None:
    store = FakeObjectStore()
    data = [memoryview(bytes([index] * 9)) for index in range(200)]

    def find() -> None:
        raise NonFinite("NaN in a")

    with pytest.raises(NonFinite):
        store_chunks(store, "p/", data, KnownChunks(), meanwhile=find)
    with pytest.raises(ZeroDivisionError):
        store_chunks(store, "p/", data, KnownChunks(), meanwhile=lambda: print(1 // 0))


def test_a_store_that_never_answers_keeps_no_process_from_ending() -> None:
    script = """
        import threading
        from tests.fakes import FakeObjectStore
        from tracks_dagster.training.saves.chunk_writer import KnownChunks, store_chunks

        class Hanging(FakeObjectStore):
            def put(self, key, data):
                began.set()
                threading.Event().wait()

        began = threading.Event()
        saving = threading.Thread(
            target=store_chunks, args=(Hanging(), "p/", [memoryview(b"x")], KnownChunks()), daemon=True
        )
        saving.start()
        assert began.wait(30)
        print("main is done", flush=True)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        timeout=240,
        capture_output=True,
        check=True,
    )
    assert done.stdout == b"main is done\n"


class Cuda:
    """Stands in for CUDA's runtime: what is registered, and whether it registers anything."""

    def __init__(self, answer: int) -> None:
        self.answer = answer
        self.registered: dict[int, int] = {}

    def cudaHostRegister(self, address: int, size_bytes: int, flags: int) -> int:  # noqa: N802
        assert flags == 1
        if self.answer == 0:
            self.registered[address] = size_bytes
        return self.answer

    def cudaHostUnregister(self, address: int) -> int:  # noqa: N802
        del self.registered[address]
        return 0


def test_staging_memory_of_a_gpu_is_registered_as_long_as_it_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cuda = Cuda(0)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: cuda)
    arena = Arena(torch.device("cuda"))
    assert arena.take(100).tolist() == [0] * 100
    assert cuda.registered == {arena.address: GROW_BYTES}
    assert arena.take(GROW_BYTES + 1).data_ptr() == arena.address
    assert cuda.registered == {arena.address: 2 * GROW_BYTES}
    del arena
    assert cuda.registered == {}


def test_what_cuda_does_not_register_is_allocated_by_it(monkeypatch: pytest.MonkeyPatch) -> None:
    allocate = torch.empty
    asked: list[int] = []

    def allocated(size: int, **how: Any) -> torch.Tensor:
        if how.pop("pin_memory", False):
            asked.append(size)
        return allocate(size, **how)

    def refuse(size: int, **how: Any) -> torch.Tensor:
        asked.append(0)
        raise RuntimeError("CUDA error: operation not supported")

    monkeypatch.setattr(torch.cuda, "cudart", lambda: Cuda(801))  # cudaErrorNotSupported
    monkeypatch.setattr(torch, "zeros", refuse)  # who asks next, and is given the error
    monkeypatch.setattr(torch, "empty", allocated)
    assert len(Arena(torch.device("cuda")).take(10)) == 10
    assert asked == [0, GROW_BYTES]

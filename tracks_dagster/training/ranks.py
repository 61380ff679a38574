"""The ranks of a gang and the few words they exchange beside gradients: sums, JSON, outcomes.

One rank alone uses the same calls and needs no process group. What is stored is never pickled; only
DCP's plans travel so, from rank to rank. Every call but the properties, `post` and `fetch` is
collective: all ranks make it, in the same order. `post` and `fetch` go through the rendezvous store,
so threads may use them while the ranks compute.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store, _get_default_store
from torch.distributed.rendezvous import rendezvous

from tracks_dagster.track.errors import Fenced, RankLost, SettingsError, TrainingError
from tracks_dagster.track.records import Json, canonical_json

# For any collective. The last resort where nobody watches, so above every limit of `reasons.hangs`: the
# ranks would give up, each for a reason of its own, while one of them evaluates, and no stack be kept.
GANG_TIMEOUT_S = 2 * 3600.0
FETCH_POLL_S = 0.01  # doubled from look to look
FETCH_POLL_S_MAX = 0.1
POSTED_KEPT = 4  # newest words of a rank that stay readable
# TCPStore drops the connection, which all share, at a value of 8 MiB; UTF-8 makes 4 bytes of a
# character at most.
PIECE_CHARS_MAX = 1024 * 1024
PIECES_MAX = 256  # of one word: a part that tells of some millions of shards

T = TypeVar("T")


class Ranks:
    """This rank among its gang."""

    def __init__(
        self, *, rank: int, world_size: int, device: torch.device, has_group: bool = False
    ) -> None:
        """Meet the other ranks (torchrun's MASTER_ADDR and MASTER_PORT say where).

        has_group: one rank has a process group too, as under torchrun. A group that the script made
        before is used and stays the script's. Raises SettingsError when it has other ranks.
        """
        self.rank = rank
        self.world_size = world_size
        self.device = device
        self.exchange_s: float | None = None  # what the newest sum took; of one rank nothing
        if device.type == "cuda":
            torch.cuda.set_device(device)
        self._posted: list[list[str]] = []  # the keys of each word
        self._made_group = False
        if dist.is_initialized():
            found = (dist.get_rank(), dist.get_world_size())
            if found != (rank, world_size):
                raise SettingsError(
                    f"The script made a process group in which this is rank {found[0]} of {found[1]}, "
                    f"and the launcher started rank {rank} of {world_size}; make it from RANK and "
                    "WORLD_SIZE, or let join make it."
                )
            self._words = PrefixStore("words", _get_default_store())
        elif world_size > 1 or has_group:
            timeout = timedelta(seconds=GANG_TIMEOUT_S)
            store: Store = dist.HashStore()  # type: ignore[attr-defined]  # needs no port
            if world_size > 1:
                store, _, _ = next(rendezvous("env://", rank, world_size, timeout=timeout))
            self._words = PrefixStore("words", store)
            self._made_group = True
            dist.init_process_group(
                "nccl" if device.type == "cuda" else "gloo",
                store=store,
                rank=rank,
                world_size=world_size,
                timeout=timeout,
            )

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0, which alone writes to the track."""
        return self.rank == 0

    def sum(self, values: Sequence[float]) -> list[float]:
        """Return the sums over all ranks, the same bits on each; a NaN of one is a NaN of all."""
        if self.world_size == 1:
            return list(values)
        began_ns = time.monotonic_ns()
        tensor = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(tensor)
        summed: list[float] = tensor.tolist()
        self.exchange_s = (time.monotonic_ns() - began_ns) // 1000 / 1e6
        return summed

    def gather(self, value: Json) -> list[Json]:
        """Return every rank's value, by rank."""
        if self.world_size == 1:
            return [value]
        data = canonical_json(value)
        sizes = [int(size) for size in self._gather_rows(torch.tensor([len(data)]))]
        padded = torch.zeros(max(sizes), dtype=torch.uint8)
        padded[: len(data)] = _bytes_tensor(data)
        rows = self._gather_rows(padded)
        return [
            json.loads(row[:size].numpy().tobytes())  # noqa: TID251
            for row, size in zip(rows, sizes, strict=True)
        ]

    def gather_objects(self, value: T) -> list[T]:
        """Return every rank's value, by rank, pickled on the way: for what is not JSON."""
        if self.world_size == 1:
            return [value]
        values: list[T | None] = [None] * self.world_size
        dist.all_gather_object(values, value)
        return [each for each in values if each is not None]

    def post(self, key: str, value: Json) -> None:
        """Leave a value for the other ranks under a key that is used once. Any thread may.

        Raises TrainingError for more than 256 Mi characters.
        """
        text = canonical_json(value).decode()
        count = -(-len(text) // PIECE_CHARS_MAX)
        if count > PIECES_MAX:
            raise TrainingError(
                f"Rank {self.rank} cannot tell the others {key}: it is {len(text)} characters of JSON "
                f"and the limit is {PIECES_MAX * PIECE_CHARS_MAX}."
            )
        keys = [f"{key}/{number}" for number in range(count)]
        for number, piece_key in enumerate(keys):
            at = number * PIECE_CHARS_MAX
            self._words.set(piece_key, text[at : at + PIECE_CHARS_MAX])
        self._words.set(key, str(count))  # last: who sees it finds the pieces
        self._posted.append([key, *keys])
        if len(self._posted) > POSTED_KEPT:
            for old in self._posted.pop(0):
                self._words.delete_key(old)

    def fetch(
        self, key: str, *, timeout_s: float, is_vain: Callable[[], bool] = lambda: False
    ) -> Json | None:
        """Return what was posted under `key`, or None when nothing was in time. Any thread may.

        is_vain: whether to wait no longer; what was posted by then is returned anyway.
        """
        deadline = time.monotonic() + timeout_s
        pause_s = FETCH_POLL_S
        while not self._words.check([key]):
            if time.monotonic() > deadline or is_vain():
                return None
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, FETCH_POLL_S_MAX)
        count = int(self._words.get(key))
        return json.loads(b"".join(self._words.get(f"{key}/{n}") for n in range(count)))  # noqa: TID251

    def from_first(self, action: Callable[[], Json]) -> Json:
        """Do `action` on rank 0 and return its value on every rank.

        Raises what it raised on rank 0; on the others Fenced when it was fenced, else RankLost.
        """
        if self.world_size == 1:
            return action()
        if self.is_first:
            return self._act_and_tell(action)
        answer = self._broadcast(None)
        if "value" in answer:
            return answer["value"]
        if answer["error"] == Fenced.__name__:
            raise Fenced(answer["message"])
        raise RankLost(f"Rank 0 failed with {answer['error']}: {answer['message']}")

    def close(self) -> None:
        """Leave the process group; only after an end that all ranks reached together.

        One that the script made is its own to leave; one that it has left already is gone.
        """
        if self._made_group and dist.is_initialized():
            dist.destroy_process_group()

    def _act_and_tell(self, action: Callable[[], Json]) -> Json:
        try:
            value = action()
        except Exception as error:
            self._broadcast({"error": type(error).__name__, "message": str(error)})
            raise
        return self._broadcast({"value": value})["value"]

    def _broadcast(self, value: Json) -> Json:
        data = canonical_json(value)
        size = torch.tensor([len(data)], device=self.device)
        dist.broadcast(size, src=0)
        buffer = torch.zeros(int(size), dtype=torch.uint8, device=self.device)
        if self.is_first:
            buffer.copy_(_bytes_tensor(data))
        dist.broadcast(buffer, src=0)
        return json.loads(buffer.cpu().numpy().tobytes())  # noqa: TID251

    def _gather_rows(self, row: torch.Tensor) -> list[torch.Tensor]:
        row = row.to(self.device)
        rows = [torch.empty_like(row) for _ in range(self.world_size)]
        dist.all_gather(rows, row)
        return [each.cpu() for each in rows]


def _bytes_tensor(data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)

"""The memory of real steps: on a CPU by the allocator's own count, on a GPU by CUDA's statistics."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch.profiler import ProfilerActivity, profile

from tracks_dagster.track.records import Json
from tracks_dagster.training.sampling import Batch


class Gauge(Protocol):
    """Counts the memory of what is done while it is entered."""

    def __enter__(self) -> object: ...

    def __exit__(self, *error: Any) -> None: ...

    def real(self) -> AbstractContextManager[None]:
        """Let what is made meanwhile be real and uncounted: the script's data."""
        ...

    def taken(self, batch: Batch) -> Batch:
        """Return a batch that was fetched, to be counted."""
        ...

    def found(self) -> Mapping[str, Json]:
        """Return the peak: `peak_bytes`, and by what it was taken where that is known (`by_kind`)."""
        ...


@dataclass(slots=True)
class Measuring:
    """The steps are real. On a CPU the allocator's own count, on a GPU CUDA's statistics."""

    device: torch.device
    _profile: Any = None
    _free_bytes: int | None = None

    def __enter__(self) -> None:
        if self.device.type == "cuda":
            self._free_bytes = torch.cuda.mem_get_info(self.device)[0]
            torch.cuda.reset_peak_memory_stats(self.device)
            return
        self._profile = profile(activities=[ProfilerActivity.CPU], profile_memory=True)
        self._profile.__enter__()

    def __exit__(self, *error: Any) -> None:
        if self._profile is not None:
            self._stop()

    def _stop(self) -> Any:
        profiled, self._profile = self._profile, None
        profiled.__exit__(None, None, None)
        return profiled

    def real(self) -> AbstractContextManager[None]:
        """Everything is."""
        return nullcontext()

    def taken(self, batch: Batch) -> Batch:
        """Return it as it is."""
        return batch

    def found(self) -> Mapping[str, Json]:
        """Return the peak; of a GPU also what was reserved, and taken beside that (its context)."""
        if self.device.type == "cuda":
            reserved = torch.cuda.memory_reserved(self.device)
            free, total = torch.cuda.mem_get_info(self.device)
            return {
                "peak_bytes": torch.cuda.max_memory_allocated(self.device),
                "reserved_bytes": torch.cuda.max_memory_reserved(self.device),
                "context_bytes": max(0, (self._free_bytes or total) - free - reserved),
                "device_bytes": total,
            }
        tree = self._stop().profiler.kineto_results.experimental_event_tree()
        return {"peak_bytes": max(_allocated(tree), default=0)}


def _allocated(events: Iterable[Any]) -> Iterator[int]:
    """Yield what the CPU's allocator had handed out after each allocation or release."""
    waiting = list(events)
    while waiting:
        event = waiting.pop()
        waiting += event.children
        if event.tag.name == "Allocation" and event.extra_fields.device.type == "cpu":
            yield event.extra_fields.total_allocated

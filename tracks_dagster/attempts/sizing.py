"""How much memory a step takes, and the largest micro-batch whose step fits a device. Pure.

What tensors take is found by running two steps (`training.sizing`). A GPU takes more: the context of
CUDA beside them, and blocks that its allocator holds and does not use. Before a run has measured both,
they are assumed and said to be.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tracks_dagster.track.bodies import MemoryPeak
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.records import Json
from tracks_dagster.track.text.units import size_bytes

GIB = 1024**3
MIB = 1024**2

# What `nvidia-smi` shows as memory.total, in MiB. Of one not listed, give its memory: --device 24GiB.
DEVICES: Mapping[str, int] = {
    "T4": 15_360 * MIB,
    "V100": 16_384 * MIB,
    "L4": 23_034 * MIB,
    "A10G": 23_028 * MIB,
    "RTX4090": 24_564 * MIB,
    "A100-40GB": 40_960 * MIB,
    "L40S": 46_068 * MIB,
    "A100": 81_920 * MIB,
    "H100": 81_559 * MIB,
    "H200": 143_771 * MIB,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeRequest:
    """What is asked of one sizing: a run's declaration, and whether the steps are real."""

    declared: Json
    store_url: str
    measures: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMemory:
    """The peak of two steps on one rank. by_kind: at that moment; empty where it was measured.

    parameters: of the registered model, None without one. reserved_bytes: what CUDA's allocator held;
    context_bytes: what the device had lost beside that.
    """

    torch: str
    device: str
    steps: int
    peak_bytes: int
    by_kind: Mapping[str, int] = field(default_factory=dict)
    parameters: int | None = None
    reserved_bytes: int | None = None
    context_bytes: int | None = None
    device_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Overhead:
    """What a GPU takes beside tensors. reserved_share: reserved by the allocator, of what is in use.

    source: in words, where it is from.
    """

    context_bytes: int
    reserved_share: float
    source: str

    def needed(self, peak_bytes: int) -> int:
        """Return the memory of the device that a peak of tensors takes."""
        return self.context_bytes + round(self.reserved_share * peak_bytes)


# CUDA 12's context with its libraries' handles is 0.4 to 0.6 GiB; the allocator's blocks are of 2 and
# 20 MiB and stay split.
ASSUMED = Overhead(
    context_bytes=GIB // 2,
    reserved_share=1.1,
    source="assumed: a context of 0.5 GiB, and 10 % that the allocator holds beside what is in use",
)


def overhead_of(attempt: str, measured: MemoryPeak) -> Overhead:
    """Return the overhead as an attempt measured it, as far as it did: a context nobody measures."""
    if not measured.device_bytes or not measured.reserved_bytes:
        return ASSUMED
    share = max(1.0, measured.reserved_bytes / measured.device_bytes)
    return Overhead(
        context_bytes=ASSUMED.context_bytes,
        reserved_share=share,
        source=(
            f"a context of 0.5 GiB, assumed, and {share - 1:.0%} that the allocator held beside what "
            f"was in use, as {attempt} measured it"
        ),
    )


def device_memory(text: str) -> tuple[str, int]:
    """Return the name and the memory of a device class (`H100`), or of a size (`24GiB`).

    Raises InvalidInput.
    """
    known = {name.lower(): name for name in DEVICES}
    name = known.get(text.lower())
    if name is not None:
        return name, DEVICES[name]
    try:
        return text, size_bytes(text)
    except ValueError as error:
        raise InvalidInput(
            f"--device {text!r} is not a known device: {', '.join(DEVICES)}. Of another, give its "
            "memory: --device 24GiB."
        ) from error


def micro_batches(share: int) -> tuple[int, ...]:
    """Return the micro-batches that a rank's share of the global batch can be divided into."""
    return tuple(size for size in range(1, share + 1) if share % size == 0)


def next_micro_batch(
    sized: Mapping[int, int], candidates: Sequence[int], memory_bytes: int
) -> int | None:
    """Return the micro-batch to size next; None once the largest that fits is known.

    sized: micro-batch → memory of the device that it takes. More samples never take less, so what is
    left lies between the largest that fits and the smallest that does not; it is halved each time.
    """
    low = max((m for m, need in sized.items() if need <= memory_bytes), default=0)
    high = min((m for m, need in sized.items() if need > memory_bytes), default=None)
    left = [m for m in candidates if m > low and (high is None or m < high)]
    if not left:
        return None
    # Most steps fit whole, and then nothing is left to ask.
    return left[-1] if high is None else left[len(left) // 2]


def largest_fitting(sized: Mapping[int, int], memory_bytes: int) -> int | None:
    """Return the largest micro-batch that fits; None where none does."""
    return max((m for m, need in sized.items() if need <= memory_bytes), default=None)


def format_bytes(size: float) -> str:
    """Return a size as people write it: 812 KiB, 5.3 MiB, 79.6 GiB."""
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (1024, "KiB")):
        if size >= unit:
            digits = 0 if size >= 100 * unit else 1
            return f"{size / unit:.{digits}f} {name}"
    return f"{size:.0f} B"

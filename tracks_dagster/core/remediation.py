"""What a retry changes: each remedy as a function from what was tried to what is tried next.

Only keys that the config or the compute request really has are changed. Where nothing is left to
change, the function says why, and the retry is refused: the same attempt again would end the same.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace

from tracks_dagster.core.bodies import AttemptPlaced, ComputeRequest, ConfigChange
from tracks_dagster.core.records import Json, canonical_json

# Config keys that save device memory when a trainer has them: (key, from any other value, to).
ALLOCATOR = ("allocator", "expandable_segments")
ACTIVATION_CHECKPOINTING = ("activation_checkpointing", True)

STEPS_MAX = 64  # halvings of a micro-batch of 2**60, and more; the ladder of devices may be a ring


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """What one attempt runs with."""

    config: Mapping[str, Json]
    compute: ComputeRequest

    @property
    def identity(self) -> bytes:
        """Equal for two attempts that would meet the same limit of device memory."""
        return canonical_json([dict(self.config), self.compute.ranks, self.compute.device_class])


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedied:
    """What is tried next, and every change that leads there, with its reason."""

    tried: Tried
    changes: tuple[ConfigChange, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NothingToChange:
    """Why no change is left that could help."""

    why: str


def save_device_memory(
    tried: Tried, ran_out: Collection[bytes], larger_devices: Mapping[str, str]
) -> Remedied | NothingToChange:
    """Return the next step down in device memory, never one whose identity is in `ran_out`.

    Halve the micro-batch and double the accumulation (the same global batch), then the allocator's
    setting, then activation checkpointing, then a larger device.
    """
    changes: list[ConfigChange] = []
    current = tried
    for _ in range(STEPS_MAX):
        step = next(_steps(current, larger_devices), None)
        if step is None:
            break
        current = step.tried
        changes.extend(step.changes)
        if current.identity not in ran_out:
            return Remedied(tried=current, changes=_merged(changes))
    return NothingToChange(
        why="the micro-batch cannot be halved any more, and the config has no allocator setting "
        "or activation checkpointing left to switch on, the cluster no larger device"
    )


def give_more_memory(
    tried: Tried, *, declared: ComputeRequest, growth: float, growth_max: float
) -> Remedied | NothingToChange:
    """Return `tried` with `growth` times the host memory and half the loader workers.

    The memory stays within `growth_max` times what the run was declared with.
    """
    config, compute = dict(tried.config), tried.compute
    changes: list[ConfigChange] = []
    if compute.memory_bytes is not None and declared.memory_bytes is not None:
        cap = int(declared.memory_bytes * growth_max)
        grown = min(int(compute.memory_bytes * growth), cap)
        if grown > compute.memory_bytes:
            why = f"{growth:g} times the host memory, at most {growth_max:g} times the first"
            changes.append(_change("compute.memory_bytes", compute.memory_bytes, grown, why))
            compute = replace(compute, memory_bytes=grown)
    workers = config.get("loader_workers")
    if type(workers) is int and workers > 0:
        changes.append(
            _change("loader_workers", workers, workers // 2, "each worker holds batches of its own")
        )
        config["loader_workers"] = workers // 2
    if not changes:
        return NothingToChange(
            why="the compute request names no memory limit that could still grow, and there are no "
            "loader workers to take away"
        )
    return Remedied(tried=Tried(config=config, compute=compute), changes=tuple(changes))


def leave_node(tried: Tried, placed: AttemptPlaced | None) -> Remedied:
    """Return `tried` on another node, where that can be said: a cluster, and a gang on one node.

    A local gang has one machine, and of several nodes it is not known here which one is to blame.
    """
    nodes = {place.node for place in placed.ranks} if placed else set()
    before = tried.compute.excluded_nodes
    if tried.compute.launcher == "local" or len(nodes) != 1 or nodes <= set(before):
        return Remedied(tried=tried, changes=())
    after = (*before, *nodes)
    change = _change(
        "compute.excluded_nodes", list(before), list(after), "the attempt failed there"
    )
    compute = replace(tried.compute, excluded_nodes=after)
    return Remedied(tried=replace(tried, compute=compute), changes=(change,))


def global_batch_of(config: Mapping[str, Json], ranks: int) -> int | None:
    """Return micro_batch × accumulation × ranks; None when the config does not have these keys.

    24 = 4 × 3 × 2
    """
    micro_batch, accumulation = config.get("micro_batch"), config.get("accumulation")
    if type(micro_batch) is not int or type(accumulation) is not int:
        return None
    return micro_batch * accumulation * ranks


def _steps(tried: Tried, larger_devices: Mapping[str, str]) -> Iterator[Remedied]:
    """Yield each single step that saves device memory from `tried`, the preferred one first."""
    smaller = _smaller_micro_batch(tried)
    if smaller is not None:
        yield smaller
    for key, value in (ALLOCATOR, ACTIVATION_CHECKPOINTING):
        if key in tried.config and tried.config[key] != value:
            change = _change(key, tried.config[key], value, "it saves device memory")
            config = {**tried.config, key: value}
            yield Remedied(tried=replace(tried, config=config), changes=(change,))
    device = tried.compute.device_class
    if device in larger_devices:
        larger = larger_devices[device]
        change = _change("compute.device_class", device, larger, "a device with more memory")
        compute = replace(tried.compute, device_class=larger)
        yield Remedied(tried=replace(tried, compute=compute), changes=(change,))


def _smaller_micro_batch(tried: Tried) -> Remedied | None:
    """Return `tried` with half the micro-batch and double the accumulation.

    An odd micro-batch shrinks to the greatest divisor of a rank's share that is below half of it:
    of a share of 9, micro-batches of 9 become 3 with three times the accumulation.
    """
    ranks = tried.compute.ranks
    before = global_batch_of(tried.config, ranks)
    if before is None or tried.config["micro_batch"] < 2:
        return None
    micro_batch, accumulation = tried.config["micro_batch"], tried.config["accumulation"]
    share = micro_batch * accumulation
    half = max(size for size in range(1, micro_batch // 2 + 1) if share % size == 0)
    config = {**tried.config, "micro_batch": half, "accumulation": share // half}
    if global_batch_of(config, ranks) != before:
        raise AssertionError(f"A remedy must not change the global batch of {before}: {config}.")
    why = f"half the activations at once; the global batch of {before} stays"
    return Remedied(
        tried=replace(tried, config=config),
        changes=(
            _change("micro_batch", micro_batch, half, why),
            _change("accumulation", accumulation, share // half, why),
        ),
    )


def _merged(changes: list[ConfigChange]) -> tuple[ConfigChange, ...]:
    """Return one change a key, from what it was first to what it is last."""
    merged: dict[str, ConfigChange] = {}
    for change in changes:
        first = merged.get(change.key, change)
        merged[change.key] = replace(change, before=first.before)
    return tuple(merged.values())


def _change(key: str, before: Json, after: Json, why: str) -> ConfigChange:
    return ConfigChange(key=key, before=before, after=after, why=why)

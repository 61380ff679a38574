"""The changes that a retry makes: each remedy is a function from what was tried to what is tried next.

Only keys that the config or the compute request really has are changed. Where nothing is left to
change, the function returns why, and the retry is refused: the same attempt would end the same.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace

from tracks_dagster.track.bodies import (
    AttemptPlaced,
    CheckpointCadence,
    ComputeRequest,
    ConfigChange,
)
from tracks_dagster.track.placement import nodes_of, pool_of
from tracks_dagster.track.records import Json, canonical_json
from tracks_dagster.track.roles import (
    ACCUMULATION,
    ACTIVATION_CHECKPOINTING,
    ALLOCATOR,
    EXPANDABLE_SEGMENTS,
    LEARNING_RATES,
    LOADER_WORKERS,
    LR,
    MICRO_BATCH,
    Roles,
    key_of,
    value_of,
)
from tracks_dagster.track.samples import SKIP_WINDOWS, WINDOWS_MAX

# The name since PyTorch 2.9, and the one before it, which later ones read where the first is not set.
VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
SKIP_FROM = 2  # the number of the rollback from which on the data window is left out
SLOWER_FROM = 3  # and the learning rate is halved
EVERY_S_MIN = 60.0  # a cadence is not shortened below this
EVERY_S_FIRST = 600.0  # of a run that saved only at its end

# The newest; those before are let back, or in the end no node would be left.
EXCLUDED_NODES_MAX = 16
EXCLUDED_CHARACTERS_MAX = 2000  # of their names together, which a record holds three times

STEPS_MAX = 64  # halvings of a micro-batch of 2**60, and more; the ladder of devices may be a ring


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """What one attempt runs with. cadence: None for the one that the run was declared with.

    roles: which keys of the config are the micro-batch and the others, as `track.roles` has them.
    """

    config: Mapping[str, Json]
    compute: ComputeRequest
    cadence: CheckpointCadence | None = None
    roles: Roles = field(default_factory=dict)

    def key(self, role: str) -> str | None:
        """The config's key that has that role; None where it has none."""
        return key_of(self.config, self.roles, role)

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
        why=f"{_why_not_halved(current)}, and the config has no allocator setting or activation "
        "checkpointing left to switch on, the cluster no larger device"
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
    key = tried.key(LOADER_WORKERS)
    workers = None if key is None else config[key]
    if key is not None and type(workers) is int and workers > 0:
        why = "each worker holds batches of its own"
        changes.append(_change(key, workers, workers // 2, why))
        config[key] = workers // 2
    if not changes:
        return NothingToChange(why=_no_more_memory(compute, declared, growth_max))
    return Remedied(tried=replace(tried, config=config, compute=compute), changes=tuple(changes))


def leave_node(tried: Tried, placed: AttemptPlaced | None, blamed: str | None = None) -> Remedied:
    """Return `tried` on another node, where that is possible: in a cluster, for one node.

    blamed: the node that failed first, of a gang on several; without it only a gang on one node shows
    which one is to blame. A local gang has one machine and stays on it.
    """
    nodes = set(nodes_of(placed)) if placed else set()
    left = {blamed} if blamed is not None else nodes
    before = tried.compute.excluded_nodes
    if tried.compute.launcher == "local" or len(left) != 1 or left <= set(before):
        return Remedied(tried=tried, changes=())
    after = _newest_nodes((*before, *left))
    which = (
        "the attempt failed there" if len(nodes) < 2 else f"of {len(nodes)} nodes it failed first"
    )
    change = _change("compute.excluded_nodes", list(before), list(after), which)
    compute = replace(tried.compute, excluded_nodes=after)
    return Remedied(tried=replace(tried, compute=compute), changes=(change,))


def _newest_nodes(nodes: tuple[str, ...]) -> tuple[str, ...]:
    """Return the newest of them, as many as a record can name; at least the last one."""
    kept, characters = 0, 0
    for node in reversed(nodes[-EXCLUDED_NODES_MAX:]):
        characters += len(node)
        if kept and characters > EXCLUDED_CHARACTERS_MAX:
            break
        kept += 1
    return nodes[-kept:]


def change_pool(remedied: Remedied, other_pools: Mapping[str, str], *, why: str) -> Remedied:
    """Return it in the pool that `other_pools` names after its own; unchanged where it names none.

    The pools may form a ring: the time that such ends may take together is limited elsewhere. Nodes
    that were excluded are of the pool before, and are let back.
    """
    tried = remedied.tried
    before = pool_of(tried.compute)
    after = other_pools.get(before)
    if after is None or after == before:
        return remedied
    others = [change for change in remedied.changes if change.key != "compute.excluded_nodes"]
    change = _change("compute.pool", before, after, why)
    compute = replace(tried.compute, pool=after, excluded_nodes=())
    return Remedied(tried=replace(tried, compute=compute), changes=(*others, change))


def save_sooner(tried: Tried, declared: CheckpointCadence) -> Remedied:
    """Return `tried` with checkpoints twice as often, down to every step and every 60 s.

    every_steps 10 → 5; every_s 300 → 150; a run that saved only at its end: every 600 s.
    """
    before = tried.cadence or declared
    after = CheckpointCadence(
        every_steps=None if before.every_steps is None else max(1, before.every_steps // 2),
        every_s=_sooner(before),
    )
    why = "it met its time limit before its first checkpoint"
    pairs = {
        "cadence.every_steps": (before.every_steps, after.every_steps),
        "cadence.every_s": (before.every_s, after.every_s),
    }
    changes = tuple(_change(key, old, new, why) for key, (old, new) in pairs.items() if old != new)
    return Remedied(tried=replace(tried, cadence=after) if changes else tried, changes=changes)


def leave_out(
    tried: Tried, *, number: int, resumed_step: int, onset: int, order_is_ours: bool = True
) -> Remedied | NothingToChange:
    """Return what the rollback of that number changes beside where it resumes.

    1: nothing. From 2 on the samples of the steps after `resumed_step` up to `onset` are left out;
    from 3 on the learning rate is halved as well, where the config has one. Where the order of samples
    is the script's own, none can be left out, and it is halved from 2 on.
    """
    if number < SKIP_FROM:
        return Remedied(tried=tried, changes=())
    key = _rate_key(tried.config, tried.roles)
    if not order_is_ours:
        return _slower(tried, key)
    before = tried.config.get(SKIP_WINDOWS) or []
    if len(before) >= WINDOWS_MAX:
        return NothingToChange(why=f"{SKIP_WINDOWS} holds {WINDOWS_MAX} windows already")
    after = [*before, [resumed_step + 1, onset]]
    why = f"the samples up to step {onset}, where the numbers went wrong, are left out"
    changes = [_change(SKIP_WINDOWS, before, after, why)]
    config = {**tried.config, SKIP_WINDOWS: after}
    if number >= SLOWER_FROM and key is not None:
        config[key] = tried.config[key] / 2
        why = "it went wrong without these samples too"
        changes.append(_change(key, tried.config[key], config[key], why))
    return Remedied(tried=replace(tried, config=config), changes=tuple(changes))


def _slower(tried: Tried, key: str | None) -> Remedied | NothingToChange:
    """Return `tried` with half the learning rate, which has that key."""
    owner = "the order of samples is the script's own, so that none can be left out"
    if key is None:
        return NothingToChange(why=f"{owner}, and its config names no learning rate")
    half = tried.config[key] / 2
    change = _change(key, tried.config[key], half, f"it went wrong again, and {owner}")
    return Remedied(tried=replace(tried, config={**tried.config, key: half}), changes=(change,))


def learning_rate(config: Mapping[str, Json], roles: Roles) -> float | None:
    """Return the learning rate of a config, above 0; None where it has none under a known key."""
    key = _rate_key(config, roles)
    return None if key is None else float(config[key])


def global_batch_of(config: Mapping[str, Json], roles: Roles, ranks: int) -> int | None:
    """Return micro_batch × accumulation × ranks; None when the config does not have these keys.

    24 = 4 × 3 × 2
    """
    micro_batch = value_of(config, roles, MICRO_BATCH)
    accumulation = value_of(config, roles, ACCUMULATION)
    if type(micro_batch) is not int or type(accumulation) is not int:
        return None
    return micro_batch * accumulation * ranks


def _steps(tried: Tried, larger_devices: Mapping[str, str]) -> Iterator[Remedied]:
    """Yield each single step that saves device memory from `tried`, the preferred one first."""
    smaller = _smaller_micro_batch(tried)
    if smaller is not None:
        yield smaller
    recomputes = tried.key(ACTIVATION_CHECKPOINTING)
    switch = () if recomputes is None else ((recomputes, True),)
    for key, value in ((ALLOCATOR, EXPANDABLE_SEGMENTS), *switch):
        before = tried.config.get(key)
        if before is not None and type(before) is type(value) and before != value:
            change = _change(key, before, value, "it saves device memory")
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
    before = global_batch_of(tried.config, tried.roles, ranks)
    micro_key, follows = tried.key(MICRO_BATCH), tried.key(ACCUMULATION)
    if before is None or micro_key is None or follows is None or tried.config[micro_key] < 2:
        return None
    micro_batch, accumulation = tried.config[micro_key], tried.config[follows]
    share = micro_batch * accumulation
    half = next(size for size in range(micro_batch // 2, 0, -1) if share % size == 0)
    config = {**tried.config, micro_key: half, follows: share // half}
    if global_batch_of(config, tried.roles, ranks) != before:
        raise AssertionError(f"A remedy must not change the global batch of {before}: {config}.")
    why = f"half the activations at once; the global batch of {before} stays"
    return Remedied(
        tried=replace(tried, config=config),
        changes=(
            _change(micro_key, micro_batch, half, why),
            _change(follows, accumulation, share // half, why),
        ),
    )


def _why_not_halved(tried: Tried) -> str:
    """Return why the micro-batch stays as it is, once `_smaller_micro_batch` has nothing."""
    key = tried.key(MICRO_BATCH)
    if key is None:
        return "no key of the config means micro_batch"
    if tried.key(ACCUMULATION) is None:
        found = f"{key} = {tried.config[key]}"
        return f"{found} is not halved: no key means accumulation, and the global batch stays"
    return f"{key} cannot be halved any more"


def _no_more_memory(compute: ComputeRequest, declared: ComputeRequest, growth_max: float) -> str:
    """Return why no more host memory can be given, and what a person can do."""
    workers = "there are no loader workers to take away"
    if compute.memory_bytes is None or declared.memory_bytes is None:
        return (
            f"the attempt asked for no amount of host memory that could grow (launcher "
            f"{compute.launcher}: it may use what the machine has), and {workers}; free memory on the "
            "machine, or use a smaller micro_batch"
        )
    return (
        f"it has {compute.memory_bytes} bytes of host memory, which is {growth_max:g} times the "
        f"{declared.memory_bytes} that it was declared with and the most it is given, and {workers}"
    )


def _sooner(before: CheckpointCadence) -> float | None:
    if before.every_s is not None:
        return max(min(before.every_s, EVERY_S_MIN), before.every_s / 2)
    return EVERY_S_FIRST if before.every_steps is None else None


def _rate_key(config: Mapping[str, Json], roles: Roles) -> str | None:
    """Return the config's key of a learning rate above 0, or None."""
    keys = (roles[LR],) if LR in roles else LEARNING_RATES
    found = (key for key in keys if type(config.get(key)) in (int, float))
    return next((key for key in found if config[key] > 0), None)


def _merged(changes: list[ConfigChange]) -> tuple[ConfigChange, ...]:
    """Return one change a key, from what it was first to what it is last."""
    merged: dict[str, ConfigChange] = {}
    for change in changes:
        first = merged.get(change.key, change)
        merged[change.key] = replace(change, before=first.before)
    return tuple(merged.values())


def _change(key: str, before: Json, after: Json, why: str) -> ConfigChange:
    return ConfigChange(key=key, before=before, after=after, why=why)


def allocator_environment(config: Mapping[str, Json]) -> dict[str, str]:
    """Return the variables that a rank must start with; none for the default, which the gang's own
    environment may have set otherwise."""
    if config.get(ALLOCATOR) != EXPANDABLE_SEGMENTS:
        return {}
    return dict.fromkeys(VARIABLES, f"{EXPANDABLE_SEGMENTS}:True")

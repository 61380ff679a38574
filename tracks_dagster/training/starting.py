"""Brings model, data and random numbers to where an attempt begins, fresh or resumed alike."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from tracks_dagster.retry.remediation import learning_rate
from tracks_dagster.track import roles
from tracks_dagster.track.bodies import AttemptRestored
from tracks_dagster.track.names import run_track
from tracks_dagster.track.records import Json, Kind, canonical_json, sha256_hex
from tracks_dagster.track.states import run_fold
from tracks_dagster.track.states.checkpoints import CheckpointRef
from tracks_dagster.track.track import read_records
from tracks_dagster.training.feeding import Feed
from tracks_dagster.training.launch import Launch
from tracks_dagster.training.saves import random_state
from tracks_dagster.training.saves.built import (
    Built,
    apply_changes,
    find_changes,
    in_use,
    take_built,
    unused_numbers,
)
from tracks_dagster.training.saves.chunk_writer import KnownChunks
from tracks_dagster.training.saves.loading import Fetched, fetch, load_into, load_own_into
from tracks_dagster.training.saves.restoring import find_checkpoint
from tracks_dagster.training.saves.staging import Arena
from tracks_dagster.training.saves.trained import Trained

# What torch's schedulers keep in an optimizer's groups, in the unit of its learning rate.
_IN_GROUPS = ("lr", "initial_lr", "max_lr", "min_lr")
_NOT_IN_STATES = (
    roles.LR,  # followed by itself
    roles.STEPS,
    roles.SEED,
    roles.MICRO_BATCH,
    roles.ACCUMULATION,
    roles.GLOBAL_BATCH,
    roles.LOADER_WORKERS,
    roles.ACTIVATION_CHECKPOINTING,
)
_IN_SCHEDULERS = ("base_lrs", "max_lrs", "min_lrs", "_last_lr")


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """Where an attempt begins. step: the last one done, 0 when fresh.

    known: the chunks that its first save need not write again; progress: as it was saved, or None;
    built: what was trained was built with it (`saves.built`).
    """

    step: int
    known: KnownChunks
    built: Mapping[str, Json]
    progress: Mapping[str, Json] | None


def begin(
    launch: Launch,
    trained: Trained,
    feed: Feed,
    *,
    arena: Arena,
    until: int,
    one_backward: Callable[[], object] | None,
) -> Begun:
    """Restore what the attempt resumes from, or start from step 0, and append `attempt_restored`.

    Collective. The order matters: first the states of the script's own names, which a loader may
    begin from; then its workers are forked, then comes the rehearsal, then what is trained, and the
    random numbers last, because making an iterator draws from them, but for a loader over our sampler
    (with them restored first no loss was equal, measured). Raises CheckpointMismatch,
    CheckpointCorrupt, Fenced.
    """
    built = take_built(trained)
    found = find_checkpoint(
        launch,
        partial(
            fetch,
            launch.store,
            trained=trained,
            arena=arena,
            rank=launch.ranks.rank,
            world_size=launch.ranks.world_size,
        ),
    )
    fetched = found.fetched
    step = fetched.ref.step if fetched else 0
    if fetched is not None:
        feed.go_on_at(fetched.data, step=step)
        load_own_into(trained, fetched, rank=launch.ranks.rank)
    feed.begin(after=step, until=until)
    if one_backward is not None:
        rehearse(trained, one_backward)
    known = KnownChunks()
    changed: tuple[str, ...] = ()
    if fetched is not None:
        feed.check_position(fetched.data, step=step)
        changed = _load_and_follow(launch, trained, fetched, built)
        if fetched.ref.run_id == launch.place.run_id:  # a branch writes every chunk of its own
            known.learn_restored(fetched.ref.manifest_sha256, fetched.manifest.chunks)
        _restore_random(launch, feed, fetched)
    record_restored(
        launch,
        fetched.ref if fetched else None,
        cursor=feed.cursor(step),
        fallback_why=found.fallback_why,
        changed=changed,
        in_use=in_use(trained),
    )
    return Begun(
        step=step,
        known=known,
        built=built.values,
        progress=fetched.progress if fetched else None,
    )


def _load_and_follow(
    launch: Launch, trained: Trained, fetched: Fetched, built: Built
) -> tuple[str, ...]:
    """Load what is trained; let what is built otherwise now hold. Return that in sentences."""
    then = fetched.progress.get("built")
    if then is None:  # of an older version
        load_into(trained, fetched)
        follow_config(launch, trained, fetched)
        return unused_numbers(trained, built) if _has_other_config(launch, fetched) else ()
    saved = {name: member.values for name, member in fetched.manifest.members.items()}
    changes = find_changes(built, then, saved, progress=fetched.progress)
    load_into(trained, fetched)
    apply_changes(trained, changes)
    if changes.sentences and launch.ranks.is_first:
        print(
            f"Built otherwise than for the checkpoint of step {fetched.ref.step}, and used so: "
            f"{'; '.join(changes.sentences)}.",
            file=sys.stderr,
            flush=True,
        )
    return changes.sentences


def _has_other_config(launch: Launch, fetched: Fetched) -> bool:
    now = sha256_hex(canonical_json(dict(launch.opened.config)))
    return now != fetched.manifest.config_sha256


def _restore_random(launch: Launch, feed: Feed, fetched: Fetched) -> None:
    rank, step = launch.ranks.rank, fetched.ref.step
    if len(fetched.rng) == launch.ranks.world_size:
        random_state.restore(fetched.rng[rank])
    else:  # no rank's state fits another number of ranks
        random_state.seed_all(feed.seed or 0, rank=rank, step=step)


def record_restored(
    launch: Launch,
    ref: CheckpointRef | None,
    *,
    cursor: int | None,
    fallback_why: str | None,
    inexact: tuple[str, ...] = (),
    changed: tuple[str, ...] = (),
    in_use: Mapping[str, Json] | None = None,
) -> None:
    """Append `attempt_restored`; ref: what was restored, None for a fresh start. Collective."""
    body = AttemptRestored(
        launch_id=launch.launch_id,
        step=ref.step if ref else 0,
        checkpoint=ref,
        cursor=cursor,
        fallback_why=fallback_why,
        inexact=inexact,
        changed=changed,
        in_use=in_use,
    )
    draft = launch.draft(Kind.ATTEMPT_RESTORED, body)

    def append() -> Json:
        launch.append(draft)
        return None

    launch.ranks.from_first(append)


def rehearse(trained: Trained, one_backward: Callable[[], object]) -> None:
    """Call `one_backward` and undo what it did to gradients, buffers, RNG and optimizer state.

    DDP sorts its gradient buckets again after the first backward, and from 3 ranks on another sorting
    sums in another order. After a rehearsal every attempt, fresh or resumed, sums in the same one
    (measured with gloo on 3 and 4 ranks).

    It must not change parameters, as stepping the optimizer would.
    """
    rng = random_state.capture()
    live = [buffer for module in trained.modules.values() for buffer in module.buffers()]
    buffers = [buffer.clone() for buffer in live]
    optimizers = {n: copy.deepcopy(o.state_dict()) for n, o in trained.optimizers.items()}
    one_backward()
    for module in trained.modules.values():
        module.zero_grad(set_to_none=True)
    with torch.no_grad():
        for buffer, before in zip(live, buffers, strict=True):
            buffer.copy_(before)
    for name, optimizer in trained.optimizers.items():
        optimizer.load_state_dict(optimizers[name])
    random_state.restore(rng)


def follow_config(launch: Launch, trained: Trained, fetched: Fetched) -> float:
    """Multiply what was restored by what the config's learning rate changed, and return that factor.

    Optimizers and schedulers save their learning rates, so a checkpoint brings back those of the
    config that it was written with. Where the config has another rate since (a remedy halved it, a
    person or a branch set it), everything restored is multiplied by the ratio of the two: the schedule
    continues, that much higher or lower.

    1.0, and nothing touched, where the config or its rate is the same. Collective.
    """
    factor = rate_factor(launch, fetched.ref, config_sha256=fetched.manifest.config_sha256)
    if factor != 1.0:
        rescale(trained.optimizers.values(), trained.schedulers, factor)
    return factor


def rate_factor(launch: Launch, ref: CheckpointRef, *, config_sha256: str) -> float:
    """Return what the config's learning rate was multiplied by since `ref`, which had that config."""
    now, given = launch.opened.config, launch.declared.roles
    if sha256_hex(canonical_json(dict(now))) == config_sha256:
        return 1.0
    before = launch.ranks.from_first(lambda: learning_rate(_config_of(launch, ref), given))
    after = learning_rate(now, given)
    if before is None or after is None or before == after:
        return 1.0
    factor: float = after / before
    return factor


def changed_config(
    launch: Launch, ref: CheckpointRef, *, config_sha256: str
) -> dict[str, tuple[Json, Json]]:
    """Return the keys of the config that are not as they were for `ref`, with both values. Collective.

    Without those that an optimizer's state does not hold: the rate, sizes of batches, steps, seed.
    """
    now, given = launch.opened.config, launch.declared.roles
    if sha256_hex(canonical_json(dict(now))) == config_sha256:
        return {}
    before = launch.ranks.from_first(lambda: dict(_config_of(launch, ref)))
    own = {roles.key_of(now, given, role) for role in _NOT_IN_STATES}
    return {
        key: (before[key], value)
        for key, value in now.items()
        if key in before and before[key] != value and key not in own
    }


def rescale(
    optimizers: Iterable[Optimizer], schedulers: Iterable[LRScheduler], factor: float
) -> None:
    """Multiply every learning rate that the optimizers and their schedulers hold."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for key in _IN_GROUPS:
                if key in group:
                    group[key] = group[key] * factor
    for outer in schedulers:
        nested: list[LRScheduler] = getattr(outer, "_schedulers", [])
        for scheduler in (outer, *nested):
            for key in _IN_SCHEDULERS:
                rates = getattr(scheduler, key, None)
                if isinstance(rates, list):
                    setattr(scheduler, key, [rate * factor for rate in rates])


def _config_of(launch: Launch, ref: CheckpointRef) -> Mapping[str, Json]:
    """Return the config of the attempt that wrote `ref`."""
    state = run_fold.fold(read_records(launch.store, run_track(ref.run_id)))
    attempt = state.attempt(ref.attempt_id) if state is not None else None
    return attempt.opened.config if attempt is not None else {}

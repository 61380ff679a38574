"""Lets a changed learning rate take effect on what was restored.

Optimizers and schedulers save their learning rates, so a checkpoint brings back those of the config
that it was written with. Where the config has another rate since (a remedy halved it, a person or a
branch set it), everything restored is multiplied by the ratio of the two: the schedule goes on where
it stood, that much higher or lower.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch.optim.lr_scheduler import LRScheduler

from tracks_dagster.retry.remediation import learning_rate
from tracks_dagster.track.records import Json, canonical_json, sha256_hex
from tracks_dagster.track.states import run_fold
from tracks_dagster.track.states.checkpoints import CheckpointRef
from tracks_dagster.track.track import read_records, run_track
from tracks_dagster.training.launch import Launch
from tracks_dagster.training.saves.loading import Fetched
from tracks_dagster.training.saves.state_dict import Trained

# What torch's schedulers keep in an optimizer's groups, in the unit of its learning rate.
_IN_GROUPS = ("lr", "initial_lr", "max_lr", "min_lr")
_IN_SCHEDULERS = ("base_lrs", "max_lrs", "min_lrs", "_last_lr")


def follow_config(launch: Launch, trained: Trained, fetched: Fetched) -> float:
    """Multiply what was restored by what the config's learning rate changed, and return that factor.

    1.0, and nothing touched, where the config or its rate is the same. Collective.
    """
    now = launch.opened.config
    if sha256_hex(canonical_json(dict(now))) == fetched.manifest.config_sha256:
        return 1.0
    before = launch.ranks.from_first(lambda: learning_rate(_config_of(launch, fetched.ref)))
    after = learning_rate(now)
    if before is None or after is None or before == after:
        return 1.0
    factor: float = after / before
    rescale(trained, factor)
    return factor


def rescale(trained: Trained, factor: float) -> None:
    """Multiply every learning rate that the optimizer and its scheduler hold."""
    for group in trained.optimizer.param_groups:
        for key in _IN_GROUPS:
            if key in group:
                group[key] = group[key] * factor
    if trained.scheduler is None:
        return
    nested: list[LRScheduler] = getattr(trained.scheduler, "_schedulers", [])
    for scheduler in (trained.scheduler, *nested):
        for key in _IN_SCHEDULERS:
            rates = getattr(scheduler, key, None)
            if isinstance(rates, list):
                setattr(scheduler, key, [rate * factor for rate in rates])


def _config_of(launch: Launch, ref: CheckpointRef) -> Mapping[str, Json]:
    """Return the config of the attempt that wrote `ref`."""
    state = run_fold.fold(read_records(launch.store, run_track(ref.run_id)))
    attempt = state.attempt(ref.attempt_id) if state is not None else None
    return attempt.opened.config if attempt is not None else {}

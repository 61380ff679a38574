"""Which keys of a config mean what: roles, as retries and pages need them, and our own. Pure.

A project names its keys as it likes; its file says which of them is the micro-batch and which the
learning rate. A run of an older version recorded no roles: there a role's key has the role's own name.
"""

from __future__ import annotations

from collections.abc import Mapping

from tracks_dagster.track.records import Json

STEPS = "steps"  # optimizer steps of the whole run
HORIZON = (
    "horizon"  # steps that the schedule of its learning rate is made for; 0: as many as it has
)
SEED = "seed"
MICRO_BATCH = "micro_batch"  # samples of one forward pass of one rank
ACCUMULATION = "accumulation"  # forward passes of one step
GLOBAL_BATCH = "global_batch"  # samples of one step, over all ranks
LR = "lr"
LOADER_WORKERS = "loader_workers"
ACTIVATION_CHECKPOINTING = "activation_checkpointing"
SCHEDULE = "schedule"  # how the learning rate changes
WARMUP = "warmup"
WEIGHT_DECAY = "weight_decay"
OPTIMIZER = "optimizer"
BASE_CHECKPOINT = "base_checkpoint"  # the weights that it starts from
ROLES = (
    STEPS,
    HORIZON,
    SEED,
    MICRO_BATCH,
    ACCUMULATION,
    GLOBAL_BATCH,
    LR,
    LOADER_WORKERS,
    ACTIVATION_CHECKPOINTING,
    SCHEDULE,
    WARMUP,
    WEIGHT_DECAY,
    OPTIMIZER,
    BASE_CHECKPOINT,
)
# Our own keys have one name in every project (`projects/project.py`). Where a config has none:
SPIKE_Z = 12.0
DIVERGENCE_Z = 10.0
DIVERGENCE_STEPS = 50
HANG_S_MIN = 60.0  # no step for so long is not a hang yet, however short steps are
HANG_FACTOR = 10.0  # times the 99th percentile of the step times
START_S_MAX = 1800.0  # to start, to restore, and for the first step: it may compile

ALLOCATOR = "allocator"  # a key of ours
EXPANDABLE_SEGMENTS = "expandable_segments"  # and its value that saves device memory

LEARNING_RATES = (LR, "learning_rate")  # what a key of that role is called where nobody says so

Roles = Mapping[str, str]  # role → the config's key


def roles_of(given: Roles, keys: Mapping[str, object]) -> dict[str, str]:
    """Return the roles that a config with `keys` has: those given, else keys of the role's own name.

    `roles_of({"steps": "max_iters"}, {"max_iters": 9, "learning_rate": 0.1})` is
    `{"steps": "max_iters", "lr": "learning_rate"}`.
    """
    found = {role: role for role in ROLES if role in keys}
    rate = next((key for key in LEARNING_RATES if key in keys), None)
    return {**found, **({} if rate is None else {LR: rate}), **given}


def key_of(config: Mapping[str, Json], roles: Roles, role: str) -> str | None:
    """Return the config's key in that role; None where it has none."""
    key = roles_of(roles, config).get(role)
    return key if key in config else None


def value_of(config: Mapping[str, Json], roles: Roles, role: str) -> Json:
    """Return the config's value in that role; None where it has none."""
    key = key_of(config, roles, role)
    return None if key is None else config[key]

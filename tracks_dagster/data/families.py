"""The model families that ship: their config keys, data, eval and promotion rule, as data.

The code that builds and trains them is `training.families`. A config is flat: JSON scalars, and the
list of `skip_windows`. `resolve_config` is the only way to one, so that every config in a track was
checked. `trainer_name` names the script of a run with its own trainer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from tracks_dagster.reasons.divergence import DIVERGENCE_STEPS, DIVERGENCE_Z, SPIKE_Z
from tracks_dagster.reasons.hangs import HANG_FACTOR, HANG_S_MIN, START_S_MAX
from tracks_dagster.retry.remediation import ALLOCATOR
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.records import Json
from tracks_dagster.track.roles import ACTIVATION_CHECKPOINTING
from tracks_dagster.track.samples import SKIP_WINDOWS, check_windows

REPORTED = ("loss", "lr", "gradient_norm")  # what the families that ship report of each step


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberKey:
    """A number of the default's type, in a range that includes both ends."""

    default: int | float
    low: float
    high: float
    meaning: str

    def check(self, name: str, value: Json) -> Json:
        """Return the value for a config; raises InvalidInput."""
        kind = type(self.default)
        number = float(value) if kind is float and type(value) is int else value
        if type(number) is not kind:
            raise InvalidInput(
                f"{name} = {value!r} is no {kind.__name__}; it means: {self.meaning}."
            )
        if not self.low <= number <= self.high:
            raise InvalidInput(
                f"{name} = {value!r} is out of range: {self.low:g} to {self.high:g}."
            )
        return number


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchKey:
    """True or false."""

    default: bool
    meaning: str

    def check(self, name: str, value: Json) -> Json:
        """Return the value for a config; raises InvalidInput."""
        if type(value) is not bool:
            raise InvalidInput(f"{name} = {value!r} is neither true nor false: {self.meaning}.")
        return value


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceKey:
    """One of a few words."""

    default: str
    choices: tuple[str, ...]
    meaning: str

    def check(self, name: str, value: Json) -> Json:
        """Return the value for a config; raises InvalidInput."""
        if value not in self.choices:
            raise InvalidInput(
                f"{name} = {value!r} is no choice; use one of: {', '.join(self.choices)}. It means: "
                f"{self.meaning}."
            )
        return value


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowsKey:
    """A list of windows of steps, as `track.samples` reads it."""

    meaning: str

    @property
    def default(self) -> Json:
        """No window."""
        return []

    def check(self, name: str, value: Json) -> Json:
        """Return the value for a config; raises InvalidInput."""
        return check_windows(value)


ConfigKey = NumberKey | SwitchKey | ChoiceKey | WindowsKey


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One family. `metric` of `suite` on the held-out dataset decides promotion."""

    name: str
    description: str
    dataset: str
    heldout_dataset: str
    suite: str
    suite_version: str
    metric: str
    direction: str
    threshold: float
    keys: Mapping[str, ConfigKey]


# What gpu_oom's remedies change is in the configs from the start: only such keys are changed.
_COMMON: dict[str, ConfigKey] = {
    "steps": NumberKey(default=40, low=1, high=10_000_000, meaning="optimizer steps to run"),
    "seed": NumberKey(default=7, low=0, high=2**31 - 1, meaning="of weights, order and dropout"),
    "global_batch": NumberKey(
        default=24, low=1, high=1_000_000, meaning="samples per step, over all ranks"
    ),
    "micro_batch": NumberKey(
        default=4, low=1, high=1_000_000, meaning="samples of one forward pass of one rank"
    ),
    "warmup_steps": NumberKey(
        default=10, low=0, high=10_000_000, meaning="steps until the full learning rate"
    ),
    "weight_decay": NumberKey(default=0.01, low=0.0, high=1.0, meaning="of AdamW"),
    "dropout": NumberKey(default=0.1, low=0.0, high=0.9, meaning="share of activations dropped"),
    "loader_workers": NumberKey(
        default=0, low=0, high=64, meaning="data-loader processes of each rank"
    ),
    "spike_z": NumberKey(
        default=SPIKE_Z, low=0.0, high=1e6, meaning="modified z-score of a loss spike; 0: off"
    ),
    "divergence_z": NumberKey(
        default=DIVERGENCE_Z, low=0.0, high=1e6, meaning="and of a diverging loss; 0: off"
    ),
    "divergence_steps": NumberKey(
        default=DIVERGENCE_STEPS, low=1, high=1_000_000, meaning="so many in a row end the attempt"
    ),
    "hang_s": NumberKey(
        default=HANG_S_MIN, low=1.0, high=1e6, meaning="seconds without a step before it is a hang"
    ),
    "hang_factor": NumberKey(
        default=HANG_FACTOR, low=1.0, high=1e6, meaning="and times the 99th percentile of a step"
    ),
    "start_s": NumberKey(
        default=START_S_MAX, low=1.0, high=1e6, meaning="seconds to start, to restore, for step 1"
    ),
    ALLOCATOR.key: ChoiceKey(
        default="default",
        choices=("default", ALLOCATOR.value),
        meaning="how PyTorch's CUDA allocator takes device memory",
    ),
    SKIP_WINDOWS: WindowsKey(meaning="steps whose samples are left out"),
}

FAMILIES: dict[str, Family] = {
    "gpt": Family(
        name="gpt",
        description="A small GPT on bytes of English: the documentation of AWS's services.",
        dataset="aws-docs",
        heldout_dataset="aws-docs-heldout",
        suite="heldout-loss",
        suite_version="1",
        metric="loss",  # nats per byte
        direction="min",
        threshold=round(math.log(256), 4),  # worse than guessing every byte alike is not promoted
        keys={
            **_COMMON,
            "lr": NumberKey(default=3e-3, low=0.0, high=1.0, meaning="peak learning rate"),
            "context": NumberKey(default=64, low=8, high=8192, meaning="bytes of one sample"),
            "layers": NumberKey(default=2, low=1, high=96, meaning="transformer blocks"),
            "heads": NumberKey(default=4, low=1, high=128, meaning="attention heads"),
            "d_model": NumberKey(
                default=64, low=8, high=16384, meaning="width; a multiple of heads"
            ),
            ACTIVATION_CHECKPOINTING: SwitchKey(
                default=False, meaning="compute a block's activations again in the backward pass"
            ),
        },
    ),
    "tabular": Family(
        name="tabular",
        description="A classifier: will a flight from New York arrive 15 minutes late or more?",
        dataset="flights",
        heldout_dataset="flights-heldout",
        suite="heldout-classification",
        suite_version="1",
        metric="loss",  # nats per flight
        direction="min",
        threshold=round(math.log(2), 4),  # worse than a coin is not promoted
        keys={
            **_COMMON,
            "global_batch": NumberKey(
                default=240, low=1, high=1_000_000, meaning="samples per step, over all ranks"
            ),
            "micro_batch": NumberKey(
                default=40, low=1, high=1_000_000, meaning="samples of one forward pass of one rank"
            ),
            "lr": NumberKey(default=1e-3, low=0.0, high=1.0, meaning="peak learning rate"),
            "hidden": NumberKey(default=64, low=1, high=65536, meaning="units of a hidden layer"),
            "layers": NumberKey(default=2, low=1, high=64, meaning="hidden layers"),
        },
    ),
}


def find_family(name: str) -> Family:
    """Return the family of that name; raises InvalidInput naming those that exist."""
    if name not in FAMILIES:
        raise InvalidInput(f"There is no model family {name!r}; choose one of: {_names(FAMILIES)}.")
    return FAMILIES[name]


def resolve_config(family: Family, given: Mapping[str, Json], *, ranks: int) -> dict[str, Json]:
    """Return the whole config: defaults, what was given, and the accumulation that follows.

    Raises InvalidInput for an unknown key, a value of another type or out of range, and for a
    global batch that ranks × micro_batch does not divide. A default micro-batch (never one that was
    given) shrinks to the largest that fits.
    """
    config: dict[str, Json] = {name: key.default for name, key in family.keys.items()}
    for name, value in given.items():
        if name not in family.keys:
            raise InvalidInput(
                f"{family.name} has no config key {name!r}; it has: {_names(family.keys)}."
            )
        config[name] = family.keys[name].check(name, value)
    if "d_model" in config and config["d_model"] % config["heads"]:
        raise InvalidInput(
            f"d_model {config['d_model']} is no multiple of heads {config['heads']}; "
            "change one of the two."
        )
    if config["global_batch"] % ranks:
        raise InvalidInput(
            f"A global batch of {config['global_batch']} cannot be divided among {ranks} ranks; "
            f"use a multiple of {ranks}."
        )
    share = config["global_batch"] // ranks
    if "micro_batch" not in given:
        config["micro_batch"] = max(m for m in range(1, config["micro_batch"] + 1) if not share % m)
    if share % config["micro_batch"]:
        raise InvalidInput(
            f"A rank's share of {share} samples cannot be divided into micro-batches of "
            f"{config['micro_batch']}; use a divisor of {share}."
        )
    config["accumulation"] = share // config["micro_batch"]
    return config


def _names(known: Mapping[str, object]) -> str:
    return ", ".join(sorted(known))

"""The model families that ship: their config keys, data, eval and promotion rule, as data.

The code that builds and trains them is `training.families`. A config is flat and holds JSON scalars;
`resolve_config` is the only way to one, so that what stands in a track was checked.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from tracks_dagster.core.errors import InvalidInput
from tracks_dagster.core.records import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigKey:
    """One key: its default, the range that is valid (both ends included), and what it means."""

    default: int | float
    low: float
    high: float
    meaning: str

    @property
    def kind(self) -> type[int] | type[float]:
        """int or float."""
        return type(self.default)


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


_COMMON = {
    "steps": ConfigKey(default=40, low=1, high=10_000_000, meaning="optimizer steps to run"),
    "seed": ConfigKey(default=7, low=0, high=2**31 - 1, meaning="of weights, order and dropout"),
    "global_batch": ConfigKey(
        default=24, low=1, high=1_000_000, meaning="samples per step, over all ranks"
    ),
    "micro_batch": ConfigKey(
        default=4, low=1, high=1_000_000, meaning="samples of one forward pass of one rank"
    ),
    "warmup_steps": ConfigKey(
        default=10, low=0, high=10_000_000, meaning="steps until the full learning rate"
    ),
    "weight_decay": ConfigKey(default=0.01, low=0.0, high=1.0, meaning="of AdamW"),
    "dropout": ConfigKey(default=0.1, low=0.0, high=0.9, meaning="share of activations dropped"),
    "loader_workers": ConfigKey(
        default=0, low=0, high=64, meaning="data-loader processes of each rank"
    ),
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
            "lr": ConfigKey(default=3e-3, low=0.0, high=1.0, meaning="peak learning rate"),
            "context": ConfigKey(default=64, low=8, high=8192, meaning="bytes of one sample"),
            "layers": ConfigKey(default=2, low=1, high=96, meaning="transformer blocks"),
            "heads": ConfigKey(default=4, low=1, high=128, meaning="attention heads"),
            "d_model": ConfigKey(
                default=64, low=8, high=16384, meaning="width; a multiple of heads"
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
            "global_batch": ConfigKey(
                default=240, low=1, high=1_000_000, meaning="samples per step, over all ranks"
            ),
            "micro_batch": ConfigKey(
                default=40, low=1, high=1_000_000, meaning="samples of one forward pass of one rank"
            ),
            "lr": ConfigKey(default=1e-3, low=0.0, high=1.0, meaning="peak learning rate"),
            "hidden": ConfigKey(default=64, low=1, high=65536, meaning="units of a hidden layer"),
            "layers": ConfigKey(default=2, low=1, high=64, meaning="hidden layers"),
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
        config[name] = _checked(name, family.keys[name], value)
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


def _checked(name: str, key: ConfigKey, value: Json) -> int | float:
    number = float(value) if key.kind is float and type(value) is int else value
    if type(number) is not key.kind:
        raise InvalidInput(
            f"{name} = {value!r} is no {key.kind.__name__}; it means: {key.meaning}."
        )
    if not key.low <= number <= key.high:
        raise InvalidInput(f"{name} = {value!r} is out of range: {key.low:g} to {key.high:g}.")
    return number


def _names(known: Mapping[str, object]) -> str:
    return ", ".join(sorted(known))

"""The text of a new `tracks.yaml`: every key that a project file may have, with a comment. Pure.

What is not given is written as an example, commented out: the file is also its own manual.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tracks_dagster.track.declared_fields import KEYED
from tracks_dagster.track.records import Json

HEAD = "# What `tracks run` does in this folder. docs/project.md says more about every key.\n"

_WORD = re.compile(r"(?:\./)?\.?[A-Za-z][\w.-]*(?:/[\w.-]+)*")
_COMMAND = re.compile(r"(?:\./)?[A-Za-z][\w./-]*(?: [\w./={}-]+)*")
_TIME = re.compile(r"\d+(?:s|min|h|d|w)")
_NOT_TEXT = frozenset({"null", "true", "false", "yes", "no", "on", "off", "y", "n"})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Key:
    """comment: what it means, in lines. example: a valid value."""

    comment: tuple[str, ...]
    example: Json


# The keys of a project file, in the order in which a person decides them.
KEYS: Mapping[str, _Key] = {
    "version": _Key(comment=("Of this file's form.",), example=1),
    "name": _Key(
        comment=('What runs are called after: 1 to 26 of a-z, 0-9 and "-".',), example="my-model"
    ),
    "entry": _Key(
        comment=(
            "What each rank starts: a script, -m package.module, or a command such as ./train.sh.",
            "{key} becomes that key's value, {config} the path of a file with the whole config.",
        ),
        example="train.py --lr={lr}",
    ),
    "config": _Key(
        comment=(
            "Your config: its keys with their defaults, or the name of your own file (.yaml, .json or",
            ".toml). `tracks run --set lr=0.01` changes a key for one run. A key may have a range and",
            "a meaning: {default: 8, low: 1, high: 512, meaning: samples of one forward pass}.",
        ),
        example={"lr": 0.001},
    ),
    "keys": _Key(
        comment=(
            "Which of your keys mean what, where they are called something else: steps, seed, lr,",
            "micro_batch, accumulation, global_batch, loader_workers, activation_checkpointing, and",
            "(a policy may ask for them) schedule, warmup, weight_decay, optimizer, base_checkpoint.",
            "Then --steps and --seed change your keys, and so do retries, as after an out-of-memory.",
        ),
        example={"steps": "max_iters", "micro_batch": "batch_size"},
    ),
    "dataset": _Key(
        comment=("The dataset that runs get the newest snapshot of.",), example="my-data"
    ),
    **{row.key: _Key(comment=(row.words,), example=row.example) for row in KEYED},
    "checkpoint": _Key(
        comment=(
            "When a checkpoint is saved; the first of both counts. With replay: 1 a planned stop",
            "trains a step past it, so that the resume can be compared. A trainer that publishes",
            "folders by itself (docs/checkpoints.md) has: checkpoint: folder.",
        ),
        example={"every_steps": 100, "every": "10min"},
    ),
    "retention": _Key(
        comment=(
            "Which checkpoints are kept: the newest, and the best by a metric that you report.",
        ),
        example={"keep_last": 3, "keep_best": 1, "metric": "loss", "direction": "min"},
    ),
    "evals": _Key(
        comment=(
            "What is measured of checkpoints: a file with evaluate(checkpoint_folder, data_folder),",
            "or a command whose last line is the metrics as JSON; `every: 3`: of each third one.",
        ),
        example={"quality": "evaluate.py"},
    ),
    "promotion": _Key(
        comment=("When a final checkpoint is promoted: if a metric of that eval is good enough.",),
        example={"eval": "quality", "metric": "accuracy", "at_least": 0.9},
    ),
    "python": _Key(
        comment=(
            "The interpreter of the ranks, where it is not the one of `tracks`; it needs torch and",
            "tracks-dagster. On a cluster it is the image's.",
        ),
        example=".venv/bin/python",
    ),
    "schedule": _Key(
        comment=(
            "When it is trained again by itself, after `tracks projects add`: a cron in UTC, or in a",
            "timezone: of yours; on: new snapshot; or both. With only_if: snapshot differs a tick of",
            "the cron is skipped while the dataset has no newer snapshot.",
        ),
        example={"cron": "0 3 * * 1", "only_if": "snapshot differs"},
    ),
    "study": _Key(
        comment=(
            "What `tracks tune` searches, by which metric, under what budget (docs/tuning.md).",
        ),
        example={
            "metric": "loss",
            "direction": "min",
            "space": {"lr": {"loguniform": [1e-4, 0.1]}},
        },
    ),
    "upstream": _Key(
        comment=("Assets of Dagster that it is made of, beside its dataset.",),
        example=["dbt/features"],
    ),
    "aliases": _Key(
        comment=(
            "Aliases of its models beside that of its promotion; each is an asset in Dagster.",
        ),
        example=["canary"],
    ),
    "owners": _Key(
        comment=("Who answers for its assets in Dagster: teams and addresses.",),
        example=["team:churn"],
    ),
    "tags": _Key(comment=("Tags of its assets in Dagster.",), example={"cost": "gpu"}),
    "kinds": _Key(
        comment=("What Dagster shows its assets as, at most three.",), example=["pytorch"]
    ),
    "group": _Key(comment=("The group of its assets in Dagster.",), example="churn"),
}
_LINE_EACH = frozenset({"config", "keys"})  # the others stand in one line


def render_project(values: Mapping[str, Json]) -> str:
    """Return the text of a project file with these values, by its own keys; all others as examples."""
    return HEAD + "".join(_lines(name, key, values) for name, key in KEYS.items())


def _lines(name: str, key: _Key, values: Mapping[str, Json]) -> str:
    comment = "".join(f"# {line}\n" for line in key.comment)
    given = values.get(name)
    written = list(_written(name, key.example if given is None else given))
    return f"\n{comment}" + "".join(f"{'# ' if given is None else ''}{each}\n" for each in written)


def _written(name: str, value: Json) -> Iterator[str]:
    if isinstance(value, Mapping) and name in _LINE_EACH:
        yield f"{name}:"
        yield from (f"  {_scalar(key)}: {_flow(each)}" for key, each in value.items())
    elif isinstance(value, str) and _COMMAND.fullmatch(value) and value.lower() not in _NOT_TEXT:
        yield f"{name}: {value}"
    else:
        yield f"{name}: {_flow(value)}"


def _flow(value: Json) -> str:
    match value:
        case Mapping():
            pairs = (f"{_scalar(key)}: {_flow(each)}" for key, each in value.items())
            return f"{{{', '.join(pairs)}}}"
        case list() | tuple():
            return f"[{', '.join(map(_flow, value))}]"
    return _scalar(value)


def _scalar(value: Json) -> str:
    """Return a value as YAML reads it again; text in quotes unless it is plainly a word or a time."""
    is_plain = isinstance(value, str) and (
        (_WORD.fullmatch(value) and value.lower() not in _NOT_TEXT) or _TIME.fullmatch(value)
    )
    return value if is_plain else json.dumps(value, ensure_ascii=False)

"""A person's list of trackers, to which the daemon sends the curves of all runs.

- tensorboard: /data/tensorboard        # a folder for each run in it
- mlflow: http://mlflow:5000
  experiment: team-nlp                  # of all runs; left out: each in that of its project
  projects: [gpt, my-model]             # whose runs; left out: of all
- wandb: /data/wandb                    # a folder for each run in it, for `wandb sync`
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import AfterValidator, Field, PlainValidator, model_validator

from tracks_dagster.track.effects.settings_file import LEFT_OUT, FileModel, SettingsFile
from tracks_dagster.track.records import sha256_hex
from tracks_dagster.track.text import units
from tracks_dagster.wings.watch.effects.trackers.exporting import Tracker
from tracks_dagster.wings.watch.effects.trackers.mlflow import Mlflow
from tracks_dagster.wings.watch.effects.trackers.tensorboard import TensorBoard
from tracks_dagster.wings.watch.effects.trackers.wandb import WandbFolder

LIST_KEY = "trackers"
TRACKERS_MAX = 10
KINDS = ("tensorboard", "mlflow", "wandb")


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedTracker:
    """A tracker of the file. cursor: names how far the daemon has come for it; another place or
    another experiment is another tracker. projects: whose runs it is sent; empty: of all."""

    tracker: Tracker
    cursor: str
    projects: tuple[str, ...] = ()


def read_trackers(file: SettingsFile) -> tuple[NamedTracker, ...]:
    """Return the trackers of the file, in its order; raises SettingsError with all that is wrong."""
    found = file.read(_Trackers)
    if found is None or file.problems:
        raise file.error()
    return tuple(_named(entry) for entry in found.trackers)


def _named(entry: _Entry) -> NamedTracker:
    given = entry.given()
    kind = next(kind for kind in KINDS if kind in given)
    digest = sha256_hex(f"{given[kind]}\n{given.get('experiment', '')}".encode())[:16]
    return NamedTracker(
        tracker=_tracker(kind, given),
        cursor=f"tracker-{kind}-{digest}",
        projects=given.get("projects", ()),
    )


def _tracker(kind: str, given: dict[str, Any]) -> Tracker:
    match kind:
        case "tensorboard":
            return TensorBoard(Path(given[kind]))
        case "mlflow":
            return Mlflow(given[kind], given.get("experiment"))
        case _:
            return WandbFolder(Path(given[kind]))


def _folder(value: object) -> str:
    text = units.name(value)
    if not Path(text).is_absolute():
        raise ValueError(
            f"{units.shown(text)} is not an absolute path; the daemon starts elsewhere."
        )
    return text


def _few(entries: Sequence[Any]) -> Sequence[Any]:
    if len(entries) > TRACKERS_MAX:
        raise ValueError(f"{len(entries)} trackers are more than {TRACKERS_MAX}.")
    return entries


class _Entry(FileModel):
    example = "{tensorboard: /data/tensorboard}"

    tensorboard: Annotated[str, PlainValidator(_folder)] = LEFT_OUT
    mlflow: Annotated[str, PlainValidator(units.name)] = LEFT_OUT
    wandb: Annotated[str, PlainValidator(_folder)] = LEFT_OUT
    experiment: Annotated[str, PlainValidator(units.name)] = LEFT_OUT
    projects: tuple[str, ...] = LEFT_OUT

    @model_validator(mode="after")
    def _of_one_kind(self) -> Self:
        given = [kind for kind in KINDS if kind in self.model_fields_set]
        if len(given) != 1:
            named = " and ".join(given) if given else "none"
            raise ValueError(f"name one of {', '.join(KINDS)} in each item; {named} is given.")
        if "experiment" in self.model_fields_set and given != ["mlflow"]:
            raise ValueError(f"experiment is of mlflow; {given[0]} has none.")
        return self


class _Trackers(FileModel):
    trackers: Annotated[tuple[_Entry, ...], AfterValidator(_few)] = Field(
        default=(), description="write a list of them, each beginning with `- `"
    )

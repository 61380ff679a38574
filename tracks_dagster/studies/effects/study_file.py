"""A study as a person writes it: a file, or the section `study:` of a project's tracks.yaml.

study:
  name: lr-depth
  metric: loss                      # of the last commit, or EVAL/METRIC of an eval
  space:
    lr: {loguniform: [1e-4, 1e-1]}
    layers: [2, 3, 4]               # a list is a choice
    momentum: {uniform: [0, 0.99], when: {optimizer: sgd}}
  constraints: ["layers * hidden <= 256"]
  search: {kind: tpe, startup: 12}
  scheduler: {kind: halving, budgets: [1, 3, 9, 27]}
  steps_per_epoch: 100              # then budgets are epochs; else steps
  trials: 81
  slots: 4
  max_device_hours: 10
  off_peak: 22:00-06:00 and weekends Europe/Paris   # when runs may start
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, PlainValidator

from tracks_dagster.studies.off_peak import off_peak
from tracks_dagster.studies.schedulers import ETA, SCHEDULERS
from tracks_dagster.studies.search import SEARCHES
from tracks_dagster.studies.space import CHOICE, INT, KINDS, Param
from tracks_dagster.track.effects.settings_file import FileModel, SettingsFile, open_settings
from tracks_dagster.track.errors import InvalidInput, SettingsError
from tracks_dagster.track.records import Json
from tracks_dagster.track.text import units
from tracks_dagster.track.text.nearest import unknown
from tracks_dagster.track.text.units import shown

SECTION = "study"  # of a project's file
TRIALS_MAX, SLOTS_MAX, BUDGETS_MAX, SEEDS_MAX = 10_000, 256, 64, 20
_WHEN, _POINTS = "when", "points"


def read_study(path: Path, *, is_section: bool) -> StudyFile:
    """Return what the file asks for; raises SettingsError with all that is wrong with it."""
    file = open_settings(path, "The project file" if is_section else "The study file")
    if is_section and not file.problems:
        section = file.value.get(SECTION) if isinstance(file.value, Mapping) else None
        if section is None:
            raise SettingsError(
                f"{path} has no section {SECTION}:, so there is nothing to tune. Write one, or give a "
                "file of its own: tracks tune FILE."
            )
        lines = {loc[1:]: line for loc, line in file.lines.items() if loc[:1] == (SECTION,)}
        file = SettingsFile(name=file.name, path=file.path, value=section, lines=lines)
    found = file.read(StudyFile)
    if file.problems or found is None:
        raise file.error()
    return found


def study_of(given: Mapping[str, Json]) -> StudyFile:
    """Return what a program asks for, by the keys of the file; raises SettingsError as `read_study`."""
    file = SettingsFile(name="The study", path="", value=dict(given), lines={(): 1})
    found = file.read(StudyFile)
    if file.problems or found is None:
        raise SettingsError(
            "\n".join(["The study cannot be used:", *(p.words for p in file.problems)])
        )
    return found


def _param(value: object) -> Param:
    """Return how a key is drawn: a list of values, or a mapping with one kind."""
    if isinstance(value, list):
        return _made(kind=CHOICE, values=tuple(value))
    if not isinstance(value, Mapping):
        raise ValueError(
            f"{shown(value)} is not a range; write a list, or {{loguniform: [low, high]}}."
        )
    unknown_keys = [key for key in value if key not in (*KINDS, _WHEN, _POINTS)]
    if unknown_keys:
        raise ValueError(unknown("way to draw", str(unknown_keys[0]), (*KINDS, _POINTS, _WHEN)))
    kinds = [key for key in value if key in KINDS]
    if len(kinds) != 1:
        raise ValueError(f"{shown(value)} needs exactly one of {', '.join(KINDS)}.")
    (kind,) = kinds
    ends, when = value[kind], value.get(_WHEN, {})
    if not isinstance(when, Mapping):
        raise ValueError(f"when: {shown(when)} is not a condition; write {{optimizer: sgd}}.")
    more = {
        "points": None if _POINTS not in value else units.count(value[_POINTS]),
        "when": {k: tuple(v) if isinstance(v, list) else (v,) for k, v in when.items()},
    }
    if kind == CHOICE:
        return _made(kind=kind, values=tuple(ends) if isinstance(ends, list) else (ends,), **more)
    if not isinstance(ends, list) or len(ends) != 2 or not all(map(_is_number, ends)):
        raise ValueError(f"{shown(ends)} is not a range; write {kind}: [low, high], two numbers.")
    if kind == INT and not all(type(each) is int for each in ends):
        raise ValueError(f"{shown(ends)} is not two whole numbers; write int: [low, high].")
    return _made(kind=kind, low=float(ends[0]), high=float(ends[1]), **more)


def _made(**fields: Any) -> Param:
    try:
        return Param(**fields)
    except InvalidInput as error:
        raise ValueError(str(error)) from error


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _kind(what: str, valid: Sequence[str], value: object) -> object:
    """Return `{kind: NAME}` for the name alone; raises ValueError for another kind."""
    given = {"kind": value} if isinstance(value, str) else value
    if isinstance(given, Mapping) and "kind" not in given:
        raise ValueError(f"it has no kind; write kind: and one of {', '.join(valid)}.")
    if not isinstance(given, Mapping) or not isinstance(given.get("kind"), str):
        raise ValueError(f"{shown(value)} is not a {what}; write one of {', '.join(valid)}.")
    if given["kind"] not in valid:
        raise ValueError(unknown(what, given["kind"], valid))
    return given


def _counted(what: str, most: int) -> PlainValidator:
    def read(value: object) -> int:
        if type(value) is not int or not 1 <= value <= most:
            raise ValueError(f"{shown(value)} is not a number of {what}; write 1 to {most}.")
        return value

    return PlainValidator(read)


def _budgets(value: object) -> tuple[int, ...]:
    is_list = isinstance(value, list) and 0 < len(value) <= BUDGETS_MAX
    if (
        not isinstance(value, list)
        or not is_list
        or not all(type(e) is int and e > 0 for e in value)
    ):
        raise ValueError(
            f"{shown(value)} is not a list of budgets; write for example [1, 3, 9, 27]."
        )
    if sorted(set(value)) != value:
        raise ValueError(
            f"{shown(value)} does not grow; write each budget larger than the one before."
        )
    return tuple(value)


def _amount(value: object) -> float:
    if not _is_number(value) or not 0 < value < float("inf"):  # type: ignore[operator]  # a number
        raise ValueError(f"{shown(value)} is not a cap; write more than 0.")
    return float(value)  # type: ignore[arg-type]


def _off_peak(value: object) -> str:
    try:
        off_peak(text := units.name(value))
    except InvalidInput as error:
        raise ValueError(str(error)) from error
    return text


def _starts(value: object) -> tuple[Mapping[str, Json], ...]:
    if not isinstance(value, list) or not all(isinstance(each, Mapping) for each in value):
        raise ValueError(
            f"{shown(value)} is not a list of configs; write for example [{{lr: 0.001}}]."
        )
    return tuple(value)


_Word = Annotated[str, PlainValidator(units.name)]


class SearchFile(FileModel):
    """How configs are chosen."""

    example = "{kind: tpe, startup: 12}"
    kind: str
    startup: Annotated[int, _counted("trials", TRIALS_MAX)] | None = None
    start: Annotated[tuple[Mapping[str, Any], ...], PlainValidator(_starts)] | None = None
    priors: tuple[str, ...] | None = None


class SchedulerFile(FileModel):
    """Who gets more steps."""

    example = "{kind: halving, budgets: [1, 3, 9, 27]}"
    kind: str
    budgets: Annotated[tuple[int, ...], PlainValidator(_budgets)] | None = None
    eta: Annotated[int, _counted("trials of which one goes on", 100)] = ETA
    perturb: tuple[str, ...] | None = None


class RepeatFile(FileModel):
    """Which trials are trained again with other seeds, once all are over."""

    example = "{best: 3, seeds: 2}"
    best: Annotated[int, _counted("trials", TRIALS_MAX)] = 1
    seeds: Annotated[int, _counted("seeds", SEEDS_MAX)] = Field(
        description="write how often each is trained again, such as seeds: 2"
    )


class StudyFile(FileModel):
    """A study, as its file has it."""

    example = "name: lr-depth and space: {lr: [1e-3, 1e-2]}"
    name: _Word = Field(
        description="write what its trials are called after, such as name: lr-depth"
    )
    metric: _Word = Field(description="write what it improves, such as metric: loss")
    direction: Annotated[
        str, PlainValidator(units.one_of("direction", {"min": "min", "max": "max"}))
    ] = "min"
    space: Mapping[str, Annotated[Param, PlainValidator(_param)]] = Field(
        description="write the keys to search over, such as space: {lr: [1e-3, 1e-2]}"
    )
    constraints: tuple[str, ...] = ()
    search: Annotated[
        SearchFile, BeforeValidator(lambda value: _kind("search", SEARCHES, value))
    ] = SearchFile(kind="random")
    scheduler: Annotated[
        SchedulerFile, BeforeValidator(lambda value: _kind("scheduler", tuple(SCHEDULERS), value))
    ] = SchedulerFile(kind="fifo")
    steps_per_epoch: Annotated[int, _counted("steps", 10**9)] = 1
    trials: Annotated[int, _counted("trials", TRIALS_MAX)] | None = None
    slots: Annotated[int, _counted("slots", SLOTS_MAX)] = 1
    seed: Annotated[int, PlainValidator(units.count)] = 0
    max_device_hours: Annotated[float, PlainValidator(_amount)] | None = None
    max_cost: Annotated[float, PlainValidator(_amount)] | None = None
    off_peak: Annotated[str, PlainValidator(_off_peak)] = ""
    repeat: RepeatFile | None = None
    config: Mapping[str, Any] = {}
    workload_class: _Word | None = Field(None, alias="class")
    stage: _Word | None = None

"""What earlier searches found, for a sampler to begin with: a study's, Optuna's, Ray Tune's, a file's.

They become part of the declaration, so that each proposal follows from the study's own record, whatever
becomes of the source.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.studies.effects.foreign_trials import (
    RAY_STEP,
    optuna_studies,
    ray_config,
    ray_reports,
    text_of,
)
from tracks_dagster.studies.search import OF_LIBRARY
from tracks_dagster.studies.space import Config, Space
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.json_text import parse_json
from tracks_dagster.track.records import Json
from tracks_dagster.track.states.study_state import StudyState

PRIORS_MAX = 64  # they lie in one record, with all else of the study, which may hold fewer
RAY_TRIALS_MAX = 10_000
NAMES_MAX = 8  # metrics in an error
T = TypeVar("T")
LINES, STORAGES = (".jsonl",), (".db", ".sqlite", ".sqlite3")


@dataclass(frozen=True, slots=True)
class Prior:
    """One config with what it came to."""

    config: Config
    value: float


def read_priors(
    tracks: Tracks,
    names: Sequence[str],
    space: Space,
    *,
    kind: str,
    metric: str,
    direction: str,
    remark: Callable[[str], object],
) -> tuple[Mapping[str, Json], ...]:
    """Return what a search of that kind may begin with, as its declaration has it.

    names: each a study of this store, a file of lines {"config": …, "value": …}, one of Optuna's
    SQLite storages, FILE.db or FILE.db#STUDY, or a folder of Ray Tune's results, FOLDER/ or
    FOLDER/#METRIC. What lies outside of the space is left out, and `remark` is called with how
    many. Of more than PRIORS_MAX those are taken that lie evenly between the best and the worst. Raises
    InvalidInput for what cannot be read, or of which nothing is left.
    """
    if kind not in OF_LIBRARY:
        raise InvalidInput(
            f"search: priors are for {', '.join(OF_LIBRARY)}; {kind} learns nothing from trials. Leave "
            "them out, or give configs to begin with: start: [{…}]."
        )
    found: list[Prior] = []
    for name in names:
        those = list(_read(tracks, name, space, metric, direction))
        fitting = [each for each in those if not any(space.misfits(each.config))]
        if not fitting:
            raise InvalidInput(
                f"search: priors: none of the {len(those)} trials of {name} that have a value lies in "
                f"the space: each of {', '.join(space.params)} within its bounds, and no other key."
            )
        if outside := len(those) - len(fitting):
            remark(
                f"search: priors: {outside} of the {len(those)} trials of {name} that have a value lie "
                "outside of the space, and are left out."
            )
        found += fitting
    found.sort(key=lambda each: each.value if direction == "min" else -each.value)
    few = evenly(found, min(len(found), PRIORS_MAX))
    return tuple({"config": dict(each.config), "value": each.value} for each in few)


def evenly(found: Sequence[T], count: int) -> list[T]:
    """Return so many of them, the first and the last, and others that lie evenly between."""
    return [found[round(n * (len(found) - 1) / max(1, count - 1))] for n in range(count)]


def _read(tracks: Tracks, name: str, space: Space, metric: str, direction: str) -> Iterator[Prior]:
    path, _, study = name.partition("#")
    if path.endswith("/"):
        return _of_raytune(Path(path), study or metric, space)
    if Path(path).suffix in LINES:
        return _of_lines(Path(path))
    if Path(path).suffix in STORAGES:
        return _of_optuna(Path(path), study or None, direction)
    return _of_study(tracks.study(name), metric, direction)


def _of_study(study: StudyState, metric: str, direction: str) -> Iterator[Prior]:
    declared = study.declared
    if (declared.metric, declared.direction) != (metric, direction):
        raise InvalidInput(
            f"search: priors: the study {declared.study} is of {declared.metric} "
            f"({declared.direction}), and this one of {metric} ({direction}); they cannot be compared."
        )
    furthest = max((len(each.rungs) for each in study.trials), default=0)
    for trial in study.trials:
        judged = trial.judged_at(furthest - 1)
        if judged is not None and judged.value is not None:
            yield Prior(trial.config, judged.value)


def _of_lines(path: Path) -> Iterator[Prior]:
    for number, line in enumerate(_text_of(path).splitlines(), 1):
        if not line.strip():
            continue
        try:
            given: Any = parse_json(line)
            config, value = given["config"], float(given["value"])
            if not isinstance(config, Mapping):
                raise TypeError
        except (ValueError, TypeError, KeyError, IndexError):
            raise InvalidInput(
                f"search: priors: line {number} of {path} is not a trial; write "
                '{"config": {"lr": 0.001}, "value": 0.9}.'
            ) from None
        if math.isfinite(value):
            yield Prior(config, value)


def _of_optuna(path: Path, name: str | None, direction: str) -> Iterator[Prior]:
    try:
        names, load = optuna_studies(path)
    except InvalidInput as error:
        raise InvalidInput(f"search: priors: {error}") from error
    if name is None and len(names) == 1:
        name = names[0]
    if name not in names:
        there = ", ".join(sorted(names)) or "none"
        raise InvalidInput(
            f"search: priors: name a study of {path}: {path}#NAME; there are: {there}."
        )
    try:
        study = load(name)
        way = {"MINIMIZE": "min"}.get(study.direction.name, "max")
        trials = [each for each in study.get_trials() if each.state.name == "COMPLETE"]
    except Exception as error:  # of three libraries: whatever they say of a damaged file
        raise InvalidInput(f"search: priors: {path} cannot be read by Optuna: {error}.") from error
    if way != direction:
        raise InvalidInput(
            f"search: priors: {name} of {path} is to be {way}, and this study {direction}."
        )
    for trial in trials:
        if trial.value is not None and math.isfinite(trial.value):
            yield Prior(trial.params, trial.value)


def _of_raytune(folder: Path, metric: str, space: Space) -> Iterator[Prior]:
    """Yield the newest value of each trial of Ray Tune's that came furthest, with keys of the space.

    Read are `params.json` and the lines of `result.json`, which Ray writes into the folder of a trial.
    """
    found: list[tuple[int, Prior]] = []
    names: set[str] = set()
    results = sorted(folder.glob("*/result.json"))
    for path in results[:RAY_TRIALS_MAX]:
        try:
            config = ray_config(path.parent)
            newest: Mapping[str, Json] = {}
            last: Mapping[str, Json] | None = None
            for _, newest in ray_reports(path):
                last = newest if _is_finite(newest.get(metric)) else last
        except ValueError as error:
            raise InvalidInput(f"search: priors: {path.parent} cannot be read: {error}.") from error
        names |= newest.keys()
        if last is not None:
            ours = {name: config[name] for name in space.params if name in config}
            drawn = {
                k: v for k, v in ours.items() if space.params[k].is_drawn({**space.fixed, **ours})
            }
            found.append((int(last.get(RAY_STEP, 0)), Prior(drawn, float(last[metric]))))
    if not results:
        raise InvalidInput(
            f"search: priors: {folder}/ has no trial of Ray Tune's, a folder with a result.json each."
        )
    if not found:
        there = ", ".join(sorted(names)[:NAMES_MAX]) or "nothing"
        raise InvalidInput(
            f"search: priors: no trial of {folder}/ reported {metric}, but {there}; name its metric: "
            f"{folder}/#METRIC."
        )
    furthest = max(steps for steps, _ in found)
    yield from (prior for steps, prior in found if steps == furthest)


def _is_finite(value: Json) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and math.isfinite(value)


def _text_of(path: Path) -> str:
    try:
        return text_of(path)
    except ValueError as error:
        raise InvalidInput(f"search: priors: {path} {error}.") from error

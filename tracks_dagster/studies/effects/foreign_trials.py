"""Trials of other programs, as they store them: for priors of a search, and for what is imported."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tracks_dagster.studies.effects.optuna_search import MISSING
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.json_text import parse_json
from tracks_dagster.track.records import Json

FILE_BYTES_MAX = 10 * 2**20  # of a file that is read whole
LINE_BYTES_MAX, LINES_MAX = 4 * 2**20, 1_000_000
RAY_STEP, RAY_LOOP = "training_iteration", "train_loop_config"  # Ray's own names


def optuna_studies(path: Path) -> tuple[list[str], Callable[[str], Any]]:
    """Return the names of the studies in a SQLite file of Optuna's, and what loads one by its name.

    The file is never written. Raises InvalidInput where it is not one, or Optuna is not installed.
    """
    try:
        import optuna
    except ImportError as error:
        raise InvalidInput(f"{path} {MISSING}.") from error
    if not path.is_file():
        raise InvalidInput(f"there is no file {path}.")
    try:
        # Read-only: Optuna would make tables where there are none.
        url = f"sqlite:///{path.absolute().as_uri()}?mode=ro&uri=true"
        storage = optuna.storages.RDBStorage(url, skip_table_creation=True)
        names = [each.study_name for each in optuna.get_all_study_summaries(storage)]
    except Exception as error:  # of three libraries: whatever they say of a damaged file
        raise InvalidInput(f"{path} cannot be read by Optuna: {error}.") from error
    return names, lambda name: optuna.load_study(study_name=name, storage=storage)


def ray_config(folder: Path) -> Mapping[str, Json]:
    """Return the config of a trial of Ray Tune's; ValueError where its params.json is not one."""
    text = text_of(folder / "params.json")
    try:
        config = parse_json(text, bytes_max=FILE_BYTES_MAX, foreign=True)
    except ValueError as error:
        raise ValueError(f"params.json cannot be read: {error}") from error
    if not isinstance(config, Mapping):
        raise ValueError("params.json is not a JSON object")
    wrapped = config.get(RAY_LOOP)  # of Ray Train, which wraps what its loop is given
    return wrapped if isinstance(wrapped, Mapping) else config


def ray_reports(
    path: Path, on_bad: Callable[[int, str], object] = lambda line, why: None
) -> Iterator[tuple[int, Mapping[str, Json]]]:
    """Yield what a trial reported in its result.json, with the numbers of the lines.

    on_bad: called with a line that cannot be read, as one that a killed writer left unfinished. Raises
    ValueError where the file cannot be read.
    """
    for number, line in lines_of(path):
        try:
            report = parse_json(line, foreign=True)
        except ValueError as error:
            on_bad(number, str(error))
            continue
        if isinstance(report, Mapping):
            yield number, report
        else:
            on_bad(number, "it is not an object")


def lines_of(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines that are not empty, each with its number from 1 and its end, if it has one;
    ValueError where the file cannot be read, or has more than LINES_MAX lines. One of more than
    LINE_BYTES_MAX comes in parts."""
    try:
        with path.open("rb") as file:
            number = 0
            while line := file.readline(LINE_BYTES_MAX):
                number += 1
                if number > LINES_MAX:
                    raise ValueError(f"has more than {LINES_MAX} lines")
                if line.strip():
                    yield number, line.decode("utf-8", "replace")
    except OSError as error:
        raise ValueError(f"cannot be read: {error.strerror or error}") from error


def text_of(path: Path) -> str:
    """Return the text of a file; ValueError, as the end of a sentence, where there is none."""
    try:
        if path.stat().st_size > FILE_BYTES_MAX:
            raise ValueError(f"has more than {FILE_BYTES_MAX} bytes")
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"cannot be read: {error}") from error

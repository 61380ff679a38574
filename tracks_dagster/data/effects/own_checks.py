"""Checks of one's own for a dataset of files: a Python file with functions and pandera schemas.

    SCHEMAS = {"*.parquet": pa.DataFrameSchema({"age": pa.Column(int, pa.Check.ge(0))})}

    def check_pictures(folder: Path) -> None:
        assert list(folder.glob("*.png")), "there is no picture"

A function of the file whose name begins with check_ gets the folder. It rejects the data by an
exception, by False, or by text that says what is wrong. A schema checks every file that its pattern
names, one at a time.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tracks_dagster.stores.local_files import read_verified
from tracks_dagster.stores.sources import named
from tracks_dagster.track.bodies import SnapshotCommitted
from tracks_dagster.track.errors import BadRow, DataRejected, InvalidInput
from tracks_dagster.track.ports import ObjectStore
from tracks_dagster.track.records import sha256_hex
from tracks_dagster.track.states.dataset_state import checks_key

PREFIX = "check_"
SCHEMAS = "SCHEMAS"
MODULE = "checks"  # __name__ in such a file
CHECKS_BYTES_MAX = 1024 * 1024
CHECKS_MAX = 50  # their names stand in a record
WORDS_CHARACTERS_MAX = 500
BAD_ROWS_NAMED_MAX = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnChecks:
    """A file of checks as it was read. path: where it lies, for its own imports and for messages."""

    path: Path
    source: bytes

    @property
    def sha256(self) -> str:
        """Of its bytes."""
        return sha256_hex(self.source)


@dataclass(frozen=True, slots=True)
class _Check:
    """One check. run: raises, or returns what is wrong; None where nothing is."""

    name: str
    run: Callable[[Path], str | None]


def read_checks(path: Path) -> OwnChecks:
    """Return the file of checks; raises InvalidInput when it cannot be read or is not Python."""
    try:
        source = path.read_bytes()
    except OSError as error:
        raise InvalidInput(f"Cannot read the checks {path}: {error.strerror}.") from error
    if len(source) > CHECKS_BYTES_MAX:
        raise InvalidInput(
            f"The checks {path} have {len(source)} bytes; at most {CHECKS_BYTES_MAX} are stored with a "
            "snapshot. Put the rest into a module that they import."
        )
    check_python(source, path, what=f"The file of checks {path}")
    return OwnChecks(path=path, source=source)


def check_python(source: bytes, path: Path, *, what: str) -> None:
    """Raise InvalidInput unless `source` can be compiled. what: its name, with a capital."""
    try:
        compile(source, str(path), "exec")
    except (SyntaxError, ValueError) as error:
        raise InvalidInput(f"{what} is not Python that runs here: {error}.") from error
    except (RecursionError, MemoryError) as error:  # how Python says that it is nested too deeply
        raise InvalidInput(f"{what} is nested too deeply for Python to read.") from error


def stored_checks(store: ObjectStore, snapshot: SnapshotCommitted) -> OwnChecks | None:
    """Return the checks that a snapshot passed, as they were; None where it was added without.

    What they import beside them is not stored. Raises DataRejected when they are lost.
    """
    if snapshot.checks_sha256 is None:
        return None
    key = checks_key(snapshot.dataset, snapshot.checks_sha256)
    source = read_verified(store, key, snapshot.checks_sha256)
    return OwnChecks(path=Path(key).absolute(), source=source)


def run_checks(checks: OwnChecks, dataset: str, folder: Path) -> tuple[str, ...]:
    """Run all checks on `folder` and return their names.

    Raises DataRejected naming every check that failed, InvalidInput when the file itself does.
    """
    failed: list[str] = []
    bad_rows: list[BadRow] = []
    with _importable(checks.path.parent):
        found = _find(checks)
        for check in found:
            try:
                wrong = check.run(folder)
            except DataRejected as error:
                wrong = str(error)
                bad_rows += error.bad_rows
            except Exception as error:  # noqa: BLE001  it is theirs, and any says no
                wrong = f"{type(error).__name__}: {error}"
            if wrong is not None:
                failed.append(f"{check.name}: {wrong[:WORDS_CHARACTERS_MAX]}")
    if failed:
        raise DataRejected(
            f"Cannot make a snapshot of {dataset}: {len(failed)} of {len(found)} checks of "
            f"{checks.path.name} failed: {'; '.join(failed)}. Nothing was recorded; correct the files "
            "or the checks.",
            bad_rows=tuple(bad_rows[:BAD_ROWS_NAMED_MAX]),
            bad_row_count=len(bad_rows) or len(failed),
        )
    return tuple(check.name for check in found)


@contextmanager
def _importable(folder: Path) -> Iterator[None]:
    """Let the file import what lies beside it."""
    path = str(folder.absolute())
    sys.path.insert(0, path)
    try:
        yield
    finally:
        sys.path.remove(path)


def _find(checks: OwnChecks) -> list[_Check]:
    values: dict[str, Any] = {"__name__": MODULE, "__file__": str(checks.path)}
    try:
        exec(compile(checks.source, str(checks.path), "exec"), values)
    except Exception as error:
        raise InvalidInput(
            f"The checks {checks.path} cannot be loaded: {type(error).__name__}: {error}."
        ) from error
    schemas = values.get(SCHEMAS, {})
    if not isinstance(schemas, Mapping):
        raise InvalidInput(
            f"{SCHEMAS} in {checks.path} is a {type(schemas).__name__}; write a dict from a pattern of "
            'files to a pandera schema: {"*.parquet": schema}.'
        )
    found = [_of_schema(str(pattern), schema) for pattern, schema in schemas.items()]
    found += [
        _of_function(name, value)
        for name, value in values.items()
        if name.startswith(PREFIX)
        and callable(value)
        and getattr(value, "__module__", None) == MODULE  # not one that it imports
    ]
    if not 1 <= len(found) <= CHECKS_MAX:
        raise InvalidInput(
            f"{checks.path} holds {len(found)} checks, not 1 to {CHECKS_MAX}; write functions "
            f"{PREFIX}NAME(folder), or {SCHEMAS} = {{pattern: pandera schema}}."
        )
    return found


def _of_function(name: str, function: Callable[[Path], object]) -> _Check:
    def run(folder: Path) -> str | None:
        answer = function(folder)
        if answer is None or answer is True:
            return None
        if answer is False:
            return "it returned False"
        return str(answer)

    return _Check(name, run)


def _of_schema(pattern: str, schema: Any) -> _Check:
    if not hasattr(schema, "validate"):
        raise InvalidInput(
            f"{SCHEMAS}[{pattern!r}] is a {type(schema).__name__}, no pandera schema."
        )

    def run(folder: Path) -> str | None:
        paths = sorted(path for path in folder.rglob(pattern) if path.is_file())
        if not paths:
            return f"no file is named {pattern}"
        wrong = [each for path in paths for each in _validate(path, folder, schema)]
        if wrong:
            raise DataRejected(named([str(row) for row in wrong], "; "), bad_rows=tuple(wrong))
        return None

    return _Check(f"{SCHEMAS} {pattern}", run)


def _validate(path: Path, folder: Path, schema: Any) -> list[BadRow]:
    """Return the values of one file that the schema refuses, the first of them."""
    # Loaded here: polars and pandera take seconds, which checks without schemas need not pay.
    import polars as pl
    from pandera.errors import SchemaErrors

    readers: Mapping[str, Callable[[Path], pl.DataFrame]] = {
        ".parquet": pl.read_parquet,
        ".csv": pl.read_csv,
        ".jsonl": pl.read_ndjson,
        ".ndjson": pl.read_ndjson,
    }
    if path.suffix not in readers:
        raise InvalidInput(
            f"{path.name} is not a table for a schema; use {', '.join(readers)}, or a function "
            f"{PREFIX}NAME(folder)."
        )
    frame: Any = readers[path.suffix](path)
    inside = path.relative_to(folder).as_posix()
    kinds = (schema if isinstance(schema, type) else type(schema)).__mro__
    if not any(".polars" in kind.__module__ for kind in kinds):
        frame = frame.to_pandas()
    try:
        schema.validate(frame, lazy=True)
    except SchemaErrors as error:
        cases: Any = error.failure_cases
        rows = cases.to_dicts() if hasattr(cases, "to_dicts") else cases.to_dict("records")
        return [_bad_row(row, inside) for row in rows[:BAD_ROWS_NAMED_MAX]]
    return []


def _bad_row(failure: Mapping[str, Any], path: str) -> BadRow:
    row, value = failure.get("index"), failure.get("failure_case")
    return BadRow(
        row=int(row) + 1 if row is not None and row == row else 0,  # nan is not itself
        column=f"{path} {failure.get('column') or ''}".strip(),
        value=None if value is None else str(value)[:60],
        check=str(failure.get("check")),
    )

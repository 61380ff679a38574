"""Files of other programs, read within bounds and never written; one that is wrong is a ValueError."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import yaml

from tracks_dagster.projects.effects.config_file import parse_yaml
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.json_text import parse_json
from tracks_dagster.track.records import Json

FILE_BYTES_MAX = 16 * 1024 * 1024  # of a file that is read whole
ENTRIES_MAX = 1_000_000  # of a folder
LINE_CUT = "its line has no end: it is cut, or still being written"


def text_of(path: Path) -> str:
    """Return the text of a small file; of what is not UTF-8, what can be read."""
    try:
        with path.open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise ValueError(f"it cannot be read: {error.strerror or error}") from error
    if len(data) > FILE_BYTES_MAX:
        raise ValueError(f"it has more than {FILE_BYTES_MAX} bytes")
    return data.decode("utf-8", "replace")


def object_of(path: Path) -> Mapping[str, Any]:
    """Return the object in a file of JSON, or of YAML by its name."""
    text = text_of(path)
    try:
        is_yaml = path.suffix in (".yaml", ".yml")
        found = (
            parse_yaml(text)
            if is_yaml
            else parse_json(text, bytes_max=FILE_BYTES_MAX, foreign=True)
        )
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(f"it is not YAML: {str(error)[:200]}") from error
    if not isinstance(found, Mapping):
        raise ValueError("it does not hold keys with values")
    return found


def plain(text: Json) -> Json:
    """Return the number, true or false that a text is; every other as it is."""
    try:
        found = parse_json(text) if isinstance(text, str) and len(text) < 40 else text
    except ValueError:
        return text
    return found if isinstance(found, bool | int | float) else text


def folders_in(path: Path) -> list[Path]:
    """Return the folders in a folder, in order, links left out."""
    try:
        return sorted(each for each in path.iterdir() if each.is_dir() and not each.is_symlink())
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror or error}.") from error


@contextmanager
def database(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a file of SQLite to read it only; raises InvalidInput where it is not one, or is damaged."""
    if not path.is_file():
        raise InvalidInput(f"There is no file {path}.")
    _check_whole(path)
    # Without a -wal file nobody has a database of that mode open, and only by `immutable` does SQLite
    # make no files beside it. It is not locked then: what a program writes now may be read in part,
    # and the next import completes it. Any other is locked while it is read.
    is_alone = _is_wal(path) and not path.with_name(f"{path.name}-wal").exists()
    how = "mode=ro&immutable=1" if is_alone else "mode=ro"
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?{how}", uri=True)) as opened:
            opened.row_factory = sqlite3.Row
            opened.text_factory = lambda data: data.decode("utf-8", "replace")
            opened.execute("select count(*) from sqlite_master")
            yield opened
    except (sqlite3.Error, UnicodeDecodeError) as error:  # names of columns, too, may be damaged
        raise InvalidInput(
            f"{path} cannot be read as a database of SQLite: {error}. It is opened to read only; copy "
            "it with its -wal and -shm files where its folder cannot be written."
        ) from error


def _is_wal(path: Path) -> bool:
    """Whether a file of SQLite is in WAL mode, by its head."""
    with path.open("rb") as file:
        return file.read(20)[18:] == b"\2\2"


def _check_whole(path: Path) -> None:
    """Raise InvalidInput where a file of SQLite is shorter than its head says (sqlite.org/fileformat2):
    one that is half copied may well be read, without its newest rows."""
    with path.open("rb") as file:
        head = file.read(100)
    if len(head) < 100 or head[24:28] != head[92:96]:  # then its count of pages is not in use
        return
    page_bytes, pages = int.from_bytes(head[16:18], "big"), int.from_bytes(head[28:32], "big")
    whole = pages * (65536 if page_bytes == 1 else page_bytes)
    if (size := path.stat().st_size) < whole:
        raise InvalidInput(f"{path} is cut: it has {size} of {whole} bytes; copy all of it.")


def columns(opened: sqlite3.Connection, table: str) -> set[str]:
    """Return the names of a table's columns; none where there is no such table."""
    return {each["name"] for each in opened.execute(f"pragma table_info({table})")}


def rows(opened: sqlite3.Connection, table: str, where: str = "") -> Iterator[Mapping[str, Json]]:
    """Yield the rows of a table as they are, in the order of `where`, which may have an order by."""
    for each in opened.execute(f"select * from {table} {where}"):
        yield dict(zip(each.keys(), each, strict=True))

"""A config file of a person's own, as YAML, JSON or TOML: read flat, and written nested again.

Nested keys are joined with dots, `model.layers`: a config in a record is flat.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from tracks_dagster.projects.project import check_value
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.json_text import parse_json
from tracks_dagster.track.records import Json
from tracks_dagster.track.text.units import shown

CONFIG_BYTES_MAX = 256 * 1024
VALUES_MAX = 100_000  # of a YAML document, with its aliases
DEPTH_MAX = 16


def parse_yaml(text: str) -> Any:
    """Return the value of a document, its aliases followed; raises ValueError where they make too much:
    ten lines of ten aliases each are ten thousand million values."""
    loader = yaml.SafeLoader(text)
    try:
        root = loader.get_single_node()
        if root is None:
            return None
        if _values_in(root, {}) > VALUES_MAX:
            raise ValueError(f"with its aliases (*) it has more than {VALUES_MAX} values")
        return loader.construct_document(root)
    finally:
        loader.dispose()


def _values_in(node: yaml.Node, known: dict[int, int]) -> int:
    """Return how many values a node has, each alias as often as it is used; too many where it lies in
    itself."""
    if id(node) not in known:
        known[id(node)] = VALUES_MAX + 1  # until it is counted
        inside = node.value if isinstance(node, yaml.CollectionNode) else ()
        parts = (part for each in inside for part in (each if isinstance(each, tuple) else (each,)))
        known[id(node)] = 1 + sum(_values_in(part, known) for part in parts)
    return known[id(node)]


# The config files that are read, by suffix; a parser raises ValueError or YAMLError.
_PARSERS: Mapping[str, Callable[[str], Any]] = {
    ".yaml": parse_yaml,
    ".yml": parse_yaml,
    ".json": parse_json,
    ".toml": tomllib.loads,
}


def read_config(folder: Path, name: str) -> dict[str, Json]:
    """Return the keys of a config file with their values; raises ValueError in words."""
    path = folder / name
    parse = _PARSERS.get(path.suffix)
    if parse is None:
        raise ValueError(f"{name} is not a config file; it ends in {', '.join(sorted(_PARSERS))}.")
    if not path.resolve().is_relative_to(folder.resolve()):
        raise ValueError(f"{name} lies outside the project; only what is in its folder is stored.")
    if path.exists() and not path.is_file():  # a pipe: who reads it waits for ever
        raise ValueError(f"{name} is not a file.")
    try:
        with path.open("rb") as file:
            data = file.read(CONFIG_BYTES_MAX + 1)
    except OSError as error:
        raise ValueError(f"{name} cannot be read ({error.strerror}).") from error
    if len(data) > CONFIG_BYTES_MAX:
        raise ValueError(
            f"{name} has more than {CONFIG_BYTES_MAX // 1024} KiB; it is not a config."
        )
    try:
        found = parse(data.decode("utf-8"))
    except (ValueError, yaml.YAMLError, RecursionError) as error:
        raise ValueError(f"{name} cannot be read: {error}") from error
    if not isinstance(found, Mapping):
        raise ValueError(f"{name} holds {shown(found)} where keys with values belong.")
    try:
        return dict(_flat(found))
    except InvalidInput as error:
        raise ValueError(f"{name}: {error}") from error


def render_config(config: Mapping[str, Json], name: str) -> str:
    """Return the text of a config file called `name`, in the format of its suffix, nested."""
    nested = _nested(config)
    match Path(name).suffix:
        case ".json":
            return json.dumps(nested, indent=2) + "\n"
        case ".toml":
            return "".join(_toml(nested))
    return yaml.safe_dump(nested, sort_keys=False)


def _flat(
    found: Mapping[Any, Json], prefix: str = "", depth: int = 1
) -> Iterator[tuple[str, Json]]:
    if depth > DEPTH_MAX:
        raise ValueError(f"{prefix} is nested more than {DEPTH_MAX} deep.")
    for key, value in found.items():
        if not isinstance(key, str) or "." in key or not key:
            raise ValueError(f"the key {key!r} cannot be used; use a word without a dot.")
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{key}.", depth + 1)
        elif not isinstance(value, Mapping):
            yield f"{prefix}{key}", check_value(f"{prefix}{key}", value)


def _nested(config: Mapping[str, Json]) -> dict[str, Json]:
    nested: dict[str, Json] = {}
    for name, value in config.items():
        *folders, last = name.split(".")
        place = nested
        for folder in folders:
            place = place.setdefault(folder, {})
        place[last] = value
    return nested


def _toml(table: Mapping[str, Json], path: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield the lines of a table: its values first, then the tables in it. TOML has no null."""
    if path:
        yield f"\n[{'.'.join(map(json.dumps, path))}]\n"
    for key, value in table.items():
        if value is not None and not isinstance(value, Mapping):
            yield f"{json.dumps(key)} = {json.dumps(value)}\n"
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _toml(value, (*path, key))

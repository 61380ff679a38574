"""Fragments of the API's objects, one laid over another. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import deepcopy

from tracks_dagster.track.records import Json


def merged(below: Json, above: Json) -> Json:
    """Return `above` laid over `below`: maps key by key, anything else replaces; shares nothing.

    None in `above` takes a key of `below` away, as it does in the API's own merge patches.
    """
    if not isinstance(above, Mapping):
        return deepcopy(above)
    if not isinstance(below, Mapping):
        below = {}
    result = {key: deepcopy(value) for key, value in below.items() if key not in above}
    for key, value in above.items():
        if value is not None:
            result[key] = merged(below.get(key), value)
    return {key: result[key] for key in [*below, *above] if key in result}


def by_key(key: str, *layers: Iterable[Mapping[str, Json]]) -> list[Json]:
    """Return the entries of all layers; of those with the same `key`, the last layer's.

    An entry keeps the place that it had when it was first named.
    """
    found: dict[Json, Json] = {}
    for layer in layers:
        for entry in layer:
            found[entry.get(key)] = deepcopy(dict(entry))
    return list(found.values())


def distinct(*layers: Iterable[Json]) -> list[Json]:
    """Return the entries of all layers in their order, each once."""
    found: list[Json] = []
    for layer in layers:
        found.extend(deepcopy(entry) for entry in layer if entry not in found)
    return found

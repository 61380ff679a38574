"""In which order the objects of a resource are listed, and which of them have a label.

Both are kept up to date at each change, so that a list costs what it returns and no more.
"""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Mapping

from tests.wings.kubernetes.double.answers import Json

Key = tuple[str, str]


def key_of(found: Json) -> Key:
    """Return (namespace, name); the namespace is empty at the cluster scope."""
    return found["metadata"].get("namespace", ""), found["metadata"]["name"]


class Indexes:
    """Those of one resource. A label's name is indexed from the first time that it is asked for."""

    def __init__(self) -> None:
        self._order: list[tuple[str, Key]] = []  # etcd orders by the text of the whole key
        self._labels: dict[str, dict[str, set[Key]]] = {}

    def in_order(self) -> list[Key]:
        """Return all keys."""
        return [key for _, key in self._order]

    def labelled(self, label: tuple[str, str], kept: Mapping[Key, Json]) -> list[Key]:
        """Return the keys of what has that label. kept: all objects of the resource."""
        name, value = label
        if name not in self._labels:
            self._labels[name] = defaultdict(set)
            for key, found in kept.items():
                self._note_label(name, key, None, found)
        return sorted(self._labels[name].get(value, ()), key="/".join)

    def note(self, key: Key, old: Json | None, new: Json | None) -> None:
        """Follow a change. None: not there before, or gone."""
        if old is None:
            bisect.insort(self._order, ("/".join(key), key))
        if new is None:
            del self._order[bisect.bisect_left(self._order, ("/".join(key), key))]
        for name in self._labels:
            self._note_label(name, key, old, new)

    def _note_label(self, name: str, key: Key, old: Json | None, new: Json | None) -> None:
        before, after = _value(old, name), _value(new, name)
        if before is not None and before != after:
            self._labels[name][before].discard(key)
        if after is not None:
            self._labels[name][after].add(key)


def _value(found: Json | None, name: str) -> str | None:
    return None if found is None else (found["metadata"].get("labels") or {}).get(name)

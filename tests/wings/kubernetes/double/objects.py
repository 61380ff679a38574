"""The objects of the double: what etcd is to an API server.

Objects are values: a change replaces one by an edited copy, so that anyone who read it before keeps
what it read. Every change has a resource version, one more than the change before. Copies share the
spec of a pod: an edit that changes it puts a new one in its place.
"""

from __future__ import annotations

import random
import threading
import uuid
from collections import defaultdict
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from tests.wings.kubernetes.double.answers import (
    Json,
    already_exists,
    conflict,
    forbidden,
    not_found,
)
from tests.wings.kubernetes.double.changes import Change, Changes, Subscription, Trigger
from tests.wings.kubernetes.double.indexes import Indexes, Key, key_of

HISTORY_MAX = 4096
OBJECTS_MAX = 100_000  # of one resource
FIRST_VERSION = 1000

Edit = Callable[[Json], None]
__all__ = ["Change", "Key", "Objects", "conditions", "copied", "key_of", "now_text"]


def now_text(at: datetime | None = None) -> str:
    """Return a time as the API server writes it: UTC, whole seconds."""
    return (at or datetime.now(UTC)).strftime("%Y-%m-%dT%H:%M:%SZ")


def copied(value: Any) -> Any:
    """Copy what JSON can say; ten times quicker than deepcopy."""
    if isinstance(value, dict):
        return {name: copied(inner) for name, inner in value.items()}
    return [copied(inner) for inner in value] if isinstance(value, list) else value


class Objects:
    """Safe from many threads. history_max: changes kept for watches, of each resource."""

    def __init__(self, *, history_max: int = HISTORY_MAX) -> None:
        self.changed = threading.RLock()
        self.listeners: list[Callable[[Change], None]] = []
        self._kept: dict[str, dict[Key, Json]] = defaultdict(dict)
        self._indexes: dict[str, Indexes] = defaultdict(Indexes)
        self._owned: dict[str, set[tuple[str, Key]]] = defaultdict(set)
        self._uids: set[str] = set()
        self._changes = Changes(history_max, FIRST_VERSION)
        self.version = FIRST_VERSION

    def create(self, resource: str, given: Json) -> Json:
        """Keep a new object, with uid, times and version of its own."""
        new = {**given, "metadata": copied(given.get("metadata") or {})}
        meta = new["metadata"]
        if not meta.get("name"):
            meta["name"] = meta["generateName"] + _five()
        meta |= {"uid": str(uuid.uuid4()), "creationTimestamp": now_text(), "generation": 1}
        with self.changed:
            kept = self._kept[resource]
            if key_of(new) in kept:
                raise already_exists(resource, meta["name"])
            if len(kept) >= OBJECTS_MAX:
                raise forbidden(resource, meta["name"], f"the double keeps {OBJECTS_MAX} at most")
            self._uids.add(meta["uid"])
            return self._record("ADDED", resource, None, new)

    def find(self, resource: str, namespace: str, name: str) -> Json | None:
        """Return the object, or None."""
        with self.changed:
            return self._kept[resource].get((namespace, name))

    def get(self, resource: str, namespace: str, name: str) -> Json:
        """Return the object, or raise 404."""
        found = self.find(resource, namespace, name)
        if found is None:
            raise not_found(resource, name)
        return found

    def all(self, resource: str, label: tuple[str, str] | None = None) -> tuple[list[Json], int]:
        """Return every object in etcd's order, and the version that this is the state of.

        label: only those that have it (by an index, which the first such call makes).
        """
        with self.changed:
            kept = self._kept[resource]
            if label is not None:
                keys = self._indexes[resource].labelled(label, kept)
            else:
                keys = self._indexes[resource].in_order()
            return [kept[key] for key in keys], self.version

    def owned(self, resource: str, uid: str) -> list[Json]:
        """Return what is owned by the object of that uid."""
        with self.changed:
            kept = self._kept[resource]
            keys = sorted(key for kind, key in self._owned.get(uid, ()) if kind == resource)
            return [kept[key] for key in keys]

    def kinds_owned(self, uid: str) -> set[str]:
        """Return of which resources something is owned by the object of that uid."""
        with self.changed:
            return {kind for kind, _ in self._owned.get(uid, ())}

    def is_there(self, uid: str) -> bool:
        """Whether the object of that uid is there still."""
        return uid in self._uids

    def change(self, resource: str, found: Json, edit: Edit, *, exact: bool = False) -> Json | None:
        """Edit a copy of the newest state; None when that very object (by its uid) is gone.

        exact: raise 409 unless `found` is the newest state. No event when the edit changes nothing.
        """
        with self.changed:
            old = self._kept[resource].get(key_of(found))
            if old is None or old["metadata"]["uid"] != found["metadata"]["uid"]:
                return None
            if exact and found["metadata"]["resourceVersion"] != old["metadata"]["resourceVersion"]:
                why = (
                    "the object has been modified; please apply your changes to the latest version"
                )
                raise conflict(resource, old["metadata"]["name"], why)
            new = {
                k: v if k == "spec" and resource == "pods" else copied(v) for k, v in old.items()
            }
            edit(new)
            return old if new == old else self._record("MODIFIED", resource, old, new)

    def remove(self, resource: str, found: Json) -> None:
        """Let the object go, if it is still that one."""
        with self.changed:
            old = self._kept[resource].get(key_of(found))
            if old is not None and old["metadata"]["uid"] == found["metadata"]["uid"]:
                self._uids.discard(old["metadata"]["uid"])
                self._record("DELETED", resource, old, {**old, "metadata": {**old["metadata"]}})

    def subscribe(
        self, resource: str, version: int | None, trigger: Trigger | None
    ) -> tuple[list[Json], list[Change], Subscription]:
        """Begin a watch: the state (version None), what came after that version, and what comes.

        trigger: a label of all that the watch wants. Raises 410 when the version is forgotten.
        """
        with self.changed:
            state = self.all(resource, trigger)[0] if version is None else []
            past = [] if version is None else self._changes.since(resource, version)
            return state, past, self._changes.subscribe(resource, trigger, self.version)

    def unsubscribe(self, subscription: Subscription) -> None:
        """End a watch."""
        with self.changed:
            self._changes.unsubscribe(subscription)

    def seen_all(self, subscription: Subscription) -> int | None:
        """Return the version that a watch has come to, if it has nothing left to tell."""
        with self.changed:
            return self.version if subscription.is_idle() else None

    def forget_history(self) -> None:
        """Compact: every watch from a version of the past gets 410, and open ones too."""
        with self.changed:
            self.version += 1
            self._changes.forget(self.version)

    def wake(self) -> None:
        """Let every watch look whether it may go on."""
        with self.changed:
            self._changes.wake()

    def is_forgotten(self, resource: str, version: int) -> bool:
        """Whether changes after that version may be missing."""
        with self.changed:
            return version < self._changes.oldest(resource)

    def _record(self, kind: str, resource: str, old: Json | None, new: Json) -> Json:
        self.version += 1
        new["metadata"]["resourceVersion"] = str(self.version)
        key = key_of(new)
        now = None if kind == "DELETED" else new
        self._own(resource, key, old, now)
        self._indexes[resource].note(key, old, now)
        if now is None:
            del self._kept[resource][key]
        else:
            self._kept[resource][key] = new
        change = Change(version=self.version, type=kind, resource=resource, old=old, new=new)
        for listen in self.listeners:
            listen(change)
        self._changes.add(change)
        return new

    def _own(self, resource: str, key: Key, old: Json | None, new: Json | None) -> None:
        before, after = _owners(old), _owners(new)
        for uid in before - after:
            kept = self._owned[uid]
            kept.discard((resource, key))
            if not kept:
                del self._owned[uid]
        for uid in after - before:
            self._owned[uid].add((resource, key))


def _owners(found: Json | None) -> set[str]:
    owners = found["metadata"].get("ownerReferences") if found else None
    return {owner["uid"] for owner in owners or ()}


def _five() -> str:
    return "".join(random.choices("bcdfghjklmnpqrstvwxz2456789", k=5))


def conditions(found: Json) -> dict[str, Any]:
    """Return the object's conditions by their type."""
    return {c["type"]: c for c in found.get("status", {}).get("conditions") or ()}

"""Changes and who waits for them: what the watch cache is to an API server.

The last changes of each resource are kept; a watch that asks for older ones gets 410. An open
watch has a queue of its own, and only the changes that concern its label come into it, so that many
watches of few objects each cost what they yield. A watch that does not read is ended, as a real API
server does.
"""

from __future__ import annotations

import bisect
import queue
from collections import defaultdict
from dataclasses import dataclass, field
from operator import attrgetter

from tests.wings.kubernetes.double.answers import Json, expired

BACKLOG_MAX = 100_000  # changes that a watch has not read
Trigger = tuple[str, str]  # a label


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One change. new: at DELETED the object as it was last."""

    version: int
    type: str
    resource: str
    old: Json | None
    new: Json


@dataclass(eq=False, slots=True, kw_only=True)
class Subscription:
    """An open watch. lost: why it must end, the version that was forgotten or 0 for a slow one."""

    resource: str
    trigger: Trigger | None
    version: int
    lost: int | None = None
    _queue: queue.SimpleQueue[Change | None] = field(default_factory=queue.SimpleQueue)

    def put(self, change: Change | None) -> None:
        """Add a change; None only wakes."""
        if self._queue.qsize() >= BACKLOG_MAX:
            self.lost = 0
        else:
            self._queue.put(change)

    def take(self, timeout_s: float) -> Change | None:
        """Return the next change; None after the time, or when it is to look around."""
        try:
            return self._queue.get(timeout=max(0.0, timeout_s))
        except queue.Empty:
            return None

    def is_idle(self) -> bool:
        """Whether nothing waits to be read."""
        return self._queue.empty()


class Changes:
    """Everything here is called under the lock of the objects."""

    def __init__(self, history_max: int, first: int) -> None:
        self._max, self._floor = history_max, first
        self._kept: dict[str, list[Change]] = defaultdict(list)
        self._open: dict[tuple[str, Trigger | None], set[Subscription]] = defaultdict(set)

    def add(self, change: Change) -> None:
        """Keep a change and tell whom it concerns."""
        kept = self._kept[change.resource]
        kept.append(change)
        if len(kept) > 2 * self._max:
            del kept[: -self._max - 1]
        concerned: set[Subscription] = set(self._open.get((change.resource, None), ()))
        for found in (change.old, change.new):
            labels = (found["metadata"].get("labels") or {}) if found else {}
            for label in labels.items():
                concerned.update(self._open.get((change.resource, label), ()))
        for subscription in concerned:
            subscription.put(change)

    def oldest(self, resource: str) -> int:
        """Return the version after which no change of the resource is forgotten."""
        kept = self._kept[resource]
        return kept[-self._max - 1].version if len(kept) > self._max else self._floor

    def since(self, resource: str, version: int) -> list[Change]:
        """Return the changes after that version; raises 410."""
        if version < self.oldest(resource):
            raise expired(version, self.oldest(resource))
        kept = self._kept[resource]
        return kept[bisect.bisect_right(kept, version, key=attrgetter("version")) :]

    def subscribe(self, resource: str, trigger: Trigger | None, version: int) -> Subscription:
        """Begin a watch of what comes from now on."""
        made = Subscription(resource=resource, trigger=trigger, version=version)
        self._open[resource, trigger].add(made)
        return made

    def unsubscribe(self, subscription: Subscription) -> None:
        """End a watch."""
        place = (subscription.resource, subscription.trigger)
        self._open[place].discard(subscription)
        if not self._open[place]:
            del self._open[place]

    def forget(self, version: int) -> None:
        """Forget all changes before that version."""
        self._floor = version
        self._kept.clear()
        for subscription in [s for those in self._open.values() for s in those]:
            subscription.lost = version
            subscription.put(None)

    def wake(self) -> None:
        """Let every open watch look around."""
        for subscription in [s for those in self._open.values() for s in those]:
            subscription.put(None)

"""Deciders, on a postcard: one of the two ways in which something comes of a track.

A decider says what follows on a run. Adding one (a gate, a tuner, a device lease) is one file with a
class as below, and one line in `definitions.py`: `decider_sensor(…)`. The driver is
`ledger.effects.deciding`; the other way is `ledger.following`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol, TypeVar

from tracks_dagster.track.bodies import Alert
from tracks_dagster.track.records import Draft
from tracks_dagster.track.states.checkpoints import CheckpointRef

# What the decider needs of the world: tracks, ledger, policy …
W = TypeVar("W", contravariant=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Append:
    """A record to append at exactly the next seq. what: "opened", "refused" …; why: the words for it.

    is_last: False has the decider asked again after it, for a further record.
    """

    draft: Draft
    what: str
    why: str
    is_last: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """Nothing is decided now. until: when to decide again by itself; None: something has to happen.

    verify: a checkpoint whose bytes have to be read first: if they are right, a limit is not exhausted.
    alert: what a person should hear, once; it is appended to the run's track.
    """

    why: str
    until: datetime | None = None
    verify: CheckpointRef | None = None
    alert: Alert | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class First:
    """Work that has to be done before anything is decided. Idempotent: a tick may die right after it.

    do: returns the question to ask from then on, in this look at the run; None: the same one again.
    """

    do: Callable[[], Callable[[Any, Any], Answer] | None]


Answer = Append | Wait | First | None


class Decides(Protocol[W]):
    """Says what follows on a run, no matter who asks."""

    @property
    def name(self) -> str:
        """Stands in its records as `decided_by`; a decider's switch is the sensor of this name."""
        ...

    def decide(self, state: Any, world: W) -> Answer:
        """Return what follows on `state`; None where nothing is to be said here.

        state: a RunState, or of the kind of track that the driver is given.

        Writes nothing: what has to be done before is a `First`. May be asked several times, also on a
        state whose place is then lost.
        """
        ...


class Decider(Decides[W], Protocol[W]):
    """Decides by itself on the runs that are due. One object serves every tick and several threads."""

    def due(self, world: W) -> Iterable[str]:
        """Return the ids of the runs worth a look, in the order of their turns; raises LedgerError.

        By the ledger, over all runs. A row that is behind costs a look and decides nothing.
        """
        ...

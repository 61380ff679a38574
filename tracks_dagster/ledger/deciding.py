"""Deciders and followers: the two ways in which something comes of a track, each on a postcard.

A decider says what follows on a run. Adding one (a gate, a tuner, a device lease) is one file with a
class as below, and one line in `definitions.py`. A follower does something elsewhere with each record
that it has not had yet. The drivers are in `ledger.effects.deciding`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol, TypeVar

from tracks_dagster.track.bodies import Alert
from tracks_dagster.track.records import Draft, Record
from tracks_dagster.track.states.checkpoints import CheckpointRef
from tracks_dagster.track.states.run_state import RunState

W = TypeVar(
    "W", contravariant=True
)  # what the decider needs of the world: tracks, ledger, policy …


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
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
    alert: what a person should be told, once; it is appended to the run's track.
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

    do: Callable[[], Callable[[RunState, Any], Answer] | None]


Answer = Decided | Wait | First | None


class Decider(Protocol[W]):
    """Says what follows on a run. One object serves every tick and several threads."""

    @property
    def name(self) -> str:
        """Stands in its records as `decided_by`; the sensor of this name is its switch."""
        ...

    def due(self, world: W) -> Iterable[str]:
        """Return the ids of the runs worth a look, in the order of their turns; raises LedgerError.

        By the ledger, over all runs. A row that is behind costs a look and decides nothing.
        """
        ...

    def decide(self, state: RunState, world: W) -> Answer:
        """Return what follows on `state`; None where nothing is for this decider to say.

        Writes nothing: what has to be done before is a `First`. May be asked several times, also on a
        state whose place is then lost.
        """
        ...


class Follower(Protocol):
    """Does something elsewhere with each record of a track: shows it, or sends a message."""

    @property
    def name(self) -> str:
        """Names its cursor."""
        ...

    def cursor(self, track: str) -> int:
        """Return the seq of the newest record that it has taken in, -1 before the first.

        Kept where its effect is, so that both are there or neither is; else by `StoredCursors`.
        """
        ...

    def take(self, track: str, new: Sequence[Record]) -> None:
        """Take in the records after the cursor, in order, and move it. Idempotent: may be repeated."""
        ...

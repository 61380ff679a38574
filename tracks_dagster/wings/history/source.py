"""The port of all sources: what one says of an attempt, and of what it could not say.

A source translates and decides nothing: the verdict is `judging`'s. It reads in one pass and keeps no
more than one run's rows, so a file may be of any length.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import NamedTuple, Protocol

from tracks_dagster.reasons.evidence import Evidence
from tracks_dagster.track.bodies import AUTOMATIC
from tracks_dagster.track.records import Json, sha256_hex

# A run whose source does not say that it ended, and in which nothing happened for so long, has ended.
SILENT_S = 6 * 3600.0


class Point(NamedTuple):
    """One value of a curve. step: 0 to 2**53; at: seconds since 1970; value: may not be finite."""

    name: str
    step: int
    value: float
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceAttempt:
    """One ended attempt, as its source has it.

    id: the same for the same attempt whenever it is read, and no other's. in_any_zone: the same also
    where its times are read in another zone; "" of a source whose times name theirs. run: what attempts
    of one run have in common there. started_at: None where it never started. evidence: what the
    classifier reads, without run and attempt. row: as it was read, kept as it is. devices:
    accelerators, or nodes where it had none. succeeded, failed: the words by which the source says that
    it ended as meant, or not. unknown: what the source cannot say of it, each with why. points: its
    curves, in the order of their times; values: how many its whole run has; metrics: the newest values,
    where these are not those of the points. Other fields: as of `ImportedAttempt`.
    """

    id: str
    in_any_zone: str = ""
    run: str
    title: str
    submitted_at: datetime
    started_at: datetime | None
    ended_at: datetime
    evidence: Evidence
    row: Json
    owner: str = "unknown"
    team: str = "unknown"
    cause: str = AUTOMATIC
    devices: int = 1
    device_class: str = "unknown"
    nodes: tuple[str, ...] = ()
    excluded_nodes: tuple[str, ...] = ()
    config: Mapping[str, Json] = field(default_factory=dict)
    resumed_step: int | None = None
    last_step: int | None = None
    succeeded: str | None = None
    failed: str | None = None
    points: Sequence[Point] = ()
    values: int = 0
    metrics: Mapping[str, float] = field(default_factory=dict)
    unknown: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceNode:
    """A node as its source lists it. seen_at: when the list was printed. Other fields: as of
    `ImportedNode`."""

    node: str
    program: str
    seen_at: datetime
    row: str
    state: str = ""
    out: tuple[str, ...] = ()
    reason: str = ""
    set_by: str = ""
    since_at: datetime | None = None
    booted_at: datetime | None = None
    gres: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BadRow:
    """A row that cannot be read; every other is.

    line: 1-based, of the file that was read, 0: all of it. file: which one, where there are several.
    """

    line: int
    why: str
    file: str = ""

    @property
    def place(self) -> str:
        """Where it is, for people."""
        line = f"line {self.line}" if self.line else ""
        return ", ".join(filter(None, (self.file, line)))


@dataclass(frozen=True, slots=True, kw_only=True)
class NotEnded:
    """A row of an attempt that waits or runs: it is imported once it has ended."""

    line: int = 0


Read = SourceAttempt | SourceNode | BadRow | NotEnded


class History(Protocol):
    """What another system remembers of what it ran."""

    @property
    def system(self) -> str:
        """Its name, with the version of its format where that is known: "slurm"."""
        ...

    @property
    def origin(self) -> str:
        """What is read, for people: a file, a folder, a command."""
        ...

    def read(self) -> Iterator[Read]:
        """Yield what there is, as it comes. Reads everything again each time.

        Raises InvalidInput where it cannot be read at all, and says what is missing.
        """
        ...


def uid_of(history: str, source_id: str) -> str:
    """Return the identity of an attempt: the same at every import."""
    return sha256_hex(f"{history}\0{source_id}".encode())[:32]


def time_of(seconds: float) -> datetime:
    """Return the time of seconds since 1970 in UTC; ValueError for one that no run can have."""
    try:
        return aware(datetime.fromtimestamp(seconds, UTC))
    except (ValueError, OverflowError, OSError):
        raise ValueError(f"its time is {str(seconds)[:40]!r}, not one of a run") from None


def aware(at: datetime) -> datetime:
    """Return the time in UTC, whole in microseconds; ValueError for one outside of 2000 to 2100."""
    at = at.astimezone(UTC)
    # A 0 that stands for no time would count as half a century of device hours.
    if not 2000 <= at.year < 2100:
        raise ValueError(f"{at:%Y-%m-%d} is not a time of a run")
    return at

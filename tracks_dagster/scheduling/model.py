"""What the rules of the queue look at and what they answer: plain values. Pure.

The live queue makes them from tracks and devices, the simulator from a workload. Times are seconds on
any one axis, the same for all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

NEVER = "never"
LATER = "later"


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One place for a rank.

    name: its UUID, "pretended:0" or "cpu:0". kind: only a demand of the same kind takes it. node: the
    machine. model: for people. memory_bytes: None where it is not known; then it is never shared.
    islands: the groups of its node's devices that reach each other fast, the fastest link first
    (NVLink, NUMA node, PCIe switch), each by a name for people; () where nobody knows. out: why it may
    not be given, None where it may.
    """

    name: str
    kind: str = ""
    node: str = ""
    model: str = ""
    memory_bytes: int | None = None
    islands: tuple[str, ...] = ()
    out: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What wants devices, all of them at once or none: an attempt's gang, or one attempt at an eval.

    key: "RUN/aNN" or the eval's. count: devices. memory_bytes: of each, measured and with a margin;
    None: it takes its devices alone. workload_class, team, owner: as declared. since_s: when it began
    to wait. work_s: how long it will run, None where nobody knows. near: keys or node names that it
    should be close to: its trainer, its data. is_interrupted: it has run before, so its steps are
    paid for.
    """

    key: str
    count: int
    kind: str = ""
    memory_bytes: int | None = None
    workload_class: str = ""
    team: str = ""
    owner: str = ""
    since_s: float = 0.0
    work_s: float | None = None
    near: tuple[str, ...] = ()
    is_interrupted: bool = False

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ValueError(f"{self.key} wants {self.count} devices; a gang takes 1 or more.")


class Running(NamedTuple):
    """A demand that has its devices. A tuple, since a played queue makes a million of them.

    began_s: since when. left_s: until it frees them, None where nobody knows. committed_s: when its
    newest checkpoint was committed, or when it began where it resumes from that one, None where there
    is none; unsaved_ranks_s: what a move now would lose, ranks times seconds. saves_when_asked: it
    trains, and a request for a checkpoint reaches it. is_moving: it was asked to save and make room.
    """

    demand: Demand
    devices: tuple[str, ...]
    began_s: float = 0.0
    left_s: float | None = None
    committed_s: float | None = None
    unsaved_ranks_s: float = 0.0
    saves_when_asked: bool = False
    is_moving: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Give these devices now. why: the order, the placement and its reason, in words."""

    key: str
    devices: tuple[str, ...]
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """Ask this running one to save, end and come back by itself. for_key: who gets its devices.

    saves_first: ask it for a checkpoint only; a later plan asks for the rest, once that is committed.
    """

    key: str
    for_key: str
    why: str
    saves_first: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Waits:
    """Why one does not start now. starts: LATER or NEVER. in_s: expected, None where nobody knows;
    after: the keys whose end makes room; why: the sentence that people read."""

    key: str
    starts: str
    why: str
    in_s: float | None = None
    after: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What follows now. order: every waiting key, first to start first."""

    starts: tuple[Start, ...] = ()
    moves: tuple[Move, ...] = ()
    waits: tuple[Waits, ...] = ()
    order: tuple[str, ...] = ()

    def start(self, key: str) -> Start | None:
        """Return the start of one, if it starts now."""
        return next((each for each in self.starts if each.key == key), None)

    def wait(self, key: str) -> Waits | None:
        """Return why one waits, if it does."""
        return next((each for each in self.waits if each.key == key), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What was used so far. by_team: device seconds, decayed to now by the policy's half-life.

    money_by_class, money_by_team, money_by_owner: spent since midnight (UTC).
    """

    by_team: Mapping[str, float] = field(default_factory=dict)
    money_by_class: Mapping[str, float] = field(default_factory=dict)
    money_by_team: Mapping[str, float] = field(default_factory=dict)
    money_by_owner: Mapping[str, float] = field(default_factory=dict)

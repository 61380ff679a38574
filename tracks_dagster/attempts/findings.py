"""What a check before the first run found: of this machine, or of a place where gangs run. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Health(StrEnum):
    """What a check found."""

    OK = "ok"
    MISSING = "missing"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainedNode:
    """A node on which a place starts nothing by itself. by: who said so there; why: in their words."""

    node: str
    by: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The answer to one check. words: what was found, and what to do where it is missing."""

    check: str
    health: Health
    words: str

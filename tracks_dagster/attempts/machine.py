"""What one machine says of itself now: its boot, and which processes live on it. Plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessId:
    """One process of one boot of one machine: a pid alone is given again.

    started: seconds, since boot on Linux, else since 1970.
    """

    pid: int
    started: float
    boot_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineNow:
    """One look at a machine. living: pid → when that process started, of those asked for that live.

    booted_at: None where the system does not tell.
    """

    node: str
    boot_id: str
    booted_at: datetime | None = None
    living: Mapping[int, float] = field(default_factory=dict)

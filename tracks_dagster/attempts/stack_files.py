"""Where a rank's stack dumps lie, and by which signal they are asked for."""

from __future__ import annotations

import signal
from pathlib import Path

DUMP_SIGNAL = signal.SIGUSR2


def stack_file(work: Path, rank: int) -> Path:
    """Return the file that a rank's dumps go to; there once the rank can dump."""
    return work / "stacks" / f"rank-{rank}.txt"

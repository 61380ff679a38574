"""Run one `tracks` command in this process, and write how it went into the file that is named first.

    python -m benchmarks.timed_command OUT.json status --json

Its own seconds begin after Python and this module are up, and include the command's imports; those of
the processor are the whole process's, and hardly tell how busy the machine was. Memory is
the peak of this process alone: `wait4` also counts the parent that it was forked from.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

PEAK = "VmHWM:"  # in /proc/self/status, in kB


def main(out: Path, arguments: list[str]) -> int:
    """Run the command; return its exit code."""
    started = time.perf_counter()
    from tracks_dagster.cli import main as tracks

    code = tracks(arguments, standalone_mode=False) or 0
    sys.stdout.flush()
    inside_s = time.perf_counter() - started
    took = {"inside_s": inside_s, "cpu_s": time.process_time(), "peak_mb": peak_mb()}
    out.write_text(json.dumps(took))
    return int(code)


def peak_mb() -> float:
    """Return the most memory that this process ever used, in MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    peak_kb = next(line.split()[1] for line in lines if line.startswith(PEAK))
    return int(peak_kb) * 1024 / 1e6


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))

"""`./run bench [NAME …]`: run the named benchmarks, or all; a table to read, then one JSON object.

Machines are shared and noisy: every figure of interest is a ratio of two medians measured in turns
in the same process.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

from benchmarks import checkpoint, ledger, track

BENCHMARKS: dict[str, Callable[[], dict[str, float]]] = {
    "track": track.run,
    "ledger": ledger.run,
    "checkpoint": checkpoint.run,
    "checkpoint-2gb": lambda: checkpoint.run((2000,)),  # needs 10 GB of memory; only when asked
}
ALL = ("track", "ledger", "checkpoint")
# By the figure's name, without its size; the others have none.
BARS, WHY = checkpoint.BARS, checkpoint.WHY


def main(names: list[str]) -> int:
    """Run the benchmarks of these names; exit code 2 for a name that does not exist."""
    unknown = [name for name in names if name not in BENCHMARKS]
    if unknown:
        known = ", ".join(BENCHMARKS)
        print(f"There is no benchmark {unknown[0]!r}; choose of: {known}.", file=sys.stderr)
        return 2
    figures = {}
    for name in names or ALL:
        print(f"\n{name}", file=sys.stderr)
        figures[name] = BENCHMARKS[name]()
        for label, value in figures[name].items():
            print(f"  {label:<48} {value:>12,.3f}{_judged(label, value)}", file=sys.stderr)
    print(json.dumps(figures, indent=1))
    return 0


def _judged(label: str, value: float) -> str:
    """Say whether a figure that has a bar meets it, and if not, what else stands in it."""
    name = label.partition(" @")[0]
    bar = BARS.get(name)
    if bar is None:
        return ""
    return f"   at most {bar:g}: " + ("met" if value <= bar else f"MISSED ({WHY[name]})")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

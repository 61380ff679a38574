"""`./run bench [NAME …]`: run the named benchmarks, or all; a table to read, then one JSON object.

Machines are shared and noisy: every figure of interest is a ratio of two medians measured in turns
in the same process.
"""

from __future__ import annotations

import json
import sys

from benchmarks import ledger, track

BENCHMARKS = {"track": track.run, "ledger": ledger.run}


def main(names: list[str]) -> int:
    """Run the benchmarks of these names; exit code 2 for a name that does not exist."""
    unknown = [name for name in names if name not in BENCHMARKS]
    if unknown:
        known = ", ".join(BENCHMARKS)
        print(f"There is no benchmark {unknown[0]!r}; choose of: {known}.", file=sys.stderr)
        return 2
    figures = {}
    for name in names or BENCHMARKS:
        print(f"\n{name}", file=sys.stderr)
        figures[name] = BENCHMARKS[name]()
        for label, value in figures[name].items():
            print(f"  {label:<48} {value:>12,.3f}", file=sys.stderr)
    print(json.dumps(figures, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

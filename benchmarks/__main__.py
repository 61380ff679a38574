"""`./run bench [NAME …]`: run the named benchmarks, or all; a table to read, then one JSON object.

Machines are shared and noisy: every figure of interest is a ratio of two medians measured in turns
in the same process, counted, or simulated; in seconds are only `retry`'s kill and what `ledger` says
of whole commands beside a large history, of an idle machine.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks import (
    checkpoint,
    kubernetes,
    ledger,
    ledger_history,
    retry,
    retry_kill,
    track,
)
from tracks_dagster.core.errors import InvalidInput

BENCHMARKS: dict[str, Callable[[argparse.Namespace], dict[str, float]]] = {
    "track": lambda given: track.run(),
    "ledger": lambda given: {**ledger.run(), **_history(given)},
    "checkpoint": lambda given: checkpoint.run(),
    "checkpoint-2gb": lambda given: checkpoint.run((2000,)),  # needs 10 GB of memory; when asked
    "retry": lambda given: retry.run(
        traces=given.traces, only=given.only or (), rounds=given.rounds
    ),
    "kubernetes": lambda given: kubernetes.run(),  # takes minutes and 3 GB; when asked
}
ALL = ("track", "ledger", "checkpoint", "retry")
# By the figure's name, without what stands behind its "@"; the others have no bar.
AT_MOST = {**checkpoint.BARS, **retry.AT_MOST, **kubernetes.AT_MOST, **ledger_history.AT_MOST}
AT_LEAST = {**retry.AT_LEAST, **ledger_history.AT_LEAST}
WHY = {**checkpoint.WHY, **retry.WHY, **kubernetes.WHY, **ledger_history.WHY}


def main(arguments: Sequence[str]) -> int:
    """Run the benchmarks of these names; exit code 2 for what does not exist."""
    given = _parser().parse_args(arguments)
    unknown = [name for name in given.names if name not in BENCHMARKS]
    if unknown:
        known = ", ".join(BENCHMARKS)
        print(f"There is no benchmark {unknown[0]!r}; choose of: {known}.", file=sys.stderr)
        return 2
    figures = {}
    for name in given.names or ALL:
        print(f"\n{name}", file=sys.stderr)
        try:
            figures[name] = BENCHMARKS[name](given)
        except InvalidInput as error:
            print(f"{name}: {error}", file=sys.stderr)
            return 2
        for label, value in figures[name].items():
            print(f"  {label:<64} {value:>12,.3f}{_judged(label, value)}", file=sys.stderr)
    print(json.dumps(figures, indent=1))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="./run bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(BENCHMARKS))
    parser.add_argument("--traces", type=Path, metavar="FOLDER", help="retry: of spot capacity")
    parser.add_argument(
        "--only", action="append", choices=retry.PARTS, help="retry: this part; repeatable"
    )
    parser.add_argument(
        "--rounds", type=int, default=retry_kill.ROUNDS, help="retry: kills that are timed"
    )
    parser.add_argument(
        "--attempts", type=int, metavar="N", help="ledger: of the generated history; 1000000: all"
    )
    parser.add_argument(
        "--history",
        type=Path,
        metavar="FOLDER",
        help="ledger: keep the generated history there, or measure the one that is there",
    )
    return parser


def _history(given: argparse.Namespace) -> dict[str, float]:
    return ledger_history.run(given.attempts, kept=given.history)


def _judged(label: str, value: float) -> str:
    """Say whether a figure that has a bar meets it, and if not, what else stands in it."""
    name = label.partition(" @")[0]
    is_part = name != label and name in (*retry.AT_LEAST, *retry.AT_MOST)
    missed = f"MISSED ({WHY.get(name)})"
    if name in AT_MOST and not is_part:
        return f"   at most {AT_MOST[name]:g}: " + ("met" if value <= AT_MOST[name] else missed)
    if name in AT_LEAST and not is_part:
        return f"   at least {AT_LEAST[name]:g}: " + ("met" if value >= AT_LEAST[name] else missed)
    return ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

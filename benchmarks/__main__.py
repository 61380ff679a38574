"""`./run bench [NAME …]`: run the named benchmarks, or all; a table to read, then one JSON object.

`--save` keeps the figures under docs/benchmarks/; `--compare` runs the commit saved last beside today's
code and ends with 1 where something got worse by more than a tenth. Without names both take the short
benchmarks. SIGTERM ends whatever a benchmark started.

Machines are shared and noisy: every figure of interest is a ratio of two medians measured in turns
in the same process, counted, or simulated; in seconds are only `retry`'s kill and `ledger`'s
whole commands beside a large history, of an idle machine.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from benchmarks import (
    checkpoint,
    compare,
    data,
    folder,
    idle,
    imports,
    kubernetes,
    ledger,
    ledger_history,
    live_board,
    live_curves,
    live_signals,
    live_watch,
    retry,
    retry_kill,
    schedule,
    schedule_play,
    search,
    start,
    step,
    table,
    track,
    tune,
)
from tracks_dagster.track.errors import InvalidInput

BENCHMARKS: dict[str, Callable[[argparse.Namespace], dict[str, float]]] = {
    "step": lambda given: step.run(),
    "start": lambda given: start.run(),
    "track": lambda given: track.run(),
    "reindex": lambda given: ledger.run(),
    "ledger": lambda given: {**ledger.run(), **_history(given)},
    "checkpoint": lambda given: checkpoint.run(),
    "checkpoint-100mb": lambda given: checkpoint.run((100,)),
    "checkpoint-2gb": lambda given: checkpoint.run((2000,)),  # needs 10 GB of memory; when asked
    "data": lambda given: data.run(),  # needs 6 GB of disk; when asked
    "folder": lambda given: folder.run(),  # needs 8 GB of disk; when asked
    "import": lambda given: imports.run(),  # takes minutes and 2 GB of disk; when asked
    "retry": lambda given: retry.run(
        traces=given.traces, only=given.only or (), rounds=given.rounds
    ),
    "idle": lambda given: idle.run(),  # takes six minutes; when asked
    "idle-200": lambda given: idle.run_many(),  # of 200 projects; takes eight minutes; when asked
    "schedule": lambda given: {**schedule.run(), **schedule_play.run()},
    "table": lambda given: table.run(),  # takes a minute; when asked
    "tune": lambda given: tune.run(),  # takes four minutes; when asked
    "search": lambda given: search.run(),  # takes ten minutes; when asked
    "kubernetes": lambda given: kubernetes.run(),  # takes minutes and 3 GB; when asked
    # takes minutes and 1 GB of disk; when asked
    "live": lambda given: {
        **live_signals.run(),
        **live_curves.run(),
        **live_watch.run(),
        **live_board.run(),
    },
}
ALL = ("step", "start", "track", "ledger", "checkpoint", "retry", "schedule")
SHORT = ("step", "start", "track", "reindex", "checkpoint-100mb")  # of --save and --compare
# By the figure's name, without what follows its "@"; the others have no bar.
AT_MOST = {
    **step.AT_MOST,
    **start.AT_MOST,
    **checkpoint.BARS,
    **data.AT_MOST,
    **folder.AT_MOST,
    **idle.AT_MOST,
    **imports.AT_MOST,
    **retry.AT_MOST,
    **schedule.AT_MOST,
    **schedule_play.AT_MOST,
    **kubernetes.AT_MOST,
    **ledger_history.AT_MOST,
    **live_curves.AT_MOST,
    **live_board.AT_MOST,
    **live_signals.AT_MOST,
    **live_watch.AT_MOST,
    **table.AT_MOST,
    **tune.AT_MOST,
}
AT_LEAST = {**data.AT_LEAST, **retry.AT_LEAST, **ledger_history.AT_LEAST}
WHY = {
    **step.WHY,
    **start.WHY,
    **checkpoint.WHY,
    **data.WHY,
    **folder.WHY,
    **idle.WHY,
    **imports.WHY,
    **retry.WHY,
    **schedule.WHY,
    **schedule_play.WHY,
    **kubernetes.WHY,
    **ledger_history.WHY,
    **live_curves.WHY,
    **live_board.WHY,
    **live_signals.WHY,
    **live_watch.WHY,
    **table.WHY,
    **tune.WHY,
}


def main(arguments: Sequence[str]) -> int:
    """Run what is asked for; exit code 2 for what does not exist, 1 where something got worse."""
    compare.end_through_finally()
    given = _parser().parse_args(arguments)
    names = given.names or (SHORT if given.save or given.compare else ALL)
    unknown = [name for name in names if name not in BENCHMARKS]
    if unknown:
        known = ", ".join(BENCHMARKS)
        print(f"There is no benchmark {unknown[0]!r}; choose of: {known}.", file=sys.stderr)
        return 2
    try:
        if given.compare:
            return _compare(names)
        if given.save:
            return _save(names, given)
        print(json.dumps(_run(names, given), indent=1))
    except InvalidInput as error:
        print(f"./run bench: {error}", file=sys.stderr)
        return 2
    return 0


def _run(names: Sequence[str], given: argparse.Namespace) -> compare.Figures:
    figures = {}
    for name in names:
        print(f"\n{name}", file=sys.stderr)
        figures[name] = BENCHMARKS[name](given)
        for label, value in figures[name].items():
            print(f"  {label:<64} {value:>12,.3f}{_judged(label, value)}", file=sys.stderr)
    return figures


def _save(names: Sequence[str], given: argparse.Namespace) -> int:
    commit, load_average = compare.clean_commit(), os.getloadavg()[0]
    figures = _run(names, given)
    path = compare.save(figures, commit=commit, load_average=load_average, now=datetime.now(UTC))
    print(f"Saved in {path.relative_to(compare.ROOT)}; commit it.")
    return 0


def _compare(names: Sequence[str]) -> int:
    found = compare.newest()
    if found is None:
        raise InvalidInput("No figures were saved yet; call `./run bench --save` first.")
    commit = compare.commit_of(*found)
    with compare.checkout_of(commit) as before:
        rows = compare.compare(names, before, compare.run_benchmark)
    print(f"Before: {commit[:12]}, saved {found[1].saved_at[:10]}.\n")
    print(compare.format_table(rows))
    return int(any(row.verdict == "worse" for row in rows))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="./run bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(BENCHMARKS))
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--save", action="store_true", help="keep the figures in docs/benchmarks/")
    what.add_argument(
        "--compare", action="store_true", help="run the commit saved last beside today's code"
    )
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
    """Return whether a figure that has a bar meets it, and if not, what else is in it."""
    name = label.partition(" @")[0]
    is_part = name != label and name in (*retry.AT_LEAST, *retry.AT_MOST)
    missed = f"MISSED ({WHY.get(name)})"
    if name in AT_MOST and not is_part:
        return f"   at most {AT_MOST[name]:g}: " + ("met" if value <= AT_MOST[name] else missed)
    if name in AT_LEAST and not is_part:
        return f"   at least {AT_LEAST[name]:g}: " + ("met" if value >= AT_LEAST[name] else missed)
    return ""


if __name__ == "__main__":
    # So that what a benchmark started ends in order, its gangs too.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    sys.exit(main(sys.argv[1:]))

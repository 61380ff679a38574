"""What got slower since figures were last saved: that commit's benchmarks beside today's, in turns.

Each pair is two processes, one of either side, one after the other on this machine, with the order
swapped from pair to pair. A figure got worse when three quarters of its pairs say so by more than a
tenth. Where only its median does, or the figure of one and the same code wanders by more than that,
more pairs are run, and what still cannot be told is called too noisy, never fine.
"""

from __future__ import annotations

import json
import math
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.saved import ROOT, Figures, git

PAIRS = 3
PAIRS_MAX = 7  # of a benchmark of which a figure cannot be told
MORE_PAIRS_S_MAX = 300.0  # since the start: later no benchmark gets more than PAIRS
WORSE_FROM = 1.1
SHARE_OF_PAIRS = 0.75  # that must agree
BENCHMARK_S_MAX = 1800.0
END_S_MAX = 90.0  # for a benchmark that was asked to end, with a run that it started
ERROR_CHARS_MAX = 2000  # of what a benchmark said before it failed
WRONG_USE = 2  # its exit code where there is none of that name

# What our code has no part in: other libraries and the bare machine. They show the machine's noise.
CONTROLS = ("torch_", "dcp_", "safetensors_", "bare_", "raw_", "memcpy", "raw (s)", "read (s)")
HIGHER_IS_BETTER = ("reindexed_records_per_s",)

Measure = Callable[[Path, str], dict[str, float]]  # (checkout, benchmark): its figures


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One figure. before, now: medians; ratios: of the pairs, above 1 where today is worse."""

    name: str
    before: float
    now: float
    ratios: tuple[float, ...]
    is_control: bool

    @property
    def ratio(self) -> float:
        """The median of the pairs."""
        return statistics.median(self.ratios)

    @property
    def verdict(self) -> str:
        """One of "control", "worse", "too noisy", "better" and ""."""
        if self.is_control:
            return "control"
        if self._agree(lambda ratio: ratio > WORSE_FROM):
            return "worse"
        if self._agree(lambda ratio: ratio < 1 / WORSE_FROM):
            return "better"
        wanders = max(self.ratios) / min(self.ratios) > WORSE_FROM**2
        return "too noisy" if self.ratio > WORSE_FROM or (wanders and self._is_torn) else ""

    @property
    def _is_torn(self) -> bool:
        """Whether some pair calls it worse: it may be."""
        return max(self.ratios) > WORSE_FROM

    def _agree(self, says: Callable[[float], bool]) -> bool:
        return sum(map(says, self.ratios)) >= SHARE_OF_PAIRS * len(self.ratios)


def compare(
    names: Sequence[str],
    before: Path,
    measure: Measure,
    *,
    monotonic: Callable[[], float] = time.monotonic,
) -> list[Row]:
    """Return a row for each figure that both sides have, benchmark by benchmark."""
    rows: list[Row] = []
    no_more_at = monotonic() + MORE_PAIRS_S_MAX
    for name in names:
        sides: tuple[list[dict[str, float]], list[dict[str, float]]] = ([], [])
        found: list[Row] = []
        while len(sides[0]) < PAIRS or (
            len(sides[0]) < PAIRS_MAX
            and monotonic() < no_more_at
            and any(row.verdict == "too noisy" for row in found)
        ):
            order = ((0, before), (1, ROOT)) if len(sides[0]) % 2 else ((1, ROOT), (0, before))
            for side, checkout in order:
                sides[side].append(measure(checkout, name))
            found = _rows(name, *sides)
        rows += found
    return rows


def format_table(rows: Sequence[Row]) -> str:
    """Return the rows as a table in markdown, and below it in words what got worse."""
    lines = ["| figure | before | now | now / before | pairs | |", "|---|--:|--:|--:|--:|---|"]
    lines += [
        f"| {row.name} | {row.before:.4g} | {row.now:.4g} | {row.now / row.before:.2f} "
        f"| {len(row.ratios)} | {row.verdict} |"
        for row in rows
    ]
    worse = [row.name for row in rows if row.verdict == "worse"]
    noisy = [row.name for row in rows if row.verdict == "too noisy"]
    lines += ["", f"Worse by more than a tenth: {', '.join(worse) or 'nothing'}."]
    if noisy:
        lines.append(
            f"This machine is too noisy to tell, after up to {PAIRS_MAX} pairs: {', '.join(noisy)}. "
            "Run it again when the machine is idle."
        )
    return "\n".join(lines)


def end_through_finally() -> None:
    """Let SIGTERM end this process as an error would: what it started and made goes with it."""

    def end(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, end)


@contextmanager
def checkout_of(commit: str) -> Iterator[Path]:
    """Yield a checkout of `commit` in a temporary folder; it is gone afterwards, whatever happens."""
    with tempfile.TemporaryDirectory(prefix="tracks-bench-") as folder:
        path = Path(folder) / "before"
        try:
            git("worktree", "add", "--quiet", "--detach", str(path), commit)
            yield path
        finally:
            git("worktree", "remove", "--force", str(path), may_fail=True)


def run_benchmark(checkout: Path, name: str) -> dict[str, float]:
    """Run one benchmark of a checkout in a fresh process; {} where it has none of that name.

    A process is asked to end, then made to, when this one ends before it.
    """
    print(f"  {name} of {checkout.name}", file=sys.stderr)
    with tempfile.TemporaryFile("w+") as errors:
        child = subprocess.Popen(
            [sys.executable, "-m", "benchmarks", name],
            cwd=checkout,
            env={**os.environ, "PYTHONPATH": str(checkout)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        try:
            printed, _ = child.communicate(timeout=BENCHMARK_S_MAX)
        finally:
            if child.poll() is None:
                child.terminate()
                try:
                    child.wait(END_S_MAX)
                except subprocess.TimeoutExpired:
                    child.kill()
                    child.wait()
        errors.seek(0)
        if child.returncode == WRONG_USE and checkout != ROOT:
            print(f"  {name} is newer than what it is compared with", file=sys.stderr)
            return {}
        if child.returncode:
            raise RuntimeError(
                f"The benchmark {name} in {checkout} ended with {child.returncode}:\n"
                f"{errors.read()[-ERROR_CHARS_MAX:]}"
            )
    found: Figures = json.loads(printed)
    return found[name]


def _rows(
    name: str, before: Sequence[dict[str, float]], now: Sequence[dict[str, float]]
) -> list[Row]:
    pairs: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for then, today in zip(before, now, strict=True):
        for label in then.keys() & today.keys():
            if then[label] > 0 and today[label] > 0:
                pairs[label].append((then[label], today[label]))
    labels = [label for label in now[0] if label in pairs]
    return [
        Row(
            name=f"{name} {label}",
            before=statistics.median(then for then, _ in pairs[label]),
            now=statistics.median(today for _, today in pairs[label]),
            ratios=tuple(
                math.pow(today / then, -1 if label.startswith(HIGHER_IS_BETTER) else 1)
                for then, today in pairs[label]
            ),
            is_control=label.startswith(CONTROLS),
        )
        for label in labels
    ]

"""What got slower since figures were last saved: that commit's benchmarks beside today's, in turns.

Each pair is two processes, one of either side, one after the other on this machine, with the order
swapped from pair to pair. A figure got worse when three quarters of its pairs say so by more than a
tenth. Where only its median does, or the figure of one and the same code wanders by more than that,
more pairs are run, and what is still undecided is called too noisy, never fine.

A save is a JSON file with its commit and machine. Its numbers, of another machine on another day, are
for people: they are never compared with today's.
"""

from __future__ import annotations

import importlib.metadata
import json
import math
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path

from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.records import format_time

PAIRS = 3
PAIRS_MAX = 7  # of a benchmark of which a figure is undecided
MORE_PAIRS_S_MAX = 300.0  # since the start: later no benchmark gets more than PAIRS
WORSE_FROM = 1.1
SHARE_OF_PAIRS = 0.75  # that must agree
BENCHMARK_S_MAX = 1800.0
END_S_MAX = 90.0  # for a benchmark that was asked to end, with a run that it started
ERROR_CHARS_MAX = 2000  # of what a benchmark printed before it failed
WRONG_USE = 2  # its exit code where there is none of that name

# What our code has no part in: other libraries and the bare machine. They show the machine's noise.
CONTROLS = ("torch_", "dcp_", "safetensors_", "bare_", "raw_", "memcpy", "raw (s)", "read (s)")
HIGHER_IS_BETTER = ("reindexed_records_per_s",)

Measure = Callable[[Path, str], dict[str, float]]  # (checkout, benchmark): its figures
ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "benchmarks"
GIT_S_MAX = 120.0
BUSY_LOAD_SHARE = 0.5  # of the cores: from there on other processes are in the figures

Figures = dict[str, dict[str, float]]  # by benchmark and figure


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

    def _agree(self, is_so: Callable[[float], bool]) -> bool:
        return sum(map(is_so, self.ratios)) >= SHARE_OF_PAIRS * len(self.ratios)


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
    """Let SIGTERM end this process as an error would: what it started and made is removed."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What figures depend on besides the code. memory_bytes: of the whole machine."""

    cpu_model: str
    cpu_count: int
    memory_bytes: int
    os: str
    python: str
    torch: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """One save. load_average: of the minute before the benchmarks began, when nothing of ours ran."""

    commit: str
    saved_at: str
    machine: Machine
    load_average: float
    figures: Figures = field(default_factory=dict)

    @property
    def was_busy(self) -> bool:
        """Whether other processes had so much of the machine that they are in the figures too."""
        return self.load_average > BUSY_LOAD_SHARE * self.machine.cpu_count


def save(figures: Figures, *, commit: str, load_average: float, now: datetime) -> Path:
    """Write the figures into a file named for the day and the commit; return it."""
    saved = Saved(
        commit=commit,
        saved_at=format_time(now),
        machine=this_machine(),
        load_average=round(load_average, 2),
        figures=figures,
    )
    content = asdict(saved) | {"machine_was_busy": saved.was_busy}
    path = FOLDER / f"{now:%Y-%m-%d}-{commit[:12]}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1) + "\n")
    return path


def newest(folder: Path = FOLDER) -> tuple[Path, Saved] | None:
    """Return the save made last, by its own time; None where there is none."""
    found = [(path, _read(path)) for path in sorted(folder.glob("*.json"))]
    return max(found, key=lambda each: each[1].saved_at, default=None)


def clean_commit() -> str:
    """Return HEAD; raises InvalidInput where tracked files differ from it: whose figures are they?"""
    changed = git("status", "--porcelain", "--untracked-files=no")
    if changed:
        raise InvalidInput(f"Commit first, so that the figures belong to a commit:\n{changed}")
    return git("rev-parse", "HEAD")


def commit_of(path: Path, saved: Saved) -> str:
    """Return the commit that was measured; after a rebase, the one that brought the file.

    Raises InvalidInput when this clone has neither.
    """
    for commit in (
        saved.commit,
        git("log", "--diff-filter=A", "--format=%H", "-1", "--", str(path)),
    ):
        if commit and git("cat-file", "-t", commit, may_fail=True) == "commit":
            return commit
    raise InvalidInput(f"{path.name} is of commit {saved.commit}, which this clone does not have.")


def git(*arguments: str, may_fail: bool = False) -> str:
    """Return what git prints; raises InvalidInput with its complaint when it fails."""
    done = subprocess.run(
        ["git", "-C", str(ROOT), *arguments],
        capture_output=True,
        text=True,
        timeout=GIT_S_MAX,
        check=False,
    )
    if done.returncode and not may_fail:
        raise InvalidInput(f"git {' '.join(arguments)} failed: {done.stderr.strip()}")
    return done.stdout.strip()


def this_machine() -> Machine:
    """Describe the machine that this process runs on."""
    return Machine(
        cpu_model=_cpu_model(),
        cpu_count=os.cpu_count() or 1,
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        os=platform.platform(),
        python=platform.python_version(),
        torch=importlib.metadata.version("torch"),
    )


def _cpu_model() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def _read(path: Path) -> Saved:
    content: Mapping[str, object] = json.loads(path.read_text())
    fields = {name: content[name] for name in Saved.__dataclass_fields__}
    return Saved(**{**fields, "machine": Machine(**fields["machine"])})  # type: ignore[arg-type]

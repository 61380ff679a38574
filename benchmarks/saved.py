"""Figures that were saved: a JSON file for each save, with the commit and the machine they are of.

`./run bench --compare` does not hold today's figures against these numbers, which are of another
machine on another day: it runs the saved commit's benchmarks again. The numbers are for people.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path

from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.records import format_time

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "benchmarks"
GIT_S_MAX = 120.0
BUSY_LOAD_SHARE = 0.5  # of the cores: from there on other processes are in the figures

Figures = dict[str, dict[str, float]]  # by benchmark and figure


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
        """Whether other processes had so much of the machine that the figures tell of them too."""
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
    told = asdict(saved) | {"machine_was_busy": saved.was_busy}
    path = FOLDER / f"{now:%Y-%m-%d}-{commit[:12]}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(told, indent=1) + "\n")
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
    told: Mapping[str, object] = json.loads(path.read_text())
    fields = {name: told[name] for name in Saved.__dataclass_fields__}
    return Saved(**{**fields, "machine": Machine(**fields["machine"])})  # type: ignore[arg-type]

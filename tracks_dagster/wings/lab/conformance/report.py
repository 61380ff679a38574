"""What `tracks conform` found, as a file for people and one for programs. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass

from tracks_dagster.track.records import Json
from tracks_dagster.track.text.units import counted
from tracks_dagster.wings.lab.conformance.defects import Finding, merge
from tracks_dagster.wings.lab.conformance.seen import Trial, TrialSeen

WIDTH = 80
FOLLOWS = ("does_not_finish", "resume_fails")  # from a checkpoint that was committed half-written


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A trial that was run, and what it showed."""

    seen: TrialSeen
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Conformance:
    """All trials of one code. left_out: those that were planned and not run; notes: what was not
    looked at, and why. tolerance: as of `judge`.
    """

    project: str
    code_sha256: str
    trials: tuple[Judged, ...]
    left_out: tuple[Trial, ...]
    notes: tuple[str, ...]
    tolerance: float
    seconds: float

    @property
    def findings(self) -> dict[str, list[Finding]]:
        """The findings by name, each with all trials that show it; not what half a write explains."""
        found = merge(finding for each in self.trials for finding in each.findings)
        explained = FOLLOWS if "half_write_visible" in found else ()
        return {name: each for name, each in found.items() if name not in explained}

    @property
    def failed(self) -> int:
        """How many trials show a finding."""
        return sum(bool(each.findings) for each in self.trials)

    @property
    def passed(self) -> int:
        """How many show none."""
        return len(self.trials) - self.failed

    @property
    def is_green(self) -> bool:
        """Whether every trial was run and none shows a finding."""
        return not self.failed and not self.left_out and bool(self.trials)

    def to_json(self) -> dict[str, Json]:
        """Return all of it, for programs."""
        return {
            "project": self.project,
            "code_sha256": self.code_sha256,
            "green": self.is_green,
            "passed": self.passed,
            "failed": self.failed,
            "left_out": [str(each) for each in self.left_out],
            "findings": [
                {
                    "name": name,
                    "what": found[0].defect.what,
                    "cure": found[0].defect.cure,
                    "seen": [{"trial": str(each.trial), "detail": each.detail} for each in found],
                }
                for name, found in self.findings.items()
            ],
            "trials": [
                {
                    "trial": str(each.seen.trial),
                    "resumed_from": [attempt.resumed for attempt in each.seen.attempts[1:]],
                    "ended_as": [attempt.reason for attempt in each.seen.attempts],
                    "findings": [finding.name for finding in each.findings],
                    "seconds": round(each.seen.seconds, 1),
                }
                for each in self.trials
            ],
            "notes": list(self.notes),
            "tolerance": self.tolerance,
            "seconds": round(self.seconds, 1),
        }

    def lines(self, width: int = WIDTH) -> Iterator[str]:
        """Yield it for people."""
        yield from textwrap.wrap(self._first_line(), width)
        for name, found in self.findings.items():
            first = found[0]
            more = f"; and in {counted(len(found) - 1, 'more trial')}" if len(found) > 1 else ""
            yield ""
            yield name
            for title, text in (
                ("what", first.defect.what),
                ("seen", f"{first.trial}: {first.detail}{more}"),
                ("cure", first.defect.cure),
            ):
                yield from textwrap.wrap(
                    f"{title}: {text}", width, initial_indent="  ", subsequent_indent=" " * 8
                )
        if self.notes:
            yield ""
        for note in self.notes:
            yield from textwrap.wrap(f"Note: {note}", width, subsequent_indent="  ")

    def _first_line(self) -> str:
        shapes = dict.fromkeys(each.seen.trial.shape for each in self.trials)
        within = f"within {self.tolerance:g}" if self.tolerance else "to the bit"
        of = f"{counted(len(self.trials), 'trial')} ({'; '.join(shapes)}) in {self.seconds:.0f} s"
        if self.findings:
            found = counted(len(self.findings), "finding")
            return f"{self.project}: {found} in {of}, {self.failed} of which failed."
        left = f" {counted(len(self.left_out), 'trial')} left out." if self.left_out else ""
        if not any(len(each.seen.attempts) > 1 for each in self.trials):
            return f"{self.project}: no finding, and no resume was tried in {of}.{left}"
        return f"{self.project}: no finding in {of}; all that was compared is equal {within}.{left}"

"""A person's workload as CSV: a line a submission, in columns by name. Pure.

    name,at,devices,runs,class,team,owner,task,estimate,saves_every,near
    base,0s,6,4h,distributed,language,ann,,4h,30min,
    eval,2h,0.25,5min,eval,language,ann,heldout,,,base

Nothing is guessed and nothing skipped: a file with one error is refused, with all errors by line.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TypeVar

from tracks_dagster.scheduling.model import Device
from tracks_dagster.scheduling.policy import SchedulingPolicy
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.text.nearest import unknown
from tracks_dagster.track.text.units import counted, duration_s, shown
from tracks_dagster.wings.lab.simulation.workloads import Submission, Workload

T = TypeVar("T")

NEEDED = ("name", "at", "devices", "runs")
COLUMNS = (*NEEDED, "class", "team", "owner", "task", "estimate", "saves_every", "near")
EXAMPLE = "name,at,devices,runs,class,team\\nbase,0s,6,4h,distributed,language"
SUBMISSIONS_MAX = 1_000_000
PROBLEMS_SHOWN_MAX = 10


def read_workload(
    text: str, *, source: str, devices: Sequence[Device], policy: SchedulingPolicy
) -> Workload:
    """Return the workload of a file's text; raises InvalidInput with what is wrong, line by line.

    devices: what it is played on, of one kind. A gang that is larger than all of them is refused.
    """
    lines = _Lines(source=source, most=len(devices), policy=policy)
    found = list(lines.read(text))
    if lines.problems:
        raise lines.error()
    if not found:
        raise InvalidInput(f"{source} has no submission. Write for example: {EXAMPLE}")
    first_s = min(each.at_s for each in found)
    found = [replace(each, at_s=each.at_s - first_s) for each in found]
    return Workload(
        name=source,
        submissions=tuple(sorted(found, key=lambda each: each.at_s)),
        devices=tuple(devices),
        origin=f"{counted(len(found), 'submission')} of {source}",
    )


@dataclass(slots=True)
class _Lines:
    """A file that is read. problems: in the order of its lines."""

    source: str
    most: int
    policy: SchedulingPolicy
    problems: list[str] = field(default_factory=list)
    lines: dict[str, int] = field(default_factory=dict)  # of each name
    is_dated: bool | None = None  # whether `at` is a date and a time; all are, or none is

    def read(self, text: str) -> Iterator[Submission]:
        """Yield each line that is right."""
        rows = csv.reader(io.StringIO(text.removeprefix("\ufeff"), newline=""), strict=True)
        titles: list[str] | None = None
        try:
            for row in rows:
                if not any(cell.strip() for cell in row) or row[0].lstrip().startswith("#"):
                    continue
                cells = [cell.strip() for cell in row]
                if titles is None:
                    titles = self._titles(cells, rows.line_num)
                    if titles is None:
                        return
                elif found := self._submission(titles, cells, rows.line_num):
                    yield found
        except csv.Error as error:
            self._refuse(rows.line_num, f"it is not CSV: {error}")

    def error(self) -> InvalidInput:
        """Return all that is wrong."""
        shown_here = [f"  {problem}" for problem in self.problems[:PROBLEMS_SHOWN_MAX]]
        more = len(self.problems) - len(shown_here)
        shown_here += [f"  and {more} more"] if more else []
        errors = counted(len(self.problems), "error")
        return InvalidInput("\n".join([f"{self.source} has {errors}:", *shown_here]))

    def _refuse(self, line: int, words: str) -> None:
        self.problems.append(f"line {line}: {words}")

    def _titles(self, cells: Sequence[str], line: int) -> list[str] | None:
        titles = [cell.lower() for cell in cells]
        for title in titles:
            if title not in COLUMNS:
                self._refuse(line, unknown("column", title, COLUMNS))
        for title in NEEDED:
            if title not in titles:
                self._refuse(line, f"the column {title!r} is missing; the first line names them")
        for title in sorted({title for title in titles if titles.count(title) > 1}):
            self._refuse(line, f"the column {title!r} is there twice")
        return None if self.problems else titles

    def _submission(
        self, titles: Sequence[str], cells: Sequence[str], line: int
    ) -> Submission | None:
        if len(cells) != len(titles):
            self._refuse(line, f"it has {len(cells)} cells; the first line names {len(titles)}")
            return None
        if len(self.lines) >= SUBMISSIONS_MAX:
            raise InvalidInput(
                f"{self.source} has more than {SUBMISSIONS_MAX} submissions; split it."
            )
        row = dict(zip(titles, cells, strict=True))
        before = len(self.problems)
        size = self._cell(row, "devices", line, self._devices)
        found = {
            "name": self._cell(row, "name", line, self._name(line)),
            "at_s": self._cell(row, "at", line, self._at),
            "work_s": self._cell(row, "runs", line, _positive_s),
            "estimate_s": self._cell(row, "estimate", line, _positive_s, default=None),
            "saves_every_s": self._cell(row, "saves_every", line, _positive_s, default=None),
            "workload_class": self._cell(
                row, "class", line, self._class, default=self.policy.default_class
            ),
            "team": self._cell(row, "team", line, self._team, default=""),
        }
        if len(self.problems) > before or size is None:
            return None
        devices, share = size
        return Submission(
            devices=devices,
            memory_share=share,
            owner=row.get("owner", ""),
            task=row.get("task", ""),
            near=tuple(row.get("near", "").split()),
            **found,  # type: ignore[arg-type]  # each was read by the reader of its column
        )

    def _cell(
        self,
        row: Mapping[str, str],
        title: str,
        line: int,
        read: Callable[[str], T],
        *,
        default: T | None = None,
    ) -> T | None:
        """Return what a cell holds; `default` where it is empty and need not be there."""
        text = row.get(title, "")
        if not text and title not in NEEDED:
            return default
        try:
            return read(text)
        except (ValueError, InvalidInput) as error:
            self._refuse(line, f"{title}: {error}")
            return None

    def _name(self, line: int) -> Callable[[str], str]:
        def read(text: str) -> str:
            if not text:
                raise ValueError("it is empty; every submission has a name of its own.")
            if (before := self.lines.setdefault(text, line)) != line:
                raise ValueError(f"{text!r} is the name of line {before} too; each has its own.")
            return text

        return read

    def _at(self, text: str) -> float:
        """Read when it is submitted: since the beginning, or a date and a time."""
        is_dated = text[:4].isdigit() and text[4:5] == "-"
        if self.is_dated is None:
            self.is_dated = is_dated
        if is_dated != self.is_dated:
            raise ValueError(
                f"{text!r}: times are all since the beginning (90min), or all dates (2026-11-01T02:00)."
            )
        if not is_dated:
            return duration_s(text)
        try:
            found = datetime.fromisoformat(text)
        except ValueError as error:
            raise ValueError(
                f"{text!r} is not a time; write for example 2026-11-01T02:00."
            ) from error
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()

    def _devices(self, text: str) -> tuple[int, float | None]:
        """Read how many devices, or the share of one device's memory."""
        try:
            count = float(text)
        except ValueError:
            count = 0.0
        if 0 < count < 1:
            return 1, count
        if not (1 <= count < math.inf) or count != int(count):
            raise ValueError(f"{shown(text)} is neither 1, 2, 3, … nor a share of one, 0.25.")
        if count > self.most:
            raise ValueError(
                f"{text}, and there are {self.most}: it could never start. Give more with --nodes and "
                "--devices-per-node."
            )
        return int(count), None

    def _class(self, text: str) -> str:
        self.policy.check_class(text)
        return text

    def _team(self, text: str) -> str:
        self.policy.check_team(text)
        return text


def _positive_s(text: str) -> float:
    seconds = duration_s(text)
    if seconds <= 0:
        raise ValueError(f"{text!r} is not a time at all; write for example 20min.")
    return seconds

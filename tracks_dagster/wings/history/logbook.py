"""A logbook that people kept, in the manner of OPT's: a dated line for each restart. Pure.

    2021-11-18 10:14 launched 12.52
    2021-11-18 22:40 Node down – requeue for 12.52a, swap out 68
    2021-11-19 03:05 replaced node-[1,39], auto-requeue of 12.52b

A line that names a run starts it, and ends what ran of it before, for what the line says. 12.52, 12.52a
and 12.52b are one run. Lines without a run add words and nodes to the next one that has one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, tzinfo

from tracks_dagster.reasons.evidence import Condition, Evidence
from tracks_dagster.reasons.slurm_rows import hosts
from tracks_dagster.track.bodies import AUTOMATIC, MANUAL
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.wings.history.source import BadRow, NotEnded, Read, SourceAttempt, aware

_DATED = re.compile(r"\W*(\d{4}-\d\d-\d\d[ T]\d\d?:\d\d(?::\d\d)?(?:Z|[+-]\d\d:?\d\d)?)\W*(.*)")
_RUN = re.compile(r"\b(\d+\.\d+)([a-z]{0,2})\b")
_AUTO = re.compile(r"\bauto", re.IGNORECASE)
_OVER = re.compile(r"\b(finished|done|completed?)\b", re.IGNORECASE)
_SWAPPED = re.compile(
    r"\b(?:swap(?:ped|ping)?(?: out)?|replac(?:ed|e|ing)|cycl(?:ed|e|ing)|drain(?:ed)?)\s+"
    r"(?:nodes?\s+|hosts?\s+)?((?:[\w-]*\[[\d,\s-]+\]|[A-Za-z]+-?\d+|\d+)(?:\s*(?:,|and)\s*\d+)*)",
    re.IGNORECASE,
)
# What people call it → the reason of a condition, as the classifier knows it from control planes.
_WORDS = (
    (
        re.compile(r"\b(node|host|machine)s? (is |was |went )?(down|lost|died|dead)", re.I),
        "NodeLost",
    ),
    (re.compile(r"\b(lost|dead|bad) (a |the )?(node|host|machine)", re.I), "NodeLost"),
    (re.compile(r"\bpreempt", re.I), "Preempted"),
)
_UNKNOWN = {
    "devices": "a logbook does not say how many there were",
    "last_step": "a logbook names no steps that can be trusted",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Start:
    line: int
    at: datetime
    name: str
    cause: str
    excluded: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Logbook:
    """Reads a logbook's lines. zone: of the times that name none. node: what a number alone follows."""

    zone: tzinfo
    node: str = "node-"

    def read(self, lines: Iterable[str]) -> Iterator[Read]:
        """Yield an attempt for each start that a line followed; raises InvalidInput without any."""
        running: dict[str, _Start] = {}
        undated, swapped, is_any = "", list[str](), False
        for number, line in enumerate(lines, 1):
            dated = _DATED.match(line.strip())
            if dated is None:
                undated = f"{undated}\n{line.strip()}" if line.strip() else undated
                continue
            words = f"{undated}\n{dated[2]}".strip()
            try:
                at = self._time(dated[1])
                swapped += self._swapped(dated[2])
            except ValueError as error:
                yield BadRow(line=number, why=str(error))
                continue
            named = _RUN.search(dated[2])
            if named is None:
                undated = words
                continue
            is_any, run = True, named[1]
            before = running.pop(run, None)
            if before is not None and at < before.at:
                yield BadRow(line=number, why=f"it is earlier than line {before.line}")
                running[run] = before
                continue
            if before is not None:
                yield _attempt(run, before, at, words)
            if not _OVER.search(dated[2]):
                excluded = (*(before.excluded if before else ()), *swapped)
                running[run] = _Start(
                    line=number,
                    at=at,
                    name=named[0],
                    cause=AUTOMATIC if _AUTO.search(dated[2]) else MANUAL,
                    excluded=tuple(dict.fromkeys(excluded)),
                )
            undated, swapped = "", []
        yield from (NotEnded(line=each.line) for each in running.values())
        if not is_any:
            raise InvalidInput(
                "No line of it has a time and a run, as `2021-11-18 22:40 requeue for 12.52a`."
            )

    def _time(self, text: str) -> datetime:
        at = datetime.fromisoformat(text.replace("Z", "+00:00"))
        return aware(at if at.tzinfo is not None else at.replace(tzinfo=self.zone))

    def _swapped(self, text: str) -> Iterator[str]:
        for match in _SWAPPED.finditer(text):
            for each in hosts(re.sub(r"\s*\band\b\s*|\s+", ",", match[1]).replace(",,", ",")):
                yield f"{self.node}{each}" if each.isdecimal() else each


def _attempt(run: str, start: _Start, at: datetime, words: str) -> SourceAttempt:
    reason = next((name for pattern, name in _WORDS if pattern.search(words)), None)
    evidence = Evidence(run_id="", attempt_id=0, launch_id=None, ranks=())
    if reason is not None:
        condition = Condition(
            type="Logbook", reason=reason, message=words, at=None, source="logbook"
        )
        evidence = replace(evidence, conditions=(condition,))
    return SourceAttempt(
        id=f"{start.name}/{start.at}",
        run=run,
        title=run,
        submitted_at=start.at,
        started_at=start.at,
        ended_at=at,
        cause=start.cause,
        evidence=evidence,
        row={"line": start.line, "started_as": start.name, "ended_with": words},
        excluded_nodes=start.excluded,
        config={"lineage": start.name},
        succeeded=words if _OVER.search(words) else None,
        unknown=_UNKNOWN,
    )

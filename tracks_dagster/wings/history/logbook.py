"""A logbook that people kept, in the manner of OPT's: a dated line for each restart. Pure.

    2021-11-18 10:14 launched 12.52
    2021-11-18 22:40 Node down – requeue for 12.52a, swap out 68
    2021-11-19 03:05 replaced node-[1,39], auto-requeue of 12.52b

A line that names a run starts it, and ends what ran of it before, for what the line says. 12.52, 12.52a
and 12.52b are one run. Lines without a run add words and nodes to the next one that has one.

A number is a run where an earlier line names it, where it has letters that are not a unit, or by the
words around it ("requeue for 12.52"). A line whose numbers may be one or not is a bad row.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, tzinfo

from tracks_dagster.reasons.evidence import Condition, Evidence
from tracks_dagster.reasons.slurm_rows import hosts
from tracks_dagster.track.bodies import AUTOMATIC, MANUAL
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.wings.history.source import BadRow, NotEnded, Read, SourceAttempt, aware

_DATED = re.compile(r"\W*(\d{4}-\d\d-\d\d[ T]\d\d?:\d\d(?::\d\d)?(?:Z|[+-]\d\d:?\d\d)?)\W*(.*)")
# Like a date, in a form of which day and month, or the time of day, would be guessed.
_DATE_LIKE = re.compile(r"\W*\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}\b")
_UNIT = (
    r"(?:(?:h|hours?|hrs?|m|mins?|minutes?|s|secs?|seconds?|days?|ms|times|[KMGT]i?B|epochs?|x)\b)"
)
# Neither 2.5 hours nor a part of 2.0.1 or 10.0.0.1, nor 7.5e-5.
_RUN = re.compile(rf"(?<![\w.])(?!\d+\.\d+e[-+]?\d)(\d+\.\d+)([a-z]{{0,2}})\b(?!\.\d|\s+{_UNIT}|%)")
_UNIT_LETTERS = frozenset(["h", "k", "m", "s", "x", "gb", "hr", "kb", "mb", "ms", "ns", "tb", "us"])
_START = (
    r"(?:(?:re-?)?(?:launch|queu|start|submit|resum|tri|try)|rerun|continu)"
    r"(?:e?[ds]?|ted|ting|ning|ing)"
)
_THING = r"(?:run|job|attempt|experiment)"
# Of what lies before a number: verb, where somebody starts it.
_CALLED = re.compile(
    rf"\b(?:(?P<verb>{_START})|{_THING})(?:\s+(?:of|for|as|from|the|{_THING}))*(?:\s*[:#]?\s*|-)$",
    re.IGNORECASE,
)
# Of what lies before a number that another run is compared with, or begins from.
_BESIDE = re.compile(
    r"\b(?:from|than|as|like|unlike|vs\.?|before|after|since)\s+(?:the\s+)?$", re.I
)
# Of what lies behind a number that begins a line.
_THEN = re.compile(rf"\s*[:,–-]?\s+(?:is |was |has )?(?:been )?{_START}\b|\s*$", re.IGNORECASE)
_AUTO = re.compile(r"\bauto", re.IGNORECASE)
_OVER = re.compile(r"\b(finished|done|completed?)\b", re.IGNORECASE)
_ENDED = re.compile(rf"\W*(?:is |was |has |training )*{_OVER.pattern}", re.IGNORECASE)
_ENDS = re.compile(rf"\b(?:finished|completed)\W+(?:{_THING}\s+)?$", re.IGNORECASE)
_CLAUSE = re.compile(r"[;,.!?]\s|\s[–—-]\s")
_NUMBER = r"\d+\b(?!\.\d|\s+(?:more\s+)?(?:nodes?|hosts?|machines?|times?)\b)"
_SWAPPED = re.compile(
    r"\b(?:swap(?:ped|ping)?(?: out)?|replac(?:ed|e|ing)|cycl(?:ed|e|ing)|drain(?:ed)?)\s+"
    rf"(?:nodes?\s+|hosts?\s+)?((?:[\w-]*\[[\d,\s-]+\]|[A-Za-z]+-?\d+|{_NUMBER})"
    rf"(?:\s*(?:,|and)\s*{_NUMBER})*)",
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
class _Named:
    """A run that a line names. is_called: by the words before it. is_beside: by them it is what
    another run begins from, or is compared with. is_over: it finished."""

    run: str
    name: str
    is_called: bool = False
    is_beside: bool = False
    is_over: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Logbook:
    """Reads a logbook's lines. zone: of the times that name none. node: what a number alone follows."""

    zone: tzinfo
    node: str = "node-"

    def read(self, lines: Iterable[str]) -> Iterator[Read]:
        """Yield an attempt for each start that a line followed; raises InvalidInput without any."""
        running: dict[str, _Start] = {}
        runs = set[str]()
        undated, swapped = "", list[str]()
        for number, line in enumerate(lines, 1):
            dated = _DATED.match(line.strip())
            text = dated[2] if dated is not None else line.strip()
            try:
                at = self._time(dated[1] if dated is not None else None, text)
                swapped += self._swapped(text)
            except ValueError as error:
                yield BadRow(line=number, why=str(error))
                continue
            words = f"{undated}\n{text}".strip()
            try:
                named = _named(text, runs) if at is not None else None
            except ValueError as error:
                yield BadRow(line=number, why=str(error))
                named = None
            if at is None or named is None:
                undated = words
                continue
            run = named.run
            before = running.pop(run, None)
            if before is not None and at < before.at:
                yield BadRow(line=number, why=f"it is earlier than line {before.line}")
                running[run] = before
                continue
            if before is not None:
                yield _attempt(before, at, words, named)
            elif named.is_over:
                yield BadRow(line=number, why=f"it ends {run}, which no line before it starts")
            runs.add(run)
            if not named.is_over:
                excluded = (*(before.excluded if before else ()), *swapped)
                running[run] = _Start(
                    line=number,
                    at=at,
                    name=named.name,
                    cause=AUTOMATIC if _AUTO.search(text) else MANUAL,
                    excluded=tuple(dict.fromkeys(excluded)),
                )
            undated, swapped = "", []
        yield from (NotEnded(line=each.line) for each in running.values())
        if not runs:
            raise InvalidInput(
                "No line of it has a time and a run, as `2021-11-18 22:40 requeue for 12.52a`."
            )

    def _time(self, dated: str | None, text: str) -> datetime | None:
        """Return a line's time; None for one that goes on with the line before."""
        if dated is not None:
            at = datetime.fromisoformat(dated.replace("Z", "+00:00"))
            return aware(at if at.tzinfo is not None else at.replace(tzinfo=self.zone))
        if _DATE_LIKE.match(text):
            raise ValueError(f"its time is not as 2021-11-18 22:40: {text[:20]!r}")
        return None

    def _swapped(self, text: str) -> Iterator[str]:
        for match in _SWAPPED.finditer(text):
            for each in hosts(re.sub(r"\s*\band\b\s*|\s+", ",", match[1]).replace(",,", ",")):
                yield f"{self.node}{each}" if each.isdecimal() else each


def _named(text: str, runs: Container[str]) -> _Named | None:
    """Return the run that a line means; None where it has no number that may be one.

    runs: those that the lines before it name. Raises ValueError where it is open which one is meant.
    """
    found = [_looked_at(text, match) for match in _RUN.finditer(text)]
    likely = [
        each
        for each in found
        if each.run in runs
        or each.is_called
        or each.name.removeprefix(each.run) not in {"", *_UNIT_LETTERS}
    ]
    if any(each.is_called for each in likely):
        likely = [each for each in likely if not each.is_beside]
    if len({each.run for each in likely}) > 1 and not any(each.is_over for each in likely):
        certain = [
            each
            for each in likely
            if each.is_called and (each.run in runs or each.name != each.run)
        ]
        likely = certain or likely
    several = list(dict.fromkeys(each.run for each in likely))
    if len(several) > 1:
        raise ValueError(f"it names {' and '.join(several)}; a line for each is read")
    if likely:
        return next((each for each in likely if each.is_called), likely[0])
    names = list(dict.fromkeys(each.name for each in found))
    if names:
        which = f"{names[0]} is not" if len(names) == 1 else f"none of {', '.join(names)} is"
        raise ValueError(f"{which} known as a run; if it is one, write: run {names[0]}")
    return None


def _looked_at(text: str, match: re.Match[str]) -> _Named:
    before, behind = text[: match.start()], text[match.end() :]
    called = _CALLED.search(before)
    is_beside = called is None and _BESIDE.search(before) is not None
    is_started = called is not None and called["verb"] is not None
    is_ended = bool(_ENDED.match(behind) or _ENDS.search(before))
    is_first = not before.strip() and bool(_THEN.match(behind) or is_ended)
    clause = f"{_CLAUSE.split(before)[-1]} {_CLAUSE.split(behind)[0]}"
    over = _OVER.search(clause) is not None and not is_started and _reason(text) is None
    return _Named(
        run=match[1],
        name=match[0],
        is_called=called is not None or is_first or bool(_ENDS.search(before)),
        is_beside=is_beside,
        is_over=is_ended or (over and not is_beside),
    )


def _reason(words: str) -> str | None:
    return next((name for pattern, name in _WORDS if pattern.search(words)), None)


def _attempt(start: _Start, at: datetime, words: str, named: _Named) -> SourceAttempt:
    run, reason = named.run, _reason(words)
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
        succeeded=words if named.is_over else None,
        unknown=_UNKNOWN,
    )

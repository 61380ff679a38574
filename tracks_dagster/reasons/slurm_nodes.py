"""What Slurm prints of nodes: `scontrol show node -o` and `sinfo -R`, of any version. Pure.

Read of a cluster that answers now, and of files that were saved: keys and titles are found by their
names. Seen with 22.05.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

SCONTROL, SINFO = "scontrol", "sinfo"
LINE_CHARACTERS_MAX = 64 * 1024
FIRST_KEY = "NodeName="  # of a node, as `scontrol` prints it
LAST_KEY = "AllocTRES"  # of those that a version prints of every node or of none
REASON, NODES = "REASON", "NODELIST"
TITLES = (REASON, "USER", "TIMESTAMP", NODES)  # of `sinfo -R`, where no title was printed
CUT = "its line has no end: it is cut, or still being written"

_OUT = frozenset(
    {"DOWN", "ERROR", "DRAIN", "DRAINED", "DRAINING", "DRNG", "FAIL", "FAILING", "FAILG"}
    | {"NO_RESPOND", "NOT_RESPONDING"}
)
_KEY = re.compile(r"(?:^|\s)([A-Z]\w*)=")
_SET = re.compile(r"(.*) \[([^\s@\[\]]*)@(\d[^\s\]]*|Unknown|None)\]")
_AFTER_REASON = re.compile(r"\s(?:ReservationName|Comment|Extra|ResumeAfterTime)=")
_DATE = re.compile(r"\w{3} \w{3} [ \d]\d \d\d:\d\d:\d\d \d{4}")  # first of `sinfo -R -l`
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\S+|\d{9,11}|Unknown")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRow:
    """What a line says of a node, or of several; empty for what it does not say.

    line: 1-based. program: SCONTROL or SINFO. nodes: as Slurm lists them, `n[1-4]`. state: as printed,
    "IDLE+DRAIN". by, at: who gave the reason, and when, as printed. raw: the line as it was read.
    """

    line: int
    program: str
    nodes: str
    raw: str
    state: str = ""
    reason: str = ""
    by: str = ""
    at: str = ""
    booted: str = ""
    gres: str = ""

    @property
    def out(self) -> tuple[str, ...]:
        """The words of the state that keep jobs off; `sinfo -R` lists such nodes only."""
        words = {each.rstrip("*~#!%$@^-").upper() for each in self.state.split("+")} & _OUT
        if "*" in self.state:
            words.add("NOT_RESPONDING")
        if self.program == SINFO and not words:
            words.add("DRAIN")
        return tuple(sorted(words))


class DamagedRow(NamedTuple):
    """A line that cannot be read."""

    line: int
    why: str


def is_of_nodes(line: str) -> bool:
    """Whether a text that begins with this line is one of the two that `read_nodes` reads."""
    if line.startswith(FIRST_KEY) or _DATE.fullmatch(line):
        return True
    return _titles(line) is not None or _untitled(line) is not None


def read_nodes(lines: Iterable[str]) -> Iterator[NodeRow | DamagedRow]:
    """Yield what each line says. Nothing is raised: a line that cannot be read is a DamagedRow."""
    has_ends, has_last = False, False
    columns: _Columns | None = None
    for number, text in _joined(lines):
        line = text.rstrip("\r\n")
        if len(line) > LINE_CHARACTERS_MAX:
            yield DamagedRow(number, f"it has more than {LINE_CHARACTERS_MAX} characters")
        elif has_ends and line == text:
            yield DamagedRow(number, CUT)
        elif line.startswith(FIRST_KEY):
            is_whole = f" {LAST_KEY}=" in line
            has_last = has_last or is_whole
            yield _of_scontrol(number, line) if is_whole or not has_last else _cut(number)
        elif (titles := _titles(line)) is not None:
            columns = titles
        elif _DATE.fullmatch(line):
            pass
        else:
            columns = columns or _untitled(line)
            yield _of_sinfo(number, line, columns) if columns else _neither(number, line)
        has_ends = has_ends or line != text


def _cut(number: int) -> DamagedRow:
    return DamagedRow(number, f"it is cut: it has no {LAST_KEY}, as others before it have")


def _neither(number: int, line: str) -> DamagedRow:
    return DamagedRow(number, f"it is {line[:60]!r}, not of scontrol or `sinfo -R`")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Columns:
    titles: Sequence[str]
    separator: str | None  # None: any number of spaces


def _joined(lines: Iterable[str]) -> Iterator[tuple[int, str]]:
    """Yield lines that are not empty; those of a node, printed without -o, as one."""
    begun: tuple[int, str] | None = None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        is_more = begun is not None and begun[1].startswith(FIRST_KEY) and line[:1] in " \t"
        if is_more and begun is not None and len(begun[1]) <= LINE_CHARACTERS_MAX:
            begun = (begun[0], f"{begun[1].rstrip()} {line.lstrip()}")
            continue
        if begun is not None:
            yield begun
        begun = (number, line.removeprefix("\ufeff"))
    if begun is not None:
        yield begun


def _of_scontrol(number: int, line: str) -> NodeRow | DamagedRow:
    before, _, after = line.partition(" Reason=")
    found = [*_KEY.finditer(before)]
    ends = [*(match.start() for match in found[1:]), len(before)]
    fields = {
        match[1]: before[match.end() : end].strip() for match, end in zip(found, ends, strict=True)
    }
    if not fields["NodeName"] or not fields.get("State"):
        return DamagedRow(number, "it is cut: it has no State")
    row = NodeRow(
        line=number,
        program=SCONTROL,
        nodes=fields["NodeName"],
        raw=line,
        state=fields["State"],
        booted=fields.get("BootTime", ""),
        gres=gres if (gres := fields.get("Gres", "")) != "(null)" else "",
    )
    match = _SET.match(after)
    if match is None:
        return replace(row, reason=_AFTER_REASON.split(after)[0].strip())
    return replace(row, reason=match[1].strip(), by=match[2], at=match[3])


def _titles(line: str) -> _Columns | None:
    """Return the columns that the titles of `sinfo -R` name; None where these are not some."""
    separator = "|" if "|" in line else None
    words = [each.strip() for each in line.split(separator)]
    return _Columns(titles=words, separator=separator) if {REASON, NODES} <= set(words) else None


def _untitled(line: str) -> _Columns | None:
    """Return the columns of `sinfo -h -R` by its first row; None where it is not one."""
    columns = _Columns(titles=TITLES, separator="|" if "|" in line else None)
    row = _of_sinfo(0, line, columns)
    return columns if isinstance(row, NodeRow) and _TIME.fullmatch(row.at) else None


def _of_sinfo(number: int, line: str, columns: _Columns) -> NodeRow | DamagedRow:
    """Return a row; the reason alone may hold what parts the columns."""
    words, titles = line.split(columns.separator), columns.titles
    if len(words) < len(titles):
        why = f"it has {len(words)} of {len(titles)} columns: it is cut"
        return DamagedRow(number, why)
    at, more = titles.index(REASON), len(words) - len(titles)
    reason = (columns.separator or " ").join(words[at : at + more + 1])
    rest = [*words[:at], reason, *words[at + more + 1 :]]
    fields = {title: text.strip() for title, text in zip(titles, rest, strict=True)}
    if not fields[NODES]:
        return DamagedRow(number, "it names no node")
    return NodeRow(
        line=number,
        program=SINFO,
        nodes=fields[NODES],
        raw=line,
        state=fields.get("STATE", ""),
        reason=fields[REASON],
        by=fields.get("USER", ""),
        at=fields.get("TIMESTAMP", ""),
    )

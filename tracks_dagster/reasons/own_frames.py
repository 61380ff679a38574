"""Which frames of a traceback are of the user's own code, and which of libraries below it. Pure.

An error that torch raises ends in a dozen frames of torch; the one line that a person can change stands
above them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_FRAME = re.compile(r'^\s*File "(?P<file>[^"]*)", line \d+')
_LIBRARY = re.compile(r"(^|/)(site-packages|dist-packages|python3\.\d+|tracks_dagster)/|^<")


def newest_own_frame(lines: Sequence[str]) -> range | None:
    """Return which lines are the last frame of the user's own code, or None."""
    starts = [index for index, line in enumerate(lines) if _FRAME.match(line)]
    own = [index for index in starts if _is_own(lines[index])]
    if not own:
        return None
    first = own[-1]
    indent = len(lines[first]) - len(lines[first].lstrip())
    last = first + 1
    while last < len(lines) and len(lines[last]) - len(lines[last].lstrip()) > indent:
        last += 1
    return range(first, last)


def cut_to(text: str, characters_max: int) -> str:
    """Return the end of a traceback, at most that long, with the newest frame of the user's own code
    before it where the end does not hold it."""
    if len(text) <= characters_max:
        return text
    lines = text.splitlines(keepends=True)
    own = newest_own_frame(lines)
    if own is None:
        return text[-characters_max:]
    below = sum(map(len, lines[own.start :]))
    if below <= characters_max:
        return text[-characters_max:]
    frame = "".join(lines[own.start : own.stop])[: characters_max // 2]
    gap = "  …\n"
    return f"{frame}{gap}{text[-(characters_max - len(frame) - len(gap)) :]}"


def _is_own(line: str) -> bool:
    match = _FRAME.match(line)
    return match is not None and _LIBRARY.search(match["file"]) is None

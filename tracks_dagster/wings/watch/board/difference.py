"""What differs between two states of a page, line by line, so that an open page is sent that alone.

A line that is the same in both is only named; of one that changed is sent what lies between what both
begin with and what both end with: of a curve that grew, its new points. Pure, and linear in the lines.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

UNITS = "utf-16-le"  # in which a script counts

Piece = str | list[int] | list[int | str]
"""A line as it is; [FIRST, COUNT] lines of the page before, from 0; [LINE, HEAD, TEXT, TAIL]: a line of
it with TEXT between its first HEAD and its last TAIL characters, counted in units of UTF-16."""


def difference(before: str, after: str) -> list[Piece]:
    """Return the pieces that, one below the other, make `after` of `before`."""
    old, new = before.split("\n"), after.split("\n")
    counts, wanted = Counter(old), set(new)
    place = {line: at for at, line in enumerate(old) if counts[line] == 1}
    found: list[Piece] = []
    copied: list[int] | None = None  # the last piece, while it is a copy that may go on
    at = 0
    for line in new:
        if not (at < len(old) and old[at] == line) and place.get(line, -1) > at:
            at = place[line]
        if at < len(old) and old[at] == line:
            if copied is not None and sum(copied) == at:
                copied[1] += 1
            else:
                copied = [at, 1]
                found.append(copied)
            at += 1
            continue
        copied = None
        if at < len(old) and old[at] not in wanted:
            found.append(_changed(at, old[at], line))
            at += 1
        else:
            found.append(line)
    return found


def _changed(at: int, old: str, new: str) -> Piece:
    head = _alike(old, new)
    tail = _alike(old[head:][::-1], new[head:][::-1])
    middle = new[head : len(new) - tail]
    return [at, _units(new[:head]), middle, _units(new[len(new) - tail :])]


def _alike(a: str, b: str) -> int:
    """Return with how many same characters both begin."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _units(text: str) -> int:
    return len(text.encode(UNITS)) // 2


def applied(pieces: Sequence[Piece], before: str) -> str:
    """Return the page after, as board.js does."""
    lines = before.split("\n")
    found: list[str] = []
    for piece in pieces:
        match piece:
            case str():
                found.append(piece)
            case [int(first), int(count)]:
                found += lines[first : first + count]
            case [int(line), int(head), str(middle), int(tail)]:
                old = lines[line].encode(UNITS)
                first, last = old[: 2 * head], old[len(old) - 2 * tail :]
                found.append(f"{first.decode(UNITS)}{middle}{last.decode(UNITS)}")
    return "\n".join(found)

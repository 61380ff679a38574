"""What differs between two states of a page, line by line, so that an open page is sent that alone.

A line that is the same in both is only named; of one that changed is sent what lies between what both
begin with and what both end with: of a curve that grew, its new points. Pure, and linear in the lines.
"""

from __future__ import annotations

from collections import Counter

UNITS = "utf-16-le"  # in which a script counts

Piece = str | tuple[int, int] | tuple[int, int, str, int]
"""A line as it is; (FIRST, COUNT): lines of the page before, from 0; (LINE, HEAD, TEXT, TAIL): a line
of it with TEXT between its first HEAD and its last TAIL characters, counted in units of UTF-16."""


def difference(before: str, after: str) -> list[Piece]:
    """Return the pieces that, one below the other, make `after` of `before`."""
    old, new = before.split("\n"), after.split("\n")
    counts, wanted = Counter(old), set(new)
    place = {line: at for at, line in enumerate(old) if counts[line] == 1}
    found: list[Piece] = []
    copied = (0, 0)  # the last piece, where it is a copy that goes on at `at`
    at = 0
    for line in new:
        if not (at < len(old) and old[at] == line) and place.get(line, -1) > at:
            at = place[line]
        if at < len(old) and old[at] == line:
            first, count = (
                copied if found and found[-1] is copied and sum(copied) == at else (at, 0)
            )
            if count:
                found.pop()
            copied = (first, count + 1)
            found.append(copied)
            at += 1
        elif at < len(old) and old[at] not in wanted:
            found.append(_changed(at, old[at], line))
            at += 1
        else:
            found.append(line)
    return found


def _changed(at: int, old: str, new: str) -> Piece:
    head = _alike(old, new)
    tail = _alike(old[head:][::-1], new[head:][::-1])
    middle = new[head : len(new) - tail]
    return at, _units(new[:head]), middle, _units(new[len(new) - tail :])


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

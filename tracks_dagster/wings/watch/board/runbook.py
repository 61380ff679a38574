"""A page of docs/runbooks as the blocks that the board shows. Pure; no other Markdown is read."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_STRESSED = re.compile(r"\*{1,2}([^*]+)\*{1,2}")  # shown as it is, without its asterisks


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """kind: "heading", "paragraph", "points" or "commands"; lines: one of the first two, else each."""

    kind: str
    lines: tuple[str, ...]


def blocks(text: str) -> tuple[Block, ...]:
    """Return the blocks of a page without its title, which the page of the board has."""
    return tuple(_blocks(text))


def _blocks(text: str) -> Iterator[Block]:
    for part in re.split(r"\n\n+", text.strip("\n")):
        first = part.partition("\n")[0]
        if first.startswith("# "):
            continue
        if first.startswith("## "):
            yield Block(kind="heading", lines=(first.removeprefix("## "),))
        elif first.startswith("    "):
            yield Block(
                kind="commands", lines=tuple(each.removeprefix("    ") for each in part.split("\n"))
            )
        elif first.startswith("- "):
            points = re.split(r"\n- ", part.removeprefix("- "))
            yield Block(kind="points", lines=tuple(_sentence(each) for each in points))
        else:
            yield Block(kind="paragraph", lines=(_sentence(part),))


def _sentence(part: str) -> str:
    return _STRESSED.sub(r"\1", " ".join(part.split()))

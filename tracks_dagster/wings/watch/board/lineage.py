"""What a thing rests on and what came of it, as a page: a graph, and the same as tables. Pure.

    rests on                     the thing                  came of it
    [attempt] ─▶ [attempt] ──▶ [checkpoint:r@40] ──▶ [promotion] [checkpoint] [eval] [attempt]

What is in use comes first. The way of a source in quarantine is drawn in red, with a word beside it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape

from tracks_dagster.wings.watch.board.record import Cell, Row, Section, lineage_address

BEFORE_MAX, AFTER_MAX = 8, 16  # boxes
WIDTH, BOX, ROW, GAP, TOP = 900, 250, 44, 12, 22
CHARACTERS_MAX = 36  # of a line in a box
IN_USE = "in use"
BAD = "of a source in quarantine"


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One thing. words: what else there is to say of it; uses: the names of what it was made with, of
    which a source in quarantine may be one."""

    thing: str
    words: str = ""
    status: str = ""
    uses: frozenset[str] = frozenset()
    is_bad: bool = False

    @property
    def is_in_use(self) -> bool:
        """Whether an alias names it now."""
        return self.status == IN_USE


@dataclass(frozen=True, slots=True, kw_only=True)
class LineagePage:
    """All that lineage.html shows. is_source: whether the thing itself is in quarantine."""

    title: str
    sentence: str
    holds: tuple[str, ...]
    svg: str
    sections: tuple[Section, ...]
    commands: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Relations:
    """What a thing is of, and what is of it.

    before: the nearest first; missing: a sentence where the ledger lacks what comes before. after: kind
    → the newest of it by name; counts: kind → how many there are. sources: names of those in quarantine
    that it descends from; holds: a sentence for each.
    """

    before: Sequence[Node]
    after: Mapping[str, Sequence[Node]]
    counts: Mapping[str, int]
    sources: Sequence[str] = ()
    holds: Sequence[str] = ()
    missing: str = ""


def lineage_page(thing: str, of: Relations) -> LineagePage:
    """Return the page of a thing."""
    sources, counts = of.sources, of.counts
    is_source = thing in sources
    chain = _marked(of.before, sources)
    below = {
        kind: [replace(node, is_bad=is_source or bool(sources)) for node in nodes]
        for kind, nodes in of.after.items()
    }
    shown = sorted((n for nodes in below.values() for n in nodes), key=lambda n: not n.is_in_use)
    sections = [_section("before", "Rests on", chain, len(chain), of.missing)]
    for kind, nodes in below.items():
        ordered = sorted(nodes, key=lambda node: not node.is_in_use)
        title = f"{kind[0].upper()}{kind[1:]}s that came of it"
        sections.append(_section(kind, title, ordered, counts.get(kind, 0), ""))
    in_use = [node.thing for node in shown if node.is_in_use]
    found = sum(counts.values())
    sentence = (
        f"In use now: {', '.join(in_use)}."
        if in_use
        else "Nothing of it is in use."
        if found
        else "Nothing came of it."
    )
    return LineagePage(
        title=thing,
        sentence=sentence,
        holds=tuple(of.holds),
        svg=picture(Node(thing=thing, is_bad=bool(sources)), chain, shown),
        sections=tuple(each for each in sections if not each.is_empty),
        commands=(f"tracks lineage {thing}", f"tracks blast {thing}"),
    )


def _marked(chain: Sequence[Node], sources: Sequence[str]) -> list[Node]:
    """Mark the attempts between a source and the thing: the farthest that used it, and all nearer."""
    known = set(sources)
    farthest = max((at for at, node in enumerate(chain) if known & node.uses), default=-1)
    return [replace(node, is_bad=at <= farthest) for at, node in enumerate(chain)]


def _section(key: str, title: str, nodes: Sequence[Node], count: int, missing: str) -> Section:
    words = [f"{count - len(nodes)} older not shown."] if count > len(nodes) else []
    return Section(
        key=key,
        title=f"{title} ({count})" if count else title,
        heads=(),
        rows=tuple(map(_row, nodes)),
        words=(*words, *filter(None, (missing,))),
    )


def _row(node: Node) -> Row:
    marks = ", ".join(filter(None, (node.status, BAD if node.is_bad else "")))
    return (
        Cell(text=node.thing, address=lineage_address(node.thing), soft=marks),
        Cell(text=node.words),
    )


# --- the graph --------------------------------------------------------------------------------------


def picture(thing: Node, before: Sequence[Node], after: Sequence[Node]) -> str:
    """Return the graph as an SVG element; every box leads to the page of what it names."""
    left, right = before[:BEFORE_MAX], after[:AFTER_MAX]
    rows = max(1, len(left), len(right))
    height = TOP + rows * (ROW + GAP)
    middle = WIDTH / 2 - BOX / 2
    at_y = TOP + (rows - 1) * (ROW + GAP) / 2
    words = f"{thing.thing} rests on {len(before)} attempts; {len(after)} things came of it"
    parts = [
        f'<svg class="lineage" viewBox="0 0 {WIDTH} {height}" role="group" '  # its nodes are links
        f'aria-label="{escape(words)}">',
        *_titles(left, right, middle),
        *_edges(thing, left, right, middle, at_y),
        *(_box(node, 0, _y(row)) for row, node in enumerate(left)),
        _box(thing, middle, at_y),
        *(_box(node, WIDTH - BOX, _y(row)) for row, node in enumerate(right)),
    ]
    return "\n".join([*parts, "</svg>"])


def _titles(left: Sequence[Node], right: Sequence[Node], middle: float) -> Iterator[str]:
    for x, words in (
        (0.0, "rests on" if left else ""),
        (WIDTH - BOX, "came of it" if right else ""),
    ):
        if words:
            yield f'<text x="{x:.0f}" y="12">{words}</text>'
    yield f'<text class="strong" x="{middle:.0f}" y="12">asked for</text>'


def _edges(
    thing: Node, left: Sequence[Node], right: Sequence[Node], middle: float, at_y: float
) -> Iterator[str]:
    center = at_y + ROW / 2
    if left:
        yield _line(BOX, _y(0) + ROW / 2, middle, center, is_bad=left[0].is_bad)
    for row in range(1, len(left)):
        yield _line(BOX / 2, _y(row), BOX / 2, _y(row - 1) + ROW, is_bad=left[row].is_bad)
    for row, node in enumerate(right):
        x, y = WIDTH - BOX, _y(row) + ROW / 2
        yield _line(middle + BOX, center, x, y, is_bad=node.is_bad and thing.is_bad)


def _y(row: int) -> float:
    return TOP + row * (ROW + GAP)


def _line(x1: float, y1: float, x2: float, y2: float, *, is_bad: bool) -> str:
    css = "edge ill" if is_bad else "edge"
    return f'<line class="{css}" x1="{x1:.0f}" y1="{y1:.0f}" x2="{x2:.0f}" y2="{y2:.0f}"/>'


def _box(node: Node, x: float, y: float) -> str:
    css = " ".join(filter(None, ("node", "ill" * node.is_bad, "used" * node.is_in_use)))
    words = node.status if node.is_in_use else node.words
    mark = "quarantine · " if node.is_bad else ""
    title = escape(f"{node.thing} {node.words}".strip())
    lines = ((18, "strong", node.thing), (34, "", f"{mark}{words}"))
    texts = (
        f'<text class="{kind}" x="{x + 8:.0f}" y="{y + below:.0f}">{escape(_short(text))}</text>'
        for below, kind, text in lines
    )
    return (
        f'<a href="{escape(lineage_address(node.thing))}"><rect class="{css}" x="{x:.0f}" y="{y:.0f}" '
        f'width="{BOX}" height="{ROW}" rx="6"><title>{title}</title></rect>{"".join(texts)}</a>'
    )


def _short(words: str) -> str:
    cut = CHARACTERS_MAX
    return words if len(words) <= cut else f"{words[: cut - 1]}…"

"""What a thing rests on and what came of it, as a graph and as tables."""

from __future__ import annotations

import re

from tracks_dagster.wings.watch.board.lineage import (
    AFTER_MAX,
    LineagePage,
    Node,
    Relations,
    lineage_page,
)

THING = "checkpoint:r/a03@40"


def chain() -> list[Node]:
    """Return the attempts that it rests on, the nearest first; the second used the bad snapshot."""
    return [
        Node(thing="attempt:r/a03", uses=frozenset({"snapshot:words@good"})),
        Node(thing="attempt:r/a02", uses=frozenset({"snapshot:words@bad"})),
        Node(thing="attempt:r/a01", uses=frozenset({"snapshot:words@good"})),
    ]


def page_of(
    *, sources: tuple[str, ...] = (), after: dict[str, list[Node]] | None = None
) -> LineagePage:
    """Return the page of a checkpoint."""
    found = after or {}
    of = Relations(
        before=chain(),
        after=found,
        counts={kind: len(nodes) for kind, nodes in found.items()},
        sources=sources,
        holds=[f"it descends from {source}" for source in sources],
    )
    return lineage_page(THING, of)


def test_the_way_of_a_quarantined_source_is_marked_up_to_the_thing() -> None:
    page = page_of(sources=("snapshot:words@bad",))
    marked = [row[0].text for row in page.sections[0].rows if "quarantine" in row[0].soft]
    assert marked == ["attempt:r/a03", "attempt:r/a02"]
    assert page.svg.count('class="node ill"') == 3  # both, and the thing
    assert page.svg.count('class="edge ill"') == 2
    assert page.holds == ("it descends from snapshot:words@bad",)


def test_without_a_quarantine_nothing_is_red() -> None:
    assert "ill" not in page_of().svg


def test_what_is_in_use_comes_first_and_is_named_above() -> None:
    after = {
        "promotion": [
            Node(thing="promotion:r/old", status="replaced"),
            Node(thing="promotion:r/best", status="in use"),
        ],
        "attempt": [Node(thing="attempt:s/a01")],
    }
    page = page_of(after=after)
    assert page.sentence == "In use now: promotion:r/best."
    assert [row[0].text for row in page.sections[1].rows] == ["promotion:r/best", "promotion:r/old"]
    boxes = re.findall(r'class="strong"[^>]*>([^<]*)<', page.svg)
    assert boxes.index("promotion:r/best") < boxes.index("promotion:r/old")


def test_every_box_leads_to_its_own_page_and_is_escaped() -> None:
    page = page_of(after={"eval": [Node(thing='eval:r/<b>"@1', words="<i>")]})
    assert "<b>" not in page.svg
    assert "<i>" not in page.svg
    assert 'href="/lineage?thing=attempt%3Ar%2Fa03"' in page.svg


def test_a_graph_has_bounded_boxes_and_the_tables_say_what_is_left_out() -> None:
    nodes = [Node(thing=f"attempt:s/a{number:02d}") for number in range(40)]
    of = Relations(
        before=chain(),
        after={"attempt": nodes},
        counts={"attempt": 100},
        missing="Before that: q/a01 is not in the ledger.",
    )
    page = lineage_page(THING, of)
    assert page.svg.count("<rect") == 3 + 1 + AFTER_MAX
    assert "60 older not shown." in page.sections[1].words
    assert "q/a01" in page.sections[0].words[0]


def test_the_graph_is_described_in_words() -> None:
    assert (
        'aria-label="checkpoint:r/a03@40 rests on 3 attempts; 0 things came of it"' in page_of().svg
    )

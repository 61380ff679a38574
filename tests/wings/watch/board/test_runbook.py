"""A runbook as the board shows it."""

from __future__ import annotations

from tracks_dagster.wings.watch.board.effects.app import RUNBOOK_PAGES
from tracks_dagster.wings.watch.board.runbook import Block, blocks

PAGE = """# slow_rank

A few ranks
are *slow*.

## Check

    tracks health RUN
    tracks logs RUN

- **data**: the wait
  for it;
- compute.
"""


def test_a_page_is_shown_by_its_headings_paragraphs_commands_and_points() -> None:
    assert blocks(PAGE) == (
        Block(kind="paragraph", lines=("A few ranks are slow.",)),
        Block(kind="heading", lines=("Check",)),
        Block(kind="commands", lines=("tracks health RUN", "tracks logs RUN")),
        Block(kind="points", lines=("data: the wait for it;", "compute.")),
    )


def test_no_markdown_is_left_of_any_runbook() -> None:
    pages = sorted(RUNBOOK_PAGES.glob("*.md"))
    assert pages
    for page in pages:
        shown = blocks(page.read_text())
        assert {"heading", "paragraph", "commands"} <= {each.kind for each in shown}, page.name
        for each in shown:
            text = "\n".join(each.lines)
            assert each.kind == "commands" or not set("#*") & set(text), (page.name, text)

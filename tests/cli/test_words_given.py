"""Words that a person gives: what no store or terminal can hold is replaced, and said."""

from __future__ import annotations

import pytest

from tests.cli.conftest import Call
from tests.stories import RUN_ID, Story
from tracks_dagster.reading import open_tracks_to_read
from tracks_dagster.settings import Settings

LATIN_1 = "caf\udce9"  # how Python hands over an argument that a latin-1 terminal sent
REPLACED = "caf\ufffd"


@pytest.mark.parametrize(
    ("name", "arguments"),
    {
        "TEXT": ("note", RUN_ID, LATIN_1),
        "--by": ("note", RUN_ID, "fine", "--by", LATIN_1),
        "--why": ("checkpoints", "pin", f"{RUN_ID}@40", "--why", LATIN_1),
        "POOL": ("pool", "quarantine", LATIN_1, "n1", "--why", "x"),
        "DATASET": ("snapshots", "list", LATIN_1),
        "QUERY": ("sql", f"select '{LATIN_1}' as word"),
    }.items(),
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_argument_that_is_no_utf8_is_replaced_and_said(
    name: str, arguments: tuple[str, ...], story: Story, call: Call
) -> None:
    result = call(*arguments)
    assert f"{name} is no UTF-8: what cannot be read is replaced by \ufffd." in result.stderr
    assert LATIN_1 not in result.stdout + result.stderr


def test_a_run_whose_words_were_no_utf8_is_read_by_every_command(story: Story, call: Call) -> None:
    for arguments in (
        ("note", f"{RUN_ID}/a02", LATIN_1, "--by", LATIN_1),
        ("checkpoints", "pin", f"{RUN_ID}@40", "--why", LATIN_1, "--by", LATIN_1),
        ("note", RUN_ID, "And it goes on."),
        ("reindex",),
        ("report", RUN_ID),
        ("status",),
    ):
        assert call(*arguments).exit_code == 0, arguments
    assert REPLACED in call("explain", f"{RUN_ID}/a02").stdout
    assert REPLACED in call("search", "caf").stdout
    note = open_tracks_to_read(Settings.from_environment()).run(RUN_ID).notes[-2]
    assert (note.body.text, note.body.by) == (REPLACED, REPLACED)


def test_a_file_whose_name_is_no_utf8_is_still_found(call: Call) -> None:
    told = call("simulate", "--policy", f"/no/such/{LATIN_1}")
    assert "is replaced" not in told.stderr

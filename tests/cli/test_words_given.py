"""Words that a person gives: what no store or terminal can hold is replaced, and said."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Call, files_of
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
def test_an_argument_that_is_not_utf8_is_replaced_and_said(
    name: str, arguments: tuple[str, ...], story: Story, call: Call
) -> None:
    result = call(*arguments)
    assert f"{name} is not UTF-8: what cannot be read is replaced by \ufffd." in result.stderr
    assert LATIN_1 not in result.stdout + result.stderr


def test_a_run_whose_words_were_not_utf8_is_read_by_every_command(story: Story, call: Call) -> None:
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


def test_a_file_whose_name_is_not_utf8_is_still_found(call: Call) -> None:
    answer = call("simulate", "--policy", f"/no/such/{LATIN_1}")
    assert "is replaced" not in answer.stderr


SECRET = "hunter2-of-the-team9"


def test_what_looks_like_a_secret_never_reaches_a_record_and_the_run_can_be_exported(
    story: Story, call: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TEAM_TOKEN", SECRET)
    words = f"With {SECRET} at postgresql://ann:pass9word@db."
    for arguments in (
        ("note", RUN_ID, words, "--by", words),
        ("checkpoints", "pin", f"{RUN_ID}@40", "--why", words, "--by", words),
        ("checkpoints", "unpin", f"{RUN_ID}@40", "--why", words, "--by", words),
        ("promote", f"{RUN_ID}@40", "--why", words, "--by", words),
    ):
        answer = call(*arguments)
        assert "holds what looks like a secret: [hidden] is recorded for it." in answer.stderr
        assert answer.exit_code == 0, arguments
    stored = b"".join(files_of(tmp_path).values())
    assert SECRET.encode() not in stored
    assert b"pass9word" not in stored
    assert call("export", RUN_ID, str(tmp_path / "run.tar.gz")).exit_code == 0


def test_a_setting_that_holds_a_secret_is_refused_for_training_would_not_have_it(
    story: Story, call: Call, home: Path
) -> None:
    trainer = home.parent / "trainer.py"
    trainer.write_text("pass\n")
    arguments = ("run", "--run-id", "r-1", "--intent", "x", "--trainer", str(trainer))
    refused = call(*arguments, "--set", "api_token=f81d4fae7dec11d0a765")
    assert refused.exit_code == 2
    assert "api_token holds what looks like a secret" in refused.stderr
    assert "f81d4fae" not in refused.stderr + refused.stdout

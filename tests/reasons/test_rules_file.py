"""A rules file: read with its lines, refused with all of its errors."""

from __future__ import annotations

from pathlib import Path

import pytest

from tracks_dagster.reasons.user_rules import UserRules
from tracks_dagster.settings import Settings
from tracks_dagster.settings import read_rules as read_settings
from tracks_dagster.track.effects.settings_file import FILE_BYTES_MAX
from tracks_dagster.track.errors import InvalidInput

GOOD = """\
# ours
- name: lustre
  reason: storage_io
  pattern: "LustreError.{0,80}evicted"
- {name: fs-gone, reason: storage_io, pattern: mount gone, confidence: 0.7, where: log}
"""

BAD = """\
- name: lustre
  reason: nope
  pattern: "["
- only words
- name: lustre
  reason: hang
  pattern:
    - a list
  confidence: much
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "rules.yaml"


def read_rules(path: Path) -> UserRules:
    return read_settings(Settings(home=path.parent, store_url="", rules_file=path))


@pytest.mark.parametrize("text", [GOOD, "rules:\n" + GOOD.replace("\n", "\n  ")])
def test_a_list_of_rules_is_read_in_its_order(path: Path, text: str) -> None:
    path.write_text(text)
    assert [rule.cause.name for rule in read_rules(path).rules] == ["lustre", "fs-gone"]


@pytest.mark.parametrize("text", ["", "# nothing\n", "[]", "rules: []"])
def test_a_file_without_rules_gives_no_rules(path: Path, text: str) -> None:
    path.write_text(text)
    assert read_rules(path).digest == ""


def test_every_error_is_listed_with_its_line(path: Path) -> None:
    path.write_text(BAD)
    with pytest.raises(InvalidInput) as caught:
        read_rules(path)
    lines = [line.split(":")[0].strip() for line in str(caught.value).splitlines()[1:]]
    assert lines == ["line 2", "line 3", "line 4", "line 5", "line 7", "line 9"]
    assert "6 errors" in str(caught.value)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"- name: a\n  reason: [\n", "line 3: it is not YAML"),
        (b"a: 1\n", "line 1: a: 'a' is not a key; there are: rules"),
        (b"words", "line 1: 'words' is given where keys with values belong, for example - {name: "),
        (b"# a\n\xff\n", "line 2 is not text"),
        (b"[" * 9_000, "line 1: "),
        (b"#" * (FILE_BYTES_MAX + 1), "has more than"),
        (
            b"- !!python/object/apply:os.system [ls]\n",
            "line 1: an anchor (&), alias (*) or tag",
        ),
        (
            b"- {name: 2026-01-31, reason: hang, pattern: 5}\n",
            "5 is not text; write it in quotes",
        ),
    ],
)
def test_what_is_not_a_rules_file_is_refused(path: Path, data: bytes, problem: str) -> None:
    path.write_bytes(data)
    with pytest.raises(InvalidInput) as caught:
        read_rules(path)
    assert problem in str(caught.value)


def test_a_file_that_is_not_there_is_reported(path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"rules\.yaml cannot be read"):
        read_rules(path)

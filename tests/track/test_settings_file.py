"""A person's YAML file is read strictly: lines are right, and what surprises is refused or is text."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import Field

from tracks_dagster.track.effects.settings_file import (
    FILE_BYTES_MAX,
    FileModel,
    open_settings,
    parse_settings,
)
from tracks_dagster.track.errors import SettingsError


def value_of(text: str) -> object:
    file = parse_settings(f"key: {text}", "The file")
    assert file.problems == []
    return file.value["key"]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3),
        ("-3", -3),
        ("1.5", 1.5),
        ("true", True),
        ("", None),
        ("~", None),
        ("'3'", "3"),
        ("no", "no"),
        ("on", "on"),
        ("010", 10),
        ("0x10", "0x10"),
        ("1_000", "1_000"),
        ("24:00", "24:00"),
        (".5", 0.5),
        ("0.0010081000518403318", 0.0010081000518403318),
        ("-1.2345678901234567e-300", -1.2345678901234567e-300),
        (".inf", ".inf"),
        (".nan", ".nan"),
        ("2026-01-31", "2026-01-31"),
        ("9" * 400, "9" * 400),
    ],
)
def test_a_plain_word_is_what_it_looks_like(text: str, value: object) -> None:
    found = value_of(text)
    assert (found, type(found)) == (value, type(value))


def test_a_value_has_the_line_of_its_key() -> None:
    text = "a: 1\n\nb:\n  # a comment\n  c: 2\n  d: {e: 3,\n      f: 4}\ng:\n  - 1\n  - 2\n"
    file = parse_settings(text, "The file")
    ways = [("b",), ("b", "c"), ("b", "d", "f"), ("g",), ("g", 0), ("g", 1)]
    assert [file.line(way) for way in ways] == [3, 5, 7, 8, 9, 10]
    assert file.line(("b", "d", "missing", "below")) == 6


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("a: [", 1, "not YAML"),
        ("a: 1\n\tb: 2", 2, "not YAML"),
        ("a: 1\n---\nb: 2", 2, "another document"),
        ("a: 1\nb: \x00", 2, "not YAML"),
        ("a: 1\na: 2", 2, "given before, in line 1"),
        ("a: &x 1\nb: 2", 1, "anchor"),
        ("a: 1\nb: !!str 2", 2, "tag"),
        ("a: !!python/object/apply:os.system ['true']", 1, "tag"),
        ("? [a]\n: 1", 1, "a key is a word"),
        ("[" * 40 + "]" * 40, 1, "deep"),
    ],
)
def test_what_is_not_read_is_reported_with_its_line(text: str, line: int, words: str) -> None:
    problem = parse_settings(text, "The file").problems[0]
    assert problem.line == line
    assert words in problem.words


def test_very_deep_nesting_is_refused_and_breaks_nothing() -> None:
    assert parse_settings("[" * 20_000 + "]" * 20_000, "The file").problems


def test_a_file_that_is_not_text_is_not_there_or_is_too_large_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    with pytest.raises(SettingsError, match="cannot be read"):
        open_settings(path, "The file")
    path.write_bytes(b"a: 1\nb: \xff\n")
    with pytest.raises(SettingsError, match="line 2 is not text"):
        open_settings(path, "The file")
    path.write_bytes(b"#" * (FILE_BYTES_MAX + 1))
    with pytest.raises(SettingsError, match="more than 1024 KiB"):
        open_settings(path, "The file")
    path.write_bytes(b"\xef\xbb\xbfa: 1\n")  # a byte order mark is none of the text
    file = open_settings(path, "The file")
    assert (file.value, file.problems) == ({"a": 1}, [])


class Inner(FileModel):
    example = "{length: 3}"

    length_s: int
    names: tuple[str, ...] = ()


class Outer(FileModel):
    inner: Inner
    by_name: dict[str, Inner] = Field(default={}, description="what it is for")


def test_what_pydantic_finds_wrong_is_reported_in_our_words_all_at_once_with_its_line() -> None:
    text = """\
inner:
  lenght: 3
  names: [7]
by_name:
  one: 3
  two: {length: 1, names: x}
  three:
    length: 1
    names:
      - y
      - {a: b}
other: 1
"""
    file = parse_settings(text, "The file x")
    assert file.read(Outer) is None
    assert str(file.error()) == (
        "The file x cannot be used; it has 7 errors:\n"
        "  line 1: inner: length is missing.\n"
        "  line 2: inner.lenght: 'lenght' is not a key; did you mean length? "
        "There are: length, names.\n"
        "  line 3: inner.names[0]: 7 is not text; write it in quotes.\n"
        "  line 5: by_name.one: 3 is given where keys with values belong, for example {length: 3}.\n"
        "  line 6: by_name.two.names: 'x' is given where a list belongs; begin each item with `- `.\n"
        "  line 11: by_name.three.names[1]: a mapping is not text; write it in quotes.\n"
        "  line 12: other: 'other' is not a key; there are: inner, by_name."
    )


def test_what_is_right_is_read_without_what_is_wrong() -> None:
    file = parse_settings(
        "inner: {length: 1, names: [a, 2]}\nby_name: {a: {length: 2}, b: 1}\n", "x"
    )
    found = file.read(Outer)
    assert found is not None
    assert (found.inner.given(), list(found.by_name)) == ({"length_s": 1}, ["a"])
    assert len(file.problems) == 2


def test_a_list_stands_for_its_key() -> None:
    file = parse_settings("- 1\n- 2\n", "x", list_key="rules")
    assert (file.value, file.line(("rules", 1))) == ({"rules": [1, 2]}, 2)
    assert parse_settings("- 1\n", "x").value == [1]

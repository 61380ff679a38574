"""A person's YAML file is read strictly: lines are right, and what surprises is refused or is text."""

from __future__ import annotations

from pathlib import Path

import pytest

from tracks_dagster.track.effects.yaml_nodes import FILE_BYTES_MAX, parse_yaml, read_yaml
from tracks_dagster.track.errors import SettingsError


def value_of(text: str) -> object:
    root, problems = parse_yaml(f"key: {text}")
    assert problems == []
    assert root is not None
    assert isinstance(root.value, dict)
    return root.value["key"].value


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
    root, _ = parse_yaml("a: 1\n\nb:\n  # a comment\n  c: 2\n  d: {e: 3,\n      f: 4}\n")
    assert root is not None
    b = root.value["b"]  # type: ignore[index, call-overload]
    assert (b.line, b.value["c"].line) == (3, 5)
    assert b.value["d"].value["f"].line == 7


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("a: [", 1, "no YAML"),
        ("a: 1\n\tb: 2", 2, "no YAML"),
        ("a: 1\n---\nb: 2", 2, "another document"),
        ("a: 1\nb: \x00", 2, "no YAML"),
        ("a: 1\na: 2", 2, "given before, in line 1"),
        ("a: &x 1\nb: 2", 1, "anchor"),
        ("a: 1\nb: !!str 2", 2, "tag"),
        ("a: !!python/object/apply:os.system ['true']", 1, "tag"),
        ("? [a]\n: 1", 1, "a key is a word"),
        ("[" * 40 + "]" * 40, 1, "deep"),
    ],
)
def test_what_is_not_read_is_told_with_its_line(text: str, line: int, words: str) -> None:
    _, [problem, *_] = parse_yaml(text)
    assert problem.line == line
    assert words in problem.words


def test_very_deep_nesting_is_refused_and_breaks_nothing() -> None:
    _, problems = parse_yaml("[" * 20_000 + "]" * 20_000)
    assert problems


def test_a_file_that_is_no_text_is_not_there_or_is_too_large_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    with pytest.raises(SettingsError, match="cannot be read"):
        read_yaml(path)
    path.write_bytes(b"a: 1\nb: \xff\n")
    with pytest.raises(SettingsError, match="line 2 is not text"):
        read_yaml(path)
    path.write_bytes(b"#" * (FILE_BYTES_MAX + 1))
    with pytest.raises(SettingsError, match="more than 256 KiB"):
        read_yaml(path)
    path.write_bytes(b"\xef\xbb\xbfa: 1\n")  # a byte order mark is none of the text
    root, problems = read_yaml(path)
    assert root is not None
    assert (list(root.value), problems) == (["a"], [])  # type: ignore[arg-type]

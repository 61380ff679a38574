"""JSON is parsed within bounds, and whatever cannot be parsed is one kind of error."""

from __future__ import annotations

import pytest

from tracks_dagster.track import json_text
from tracks_dagster.track.json_text import DEPTH_MAX, MIB, parse_json

HUGE_INT = b"9" * 5000


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"\xff\xfe\x00",
        b"\x00\x00\x00[",
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b"[" * (DEPTH_MAX + 2) + b"]" * (DEPTH_MAX + 2),
        b'{"a":' * (DEPTH_MAX + 2) + b"1" + b"}" * (DEPTH_MAX + 2),
        HUGE_INT,
        b'{"step":' + HUGE_INT + b"}",
        b"NaN",
        b"[-Infinity]",
        b"1e400",
        b'{"loss": -1e999}',
        b'{"a": 1, "b": 2, "a": 3}',
        b'[{"a": {"b": 1, "b": 1}}]',
        b'"' + b"x" * MIB + b'"',
        b"[1] [2]",
    ],
)
def test_what_cannot_be_parsed_is_a_value_error(data: bytes) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - of whatever words
        parse_json(data)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b"null", None),
        (b'{"a": [1, 2.5, true, "\\ud800"]}', {"a": [1, 2.5, True, "\ud800"]}),
        ("\ufeff[]".encode(), []),
        (b"[" * DEPTH_MAX + b"]" * DEPTH_MAX, None),
        (b"1" * 300, int("1" * 300)),
    ],
)
def test_what_we_write_is_read(data: bytes, value: object) -> None:
    found = parse_json(data)
    assert value is None or found == value


def test_another_programs_nan_and_a_key_that_is_there_twice_are_taken() -> None:
    assert parse_json('{"a": 1, "a": 2}', foreign=True) == {"a": 2}
    assert parse_json("[1e400]", foreign=True) == [float("inf")]


def test_lists_that_would_take_thirty_times_their_size_are_refused_before_they_are_parsed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = b"[" + b"[]," * MIB + b"[]]"
    with monkeypatch.context() as patched:
        patched.setattr(json_text, "_OURS", None)
        with pytest.raises(ValueError, match="lists and objects in"):
            parse_json(data, bytes_max=64 * MIB)
    assert (
        len(parse_json(b"[" + b'["0123456789"],' * 100_000 + b"[]]", bytes_max=64 * MIB)) == 100_001
    )


def test_no_memory_left_is_the_same_error(monkeypatch: pytest.MonkeyPatch) -> None:
    class Full:
        def decode(self, text: str) -> object:
            raise MemoryError

    monkeypatch.setattr(json_text, "_OURS", Full())
    with pytest.raises(ValueError, match="no memory"):
        parse_json(b"[]")

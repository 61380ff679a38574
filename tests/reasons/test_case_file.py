"""A file of cases: one a line or one document, and no bad line hides another case."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tracks_dagster.reasons.effects import case_file
from tracks_dagster.reasons.effects.case_file import read_cases
from tracks_dagster.track.errors import InvalidInput


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cases.jsonl"


def test_a_line_that_cannot_be_read_stands_in_its_place(path: Path) -> None:
    lines = [b'\xef\xbb\xbf{"id": 1}', b"{not json", b'{"id": "\xff"}', b"[1]", b"", b'{"id": 2}']
    path.write_bytes(b"\n".join(lines))
    read = list(read_cases(path))
    assert [each.line for each in read] == [1, 2, 3, 4, 6]
    assert [each.case for each in read] == [{"id": 1}, None, None, None, {"id": 2}]
    problems = [each.problem or "" for each in read]
    assert problems[1].startswith("not JSON")
    assert problems[2] == "not UTF-8 at byte 9"
    assert problems[3].startswith("not a case")


def test_a_document_over_several_lines_is_one_case_or_a_list_of_them(path: Path) -> None:
    path.write_text(json.dumps({"case": "a", "pod_history": []}, indent=1))
    assert [each.case for each in read_cases(path)] == [{"case": "a", "pod_history": []}]
    path.write_text(json.dumps([{"id": 1}, {"id": 2}], indent=1))
    assert [each.case for each in read_cases(path)] == [{"id": 1}, {"id": 2}]


def test_nesting_without_end_is_a_problem_of_its_line(path: Path) -> None:
    path.write_text("[" * 100_000 + '\n{"id": 1}\n')
    first, second = read_cases(path)
    assert first.problem is not None
    assert second.case == {"id": 1}


def test_a_line_that_is_too_long_is_told_and_passed_over(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(case_file, "LINE_BYTES_MAX", 20)
    path.write_text('{"id": 0}\n{"id": "' + "x" * 100 + '"}\n{"id": 1}\n')
    read = list(read_cases(path))
    assert [each.case for each in read] == [{"id": 0}, None, {"id": 1}]


def test_an_empty_file_holds_no_case(path: Path) -> None:
    path.write_text("\n\n")
    assert list(read_cases(path)) == []


def test_a_file_that_is_not_there_is_told(path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"cases\.jsonl cannot be read"):
        list(read_cases(path))

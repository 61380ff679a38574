"""Cases as people write them, and files of them: every field optional, of any shape and size."""

from __future__ import annotations

import json
import time
from pathlib import Path
from signal import SIGKILL

import pytest

from tests.evidences import case
from tracks_dagster.reasons.cases import evidence_of
from tracks_dagster.reasons.classify import classify
from tracks_dagster.reasons.effects import case_file
from tracks_dagster.reasons.effects.case_file import read_cases
from tracks_dagster.reasons.logs import LINE_CHARACTERS, LINES, lines_of
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.records import Json

BIG = 10 * 1024 * 1024
GROWTH_MAX = 16.0  # twice the length takes twice the time; a square would take four times
SLACK_S = 0.5  # of a busy machine


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"id": "a"},
        {"id": "a", "evidence": None},
        {"id": "a", "evidence": {}},
        {"id": "a", "evidence": {"log_tail": None, "exit_code": None, "pod": None, "events": None}},
        {"id": "a", "evidence": []},
        {"id": "a", "evidence": {"log_tail": "", "xid": [], "events": []}},
    ],
)
def test_a_case_with_nothing_in_it_is_unknown_with_no_confidence(given: dict[str, Json]) -> None:
    verdict = classify(evidence_of(given))
    assert (verdict.reason, verdict.confidence, verdict.rule) == ("unknown", 0.0, "nothing")


@pytest.mark.parametrize(
    "fields",
    [
        {"log_tail": 5, "exit_code": "x", "signal": ["a"], "pod": "p", "events": "e", "xid": 3},
        {"log_tail": {"a": 1}, "exit_code": 1e99, "signal": 999, "slurm_state": {}},
        {"events": [1, None, {"reason": 5}], "xid": ["a", {"b": 1}], "ranks": [1, {"rank": "x"}]},
        {"exit_code": True, "signal": False, "pods": 3, "kernel_lines": 7, "unheard_of": [1]},
    ],
)
def test_fields_of_another_shape_are_not_known(fields: dict[str, Json]) -> None:
    assert classify(evidence_of({"id": "a", "evidence": fields})).reason == "unknown"


@pytest.mark.parametrize("fields", [{"exit_code": -9}, {"signal": "SIGKILL"}, {"signal": "kill"},
                                  {"signal": 9}, {"exit_code": -9, "signal": "9"}])  # fmt: skip
def test_a_signal_is_read_however_it_is_written(fields: dict[str, Json]) -> None:
    [rank] = evidence_of({"evidence": fields}).ranks
    assert (rank.signal, rank.exit_code) == (SIGKILL, None)


def _bar(size: int) -> str:
    drawings = (f"{n % 100}%|## | {n}/9 [00:01<00:02]" for n in range(size // 50))
    return "\r".join(drawings) + "\rMemoryError"


BIG_LOGS = {
    "one line": (lambda size: "x" * size, "unknown"),
    "one line that begins with the error": (
        lambda size: "torch.OutOfMemoryError: CUDA out of memory " + "7 " * (size // 2),
        "gpu_oom",
    ),
    "one line that ends with it": (
        lambda size: "7 " * (size // 2) + "RuntimeError: CUDA out of memory",
        "gpu_oom",
    ),
    "a progress bar": (_bar, "host_oom"),
    "colours": (lambda size: "\x1b[" * (size // 2), "unknown"),
    "blanks": (lambda size: " " * size, "unknown"),
    "prefixes": (lambda size: "[rank0]: " * (size // 9), "unknown"),
    "lines": (
        lambda size: "failed to read, write, connect: error\n" * (size // 40),
        "unknown",
    ),
}


@pytest.mark.parametrize("name", BIG_LOGS)
def test_the_time_of_a_log_of_ten_megabytes_grows_with_its_length_at_most(name: str) -> None:
    """Two sizes are compared, since wall time says more about the machine than about the code."""
    make, reason = BIG_LOGS[name]

    def seconds(size: int) -> float:
        evidence = case(make(size))
        begin = time.thread_time()  # other processes on the machine take none of it
        assert classify(evidence).reason == reason
        return time.thread_time() - begin

    quarter = min(seconds(BIG // 4) for _ in range(2))
    assert seconds(BIG) < GROWTH_MAX * quarter + SLACK_S


def test_a_clock_that_jumps_backwards_changes_no_verdict_of_a_gang() -> None:
    lost = "RuntimeError: Connection closed by peer"
    for back in (
        "2030-01-01T00:00:00.000000Z",
        "2026-01-01T00:00:00.000000Z",
        "not a time",
        "",
        None,
    ):
        ranks = [
            {"rank": 0, "exit_code": 1, "log_tail": lost, "ended_at": back},
            {"rank": 1, "exit_code": 1, "log_tail": "RuntimeError: CUDA out of memory",
             "ended_at": "2028-01-01T00:00:00.000000Z"},
        ]  # fmt: skip
        assert classify(case(ranks=ranks)).reason == "gpu_oom", back


def test_a_pod_that_ended_before_it_started_is_read_all_the_same() -> None:
    state = {"exitCode": 137, "reason": "OOMKilled", "startedAt": "2028-01-01T00:00:00Z",
             "finishedAt": "2027-01-01T00:00:00Z"}  # fmt: skip
    pod = {"containerStatuses": [{"state": {"terminated": state}}]}
    assert classify(case(pod=pod)).reason == "host_oom"


def test_lines_are_bounded_in_number_and_length() -> None:
    lines = lines_of("\n".join(f"{n} " + "y" * 5_000 for n in range(2_000)))
    assert len(lines) == LINES
    assert max(map(len, lines)) <= LINE_CHARACTERS
    assert lines[-1].startswith("1999 ")


def test_half_characters_of_a_log_do_not_reach_the_verdict() -> None:
    verdict = classify(case("ValueError: \ud800 is not a character"))
    assert verdict.lines[0].encode("utf-8")  # a half character cannot be


# A file of cases: one a line or one document, and no bad line hides another case.


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


def test_a_line_that_is_too_long_is_reported_and_passed_over(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(case_file, "LINE_BYTES_MAX", 20)
    path.write_text('{"id": 0}\n{"id": "' + "x" * 100 + '"}\n{"id": 1}\n')
    read = list(read_cases(path))
    assert [each.case for each in read] == [{"id": 0}, None, {"id": 1}]


def test_an_empty_file_holds_no_case(path: Path) -> None:
    path.write_text("\n\n")
    assert list(read_cases(path)) == []


def test_a_file_that_is_not_there_is_reported(path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"cases\.jsonl cannot be read"):
        list(read_cases(path))

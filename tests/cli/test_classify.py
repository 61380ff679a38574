"""`tracks classify`: a file in, a reason a case out; it needs no home, no Dagster and no torch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Call

CASES = (
    {"id": "a", "evidence": {"log_tail": "RuntimeError: CUDA out of memory"}, "label": "ignored"},
    {"id": "b", "evidence": {}},
    {"evidence": {"slurm_state": "PREEMPTED"}},
    {"id": "a", "evidence": {"exit_code": 137}},
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "cases.jsonl"
    path.write_text("".join(json.dumps(case) + "\n" for case in CASES))
    return path


def test_each_case_is_one_line_of_json(call: Call, file: Path, home: Path) -> None:
    result = call("classify", str(file), "--json")
    answer = [json.loads(line) for line in result.stdout.splitlines()]
    assert [list(each) for each in answer] == [["id", "reason", "confidence", "rule", "lines"]] * 4
    assert [each["id"] for each in answer] == ["a", "b", None, "a"]
    assert [each["reason"] for each in answer] == ["gpu_oom", "unknown", "preempted", "unknown"]
    assert result.exit_code == 0
    assert not home.exists()


def test_the_same_is_a_table_for_people(call: Call, file: Path) -> None:
    result = call("classify", str(file))
    assert "gpu_oom" in result.stdout
    assert "(line 3)" in result.stdout
    assert result.exit_code == 0


def test_a_line_that_cannot_be_read_is_named_and_the_others_are_classified(
    call: Call, file: Path
) -> None:
    file.write_bytes(b"{nothing\n" + file.read_bytes() + b"\xff\n")
    result = call("classify", str(file), "--json")
    assert len(result.stdout.splitlines()) == len(CASES)
    assert "line 1: not JSON" in result.stderr
    assert "line 6: not UTF-8" in result.stderr
    assert result.exit_code == 2


@pytest.mark.parametrize(
    ("data", "answer"),
    [
        (b"\xff\xfe\x00\n", "line 1: not UTF-8 at byte 1"),
        (b'{"id": "a"', "line 1: not JSON"),
        (b'["a"]\n', "line 1: not a case"),
        (b"5\n", "line 1: not a case"),
        (b"[" * 200_000 + b"\n", "line 1: not"),
        (b"\x00\x01\x02\n", "line 1: not JSON"),
    ],
)
def test_what_is_not_a_case_is_named_and_nothing_is_made_up(
    call: Call, file: Path, data: bytes, answer: str
) -> None:
    file.write_bytes(data)
    result = call("classify", str(file), "--json")
    assert result.stdout == ""
    assert answer in result.stderr
    assert result.exit_code == 2


def test_an_empty_file_has_no_case_and_is_not_an_error(call: Call, file: Path) -> None:
    file.write_bytes(b"\n \n")
    result = call("classify", str(file), "--json")
    assert (result.stdout, result.exit_code) == ("", 0)


def test_a_case_of_ten_megabytes_is_one_line_that_anything_can_read(call: Call, file: Path) -> None:
    log = "7 " * (5 * 1024 * 1024) + "RuntimeError: CUDA out of memory \ud800"
    file.write_text(json.dumps({"id": "big", "evidence": {"log_tail": log}}) + "\n")
    answer = json.loads(call("classify", str(file), "--json").stdout)
    assert (answer["reason"], len(answer["lines"])) == ("gpu_oom", 1)
    assert len(answer["lines"][0]) < 1_000


def test_a_pod_history_is_a_case_of_its_own_name(call: Call, tmp_path: Path) -> None:
    condition = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}
    history = [{"type": "DELETED", "status": {"conditions": [condition]}}]
    path = tmp_path / "pod.json"
    path.write_text(json.dumps({"case": "victim", "pod_history": history}, indent=2))
    answer = json.loads(call("classify", str(path), "--json").stdout)
    assert (answer["id"], answer["reason"]) == ("victim", "preempted")


@pytest.mark.parametrize("by", ["option", "environment"])
def test_a_users_rules_are_used(
    call: Call, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text("- {name: ours, reason: hang, pattern: CUDA out}\n")
    if by == "environment":
        monkeypatch.setenv("TRACKS_RULES", str(path))
    given = ["--rules", str(path)] if by == "option" else []
    first = json.loads(call("classify", str(file), "--json", *given).stdout.splitlines()[0])
    assert (first["reason"], first["rule"]) == ("hang", "user_rule/ours")


def test_rules_with_errors_are_refused_before_anything_is_classified(
    call: Call, file: Path, tmp_path: Path
) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text("- {name: ours, reason: nope, pattern: '['}\n- {}\n")
    result = call("classify", str(file), "--rules", str(path), "--json")
    assert result.exit_code == 2
    assert result.stdout == ""
    assert "5 errors" in result.stderr


OOM = "step 7 loss 2.0\nRuntimeError: CUDA out of memory\n"


def _classified(result: Any) -> list[tuple[Any, str]]:
    return [(each["id"], each["reason"]) for each in map(json.loads, result.stdout.splitlines())]


@pytest.mark.parametrize("name", ["train.log", "out", "job.txt"])
def test_a_plain_log_is_one_case(call: Call, tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(b"\xff\x00" + OOM.encode())
    assert _classified(call("classify", str(path), "--json")) == [(name, "gpu_oom")]


def test_a_log_whose_lines_are_json_is_a_log(call: Call, tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text('{"step": 7}\n' + json.dumps({"level": "ERROR", "msg": OOM}) + "\n")
    assert _classified(call("classify", str(path), "--json")) == [("train.log", "gpu_oom")]


def test_cases_are_cases_whatever_their_file_is_called(
    call: Call, file: Path, tmp_path: Path
) -> None:
    path = tmp_path / "cases"
    path.write_bytes(b"{nothing\n" + file.read_bytes())
    result = call("classify", str(path), "--json")
    assert len(result.stdout.splitlines()) == len(CASES)
    assert "line 1: not JSON" in result.stderr


@pytest.mark.parametrize("name", ["rank-{r}.log", "{r}.err", "attempt_0/{r}/stderr.log", "log_{r}"])
def test_a_folder_has_a_log_for_each_rank(call: Call, tmp_path: Path, name: str) -> None:
    for rank in range(12):
        path = tmp_path / "logs" / name.format(r=rank)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(OOM if rank == 11 else "RuntimeError: Connection closed by peer\n")
    result = call("classify", str(tmp_path / "logs"), "--json")
    (answer,) = map(json.loads, result.stdout.splitlines())
    assert (answer["id"], answer["reason"]) == ("logs", "gpu_oom")
    assert answer["lines"][0].startswith("rank 11: ")


def test_a_folder_without_a_log_is_wrong_use(call: Call, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    result = call("classify", str(tmp_path / "empty"))
    assert result.exit_code == 2
    assert "has no log in it" in result.stderr


@pytest.mark.parametrize("kind", ["log", "cases"])
def test_standard_input_is_a_log_or_cases(file: Path, kind: str) -> None:
    data = OOM.encode() if kind == "log" else file.read_bytes()
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "from tracks_dagster.cli import main; main(['classify', '-', '--json'])",
        ],
        input=data,
        capture_output=True,
        check=True,
    )
    answer = [json.loads(line)["reason"] for line in done.stdout.splitlines()]
    assert answer == (
        ["gpu_oom"] if kind == "log" else ["gpu_oom", "unknown", "preempted", "unknown"]
    )


def test_a_file_that_is_not_there_is_wrong_use(call: Call, tmp_path: Path) -> None:
    result = call("classify", str(tmp_path / "none.jsonl"))
    assert result.exit_code == 2
    assert "cannot be read" in result.stderr


def test_neither_dagster_nor_torch_is_imported(file: Path, tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "from tracks_dagster.cli import main\n"
        f"main(['classify', {str(file)!r}, '--json'], standalone_mode=False)\n"
        "print(sorted({'dagster', 'torch'} & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
        env={"TRACKS_HOME": str(tmp_path / "home"), "PYTHONPATH": str(Path.cwd())},
    )
    assert done.stdout.splitlines()[-1] == "[]"

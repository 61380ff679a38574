"""A trainer that speaks by files and exit codes only: a shell script, followed by a parent of ours."""

from __future__ import annotations

import hashlib
import json
import signal
from pathlib import Path

import pytest

from tests.training import command_rank
from tests.training.gangs import TrainingRun
from tracks_dagster.track.bodies import Drill, Program
from tracks_dagster.track.names import EXIT_DRAINED
from tracks_dagster.track.records import Kind
from tracks_dagster.training.projects import watched
from tracks_dagster.training.projects.command import Box
from tracks_dagster.training.projects.watched import Watched
from tracks_dagster.training.saves.folders import fetch_folder


def shell_run(
    folder: Path,
    last: str,
    *arguments: str,
    ranks: int = 1,
    drills: tuple[Drill, ...] = (),
    steps: int | None = 0,
) -> TrainingRun:
    """A run of the shell script to its step `last`. steps: the config's, where it is another one."""
    folder.mkdir(exist_ok=True)
    (folder / "plan.json").write_text(json.dumps([last, *arguments]))
    script = Path(command_rank.__file__)
    return TrainingRun(
        folder, ranks=ranks, script=script, drills=drills, steps=int(last) if steps == 0 else steps
    )


def digest(steps: int, rank: int = 0) -> str:
    """Return what the script's chain comes to, undisturbed."""
    chain = ""
    for step in range(1, steps + 1):
        chain = hashlib.sha256(f"{chain} {step} {rank}\n".encode()).hexdigest()
    return chain


def result(run: TrainingRun, folder: Path, rank: int = 0) -> str:
    path = fetch_folder(run.store, run.final(), folder / "read").path
    return (path / f"rank-{rank}.txt").read_text()


def test_a_shell_script_is_preempted_and_killed_and_loses_no_committed_step(
    tmp_path: Path,
) -> None:
    drills = (Drill(kind="preempt", step=2), Drill(kind="sigkill", step=14))
    run = shell_run(tmp_path / "run", "24", "0.1", drills=drills)
    first = run.train()
    assert first.exit_codes == [EXIT_DRAINED], first.log()
    saved = run.state.checkpoints[-1].body
    assert (saved.trigger, saved.kind) == ("sigterm", "files")
    second = run.train()
    assert second.exit_codes == [-signal.SIGKILL], second.log()
    third = run.train()
    assert third.exit_codes == [0], third.log()
    # The last folder is committed as the command ends, or shortly before: it may be seen either way.
    assert run.state.checkpoints[-1].body.trigger in {"demand", "final"}
    assert result(run, tmp_path) == f"24 {digest(24)}\nmore\n"  # and nothing half-written before it
    restored = [r.body["step"] for r in run.records(Kind.ATTEMPT_RESTORED)]
    assert restored[:2] == [0, saved.ref.step]
    assert restored[2] >= 12
    assert {step: line["loss"] for step, line in run.steps(3).items()} == {
        step: step + 0.5 for step in range(restored[2] + 1, 25)
    }
    assert run.last_words(1)[0].reason == "drained"


def test_two_ranks_publish_together(tmp_path: Path) -> None:
    run = shell_run(tmp_path / "run", "6", "0.05", ranks=2)
    gang = run.train()
    assert gang.exit_codes == [0, 0], gang.log()
    assert [c.body.ref.step for c in run.state.checkpoints] == [4, 6]
    for rank in (0, 1):
        assert result(run, tmp_path / str(rank), rank) == f"6 {digest(6, rank)}\nmore\n"


@pytest.mark.parametrize(
    ("how", "code"), [("7", 7), ("75", 1), ("oom", 1), ("killed", -signal.SIGKILL)]
)
def test_a_command_that_fails_is_committed_so_far_and_its_end_is_the_ranks(
    tmp_path: Path, how: str, code: int
) -> None:
    run = shell_run(tmp_path / "run", "5", "0.02", how)
    gang = run.train()
    assert gang.exit_codes == [code], gang.log()
    assert run.final().step == 5
    assert run.last_words(1) == []  # what it printed says more
    assert "The command ended" in gang.log()


def test_a_command_that_trains_nothing_did_not_complete(tmp_path: Path) -> None:
    run = shell_run(tmp_path / "run", "0", "0", steps=9)
    gang = run.train()
    assert gang.exit_codes == [1]
    assert "without training" in gang.log()


def test_a_command_that_ends_before_the_configs_last_step_says_so_or_has_failed(
    tmp_path: Path,
) -> None:
    """By a line of its own it stops early; what ends with 0 and says nothing may be cut off."""
    silent = shell_run(tmp_path / "silent", "6", "0.02", steps=9)
    gang = silent.train()
    assert gang.exit_codes == [1]
    assert "The command ended with exit code 0 after step 6 of 9" in gang.log()
    assert '{"step": 6, "last": true}' in gang.log()
    assert silent.final().step == 6
    answer = shell_run(tmp_path / "answer", "6", "0.02", "early", steps=9)
    assert answer.train().exit_codes == [0]
    assert [word.reason for word in answer.last_words(1)] == ["early_stopped"]
    unknown = shell_run(tmp_path / "unknown", "6", "0.02", steps=None)
    assert unknown.train().exit_codes == [0]
    (word,) = unknown.last_words(1)
    assert word.reason == "completed"
    assert "how many were asked for is not known" in word.message


def test_a_line_of_a_step_that_was_reported_is_named_and_left_out(tmp_path: Path) -> None:
    run = shell_run(tmp_path / "run", "4", "0.02", "twice")
    gang = run.train()
    assert gang.exit_codes == [0], gang.log()
    assert "metrics.jsonl, has step 1 after step 1" in gang.log()
    assert {step: line["loss"] for step, line in run.steps(1).items()} == {
        step: step + 0.5 for step in range(1, 5)
    }


UNTOUCHED = """
step=$(ls | sed -n 's/^ckpt_\\([0-9]*\\)[.]txt$/\\1/p' | sort -n | tail -1)
sum=$([ -z "$step" ] || head -1 "ckpt_$step.txt")
while [ "${step:-0}" -lt 12 ]; do
  step=$((${step:-0} + 1))
  sum=$(echo "$sum $step" | sha256sum | cut -c1-64)
  sleep 0.5
  if [ "$step" = 10 ] && mkdir "$1" 2> /dev/null; then exit 9; fi
  if [ $((step % 4)) = 0 ]; then
    (echo "$sum"; sleep 1; echo more) > "ckpt_$step.txt"
    echo "opt $step" > "opt-$step.bin"
  fi
done
"""


def test_a_trainer_that_may_not_be_touched_is_watched_and_resumes_by_its_own_files(
    tmp_path: Path,
) -> None:
    (tmp_path / "run").mkdir()
    script = tmp_path / "untouched.sh"
    script.write_text(UNTOUCHED)
    (tmp_path / "run" / "plan.json").write_text(json.dumps([str(script), str(tmp_path / "failed")]))
    watch = Program(entry=("x",), by_files=True, watch=("ckpt_*.txt", "opt-{step}.bin"))
    run = TrainingRun(
        tmp_path / "run",
        script=Path(command_rank.__file__),
        steps=12,
        program=watch,
    )
    assert run.train().exit_codes == [9]
    assert [c.body.ref.step for c in run.state.checkpoints] == [
        4
    ]  # of 8 nobody saw that it was whole
    second = run.train()
    assert second.exit_codes == [0], second.log()
    assert [c.body.ref.step for c in run.state.checkpoints] == [4, 8, 12]
    chain = ""
    for step in range(1, 13):
        chain = hashlib.sha256(f"{chain} {step}\n".encode()).hexdigest()
    path = fetch_folder(run.store, run.final(), tmp_path / "read").path
    assert (path / "ckpt_12.txt").read_text() == f"{chain}\nmore\n"
    assert (path / "opt-12.bin").read_text() == "opt 12\n"


def test_only_what_is_whole_is_published_of_a_watched_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    into = tmp_path / "into"
    into.mkdir()
    (tmp_path / "ckpt_3.pt").write_bytes(b"of an earlier attempt")
    seen = Watched(("ckpt_*.pt",), tmp_path, into)

    def published() -> list[str]:
        return sorted(each.name for each in into.iterdir())

    for name in ("ckpt_last.pt", "ckpt_5.pt.tmp", "ckpt_5.pt"):
        (tmp_path / name).write_bytes(b"x")
    seen.publish(None)  # it may still be written to
    monkeypatch.setattr(watched, "WATCH_STILL_S", -1.0)
    with (tmp_path / "ckpt_5.pt").open("ab"):
        seen.publish(None)  # it is open
    seen.publish(-9)  # and nobody knows whether it was whole
    assert published() == []
    seen.publish(None)
    (tmp_path / "ckpt_7.pt").write_bytes(b"y")
    seen.publish(0)
    assert published() == ["step-5", "step-7"]
    assert (into / "step-5" / "ckpt_5.pt").read_bytes() == b"x"


def test_only_whole_folders_and_whole_lines_are_seen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    box = Box(tmp_path, 0)
    for name in (".half-3", "step-4.tmp", "step-4", "step-0012", "other"):
        (box.checkpoints / name).mkdir()
    assert box.published() == (4, 12)
    assert box.new_lines() == ()
    good = {"step": 1, "loss": "2.0", "last": False, "metrics": {"lr": 0.5}}
    lines = ['{"step": 1, "loss": 2, "lr": 0.5, "name": "x", "bad": NaN}', "[]", '{"step": true}']
    lines += ['{"step": 2, "loss": 1' + "0" * 400 + "}", '{"step": 2, "loss": "high"}']
    lines += ['{"step": 3, "loss": NaN}', '{"step": 4']
    box.metrics.write_text("\n".join(lines))
    assert box.new_lines() == (good, {"step": 3, "loss": "nan", "last": False, "metrics": {}})
    with box.metrics.open("a") as file:
        file.write("}\n")
    assert box.new_lines() == ({"step": 4, "loss": None, "last": False, "metrics": {}},)
    assert capsys.readouterr().err.count("left out") == 4
    box.metrics.write_bytes(box.metrics.read_bytes() + b"x" * 100_000)
    assert box.new_lines() == ()
    with box.metrics.open("a") as file:
        file.write('xx\n{"step": 5, "loss": 1}\n')
    assert [line["step"] for line in box.new_lines()] == [5]
    assert "a line of more than" in capsys.readouterr().err
    box.remove(4)
    assert box.published() == (12,)

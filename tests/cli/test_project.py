"""`tracks run` and `tracks retry --code` in a project's folder, called as by a person."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from tests.bodies import declared, ended
from tests.cli.conftest import Call
from tests.histories import History
from tracks_dagster.attempts.effects.supervise import gang_spec
from tracks_dagster.cli.start import run as run_command
from tracks_dagster.cli.start.follow import Followed
from tracks_dagster.projects.project import eval_version
from tracks_dagster.reading import open_tracks_to_read
from tracks_dagster.retry.default_policy import DEFAULT_POLICY
from tracks_dagster.settings import Settings
from tracks_dagster.track.bodies import (
    CheckpointCadence,
    ComputeRequest,
    Program,
    PromotionRule,
)
from tracks_dagster.track.records import Kind
from tracks_dagster.track.states.run_state import RunState, code_of
from tracks_dagster.track.track import code_diff_key
from tracks_dagster.training.projects.code import lay_out
from tracks_dagster.wiring import build

SCHEDULING = DEFAULT_POLICY.scheduling

TRACKS_YAML = """
name: tiny
entry: train.py --lr={lr} {config}
config: conf/base.yaml
keys: {steps: max_iters}
ranks: 2
checkpoint: {every_steps: 5, every: 1min}
retention: {keep_last: 2}
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with a commit and a local change, in which the commands are called."""
    folder = tmp_path / "mine"
    (folder / "conf").mkdir(parents=True)
    (folder / "tracks.yaml").write_text(TRACKS_YAML)
    (folder / "conf" / "base.yaml").write_text(
        "# mine\nlr: 0.1\nmax_iters: 40\nmodel: {layers: 2}\n"
    )
    (folder / "train.py").write_text("import model\n")
    identity = ("-c", "user.name=T", "-c", "user.email=t@example.org")
    for command in (("init", "-qb", "trunk"), ("add", "."), (*identity, "commit", "-qm", "first")):
        subprocess.run(["git", "-C", folder, *command], check=True, capture_output=True)
    (folder / "model.py").write_text("a = 1\n")  # new, and in no commit yet
    monkeypatch.chdir(folder)
    followed = Followed(state="waiting", is_drained=False, waited_for=None)
    monkeypatch.setattr(run_command, "drive", lambda *_, **__: followed)
    monkeypatch.setattr(
        run_command,
        "read_outcome",
        lambda tracks, run_id, *_, **__: {"run_id": run_id, "attempts": [], "final": None},
    )
    return folder


def state() -> RunState:
    return open_tracks_to_read(Settings.from_environment()).run("r-1")


def head(folder: Path) -> str:
    done = subprocess.run(
        ["git", "-C", folder, "rev-parse", "HEAD"], check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def test_a_run_needs_no_option_and_its_record_is_of_the_folder_alone(
    project: Path, call: Call
) -> None:
    call("run", "--run-id", "r-1")
    declared = state().declared
    assert (declared.model_family, declared.snapshot) == ("tiny", None)
    assert declared.config == {"lr": 0.1, "max_iters": 40, "model.layers": 2}
    assert declared.program == Program(
        entry=("train.py", "--lr={lr}", "{config}"),
        config_name="conf/base.yaml",
        takes_any_key=False,
    )
    assert declared.roles == {"steps": "max_iters", "lr": "lr"}
    assert (declared.code.git_commit, declared.code.branch) == (head(project), "trunk")
    assert declared.code.dirty
    assert declared.code.diff_sha256 is not None
    assert declared.cadence == CheckpointCadence(every_steps=5, every_s=60.0)
    assert (declared.compute, declared.retention.keep_last) == (ComputeRequest(ranks=2), 2)
    assert declared.intent == "A run of tiny; no intent was given."


def test_options_override_the_file_by_the_names_of_its_own_keys(project: Path, call: Call) -> None:
    options = ("--steps", "9", "--set", "model.layers=3", "--ranks", "1", "--keep-last", "4")
    call("run", "--run-id", "r-1", *options, "--checkpoint-every", "3")
    declared = state().declared
    assert declared.config == {"lr": 0.1, "max_iters": 9, "model.layers": 3}
    assert declared.cadence == CheckpointCadence(every_steps=3)
    assert (declared.compute.ranks, declared.retention.keep_last) == (1, 4)


def test_a_project_of_the_same_name_elsewhere_is_reported(
    project: Path, call: Call, tmp_path: Path
) -> None:
    assert "Another folder" not in call("run", "--run-id", "r-1").stderr
    assert state().declared.folder == str(project)
    other = shutil.copytree(project, tmp_path / "theirs")
    assert "Another folder" not in call("run", "--run-id", "r-2").stderr
    result = call("run", "--run-id", "r-3", "--project", str(other)).stderr
    assert (
        f"Another folder has a project tiny too: r-2 is of {project}, this run of {other}" in result
    )
    assert "Another folder" not in call("run", "--run-id", "r-4", "--project", str(other)).stderr


def test_a_trainer_that_publishes_folders_is_started_by_a_parent_of_ours(
    project: Path, call: Call
) -> None:
    cadence = "checkpoint: {every_steps: 5, every: 1min}"
    assert cadence in TRACKS_YAML
    (project / "tracks.yaml").write_text(TRACKS_YAML.replace(cadence, "checkpoint: folder"))
    call("run", "--run-id", "r-1")
    found = state()
    assert found.declared.cadence == CheckpointCadence()  # it saves when it likes
    spec = gang_spec(
        build(Settings.from_environment()).tracks,
        found,
        found.attempts[0],
        DEFAULT_POLICY.scheduling,
    )
    parent = ("-m", "tracks_dagster.training.projects.command")
    assert spec.command.words == (*parent, "train.py", "--lr=0.1", "conf/base.yaml")


def test_a_retry_runs_the_stored_code_unless_it_is_given_the_folders(
    project: Path, call: Call, tmp_path: Path
) -> None:
    call("run", "--run-id", "r-1", "--set", "lr=0.2")
    (project / "train.py").write_text("import model  # corrected\n")
    app = build(Settings.from_environment())
    body = ended("code_error", last_step=None)
    app.tracks.decide_run("r-1", lambda _: app.tracks.draft(Kind.ATTEMPT_ENDED, body, attempt_id=1))
    refused = call("retry", "r-1", "--why", "again")
    assert "nor anything else has changed" in refused.stderr
    call("retry", "r-1", "--why", "corrected", "--code")
    found = state()
    [change] = found.attempts[1].opened.remediation
    assert change.key == "trainer"
    first, second = (code_of(found, attempt) for attempt in found.attempts)
    assert (first.git_commit, second.git_commit) == (head(project), head(project))
    assert second.diff_sha256 not in (None, first.diff_sha256)
    diff = app.store.get(code_diff_key("r-1", second.diff_sha256 or ""))
    assert b"# corrected" in (diff or b"")
    for attempt, text in zip(found.attempts, ("", "  # corrected"), strict=True):
        spec = gang_spec(app.tracks, found, attempt, SCHEDULING)
        code = tmp_path / f"a{attempt.attempt_id}"
        lay_out(code, code=spec.code, key=spec.code_key, files=spec.command.files)
        assert (code / "train.py").read_text() == f"import model{text}\n"
        assert (code / "model.py").read_text() == "a = 1\n"
        assert "lr: 0.2" in (code / "conf" / "base.yaml").read_text()
        assert spec.command.words == ("train.py", "--lr=0.2", "conf/base.yaml")


def test_evals_of_the_file_and_of_an_option_are_declared_and_stored(
    project: Path, call: Call, tmp_path: Path
) -> None:
    text = (
        "evals: {quality: {run: evaluate.py, every: 2}}\npromotion: {metric: f1, at_least: 0.5}\n"
    )
    (project / "tracks.yaml").write_text(TRACKS_YAML + text)
    for name in ("evaluate.py", "more.py"):
        (project / name).write_text("def evaluate(checkpoint, data):\n    return {'f1': 1}\n")
    call("run", "--run-id", "r-1", "--eval", "more.py")
    found = state()
    quality, more = found.declared.evals
    assert (quality.suite, quality.is_required, quality.every) == ("quality", True, 2)
    assert (more.suite, more.is_required, more.snapshot) == ("more", False, None)
    assert more.program == Program(entry=("more.py",), config_name="conf/base.yaml")
    assert found.declared.promotion == PromotionRule(
        alias="candidate", suite="quality", metric="f1", direction="max", threshold=0.5
    )
    spec = gang_spec(
        build(Settings.from_environment()).tracks,
        found,
        found.attempts[0],
        DEFAULT_POLICY.scheduling,
    )
    lay_out(tmp_path / "code", code=spec.code, key=spec.code_key, files={})
    assert (tmp_path / "code" / "more.py").is_file()


def test_a_scorer_that_is_written_later_scores_an_old_checkpoint_by_the_folders_code(
    project: Path, call: Call, tmp_path: Path
) -> None:
    store = build(Settings.from_environment()).store
    infer, other = declared().evals[0], replace(declared().evals[0], suite="other")
    history = History("r-1").declare(evals=(infer, other)).open().place().restore().commit(40)
    history.end("completed", last_step=40).open_eval(history.state.resumable[-1])
    history.end_eval(history.state.evals[-1].opened).write_to(store)
    scored = (
        "evals: {heldout-loss: train.py, other: train.py, late: {run: late.py, of: heldout-loss}, "
        "soon: {run: late.py, of: other}}\n"
    )
    (project / "tracks.yaml").write_text(TRACKS_YAML + scored)
    (project / "late.py").write_text("def evaluate(scored, data):\n    return {'f1': 1}\n")
    asked = call("eval", "r-1@40", "--code", "--suite", "late", "--why", "a new metric")
    assert asked.exit_code == 0, asked.stderr
    assert asked.stdout.startswith("Asked for late@40 of r-1, seed 7: attempt 1")
    opened = state().evals[-1].opened
    assert opened.scored is not None
    assert opened.scored.eval_id == "heldout-loss@40"
    assert opened.brought is not None
    assert opened.brought.program.entry == ("late.py",)
    assert opened.brought.code.git_commit == head(project)
    key = opened.brought.code_key
    lay_out(tmp_path / "code", code=store.get(key), key=key, files={})
    content = (tmp_path / "code" / "late.py").read_bytes()
    assert opened.suite_version == eval_version(("late.py",), content, of=infer.suite_version)
    early = call("eval", "r-1@40", "--code", "--suite", "soon")
    assert (early.exit_code, len(state().evals)) == (2, 2)
    assert "soon of r-1@40 is not opened: it waits for other@40 with seed 7" in early.stderr
    secret = scored.replace("{run: late.py,", f"{{run: late.py --key=AKIA{'ABCD' * 4},")
    (project / "tracks.yaml").write_text(TRACKS_YAML + secret)
    refused = call("eval", "r-1@40", "--code", "--suite", "late")
    assert "evals holds what looks like a secret" in refused.stderr
    (project / "tracks.yaml").write_text(TRACKS_YAML + scored.replace("heldout-loss", "mine"))
    unknown = call("eval", "r-1@40", "--code", "--suite", "late")
    assert "late scores mine, and r-1 was declared with no such eval; it has:" in unknown.stderr


def test_a_script_alone_is_evaluated_by_a_file_beside_it(project: Path, call: Call) -> None:
    (project / "more.py").write_text("")
    (project / "alone.py").write_text("import more\n")
    call("run", "--trainer", "alone.py", "--eval", "more.py", "--run-id", "r-1", "--intent", "try")
    (more,) = state().declared.evals
    assert (more.suite, state().declared.promotion) == ("more", None)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--eval", "../absent.py"), "../absent.py lies outside of"),
        (("--eval", "absent.py"), "absent.py is not a Python file"),
        (("--eval", "broken.py"), "The eval broken is not Python that runs here"),
        (("--project", "conf"), "conf holds no project: there is no tracks.yaml"),
        (("--project", ".", "--trainer", "train.py"), "--project and --trainer each name"),
        (("--set", "lrr=1"), "'lrr' is not a config key; did you mean lr?"),
        (("--set", "lr=fast"), "lr = 'fast' is not a number, as its default 0.1 is"),
        (("--snapshot", "f" * 64), "names a snapshot of no dataset"),
    ],
)
def test_bad_input_in_a_project_says_what_is_valid(
    project: Path, call: Call, home: Path, options: tuple[str, ...], words: str
) -> None:
    (project / "broken.py").write_text("def evaluate(:\n")
    refused = call("run", *options)
    assert refused.exit_code == 2
    assert words in refused.stderr
    assert not home.exists()


def test_a_smoke_is_a_run_of_the_project_within_the_limits_of_its_stage(
    project: Path, call: Call
) -> None:
    result = call("smoke", "--run-id", "r-1", "--set", "lr=0.2").stderr
    assert "max_iters 20: as many as a smoke has" in result
    declared = state().declared
    assert (declared.stage, declared.config["max_iters"], declared.config["lr"]) == (
        "smoke",
        20,
        0.2,
    )
    assert declared.max_device_s == 300.0
    assert declared.environment["python"]
    assert declared.gate_key is not None


def test_a_smoke_of_a_project_without_steps_says_that_nothing_counts_them(
    project: Path, call: Call
) -> None:
    file = project / "tracks.yaml"
    file.write_text(file.read_text().replace("steps: max_iters", "warmup: max_iters"))
    result = call("smoke", "--run-id", "r-1").stderr
    assert "has the role steps, so a smoke cannot be cut to 20 of them" in result
    assert state().declared.config["max_iters"] == 40


def test_a_canary_trains_on_the_projects_own_steps_where_they_are_fewer(
    project: Path, call: Call
) -> None:
    call("canary", "--run-id", "r-1", "--owner", "ann")
    declared = state().declared
    assert (declared.stage, declared.config["max_iters"]) == ("canary", 40)
    assert declared.max_device_s == 1800.0


def test_a_full_run_is_refused_by_the_policy_with_the_commands_to_call(
    project: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = project.parent / "policy.yaml"
    policy.write_text("stages: {full: {needs: [tests, smoke]}}")
    monkeypatch.setenv("TRACKS_POLICY", str(policy))
    options = ("run", "--run-id", "r-1", "--stage", "full", "--set", "lr=0.2")
    refused = call(*options)
    assert refused.exit_code == 2
    assert "Refused by policy stages.full.needs: r-1" in refused.stderr
    assert f"`tracks smoke --project {project} --set lr=0.2`" in refused.stderr
    call(*options, "--skip-gate", "tests", "--skip-gate", "smoke", "--why", "A demo.")
    skipped = state().declared.skipped
    assert skipped is not None
    assert (skipped.gates, skipped.why) == (("tests", "smoke"), "A demo.")


@pytest.mark.parametrize(
    ("options", "given", "there"),
    [
        (("--set", "lr=0.5"), "lr = 0.5", "lr = 0.1"),
        (("--steps", "9"), "max_iters = 9", "max_iters = 40"),
        (("--ranks", "4"), "ranks = 4", "ranks = 2"),
        (("--checkpoint-every", "7"), "checkpoint_every_steps = 7", "checkpoint_every_steps = 5"),
        (("--keep-last", "9"), "keep_last = 9", "keep_last = 2"),
        (("--best-metric", "acc"), "metric = acc", "metric = loss"),
        (("--stage", "full"), "stage = full", "stage = smoke"),
        (("--team", "b"), "team = b", "team = unknown"),
        (("--experiment", "wide"), "experiment = wide", "experiment = none"),
        (("--drill", "sigkill@3"), "drills", "drills = none"),
    ],
)
@pytest.mark.usefixtures("project")
def test_a_run_that_exists_is_not_declared_otherwise_in_silence(
    options: tuple[str, ...], given: str, there: str, call: Call
) -> None:
    call("run", "--run-id", "r-1")
    before = state()
    answer = call("run", "--run-id", "r-1", *options)
    assert answer.exit_code == 2
    assert given in answer.stderr
    assert there in answer.stderr
    assert "--from r-1@STEP" in answer.stderr
    assert state() == before


@pytest.mark.usefixtures("project")
def test_a_run_that_exists_continues_by_the_line_that_declared_it(call: Call) -> None:
    line = (
        "run",
        "--run-id",
        "r-1",
        "--set",
        "lr=0.5",
        "--steps",
        "9",
        "--ranks",
        "1",
        "--team",
        "b",
    )
    call(*line)
    assert call(*line).exit_code != 2
    assert len(state().attempts) == 1


@pytest.mark.usefixtures("project")
def test_a_stage_that_cut_a_run_is_not_a_difference_when_it_continues(call: Call) -> None:
    smoke = ("smoke", "--run-id", "r-1", "--steps", "30")
    call(*smoke)
    assert state().declared.config["max_iters"] == 20
    for again in (smoke, ("smoke", "--run-id", "r-1"), ("run", "--run-id", "r-1")):
        assert call(*again).exit_code != 2
    assert call("run", "--run-id", "r-1", "--steps", "30").exit_code == 2


def test_code_that_changed_since_a_run_was_declared_is_not_taken_in_silence(
    project: Path, call: Call
) -> None:
    call("run", "--run-id", "r-1")
    assert "--code" not in call("run", "--run-id", "r-1").stderr
    (project / "model.py").write_text("a = 2\n")
    assert "tracks retry r-1 --code" in call("run", "--run-id", "r-1").stderr
    (project / "other.py").write_text("")
    refused = call("run", "--run-id", "r-1", "--trainer", "other.py")
    assert (refused.exit_code, "cannot be declared with code = " in refused.stderr) == (2, True)


def test_a_script_alone_that_imports_a_file_beside_it_is_refused_with_the_cure(
    project: Path, call: Call
) -> None:
    (project / "alone.py").write_text("import json\nimport torch\nfrom models.net import Net\n")
    assert call("run", "--trainer", "alone.py", "--run-id", "r-1", "--intent", "try").exit_code != 2
    (project / "models").mkdir()
    (project / "models" / "net.py").write_text("Net = 1\n")
    for name, beside in (("train.py", "model.py"), ("alone.py", "models")):
        result = call("run", "--trainer", name, "--run-id", "r-2", "--intent", "try")
        assert result.exit_code == 2
        assert f"{name} imports {beside} beside it" in result.stderr
        assert "tracks init" in result.stderr

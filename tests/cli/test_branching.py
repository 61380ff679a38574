"""`tracks run --from RUN@STEP` and `tracks retry --allow-environment-change`, called as by a person."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Call, files_of
from tests.examples import EXAMPLES, example_config
from tests.histories import DatasetHistory, History
from tracks_dagster.cli.start import run as run_command
from tracks_dagster.cli.start.follow import Followed
from tracks_dagster.reading import open_tracks_to_read
from tracks_dagster.settings import Settings
from tracks_dagster.track.bodies import (
    CheckpointCadence,
    ComputeRequest,
    Program,
    RetentionRule,
    SnapshotRef,
)
from tracks_dagster.track.records import Kind, sha256_hex
from tracks_dagster.track.track import code_key
from tracks_dagster.wiring import build

CONFIG = example_config({"steps": 40, "seed": 11}, ranks=2)


@pytest.fixture
def source(home: Path) -> History:
    """A run of the example gpt in that home that committed steps 10, quarantined since, and 20."""
    app = build(Settings.from_environment())
    heldout = DatasetHistory("aws-docs-heldout").declare().commit()
    data = DatasetHistory("aws-docs").declare().commit()
    snapshot = SnapshotRef(dataset="aws-docs", snapshot_id=data.state.snapshots[0].body.snapshot_id)
    history = History("r-0").declare(
        config=CONFIG,
        trainer=code_key("r-0", sha256_hex(b"a tar")),
        program=Program(entry=("train.py",)),
        snapshot=snapshot,
        cadence=CheckpointCadence(every_steps=25, every_s=600.0),
        retention=RetentionRule(keep_last=7, milestone_every_steps=100),
        compute=ComputeRequest(ranks=2, device_class="h200"),
        stage="canary",
    )
    app.store.put(code_key("r-0", sha256_hex(b"a tar")), b"a tar")
    history.open().place().restore().commit(10).commit(20)
    history.decide_checkpoint(Kind.CHECKPOINT_QUARANTINED, history.state.checkpoints[0].ref)
    for track in (heldout, data, history.end("preempted", last_step=23)):
        track.write_to(app.store)
    app.projector.scan()
    return history


RUN = ("run", "--intent", "Go on with less.")


@pytest.fixture
def unfollowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `tracks run` declare, and neither start a daemon nor wait."""
    followed = Followed(state="waiting", is_drained=False, waited_for=None)
    monkeypatch.setattr(run_command, "drive", lambda *_, **__: followed)
    monkeypatch.setattr(
        run_command,
        "read_outcome",
        lambda tracks, run_id, *_, **__: {"run_id": run_id, "attempts": [], "final": None},
    )


@pytest.mark.usefixtures("unfollowed", "source")
def test_a_branch_of_a_checkpoint_at_which_training_was_cut_off_says_so(call: Call) -> None:
    made = call(*RUN, "--run-id", "b-1", "--from", "r-0@20", "--steps", "60", "--json")
    words = "r-0@20: Training was cut off: attempt 1 ended after step 23 as preempted."
    assert words in made.stderr.splitlines()
    assert "cut off" not in made.stdout


@pytest.mark.usefixtures("unfollowed")
def test_a_branch_takes_over_what_is_not_given(source: History, call: Call) -> None:
    call(*RUN, "--run-id", "b-1", "--from", "r-0@20", "--steps", "60", "--set", "lr=0.001")
    tracks = open_tracks_to_read(Settings.from_environment())
    declared = tracks.run("b-1").declared
    assert declared.branched_from == source.state.checkpoints[1].ref
    assert declared.config == {**CONFIG, "steps": 60, "lr": 0.001}
    assert declared.compute == ComputeRequest(ranks=2, device_class="h200")
    assert declared.cadence == CheckpointCadence(every_steps=25, every_s=600.0)
    assert declared.retention == RetentionRule(keep_last=7, milestone_every_steps=100)
    assert declared.stage == "canary"
    assert declared.intent == "Go on with less."
    assert tracks.run("r-0").checkpoints[1].pins == {"branch:b-1"}
    shown = call("status", "b-1")
    assert "a branch of r-0@20" in shown.stdout
    assert "a branch of r-0@20" in call("status").stdout


@pytest.mark.usefixtures("unfollowed", "source")
def test_what_is_given_on_the_command_line_stands_a_default_s_value_too(call: Call) -> None:
    options = ("--checkpoint-every", "10", "--keep-last", "3", "--keep-every", "50", "--ranks", "1")
    call(*RUN, "--run-id", "b-1", "--from", "r-0@20", "--stage", "smoke", *options)
    declared = open_tracks_to_read(Settings.from_environment()).run("b-1").declared
    assert declared.cadence == CheckpointCadence(every_steps=10, every_s=600.0)
    assert declared.retention == RetentionRule(keep_last=3, milestone_every_steps=50)
    assert declared.compute == ComputeRequest(ranks=1, device_class="h200")
    assert declared.stage == "smoke"


@pytest.mark.usefixtures("unfollowed", "source")
@pytest.mark.parametrize(
    ("options", "cadence"),
    [
        ((), CheckpointCadence(every_steps=10)),
        (("--checkpoint-every-s", "90"), CheckpointCadence(every_s=90.0)),
        (
            ("--checkpoint-every-s", "90", "--checkpoint-every", "20"),
            CheckpointCadence(every_steps=20, every_s=90.0),
        ),
        (("--from", "r-0@20", "--checkpoint-every", "off"), CheckpointCadence(every_s=600.0)),
        (
            ("--from", "r-0@20", "--checkpoint-every-s", "90"),
            CheckpointCadence(every_steps=25, every_s=90.0),
        ),
    ],
)
def test_checkpoints_are_saved_by_steps_by_seconds_or_by_both(
    options: tuple[str, ...], cadence: CheckpointCadence, call: Call
) -> None:
    call(*RUN, "--run-id", "b-1", *options)
    declared = open_tracks_to_read(Settings.from_environment()).run("b-1").declared
    assert declared.cadence == cadence


@pytest.mark.usefixtures("unfollowed", "source")
def test_only_a_policy_lets_a_run_train_without_periodic_checkpoints(
    call: Call, home: Path
) -> None:
    (home / "policy.yaml").write_text("limits: {checkpoints_may_be_off: true}\n")
    call(*RUN, "--run-id", "b-1", "--checkpoint-every", "off")
    declared = open_tracks_to_read(Settings.from_environment()).run("b-1").declared
    assert declared.cadence == CheckpointCadence()


@pytest.mark.usefixtures("unfollowed", "source")
def test_the_best_checkpoints_are_kept_by_the_metric_that_is_named(
    call: Call, tmp_path: Path
) -> None:
    script = tmp_path / "trainer.py"
    script.write_text("pass\n")
    best = ("--best-metric", "accuracy", "--best-direction", "max", "--keep-best", "2")
    call(*RUN, "--run-id", "b-1", "--trainer", str(script), *best)
    declared = open_tracks_to_read(Settings.from_environment()).run("b-1").declared
    assert declared.retention == RetentionRule(keep_best=2, metric="accuracy", direction="max")


@pytest.mark.usefixtures("unfollowed")
def test_of_two_attempts_that_committed_the_step_one_can_be_chosen(
    source: History, call: Call
) -> None:
    source.open(resume=None).place().restore().commit(20).end("preempted", last_step=23)
    source.write_to(build(Settings.from_environment()).store)
    first, second = (c.ref for c in source.state.checkpoints if c.ref.step == 20)
    call(*RUN, "--run-id", "b-1", "--from", "r-0@20", "--from-attempt", "1")
    call(*RUN, "--run-id", "b-2", "--from", "r-0@20")
    tracks = open_tracks_to_read(Settings.from_environment())
    assert tracks.run("b-1").declared.branched_from == first
    assert tracks.run("b-2").declared.branched_from == second


@pytest.mark.usefixtures("unfollowed")
def test_the_same_command_again_takes_the_branch_up(source: History, call: Call) -> None:
    command = (*RUN, "--run-id", "b-1", "--from", "r-0@20")
    call(*command)
    assert call(*command).exit_code == 1  # it waits: bad news, not wrong use
    tracks = open_tracks_to_read(Settings.from_environment())
    assert len(tracks.records("runs/b-1")) == 2
    assert len(tracks.records("runs/r-0")) == len(source.records) + 1


BAD_INPUT = {
    "no step": (("--from", "r-0"), "RUN@STEP"),
    "a step that was not committed": (("--from", "r-0@15"), "20 (attempt 1)"),
    "a quarantined step": (("--from", "r-0@10"), "no checkpoint of step 10"),
    "an attempt that has no such step": (
        ("--from", "r-0@20", "--from-attempt", "2"),
        "20 (attempt 1)",
    ),
    "an attempt of nothing": (("--from-attempt", "1"), "give --from too"),
    "both kinds of data": (
        ("--from", "r-0@20", "--snapshot", "f" * 64, "--data", "/no/such.csv"),
        "both name the data",
    ),
    "an unknown run": (("--from", "r-9@20"), "no training run 'r-9'"),
    "another project": (
        ("--from", "r-0@20", "--project", str(EXAMPLES / "tabular")),
        "name no project, or a folder of yours",
    ),
    "no steps left": (("--from", "r-0@20", "--steps", "20"), "--steps 21 or more"),
    "no ranks": (("--from", "r-0@20", "--ranks", "0"), "1 to"),
    "an unknown snapshot": (("--from", "r-0@20", "--snapshot", "f" * 64), "no snapshot"),
    "data of another kind": (("--from", "r-0@20", "--data", "/no/such.csv"), "/no/such.csv"),
    "a run that is not a branch": (("--from", "r-0@20", "--run-id", "r-0"), "is not a branch"),
}


@pytest.mark.parametrize("name", BAD_INPUT)
def test_a_branch_that_cannot_be_changes_nothing(
    name: str, source: History, call: Call, home: Path
) -> None:
    arguments, hint = BAD_INPUT[name]
    before = files_of(home)
    refused = call(*RUN, *arguments)
    assert refused.exit_code == 2
    assert hint in refused.stderr
    assert "Traceback" not in refused.stderr
    assert files_of(home) == before


def test_a_branch_in_an_empty_home_is_wrong_use(call: Call, home: Path) -> None:
    refused = call(*RUN, "--from", "r-0@20")
    assert refused.exit_code == 2
    assert not home.exists()


@pytest.mark.parametrize("flag", [(), ("--allow-environment-change",)])
def test_a_retry_says_whether_other_libraries_will_do(
    flag: tuple[str, ...], source: History, call: Call
) -> None:
    assert call("retry", "r-0", "--why", "upgraded", *flag).exit_code == 0
    opened = open_tracks_to_read(Settings.from_environment()).run("r-0").attempts[-1].opened
    assert opened.allows_environment_change is bool(flag)
    assert opened.resume == source.state.checkpoints[1].ref

"""`tracks conform`, with a stand-in for the trials: what is tried, what is kept, how it ends."""

from __future__ import annotations

import json
import os
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Call
from tracks_dagster.projects.effects.certificates import certificates
from tracks_dagster.settings import Settings
from tracks_dagster.track.states.dataset_state import DatasetState
from tracks_dagster.wings.lab.conformance.defects import Finding
from tracks_dagster.wings.lab.conformance.effects.conforming import Plan, Trials
from tracks_dagster.wings.lab.conformance.report import Conformance, Judged
from tracks_dagster.wings.lab.conformance.seen import AttemptSeen, Kind, Trial, TrialSeen
from tracks_dagster.wings.lab.edge import conform as conform_module
from tracks_dagster.wiring import build

PROJECT = """\
version: 1
name: mine
entry: train.py
config: {steps: 1000, global_batch: 48, micro_batch: 4, loader_workers: 8}
ranks: 3
"""
KILLED = Trial(kind=Kind.SIGKILL, step=5)
FOUND = Finding(name="data_reset", detail="step 5 had the samples of step 1", trial=KILLED)


class Asked:
    """What the trials were asked for, and what they answer."""

    def __init__(self) -> None:
        self.plan: Plan | None = None
        self.trials: Trials | None = None
        self.findings: tuple[Finding, ...] = ()
        self.data: DatasetState | None = None
        self.signal: int | None = None

    def __call__(
        self, trials: Trials, plan: Plan, *, progress: Callable[..., None], **named: Any
    ) -> Conformance:
        self.plan, self.trials = plan, trials
        self.data = trials.world.tracks.find_dataset("flights")
        if self.signal is not None:
            os.kill(os.getpid(), self.signal)
        seen = TrialSeen(trial=KILLED, attempts=(AttemptSeen(),) * 2, seconds=1.5)
        judged = Judged(seen=seen, findings=self.findings)
        progress(judged, 1, 1)
        return Conformance(
            trials=(judged,), left_out=(), notes=(), tolerance=0.0, seconds=1.5, **named
        )


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    """Stands in for the trials."""
    stand_in = Asked()
    monkeypatch.setattr(conform_module, "conform", stand_in)
    return stand_in


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project's folder, which is the current one."""
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "tracks.yaml").write_text(PROJECT)
    (folder / "train.py").write_text("")
    monkeypatch.chdir(folder)
    return folder


def test_a_project_is_tried_in_its_shapes_and_gets_a_certificate(
    call: Call, asked: Asked, project: Path, home: Path
) -> None:
    shown = call("conform", "--json", "--set", "micro_batch=2")
    assert shown.exit_code == 0, shown.stderr
    assert shown.stderr == "1/1 SIGKILL after step 5 (1 rank): no finding (1.5 s)\n"
    assert asked.plan is not None
    assert asked.plan.shapes == [(1, 0), (1, 2), (3, 0)]
    assert asked.plan.has_faults
    assert asked.trials is not None
    assert asked.trials.prepared.body.config == {"steps": 12, "micro_batch": 2}
    assert asked.trials.prepared.body.cadence.every_steps == 4
    assert asked.trials.home != home
    answer = json.loads(shown.stdout)
    assert answer["green"]
    report = Path(answer["report"])
    assert report.parent == home / "conform"
    assert report.read_text().startswith("mine: no finding in 1 trial")
    stored = json.loads(report.with_suffix(".json").read_text())
    assert stored == {name: each for name, each in answer.items() if name != "report"}
    app = build(Settings.from_environment({"TRACKS_HOME": str(home)}))
    (kept,) = certificates(app.ledger, answer["code_sha256"])
    assert (kept["what"], kept["passed_count"], kept["failed_count"]) == ("conform", 1, 0)
    assert kept["is_green"]


def test_a_finding_is_reported_with_its_cure_and_ends_with_1(
    call: Call, asked: Asked, project: Path, home: Path
) -> None:
    asked.findings = (FOUND,)
    shown = call("conform", str(project), "--ranks", "1", "--steps", "30")
    assert shown.exit_code == 1
    assert shown.stderr == "1/1 SIGKILL after step 5 (1 rank): data_reset (1.5 s)\n"
    assert "  what: begins its data again after a resume" in shown.stdout.splitlines()
    assert asked.plan is not None
    assert asked.plan.shapes == [(1, 0), (1, 2)]
    app = build(Settings.from_environment({"TRACKS_HOME": str(home)}))
    (row,) = app.ledger.query("select * from certificates", {})
    assert row["failed_count"] == 1
    assert not row["is_green"]
    assert row["scope"] == "tracks conform --steps=30"


def test_the_certificate_says_what_was_asked_for(call: Call, asked: Asked, project: Path) -> None:
    refused = call("conform", "--tolerance", "0.5")
    assert refused.exit_code == 2
    assert "use 0 (to the bit) to 0.1" in refused.stderr
    assert call("conform", "--tolerance", "1e-6", "--set", "micro_batch=2").exit_code == 0
    app = build(Settings.from_environment())
    (row,) = app.ledger.query("select * from certificates", {})
    assert row["scope"] == "tracks conform --steps=12 --set=micro_batch=2 --tolerance=1e-06"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_with_nothing_left_behind(
    call: Call,
    asked: Asked,
    project: Path,
    number: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked.signal = number
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = signal.signal(number, signal.SIG_DFL)  # a worker of the suite may have one of its own
    try:
        ended = call("conform")
        assert signal.getsignal(number) is signal.SIG_DFL
    finally:
        signal.signal(number, before)
    assert ended.exit_code == 128 + number
    assert "what was tried so far is not recorded" in ended.stderr
    assert asked.trials is not None  # it had begun
    assert list(tmp_path.glob("tracks-conform-*")) == []
    app = build(Settings.from_environment())
    assert app.ledger.query("select * from certificates", {}) == []


def test_the_data_that_ships_is_brought_and_other_data_has_to_be_there(
    call: Call, asked: Asked, project: Path
) -> None:
    (project / "tracks.yaml").write_text(f"{PROJECT}dataset: own\n")
    refused = call("conform")
    assert refused.exit_code == 2
    assert "`tracks snapshots add own PATH`" in refused.stderr
    (project / "tracks.yaml").write_text(f"{PROJECT}dataset: flights\n")
    assert call("conform").exit_code == 0
    assert asked.data is not None
    assert len(asked.data.snapshots) == 1


def test_a_command_that_is_not_python_is_played_no_exception(
    call: Call, asked: Asked, project: Path
) -> None:
    (project / "train.sh").write_text("")
    (project / "tracks.yaml").write_text(
        'version: 1\nname: mine\nentry: ["./train.sh", "{last}"]\ncheckpoint: {kind: folder}\n'
        "config: {last: 9}\n"
    )
    shown = call("conform")
    assert shown.exit_code == 0, shown.stderr
    assert asked.plan is not None
    assert (asked.plan.shapes, asked.plan.has_faults) == ([(1, None)], False)
    assert asked.trials is not None
    assert asked.trials.prepared.body.config == {}  # no key has its steps
    assert asked.trials.prepared.body.cadence.every_steps is None

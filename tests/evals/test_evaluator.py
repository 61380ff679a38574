"""An evaluator is a process: how it ends is reported, with its last words and without secrets."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from tracks_dagster.evals.effects import evaluator as local_evaluator
from tracks_dagster.evals.effects.evaluator import LocalEvaluator
from tracks_dagster.evals.ports import EvalSpec
from tracks_dagster.processes.process import find_process
from tracks_dagster.track.bodies import Program, SnapshotRef
from tracks_dagster.track.states.checkpoints import CheckpointRef
from tracks_dagster.track.text.redact import redact

SPEC = EvalSpec(
    store_url="/a/store",
    run_id="r-1",
    checkpoint=CheckpointRef("r-1", 1, 40, "runs/r-1/attempts/1/l/step-40/", "0" * 64),
    config={},
    family="gpt",
    snapshot=SnapshotRef(dataset="aws-docs-heldout", snapshot_id="0" * 64),
    suite="heldout-loss",
    suite_version="1",
    seed=0,
    result_key="runs/r-1/evals/heldout-loss@40/1/result.json",
)


@pytest.fixture
def plays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> partial[None]:
    """Write what is run in the evaluator's place."""

    def write(script: str) -> None:
        (tmp_path / "played_evaluator.py").write_text(script)

    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(local_evaluator, "EVALUATOR", "played_evaluator")
    return partial(write)


def test_an_evaluator_that_ends_well_found_its_spec(plays: partial[None], tmp_path: Path) -> None:
    plays(
        "import json, sys\n"
        "spec = json.load(open(sys.argv[1]))\n"
        "assert spec['checkpoint']['step'] == 40 and spec['suite'] == 'heldout-loss'"
    )
    outcome = LocalEvaluator(tmp_path / "work").run(SPEC)
    assert outcome.succeeded
    assert outcome.started_at < outcome.finished_at
    assert list((tmp_path / "work").iterdir()) == []


def test_a_failure_is_reported_in_its_last_lines_without_secrets(
    plays: partial[None], tmp_path: Path
) -> None:
    plays("raise ValueError('cannot read s3://key:hunter22@bucket')")
    outcome = LocalEvaluator(tmp_path / "work", clean=redact).run(SPEC)
    assert outcome.exit_code == 1
    last = outcome.message.splitlines()[-1]
    assert last == "ValueError: cannot read s3://key:[hidden]@bucket"


def test_a_signal_and_a_time_limit_are_not_exit_codes(plays: partial[None], tmp_path: Path) -> None:
    plays("import os; os.kill(os.getpid(), 9)")
    outcome = LocalEvaluator(tmp_path / "work").run(SPEC)
    assert (outcome.exit_code, outcome.message) == (None, "ended by signal 9")
    plays("import time; time.sleep(600)")
    spec = replace(SPEC, timeout_s=0.5, program=Program(entry=("evaluate.py",)))
    outcome = LocalEvaluator(tmp_path / "work").run(spec)
    assert outcome.exit_code is None
    assert outcome.message == (
        "ended after its time limit of 0.5 s; timeout: of the eval in tracks.yaml sets it"
    )


def test_an_evaluator_gets_no_database_and_no_dagster(
    plays: partial[None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("TRACKS_POSTGRES_URL", "PGPASSWORD", "DAGSTER_HOME"):
        monkeypatch.setenv(name, "secret")
    plays("import os\nassert 'secret' not in os.environ.values()")
    assert LocalEvaluator(tmp_path / "work").run(SPEC).succeeded


def test_a_projects_file_is_imported_by_the_evals_own_interpreter(
    plays: partial[None], tmp_path: Path
) -> None:
    marker = tmp_path / "ran"
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\necho "$@" > {marker}\n')
    python.chmod(0o755)
    for entry, is_own in ((("evaluate.py",), True), (("./score.sh", "{data}"), False)):
        marker.unlink(missing_ok=True)
        plays("")
        spec = replace(SPEC, program=Program(entry=entry, python=str(python)))
        assert LocalEvaluator(tmp_path / "work").run(spec).succeeded
        assert marker.exists() is is_own


def test_what_an_eval_started_ends_with_it(plays: partial[None], tmp_path: Path) -> None:
    plays(
        "import subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"open({str(tmp_path / 'pid')!r}, 'w').write(str(child.pid))\n"
    )
    assert LocalEvaluator(tmp_path / "work").run(SPEC).succeeded
    pid = int((tmp_path / "pid").read_text())
    give_up_at = time.monotonic() + 60  # a killed process goes when the system comes to it
    while (process := find_process(pid)) is not None and process.lives:
        assert time.monotonic() < give_up_at
        time.sleep(0.05)


LEFT = """
import json, os, subprocess, sys, time
from pathlib import Path
from tests.evals.test_evaluator import SPEC
from tracks_dagster.evals.effects import evaluator
evaluator.EVALUATOR = "played_evaluator"
own = evaluator.LocalEvaluator(Path(sys.argv[1]))
with own.alone(SPEC.result_key):
    own.run(SPEC)
"""


def test_what_a_killed_run_worker_left_is_ended_and_no_living_one_is_touched(
    plays: partial[None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its devices are given to others once its end is recorded."""
    plays(
        "import os, time\n"
        f"open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()) + '.')\n"
        "time.sleep(600)"
    )
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{Path(__file__).parents[2]}")
    work = tmp_path / "work"
    worker = subprocess.Popen([sys.executable, "-c", LEFT, str(work)])
    try:
        wait_for(lambda: (tmp_path / "pid").exists() and "." in (tmp_path / "pid").read_text())
        wait_for(lambda: any(work.glob("*/eval.pid")))
        pid = int((tmp_path / "pid").read_text().rstrip("."))
        evaluator = LocalEvaluator(work)
        with evaluator.alone(SPEC.result_key) as is_alone:
            assert not is_alone
        assert find_process(pid) is not None
    finally:
        worker.kill()
        worker.wait()
    assert find_process(pid) is not None  # nobody has ended it
    with evaluator.alone(SPEC.result_key) as is_alone:
        assert is_alone
        assert find_process(pid) is None
    assert list(work.iterdir()) == []


def wait_for(holds: Callable[[], bool]) -> None:
    give_up_at = time.monotonic() + 120
    while not holds():
        assert time.monotonic() < give_up_at
        time.sleep(0.05)

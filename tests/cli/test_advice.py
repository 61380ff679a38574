"""Every command that an advice gives works: a refused run is retried by just that command."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cli.conftest import Call
from tests.examples import example_config
from tests.histories import DatasetHistory, History
from tests.wings.kubernetes.double.furniture import cluster_file
from tracks_dagster.retry.decision import ADVICE, Advice, what_to_do
from tracks_dagster.settings import Settings
from tracks_dagster.track.bodies import ComputeRequest, SnapshotRef
from tracks_dagster.track.reasons import TerminationReason
from tracks_dagster.wiring import build

GIVEN = {"steps": 40, "micro_batch": 4, "loader_workers": 2}
CONFIG = example_config(GIVEN, ranks=2)
SMALLEST = example_config({**GIVEN, "micro_batch": 1, "loader_workers": 0}, ranks=2)
POD = ComputeRequest(launcher="kubernetes", ranks=2, device_class="cpu", memory_bytes=2**31)
HERE = ComputeRequest(ranks=2)
COMMANDS_MAX = 4  # of one advice

CASES: Mapping[str, tuple[ComputeRequest, Mapping[str, object], bool]] = {
    "local": (HERE, CONFIG, False),
    "local, nothing left": (HERE, SMALLEST, False),
    "on a cluster": (POD, CONFIG, False),
    "on a cluster, nothing left": (POD, SMALLEST, False),
    "on a cluster, memory by its settings": (replace(POD, memory_bytes=None), CONFIG, False),
    "a script": (HERE, CONFIG, True),
}


@pytest.fixture
def cluster(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings of a cluster whose pods see the store."""
    monkeypatch.setenv("TRACKS_KUBERNETES", str(cluster_file(tmp_path, mount=home)))


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize("case", CASES)
def test_every_command_of_an_advice_opens_the_next_attempt(
    case: str, tmp_path: Path, call: Call
) -> None:
    compute, config, is_script = CASES[case]
    app = build(Settings.from_environment())
    data = DatasetHistory("aws-docs").declare().commit().commit()
    data.write_to(app.store)
    old, new = (each.body.snapshot_id for each in data.state.snapshots)
    snapshot = SnapshotRef(dataset="aws-docs", snapshot_id=old)
    script = tmp_path / "train.py"
    script.write_bytes(b"print(2)\n")
    words = {"…": "because", "KEY=VALUE": "lr=0.0005", "CLASS": "a100", "SIZE": "4GiB"}
    words |= {"FILE.py": str(script), "SNAPSHOT": new}
    for reason in _reasons(case):
        for number in range(COMMANDS_MAX):  # each command on a run of its own
            run_id = f"r-{reason.value.replace('_', '-')}-{number}"
            trainer = f"runs/{run_id}/trainer/first.py" if is_script else "family"
            history = History(run_id).declare(
                config=config, compute=compute, snapshot=snapshot, trainer=trainer
            )
            history.open().place(environment={"code_sha256": "another"}).restore()
            history.end(reason.value, last_step=None).refuse().write_to(app.store)
            result = what_to_do(history.state, history.state.attempts[-1])
            commands = re.findall(r"`tracks ([^`]+)`", result)
            assert any(command.startswith("retry") for command in commands), result
            if number == len(commands):
                break
            command = commands[number]
            for placeholder, word in words.items():
                command = command.replace(placeholder, word)
            done = call(*shlex.split(command))
            assert done.exit_code == 0, (result, done.output)
            opened = len(app.tracks.run(run_id).attempts) == 2
            assert opened == command.startswith("retry")


def _reasons(case: str) -> list[TerminationReason]:
    """Return the rows to try: those that say the same everywhere are tried once."""
    everywhere = [reason for reason, row in ADVICE.items() if isinstance(row, Advice)]
    if case == "local":
        return [*ADVICE, TerminationReason.HANG]
    return [reason for reason in ADVICE if reason not in everywhere]

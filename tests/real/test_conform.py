"""`tracks conform` on trainers that are wrong in one way each, and on some that are right.

Real gangs of real processes, forked from one that has imported torch. A bad trainer is interrupted at
one step, a good one at all.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.examples import EXAMPLES
from tracks_dagster.attempts.effects.local.project_code import read_project_code
from tracks_dagster.data.effects.snapshots import make_snapshot
from tracks_dagster.retry.default_policy import DEFAULT_POLICY
from tracks_dagster.settings import Settings
from tracks_dagster.track.records import sha256_hex
from tracks_dagster.wings.lab.conformance.effects import conforming
from tracks_dagster.wings.lab.conformance.effects.conforming import (
    STEPS_MAX,
    Plan,
    Trials,
    conform,
    prepared_of,
)
from tracks_dagster.wings.lab.conformance.report import Conformance, Judged
from tracks_dagster.wings.lab.conformance.seen import Kind
from tracks_dagster.wiring import build

TRAINERS = Path(__file__).resolve().parents[1] / "review" / "conform"
STEPS = 12
LIMIT_S = 3000.0  # a busy machine must change nothing
GRACE_S = 600.0
PLAIN = "config: {steps: 12, global_batch: 8, micro_batch: 4, loader_workers: 0, fault: FAULT}\n"
PROJECTS = {
    "plain.py": f"entry: train.py\n{PLAIN}",
    "folder.py": "entry: train.py\nconfig: {steps: 12, fault: FAULT}\n",
    "command.sh": (
        'entry: ["./train.sh", "{steps}", "{fault}"]\ncheckpoint: {kind: folder}\n'
        "config: {steps: 12, fault: FAULT}\n"
    ),
    "epochs.py": 'entry: ["train.py", "{steps}"]\ncheckpoint: {kind: folder}\nconfig: {steps: 12}\n',
    "steps.py": 'entry: ["train.py", "{steps}"]\ncheckpoint: {kind: folder}\nconfig: {steps: 12}\n',
}
# Each defect, on how many ranks, and what it is called. The last two stand as people write them.
BAD: list[tuple[str, str, int, set[str]]] = [
    ("plain.py", "order", 1, {"data_reset"}),
    ("plain.py", "sigterm", 1, {"sigterm_swallowed"}),
    ("plain.py", "nan", 1, {"nan_hidden"}),
    ("plain.py", "except", 1, {"error_hidden"}),
    ("plain.py", "ranks", 2, {"every_rank_writes"}),
    ("plain.py", "draws", 1, {"draws_after_report"}),
    ("plain.py", "attribute", 1, {"attribute_not_restored"}),
    ("plain.py", "buffer", 1, {"buffer_not_persistent"}),
    ("plain.py", "unregistered", 1, {"optimizer_not_registered"}),
    ("plain.py", "stuck", 1, {"loader_made_anew"}),
    ("folder.py", "optimizer", 1, {"optimizer_not_restored"}),
    ("folder.py", "scheduler", 1, {"scheduler_not_restored"}),
    ("folder.py", "scaler", 1, {"scaler_not_restored"}),
    ("folder.py", "ema", 1, {"ema_not_restored"}),
    ("folder.py", "rng", 1, {"rng_not_restored"}),
    ("folder.py", "skipped", 1, {"data_skipped"}),
    ("folder.py", "again", 1, {"retrains_last_step"}),
    ("folder.py", "ignored", 1, {"not_resumed"}),
    ("command.sh", "half", 1, {"half_write_visible"}),
    (
        "epochs.py",
        "",
        1,
        {
            "retrains_last_step",
            "optimizer_not_restored",
            "rng_not_restored",
            "half_write_visible",
            "sigterm_unsaved",
        },
    ),
    (
        "steps.py",
        "",
        1,
        {
            "loader_made_anew",
            "scheduler_not_restored",
            "rng_not_restored",
            "half_write_visible",
            "error_hidden",
            "sigterm_unsaved",
        },
    ),
]
pytestmark = pytest.mark.timeout(LIMIT_S)  # of seconds, most of them waited for on a busy machine
QUICK = ("order", "optimizer", "half")  # of the bad ones: in `--ci`, the others in `--full`


@pytest.fixture(scope="module")
def sockets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where the warm parents of all trials listen."""
    folder = tmp_path_factory.mktemp("warm")
    yield folder / "warm"
    shutil.rmtree(folder)  # ends them


def write_project(folder: Path, name: str, fault: str) -> Path:
    folder.mkdir()
    suffix = Path(name).suffix
    shutil.copy(TRAINERS / name, folder / f"train{suffix}")
    (folder / f"train{suffix}").chmod(0o755)
    keys = PROJECTS[name].replace("FAULT", fault)
    (folder / "tracks.yaml").write_text(f"version: 1\nname: mine\n{keys}")
    return folder


def certify(
    project: Path, home: Path, sockets: Path, *, ranks: tuple[int, ...] = (1,), **plan: object
) -> Conformance:
    """Return what the trials of a project show."""
    os.environ.pop("PYTEST_CURRENT_TEST", None)  # the warm parents fork for one environment
    settings = Settings.from_environment({"TRACKS_HOME": str(home), "TRACKS_SOCKETS": str(sockets)})
    app = build(settings)
    found = read_project_code(project, store_url=app.store.url, clean=app.redact)
    if found.project.dataset is not None:
        make_snapshot(app.tracks, app.datasets, found.project.dataset)
    prepared = prepared_of(found, {}, steps=STEPS, owner="tests")
    trials = Trials(
        world=app.world(DEFAULT_POLICY), home=settings.home, prepared=prepared, grace_s=GRACE_S
    )
    given = {"workers": (None,), "has_faults": True, "tolerance": 0.0, **plan}
    return conform(
        trials,
        Plan(ranks=ranks, time_limit_s=LIMIT_S, **given),
        project="mine",
        code_sha256=sha256_hex(found.archive),
        progress=show,
    )


def show(judged: Judged, number: int, planned: int) -> None:
    print(f"{number}/{planned} {judged.seen.trial} {judged.seen.seconds:.1f} s")
    for each in judged.findings:
        print(f"    {each.name}: {each.detail}")
    if judged.findings:
        print(judged.seen.last.words[-500:])


@pytest.mark.drawn(5)
@pytest.mark.parametrize(
    ("name", "fault", "ranks", "expected"),
    [
        pytest.param(
            *each, marks=() if each[1] in QUICK else pytest.mark.full, id=f"{each[0]}-{each[1]}"
        )
        for each in BAD
    ],
)
def test_the_defect_is_named_and_nothing_else(
    name: str, fault: str, ranks: int, expected: set[str], tmp_path: Path, sockets: Path
) -> None:
    project = write_project(tmp_path / "project", name, fault)
    has_faults = not name.endswith(".sh")
    done = certify(
        project, tmp_path / "home", sockets, ranks=(ranks,), has_faults=has_faults, steps_max=1
    )
    assert set(done.findings) == expected
    assert not done.is_green


@pytest.mark.full
def test_a_trainer_that_hangs_after_a_resume_is_named_long_before_the_time_limit(
    tmp_path: Path, sockets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conforming, "HANG_S_MIN", 20.0)
    project = write_project(tmp_path / "project", "folder.py", "hang")
    done = certify(project, tmp_path / "home", sockets, steps_max=1)
    (found,) = done.findings.values()
    assert {each.name for each in found} == {"resume_fails"}
    assert {Kind.SIGKILL, Kind.SIGTERM} <= {each.trial.kind for each in found}
    # The same bound after both: what resumes gets no grace of SIGTERM.
    (said,) = {each.detail.partition(": ")[2] for each in found}
    assert "it did not end within" in said
    assert done.left_out == ()


@pytest.mark.drawn(2)
@pytest.mark.parametrize(
    ("name", "ranks", "workers", "steps_max"),
    [
        ("plain.py", 1, (0, 2), 1),
        pytest.param("plain.py", 1, (0, 2), STEPS_MAX, marks=pytest.mark.full),
        pytest.param("plain.py", 2, (None,), STEPS_MAX, marks=pytest.mark.full),
        pytest.param("folder.py", 1, (None,), STEPS_MAX, marks=pytest.mark.full),
        pytest.param("command.sh", 1, (None,), STEPS_MAX, marks=pytest.mark.full),
    ],
)
def test_a_trainer_that_keeps_everything_passes(
    name: str,
    ranks: int,
    workers: tuple[int | None, ...],
    steps_max: int,
    tmp_path: Path,
    sockets: Path,
) -> None:
    project = write_project(tmp_path / "project", name, "none")
    done = certify(
        project,
        tmp_path / "home",
        sockets,
        ranks=(ranks,),
        workers=workers,
        has_faults=not name.endswith(".sh"),
        steps_max=steps_max,
    )
    assert done.findings == {}
    assert done.is_green, (done.left_out, done.notes)
    interrupted = [each.seen for each in done.trials if len(each.seen.attempts) > 1]
    # A folder's script and a shell's tell of no loader, so of no end of an epoch: two points less.
    points = steps_max if name == "plain.py" else min(steps_max, 4)
    assert len(interrupted) >= 2 * points
    assert max(seen.last.resumed for seen in interrupted) >= 4
    assert {each.last.last_step for each in interrupted} == {STEPS}


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "module"), [("huggingface", "transformers"), ("lightning", "lightning")]
)
def test_the_examples_of_frameworks_pass(
    name: str, module: str, tmp_path: Path, sockets: Path
) -> None:
    if find_spec(module) is None:
        pytest.skip(f"{module} is not installed; `./run test --full` installs it")
    project = EXAMPLES / "frameworks" / name
    done = certify(project, tmp_path / "home", sockets)
    assert done.findings == {}
    assert done.is_green, (done.left_out, done.notes)

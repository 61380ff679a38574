"""A store and a ledger that older versions wrote are read and gone on with.

`tests/history/home_before_rooms.tar.gz` was made by `tracks run` at commit af14e52: one run of a small
script of its own, preempted once, ended twice by a person, its third attempt killed after step 87
of 96. `ledger_0008.db.gz` is its ledger, of the last version that had migrations.

`tests/history/family_run.tar.gz` is the store of one run of the last version with model families, a
small GPT: saved at step 5, preempted at step 7 of 12.
"""

from __future__ import annotations

import gzip
import json
import shutil
import tarfile
import time
from pathlib import Path

import pytest

from tests.examples import EXAMPLES
from tests.fakes import FakeOrchestrator
from tests.integration.homes import COMMAND_S_MAX, Home, embedded, outcome
from tracks_dagster.attempts.effects.local.code_archive import pack_folder
from tracks_dagster.attempts.effects.retry import Retries
from tracks_dagster.attempts.effects.supervise import Supervisor
from tracks_dagster.evals.effects.running import Evals, run_eval
from tracks_dagster.ledger.effects.deciding import settle
from tracks_dagster.retry.default_policy import DEFAULT_POLICY
from tracks_dagster.track.names import LOCAL
from tracks_dagster.track.states.run_state import AttemptState
from tracks_dagster.track.track import code_key

DATA = Path(__file__).parents[1] / "history"
RUN_ID = "before"
CONFIG = "config: {steps: 96, seed: 7, pace_s: 0.5, global_batch: 24}\n"


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """A home with the first of these stores and nothing else."""
    return home_of(tmp_path, "home_before_rooms.tar.gz")


def home_of(folder: Path, stored: str) -> Home:
    """Return a home with that store and nothing else."""
    (folder / "home").mkdir(mode=0o700)
    with tarfile.open(DATA / stored) as archive:
        archive.extractall(folder / "home", filter="data")
    return embedded(folder)


def test_a_store_of_an_older_version_is_explained_and_whole(home: Home) -> None:
    assert home.call("reindex").returncode == 0
    explained = json.loads(home.call("explain", f"{RUN_ID}/a01", "--json").stdout)
    assert explained["ended"]["reason"] == "preempted"
    whole = home.call("fsck")
    assert whole.returncode == 0, whole.stdout


@pytest.mark.full
@pytest.mark.timeout(2 * COMMAND_S_MAX)
def test_a_run_of_an_older_version_is_resumed(home: Home) -> None:
    assert home.call("reindex").returncode == 0
    done = outcome(home.start("run", "--run-id", RUN_ID, "--json"))
    assert done["state"] == "succeeded"
    last = home.app.tracks.run(RUN_ID).attempts[-1]
    assert (last.attempt_id, last.reason) == (4, "completed")
    assert last.restored is not None
    assert last.restored.step == 84

    whole = home.call("fsck")
    assert whole.returncode == 0, whole.stdout


def test_a_ledger_of_an_older_version_is_projected_again_by_the_first_that_writes(
    home: Home,
) -> None:
    stored = gzip.decompress((DATA / "ledger_0008.db.gz").read_bytes())
    (home.settings.home / "ledger.db").write_bytes(stored)
    refused = home.call("status")
    assert refused.returncode == 2
    assert "an older version wrote it (schema 0008;" in refused.stderr
    assert "`tracks reindex` rebuilds it" in refused.stderr

    noted = home.call("note", RUN_ID, "It is looked after.")
    assert noted.returncode == 0
    assert "Rebuilt the ledger, from 3 tracks." in noted.stderr
    assert RUN_ID in home.call("status").stdout
    whole = home.call("fsck")
    assert whole.returncode == 0, whole.stdout


def test_a_run_of_a_model_family_goes_on_with_the_code_of_its_example(tmp_path: Path) -> None:
    home, run_id = home_of(tmp_path, "family_run.tar.gz"), "family"
    app = home.app
    app.projector.scan()
    settle(app.world(DEFAULT_POLICY), Retries(name="tests"), run_id)
    key = code_key(run_id, pack_folder(EXAMPLES / "gpt").sha256)
    opened = app.tracks.run(run_id).attempts[1].opened
    assert [(each.key, each.before, each.after) for each in opened.remediation] == [
        ("trainer", "family", key)
    ]
    assert_trained_and_measured(home, run_id, key)


def test_a_run_of_a_model_family_goes_on_with_the_code_that_a_person_gives_it(
    tmp_path: Path,
) -> None:
    home, run_id = home_of(tmp_path, "family_run.tar.gz"), "family"
    mine = tmp_path / "mine"
    shutil.copytree(EXAMPLES / "gpt", mine, ignore=shutil.ignore_patterns("__pycache__"))
    (mine / "NOTES.md").write_text("My own copy.\n")
    assert home.call("reindex").returncode == 0
    done = home.call("retry", run_id, "--why", "Our code.", "--code", str(mine))
    assert done.returncode == 0, done.stderr
    assert_trained_and_measured(home, run_id, code_key(run_id, pack_folder(mine).sha256))


def test_branches_of_runs_of_older_versions_train_a_users_own_code(tmp_path: Path) -> None:
    home = home_of(tmp_path, "home_before_rooms.tar.gz")
    assert home.call("reindex").returncode == 0
    mine = tmp_path / "mine"
    mine.mkdir()
    [script] = (home.settings.home / "store" / "runs" / RUN_ID / "trainer").glob("*.py")
    shutil.copy(script, mine / "train.py")
    (mine / "tracks.yaml").write_text("version: 1\nname: gpt\nentry: train.py\n" + CONFIG)
    branch = ("submit", "--from", f"{RUN_ID}@84", "--set", "pace_s=0", "--run-id")
    for run_id, code in (("inherited", ()), ("script", (mine / "train.py",)), ("own", (mine,))):
        done = home.call(*branch, run_id, *map(str, code))
        assert done.returncode == 0, done.stderr
        last = train(home, run_id, 1)
        assert last.ended is not None
        assert (last.reason, last.ended.last_step) == ("completed", 96)
        assert last.restored is not None
        assert last.restored.step == 84


def assert_trained_and_measured(home: Home, run_id: str, key: str) -> None:
    """Train the second attempt of the family's run, and measure it, with the code of that key alone."""
    app = home.app
    assert app.tracks.run(run_id).attempts[1].opened.trainer == key
    ended = train(home, run_id, 2)
    assert ended.reason == "completed"
    assert ended.restored is not None
    assert ended.restored.step == 5

    settle(app.world(DEFAULT_POLICY), Evals(), run_id)
    [asked] = app.tracks.run(run_id).evals
    measured = run_eval(app.tracks, app.evaluator, run_id, asked.opened.eval_id, 1)
    assert (measured.reason, set(measured.metrics)) == ("completed", {"loss", "bits_per_byte"})
    assert asked.opened.suite_version == "1"
    assert list(app.store.list(f"runs/{run_id}/trainer/")) == [key]
    whole = home.call("fsck")
    assert whole.returncode == 0, whole.stdout


def train(home: Home, run_id: str, attempt_id: int) -> AttemptState:
    """Supervise an attempt that was opened to its end."""
    app = home.app
    app.projector.scan()
    ended = Supervisor(
        tracks=app.tracks,
        gangs=app.launcher_of(LOCAL),
        orchestrator=FakeOrchestrator(),
        foresee=lambda *_: {},
        policy=DEFAULT_POLICY,
        dagster_run_id="mine",
        host="node-1",
        sleep=lambda seconds: time.sleep(0.1),
        on_growth=lambda state: None,
    ).supervise(run_id, attempt_id)
    assert ended is not None
    return ended

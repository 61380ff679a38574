"""The same script outside an attempt: in a folder of its own, again and again."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from tests.training.loops import train_linear
from tracks_dagster.cli import main
from tracks_dagster.stores import open_store
from tracks_dagster.track import artifacts
from tracks_dagster.track.errors import CheckpointCorrupt, CheckpointMismatch, InvalidInput
from tracks_dagster.track.names import EXIT_FENCED, run_track
from tracks_dagster.track.states import run_fold
from tracks_dagster.track.states.lifecycle import run_status
from tracks_dagster.track.states.run_state import RunState
from tracks_dagster.track.track import read_records
from tracks_dagster.training import alone, attempt
from tracks_dagster.training.saves.artifacts import write_out
from tracks_dagster.training.saves.manifest import weights_sha256

CONFIG = {"global_batch": 10, "micro_batch": 5}


def state(folder: Path) -> RunState:
    found = run_fold.fold(read_records(open_store(str(folder / "store")), run_track(alone.RUN_ID)))
    assert found is not None
    return found


def test_a_second_run_of_a_script_goes_on_where_the_first_ended(tmp_path: Path) -> None:
    with attempt.join(config=CONFIG, folder=tmp_path / "twice") as a:
        train_linear(a, until=4)
    with attempt.join(config=CONFIG, folder=tmp_path / "twice") as a:
        train_linear(a, until=9)
    with attempt.join(config=CONFIG, folder=tmp_path / "once") as a:
        train_linear(a, until=9)
    twice, once = state(tmp_path / "twice"), state(tmp_path / "once")
    assert [each.resumed_step for each in twice.attempts] == [0, 4]
    digests = {
        weights_sha256(open_store(str(folder / "store")), found.resumable[-1])
        for folder, found in ((tmp_path / "twice", twice), (tmp_path / "once", once))
    }
    assert len(digests) == 1
    placed = once.attempts[0].placed
    assert placed is not None
    assert not [key for key in placed.environment if "code" in key]  # nobody stored the script's


def test_a_second_run_says_what_it_resumed_and_a_changed_model_names_the_folder(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    afresh = f"It was trained in {tmp_path} before: remove that folder to start afresh."
    with attempt.join(config=CONFIG, folder=tmp_path) as a:
        train_linear(a, until=4)
    assert "Resumed" not in capfd.readouterr().err
    with attempt.join(config=CONFIG, folder=tmp_path) as a:
        train_linear(a, until=4)
    said = f"Resumed step 4 of 4: nothing is left to train. {afresh}"
    assert said in capfd.readouterr().err
    model = torch.nn.Linear(3, 9)
    with pytest.raises(CheckpointMismatch) as error, attempt.join(folder=tmp_path) as a:
        train_other(a, model)
    assert str(error.value).endswith(afresh)


def train_other(a: attempt.Attempt, model: torch.nn.Module) -> None:
    a.register(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    next(a.steps(until=9))


def test_outside_an_attempt_the_tracks_yaml_beside_the_script_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "project" / "train.py"
    script.parent.mkdir()
    (script.parent / "tracks.yaml").write_text(
        "name: mine\nentry: train.py\ndataset: people\nconfig: {lr: 0.1, batch: 10}\n"
        "keys: {global_batch: batch, micro_batch: batch}\n"
    )
    script.write_text("")
    (tmp_path / "people").mkdir()
    (tmp_path / "people" / "names.txt").write_text("ann")
    monkeypatch.setenv("TRACKS_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(sys.modules["__main__"], "__file__", str(script), raising=False)
    with attempt.join(config={"lr": 0.5}, folder=tmp_path / "alone") as a:
        assert (a.config["lr"], a.config["batch"]) == (0.5, 10)
        with pytest.raises(InvalidInput, match="No snapshot was named"):
            a.data()
        train_linear(a, until=1)
    command = (sys.executable, "-m", "tracks_dagster", "snapshots", "add", "people", "people")
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, timeout=120)
    with attempt.join(folder=tmp_path / "alone") as a:
        assert (a.data() / "names.txt").read_text() == "ann"
        train_linear(a, until=2)
    opened = state(tmp_path / "alone").attempts[-1].opened
    assert opened.snapshot is not None
    assert opened.snapshot.dataset == "people"
    (script.parent / "tracks.yaml").write_text("entry: [")
    with attempt.join(config={"batch": 10}, folder=tmp_path / "alone") as a:
        assert a.config == {"batch": 10}
        train_linear(a, until=3)
    assert f"{script.parent}/tracks.yaml" in capfd.readouterr().err


def test_what_a_script_leaves_beside_its_checkpoints_belongs_to_the_run(tmp_path: Path) -> None:
    best = tmp_path / "best"
    (best / "deep").mkdir(parents=True)
    (best / "adapter.bin").write_bytes(b"x" * (artifacts.PART_BYTES + 5))
    (best / "deep" / "config.json").write_text("{}")
    (best / "secret").symlink_to("/etc/hostname")
    with attempt.join(config=CONFIG, folder=tmp_path / "run") as a:
        for path, said in ((tmp_path / "no", "no file at"), (best / "deep", "cannot name")):
            with pytest.raises(InvalidInput, match=said):
                a.artifact(path, name="a/b")
        train_linear(a, until=3)
        assert a.artifact(best)
        (best / "deep" / "config.json").write_text("{1}")
        assert a.artifact(best)
        assert a.artifact(best / "adapter.bin", name="plot.png")
    folder = open_store(str(tmp_path / "run" / "store"))
    notes = [each.body for each in state(tmp_path / "run").notes]
    assert len(notes) == 3
    assert notes[0].text.startswith("artifact best after step 3: 2 files, 8388615 bytes, ")
    newest, plot = artifacts.artifacts_of(notes)
    assert (newest.name, newest.file_count, plot.name) == ("best", 2, "plot.png")
    write_out(folder, alone.RUN_ID, newest.sha256, tmp_path / "out")
    assert (tmp_path / "out" / "deep" / "config.json").read_text() == "{1}"
    assert (tmp_path / "out" / "adapter.bin").stat().st_size == artifacts.PART_BYTES + 5
    parts = list((tmp_path / "run" / "store").glob("runs/*/artifacts/parts/*"))
    assert len(parts) == 4  # two of the file, stored once, and of each config one
    for part in parts:
        part.chmod(0o600)
        part.write_bytes(b"other")
    with pytest.raises(CheckpointCorrupt, match="; expected sha256"):
        write_out(folder, alone.RUN_ID, plot.sha256, tmp_path / "bad")


def test_a_script_that_was_killed_is_closed_at_the_next_by_what_it_left(tmp_path: Path) -> None:
    left = []
    for keep_words in (True, False):
        folder = tmp_path / str(keep_words)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(alone, "close", lambda *_: None)  # killed before it got there
            with attempt.join(config=CONFIG, folder=folder) as a:
                train_linear(a, until=4)
        if not keep_words:
            for word in (folder / "store").rglob("rank-0.json"):
                word.unlink()
        with attempt.join(config=CONFIG, folder=folder) as a:
            train_linear(a, until=5)
        left.append(state(folder).attempts[0].reason)
    assert left == ["completed", "unknown"]


def test_an_error_in_a_notebook_is_raised_and_its_attempt_closed(
    tmp_path: Path,
) -> None:
    with pytest.raises(ZeroDivisionError), attempt.join(config=CONFIG, folder=tmp_path):
        raise ZeroDivisionError
    with attempt.join(config=CONFIG, folder=tmp_path) as a:
        train_linear(a, until=1)
    first, second = state(tmp_path).attempts
    assert first.ended is not None
    assert first.ended.reason == "code_error"
    assert second.ended is not None
    assert (second.ended.reason, second.ended.last_step) == ("completed", 1)
    assert second.ended.device_seconds > 0


def test_a_second_join_in_one_folder_fences_the_first(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def take_over(step: int, model: object) -> None:
        if step == 3:
            with attempt.join(config=CONFIG, folder=tmp_path) as b:
                train_linear(b, until=2)

    with (
        pytest.raises(SystemExit) as ended,
        attempt.join(config=CONFIG, folder=tmp_path) as a,
    ):
        train_linear(a, until=4, on_step=take_over)
    assert ended.value.code == EXIT_FENCED
    assert "is fenced by record" in capfd.readouterr().err
    assert [checkpoint.ref.step for checkpoint in state(tmp_path).checkpoints] == [2]


def test_a_secret_that_is_the_name_of_a_metric_is_written_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = "0f1e2d3c4b5a69788796a5b4c3d2e1f001234567"
    monkeypatch.setenv("WANDB_API_KEY", secret)
    metrics = {f"key {secret}": 2.0, "accuracy": 0.5}
    with attempt.join(config=CONFIG, folder=tmp_path) as a:
        train_linear(a, until=2, **metrics)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert [path for path in files if secret.encode() in path.read_bytes()] == []
    assert any(b'"key [hidden]":2.0' in path.read_bytes() for path in files)


def test_a_script_alone_comes_to_an_end_and_is_explained_from_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def explained(folder: Path) -> str:
        monkeypatch.setenv("TRACKS_STORE", str(folder / "store"))
        monkeypatch.setenv("TRACKS_HOME", str(tmp_path / "no-home"))
        done = CliRunner().invoke(main, ["explain", alone.RUN_ID, "--full"])
        assert done.exit_code == 0, done.output
        return " ".join(done.stdout.split())

    with attempt.join(config=CONFIG, folder=tmp_path / "whole") as a:
        train_linear(a, until=4)
    text = explained(tmp_path / "whole")
    status = run_status(state(tmp_path / "whole"))
    assert status.state == "succeeded"
    assert "started again, the script trains from step 4 on" in status.why
    assert f"Nothing: {status.why}" in text
    for words in ("/assets/", "No Dagster run", "finish are due"):
        assert words not in text

    def fail_after_the_loop() -> None:
        with attempt.join(config=CONFIG, folder=tmp_path / "half") as a:
            train_linear(a, until=4)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_after_the_loop()
    failed = run_status(state(tmp_path / "half"))
    assert failed.state == "waiting"
    assert "nobody retries a script outside an attempt" in failed.why
    assert failed.why in explained(tmp_path / "half")

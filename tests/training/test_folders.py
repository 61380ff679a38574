"""Checkpoints of folders that the script wrote itself: committed whole, restored verified."""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.fakes import FakeObjectStore, Fault
from tests.seeds import fresh_seeds
from tests.training import folder_trainer
from tests.training.gangs import TrainingRun
from tests.training.loops import train_linear
from tracks_dagster.attempts.effects.evidence import read_journal_end
from tracks_dagster.stores.journals import journal_prefix, read_steps
from tracks_dagster.track.bodies import Drill
from tracks_dagster.track.errors import (
    CheckpointCorrupt,
    CheckpointMismatch,
    CheckpointWriteFailed,
    InvalidInput,
    NonFinite,
    TrainingError,
)
from tracks_dagster.track.names import EXIT_DRAINED, AttemptRef
from tracks_dagster.track.records import Kind, canonical_json
from tracks_dagster.training.last_word import Drained
from tracks_dagster.training.saves import folder_files
from tracks_dagster.training.saves.export import ExportedFolder, export_checkpoint
from tracks_dagster.training.saves.folders import fetch_folder
from tracks_dagster.training.saves.manifest import read_manifest, verify_checkpoint, weights_sha256

MB = 1024 * 1024
FILES = {
    "weights.bin": bytes(range(256)) * (9 * MB // 256) + b"tail",
    "config.json": b"{}",
    "empty": b"",
    "nested/deep/rng.pth": b"rng" * 1000,
}


@pytest.fixture
def run(tmp_path: Path, store: FakeObjectStore) -> TrainingRun:
    """A run that wants a folder every second step, in a store in memory."""
    return TrainingRun(tmp_path, store=store, steps=6, every_steps=2)


def write(folder: Path, files: dict[str, bytes]) -> Path:
    for path, data in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
    return folder


def read(folder: Path) -> dict[str, bytes]:
    found = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def commits(run: TrainingRun) -> list[tuple[int, str, str]]:
    return [(c.body.ref.step, c.body.trigger, c.body.kind) for c in run.state.checkpoints]


def commit_once(run: TrainingRun, folder: Path) -> bool:
    with run.joined() as a:
        a.folder()
        a.ends(1)
        return a.commit_folder(1, folder)


def test_a_folder_is_committed_and_comes_back_under_its_own_name(
    run: TrainingRun, tmp_path: Path
) -> None:
    folder = write(tmp_path / "checkpoint-2", FILES)
    with run.joined() as a:
        assert a.folder() is None
        assert not a.ends(1).save
        ends = a.ends(2)
        assert (ends.save, ends.stop, ends.trigger) == (True, False, "interval")
        assert a.commit_folder(2, folder)
        assert not a.finish().is_complete  # of the config's 6 steps
    (checkpoint,) = run.state.checkpoints
    body = checkpoint.body
    assert (body.kind, body.cursor, body.epoch) == ("files", None, None)
    assert body.total_bytes == sum(map(len, FILES.values()))
    assert verify_checkpoint(run.store, body.ref) >= body.total_bytes - 8 * MB  # equal chunks: once
    with run.joined() as a:
        found = a.folder()
        assert found is not None
        assert found.name == "checkpoint-2"
        assert read(found) == FILES
        a.ends(6, last=True)
        a.commit_folder(6, found)
        assert a.finish().is_complete
    assert [r.body["step"] for r in run.records(Kind.ATTEMPT_RESTORED)] == [0, 2]
    second = run.state.checkpoints[-1].body
    assert (second.trigger, second.written_bytes) == ("final", 0)  # every chunk was there already


def test_folders_of_any_shape_come_back_byte_for_byte(run: TrainingRun, tmp_path: Path) -> None:
    (seed,) = fresh_seeds(1)
    chance = random.Random(seed)
    sizes = [0, 1, 63, 64, 65, 4 * MB - 1, 4 * MB, 4 * MB + 1, 8 * MB, 8 * MB + 1, 17 * MB]
    files = {
        f"{chance.choice(['', 'a/', 'a/b/', 'ü/'])}{number}": chance.randbytes(
            chance.choice(sizes) if chance.random() < 0.2 else chance.randrange(3000)
        )
        for number in range(60)
    }
    assert commit_once(run, write(tmp_path / "folder", files))
    with run.joined() as a:
        found = a.folder()
    assert found is not None
    assert read(found) == files


def test_one_changed_file_stores_its_own_chunks_only(run: TrainingRun, tmp_path: Path) -> None:
    folder = write(tmp_path / "f", {f"{n}": bytes([n]) * (5 * MB) for n in range(4)})
    with run.joined() as a:
        a.folder()
        a.ends(1)
        a.commit_folder(1, folder)
        (folder / "2").write_bytes(b"x" * (5 * MB))
        a.ends(2)
        a.commit_folder(2, folder)
    first, second = (c.body for c in run.state.checkpoints)
    assert (first.written_bytes, second.written_bytes) == (20 * MB, 5 * MB)


@pytest.mark.parametrize(
    ("plant", "words"),
    [
        (lambda f: (f / "out").symlink_to("/etc/hostname"), "is not a file of the folder"),
        (lambda f: (f / "loop").symlink_to(f), "is not a file of the folder"),
        (lambda f: os.mkfifo(f / "pipe"), "neither"),
        (lambda f: (f / "file").unlink(), "is empty"),
        (lambda f: f.rename(f.with_name("away")), "is not a folder"),
    ],
)
def test_what_could_not_be_restored_elsewhere_is_refused(
    run: TrainingRun, tmp_path: Path, plant: Callable[[Path], object], words: str
) -> None:
    folder = write(tmp_path / "f", {"file": b"x"})
    plant(folder)
    with pytest.raises(InvalidInput, match=words):
        commit_once(run, folder)
    assert commits(run) == []


def test_a_link_inside_the_folder_is_the_file_that_it_names(
    run: TrainingRun, tmp_path: Path
) -> None:
    folder = write(tmp_path / "f", {"step-1.pt": b"data"})
    (folder / "latest.pt").symlink_to("step-1.pt")
    commit_once(run, folder)
    with run.joined() as a:
        found = a.folder()
    assert found is not None
    assert read(found) == {"latest.pt": b"data", "step-1.pt": b"data"}


@pytest.mark.parametrize("change", ["longer", "shorter", "new", "gone", "rewritten"])
def test_a_folder_that_is_written_to_meanwhile_is_not_committed(
    run: TrainingRun, tmp_path: Path, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write(tmp_path / "f", {"a": b"x" * (9 * MB), "b": b"y"})
    files = {"longer": ("a", 10 * MB), "shorter": ("a", MB), "new": ("c", 1), "rewritten": ("b", 1)}
    read_range = folder_files._read_range
    changed: list[str] = []

    def read_and_change(path: Path, *given: object) -> None:
        if not changed:
            changed.append(change)
            if change == "gone":
                (folder / "b").unlink()
            else:
                name, size = files[change]
                (folder / name).write_bytes(b"z" * size)
        read_range(path, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(folder_files, "_read_range", read_and_change)
    with run.joined() as a:
        a.folder()
        a.ends(1)
        assert not a.commit_folder(1, folder)
        a.ends(2)
        assert a.commit_folder(2, folder)  # nothing writes to it any more
    assert commits(run) == [(2, "interval", "files")]
    (alert,) = run.records(Kind.ALERT)
    assert "a" in alert.body["text"] or "b" in alert.body["text"]


def test_a_file_that_goes_while_the_folder_is_listed_costs_this_checkpoint(
    run: TrainingRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write(tmp_path / "f", {"a": b"x"})
    walk = folder_files._walk

    def walk_and_lose(*given: Any) -> Any:
        monkeypatch.setattr(folder_files, "_walk", walk)
        raise FileNotFoundError("a.tmp")

    monkeypatch.setattr(folder_files, "_walk", walk_and_lose)
    with run.joined() as a:
        a.folder()
        a.ends(1)
        assert not a.commit_folder(1, folder)
        assert a.commit_folder(1, folder)
    assert len(run.records(Kind.ALERT)) == 1


def test_a_corrupt_folder_is_quarantined_and_the_one_before_restored(
    run: TrainingRun, store: FakeObjectStore, tmp_path: Path
) -> None:
    with run.joined() as a:
        a.folder()
        for step in (2, 4):
            a.ends(step)
            a.commit_folder(step, write(tmp_path / "f", {"file": b"%d" % step * 1000}))
    newest = run.state.checkpoints[-1].ref
    key = read_manifest(store, newest).chunks[0].key
    data = bytearray(store.get(key) or b"")
    data[7] ^= 1
    store.put(key, bytes(data))
    with run.joined() as a:
        found = a.folder()
    assert found is not None
    assert read(found) == {"file": b"2" * 1000}
    assert [r.body["step"] for r in run.records(Kind.ATTEMPT_RESTORED)] == [0, 2]


def test_a_store_that_is_down_costs_one_checkpoint(
    run: TrainingRun, store: FakeObjectStore, tmp_path: Path
) -> None:
    folder = write(tmp_path / "f", {"file": b"x"})
    with run.joined() as a:
        a.folder()
        a.ends(2)
        store.fail("put", 1, Fault.FAILS)
        assert not a.commit_folder(2, folder)
        a.ends(4)
        assert a.commit_folder(4, folder)
        a.ends(6, last=True)
        store.fail("put", 1, Fault.FAILS)
        with pytest.raises(CheckpointWriteFailed, match="final save of step 6"):
            a.commit_folder(6, folder)
    assert commits(run) == [(4, "interval", "files")]


def test_steps_are_ended_and_committed_in_order(run: TrainingRun, tmp_path: Path) -> None:
    folder = write(tmp_path / "f", {"file": b"x"})
    with run.joined() as a:
        with pytest.raises(TrainingError, match=r"before a\.folder"):
            a.ends(1)
        a.folder()
        a.ends(3)
        for step in (3, 2):
            with pytest.raises(TrainingError, match="in order"):
                a.ends(step)
        with pytest.raises(TrainingError, match=r"a\.ends\(4\) first"):
            a.commit_folder(4, folder)
        a.commit_folder(3, folder)
        a.report(3, loss=1.0)
        with pytest.raises(TrainingError, match="in order"):
            a.report(3, loss=1.0)
        a.commit_folder(3, folder)  # is there already
        a.ends(4)
        with pytest.raises(TrainingError, match="commit in order"):
            a.commit_folder(2, folder)
        with pytest.raises(TrainingError, match="last committed folder is of step 3"):
            a.finish()
    with run.joined() as a:
        a.folder()
        with pytest.raises(TrainingError, match="load the folder"):
            a.ends(1)
    assert [c.ref.step for c in run.state.checkpoints] == [3]


def test_what_a_framework_cannot_restore_and_what_it_trains_with_is_recorded_and_checked(
    run: TrainingRun,
) -> None:
    sentence = "Samples made by chance differ."
    with run.joined() as a:
        a.folder(inexact=(sentence,))
        a.check_roles(micro_batch=2)
        with pytest.raises(InvalidInput, match=r"micro_batch 3 .* has micro_batch = 2: read it"):
            a.check_roles(micro_batch=3)
    restored = run.state.attempts[0].restored
    assert restored is not None
    assert restored.inexact == (sentence,)


def test_a_changed_learning_rate_reaches_what_a_framework_loads(
    run: TrainingRun, tmp_path: Path
) -> None:
    assert commit_once(run, write(tmp_path / "folder", FILES))
    rate = run.config["lr"]
    for given, expected in ((rate, 0.4), (rate / 2, 0.2)):
        optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.4)  # as the folder had it
        schedule = torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1.0)
        with run.joined(run.open(lr=given)) as a:
            a.folder()
            a.follow_rate([optimizer], [schedule])
        assert optimizer.param_groups[0]["lr"] == pytest.approx(expected)
        assert schedule.base_lrs == pytest.approx([expected])


def test_other_numbers_of_a_changed_config_are_set_or_said_to_be_unknown(
    run: TrainingRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with run.joined(run.open(resume_step=None, weight_decay=0.1, beta2=0.99, seed=1)) as a:
        a.folder()
        a.ends(1)
        a.report(1, loss=1.0)
        assert a.commit_folder(1, write(tmp_path / "folder", FILES))
    weight = torch.zeros(1)
    groups = [{"params": [weight], "weight_decay": 0.1}, {"params": [], "weight_decay": 0.0}]
    optimizer = torch.optim.SGD(groups, lr=0.4)  # as the folder had it
    with run.joined(run.open(weight_decay=0.5, beta2=0.95, seed=2)) as a:
        a.folder()
        a.follow_rate([optimizer], [])
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.5, 0.0]
    (warned,) = capsys.readouterr().err.splitlines()
    assert warned.startswith(
        "Changed in the config since that folder: beta2 0.99 → 0.95. The folder"
    )


def test_windows_of_samples_are_refused_where_the_order_is_not_ours(run: TrainingRun) -> None:
    says = pytest.raises(InvalidInput, match="an order of its own: take it out")
    with run.joined(run.open(skip_windows=[[3, 4]])) as a, says:
        a.folder()


def test_a_wish_holds_until_a_folder_is_committed_and_gaps_count(
    run: TrainingRun, tmp_path: Path
) -> None:
    folder = write(tmp_path / "f", {"file": b"x"})
    with run.joined() as a:
        a.folder()
        assert [a.ends(step).trigger for step in (1, 3, 4)] == [None, "interval", "interval"]
        a.commit_folder(4, folder)
        assert a.ends(5).trigger is None


def test_a_folder_that_comes_late_knows_no_loss_of_a_later_step(
    run: TrainingRun, tmp_path: Path
) -> None:
    with run.joined() as a:
        a.folder()
        for step in (1, 2, 3):
            a.ends(step)
            a.report(step, loss=1.0 / step)
        a.commit_folder(2, write(tmp_path / "f", {"file": b"x"}))
    kept = run.manifest_of(run.final()).members["progress"].values
    assert kept["recent"] == [[1, 1.0], [2, 0.5]]


def test_a_script_that_trains_nothing_did_not_complete(run: TrainingRun, tmp_path: Path) -> None:
    with run.joined() as a:
        a.folder()
        with pytest.raises(TrainingError, match="without training"):
            a.finish()
    with run.joined() as a:
        a.folder()
        a.ends(6)
        a.commit_folder(6, write(tmp_path / "f", {"file": b"x"}))
    with run.joined() as a:  # all was done: only the last words were missing
        a.folder()
        assert a.finish().is_complete


def test_a_loss_that_is_not_finite_ends_the_attempt(run: TrainingRun) -> None:
    with run.joined() as a:
        a.folder()
        a.ends(1)
        with pytest.raises(NonFinite, match="step 1"):
            a.report(1, loss=float("nan"))


def test_what_an_evaluation_finds_is_kept_with_the_next_checkpoint(
    run: TrainingRun, tmp_path: Path
) -> None:
    with run.joined() as a:
        a.folder()
        a.ends(1)
        a.evaluated(1, heldout=1.5, bad=float("nan"), was=2.0)
        a.report(1, loss=2.0, odd=float("inf"))
        a.evaluated(1, accuracy=0.5, was=float("nan"))
        a.commit_folder(1, write(tmp_path / "f", {"file": b"x"}))
    body = run.state.checkpoints[-1].body
    assert body.metrics == {"loss": 2.0, "heldout": 1.5, "accuracy": 0.5}
    assert body.non_finite == ("bad", "odd", "was")


def test_a_folder_is_not_resumed_by_a_script_that_registers(
    run: TrainingRun, tmp_path: Path
) -> None:
    commit_once(run, write(tmp_path / "f", {"file": b"x"}))
    with run.joined() as a, pytest.raises(CheckpointMismatch, match="folder"):
        train_linear(a, until=2)
    other = TrainingRun(tmp_path / "other", store=run.store, steps=2, run_id="s")
    with other.joined() as a:
        train_linear(a, until=2)
    with other.joined() as a, pytest.raises(CheckpointMismatch, match="registered"):
        a.folder()


def gang_run(tmp_path: Path, *drills: Drill, ranks: int = 2, **plan: bool) -> TrainingRun:
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    script = Path(folder_trainer.__file__)
    return TrainingRun(
        tmp_path, ranks=ranks, steps=9, every_steps=4, script=script, drills=tuple(drills)
    )


def files_of(run: TrainingRun, tmp_path: Path) -> dict[str, bytes]:
    return read(fetch_folder(run.store, run.final(), tmp_path / "read").path)


def test_ranks_that_see_one_folder_share_its_chunks_out_and_survive_what_ends_them(
    tmp_path: Path,
) -> None:
    for name in ("once", "ended"):
        (tmp_path / name).mkdir()
    once = gang_run(tmp_path / "once")
    once.train_to_the_end()
    ended = gang_run(
        tmp_path / "ended", Drill(kind="preempt", step=3), Drill(kind="sigkill", step=6)
    )
    first, second, third = ended.train(), ended.train(), ended.train()
    assert first.exit_codes == [EXIT_DRAINED, EXIT_DRAINED]
    assert second.exit_codes[0] == -signal.SIGKILL
    assert third.exit_codes == [0, 0], third.log()
    assert [r.body["step"] for r in ended.records(Kind.ATTEMPT_RESTORED)] == [0, 3, 4]
    assert commits(ended) == [
        (3, "sigterm", "files"),
        (4, "interval", "files"),
        (8, "interval", "files"),
        (9, "final", "files"),
    ]
    files = files_of(ended, tmp_path)
    assert sorted(files) == ["big.bin", "rank-0.json", "rank-1.json"]
    assert files == files_of(once, tmp_path)
    losses, undisturbed = ended.steps(3), once.steps(1)
    assert sorted(losses) == [5, 6, 7, 8, 9]
    assert all(line["loss"] == undisturbed[step]["loss"] for step, line in losses.items())


def test_a_drained_attempt_says_which_step_is_in_no_checkpoint(
    run: TrainingRun, tmp_path: Path
) -> None:
    with run.joined() as a:
        a.folder()
        a.ends(1)
        a.commit_folder(1, write(tmp_path / "f", FILES))
        a.ends(2)
        with pytest.raises(Drained) as ended:
            a.folder_steps.drain()
    assert "no folder of step 2 was committed, the newest one is of step 1" in str(ended.value)


def test_ranks_with_folders_of_their_own_are_gathered(tmp_path: Path) -> None:
    run = gang_run(tmp_path, apart=True)
    run.train_to_the_end()
    files = files_of(run, tmp_path)  # big.bin is the same on both, and there once
    assert sorted(files) == ["big.bin", "rank-0.json", "rank-1.json"]
    assert files["big.bin"] == b"%032d" % 9 * (folder_trainer.BIG // 32)


def test_ranks_with_different_files_of_one_name_are_refused(tmp_path: Path) -> None:
    run = gang_run(tmp_path, apart=True, clash=True)
    gang = run.train()
    assert gang.exit_codes == [1, 1]
    assert all(
        "ranks have different files of one name: own.json" in gang.log(rank) for rank in (0, 1)
    )
    assert commits(run) == []


def test_a_folder_is_exported_whole_or_not_at_all(
    run: TrainingRun, store: FakeObjectStore, tmp_path: Path
) -> None:
    commit_once(run, write(tmp_path / "f", FILES))
    ref = run.final()
    exported = export_checkpoint(store, ref, tmp_path / "out")
    assert isinstance(exported, ExportedFolder)
    assert (exported.file_count, exported.total_bytes) == (4, sum(map(len, FILES.values())))
    assert read(tmp_path / "out") == FILES
    with pytest.raises(InvalidInput, match="not there yet"):
        export_checkpoint(store, ref, tmp_path / "out", overwrite=True)
    (key,) = {c.key for c in read_manifest(store, ref).chunks if c.size_bytes < MB}
    store.put(key, b"other")
    with pytest.raises(CheckpointCorrupt, match="No file was written"):
        export_checkpoint(store, ref, tmp_path / "second")
    assert sorted(path.name for path in tmp_path.iterdir() if "second" in path.name) == []


def test_the_digest_of_a_folder_is_of_its_files(run: TrainingRun, tmp_path: Path) -> None:
    """Equal over ranks, chunks and attempts; a file counts as the tensor of bytes that it is."""
    commit_once(run, write(tmp_path / "f", FILES))
    expected = hashlib.sha256()
    for name, data in sorted(FILES.items()):
        expected.update(canonical_json([name, "uint8", [len(data)]]) + b"\n" + data)
    assert weights_sha256(run.store, run.final()) == expected.hexdigest()


def test_a_step_without_a_loss_is_written_down_too(run: TrainingRun, tmp_path: Path) -> None:
    with run.joined() as a:
        a.folder()
        for step in (1, 2, 3):
            a.ends(step)
            if step == 2:
                a.report(2, loss=1.0)
        a.commit_folder(3, write(tmp_path / "f", {"file": b"x"}))
        a.finish()
    assert {step: line.get("loss") for step, line in run.steps(1).items()} == {
        1: None,
        2: 1.0,
        3: None,
    }
    (launch_id,) = {r.body["launch_id"] for r in run.records(Kind.ATTEMPT_PLACED)}
    assert (
        read_journal_end(run.store, journal_prefix(AttemptRef("r", 1), launch_id, 0)).last_step == 3
    )
    assert [line.step for line in read_steps(run.store, AttemptRef("r", 1), launch_id)] == [2]

"""Checkpoints and stores that cannot be used: refused by name, or survived."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from torch import nn

from tests.bodies import FREE
from tests.fakes import FakeClock, FakeObjectStore, SequentialUids
from tests.training.gangs import TrainingRun
from tests.training.loops import train_linear
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.review.effects.explain.run import explain_attempt
from tracks_dagster.review.explain.text import attempt_text
from tracks_dagster.stores import open_store
from tracks_dagster.track.bodies import AttemptOpened
from tracks_dagster.track.body_json import to_json
from tracks_dagster.track.errors import (
    CheckpointMismatch,
    CheckpointWriteFailed,
    StoreUnavailable,
    TrackBroken,
)
from tracks_dagster.track.names import ALERT_SAVE_FAILED
from tracks_dagster.track.records import Draft, Kind, canonical_json, sha256_hex
from tracks_dagster.track.states.checkpoints import CheckpointRef, manifest_key
from tracks_dagster.track.track import log_key
from tracks_dagster.training.attempt import Attempt

SMALL_DISK = "size=2m"  # for a track and small checkpoints; `fill` fills it


@pytest.fixture
def run(tmp_path: Path, store: FakeObjectStore) -> TrainingRun:
    """A run with a checkpoint of step 2, in a store in memory."""
    run = TrainingRun(tmp_path, store=store, steps=6, every_steps=2)
    with run.joined() as a:
        train_linear(a, until=2)
    return run


def open_with(run: TrainingRun, resume: CheckpointRef) -> int:
    """Open an attempt that resumes from `resume`, whatever that is."""
    attempt_id = len(run.state.attempts) + 1
    run.end(attempt_id - 1)
    body = replace(run.state.attempts[-1].opened, cause="retry", debit=FREE, resume=resume)
    assert isinstance(body, AttemptOpened)
    draft = Draft(
        uid=f"open {attempt_id}",
        kind=Kind.ATTEMPT_OPENED,
        body=to_json(body),
        attempt_id=attempt_id,
    )
    run.track.decide(lambda records: draft)
    return attempt_id


def refused(run: TrainingRun, attempt_id: int, match: str, model: nn.Module | None = None) -> None:
    """The attempt is refused before a step, and nobody is quarantined for it."""
    with run.joined(attempt_id) as a, pytest.raises(CheckpointMismatch, match=match):
        train_linear(a, until=6, model=model)
    assert not run.records(Kind.CHECKPOINT_QUARANTINED)
    assert not run.steps(attempt_id)


def test_a_manifest_of_a_newer_format_is_refused_and_not_quarantined(run: TrainingRun) -> None:
    ref = run.final()
    newer = json.loads(run.store.get(manifest_key(ref)) or b"")
    data = canonical_json({**newer, "format": newer["format"] + 2, "what_is_new": [1, 2]})
    theirs = replace(ref, manifest_sha256=sha256_hex(data))
    run.store.put(manifest_key(theirs), data)
    commit = run.records(Kind.CHECKPOINT_COMMITTED)[-1]
    body = {**commit.body, "ref": to_json(theirs)}
    draft = Draft(uid="n", kind=commit.kind, body=body, attempt_id=commit.attempt_id)
    run.track.decide(lambda records: draft)
    refused(run, open_with(run, theirs), r"has format 4; this version reads 2 and 3\. Resume with")


def test_a_model_that_does_not_fit_is_refused_with_both_shapes(run: TrainingRun) -> None:
    wider = nn.Linear(1, 2)
    before = [parameter.detach().clone() for parameter in wider.parameters()]
    match = r"Tensor model\.bias of step 2 .*float32 \[1\] in the checkpoint.*float32 \[2\] in the"
    refused(run, run.open(), match, wider)
    assert all((a == b).all() for a, b in zip(before, wider.parameters(), strict=True))


def test_a_prefix_of_another_run_is_refused(run: TrainingRun) -> None:
    ref = run.final()
    elsewhere = replace(ref, object_prefix=ref.object_prefix.replace("runs/r/", "runs/other/"))
    refused(run, open_with(run, elsewhere), r"said to be of r, attempt 1, and lies at runs/other/")


def test_a_checkpoint_of_another_run_is_refused_without_a_branch(run: TrainingRun) -> None:
    ref = run.final()
    prefix = ref.object_prefix.replace("runs/r/", "runs/other/")
    other = replace(ref, run_id="other", object_prefix=prefix)
    refused(
        run, open_with(run, other), r"Step 2 is of run other and r is not a branch of it; .*--from"
    )


def test_a_gap_in_the_track_is_not_a_reason_to_start_afresh(
    run: TrainingRun, store: FakeObjectStore
) -> None:
    """The records before the gap look like a whole track without checkpoints."""
    attempt_id = run.open()
    with run.joined(attempt_id) as a:
        store.delete(log_key("runs/r", 2))
        with pytest.raises(
            TrackBroken, match=r"Record 2 of runs/r is missing.*nothing is restored"
        ):
            train_linear(a, until=6)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of two megabytes, or the reason why there is none here."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if _mount("-t", "tmpfs", "-o", SMALL_DISK, "tracks-tests", str(folder)) is not None:
        pytest.skip("needs a file system of its own: root and CAP_SYS_ADMIN, for mount(8)")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def _mount(*arguments: str) -> str | None:
    """Run mount(8); return what it said when it failed."""
    try:
        ended = subprocess.run(["mount", *arguments], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return "there is no mount(8)"
    return None if ended.returncode == 0 else ended.stderr


def remount(disk: Path, how: str) -> None:
    """Make the disk "ro" or "rw"; waits for nobody, so every save must have settled."""
    assert _mount("-o", f"remount,{how}", str(disk)) is None


def fill(disk: Path) -> None:
    """Leave not one free page on the disk."""
    descriptor = os.open(disk / "ballast", os.O_WRONLY | os.O_CREAT)
    try:
        for size in (1 << 16, 1 << 12, 1):
            try:
                while True:
                    os.write(descriptor, bytes(size))
            except OSError:
                continue
    finally:
        os.close(descriptor)


def attempt_words(run: TrainingRun) -> str:
    """What `tracks explain` says of the first attempt."""
    tracks = Tracks(
        run.store, now=FakeClock(), new_uid=SequentialUids(), project=lambda track: None
    )
    return attempt_text(explain_attempt(tracks, "r", 1))


def check_failed_save(run: TrainingRun, why: str, steps: list[int]) -> None:
    """Exactly the save of step 4 failed, and track, journal and receipt say so."""
    assert [c.ref.step for c in run.state.checkpoints] == steps
    (alert,) = run.state.alerts
    assert alert.body.rule == ALERT_SAVE_FAILED
    assert "save of step 4 failed" in alert.body.text
    assert why in alert.body.text
    (failed,) = [line for line in run.journal(1) if line["kind"] == "save_failed"]
    assert failed["step"] == 4
    assert set(run.steps(1)) == {1, 2, 3, 4, 5, 6, 7, 8}
    text = attempt_words(run)
    assert "saves failed: 1" in text
    assert alert.body.text in text


def test_training_goes_on_when_the_disk_is_full_and_the_record_says_so(
    tmp_path: Path, small_disk: Path
) -> None:
    run = TrainingRun(tmp_path, store=open_store(str(small_disk / "store")), steps=8, every_steps=2)
    check_survived(
        run,
        breaks=lambda: fill(small_disk),
        mends=lambda: (small_disk / "ballast").unlink(),
        why="the disk is full; free some space",
    )


def test_training_goes_on_when_the_store_turns_read_only_for_a_while(
    tmp_path: Path, small_disk: Path
) -> None:
    run = TrainingRun(tmp_path, store=open_store(str(small_disk / "store")), steps=8, every_steps=2)
    check_survived(
        run,
        breaks=lambda: remount(small_disk, "ro"),
        mends=lambda: remount(small_disk, "rw"),
        why="the file system is read-only; mount it writable",
    )


def test_training_goes_on_when_a_store_in_memory_has_no_space_for_a_while(tmp_path: Path) -> None:
    store = FullStore()
    run = TrainingRun(tmp_path, store=store, steps=8, every_steps=2)
    check_survived(
        run,
        breaks=lambda: setattr(store, "is_full", True),
        mends=lambda: setattr(store, "is_full", False),
        why="the disk is full",
    )


def check_survived(
    run: TrainingRun, *, breaks: Callable[[], None], mends: Callable[[], None], why: str
) -> None:
    """Break the store for the save of step 4, mend it after that, and train to the end."""
    with run.joined() as a:

        def on_step(step: int, model: nn.Module) -> None:
            if step == 4:
                settle(a)  # the save of step 2 is not the one that fails
                breaks()
            if step == 5:
                settle(a)
                mends()

        train_linear(a, until=8, on_step=on_step)
    check_failed_save(run, why, steps=[2, 6, 8])


def settle(a: Attempt) -> None:
    """Let the save under way end."""
    a._steps.saver.settle()  # type: ignore[union-attr]


def test_the_last_save_on_a_read_only_store_fails_the_attempt(
    tmp_path: Path, small_disk: Path
) -> None:
    run = TrainingRun(tmp_path, store=open_store(str(small_disk / "store")), steps=4, every_steps=2)

    with run.joined() as a:

        def on_step(step: int, model: nn.Module) -> None:
            if step == 4:
                settle(a)
                remount(small_disk, "ro")

        with pytest.raises(CheckpointWriteFailed, match=r"file system is read-only.*Steps after 2"):
            train_linear(a, until=4, on_step=on_step)
        remount(small_disk, "rw")
    assert [c.ref.step for c in run.state.checkpoints] == [2]
    assert run.final().step == 2


class FullStore(FakeObjectStore):
    """A store in memory that takes nothing more while `is_full`."""

    is_full = False

    def put(self, key: str, data: bytes | memoryview) -> None:
        self._check(key)
        super().put(key, data)

    def create(self, key: str, data: bytes | memoryview) -> bool:
        self._check(key)
        return super().create(key, data)

    def _check(self, key: str) -> None:
        if self.is_full:
            raise StoreUnavailable(f"Cannot write {key}: the disk is full; free some space.")

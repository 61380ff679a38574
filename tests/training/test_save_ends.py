"""How a save ends training, and what must not: its bounds, its journal, its alerts, its metrics."""

from __future__ import annotations

import errno
import time
import traceback
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from tests.fakes import FakeObjectStore
from tests.training.gangs import TrainingRun
from tests.training.loops import train_linear
from tracks_dagster.track.bodies import RetentionRule
from tracks_dagster.track.errors import (
    CheckpointWriteFailed,
    NonFinite,
    RankLost,
    TrackBroken,
    TrainingError,
)
from tracks_dagster.track.track import Track
from tracks_dagster.training import journal
from tracks_dagster.training.ranks import Ranks
from tracks_dagster.training.saves import committing, saving
from tracks_dagster.training.saves.chunk_writer import KnownChunks
from tracks_dagster.training.saves.committing import Outcome
from tracks_dagster.training.saves.saving import Saver

ABANDONED = Outcome(failed="A checkpoint whose chunks it names was quarantined.", is_abandoned=True)
SILENT = Outcome(failed="Rank 0 did not say.")


@pytest.fixture
def run(tmp_path: Path, store: FakeObjectStore) -> TrainingRun:
    """A run that saves every second step, in a store in memory."""
    return TrainingRun(tmp_path, store=store, steps=6, every_steps=2)


def committed_steps(run: TrainingRun) -> list[int]:
    return [checkpoint.ref.step for checkpoint in run.state.checkpoints]


def test_a_commit_tells_the_loss_and_what_retention_goes_by(
    tmp_path: Path, store: FakeObjectStore
) -> None:
    rule = RetentionRule(metric="val_loss")
    run = TrainingRun(tmp_path, store=store, steps=2, every_steps=2, retention=rule)
    others = {f"a{number:02d}": 1.0 for number in range(18)}
    with run.joined() as a:
        train_linear(a, until=2, val_loss=0.25, **others)
    metrics = run.state.checkpoints[-1].body.metrics
    assert set(metrics) == {"val_loss", "loss", *sorted(others)[:14]}
    assert metrics["val_loss"] == 0.25


@pytest.mark.parametrize("kind", ["save", "step"])
def test_a_journal_on_a_full_disk_does_not_end_training(
    run: TrainingRun, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    write = journal.os.write

    def full(file: int, data: bytes) -> int:
        if f'"kind":"{kind}"'.encode() in data:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(file, data)

    monkeypatch.setattr(journal.os, "write", full)
    with run.joined() as a:
        train_linear(a, until=6)
    assert committed_steps(run) == [2, 4, 6]


def test_a_save_that_takes_too_long_ends_training_as_that(
    run: TrainingRun, store: FakeObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = store.put

    def slow(key: str, data: bytes | memoryview) -> None:
        if "/step-2/chunks" in key:
            time.sleep(1.0)
        put(key, data)

    monkeypatch.setattr(store, "put", slow)
    monkeypatch.setattr(saving, "SAVE_S_MAX", 0.2)
    monkeypatch.setattr(saving, "SETTLE_S_MIN", 0.0)
    with run.joined() as a, pytest.raises(CheckpointWriteFailed, match=r"more than 0\.2 s"):
        train_linear(a, until=6)


def test_a_save_may_take_longer_the_more_bytes_it_has(
    run: TrainingRun, store: FakeObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = store.put

    def slow(key: str, data: bytes | memoryview) -> None:
        if "/chunks" in key:
            time.sleep(0.3)
        put(key, data)

    monkeypatch.setattr(store, "put", slow)
    monkeypatch.setattr(saving, "SAVE_S_MAX", 0.0)
    monkeypatch.setattr(saving, "SETTLE_S_MIN", 0.0)
    monkeypatch.setattr(saving, "SLOWEST_BYTES_PER_S", 0.1)  # weight, bias, momenta: 16 bytes
    with run.joined() as a:
        train_linear(a, until=6)
    assert committed_steps(run) == [2, 4, 6]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_saving_thread_that_died_is_not_called_slow(
    run: TrainingRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*given: object) -> Any:
        raise LookupError("as meant")

    monkeypatch.setattr(committing.Committer, "complete", die)
    with run.joined() as a, pytest.raises(TrainingError, match="Its thread died"):
        train_linear(a, until=6)


def test_an_alert_that_cannot_be_recorded_changes_no_outcome(
    run: TrainingRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*given: object) -> Any:
        raise TrackBroken("as meant")

    def poison(step: int, model: nn.Module) -> None:
        if step == 4:
            with torch.no_grad():
                next(model.parameters()).fill_(float("nan"))

    monkeypatch.setattr(Track, "note", broken)
    with run.joined() as a, pytest.raises(NonFinite):
        train_linear(a, until=6, on_step=poison)
    assert committed_steps(run) == [2]


@pytest.mark.parametrize(("own", "other"), [(ABANDONED, SILENT), (SILENT, ABANDONED)])
def test_ranks_that_failed_differently_do_the_same_next(own: Outcome, other: Outcome) -> None:
    """One that tries again while another gives up would wait in a collective for ever."""
    flags = [
        [float(bool(o.failed)), float(o.is_abandoned), float(bool(o.ends))] for o in (own, other)
    ]
    result = [
        {"failed": o.failed, "is_abandoned": o.is_abandoned, "ends": o.ends} for o in (own, other)
    ]
    ranks = SimpleNamespace(
        world_size=2,
        sum=lambda values: [a + b for a, b in zip(*flags, strict=True)],
        gather=lambda value: result,
    )
    saver = object.__new__(Saver)
    saver._launch = SimpleNamespace(ranks=ranks)  # type: ignore[assignment]
    assert saver._agreed(own) == own  # `own` is rank 0's here
    result.reverse()
    assert saver._agreed(own) == other


def test_a_long_word_is_posted_in_pieces_that_the_store_takes() -> None:
    words = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True)
    ranks = Ranks(rank=0, world_size=1, device=torch.device("cpu"))
    ranks._words = words
    for number in range(6):
        value = [number, "é" * (9 * 1024 * 1024)]
        ranks.post(f"save-{number}/part-1", value)
        assert ranks.fetch(f"save-{number}/part-1", timeout_s=5.0) == value
    assert ranks.fetch("save-0/part-1", timeout_s=0.0) is None
    assert not words.check(["save-0/part-1/8"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tracks_dagster.training.ranks.PIECES_MAX", 2)
        with pytest.raises(TrainingError, match="the limit is"):
            ranks.post("more", value)


def test_the_traceback_of_a_save_that_ends_training_names_no_other_end(
    run: TrainingRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lines are searched for causes: a gang whose peer was killed had a NaN loss by one of them."""
    lost = Outcome(failed="DistNetworkError: Broken pipe", ends="TrainingError")
    monkeypatch.setattr(Saver, "_agreed", lambda *_: lost)
    with pytest.raises(TrainingError, match="ended all") as ended, run.joined() as a:
        train_linear(a, until=6)
    assert "NonFinite" not in "".join(traceback.format_exception(ended.value))


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (dist.DistNetworkError("failed to recv, got 0 bytes"), RankLost),
        (dist.DistStoreError("wait timeout after 300000ms, keys: /save-1/outcome"), RankLost),
        (RuntimeError("[../gloo/transport/tcp/pair.cc:534] Connection closed by peer"), RankLost),
        (LookupError("as meant"), TrainingError),
    ],
    ids=["store", "time-out", "gloo", "own"],
)
def test_a_save_that_ends_since_another_rank_is_gone_does_not_blame_the_code(
    run: TrainingRun, monkeypatch: pytest.MonkeyPatch, error: Exception, kind: type[TrainingError]
) -> None:
    def meets(*_: object) -> Outcome:
        raise error

    monkeypatch.setattr(committing.Committer, "_exchange", meets)
    with pytest.raises(TrainingError, match="ended all") as ended, run.joined() as a:
        train_linear(a, until=6)
    assert type(ended.value) is kind


def test_rank_0_knows_how_a_save_ended_though_it_cannot_say_so_to_the_others() -> None:
    """Else its thread dies with the ranks' store, and its last word blames the code."""

    def gone(*_: object, **__: object) -> None:
        raise dist.DistNetworkError("failed to recv, got 0 bytes")

    ranks = SimpleNamespace(is_first=True, rank=0, world_size=2, fetch=gone, post=gone)
    committer = committing.Committer(SimpleNamespace(ranks=ranks), KnownChunks())  # type: ignore[arg-type]
    writer = SimpleNamespace(store=tuple, written_bytes=0, chunks=())
    save = committing.Save(
        number=1, step=2, trigger="final", began=0.0, blocking_s=None, writer=writer, slowest_s=0.0
    )
    outcome = committer.complete(save)
    assert (outcome.ends, outcome.failed) == (
        "RankLost",
        "DistNetworkError: failed to recv, got 0 bytes",
    )

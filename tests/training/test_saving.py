"""Saves and restores against a store that fails, loses replies and rots."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch import nn
from torch.optim import SGD

from tests.fakes import FakeObjectStore, Fault
from tests.training.gangs import TrainingRun
from tests.training.loops import train_linear
from tracks_dagster.track.bodies import CheckpointDecision
from tracks_dagster.track.body_json import to_json
from tracks_dagster.track.errors import (
    CheckpointMismatch,
    CheckpointWriteFailed,
    NonFinite,
    StoreUnavailable,
    TrainingError,
)
from tracks_dagster.track.records import COMMIT_BYTES_MAX, Draft, Kind
from tracks_dagster.track.track import log_key
from tracks_dagster.training.saves.saving import Saver


@pytest.fixture
def run(tmp_path: Path, store: FakeObjectStore) -> TrainingRun:
    """A run that saves every second step, in a store in memory."""
    return TrainingRun(tmp_path, store=store, steps=6, every_steps=2)


def commits(run: TrainingRun) -> list[tuple[int, str]]:
    return [(c.body.ref.step, c.body.trigger) for c in run.state.checkpoints]


def test_training_goes_on_after_a_failed_save_and_says_so(
    run: TrainingRun, store: FakeObjectStore
) -> None:
    def on_step(step: int, model: nn.Module) -> None:
        if step == 2:
            store.fail("put", 1, Fault.FAILS)

    with run.joined() as a:
        train_linear(a, until=6, on_step=on_step)
    assert commits(run) == [(4, "interval"), (6, "final")]
    (failed,) = [line for line in run.journal(1) if line["kind"] == "save_failed"]
    assert failed["step"] == 2
    (alert,) = run.state.alerts
    assert alert.body.rule == "save_failed"
    assert "save of step 2 failed" in alert.body.text


@pytest.mark.parametrize("fault", [Fault.LOST_AFTER, Fault.LOST_BEFORE, Fault.LOST_UNTIL_LATER])
def test_a_lost_reply_to_a_commit_makes_exactly_one_commit(
    run: TrainingRun, store: FakeObjectStore, fault: Fault
) -> None:
    def on_step(step: int, model: nn.Module) -> None:
        if step == 2:
            store.fail("create", 1, fault)

    with run.joined() as a:
        train_linear(a, until=6, on_step=on_step)
    assert commits(run) == [(2, "interval"), (4, "interval"), (6, "final")]


def test_when_the_last_save_fails_the_attempt_does(
    run: TrainingRun, store: FakeObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = store.put

    def failing_put(key: str, data: bytes | memoryview) -> None:
        if "/step-6/" in key:
            raise StoreUnavailable(f"Cannot write {key}: the disk is full.")
        put(key, data)

    monkeypatch.setattr(store, "put", failing_put)
    with run.joined() as a, pytest.raises(CheckpointWriteFailed, match="Steps after 4 will be run"):
        train_linear(a, until=6)
    assert commits(run) == [(2, "interval"), (4, "interval")]


def test_the_journal_is_in_the_store_before_the_commit(
    run: TrainingRun, store: FakeObjectStore
) -> None:
    with run.joined() as a:
        train_linear(a, until=2)
    (commit,) = run.records(Kind.CHECKPOINT_COMMITTED)
    until_commit = store.calls[: store.calls.index(("create", log_key("runs/r", commit.seq)))]
    written = [key for method, key in until_commit if method == "put"]
    assert "/manifest-" in written[-2]
    assert "/journal/rank-0/" in written[-1]
    assert set(run.steps(1)) == {1, 2}


def test_a_commit_that_leans_on_a_quarantined_checkpoint_is_written_again(
    run: TrainingRun,
) -> None:
    with run.joined() as a:
        train_linear(a, until=2)
    restored = run.final()

    def on_step(step: int, model: nn.Module) -> None:
        if step != 4:
            return
        with_model_of_step_2 = run.weights_of(restored)
        model.load_state_dict(with_model_of_step_2)  # so that its chunk is named, not written
        body = CheckpointDecision(manifest_sha256=restored.manifest_sha256, by="a test", why="rot")
        draft = Draft(uid="q", kind=Kind.CHECKPOINT_QUARANTINED, body=to_json(body))
        run.track.decide(lambda records: draft)

    with run.joined() as a:
        train_linear(a, until=4, on_step=on_step)
    commit = run.state.checkpoints[-1].body
    assert commit.ref.step == 4
    manifest = run.manifest_of(commit.ref)
    assert all(chunk.key.startswith(commit.ref.object_prefix) for chunk in manifest.chunks)
    assert commit.written_bytes == sum(chunk.size_bytes for chunk in manifest.chunks)


def test_a_commit_stays_small_however_much_is_reported(run: TrainingRun) -> None:
    metrics = {f"a_metric_with_a_rather_long_name_number_{i:03d}": 1.0 / 3 for i in range(200)}
    with run.joined() as a:
        train_linear(a, until=2, **metrics)
    (commit,) = run.records(Kind.CHECKPOINT_COMMITTED)
    assert len(run.store.get(log_key("runs/r", commit.seq)) or b"") < COMMIT_BYTES_MAX
    assert len(run.manifest_of(run.final()).metrics) == 201
    assert len(run.steps(1)[2]["metrics"]) == 200


def flip(run: TrainingRun, key: str) -> None:
    data = bytearray(run.store.get(key) or b"")
    data[len(data) // 2] ^= 1
    run.store.put(key, bytes(data))


def test_a_flipped_bit_is_quarantined_and_the_run_goes_on_from_the_one_before(
    run: TrainingRun, capfd: pytest.CaptureFixture[str]
) -> None:
    with run.joined() as a:
        train_linear(a, until=4)
    bad = run.final()
    key = run.manifest_of(bad).chunks[0].key
    flip(run, key)
    with run.joined() as a:
        train_linear(a, until=6)
    state = run.state
    assert [(c.ref.step, c.status) for c in state.checkpoints] == [
        (2, "committed"),
        (4, "quarantined"),
        (4, "committed"),  # run again by attempt 2
        (6, "committed"),
    ]
    restored = state.attempts[1].restored
    assert restored is not None
    assert restored.step == 2
    why = restored.fallback_why or ""
    for part in (key, "expected", "blake3", "resumed from step 2 of attempt 1 instead"):
        assert part in why
    assert "is quarantined" in capfd.readouterr().err


def test_with_every_checkpoint_corrupt_the_run_starts_afresh_and_says_so(
    run: TrainingRun,
) -> None:
    with run.joined() as a:
        train_linear(a, until=4)
    for checkpoint in run.state.checkpoints:
        flip(run, run.manifest_of(checkpoint.ref).chunks[0].key)
    with run.joined() as a:
        train_linear(a, until=4)
    restored = run.state.attempts[1].restored
    assert restored is not None
    assert (restored.step, restored.checkpoint) == (0, None)
    assert "nothing is left" in (restored.fallback_why or "")
    assert list(run.steps(2)) == [1, 2, 3, 4]


def test_the_checkpoint_asked_for_is_restored_even_when_a_newer_one_exists(
    run: TrainingRun,
) -> None:
    with run.joined() as a:
        train_linear(a, until=4)
    attempt_id = run.open(resume_step=2)
    with run.joined(attempt_id) as a:
        train_linear(a, until=6)
    restored = run.state.attempts[1].restored
    assert restored is not None
    assert (restored.step, restored.fallback_why) == (2, None)


def test_a_loss_that_is_not_finite_ends_the_attempt_and_saves_nothing(run: TrainingRun) -> None:
    def poison(step: int, model: nn.Module) -> None:
        if step == 3:
            nn.init.constant_(model.weight, float("nan"))  # type: ignore[arg-type]

    with run.joined() as a, pytest.raises(NonFinite, match=r"step 4 is nan; .*of step 2"):
        train_linear(a, until=6, on_step=poison)
    assert commits(run) == [(2, "interval")]


def test_weights_that_are_not_finite_are_never_saved(run: TrainingRun) -> None:
    """The loss of step 2 is of the weights before it: finite, while what it leaves is not."""

    def poison(step: int, model: nn.Module) -> None:
        if step == 4:
            nn.init.constant_(model.weight, float("nan"))  # type: ignore[arg-type]

    with (
        run.joined() as a,
        pytest.raises(NonFinite, match=r"Step 4 left NaN .* in model\.weight.*of step 2") as raised,
    ):
        train_linear(a, until=6, on_step=poison)
    assert commits(run) == [(2, "interval")]
    assert raised.value.onset_step == 4  # the loss of step 5 shows it, the weights of 4 have it


def test_a_save_that_takes_too_long_does_not_hide_a_loss_that_is_not_finite(
    run: TrainingRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    def late(saver: Saver) -> None:
        raise CheckpointWriteFailed("It took more than 420 s.")

    def poison(step: int, model: nn.Module) -> None:
        if step == 3:
            nn.init.constant_(model.weight, float("nan"))  # type: ignore[arg-type]
            monkeypatch.setattr(Saver, "settle", late)

    with run.joined() as a, pytest.raises(NonFinite, match="step 4 is nan"):
        train_linear(a, until=6, on_step=poison)


@pytest.mark.parametrize("change", [{"global_batch": 24}, {"seed": 6}])
def test_going_on_with_other_samples_is_refused(
    run: TrainingRun, change: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    with run.joined() as a:
        train_linear(a, until=2)
    with run.joined() as a:
        sampler = a.sampler
        monkeypatch.setattr(a, "sampler", lambda n, **given: sampler(n, **{**given, **change}))
        with pytest.raises(CheckpointMismatch, match="would train on other samples"):
            train_linear(a, until=4)


def test_a_step_that_is_not_reported_is_a_clear_error(run: TrainingRun) -> None:
    with run.joined() as a:
        a_report, a.report = a.report, lambda step, **given: None  # type: ignore[method-assign]
        with pytest.raises(TrainingError, match=r"Step 1 was not reported .* without __len__"):
            train_linear(a, until=2)
        with pytest.raises(TrainingError, match="Step 7 was reported out of order: step 1 is"):
            a_report(7, loss=0.0)


def test_a_loader_that_yields_none_has_not_ended(run: TrainingRun) -> None:
    with run.joined() as a:
        model = nn.Linear(1, 1)
        a.register(model=model, optimizer=SGD(model.parameters(), lr=0.1))
        a.sampler(10, seed=5)
        steps = a.steps([None, None], until=4)
        for _ in range(2):
            step, batch = next(steps)
            assert batch is None
            a.report(step, loss=0.0)
        with pytest.raises(TrainingError, match="The loader ended before step 3 of 4"):
            next(steps)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("model", "model is a list; .* each further one goes under a name"),
        ("optimizer", "optimizer is a list; .* each further one goes under a name"),
        ("scheduler", "scheduler is a list; .* one object with state_dict"),
        ("scaler", "scaler is a list; .* one object with state_dict"),
    ],
)
def test_a_list_cannot_be_registered_and_the_error_says_what_can(
    run: TrainingRun, name: str, words: str
) -> None:
    model = nn.Linear(1, 1)
    right = {"model": model, "optimizer": SGD(model.parameters(), lr=0.1)}
    with run.joined() as a, pytest.raises(TrainingError, match=words):
        a.register(**{**right, name: [right.get(name)]})  # type: ignore[arg-type]


def test_the_loader_is_iterated_once_an_attempt(run: TrainingRun) -> None:
    """`next(iter(loader))` on every step would see the same batch again and again."""
    with run.joined() as a:
        train_linear(a, until=6)
    digests = [line["indices_sha256"] for line in run.steps(1).values()]
    assert len(set(digests)) == 6

"""What a drill does to a gang of real ranks, once, and must not do, whatever gang plays it."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from torch import nn

from tests.fakes import FakeObjectStore
from tests.training.gangs import TrainingRun
from tests.training.loops import train_linear
from tracks_dagster.attempts.drills import fit_drill, parse_drill
from tracks_dagster.reasons.hangs import Beat, Phase, beat_file, decode_beat
from tracks_dagster.track.bodies import Drill
from tracks_dagster.track.errors import Fenced
from tracks_dagster.track.records import Kind
from tracks_dagster.training import drills

KILLED = -int(signal.SIGKILL)


def drilled(folder: Path, text: str, *, ranks: int = 1, steps: int = 12) -> TrainingRun:
    """A run of 12 steps, saved every 5, with one drill."""
    config = {"steps": steps, "micro_batch": 2}
    drill = fit_drill(parse_drill(text), config, {}, ranks=ranks)
    return TrainingRun(folder, ranks=ranks, steps=steps, drills=(drill,))


def claims(run: TrainingRun) -> list[str]:
    return [note.body["text"] for note in run.records(Kind.NOTE)]


@pytest.mark.parametrize(
    ("text", "ranks", "exit_codes", "reasons", "last_step"),
    [
        ("nan@7", 2, [1, 1], ["nan_loss", "nan_loss"], 6),  # rank 1's, seen by both in one step
        ("bad_batch@7", 1, [1], ["bad_input_data"], 6),
        ("storage_error@7", 1, [1], ["storage_io"], 6),
        (
            "disk_full@7",
            1,
            [1],
            ["disk_full"],
            12,
        ),  # the save of 10 fails too; the last one ends it
        ("sigkill@7", 2, [KILLED, KILLED], [], None),
        ("sigkill@7,rank=1", 2, [1, KILLED], ["rank_lost_secondary"], 7),
        ("rank_crash@7", 2, [1, -int(signal.SIGSEGV)], ["rank_lost_secondary"], 6),
    ],
)
def test_a_drill_ends_one_attempt_for_its_reason_and_the_next_one_completes(
    tmp_path: Path,
    text: str,
    ranks: int,
    exit_codes: list[int],
    reasons: list[str],
    last_step: int | None,
) -> None:
    run = drilled(tmp_path, text, ranks=ranks)
    gang = run.train()
    assert gang.exit_codes == exit_codes, gang.log()
    words = run.last_words(1)
    assert [word.reason for word in words] == reasons
    if last_step is not None:
        assert {word.step for word in words} == {last_step}
    assert [c.ref.step for c in run.state.checkpoints] == [5]
    again = run.train()
    assert set(again.exit_codes) == {0}, again.log()
    assert claims(run) == [f"Drill {text.partition(',')[0]} fires."]
    assert run.final().step == 12


def test_a_nan_says_at_which_step_the_numbers_went_wrong(tmp_path: Path) -> None:
    run = drilled(tmp_path, "nan@7")
    run.train()
    (word,) = run.last_words(1)
    assert (word.step, word.onset_step) == (6, 7)


def test_a_nan_of_one_rank_is_reported_by_all_with_step_rank_and_value(tmp_path: Path) -> None:
    run = drilled(tmp_path, "nan@7,rank=1", ranks=2)
    run.train()
    said = "The loss of step 7 is nan (nan on rank 1, of 2 ranks); nothing of this step is saved. "
    assert [word.message for word in run.last_words(1)] == [
        f"{said}The last checkpoint is of step 5."
    ] * 2


@pytest.mark.parametrize(
    ("how", "place"),
    [("code", Phase.COMPUTING), ("loader", Phase.WAITING_FOR_DATA), ("stopped", Phase.COMPUTING)],
)
def test_a_rank_that_hangs_stands_where_the_drill_says_while_the_other_waits_for_it(
    tmp_path: Path, how: str, place: Phase
) -> None:
    run = drilled(tmp_path, f"hang@7,rank=1,how={how}", ranks=2)
    gang = run.start()

    def stands(rank: int) -> Beat | None:
        path = beat_file(gang.work, rank)
        return decode_beat(rank, path.read_bytes()) if path.exists() else None

    def hangs() -> bool:
        first, second = stands(0), stands(1)
        at_7 = first is not None and second is not None and {first.step, second.step} == {7}
        waits = at_7 and first is not None and first.phase is Phase.COMPUTING
        return waits and claims(run) != []

    gang.wait(hangs)
    second = stands(1)
    gang.signal(signal.SIGKILL)
    gang.wait()
    assert second is not None
    assert second.phase is place
    assert second.step_s_p99 > 0.0
    assert claims(run) == ["Drill hang@7 fires."]


def test_a_damaged_snapshot_is_refused_in_every_attempt(tmp_path: Path) -> None:
    run = drilled(tmp_path, "bad_snapshot@0")
    for attempt_id in (1, 2):
        assert run.train().exit_codes == [1]
        (word,) = run.last_words(attempt_id)
        assert (word.reason, word.step) == ("bad_input_data", None)
        assert "expected sha256" in word.message


def test_a_corrupted_checkpoint_is_quarantined_and_the_one_before_resumed_from(
    tmp_path: Path,
) -> None:
    run = drilled(tmp_path, "corrupt_checkpoint@11")
    assert run.train().exit_codes == [KILLED]
    assert run.train().exit_codes == [0]
    restored = run.state.attempts[1].restored
    assert restored is not None
    assert (restored.step, restored.checkpoint and restored.checkpoint.step) == (5, 5)
    assert "10" in (restored.fallback_why or "")
    (quarantined,) = run.records(Kind.CHECKPOINT_QUARANTINED)
    assert quarantined.attempt_id == 2


def test_a_spike_is_an_alert_and_training_goes_on(tmp_path: Path) -> None:
    run = drilled(tmp_path, "spike@30", steps=34)
    assert run.train().exit_codes == [0]
    (alert,) = run.records(Kind.ALERT)
    assert (alert.body["rule"], alert.body["data"]["step"]) == ("loss_spike", 30)
    (line,) = [line for line in run.journal(1) if line["kind"] == "loss_spike"]
    assert line["step"] == 30


def test_a_spike_that_stays_ends_the_attempt_as_diverged_since_its_first_step(
    tmp_path: Path,
) -> None:
    drill = parse_drill("spike@30,steps=9")
    run = TrainingRun(tmp_path, ranks=2, steps=40, drills=(drill,), divergence_steps=4)
    assert run.train().exit_codes == [1, 1]
    words = run.last_words(1)
    assert {word.reason for word in words} == {"loss_divergence"}
    assert {(word.step, word.onset_step) for word in words} == {(32, 30)}
    assert max(c.ref.step for c in run.state.checkpoints) == 30


def test_a_zombie_does_not_use_up_the_drill_of_the_attempt_after_it(
    tmp_path: Path, store: FakeObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drills, "SIGNAL_S_MAX", 0.1)
    preempt = Drill(kind="preempt", step=2)
    run = TrainingRun(tmp_path, store=store, steps=4, every_steps=None, drills=(preempt,))

    def on_step(step: int, model: nn.Module) -> None:
        if step == 2:
            run.open()  # ends the attempt that is in this step

    with run.joined() as a, pytest.raises(Fenced):
        train_linear(a, until=4, on_step=on_step)
    assert run.records(Kind.NOTE) == []

"""A rank says where it stands, at every change of phase."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from torch import nn

from tests.fakes import FakeObjectStore
from tests.training.gangs import TrainingRun
from tests.training.loops import train_linear
from tracks_dagster.reasons.hangs import Beat, Phase, beat_file, decode_beat
from tracks_dagster.training.pulse import Pulse, StepTimes
from tracks_dagster.training.saves.saving import Saver


def test_beats_tell_the_phase_the_step_and_how_long_steps_take(
    tmp_path: Path, store: FakeObjectStore
) -> None:
    run = TrainingRun(tmp_path, store=store, steps=4, every_steps=None)
    seen: list[Beat | None] = []

    with run.joined() as a:
        path = beat_file(tmp_path / "work-1", 0)

        def on_step(step: int, model: nn.Module) -> None:
            seen.append(decode_beat(0, path.read_bytes()))
            if step == 3:
                with a.evaluating():
                    seen.append(decode_beat(0, path.read_bytes()))

        train_linear(a, until=4, on_step=on_step)
        seen.append(decode_beat(0, path.read_bytes()))
    assert None not in seen
    beats = [beat for beat in seen if beat is not None]
    assert [(beat.phase, beat.step) for beat in beats] == [
        (Phase.COMPUTING, 1),
        (Phase.COMPUTING, 2),
        (Phase.COMPUTING, 3),
        (Phase.EVALUATING, 3),
        (Phase.COMPUTING, 4),
        (Phase.ENDING, 4),
    ]
    counts = [beat.count for beat in beats]
    assert counts == sorted(set(counts))
    # The first step may compile: it is in no percentile.
    assert [beat.step_s_p99 > 0.0 for beat in beats[:3]] == [False, False, True]


def test_a_script_that_fails_is_ending_while_its_save_goes_on(
    tmp_path: Path, store: FakeObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the step in which it failed would seem to hang, and its own word be lost."""
    run = TrainingRun(tmp_path, store=store, steps=4, every_steps=2)
    seen: list[Beat | None] = []
    path = beat_file(tmp_path / "work-1", 0)

    def closing(saver: Saver, *, rank_is_lost: bool) -> None:
        assert not rank_is_lost
        seen.append(decode_beat(0, path.read_bytes()))

    monkeypatch.setattr(Saver, "close", closing)

    def on_step(step: int, model: nn.Module) -> None:
        if step == 3:
            raise RuntimeError("of the script")

    with run.joined() as a, pytest.raises(RuntimeError, match="of the script"), a.saves_settled():
        train_linear(a, until=4, on_step=on_step)
    assert seen[0] is not None
    assert (seen[0].phase, seen[0].step) == (Phase.ENDING, 3)


def test_a_rank_says_how_long_it_waits_for_a_save(tmp_path: Path, store: FakeObjectStore) -> None:
    run = TrainingRun(tmp_path, store=store, steps=4, every_steps=2)
    path = beat_file(tmp_path / "work-1", 0)
    seen: list[Beat | None] = []
    put = store.put

    def seeing_put(key: str, data: bytes | memoryview) -> None:
        if "/step-4/" in key:
            seen.append(decode_beat(0, path.read_bytes()))
        put(key, data)

    store.put = seeing_put  # type: ignore[method-assign]
    with run.joined() as a:
        train_linear(a, until=4)
    last = seen[-1]  # the save of the last step is waited for
    assert last is not None
    assert last.phase is Phase.SAVING
    assert last.may_take_s > 60.0


def test_a_disk_that_takes_no_beat_ends_no_training_and_leaves_no_old_beat(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pulse = Pulse(tmp_path, 0)
    pulse.beat(Phase.COMPUTING, 1)

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    pulse.beat(Phase.COMPUTING, 2)
    assert not beat_file(tmp_path, 0).exists()
    pulse.beat(Phase.COMPUTING, 3)
    pulse.close()
    pulse.close()


def test_the_percentile_is_that_of_the_newest_times() -> None:
    times = StepTimes()
    assert times.percentile_99 == 0.0
    for number in range(1, 201):
        times.take(number / 100)
    assert times.percentile_99 == 1.98  # the 198th of 200
    for _ in range(512):
        times.take(0.5)
    assert times.percentile_99 == 0.5

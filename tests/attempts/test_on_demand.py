"""A person asks a running gang for a checkpoint: who is asked, and which commit is the answer."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.bodies import placed
from tests.fakes import FakeGangs, FakeObjectStore
from tests.histories import History
from tracks_dagster.attempts.effects.on_demand import (
    SaveRequest,
    ask_to_save,
    saved_since,
    wait_for_save,
    why_not_saved,
)
from tracks_dagster.attempts.ports import GangPhase, GangReport
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.track.bodies import Program
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.names import AttemptRef
from tracks_dagster.track.states.run_state import RunState


@pytest.fixture
def gangs() -> FakeGangs:
    gangs = FakeGangs()
    gangs.reports["r-1", 1] = GangReport(phase=GangPhase.ALIVE, boot_ids={"node-1": "boot-1"})
    return gangs


def running() -> History:
    return History("r-1").declare().open().place().restore().commit(20)


def test_rank_0_is_asked_and_the_next_save_on_demand_is_the_answer(
    tracks: Tracks, store: FakeObjectStore, gangs: FakeGangs
) -> None:
    history = running()
    history.write_to(store)
    asked = ask_to_save(tracks, lambda _: gangs, "r-1")
    assert [place.pid for place in gangs.asked_to_save] == [100]

    def commits(seconds: float) -> None:
        history.commit(23, trigger="demand").write_to(store)

    found = wait_for_save(tracks, asked, wait_s=60.0, sleep=commits)
    assert found is not None
    assert (found.ref.step, found.body.trigger) == (23, "demand")


def test_a_command_that_publishes_folders_is_not_asked(
    tracks: Tracks, store: FakeObjectStore, gangs: FakeGangs
) -> None:
    program = Program(entry=("./train.sh",), by_files=True)
    History("r-1").declare(program=program).open().place().restore().write_to(store)
    with pytest.raises(InvalidInput, match="was not asked: its trainer publishes folders"):
        ask_to_save(tracks, lambda _: gangs, "r-1")
    assert gangs.asked_to_save == []


@pytest.mark.parametrize(
    ("triggers", "step"),
    [
        ((), None),
        (("interval",), None),  # may have been under way when the gang was asked
        (("interval", "demand"), 22),
        (("interval", "interval"), 22),  # what was asked for fell on the interval
        (("demand",), 21),
        (("final",), 21),
    ],
)
def test_a_save_that_was_under_way_before_is_not_an_answer(
    triggers: tuple[str, ...], step: int | None
) -> None:
    history = running()
    asked = SaveRequest(ref=AttemptRef("r-1", 1), seq=history.state.head.seq)
    for index, trigger in enumerate(triggers):
        history.commit(21 + index, trigger=trigger)
    found = saved_since(history.state, asked)
    assert (None if found is None else found.ref.step) == step


@pytest.mark.parametrize(
    ("history", "words"),
    [
        (History("r-1").declare(), "no attempt that runs"),
        (running().end("preempted", last_step=23), "no attempt that runs"),
        (History("r-1").declare().open(), "not begun to train"),
        (History("r-1").declare().open().place(), "not begun to train"),
    ],
    ids=["declared", "ended", "opened", "placed"],
)
def test_a_run_that_does_not_train_is_not_asked(
    history: History, words: str, tracks: Tracks, store: FakeObjectStore, gangs: FakeGangs
) -> None:
    history.write_to(store)
    with pytest.raises(InvalidInput, match=words):
        ask_to_save(tracks, lambda _: gangs, "r-1")
    assert gangs.asked_to_save == []


@pytest.mark.parametrize(
    ("boot_id", "words"), [("boot-1", "process 100, does not live"), ("boot-2", "on node-1")]
)
def test_a_rank_that_does_not_listen_here_is_distinguished_from_one_elsewhere(
    boot_id: str, words: str, tracks: Tracks, store: FakeObjectStore, gangs: FakeGangs
) -> None:
    running().write_to(store)
    gangs.listens = False
    gangs.reports["r-1", 1] = GangReport(phase=GangPhase.ALIVE, boot_ids={"node-1": boot_id})
    with pytest.raises(InvalidInput, match=words):
        ask_to_save(tracks, lambda _: gangs, "r-1")


def test_a_rank_on_a_cluster_that_was_not_asked_is_named_by_its_pod(
    tracks: Tracks, store: FakeObjectStore, gangs: FakeGangs
) -> None:
    places = tuple(replace(place, pod=f"p-{place.rank}") for place in placed("x").ranks)
    history = History("r-1").declare().open().place(ranks=places).restore()
    history.write_to(store)
    gangs.listens = False
    gangs.reports["r-1", 1] = GangReport(phase=GangPhase.ALIVE, sees_all_nodes=True)
    with pytest.raises(InvalidInput, match="process 100 in pod p-0 on node-1, does not") as raised:
        ask_to_save(tracks, lambda _: gangs, "r-1")
    assert "machine" not in str(raised.value)


def test_the_wait_ends_with_the_attempt_or_with_its_time(
    tracks: Tracks, store: FakeObjectStore, gangs: FakeGangs
) -> None:
    history = running()
    history.write_to(store)
    asked = ask_to_save(tracks, lambda _: gangs, "r-1")
    assert wait_for_save(tracks, asked, wait_s=0.0) is None
    assert "came yet" in why_not_saved(state(tracks), asked)
    history.alert("The save of step 23 failed.").write_to(store)
    assert "step 23 failed" in why_not_saved(state(tracks), asked)
    history.end("preempted", last_step=23).write_to(store)
    assert wait_for_save(tracks, asked, wait_s=60.0) is None


def state(tracks: Tracks) -> RunState:
    return tracks.run("r-1")

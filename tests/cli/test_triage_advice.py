"""What `tracks triage` tells a person to do, by how the runs stand and whether a daemon is up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.fakes import FakeGangs, FakeObjectStore
from tests.histories import History
from tests.six_variants import MORNING, NODE, FakeMachine, sources_of
from tracks_dagster.attempts.effects.heartbeat import write_launches
from tracks_dagster.attempts.launch import PendingLaunch
from tracks_dagster.attempts.machine import MachineNow
from tracks_dagster.attempts.ports import GangPhase, GangReport
from tracks_dagster.ledger.effects.database import open_ledger
from tracks_dagster.ledger.effects.projector import Projector
from tracks_dagster.reasons.evidence import RankEnd
from tracks_dagster.track.bodies import AttemptSupervised, ComputeRequest
from tracks_dagster.track.records import Kind, canonical_json, format_time
from tracks_dagster.wings.kubernetes.settings import KUBERNETES
from tracks_dagster.wings.triage.edge.triage import print_steps, print_triage
from tracks_dagster.wings.triage.effects.triage import GivenDevices, Triage, triage

Advised = Callable[..., str]
SLOTS = GivenDevices(slots=12)
NO_DEVICES = GivenDevices(devices=0, slots=12)
NOTHING = "There is nothing to do."
SUPERVISOR = AttemptSupervised(
    dagster_run_id="dagster-1", host=NODE, pid=7, pid_started=1.5, boot_id="boot-2"
)


def show_steps(found: Triage) -> None:
    print_steps(found, options="")


@pytest.fixture
def gangs() -> FakeGangs:
    return FakeGangs(NODE)


@pytest.fixture
def advised(
    tmp_path: Path, store: FakeObjectStore, gangs: FakeGangs, capsys: pytest.CaptureFixture[str]
) -> Advised:
    """The advice on these runs. sensors: of a daemon that ticks, None: none does."""
    ledger = open_ledger(f"sqlite:///{tmp_path / 'ledger.db'}")
    machine = FakeMachine(MachineNow(node=NODE, boot_id="boot-2", living={7: 1.5}))
    sources = sources_of(store, ledger, gangs, machine=machine)

    def result(
        *histories: History,
        asked: GivenDevices = SLOTS,
        sensors: dict[str, bool] | None = None,
        shows: Callable[[Triage], None] = show_steps,
    ) -> str:
        for history in histories:
            history.write_to(store)
        Projector(store, ledger).scan()
        if sensors is not None:
            beat = {"at": format_time(MORNING), "sensors": sensors}
            store.put("daemon/heartbeat.json", canonical_json(beat))
        shows(triage(sources, asked))
        return capsys.readouterr().out

    return result


def started(run_id: str) -> History:
    return History(run_id).declare().open().supervise().place(world_size=1).restore()


def gone(exit_code: int | None = None) -> GangReport:
    return GangReport(
        phase=GangPhase.GONE, ranks=(RankEnd(rank=0, exit_code=exit_code),), where=NODE
    )


def test_what_is_only_to_be_finished_needs_a_daemon(advised: Advised) -> None:
    runs = (
        started("complete").commit(60, trigger="final").end("completed", last_step=60),
        started("stopped").end("user_cancelled", last_step=3).stop(),
        History("unborn").declare().stop(),
    )
    result = advised(*runs)
    assert "`tracks up` continues complete, stopped, unborn." in result
    assert "--apply" not in result  # which does none of it
    assert NOTHING in advised(*runs, sensors={"watch_attempts": True})


def test_a_launch_that_does_not_come_is_something_to_do_beside_a_daemon_that_ticks(
    advised: Advised, store: FakeObjectStore
) -> None:
    opened = History("opened").declare().open()
    failed = PendingLaunch(
        key="opened/a01", failed_count=4, why="no answer in 300 s; see daemon.log"
    )
    another = PendingLaunch(key="another/a01", failed_count=9, why="it was not asked about")
    write_launches(store, "launch_attempts", [failed, another])
    result = advised(opened, sensors={"watch_attempts": True})
    assert NOTHING not in result
    assert "See why opened/a01 is late: 4 launches failed: no answer in 300 s; see" in result
    assert "another/a01" not in result


QUEUED = "0 of 2 devices free; after gpt-7/a02, about 14 min"


def test_an_ordinary_wait_for_devices_is_not_late_and_is_in_the_order_in_its_own_words(
    advised: Advised, store: FakeObjectStore
) -> None:
    waits = PendingLaunch(key="opened/a01", failed_count=0, why=QUEUED, waits=True)
    an_eval = PendingLaunch(key="opened/quality@1/1", failed_count=0, why=QUEUED, waits=True)
    write_launches(store, "launch_attempts", [waits])
    write_launches(store, "run_evals", [an_eval])
    opened = History("opened").declare().open()
    result = advised(opened, sensors={"watch_attempts": True}, shows=print_triage)
    assert f"1. opened: later ({QUEUED})" in result
    assert f"opened/quality@1/1: {QUEUED}" in result
    assert "now on" not in result
    assert NOTHING in advised(opened, sensors={"watch_attempts": True})


def test_a_queue_that_no_daemon_keeps_any_more_is_not_believed(
    advised: Advised, store: FakeObjectStore
) -> None:
    waits = PendingLaunch(key="opened/a01", failed_count=0, why=QUEUED, waits=True)
    write_launches(store, "launch_attempts", [waits])
    result = advised(History("opened").declare().open(), shows=print_triage)
    assert "1. opened: now on cpu:0" in result
    assert QUEUED not in result


def test_what_waits_for_a_person_is_nothing_that_a_daemon_goes_on_with(advised: Advised) -> None:
    drained = started("drained").stop("drain").end("user_cancelled", last_step=3)
    cancelled = started("cancelled").end("user_cancelled", last_step=3)
    assert NOTHING in advised(drained, cancelled)


def test_a_run_on_a_cluster_that_is_due_needs_a_daemon(advised: Advised) -> None:
    compute = ComputeRequest(launcher=KUBERNETES, device_class="gpu")
    result = advised(History("far").declare(compute=compute))
    assert "`tracks up` continues far." in result
    assert "--apply" not in result  # which does not open it: the cluster has its own queue


def test_an_end_to_record_that_leaves_only_the_finish_needs_a_daemon_too(
    advised: Advised, gangs: FakeGangs
) -> None:
    steps = History("x").declare().state.declared.config["steps"]
    histories = (started("complete").commit(steps, trigger="final"), started("stopped").stop())
    gangs.reports["complete", 1] = gone(0)
    gangs.reports["stopped", 1] = gone()
    result = advised(*histories)
    assert "records the end of complete, stopped." in result
    assert "`tracks up` continues complete, stopped." in result


def test_an_orphan_is_reported_though_the_daemon_ticked_just_now(
    advised: Advised, gangs: FakeGangs
) -> None:
    ended = replace(SUPERVISOR, pid=8)  # which is not a process any more
    history = History("o").declare().open().add(Kind.ATTEMPT_SUPERVISED, ended, attempt_id=1)
    gangs.reports["o", 1] = GangReport(phase=GangPhase.ALIVE, where=NODE)
    result = advised(history.place(world_size=1), sensors={})
    assert "The daemon adopts o within seconds" in result
    assert "`tracks up` starts another" in result


def test_a_dead_gang_whose_supervisor_lives_is_left_to_it(
    advised: Advised, gangs: FakeGangs
) -> None:
    history = History("s").declare().open().add(Kind.ATTEMPT_SUPERVISED, SUPERVISOR, attempt_id=1)
    history.place(world_size=1).restore()
    gangs.reports["s", 1] = gone()
    result = advised(history)
    assert "--apply" not in result
    assert "`tracks up` continues s." in result

"""The case of nine variants after a reboot: what triage says of them, and that it only reads."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from tests.bodies import placed
from tests.fakes import FakeGangs, FakeObjectStore
from tests.histories import History
from tests.six_variants import (
    DONE,
    FAMILY,
    INTERRUPTED,
    MEMORY_BYTES,
    MORNING,
    NODE,
    QUEUED,
    FakeMachine,
    write_variants,
)
from tracks_dagster.attempts.effects.heartbeat import write_launches
from tracks_dagster.attempts.launch import PendingLaunch
from tracks_dagster.attempts.machine import DeviceHolder, Devices, Gpu, MachineNow
from tracks_dagster.attempts.ports import GangPhase, GangReport
from tracks_dagster.ledger.effects.database.sql_ledger import SqlLedger
from tracks_dagster.ledger.effects.projector import Projector
from tracks_dagster.scheduling.model import Plan
from tracks_dagster.track.errors import GangError, UnknownRun
from tracks_dagster.track.names import AttemptRef
from tracks_dagster.track.records import canonical_json, format_time
from tracks_dagster.wings.triage.effects.reading import read_sql
from tracks_dagster.wings.triage.effects.triage import GivenDevices, Sources, Triage, triage

GIB = 2**30
ONE_DEVICE = GivenDevices(devices=1, memory_bytes=24 * GIB, slots=12)
SLOTS = GivenDevices(slots=12)


@pytest.fixture
def variants(
    store: FakeObjectStore, ledger: SqlLedger, gangs: FakeGangs, sources: Sources
) -> Triage:
    """The answer for the whole family, planned for one device of 24 GiB."""
    write_variants(store, gangs)
    Projector(store, ledger).scan()
    return triage(sources, ONE_DEVICE, family=FAMILY)


def project(store: FakeObjectStore, ledger: SqlLedger, *histories: History) -> None:
    for history in histories:
        history.write_to(store)
    Projector(store, ledger).scan()


def test_the_nine_variants_are_done_interrupted_and_queued(variants: Triage) -> None:
    standings = {line.run_id: line.standing for line in variants.lines}
    assert standings == {
        **dict.fromkeys(DONE, "done"),
        **dict.fromkeys(INTERRUPTED, "interrupted"),
        **dict.fromkeys(QUEUED, "queued"),
    }
    assert {variants.line(run_id).verdict for run_id in INTERRUPTED} == {"dead"}


@pytest.mark.parametrize(
    ("run_id", "percent", "epoch", "accuracy"),
    [("v2-2", 55.3, 83, 64.84), ("v2-3", 28.0, 42, 56.99)],  # 830/1500 and 420/1500 steps
)
def test_progress_is_steps_of_steps_and_never_the_accuracy(
    run_id: str, percent: float, epoch: int, accuracy: float, variants: Triage
) -> None:
    line = variants.line(run_id)
    assert (line.percent, line.epoch, line.epochs) == (percent, epoch, 150)
    assert line.metrics["accuracy"] == accuracy
    assert line.metrics_step == line.step == epoch * 10


@pytest.mark.parametrize(
    ("run_id", "minutes"),
    [("v2-2", 40.2), ("v2-3", 150.12)],  # 67 epochs of 0.60 min, 108 of 1.39
)
def test_time_left_comes_from_each_runs_own_steps_with_an_interval(
    run_id: str, minutes: float, variants: Triage
) -> None:
    line = variants.line(run_id)
    assert line.left_s == pytest.approx(minutes * 60, rel=0.01)
    assert line.left_low_s is not None
    assert line.left_high_s is not None
    assert line.left_s is not None
    assert 0 < line.left_low_s < line.left_s < line.left_high_s < 1.2 * line.left_s
    assert "60 steps of attempt 1" in (line.pace or "")


def test_every_commit_is_what_a_restart_goes_on_from(variants: Triage) -> None:
    line = variants.line("v2-2")
    assert (line.committed_step, line.lost_steps, line.lost_s) == (830, 0, 0.0)


def test_two_fit_into_the_memory_and_the_others_follow_in_sequence(variants: Triage) -> None:
    assert variants.plan.order == ("v2-2", "v2-3", "v2-5", "v2-6")
    assert [each.key for each in variants.plan.starts] == ["v2-2", "v2-3"]
    third, fourth = variants.plan.waits
    assert third.after == ("v2-2",)
    assert third.why == "0 of 1 device free; after v2-2, about 40 min"
    assert third.in_s == pytest.approx(40.2 * 60, rel=0.01)
    assert fourth.after == ("v2-5",)  # declared to take 90 minutes: before v2-3 ends
    assert fourth.in_s == pytest.approx((40.2 + 90) * 60, rel=0.01)


def test_the_code_is_shown_also_on_a_detached_head_with_changes(variants: Triage) -> None:
    assert variants.line("v2-2").code == "detached c0ffeec0ffee, uncommitted changes"


def test_every_cell_of_a_line_names_where_it_can_be_looked_up(
    variants: Triage, store: FakeObjectStore
) -> None:
    signs = variants.line("v2-2").signs
    cells = {sign.cell for sign in signs}
    assert cells == {
        "verdict",
        "code",
        "commit",
        "epoch",
        "progress",
        "metrics",
        "time left",
        "memory",
    }
    keys = [sign.source for sign in signs if sign.source.startswith("runs/")]
    assert keys
    assert all(next(store.list(key), None) is not None for key in keys)
    said = " ".join(sign.words for sign in signs if sign.cell == "verdict")
    assert "rebooted" in said
    assert "pid 100 ended with its boot" in said
    assert "no daemon ever ticked" in said


def test_triage_changes_nothing_in_the_store_or_the_ledger(
    store: FakeObjectStore, ledger: SqlLedger, gangs: FakeGangs, sources: Sources
) -> None:
    write_variants(store, gangs)
    Projector(store, ledger).scan()
    objects, rows, calls = dict(store.objects), ledger.dump(), len(gangs.calls)
    triage(sources, ONE_DEVICE)
    triage(sources, SLOTS, family=FAMILY)
    assert (store.objects, ledger.dump(), len(gangs.calls)) == (objects, rows, calls)


def test_without_names_only_what_is_not_over_is_reported(
    variants: Triage, sources: Sources
) -> None:
    found = triage(sources, ONE_DEVICE)
    assert [line.run_id for line in found.lines] == [*INTERRUPTED, *QUEUED]


def test_the_pace_of_an_attempt_without_a_step_is_the_one_before_it(
    store: FakeObjectStore, ledger: SqlLedger, gangs: FakeGangs, sources: Sources
) -> None:
    [history] = [each for each in write_variants(store, gangs) if each.run_id == "v2-2"]
    history.end("node_failure", last_step=830).open().supervise().place(world_size=1)
    project(store, ledger, history)
    line = triage(sources, SLOTS, run_ids=["v2-2"]).line("v2-2")
    assert line.attempt_id == 2
    assert "of attempt 1" in (line.pace or "")


def test_an_attempt_on_another_machine_is_not_called_dead(
    store: FakeObjectStore, ledger: SqlLedger, sources: Sources, machine: FakeMachine
) -> None:
    project(store, ledger, History("r-1").declare().open().supervise().place())
    machine.now = MachineNow(node="elsewhere", boot_id="boot-2")
    gangs = FakeGangs("elsewhere")
    found = triage(with_gangs(sources, gangs), SLOTS)
    [line] = found.lines
    assert line.verdict == "not_seen"
    assert "node-1" in line.why
    assert found.plan == Plan()


def test_of_a_cluster_that_does_not_answer_every_attempt_has_its_own_words_and_pods(
    store: FakeObjectStore, ledger: SqlLedger, sources: Sources
) -> None:
    class Lost(FakeGangs):
        def glance(self, ref: AttemptRef) -> GangReport:
            self.calls.append(("glance", ref.run_id, ref.attempt_id))
            raise GangError(f"Cannot look at {ref.run_id}: the API server cannot be reached.")

    gangs = Lost()
    on_cluster = [History(run_id).declare() for run_id in ("r-1", "r-2")]
    for history in on_cluster:
        compute = history.state.declared.compute
        ranks = tuple(replace(rank, pod=f"pod-{rank.rank}") for rank in placed("").ranks)
        history.open(compute=type(compute)(launcher="kubernetes")).supervise().place(ranks=ranks)
    project(store, ledger, *on_cluster)
    found = triage(with_gangs(sources, gangs), SLOTS)
    assert [line.verdict for line in found.lines] == ["not_seen", "not_seen"]
    assert all(f"look at {line.run_id}: the API" in line.why for line in found.lines)
    said = " ".join(sign.words for sign in found.lines[0].signs)
    assert "placed in 2 pods, pod-0 on node-1, pod-1 on node-1; now: not asked" in said


def test_a_cluster_that_hangs_is_asked_for_a_bounded_time_in_all(
    store: FakeObjectStore,
    ledger: SqlLedger,
    sources: Sources,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hangs = threading.Event()

    class Hanging(FakeGangs):
        def glance(self, ref: AttemptRef) -> GangReport:
            self.calls.append(("glance", ref.run_id, ref.attempt_id))
            hangs.wait(60)
            raise GangError("too late")

    monkeypatch.setattr("tracks_dagster.wings.triage.effects.reading.ANSWERS_S_MAX", 0.2)
    for run_id in ("r-1", "r-2"):
        history = History(run_id).declare()
        compute = replace(history.state.declared.compute, launcher="kubernetes")
        project(store, ledger, history.open(compute=compute).supervise().place())
    gangs = Hanging()
    found = triage(with_gangs(sources, gangs), SLOTS)
    hangs.set()
    assert {line.why for line in found.lines} == {
        "Not seen from here: launcher kubernetes did not answer within 0.2 s"
    }
    assert len(gangs.calls) == 1


def test_a_living_gang_is_alive_with_a_daemon_and_orphaned_without(
    store: FakeObjectStore, ledger: SqlLedger, gangs: FakeGangs, sources: Sources
) -> None:
    project(store, ledger, History("r-1").declare().open().supervise().place().restore())
    gangs.reports["r-1", 1] = GangReport(phase=GangPhase.ALIVE, where=NODE)
    [line] = triage(sources, SLOTS).lines
    assert line.verdict == "orphaned"
    assert "`tracks up` adopts it" in line.why
    beat = {"at": format_time(MORNING), "sensors": {}}
    store.put("daemon/heartbeat.json", canonical_json(beat))
    # The claim is node-1's own, of no recorded process: where nobody can tell, the daemon sees to it.
    [line] = triage(sources, SLOTS).lines
    assert line.verdict == "alive"


def test_device_memory_of_a_process_that_is_not_a_rank_is_named_and_not_planned_with(
    store: FakeObjectStore,
    ledger: SqlLedger,
    gangs: FakeGangs,
    sources: Sources,
    machine: FakeMachine,
) -> None:
    write_variants(store, gangs)
    Projector(store, ledger).scan()
    gpu = Gpu(uuid="GPU-1", name="a GPU", total_bytes=24 * GIB, used_bytes=11 * GIB)
    holder = DeviceHolder(pid=4242, process="python", uuid="GPU-1", used_bytes=MEMORY_BYTES)
    machine.found = Devices(gpus=(gpu,), holders=(holder,))
    found = triage(sources, SLOTS)
    [orphan] = [each for each in found.orphan_memory if each.pid is not None]
    assert (orphan.pid, orphan.used_bytes) == (4242, MEMORY_BYTES)
    assert [each.key for each in found.plan.starts] == ["v2-2"]
    assert len(found.plan.waits) == 3


def test_runs_that_were_not_named_keep_their_devices_and_their_memory(
    store: FakeObjectStore,
    ledger: SqlLedger,
    gangs: FakeGangs,
    sources: Sources,
    machine: FakeMachine,
) -> None:
    write_variants(store, gangs)
    Projector(store, ledger).scan()
    for run_id in INTERRUPTED:
        gangs.reports[run_id, 1] = GangReport(phase=GangPhase.ALIVE, where=NODE)
    store.put("daemon/heartbeat.json", canonical_json({"at": format_time(MORNING), "sensors": {}}))
    gpu = Gpu(uuid="GPU-1", name="a GPU", total_bytes=24 * GIB, used_bytes=MEMORY_BYTES)
    holder = DeviceHolder(pid=100, process="python", uuid="GPU-1", used_bytes=MEMORY_BYTES)
    machine.now = MachineNow(node=NODE, boot_id="boot-1", living={100: 1.5})
    machine.found = Devices(gpus=(gpu,), holders=(holder,))
    found = triage(sources, ONE_DEVICE, run_ids=["v2-5"])
    assert [line.run_id for line in found.lines] == ["v2-5"]
    assert [(each.key, each.after) for each in found.plan.waits] == [("v2-5", ("v2-2",))]
    assert found.orphan_memory == ()
    both = triage(sources, ONE_DEVICE)
    held = [sign for line in both.lines for sign in line.signs if sign.source == "nvidia-smi"]
    assert {sign.words for sign in held} == {"pid 100 holds 9.8 GiB of GPU-1 now"}


def test_launches_that_do_not_come_are_known_by_their_key(
    variants: Triage, store: FakeObjectStore, sources: Sources
) -> None:
    assert variants.daemon.late == {}
    beat = {"at": format_time(MORNING), "sensors": {}}
    store.put("daemon/heartbeat.json", canonical_json(beat))
    failed = PendingLaunch(key="v2-5/a02", failed_count=4, why="no answer in 300 s")
    usual = PendingLaunch(key="v2-6/a02", failed_count=0, why="", asked_at=format_time(MORNING))
    write_launches(store, "launch_attempts", [failed, usual])
    late = triage(sources, ONE_DEVICE).daemon.late
    assert list(late) == ["v2-5/a02"]
    assert late["v2-5/a02"].startswith("4 launches failed: no answer in 300 s; ")


def test_an_unknown_run_is_answered_with_the_nearest_names(
    variants: Triage, sources: Sources
) -> None:
    with pytest.raises(UnknownRun, match="did you mean v2-"):
        triage(sources, SLOTS, run_ids=["v2-22"])


def test_open_runs_and_their_rows_are_found_by_indexes(ledger: SqlLedger) -> None:
    values = {"running": "running", "waiting": "waiting", "runs_max": 200}
    plan = plan_of(ledger, read_sql("open"), values)
    assert any("ix_training_runs_state" in step for step in plan), plan
    for name, more in (("runs", {"attempts_max": 3}), ("commits", {"commits_max": 8})):
        sql = read_sql(name).replace("{run_ids}", ":run_0, :run_1")
        plan = plan_of(ledger, sql, {"run_0": "a", "run_1": "b", **more})
        # r, a, c and k are the ledger's tables; the other names are a few rows of the query itself.
        assert not [step for step in plan if step.split()[:2] in TABLE_SCANS], plan


TABLE_SCANS = [["SCAN", table] for table in "rack"]


def plan_of(ledger: SqlLedger, sql: str, values: dict[str, object]) -> list[str]:
    """Return how SQLite would run a query, a line a step."""
    rows = ledger.query(f"explain query plan {sql}", values)
    return [str(row["detail"]) for row in rows]


def with_gangs(sources: Sources, gangs: FakeGangs) -> Sources:
    return replace(sources, launcher_of=lambda name: gangs)

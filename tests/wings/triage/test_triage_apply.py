"""What `--apply` does with the nine variants: it records ends, lets the policy decide, and says who."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from tests.deciders import world_of
from tests.fakes import FakeClock, FakeGangs, SequentialUids
from tests.histories import History
from tests.six_variants import INTERRUPTED, NODE, QUEUED, STEPS, FakeMachine, write_variants
from tracks_dagster.attempts.machine import MachineNow
from tracks_dagster.attempts.ports import GangPhase, GangReport, LauncherOf
from tracks_dagster.ledger.effects.projector import Projector
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.track.errors import GangError
from tracks_dagster.track.names import AttemptRef
from tracks_dagster.track.states.checkpoints import CheckpointRef
from tracks_dagster.wings.triage.effects.applying import Act, Acting, apply
from tracks_dagster.wings.triage.effects.triage import GivenDevices, Sources, triage

ONE_DEVICE = GivenDevices(devices=1, memory_bytes=24 * 2**30, slots=12)
SLOTS = GivenDevices(slots=12)
BACKOFF_S = 3600.0  # longer than any that the policy has for the first retry


class SoundCheckpoints:
    """Reads every checkpoint without a fault."""

    def verify(self, ref: CheckpointRef) -> int:
        return 1000

    def chunk_sizes(self, ref: CheckpointRef) -> Mapping[str, int]:
        return {}


@pytest.fixture
def acting(sources: Sources, new_uid: SequentialUids) -> Acting:
    project = Projector(sources.store, sources.ledger).project
    return Acting(
        world=world_of(
            Tracks(sources.store, now=sources.now, new_uid=new_uid, project=project),
            sources.ledger,
            launcher_of=sources.launcher_of,
            checkpoints=SoundCheckpoints(),
        ),
        by="ann",
        why="the machine was booted at night",
    )


def on(acting: Acting, launcher_of: LauncherOf) -> Acting:
    return replace(acting, world=replace(acting.world, launcher_of=launcher_of))


def applied(sources: Sources, acting: Acting, asked: GivenDevices = ONE_DEVICE) -> list[Act]:
    return list(apply(triage(sources, asked), acting))


def restarted(sources: Sources, acting: Acting, morning: FakeClock) -> list[Act]:
    """Apply twice: the second time after the policy's backoff."""
    before = applied(sources, acting)
    morning.advance(BACKOFF_S)
    return [*before, *applied(sources, acting)]


def project(sources: Sources, *histories: History) -> None:
    for history in histories:
        history.write_to(sources.store)
    Projector(sources.store, sources.ledger).scan()


def test_the_interrupted_variants_go_on_and_the_queued_ones_wait_without_an_attempt(
    sources: Sources, acting: Acting, gangs: FakeGangs, morning: FakeClock
) -> None:
    write_variants(sources.store, gangs)
    project(sources)
    acts = [(act.run_id, act.what) for act in restarted(sources, acting, morning)]
    assert acts == [
        ("v2-2", "closed"),
        ("v2-3", "closed"),
        ("v2-2", "waiting"),  # the policy's backoff
        ("v2-3", "waiting"),
        ("v2-5", "left"),
        ("v2-6", "left"),
        ("v2-2", "opened"),
        ("v2-3", "opened"),
        ("v2-5", "left"),
        ("v2-6", "left"),
    ]
    for run_id, (epoch, _, _) in INTERRUPTED.items():
        first, second = acting.world.tracks.run(run_id).attempts
        assert (first.reason, first.ended and first.ended.closed_by) == ("node_failure", "ann")
        assert second.opened.decided_by == "ann"
        assert second.opened.resume is not None
        assert second.opened.resume.step == epoch * 10
    assert all(not acting.world.tracks.run(run_id).attempts for run_id in QUEUED)


def test_every_act_leaves_a_note_with_who_and_why_and_on_what(
    sources: Sources, acting: Acting, gangs: FakeGangs, morning: FakeClock
) -> None:
    write_variants(sources.store, gangs)
    project(sources)
    restarted(sources, acting, morning)
    closed, opened = [note.body for note in acting.world.tracks.run("v2-2").notes]
    assert {closed.by, opened.by} == {"ann"}
    assert "the machine was booted at night" in closed.text
    assert "attempt 1 ended as node_failure" in closed.text
    assert "Place 1 of the restart: opened" in opened.text
    assert closed.data["verdict"] == "dead"
    assert closed.data["triage_s"] >= 0
    assert any("rebooted" in words for words in closed.data["evidence"])


def test_a_second_time_nothing_is_done_again(
    sources: Sources, acting: Acting, gangs: FakeGangs, morning: FakeClock
) -> None:
    write_variants(sources.store, gangs)
    project(sources)
    restarted(sources, acting, morning)
    heads = {run_id: acting.world.tracks.run(run_id).head.seq for run_id in INTERRUPTED}
    acts = applied(sources, acting)
    assert {act.what for act in acts} == {"left"}
    assert {run_id: acting.world.tracks.run(run_id).head.seq for run_id in INTERRUPTED} == heads


def test_when_one_has_ended_the_next_in_the_order_is_opened(
    sources: Sources, acting: Acting, gangs: FakeGangs
) -> None:
    histories = {each.run_id: each for each in write_variants(sources.store, gangs)}
    for run_id in INTERRUPTED:  # they train, and nobody supervises them
        gangs.reports[run_id, 1] = GangReport(phase=GangPhase.ALIVE, where=NODE)
    project(sources)
    assert [act.what for act in applied(sources, acting)] == ["left", "left"]
    histories["v2-2"].commit(STEPS, trigger="final").end("completed", last_step=STEPS).finish()
    project(sources, histories["v2-2"])
    acts = [(act.run_id, act.what) for act in applied(sources, acting)]
    assert acts == [("v2-5", "opened"), ("v2-6", "left")]


def test_a_refusal_of_the_policy_is_reported_and_nothing_is_forced(
    sources: Sources, acting: Acting
) -> None:
    history = History("r-1").declare().open().supervise().place().restore()
    history.end("code_error")
    project(sources, history)
    [act] = applied(sources, acting, SLOTS)
    assert act.what == "refused"
    assert acting.world.tracks.run("r-1").refusal is not None


def test_what_lives_or_is_not_seen_from_here_is_left_alone(
    sources: Sources, acting: Acting, gangs: FakeGangs
) -> None:
    project(
        sources,
        History("lives").declare().open().supervise().place().restore(),
        History("away").declare().open().supervise().place().restore(),
    )
    gangs.reports["lives", 1] = GangReport(phase=GangPhase.ALIVE, where=NODE)
    machine = FakeMachine(MachineNow(node="elsewhere", boot_id="boot-9"))
    elsewhere = FakeGangs("elsewhere")
    elsewhere.reports["lives", 1] = gangs.reports["lives", 1]
    away = replace(sources, machine=machine, launcher_of=lambda name: elsewhere)
    found = triage(away, ONE_DEVICE)
    assert [line.verdict for line in found.lines] == ["not_seen", "orphaned"]
    assert apply(found, on(acting, away.launcher_of)) == ()
    assert all(acting.world.tracks.run(run_id).open_attempt for run_id in ("lives", "away"))
    assert not any(call[0] == "kill" for call in elsewhere.calls)


def test_a_gang_that_cannot_be_ended_is_reported_and_keeps_nobody_else_waiting(
    sources: Sources, acting: Acting, gangs: FakeGangs
) -> None:
    class Stubborn(FakeGangs):
        def kill(self, ref: AttemptRef) -> None:
            if ref.run_id == "v2-2":
                raise GangError("processes [7] still live 20 s after SIGKILL")
            super().kill(ref)

    write_variants(sources.store, gangs)
    project(sources)
    stubborn = Stubborn(NODE)
    stubborn.reports = gangs.reports
    found = triage(sources, ONE_DEVICE)
    acts = apply(found, on(acting, lambda name: stubborn))
    assert [(act.run_id, act.what) for act in acts][:3] == [
        ("v2-2", "failed"),
        ("v2-3", "closed"),
        ("v2-3", "waiting"),
    ]
    assert acting.world.tracks.run("v2-2").open_attempt is not None

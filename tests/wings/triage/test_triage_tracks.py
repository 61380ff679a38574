"""What triage makes of tracks and journals that the ledger is behind on, or that were damaged."""

from __future__ import annotations

import json
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes import FakeGangs, FakeObjectStore
from tests.histories import History
from tests.random_histories import random_run
from tests.six_variants import FAMILY, NODE, write_variants
from tracks_dagster.attempts.ports import GangPhase, GangReport
from tracks_dagster.ledger.effects.database.sql_ledger import SqlLedger
from tracks_dagster.ledger.effects.projector import Projector
from tracks_dagster.stores.journals import journal_prefix
from tracks_dagster.track.names import AttemptRef
from tracks_dagster.track.records import Kind, canonical_json
from tracks_dagster.track.track import log_key
from tracks_dagster.wings.triage.attempt_tail import fold_tail
from tracks_dagster.wings.triage.effects.triage import GivenDevices, Sources, triage

ONE_DEVICE = GivenDevices(devices=1, memory_bytes=24 * 2**30, slots=12)
SLOTS = GivenDevices(slots=12)
PREFIX = journal_prefix(AttemptRef("v2-2", 1), "launch-1", 0)


def project(store: FakeObjectStore, ledger: SqlLedger, *histories: History) -> None:
    for history in histories:
        history.write_to(store)
    Projector(store, ledger).scan()


def test_what_ranks_appended_after_the_daemon_was_lost_is_read_from_the_track(
    store: FakeObjectStore, ledger: SqlLedger, sources: Sources
) -> None:
    history = History("r-1").declare().open().supervise().place().restore().commit(10)
    project(store, ledger, history)
    history.commit(20).write_to(store)  # nobody takes it into the ledger
    line = triage(sources, SLOTS, run_ids=["r-1"]).line("r-1")
    assert line.committed_step == 20
    history.end("preempted", last_step=23).write_to(store)
    line = triage(sources, SLOTS, run_ids=["r-1"]).line("r-1")
    assert (line.verdict, line.standing, line.lost_steps) == ("ended", "interrupted", 3)


@pytest.mark.parametrize("phase", [GangPhase.ALIVE, GangPhase.NEVER_STARTED])
def test_steps_that_an_earlier_attempt_lost_are_not_progress_of_the_newest(
    phase: GangPhase,
    store: FakeObjectStore,
    ledger: SqlLedger,
    gangs: FakeGangs,
    sources: Sources,
) -> None:
    [history] = [each for each in write_variants(store, gangs) if each.run_id == "v2-2"]
    last = json.loads(store.objects[f"{PREFIX}{0:012d}.jsonl"].splitlines()[-1])
    store.put(f"{PREFIX}{10**9:012d}.jsonl", canonical_json({**last, "step": 845}))
    history.end("node_failure", last_step=845).open().supervise()
    project(store, ledger, history)
    gangs.reports["v2-2", 2] = GangReport(phase=phase, where=NODE)
    line = triage(sources, SLOTS, run_ids=["v2-2"]).line("v2-2")
    lives = phase is GangPhase.ALIVE
    assert (line.step, line.lost_steps) == (830, 0 if lives else 15)
    assert line.steps_left == 1500 - 830
    result = next(sign.words for sign in line.signs if sign.cell == "progress")
    assert "by attempt 1, and lost with it: the newest attempt is at step 830" in result


def test_a_run_that_a_person_drained_waits_for_a_retry_by_name(
    store: FakeObjectStore, ledger: SqlLedger, sources: Sources
) -> None:
    history = History("r-1").declare().open().supervise().place().restore().commit(10)
    project(store, ledger, history.stop("drain").end("user_cancelled", last_step=10))
    assert "`tracks retry r-1 --why" in triage(sources, SLOTS).line("r-1").why


def test_a_withdrawn_checkpoint_is_not_what_a_restart_goes_on_from(
    store: FakeObjectStore, ledger: SqlLedger, sources: Sources
) -> None:
    history = History("r-1").declare().open().supervise().place().restore().commit(10).commit(20)
    project(store, ledger, history)
    newest = history.state.checkpoints[-1].ref
    history.decide_checkpoint(Kind.CHECKPOINT_QUARANTINED, newest).write_to(store)
    assert triage(sources, SLOTS, run_ids=["r-1"]).line("r-1").committed_step == 10


def test_a_run_that_a_person_stopped_is_not_proposed(
    store: FakeObjectStore, ledger: SqlLedger, gangs: FakeGangs, sources: Sources
) -> None:
    histories = {each.run_id: each for each in write_variants(store, gangs)}
    Projector(store, ledger).scan()
    histories["v2-2"].stop().write_to(store)  # and the daemon was lost before it took it in
    histories["v2-3"].stop("drain").end("user_cancelled", last_step=420).write_to(store)
    histories["v2-5"].stop().write_to(store)
    found = triage(sources, ONE_DEVICE)
    assert found.plan.order == ("v2-6",)
    assert "ann asked for a stop (enough)" in found.line("v2-2").why.lower()
    assert found.line("v2-3").standing == "waiting"
    assert "about to be finished" in found.line("v2-5").why


def test_a_track_that_lost_its_end_is_not_judged_by_what_is_left(
    store: FakeObjectStore, ledger: SqlLedger, gangs: FakeGangs, sources: Sources
) -> None:
    [history] = [each for each in write_variants(store, gangs) if each.run_id == "v2-2"]
    history.end("node_failure", last_step=830)
    project(store, ledger, history)
    last = log_key("runs/v2-2", history.state.head.seq)
    whole = store.objects[last]
    store.delete(last)
    line = triage(sources, SLOTS, run_ids=["v2-2"]).line("v2-2")
    assert line.verdict == "not_seen"
    assert f"Record {history.state.head.seq} is missing" in line.why
    store.put(last, whole.replace(b"node_failure", b"node_failurE"))
    line = triage(sources, SLOTS, run_ids=["v2-2"]).line("v2-2")
    assert line.verdict == "not_seen"
    assert "is not the one that the ledger took in" in line.why


def test_damaged_lines_of_a_journal_are_left_out(
    store: FakeObjectStore, ledger: SqlLedger, gangs: FakeGangs, sources: Sources
) -> None:
    write_variants(store, gangs)
    Projector(store, ledger).scan()
    damaged = [
        b'{"kind": "step"}',
        b'{"kind": "step", "t": "yesterday", "step": 831, "loss": 1.0}',
        b'{"kind": "step", "t": "2026-01-31T02:30:00.000000Z", "step": 831, "loss": null}',
        b'{"kind": "beat", "t": 7}',
        b'{"kind": "step", "t": "2026-01-31T02:30:00.0000',
    ]
    store.put(f"{PREFIX}{10**9:012d}.jsonl", b"\n".join(damaged))
    line = triage(sources, SLOTS).line("v2-2")
    assert (line.step, line.metrics_step) == (830, 830)
    assert line.left_s == pytest.approx(40.2 * 60, rel=0.01)


def test_the_record_that_ended_or_refused_a_run_is_named_whatever_came_after_it(
    store: FakeObjectStore, ledger: SqlLedger, gangs: FakeGangs, sources: Sources
) -> None:
    histories = {each.run_id: each for each in write_variants(store, gangs)}
    finished = histories["v1-1"].state.head.seq
    histories["v1-1"].note()
    Projector(store, ledger).scan()
    histories["v2-2"].end("code_error", last_step=830).refuse()  # the ledger never took it in
    refused = histories["v2-2"].state.head.seq
    for history in (histories["v1-1"], histories["v2-2"].note(), histories["v2-5"].note()):
        history.write_to(store)
    found = triage(sources, ONE_DEVICE, family=FAMILY)
    sources_of = {run_id: found.line(run_id).signs[0].source for run_id in ("v1-1", "v2-2", "v2-5")}
    assert sources_of == {
        "v1-1": log_key("runs/v1-1", finished),
        "v2-2": log_key("runs/v2-2", refused),
        "v2-5": log_key("runs/v2-5", 0),
    }
    assert found.line("v2-2").verdict == "refused"
    assert "tracks retry" in found.line("v2-2").why


def test_a_track_that_is_lost_is_reported_and_the_others_are_judged(
    store: FakeObjectStore, ledger: SqlLedger, gangs: FakeGangs, sources: Sources
) -> None:
    write_variants(store, gangs)
    Projector(store, ledger).scan()
    for key in list(store.list("runs/v2-2/log/")):
        store.delete(key)
    found = triage(sources, SLOTS)
    assert found.line("v2-2").verdict == "not_seen"
    assert "tracks fsck" in found.line("v2-2").why
    assert found.line("v2-3").verdict == "dead"


def test_a_broken_chain_is_reported_and_not_guessed_over(
    store: FakeObjectStore, ledger: SqlLedger, gangs: FakeGangs, sources: Sources
) -> None:
    write_variants(store, gangs)
    Projector(store, ledger).scan()
    key = log_key("runs/v2-2", 2)
    store.put(key, store.objects[key].replace(b"dagster-1", b"dagster-2"))
    line = triage(sources, SLOTS).line("v2-2")
    assert line.verdict == "not_seen"
    assert "chain" in line.why


# The newest records alone say of the last attempt what the whole track says.


@given(seed=st.integers(0, 2**32))
def test_the_tail_says_what_the_whole_track_says(seed: int) -> None:
    run = random_run(Random(seed))
    opened = [record.seq for record in run.records if record.kind is Kind.ATTEMPT_OPENED]
    tail = fold_tail(run.records[opened[-1] if opened else 0 :])
    whole = run.state.last_attempt
    assert tail.finished == run.state.finished, f"seed {seed}"
    assert tail.head_seq == run.state.head.seq, f"seed {seed}"
    if whole is None:
        assert tail.attempt is None, f"seed {seed}"
        return
    assert tail.attempt is not None
    assert tail.attempt.opened == whole.opened, f"seed {seed}"
    assert tail.attempt.claims == whole.claims, f"seed {seed}"
    assert tail.attempt.placed == whole.placed, f"seed {seed}"
    assert tail.attempt.restored == whole.restored, f"seed {seed}"
    assert tail.attempt.ended == whole.ended, f"seed {seed}"
    assert tail.attempt.reason == whole.reason, f"seed {seed}"
    own = [c.ref for c in run.state.checkpoints if c.ref.attempt_id == whole.attempt_id]
    assert [commit.ref for commit in tail.commits] == own, f"seed {seed}"


def test_a_withdrawn_checkpoint_and_a_refusal_are_seen() -> None:
    history = History("r-1").declare().open().place().restore().commit(10)
    history.decide_checkpoint(Kind.CHECKPOINT_QUARANTINED, history.state.checkpoints[0].ref)
    history.end("code_error", last_step=10).refuse()
    tail = fold_tail(history.records[1:])
    assert tail.unusable == {history.state.checkpoints[0].ref.manifest_sha256}
    assert tail.refusal is not None
    assert tail.refusal_seq == history.state.head.seq


def test_a_stop_comes_before_a_drain_and_a_move_holds_nothing() -> None:
    history = History("r-1").declare().open().stop(mode="move")
    assert fold_tail(history.records[1:]).asked_stop is None
    tail = fold_tail(history.stop(mode="drain").stop().records[1:])
    assert tail.asked_stop is not None
    assert tail.asked_stop.mode == "stop"
    assert fold_tail(history.end("node_failure").open().records).asked_stop is None

"""Which remedy a rule chooses, and what stands in the decision."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from tests.histories import History
from tests.hold_values import in_quarantine
from tracks_dagster.retry.decide import decide
from tracks_dagster.retry.decision import Refuse, Retry
from tracks_dagster.retry.default_policy import DEFAULT_POLICY
from tracks_dagster.track.bodies import CheckpointCadence, ComputeRequest

CLUSTER = ComputeRequest(launcher="k8s", ranks=2, device_class="a100-40", pool="spot")


def begun(**declared: Any) -> History:
    fields = {"estimated_device_s": 1e9} | declared
    return History().declare(**fields).open().place().restore()


def answer(history: History, policy: Any = DEFAULT_POLICY) -> Retry:
    decision = decide(history.state, policy, history.at + timedelta(hours=1))
    assert isinstance(decision, Retry), decision
    return decision


def reopened(history: History, decision: Retry) -> History:
    opened = {
        name: getattr(decision, name)
        for name in ("config", "compute", "debit", "remediation", "resume", "cadence")
    }
    return history.open(**opened).place().restore()


def test_a_time_limit_before_the_first_checkpoint_makes_it_save_twice_as_often() -> None:
    history = begun(cadence=CheckpointCadence(every_steps=100)).end("walltime_timeout", last_step=9)
    decision = answer(history)
    assert decision.cadence == CheckpointCadence(every_steps=50)
    assert [(c.key, c.before, c.after) for c in decision.remediation] == [
        ("cadence.every_steps", 100, 50)
    ]
    assert "cadence.every_steps 100 → 50" in decision.decision
    # A later end of another kind keeps it.
    later = answer(reopened(history, decision).end("preempted", last_step=9))
    assert later.cadence == decision.cadence
    assert later.remediation == ()


def test_a_time_limit_after_a_checkpoint_changes_nothing() -> None:
    """A run under a daily limit would otherwise save twice as often every day."""
    decision = answer(begun().commit(10).end("walltime_timeout", last_step=19))
    assert (decision.cadence, decision.remediation) == (None, ())


@pytest.mark.parametrize("reason", ["scheduling_timeout", "image_pull"])
def test_what_does_not_start_in_a_pool_tries_the_next(reason: str) -> None:
    policy = replace(DEFAULT_POLICY, other_pools={"spot": "on-demand"})
    history = begun(compute=CLUSTER).end(reason, first_line_ran=False)
    decision = answer_within_the_hour(history, policy)
    assert decision.compute.pool == "on-demand"
    assert answer_within_the_hour(history, DEFAULT_POLICY).compute.pool == "spot"


def answer_within_the_hour(history: History, policy: Any) -> Retry:
    decision = decide(history.state, policy, history.at + timedelta(minutes=10))
    assert isinstance(decision, Retry), decision
    return decision


@pytest.mark.parametrize("reason", ["disk_full", "checkpoint_write_failed"])
def test_a_full_disk_collects_first(reason: str) -> None:
    assert answer(begun().commit(10).end(reason, last_step=12)).collects_first
    assert not answer(begun().commit(10).end("hang", last_step=12)).collects_first


def test_bad_input_is_confirmed_once_and_then_its_snapshot_is_quarantined() -> None:
    history = begun().commit(10).end("bad_input_data", last_step=12)
    history = reopened(history, answer(history)).end("bad_input_data", last_step=12)
    refused = decide(history.state, DEFAULT_POLICY, history.at)
    assert isinstance(refused, Refuse)
    assert refused.quarantines_snapshot == history.state.declared.snapshot


def test_a_quarantined_snapshot_refuses_any_retry_and_says_how_to_go_on() -> None:
    history = begun().commit(10).end("preempted", last_step=12)
    hold = in_quarantine(history.state.declared.snapshot)
    refused = decide(history.state, DEFAULT_POLICY, history.at, [hold])
    assert isinstance(refused, Refuse)
    assert (refused.limit, refused.quarantines_snapshot) == ("snapshot", None)
    assert f"not retried: {hold.source} is in quarantine: it flips bits (ann" in refused.decision


def test_the_node_to_blame_is_left_where_the_end_tells_it() -> None:
    history = begun(compute=CLUSTER).commit(10)
    history.end("node_failure", last_step=12, blamed_node="node-1")
    assert answer(history).compute.excluded_nodes == ("node-1",)

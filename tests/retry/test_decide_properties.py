"""What must hold of every decision, over random histories."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.bodies import BEGIN
from tests.histories import History
from tracks_dagster.holds.storm import PoolEnd, PoolView, find_storm
from tracks_dagster.ledger.deciding import Wait
from tracks_dagster.retry.decide import decide
from tracks_dagster.retry.decision import Decision, Refuse, Retry
from tracks_dagster.retry.default_policy import DEFAULT_POLICY
from tracks_dagster.retry.limits import spendings
from tracks_dagster.retry.policy import NEED_A_RULE
from tracks_dagster.track.bodies import Debit
from tracks_dagster.track.reasons import TerminationReason
from tracks_dagster.track.records import Kind
from tracks_dagster.track.states import run_fold

CONFIG = {"micro_batch": 16, "accumulation": 2, "global_batch": 64}
SLOT = timedelta(hours=3)  # between two attempts: longer than every backoff
DECISIONS_MAX = 2000

REASONS = st.sampled_from(sorted(NEED_A_RULE - {TerminationReason.EVALUATOR_ERROR}))


@dataclass(frozen=True)
class Try:
    """One attempt of a random history: how it ends, and the step it commits before, if any.

    is_read: whether every byte of that commit was verified by a read.
    """

    reason: TerminationReason
    fingerprint: str
    last_step: int | None
    first_line_ran: bool
    device_seconds: float
    commit: int | None
    is_manual: bool
    is_read: bool = True


TRIES = st.builds(
    Try,
    reason=REASONS,
    fingerprint=st.sampled_from("ab"),
    last_step=st.none() | st.integers(1, 60),
    first_line_ran=st.sampled_from([True, True, True, False]),
    device_seconds=st.sampled_from([0.0, 10.0, 10.0, 10.0, 2000.0]),
    commit=st.none() | st.none() | st.integers(1, 60),
    is_manual=st.sampled_from([False, False, False, True]),
    is_read=st.sampled_from([True, True, False]),
)
# One reason most of the time: budgets are exhausted by repetition.
SAME = st.tuples(REASONS, st.lists(TRIES, min_size=1, max_size=8)).map(
    lambda drawn: [replace(t, reason=drawn[0]) for t in drawn[1]]
)
HISTORIES = SAME | st.lists(TRIES, min_size=1, max_size=8)


def grown(tries: list[tuple[int, Try]]) -> History:
    """Return the history of these attempts, each beginning at its own slot; all debits are forced.

    An attempt added between two others leaves the times of these as they are.
    """
    history = History().declare(config=CONFIG)
    before: Try | None = None
    for slot, each in tries:
        history.at = BEGIN + slot * SLOT
        opened_with = {} if before is None else _opening(before, each)
        history.open(config=CONFIG, **opened_with).place().restore()
        _commit(history, each)
        history.end(
            each.reason,
            last_step=each.last_step,
            first_line_ran=each.first_line_ran,
            device_seconds=each.device_seconds,
            fingerprint=each.fingerprint,
        )
        before = each
    return history


def _commit(history: History, each: Try) -> None:
    if each.commit is not None:
        history.commit(each.commit)
        if each.is_read:
            history.verify()


def _opening(before: Try, each: Try) -> dict[str, object]:
    if each.is_manual:
        return {"cause": "manual_retry"}
    rule = DEFAULT_POLICY.rule(before.reason)
    amount = 1.0 if before.first_line_ran and rule.count is not None else 0.0
    debit = Debit(reason=before.reason, amount=amount, fingerprint=before.fingerprint, why="forced")
    return {"debit": debit}


def slotted(tries: list[Try]) -> list[tuple[int, Try]]:
    """Give each attempt every second slot, so that another one fits between two."""
    return [(2 * index, each) for index, each in enumerate(tries)]


def after(history: History, slots: int) -> Decision:
    """Return the decision at a time that depends on the number of slots alone."""
    return decide(history.state, DEFAULT_POLICY, BEGIN + (2 * slots + 1) * SLOT)


@given(HISTORIES, st.data())
def test_one_more_debit_never_turns_a_refusal_into_a_retry(
    tries: list[Try], data: st.DataObject
) -> None:
    where = data.draw(st.integers(0, len(tries) - 1))
    extra = replace(data.draw(TRIES), commit=None, is_manual=False)
    some = slotted(tries)
    more = sorted([*some, (2 * where - 1 if where else -1, extra)], key=lambda pair: pair[0])
    if isinstance(after(grown(some), len(tries)), Refuse):
        assert not isinstance(after(grown(more), len(tries)), Retry)


@given(HISTORIES, st.integers(1, 100))
def test_one_more_verified_commit_never_turns_a_retry_into_a_refusal(
    tries: list[Try], step: int
) -> None:
    before = [*tries[:-1], replace(tries[-1], commit=None)]
    committed = [*tries[:-1], replace(tries[-1], commit=step, is_read=True)]
    if isinstance(after(grown(slotted(before)), len(tries)), Retry):
        assert not isinstance(after(grown(slotted(committed)), len(tries)), Refuse)


@given(HISTORIES)
def test_the_same_history_gets_the_same_answer(tries: list[Try]) -> None:
    history = grown(slotted(tries))
    folded = run_fold.fold(history.records)
    assert folded is not None
    now = BEGIN + 99 * SLOT
    assert decide(folded, DEFAULT_POLICY, now) == decide(history.state, DEFAULT_POLICY, now)


@given(HISTORIES)
def test_every_answer_says_why_and_names_records_of_the_track(tries: list[Try]) -> None:
    history = grown(slotted(tries))
    decision = after(history, len(tries))
    if isinstance(decision, Retry | Refuse):
        assert history.state.head.seq in decision.counted_seqs  # the end that it decides on
        assert set(decision.counted_seqs) <= {record.seq for record in history.records}
        assert decision.decision.endswith(".")
    if isinstance(decision, Refuse):
        assert "tracks retry r-1" in decision.what_to_do


def followed(tries: list[Try]) -> History:
    """Return the history in which every retry was decided; it ends at the first refusal.

    After a manual try a person opens the next attempt instead, with the run's first config.
    """
    history = History().declare(config=CONFIG).open().place().restore()
    for each in tries:
        _commit(history, each)
        history.end(
            each.reason,
            last_step=each.last_step,
            first_line_ran=each.first_line_ran,
            device_seconds=each.device_seconds,
            fingerprint=each.fingerprint,
        )
        history.at += SLOT
        if each.is_manual:
            history.open(cause="manual_retry", config=CONFIG).place().restore()
            continue
        decision = decide(history.state, DEFAULT_POLICY, history.at)
        if isinstance(decision, Wait):
            assert decision.verify is not None  # every backoff is shorter than a slot
            break
        if isinstance(decision, Refuse):
            break
        assert isinstance(decision, Retry)
        _open(history, decision)
    return history


def _open(history: History, retry: Retry) -> None:
    history.open(config=retry.config, compute=retry.compute, debit=retry.debit, resume=retry.resume)
    history.place().restore()


@given(HISTORIES)
def test_the_limits_hold_over_every_history_of_decided_retries(tries: list[Try]) -> None:
    state = followed([replace(each, commit=None) for each in tries]).state  # nothing is refunded
    debits = [a.opened.debit for a in state.attempts[1:]]
    paid = [d for d in debits if d is not None and d.amount > 0]
    budgets = Counter(DEFAULT_POLICY.rule(TerminationReason(d.reason)).budget for d in paid)
    for reason, number in budgets.items():
        count = DEFAULT_POLICY.rule(reason).count
        assert count is not None
        # 8 attempts lie within 21 h: no window of the table is shorter than 24 h
        assert number <= count
    assert all(n <= 3 for n in Counter(d.fingerprint for d in paid).values())
    assert len(debits) - len(paid) <= 8
    cap_s = DEFAULT_POLICY.device_s_cap(state.declared.estimated_device_s)
    used_s = 0.0
    for failed, following in pairwise(state.attempts):
        assert failed.ended is not None
        used_s += failed.ended.device_seconds
        assert used_s < cap_s or following.opened.cause == "manual_retry"


@given(st.lists(TRIES, min_size=1, max_size=8))
def test_a_gpu_oom_is_never_retried_with_a_config_that_ran_out(tries: list[Try]) -> None:
    oom = TerminationReason.GPU_OOM
    attempts = followed([replace(t, reason=oom, first_line_ran=True) for t in tries]).state.attempts
    ran_out: list[dict[str, object]] = []
    for failed, following in pairwise(attempts):
        ran_out.append(dict(failed.opened.config))
        if following.opened.cause == "retry":
            assert dict(following.opened.config) not in ran_out
        config = following.opened.config
        assert config["micro_batch"] * config["accumulation"] * 2 == 64


@settings(max_examples=20)
@given(st.lists(st.sampled_from(sorted(NEED_A_RULE)), min_size=1, max_size=3))
def test_a_chain_of_attempts_that_never_start_ends(reasons: list[TerminationReason]) -> None:
    history = History().declare(config=CONFIG).open()
    for count in range(DECISIONS_MAX):
        reason = reasons[count % len(reasons)]
        history.end(reason, first_line_ran=False, device_seconds=0.0)
        decision = decide(history.state, DEFAULT_POLICY, history.at)
        if isinstance(decision, Wait):
            assert decision.until is not None
            history.at = decision.until
            decision = decide(history.state, DEFAULT_POLICY, history.at)
        if isinstance(decision, Refuse):
            return
        assert isinstance(decision, Retry)
        history.open(config=decision.config, compute=decision.compute, debit=decision.debit)
    pytest.fail(f"{reasons} went on for {DECISIONS_MAX} attempts")


# --- progress that nobody has read ------------------------------------------------------------------


@given(HISTORIES)
def test_what_a_refusal_did_not_wait_for_would_have_changed_nothing(tries: list[Try]) -> None:
    history = grown(slotted(tries))
    if isinstance(after(history, len(tries)), Refuse):
        for checkpoint in history.state.checkpoints:
            history.verify(checkpoint.ref)
        assert not isinstance(after(history, len(tries)), Retry)


@given(HISTORIES)
def test_the_reading_that_an_answer_waits_for_ends_in_one(tries: list[Try]) -> None:
    history = grown(slotted(tries))
    read = set()
    for _ in range(len(history.state.checkpoints) + 1):
        decision = after(history, len(tries))
        if not isinstance(decision, Wait) or decision.verify is None:
            return
        assert decision.verify not in read
        read.add(decision.verify)
        history.verify(decision.verify)
        assert not isinstance(
            after(history, len(tries)), Refuse
        )  # it was asked for because it helps
    pytest.fail("it asks for one more checkpoint than there are")


# --- reclassified, clocks, storms -------------------------------------------------------------------


@given(HISTORIES, st.data())
def test_a_debit_that_moves_to_a_budget_makes_it_no_wider(
    tries: list[Try], data: st.DataObject
) -> None:
    budget = DEFAULT_POLICY.rule(tries[-1].reason).budget
    history = grown(slotted(tries))
    others = [
        number
        for number, each in enumerate(tries[:-1], start=1)
        if DEFAULT_POLICY.rule(each.reason).budget is not budget
    ]
    refusal = after(history, len(tries))
    if others and isinstance(refusal, Refuse) and refusal.limit == "reason":
        history.reclassify(data.draw(st.sampled_from(others)), budget.value)
        assert not isinstance(after(history, len(tries)), Retry)


@given(st.lists(TRIES, min_size=2, max_size=6))
def test_a_debit_that_moves_away_counts_where_it_went_and_nowhere_else(tries: list[Try]) -> None:
    unknown, node = TerminationReason.UNKNOWN, TerminationReason.NODE_FAILURE
    same = [
        replace(t, reason=unknown, first_line_ran=True, commit=None, is_manual=False) for t in tries
    ]
    history = grown(slotted(same))
    history.reclassify(1, node.value)
    charged = Counter(s.budget for s in spendings(history.state, DEFAULT_POLICY))
    assert charged == Counter({unknown: len(same) - 2, node: 1})


@given(HISTORIES, st.timedeltas(min_value=timedelta(0), max_value=timedelta(days=900)))
def test_a_clock_behind_the_newest_record_is_no_more_generous_than_one_that_stands_there(
    tries: list[Try], behind: timedelta
) -> None:
    state = grown(slotted(tries)).state
    late = decide(state, DEFAULT_POLICY, state.head.at)
    early = decide(state, DEFAULT_POLICY, state.head.at - behind)
    assert not isinstance(late, Refuse) or isinstance(early, Refuse)


@given(
    REASONS,
    st.lists(st.timedeltas(min_value=timedelta(0), max_value=timedelta(days=30)), max_size=12),
)
def test_a_clock_that_jumps_backwards_forgets_no_debit(
    reason: TerminationReason, jumps: list[timedelta]
) -> None:
    count = DEFAULT_POLICY.rule(reason).count
    history = History(begin=BEGIN + timedelta(days=400)).declare(config=CONFIG).open()
    for number, jump in enumerate(jumps):
        history.place().restore().end(reason, last_step=3, fingerprint=f"{number}")
        history.at -= jump
        decision = settled(history)
        if not isinstance(decision, Retry):
            return
        assert count is None or number < count
        history.open(config=decision.config, compute=decision.compute, debit=decision.debit)


def settled(history: History) -> Decision:
    """Return the decision once its backoff is over, by the history's own clock."""
    decision = decide(history.state, DEFAULT_POLICY, history.at)
    if isinstance(decision, Wait) and decision.until is not None:
        history.at = max(history.at, decision.until)
        decision = decide(history.state, DEFAULT_POLICY, history.at)
    return decision


@given(HISTORIES, st.integers(0, 40), st.integers(1, 8), st.floats(-900, 900))
def test_a_storm_only_ever_puts_a_retry_off_and_only_for_a_while(
    tries: list[Try], ends: int, runs: int, age_s: float
) -> None:
    state = grown(slotted(tries)).state
    now = state.head.at + timedelta(seconds=1)
    at = now - timedelta(seconds=age_s)
    pool = PoolView(
        pool="local/cpu",
        ends=[PoolEnd(run_id=f"x-{n % runs}", attempt_id=n, ended_at=at) for n in range(ends)],
    )
    clear = decide(state, DEFAULT_POLICY, now)
    storm = find_storm(pool, DEFAULT_POLICY.storm, now)
    stormy = decide(state, DEFAULT_POLICY, now, [] if storm is None else [storm])
    if isinstance(clear, Refuse) or (isinstance(clear, Wait) and clear.until is None):
        assert stormy == clear
        return
    latest = state.head.at + timedelta(seconds=DEFAULT_POLICY.storm.pause_s_max)
    assert not isinstance(stormy, Refuse)
    assert stormy == clear or (isinstance(stormy, Wait) and stormy.until is not None)
    if isinstance(stormy, Wait) and stormy.alert is not None:
        assert stormy.until is not None
        assert stormy.until <= latest


@settings(max_examples=30)
@given(
    st.lists(st.sampled_from(sorted(NEED_A_RULE)), min_size=1, max_size=4),
    st.sampled_from([0.0, 60.0]),
)
def test_a_run_without_progress_ends_whatever_it_ends_of(
    reasons: list[TerminationReason], device_seconds: float
) -> None:
    """Even one that switches from reason to reason, or of which no device time is known."""
    history = History().declare(config=CONFIG).open()
    for count in range(DECISIONS_MAX):
        history.place().restore()
        reason = reasons[count % len(reasons)]
        history.end(reason, last_step=3, device_seconds=device_seconds, fingerprint=f"{count}")
        decision = settled(history)
        if isinstance(decision, Refuse):
            return
        assert isinstance(decision, Retry)
        history.open(config=decision.config, compute=decision.compute, debit=decision.debit)
    pytest.fail(f"{reasons} went on for {DECISIONS_MAX} attempts")


def test_a_quarantine_may_turn_a_retry_into_a_refusal() -> None:
    """Progress that turns out wrong is none: the one way in which a refund is taken back."""
    tries = [
        Try(TerminationReason.UNKNOWN, fingerprint, 5, True, 0.0, commit, False)
        for fingerprint, commit in (("a", None), ("b", None), ("c", 10))
    ]
    history = grown(slotted(tries)).verify()
    assert isinstance(after(history, 3), Retry)
    history.decide_checkpoint(Kind.CHECKPOINT_QUARANTINED, history.state.checkpoints[-1].ref)
    assert isinstance(after(history, 3), Refuse)

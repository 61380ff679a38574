"""A simulated run: the seconds add up, the order of policies holds, and remedies cure what they can."""

from __future__ import annotations

import math
from datetime import timedelta

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tracks_dagster.retry.decision import Retry
from tracks_dagster.retry.default_policy import DEFAULT_POLICY
from tracks_dagster.track.bodies import CheckpointCadence
from tracks_dagster.track.reasons import TerminationReason
from tracks_dagster.wings.lab.simulation import play as simulation
from tracks_dagster.wings.lab.simulation import tracks as simulation_run
from tracks_dagster.wings.lab.simulation.compare import (
    NEVER,
    Choice,
    advised,
    always,
    best_ettr,
    best_kept_s,
    fixed_retries,
    ours,
    pool_choices,
)
from tracks_dagster.wings.lab.simulation.finishing import STARTS, finish_chances
from tracks_dagster.wings.lab.simulation.histories import CONFIG, llama3, ring, spot, zones
from tracks_dagster.wings.lab.simulation.outcome import Outcome, play
from tracks_dagster.wings.lab.simulation.play import Decider, Pacer, Scenario, simulate
from tracks_dagster.wings.lab.simulation.tracks import Job, SimulatedRun, at
from tracks_dagster.wings.lab.simulation.world import (
    Costs,
    Defect,
    End,
    InterruptedWorld,
    Interruption,
    Launch,
)

R = TerminationReason
OURS = ours(DEFAULT_POLICY)
COSTS = Costs(step_s=1.0, blocking_s=2.0, restart_s=60.0)
EVERY_100_S = always(CheckpointCadence(every_s=100.0))
EVERY_100 = Choice(policy="ours", cadence="100 s", decider=OURS, pacer=EVERY_100_S)

INTERVALS = st.lists(st.tuples(st.integers(0, 2), st.integers(1, 20_000).map(float)), min_size=1)
COSTS_DRAWN = st.builds(
    Costs,
    step_s=st.sampled_from([0.3, 1.0, 7.0]),
    blocking_s=st.sampled_from([0.0, 2.0, 30.0]),
    restart_s=st.sampled_from([0.0, 60.0, 300.0]),
)
DECIDERS = st.sampled_from([OURS, fixed_retries(0), fixed_retries(3), fixed_retries(None)])
PACERS = st.sampled_from([advised(2.0), always(NEVER), EVERY_100_S])


def run_of(
    *defects: Defect,
    steps: int | None = 3600,
    interruptions: tuple[Interruption, ...] = (),
    nodes: tuple[str, ...] | None = None,
    costs: Costs = COSTS,
) -> Scenario:
    """Return a run of an hour, with these things wrong with it, in two days of time."""
    return Scenario(
        name="run",
        job=Job(run_id="run", devices=2, estimated_s=7200.0, steps=steps, config=CONFIG),
        costs=costs,
        world=lambda: InterruptedWorld(
            interruptions=interruptions, costs=costs, defects=defects, nodes=nodes
        ),
        horizon_s=2 * 86_400.0,
    )


def buckets(outcome: Outcome) -> float:
    """Return the sum of all buckets."""
    return sum(
        (
            outcome.kept_s,
            outcome.lost_s,
            outcome.saving_s,
            outcome.restart_s,
            outcome.waiting_s,
            outcome.down_s,
            outcome.given_up_s,
        )
    )


# --- what holds for every history ------------------------------------------------------------------


@settings(max_examples=60)
@given(
    intervals=INTERVALS.filter(lambda each: any(count for count, _ in each)),
    costs=COSTS_DRAWN,
    grace_s=st.sampled_from([0.0, 5.0, 40.0]),
    person_after_s=st.sampled_from([None, 600.0]),
    decider=DECIDERS,
    pacer=PACERS,
)
def test_the_buckets_sum_to_the_wall_and_nothing_beats_perfect_knowledge(
    intervals: list[tuple[int, float]],
    costs: Costs,
    grace_s: float,
    person_after_s: float | None,
    decider: Decider,
    pacer: Pacer,
) -> None:
    scenario = spot("t", intervals, costs, grace_s=grace_s, person_after_s=person_after_s)
    outcome = simulate(scenario, decider, pacer)
    assert outcome.wall_s == pytest.approx(scenario.horizon_s)
    assert buckets(outcome) == pytest.approx(outcome.wall_s)
    assert 0.0 <= outcome.ettr <= 1.0
    devices = scenario.job.devices
    assert outcome.wasted_device_s == pytest.approx((outcome.lost_s + outcome.restart_s) * devices)
    assert all(
        seconds >= -1e-6
        for seconds in (outcome.kept_s, outcome.lost_s, outcome.waiting_s, outcome.down_s)
    )
    assert outcome.kept_s <= best_kept_s(scenario) + 1e-6
    assert simulate(scenario, decider, pacer) == outcome


@settings(max_examples=30)
@given(ups=st.lists(st.integers(1800, 20_000).map(float), min_size=8, max_size=20))
def test_ours_beats_no_checkpoints_where_no_span_outweighs_the_others(ups: list[float]) -> None:
    # Without a checkpoint only the last span counts; ours keeps more than half of each of eight or
    # more, of which the longest is at most 20 000 / 1800 = 11 times the shortest.
    ups = [min(up, 3.0 * min(ups)) for up in ups]
    intervals = [interval for up in ups for interval in ((1, up), (0, 300.0))]
    scenario = spot("t", intervals, COSTS)
    saved = simulate(scenario, OURS, advised(COSTS.blocking_s))
    unsaved = simulate(scenario, OURS, always(NEVER))
    assert best_kept_s(scenario) >= saved.kept_s >= unsaved.kept_s


def test_the_same_seed_gives_the_same_figures_and_another_does_not() -> None:
    costs = Costs(step_s=5.0, blocking_s=30.0, restart_s=300.0)

    def figures(seed: int) -> Outcome:
        scenario = llama3(costs, seed=seed, person_after_s=900.0)
        return simulate(scenario, fixed_retries(None), advised(30.0))

    assert figures(1) == figures(1)
    assert figures(1) != figures(2)


ENDS = st.sampled_from(
    [
        R.PREEMPTED,
        R.GPU_HARDWARE,
        R.NETWORK_FABRIC,
        R.SILENT_CORRUPTION,
        R.NAN_LOSS,
        R.LOSS_DIVERGENCE,
        R.UNKNOWN,
    ]
)


# Six rollbacks, each over what the attempt before had saved: they reach back further than 48 commits.
ROLLBACKS_IN_A_ROW = [
    (R.PREEMPTED, 2196),
    (R.PREEMPTED, 1),
    (R.PREEMPTED, 2341),
    (R.LOSS_DIVERGENCE, 2287),
    (R.LOSS_DIVERGENCE, 137),
    (R.LOSS_DIVERGENCE, 164),
    (R.NAN_LOSS, 228),
    (R.NAN_LOSS, 546),
    (R.NAN_LOSS, 379),
    (R.PREEMPTED, 145),
    (R.PREEMPTED, 2099),
    (R.PREEMPTED, 1),
]


@settings(max_examples=60)
@given(ends=st.lists(st.tuples(ENDS, st.integers(1, 5000)), min_size=1, max_size=25))
@example(ends=ROLLBACKS_IN_A_ROW)
def test_forgetting_old_commits_changes_no_decision(
    ends: list[tuple[TerminationReason, int]],
) -> None:
    times = [sum(apart for _, apart in ends[: index + 1]) for index in range(len(ends))]
    interruptions = tuple(
        Interruption(at_s=float(time_s), reason=reason, message=str(reason))
        for time_s, (reason, _) in zip(times, ends, strict=True)
    )
    scenario = run_of(interruptions=interruptions, steps=20_000)
    forgetful = simulate(scenario, OURS, EVERY_100_S)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simulation, "COMMITS_RECORDED_MAX", 10_000)
        patch.setattr(simulation_run, "_forget_old_commits", lambda state: state)
        assert simulate(scenario, OURS, EVERY_100_S) == forgetful


# --- single runs, by hand --------------------------------------------------------------------------


def test_without_failures_a_run_costs_its_first_start_and_its_saves() -> None:
    outcome = simulate(run_of(), OURS, always(CheckpointCadence(every_s=600.0)))
    assert outcome.complete == 1
    assert outcome.attempts == 1
    # 3600 steps of 1 s, six saves of 2 s of which the last is the final one, one start of 60 s
    assert (outcome.kept_s, outcome.saving_s, outcome.restart_s) == (3600.0, 12.0, 60.0)
    assert outcome.wall_s == 3672.0
    assert outcome.lost_s == outcome.waiting_s == outcome.down_s == outcome.given_up_s == 0.0
    assert outcome.wasted == {"first_start": 120.0}  # 60 s of two devices


def test_an_interruption_costs_the_steps_since_the_save_and_the_restart_that_it_causes() -> None:
    lost = Interruption(at_s=1000.0, reason=R.PREEMPTED, message="taken", down_s=500.0)
    outcome = simulate(run_of(interruptions=(lost,)), OURS, EVERY_100_S)
    # from 60 s on each 100 steps take 102 s: nine saves by 978 s, then 22 steps that are lost
    assert outcome.lost_s == 22.0
    # the backoff passes while there is no capacity
    assert outcome.down_s + outcome.waiting_s == pytest.approx(500.0)
    assert outcome.wasted["preempted"] == (22.0 + 60.0) * 2
    assert (outcome.kept_s, outcome.complete) == (3600.0, 1)


@pytest.mark.parametrize(
    ("grace_s", "lost_s"),
    [
        (0.0, 22.0),
        (1.0, 22.0),  # a save of 2 s does not fit: nothing of it counts
        (12.0, 10.0),  # warned at 988 s, saved at 990 s, taken at 1000 s
    ],
)
def test_a_notice_saves_what_was_done_where_it_leaves_the_time(
    grace_s: float, lost_s: float
) -> None:
    lost = Interruption(at_s=1000.0, reason=R.PREEMPTED, message="taken", grace_s=grace_s)
    outcome = simulate(run_of(interruptions=(lost,)), OURS, EVERY_100_S)
    assert outcome.lost_s == lost_s


def test_an_interruption_while_it_starts_is_an_attempt_without_a_step() -> None:
    early = Interruption(at_s=30.0, reason=R.PREEMPTED, message="taken")
    outcome = simulate(run_of(interruptions=(early,)), OURS, EVERY_100_S)
    assert outcome.restart_s == 30.0 + 60.0
    assert (outcome.kept_s, outcome.lost_s, outcome.attempts) == (3600.0, 0.0, 2)


CURABLE = {
    "OOM": Defect(reason=R.GPU_OOM, message="oom", step=500, micro_batch_max=2),
    "transient": Defect(reason=R.NETWORK_FABRIC, message="reset", step=500, times=1),
    "bad node": Defect(reason=R.GPU_HARDWARE, message="Xid 79", step=500, node="bad"),
}


@pytest.mark.parametrize("name", CURABLE)
def test_ours_completes_what_a_remedy_cures(name: str) -> None:
    outcome = simulate(run_of(CURABLE[name], nodes=("bad", "good")), OURS, EVERY_100_S)
    assert (outcome.complete, outcome.refused) == (1, ())
    assert outcome.attempts == (3 if name == "OOM" else 2)  # 8 → 4 → 2


@pytest.mark.parametrize("name", ["OOM", "bad node"])
def test_a_fixed_number_of_retries_gives_up_what_needs_a_change(name: str) -> None:
    outcome = simulate(run_of(CURABLE[name], nodes=("bad", "good")), fixed_retries(3), EVERY_100_S)
    assert (outcome.complete, outcome.attempts, len(outcome.refused)) == (0, 4, 1)
    assert outcome.given_up_s > 0


def test_a_code_error_is_confirmed_once_by_ours_and_paid_for_four_times_by_three_retries() -> None:
    broken = Defect(reason=R.CODE_ERROR, message="KeyError", step=500)
    assert simulate(run_of(broken), OURS, EVERY_100_S).ends == {"code_error": 2}
    assert simulate(run_of(broken), fixed_retries(3), EVERY_100_S).ends == {"code_error": 4}
    assert simulate(run_of(broken), fixed_retries(0), EVERY_100_S).ends == {"code_error": 1}


def test_retries_that_do_not_count_preemptions_are_spent_on_failures_alone() -> None:
    broken = Defect(reason=R.CODE_ERROR, message="KeyError", step=2000)
    taken = tuple(
        Interruption(at_s=200.0 * number, reason=R.PREEMPTED, message="taken")
        for number in range(1, 6)
    )
    scenario = run_of(broken, interruptions=taken)
    free = simulate(scenario, fixed_retries(3, capacity_is_free=True), EVERY_100_S)
    assert free.ends == {"preempted": 5, "code_error": 4}
    assert simulate(scenario, fixed_retries(3), EVERY_100_S).ends == {"preempted": 4}


def test_a_person_takes_up_a_refused_run_and_the_time_until_then_is_waiting() -> None:
    twice = Defect(reason=R.CODE_ERROR, message="KeyError", step=500, times=2)
    scenario = run_of(twice)
    world = InterruptedWorld(interruptions=(), costs=COSTS, defects=(twice,), person_after_s=3000.0)
    helped = Scenario(
        name="helped",
        job=scenario.job,
        costs=COSTS,
        world=lambda: world,
        horizon_s=scenario.horizon_s,
    )
    outcome = simulate(helped, OURS, EVERY_100_S)
    assert (outcome.complete, outcome.waiting_s) == (1, 3000.0)
    assert outcome.refused == ("code_error: reason",)


def test_silent_corruption_goes_two_checkpoints_back_and_what_was_kept_there_is_lost() -> None:
    corrupt = Interruption(
        at_s=1000.0, reason=R.SILENT_CORRUPTION, message="wrong sums", blamed_node="node-1"
    )
    outcome = simulate(run_of(interruptions=(corrupt,)), OURS, EVERY_100_S)
    # nine saves were made, the eighth is resumed from: 100 steps of the ninth, and 22 after it
    assert outcome.lost_s == 122.0
    assert outcome.complete == 1


def test_nan_rolls_back_before_its_onset() -> None:
    run = SimulatedRun(Job(run_id="run", devices=1, estimated_s=3600.0, config=CONFIG))
    run.open_again(cause="first", why="The run begins.", time_s=0.0)
    run.start(Launch(at_s=0.0, node="node", restart_s=0.0))
    run.restored(0.0)
    for step in (100, 200):
        run.commit(step, float(step), blocking_s=0.0)
    nan = End(reason=R.NAN_LOSS, message="NaN", at_s=250.0, onset_step=150)
    run.end(nan, 250.0, last_step=250, ran_s=250.0)
    decision = OURS(run.state, at(250.0) + timedelta(hours=1))
    assert isinstance(decision, Retry)
    assert decision.resume is not None
    assert decision.resume.step == 100
    assert [each.ref.step for each in decision.quarantine] == [200]


# --- one attempt -----------------------------------------------------------------------------------


def test_a_save_is_due_after_the_step_that_its_cadence_names() -> None:
    launch = Launch(at_s=0.0, node="node", restart_s=0.0)
    costs = Costs(step_s=7.0, blocking_s=0.0, restart_s=0.0)
    end = End(reason=R.PREEMPTED, message="taken", at_s=700.0)
    cadence = CheckpointCadence(every_s=100.0, every_steps=40)
    played = play(launch, 0, cadence, costs, [end], steps=None, horizon_s=math.inf)
    # 100 s are over within the 15th step: 15, 30, the 40th by count, 55, 70, 80, 95
    assert [step for step, _ in played.commits] == [15, 30, 40, 55, 70, 80, 95]
    assert (played.last_step, played.cut_s) == (100, 0.0)


def test_what_fails_at_a_step_fails_after_the_save_before_it() -> None:
    launch = Launch(at_s=0.0, node="node", restart_s=0.0)
    end = End(reason=R.CODE_ERROR, message="KeyError", step=101)
    cadence = CheckpointCadence(every_steps=100)
    played = play(launch, 0, cadence, COSTS, [end], steps=None, horizon_s=math.inf)
    assert played.commits == ((100, 102.0),)
    assert (played.last_step, played.until_s, played.end) == (100, 102.0, end)


# --- the best there is -----------------------------------------------------------------------------


def test_the_closed_form_is_that_of_its_worked_example() -> None:
    assert best_ettr(blocking_s=30.0, restart_s=300.0, mean_time_s=11_135.0) == pytest.approx(
        0.9037, abs=1e-4
    )


def test_perfect_knowledge_keeps_each_span_but_its_restart_and_one_save() -> None:
    intervals = [(1, 1000.0), (0, 100.0), (1, 50.0), (0, 100.0), (1, 500.0)]
    # 1000 − 60 − 2, nothing of a span shorter than a restart, 500 − 60 of the one that goes on
    assert best_kept_s(spot("t", intervals, COSTS)) == 938.0 + 0.0 + 440.0


def test_a_simulation_with_the_mean_of_a_memoryless_world_comes_near_the_closed_form() -> None:
    costs = Costs(step_s=5.0, blocking_s=30.0, restart_s=300.0)
    scenario = llama3(costs, seed=0, person_after_s=0.0)
    outcome = simulate(scenario, fixed_retries(None), advised(30.0))
    closed = best_ettr(blocking_s=30.0, restart_s=300.0, mean_time_s=11_135.0)
    # 419 interruptions: what is lost to each varies by about its own mean, so by 1 / √419 in all
    assert outcome.ettr == pytest.approx(closed, abs=0.01)


@pytest.mark.full
@pytest.mark.parametrize("seed", range(4))  # a minute each of an idle core
def test_ours_keeps_most_of_llama_3s_days_whatever_their_order(seed: int) -> None:
    costs = Costs(step_s=5.0, blocking_s=30.0, restart_s=300.0)
    outcome = simulate(llama3(costs, seed=seed, person_after_s=900.0), OURS, advised(30.0))
    assert outcome.ettr > 0.89
    assert buckets(outcome) == pytest.approx(outcome.wall_s)


# --- the chance to finish ---------------------------------------------------------------------------


def test_a_run_longer_than_any_calm_finishes_only_with_checkpoints() -> None:
    # An hour up, a minute down, for twelve days: an hour and its restart never fit in one go.
    world = spot("t", [(1, 3600.0), (0, 60.0)] * 288, COSTS)
    chances = finish_chances([world], EVERY_100)
    assert [chance.work_s / 3600 for chance in chances] == [1, 6, 24]  # not 7 d, which has 14
    assert [chance.with_checkpoints for chance in chances] == [1.0, 1.0, 1.0]
    assert [chance.without for chance in chances] == [0.0, 0.0, 0.0]


def test_a_run_that_nothing_interrupts_finishes_with_and_without() -> None:
    calm = spot("t", [(1, 3 * 86_400.0)], COSTS)
    chances = finish_chances([calm], EVERY_100)
    assert [(each.with_checkpoints, each.without) for each in chances] == [(1.0, 1.0)] * 3
    assert {each.starts for each in chances} == {STARTS}


def test_a_history_that_is_shorter_than_any_run_has_no_chance_to_tell() -> None:
    assert finish_chances([spot("t", [(1, 600.0)], COSTS)], EVERY_100) == []


# --- pools ------------------------------------------------------------------------------------------


def test_a_run_that_may_change_its_pool_keeps_more_than_one_that_stays() -> None:
    # Zone a takes its machine away every 10 minutes and is down for an hour in four; b is calm.
    a = spot("zone-a", [*[(1, 600.0), (0, 30.0)] * 18, (0, 3600.0)] * 6, COSTS)
    b = spot("zone-b", [(1, 24 * 3600.0)], COSTS)
    [in_a, in_b] = zones([a, b])
    assert in_a.horizon_s == min(a.horizon_s, b.horizon_s)
    moving, staying, naive = (
        simulate(in_a, each.decider, each.pacer)
        for each in pool_choices(DEFAULT_POLICY, blocking_s=2.0, pools=ring(["zone-a", "zone-b"]))
    )
    for outcome in (moving, staying, naive):
        assert buckets(outcome) == pytest.approx(outcome.wall_s)
    assert moving.kept_s > 1.2 * max(staying.kept_s, naive.kept_s)
    assert moving.device_s / moving.kept_s < min(o.device_s / o.kept_s for o in (staying, naive))
    calm = simulate(in_b, OURS, EVERY_100_S)
    assert calm.ends == {}  # its own pool takes nothing away: there is nowhere to go


def test_an_attempt_that_finds_no_capacity_gives_up_and_the_next_asks_elsewhere() -> None:
    a = spot("a", [(1, 900.0), (0, 20_000.0), (1, 100.0)], COSTS)
    b = spot("b", [(1, 21_000.0)], COSTS)
    in_a = zones([a, b])[0]
    moving = next(pool_choices(DEFAULT_POLICY, blocking_s=2.0, pools=ring(["a", "b"])))
    outcome = simulate(in_a, moving.decider, moving.pacer)
    assert outcome.ends["scheduling_timeout"] >= 1
    assert outcome.kept_s > 15_000.0

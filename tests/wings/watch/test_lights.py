"""The three lights, line by line of their table: values only."""

from __future__ import annotations

from datetime import timedelta
from random import Random
from typing import Any

import pytest

from tests.histories import History
from tests.wings.watch.health_cases import gangs, steps, tail, training, use
from tracks_dagster.ledger.prices import Prices
from tracks_dagster.review.lights import Colour, Finding, Lights
from tracks_dagster.track import names
from tracks_dagster.track.bodies import (
    MOVE,
    Alert,
    CheckpointCadence,
    HeldDevices,
    RetentionRule,
)
from tracks_dagster.track.records import Kind
from tracks_dagster.wings.watch.health.finding import Bounds
from tracks_dagster.wings.watch.health.rules import RULES, alert_of
from tracks_dagster.wings.watch.health.tail import NO_TAIL, Evaluated, Tail
from tracks_dagster.wings.watch.health.three_lights import judge

GREEN, YELLOW, RED, GREY = Colour.GREEN, Colour.YELLOW, Colour.RED, Colour.GREY
NO_CADENCE = CheckpointCadence()


def lights_of(history: History, found: Tail, after_s: float = 0.0, **bounds: Any) -> Lights:
    as_of = history.at + timedelta(seconds=after_s)
    return judge(history.state, found, as_of, Bounds(**bounds))


def finding(lights: Lights, rule: str) -> Finding | None:
    return next((each for each in lights.findings if each.rule == rule), None)


def colours(lights: Lights) -> tuple[Colour, ...]:
    return tuple(light.colour for light in lights.all)


def holding(history: History, rule: str, lights: Lights) -> History:
    """Return the history with the alert that the finding begins."""
    found = finding(lights, rule)
    assert found is not None
    return history.add(Kind.ALERT, alert_of(found), attempt_id=1)


def test_a_run_that_trains_well_is_green_and_says_its_numbers() -> None:
    history = training(cadence=NO_CADENCE)
    lights = lights_of(history, tail(steps(100, at=history.at)))
    assert colours(lights) == (GREEN, GREEN, GREEN)
    assert lights.findings == ()
    assert lights.healthy.sentence == "Attempt 1 trains."
    assert lights.improving.sentence.startswith("The loss falls, -")
    assert lights.resources.sentence == "0.45 s a step, 11% of it waiting for data."
    assert lights.resources.numbers["step_s"] == 0.45
    assert lights.step == 100


@pytest.mark.parametrize(
    ("silent_s", "step_s", "is_grey"),
    [
        (29.0, 0.1, False),
        (31.0, 0.1, True),  # max(30 s, 3 × 0.15 s)
        (59.0, 20.0, False),  # 3 × 20.05 s
        (61.0, 20.0, True),
    ],
)
def test_a_light_is_grey_when_its_journal_is_silent(
    silent_s: float, step_s: float, is_grey: bool
) -> None:
    history = training(cadence=NO_CADENCE)
    ran = steps(100, at=history.at - timedelta(seconds=silent_s), step_s=step_s)
    lights = lights_of(history, tail(ran))
    assert (colours(lights) == (GREY, GREY, GREY)) is is_grey
    if is_grey:
        assert "silent" in lights.healthy.sentence


def test_a_clock_ahead_of_ours_makes_no_silence() -> None:
    history = training(cadence=NO_CADENCE)
    ran = steps(100, at=history.at + timedelta(seconds=300))
    assert lights_of(history, tail(ran)).healthy.colour is GREEN


@pytest.mark.parametrize(("silent_s", "holds"), [(119.0, False), (121.0, True)])
def test_no_gang_lives_after_four_times_the_silence_of_a_grey_light(
    silent_s: float, holds: bool
) -> None:
    history = training(cadence=NO_CADENCE)
    lights = lights_of(history, tail(steps(100, at=history.at)), after_s=silent_s)
    assert (finding(lights, "no_gang") is not None) is holds
    assert lights.healthy.colour is (RED if holds else GREY)
    assert lights.improving.colour is GREY


def test_between_attempts_nothing_is_said_and_a_refused_run_is_red() -> None:
    history = training().commit(10).end("gpu_oom", last_step=12)
    assert colours(lights_of(history, NO_TAIL)) == (GREY, GREY, GREY)
    history.refuse()
    lights = lights_of(history, NO_TAIL)
    assert lights.healthy.colour is RED
    assert lights.healthy.sentence.startswith("It waits for a person: The budget is used up. ")


def test_three_retries_within_an_hour_are_red() -> None:
    history = training()
    for _ in range(2):
        history.end("preempted", last_step=3).open().place().restore()
    two = lights_of(history, NO_TAIL)
    assert finding(two, "retries_in_an_hour") is None
    history.end("preempted", last_step=3).open().place().restore()
    three = finding(lights_of(history, NO_TAIL), "retries_in_an_hour")
    assert three is not None
    assert three.severity is RED
    assert three.sentence == ("3 retries within an hour: after preempted, preempted, preempted.")
    assert finding(lights_of(history, NO_TAIL, after_s=3600), "retries_in_an_hour") is None


def test_a_gang_that_was_asked_to_leave_its_node_was_not_retried_for_a_failure() -> None:
    history = training()
    for _ in range(2):
        history.end("preempted", last_step=3).open().place().restore()
    for _ in range(3):
        history.stop(MOVE).end("node_drained", last_step=3).open().place().restore()
    assert finding(lights_of(history, NO_TAIL), "retries_in_an_hour") is None
    history.end("preempted", last_step=3).open().place().restore()
    found = finding(lights_of(history, NO_TAIL), "retries_in_an_hour")
    assert found is not None
    assert found.numbers == {"retries": 3}


@pytest.mark.parametrize(
    ("norms", "holds"),
    [
        (lambda step: 1.0 if step <= 90 else 10.5, True),
        (lambda step: 1.0 if step <= 91 else 10.5, False),  # nine steps
        (lambda step: 1.0 if step <= 90 else 10.0, False),
        (lambda step: 1.0 if step != 95 else 50.0, False),
    ],
)
def test_a_gradient_norm_ten_times_its_median_for_ten_steps_is_red(norms: Any, holds: bool) -> None:
    history = training(cadence=NO_CADENCE)
    lights = lights_of(history, tail(steps(100, at=history.at, norm=norms)))
    assert (finding(lights, "gradient_norm") is not None) is holds
    assert lights.healthy.colour is (RED if holds else GREEN)


@pytest.mark.parametrize(
    ("age_s", "severity"),
    [(599.0, None), (601.0, YELLOW), (1199.0, YELLOW), (1201.0, RED)],
)
def test_a_commit_is_late_by_twice_and_by_four_times_the_cadence(
    age_s: float, severity: Colour | None
) -> None:
    history = training(cadence=CheckpointCadence(every_s=300.0)).commit(10)
    age_s -= 7  # the commit is the last record, and the history's clock has moved on by that
    ran = steps(100, at=history.at + timedelta(seconds=age_s))
    found = finding(lights_of(history, tail(ran), after_s=age_s), "commit_late")
    assert (found.severity if found is not None else None) is severity


def test_a_cadence_of_a_second_is_given_a_minute() -> None:
    history = training(cadence=CheckpointCadence(every_s=1.0)).commit(10)
    ran = steps(100, at=history.at + timedelta(seconds=50))
    assert finding(lights_of(history, tail(ran), after_s=50), "commit_late") is None
    assert finding(lights_of(history, tail(ran), after_s=60), "commit_late") is not None


@pytest.mark.parametrize(
    ("own", "data", "names_", "cause"),
    [
        ([0.2] * 5 + [0.41] + [0.2] * 2, None, ["rank 5"], "compute"),
        ([0.2] * 8, [0.05] * 5 + [0.30] + [0.05] * 2, ["rank 5"], "data"),
        ([0.2] * 5 + [0.26] + [0.2] * 2, None, [], ""),  # 0.25 / 0.31 = 0.81
        ([0.2] * 4 + [0.41] * 2 + [0.2] * 2, None, [], ""),  # two of eight are not a single fault
        ([0.41] * 8, None, [], ""),
        ([0.001] * 5 + [0.003] + [0.001] * 2, [0.0] * 8, [], ""),  # nothing, in a step of 0.4 s
        ([], [0.05] * 5 + [0.30] + [0.05] * 2, ["rank 5"], "data"),  # without hooks
    ],
)
def test_a_rank_is_slow_alone_and_named_with_its_node_and_cause(
    own: list[float], data: list[float] | None, names_: list[str], cause: str
) -> None:
    history = training(cadence=NO_CADENCE)
    lines = gangs(own or [0.0] * 8, data_s=data)
    if not own:
        lines = tuple(
            type(each)(step=each.step, over=5, step_s=each.step_s, data_s=each.data_s)
            for each in lines
        )
    lights = lights_of(history, tail(steps(100, at=history.at), gangs=lines))
    found = finding(lights, "slow_rank")
    assert list(found.about if found is not None else ()) == names_
    if found is not None:
        assert found.numbers["cause"] == cause
        assert found.sentence.startswith(f"Local: rank 5 on node-1 (cpu), {cause}. Over 20 steps")
        assert found.severity is YELLOW


def test_nothing_is_said_of_ranks_before_twenty_steps() -> None:
    history = training(cadence=NO_CADENCE)
    few = gangs([0.2] * 5 + [0.41] + [0.2] * 2)[:3]
    lights = lights_of(history, tail(steps(100, at=history.at), gangs=few))
    assert finding(lights, "slow_rank") is None
    assert "slow_rank" not in lights.clear


def test_a_slow_rank_whose_alert_is_open_recovers_only_clearly() -> None:
    history = training(cadence=NO_CADENCE)
    ran = steps(100, at=history.at)

    def seen(own: float) -> Lights:
        lines = gangs([0.2] * 5 + [own] + [0.2] * 2)
        return lights_of(history, tail(ran, gangs=lines))

    assert finding(seen(0.27), "slow_rank") is None  # 0.25 / 0.32 = 0.78
    holding(history, "slow_rank", seen(0.41))
    assert finding(seen(0.27), "slow_rank") is not None
    assert "slow_rank" in seen(0.22).clear


def test_all_ranks_slow_is_systemic_with_its_cause() -> None:
    history = training(cadence=NO_CADENCE)
    slow = 2.0

    def own_s(step: int) -> float:
        return 0.2 if step <= 20 else 0.2 * slow

    ran = steps(40, at=history.at, own_s=own_s, step_s=lambda step: 0.2 + own_s(step))
    lights = lights_of(history, tail(ran, gangs=gangs([0.4] * 8)))
    found = finding(lights, "step_time")
    assert found is not None
    assert found.sentence.startswith(
        "Systemic: for 20 steps the whole gang has been 1.4 times as slow"
    )
    assert found.numbers["cause"] == "compute"
    assert finding(lights, "slow_rank") is None
    # The steps since then do not become the usual ones while the alert is open.
    holding(history, "step_time", lights)
    later = steps(120, at=history.at, own_s=own_s, step_s=lambda step: 0.2 + own_s(step))
    assert finding(lights_of(history, tail(later)), "step_time") is not None


@pytest.mark.parametrize(
    ("was", "now", "own_of_ranks", "cause"),
    # Rank 0's forward pass, the rest of its step, and its wait for data.
    [
        # Throttled: backward, in the rest, grew by the same half. 0.05 + 0.15 by compute, 0 beyond it.
        ((0.1, 0.3, 0.0), (0.15, 0.45, 0.0), [0.15] * 8, "compute"),
        # A slow network: nobody's passes grew.
        ((0.1, 0.3, 0.0), (0.1, 0.5, 0.0), [0.1] * 8, "communication"),
        # Both: 0.02 + 0.06 by compute, 0.5 - 0.36 = 0.14 beyond it.
        ((0.1, 0.3, 0.0), (0.12, 0.5, 0.0), [0.12] * 8, "communication"),
        # Half of the ranks are throttled, and rank 0 waits for them: 0.05 + 0.15, and 0.05 beyond it.
        ((0.1, 0.3, 0.0), (0.1, 0.5, 0.0), [0.1] * 4 + [0.15] * 4, "compute"),
        ((0.1, 0.3, 0.1), (0.1, 0.3, 0.3), [0.1] * 8, "data"),
        # A rank alone has nobody to talk to.
        ((0.1, 0.3, 0.0), (0.1, 0.5, 0.0), [0.1], "the rest of the step"),
        ((0.1, 0.3, 0.0), (0.15, 0.45, 0.0), [0.15], "compute"),
    ],
)
def test_what_grew_is_compute_as_far_as_the_passes_explain_it(
    was: tuple[float, float, float],
    now: tuple[float, float, float],
    own_of_ranks: list[float],
    cause: str,
) -> None:
    history = training(ranks=len(own_of_ranks), cadence=NO_CADENCE)

    def at(step: int) -> tuple[float, float, float]:
        return was if step <= 80 else now

    ran = steps(
        100,
        at=history.at,
        own_s=lambda step: at(step)[0],
        step_s=lambda step: at(step)[0] + at(step)[1],
        data_s=lambda step: at(step)[2],
    )
    lines = gangs(own_of_ranks, data_s=[now[2]] * len(own_of_ranks))
    found = finding(lights_of(history, tail(ran, gangs=lines)), "step_time")
    if cause == "data":  # that rule says it already
        assert found is None
        return
    assert found is not None
    assert found.numbers["cause"] == cause
    assert found.sentence.endswith(f"no rank stands out; it is {cause}.")


@pytest.mark.parametrize(("factor", "holds"), [(1.19, False), (1.21, True)])
def test_a_step_is_slow_by_a_fifth_of_the_median_of_steps_11_to_60(
    factor: float, holds: bool
) -> None:
    history = training(cadence=NO_CADENCE)

    def step_s(step: int) -> float:
        return 9.0 if step <= 10 else 0.4 if step <= 80 else 0.4 * factor

    ran = steps(100, at=history.at, step_s=step_s, data_s=0.0)
    lights = lights_of(history, tail(ran))
    assert (finding(lights, "step_time") is not None) is holds
    almost = steps(99, at=history.at, step_s=step_s, data_s=0.0)  # 19 steps in a row
    assert finding(lights_of(history, tail(almost)), "step_time") is None


def test_a_slow_rank_explains_the_slow_step() -> None:
    history = training(cadence=NO_CADENCE)
    ran = steps(100, at=history.at, step_s=lambda step: 0.4 if step <= 60 else 0.8)
    lights = lights_of(history, tail(ran, gangs=gangs([0.2] * 5 + [0.6] + [0.2] * 2)))
    assert [each.rule for each in lights.findings] == ["slow_rank"]


@pytest.mark.parametrize(("data_s", "holds"), [(0.099, False), (0.11, True)])
def test_waiting_for_data_is_reported_from_a_fifth_of_a_step_on(data_s: float, holds: bool) -> None:
    history = training(cadence=NO_CADENCE)
    ran = steps(100, at=history.at, step_s=0.4, data_s=data_s)
    lights = lights_of(history, tail(ran))
    assert (finding(lights, "data_wait") is not None) is holds
    assert lights.resources.colour is (YELLOW if holds else GREEN)


def test_data_that_became_slow_for_all_ranks_is_one_finding() -> None:
    history = training(cadence=NO_CADENCE)
    ran = steps(100, at=history.at, data_s=lambda step: 0.02 if step <= 70 else 0.4)
    lines = gangs([0.2] * 8, data_s=[0.4] * 8, step_s=0.4)
    lights = lights_of(history, tail(ran, gangs=lines))
    assert [each.rule for each in lights.findings] == ["data_wait"]


@pytest.mark.parametrize(
    ("percent", "for_s", "holds"),
    [(49, 600.0, True), (49, 599.0, False), (51, 600.0, False), (50, 600.0, False)],
)
def test_a_device_is_used_too_little_below_half_for_ten_minutes(
    percent: int, for_s: float, holds: bool
) -> None:
    history = training(cadence=NO_CADENCE)
    ran = steps(100, at=history.at)
    samples = use(percent, for_s=for_s, at=history.at)
    found = finding(lights_of(history, tail(ran, use=samples)), "device_underused")
    assert (found is not None) is holds
    if found is not None:
        assert found.severity is RED
        assert found.sentence == "The device has been used below 50 % for 10 min (now 49 %)."


def test_one_busy_sample_begins_the_ten_minutes_again() -> None:
    history = training(cadence=NO_CADENCE)
    samples = list(use(10, for_s=700.0, at=history.at, ranks=2))
    samples[30] = type(samples[30])(
        first_at=samples[30].first_at, last_at=samples[30].last_at, percent=(90, 10)
    )
    lights = lights_of(history, tail(steps(100, at=history.at), use=tuple(samples)))
    found = finding(lights, "device_underused")
    assert found is not None
    assert found.about == ("rank 1",)
    assert found.sentence.startswith("1 of 2 devices has been used below 50 %")


@pytest.mark.parametrize(("since_s", "holds"), [(599.0, False), (600.0, True)])
def test_a_device_that_is_held_without_a_step_for_ten_minutes_is_red(
    since_s: float, holds: bool
) -> None:
    held = HeldDevices(pool="local/node-1", seq=0, devices=("GPU-1",), why="free")
    history = History().declare(cadence=NO_CADENCE).open().supervise(held=held)
    history.place(world_size=1).restore()
    ran = steps(100, at=history.at)
    alive = tail(ran, last_line_at=history.at + timedelta(seconds=since_s))
    lights = lights_of(history, alive, after_s=since_s)
    assert (finding(lights, "device_idle") is not None) is holds
    without = training(cadence=NO_CADENCE)  # ranks on a CPU hold nothing
    assert finding(lights_of(without, alive, after_s=since_s), "device_idle") is None


@pytest.mark.parametrize(
    ("waited_s", "queue_s", "holds"),
    [(299.0, 300.0, False), (301.0, 300.0, True), (90_000.0, None, False)],
)
def test_a_queue_longer_than_the_class_allows_is_red(
    waited_s: float, queue_s: float | None, holds: bool
) -> None:
    history = History().declare().open()
    lights = lights_of(history, NO_TAIL, after_s=waited_s - 7, queue_s=queue_s)
    assert (finding(lights, "queue_late") is not None) is holds
    assert lights.resources.colour is (RED if holds else GREY)


@pytest.mark.parametrize(
    ("loss", "holds"),
    [
        (lambda step: 5.0 / step, False),
        (lambda step: 2.0, True),
        (lambda step: 2.0 + step / 1000, True),
        (lambda step: 2.0 - step / 1000 + (1.0 if step % 7 == 0 else 0.0), False),  # spikes
    ],
)
def test_a_loss_whose_slope_is_not_below_zero_is_yellow(loss: Any, holds: bool) -> None:
    history = training(cadence=NO_CADENCE)
    lights = lights_of(history, tail(steps(100, at=history.at, loss=loss)))
    assert (finding(lights, "loss_flat") is not None) is holds
    assert lights.improving.colour is (YELLOW if holds else GREEN)


@pytest.mark.parametrize("noise", [0.05, 0.1])
def test_a_noisy_loss_that_falls_slowly_is_not_an_alert(noise: float) -> None:
    random = Random(1)

    def loss(step: int) -> float:  # from 4.1 to 1.4, as of a small language model
        return 1.2 + 2.9 * (1 + step / 30) ** -0.6 + random.gauss(0, noise)

    history = training(cadence=NO_CADENCE)
    ran = steps(3000, at=history.at, loss=loss)
    looks = (lights_of(history, tail(ran[:count])) for count in range(70, 3001, 60))
    assert [each.step for each in looks if finding(each, "loss_flat")] == []


@pytest.mark.parametrize(
    ("metric", "holds"), [("los", True), ("accuracy", True), ("loss", False), ("val_loss", False)]
)
def test_a_metric_of_the_best_that_nobody_reports_is_yellow_from_the_first_commit_on(
    metric: str, holds: bool
) -> None:
    history = training(cadence=NO_CADENCE, retention=RetentionRule(metric=metric))
    known = (Evaluated(step=10, metrics={"val_loss": 2.0}),)
    ran = steps(12, at=history.at)
    assert finding(lights_of(history, tail(ran, evaluated=known)), "best_unknown") is None
    history.commit(10)
    found = finding(lights_of(history, tail(ran, evaluated=known)), "best_unknown")
    assert (found is not None) is holds
    if metric == "los":
        assert found is not None
        assert "there is: loss, val_loss (did you mean loss?)" in found.sentence


def test_the_slope_is_of_the_newest_64_losses_or_a_tenth_of_all() -> None:
    history = training(cadence=NO_CADENCE)

    def flat_at_the_end(step: int) -> float:
        return 5.0 - min(step, 960) / 1000  # of 1 000 steps the last 40 are flat

    ran = steps(1000, at=history.at, loss=flat_at_the_end)
    assert finding(lights_of(history, tail(ran)), "loss_flat") is None  # 60 of 100 still fall
    few = steps(63, at=history.at, loss=lambda step: 2.0)
    lights = lights_of(history, tail(few))
    assert lights.improving.colour is GREY
    assert lights.improving.sentence.startswith("Too early to say: 63 of 64 losses")


@pytest.mark.parametrize(
    ("values", "severity"),
    [
        ([3.0, 2.5, 2.5, 2.499], None),  # two evaluations since the best
        ([3.0, 2.5, 2.5, 2.499, 2.6], YELLOW),
        ([3.0, 2.5] + [2.5] * 5, YELLOW),
        ([3.0, 2.5] + [2.5] * 6, RED),
        ([3.0, 2.5] + [2.5] * 6 + [2.4], None),
        ([3.0, 2.5, 2.5, 2.4974], None),  # better by 0.104 %
    ],
)
def test_a_validation_loss_that_is_not_better_for_three_evaluations_is_yellow_for_six_red(
    values: list[float], severity: Colour | None
) -> None:
    history = training(cadence=NO_CADENCE)
    found = tuple(
        Evaluated(step=10 * n, metrics={"validation_loss": value})
        for n, value in enumerate(values, 1)
    )
    lights = lights_of(history, tail(steps(100, at=history.at), evaluated=found))
    flat = finding(lights, "validation_flat")
    assert (flat.severity if flat is not None else None) is severity


def test_a_metric_that_shall_grow_is_judged_the_other_way_round() -> None:
    retention = training().state.declared.retention
    grows = type(retention)(metric="accuracy", direction="max")
    history = training(cadence=NO_CADENCE, retention=grows)

    def seen(*values: float) -> Lights:
        found = tuple(Evaluated(step=n, metrics={"accuracy": v}) for n, v in enumerate(values))
        return lights_of(history, tail(steps(100, at=history.at), evaluated=found))

    assert finding(seen(0.5, 0.6, 0.7, 0.8), "validation_flat") is None
    assert finding(seen(0.8, 0.7, 0.6, 0.5), "validation_flat") is not None


def test_a_loss_that_leaves_its_range_for_ten_steps_diverges() -> None:
    history = training(cadence=NO_CADENCE)

    def loss(step: int) -> float:
        return 2.0 - step / 1000 if step <= 90 else 60.0

    lights = lights_of(history, tail(steps(100, at=history.at, loss=loss)))
    assert lights.improving.colour is RED
    assert finding(lights, "divergence") is not None
    assert (
        finding(lights_of(history, tail(steps(99, at=history.at, loss=loss))), "divergence") is None
    )


def test_after_a_divergence_the_light_is_red_until_its_onset_is_passed() -> None:
    history = training(cadence=NO_CADENCE).commit(10)
    history.end("loss_divergence", last_step=80, onset_step=30).open().place().restore()

    def seen(last: int) -> Lights:
        ran = steps(last - 10, first=11, at=history.at)
        return lights_of(history, tail(ran, attempt_id=2))

    assert finding(seen(30), "divergence") is not None
    assert finding(seen(31), "divergence") is None


def test_a_spike_is_shown_for_64_steps_and_a_failed_save_until_the_next_commit() -> None:
    history = training(cadence=NO_CADENCE)
    spike = Alert(
        rule=names.ALERT_LOSS_SPIKE, text="The loss spiked in step 36.", data={"step": 36}
    )
    history.add(Kind.ALERT, spike, attempt_id=1)
    failed = Alert(rule=names.ALERT_SAVE_FAILED, text="No space.", data={"step": 40})
    history.add(Kind.ALERT, failed, attempt_id=1)
    lights = lights_of(history, tail(steps(100, at=history.at)))
    assert lights.healthy.rules == ("loss_spike", "save_failed")
    later = lights_of(history, tail(steps(101, at=history.at)))
    assert later.healthy.rules == ("save_failed",)
    history.commit(100)
    assert lights_of(history, tail(steps(101, at=history.at))).healthy.colour is GREEN


def test_the_same_failure_twice_is_shown_until_a_commit_is_beyond_it() -> None:
    history = training(cadence=NO_CADENCE).commit(10).end("code_error", last_step=12)
    history.open().place().restore()
    assert finding(lights_of(history, NO_TAIL), "same_failure") is None
    history.end("code_error", last_step=12).open().place().restore()
    found = finding(lights_of(history, NO_TAIL), "same_failure")
    assert found is not None
    assert found.sentence == "The same failure 2 times: attempts 1, 2 ended as code_error."
    history.commit(20)
    assert finding(lights_of(history, NO_TAIL), "same_failure") is None


def test_capacity_that_is_taken_again_and_again_is_not_a_failure() -> None:
    history = training().end("preempted", last_step=3).open().place().restore()
    history.end("preempted", last_step=3)
    assert finding(lights_of(history, NO_TAIL), "same_failure") is None


@pytest.mark.parametrize(("step_s", "holds"), [(1.15, False), (1.25, True)])
def test_throughput_is_held_against_what_the_config_had_before(step_s: float, holds: bool) -> None:
    history = training(cadence=NO_CADENCE)
    ran = steps(100, at=history.at, step_s=step_s, data_s=0.0)
    lights = lights_of(history, tail(ran), usual_step_s=1.0)
    assert (finding(lights, "throughput_low") is not None) is holds


@pytest.mark.parametrize(
    ("cap", "severity"), [(100.0, None), (80.0, YELLOW), (64.0, RED), (None, None)]
)
def test_money_is_reported_at_80_and_at_100_percent_of_its_cap(
    cap: float | None, severity: Colour | None
) -> None:
    # 8 ranks for an hour and a bit at 8.00 an hour: about 64
    history = training(cadence=NO_CADENCE, max_cost=cap)
    prices = Prices(currency="USD", per_device_hour={"cpu": 8.0})
    found = finding(lights_of(history, NO_TAIL, after_s=3600, prices=prices), "cost_cap")
    assert (found.severity if found is not None else None) is severity


def test_the_advice_is_one_word_with_three_numbers() -> None:
    history = training(ranks=8, cadence=NO_CADENCE, config={"steps": 200})
    good = lights_of(history, tail(steps(100, at=history.at))).advice
    assert good is not None
    assert good.word == "continue"
    assert good.left_device_hours == pytest.approx(0.1)  # 100 steps × 0.45 s × 8 ranks
    assert good.slope_percent is not None
    assert good.sentence == (
        f"continue; the loss changes by {good.slope_percent:+g} % in 100 steps, nothing is evaluated, "
        "0.1 device hours are left."
    )
    assert list(good.numbers) == ["slope_percent", "evaluations", "left_device_hours"]
    flat = tuple(Evaluated(step=n, metrics={"loss": 2.0}) for n in range(8))

    def word(count: int) -> str:
        ran = tail(steps(100, at=history.at), evaluated=flat[:count])
        advice = lights_of(history, ran).advice
        assert advice is not None
        return advice.word

    assert [word(3), word(4), word(7)] == ["continue", "retune", "stop"]


def test_every_rule_that_a_light_may_find_is_in_the_table() -> None:
    history = training(cadence=NO_CADENCE, max_cost=1.0)
    prices = Prices(currency="USD", per_device_hour={"cpu": 8.0})
    ran = tail(
        steps(200, at=history.at, norm=lambda step: 1.0),
        gangs=gangs([0.2] * 8),
        use=use(90, for_s=700, at=history.at),
        evaluated=(Evaluated(step=1, metrics={"loss": 2.0}),),
    )
    lights = lights_of(history, ran, prices=prices, queue_s=60.0, usual_step_s=1.0)
    judged = {*lights.clear, *(each.rule for each in lights.findings)}
    assert judged <= RULES.keys()
    ours = {rule.name for rule in RULES.values() if not rule.is_event}
    assert ours - judged <= {"device_unheld", "device_idle"}  # of a machine; of a GPU

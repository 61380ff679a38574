"""The document's examples by their numbers: how many trials, how many epochs, who goes on."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import pytest

from tests.studies.played import LR, Played, make_study, play
from tracks_dagster.studies.deciding import Spent, decide, epochs_of
from tracks_dagster.studies.search import Search, Waits, own_search, space_of
from tracks_dagster.studies.space import Config, Param, Space, is_met
from tracks_dagster.track.bodies import StudyExtended, StudyFinished
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.records import Json, Kind
from tracks_dagster.track.states.study_state import StudyState, TrialStatus, fold


def far_from(config: Mapping[str, Json], steps: int) -> float:
    """Return a loss that is least at lr = 0.01, and falls with the steps."""
    return abs(math.log10(config["lr"]) + 2) + 1 / steps


def test_a_grid_of_3_by_3_is_nine_runs() -> None:
    params = {
        "lr": Param(kind="choice", values=(1e-4, 1e-3, 1e-2)),
        "layers": Param(kind="int", low=2, high=4),
    }
    study = make_study(params=params, search={"kind": "grid"}, trials=9)
    state = play(study, far_from).state
    assert [t.config for t in state.trials] == [
        {"lr": lr, "layers": layers} for layers in (2, 3, 4) for lr in (1e-4, 1e-3, 1e-2)
    ]
    assert {len(t.rungs) for t in state.trials} == {1}
    assert (state.finished.cause, state.finished.best) == ("complete", 2)


def test_a_grid_is_made_once_for_all_of_its_proposals(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Space] = []
    whole = Space.grid

    def grid(space: Space) -> tuple[dict[str, Json], ...]:
        made.append(space)
        return whole(space)

    monkeypatch.setattr(Space, "grid", grid)
    params = {name: Param(kind="choice", values=(1, 2, 3)) for name in ("made", "once")}
    study = make_study(search={"kind": "grid"}, params=params)
    assert len(play(study, lambda config, steps: 1.0).state.trials) == 9
    assert len(made) <= 1  # none where another test had the same


def test_a_grid_that_starts_elsewhere_still_tries_every_config_once() -> None:
    params = {"lr": Param(kind="choice", values=(1e-4, 1e-3, 1e-2))}
    start = [{"lr": 1e-2}, {"lr": 0.05}]
    study = make_study(params=params, search={"kind": "grid", "start": start}, trials=4)
    state = play(study, far_from).state
    assert [t.config["lr"] for t in state.trials] == [1e-2, 0.05, 1e-4, 1e-3]


def test_more_points_than_whole_numbers_are_these_numbers() -> None:
    of = {"kind": "int", "low": 2, "high": 5}
    assert Param(**of, points=300_000_000).grid() == Param(**of).grid() == (2, 3, 4, 5)
    assert Param(**of, points=2).grid() == (2, 5)


def test_a_text_in_a_product_meets_no_constraint_and_is_never_made() -> None:
    assert not is_met("opt * 99999999999 != 1", {"opt": "adam"})
    assert not is_met("opt % 1 != 1", {"opt": "%99999999999d"})


def test_60_random_trials_are_60_configs_spread_over_the_powers_of_ten() -> None:
    state = play(make_study(trials=60), far_from).state
    rates = [t.config["lr"] for t in state.trials]
    assert len(set(rates)) == 60
    assert all(1e-4 <= each <= 1e-1 for each in rates)
    # 20 of 60 are expected in each power of ten, and 14 to 26 within 1.6 standard deviations (3.65).
    by_power = Counter(math.floor(math.log10(each)) for each in rates)
    assert all(14 <= by_power[power] <= 26 for power in (-4, -3, -2))


def test_halving_81_27_9_3_costs_exactly_243_epochs_where_all_to_the_end_cost_2187() -> None:
    # 81 × 1 + 27 × (3 - 1) + 9 × (9 - 3) + 3 × (27 - 9) = 81 + 54 + 54 + 54 = 243; 81 × 27 = 2 187
    study = make_study(scheduler={"kind": "halving"}, budgets=(1, 3, 9, 27), trials=81)
    state = play(study, far_from).state
    assert Counter(len(t.rungs) for t in state.trials) == {1: 54, 2: 18, 3: 6, 4: 3}
    assert epochs_of(state) == 243
    assert epochs_of(play(make_study(budgets=(27,), trials=81), far_from).state) == 2187
    best = sorted(state.trials, key=lambda t: far_from(t.config, 27))[:3]
    assert {t.number for t in state.trials if t.status is TrialStatus.DONE} == {
        t.number for t in best
    }


def test_the_runs_of_a_rung_continue_from_the_commits_of_the_rung_before() -> None:
    study = make_study(scheduler={"kind": "halving"}, budgets=(1, 3, 9, 27), trials=81)
    for trial in play(study, far_from).state.trials:
        for before, after in pairwise(trial.rungs):
            assert after.proposed.source == before.judged.checkpoint
            assert after.proposed.config == before.proposed.config


def test_median_stopping_ends_at_epoch_10_each_trial_that_is_worse_than_the_median_of_the_others() -> (
    None
):
    params = {"lr": Param(kind="choice", values=tuple(10 ** -(1 + n / 4) for n in range(12)))}
    study = make_study(
        params=params,
        search={"kind": "grid"},
        scheduler={"kind": "median"},
        budgets=(10, 100),
        trials=12,
    )
    state = play(study, far_from).state
    stopped = [t for t in state.trials if t.status is TrialStatus.STOPPED]
    assert all(t.last.proposed.steps == 10 for t in stopped)
    # At step 10 the losses are 1, 0.75, 0.5, 0.25, 0, 0.25, 0.5 … and 0.1 more. The first four have too
    # few to compare with; trial 6, at 0.5, is worse than 0.375, the median of the six before it.
    assert {t.number for t in stopped} == {6, 7, 8, 9, 10, 11}
    assert all("worse than the median" in t.stopped.why for t in stopped)
    # lr 1e-2 is the best, and trained to the end
    assert state.finished.best == 4


def test_asha_promotes_without_waiting_and_never_trains_more_than_all_to_the_end() -> None:
    study = make_study(scheduler={"kind": "asha"}, budgets=(1, 3, 9, 27), trials=81, slots=4)
    state = play(study, far_from).state
    counts = [sum(len(t.rungs) > rung for t in state.trials) for rung in range(4)]
    assert counts[0] == 81
    assert all(after >= before // 3 for before, after in pairwise(counts))
    assert 243 <= epochs_of(state) < 2187
    first_rung_2 = next(s for t in state.trials for s in t.rungs[1:2])
    assert first_rung_2.seq < max(t.rungs[0].seq for t in state.trials)  # before all had begun


def test_pbt_copies_every_5_epochs_from_the_better_through_its_commit() -> None:
    study = make_study(scheduler={"kind": "pbt"}, budgets=tuple(range(5, 30, 5)), trials=8, slots=8)
    state = play(study, far_from).state
    copies = [
        (r.proposed, t)
        for t in state.trials
        for r in t.rungs
        if r.proposed.source and not r.proposed.source.run_id.startswith(f"s-t{t.number:03d}")
    ]
    assert len(copies) == 2 * 4  # the worst quarter of 8, at the budgets 5, 10, 15 and 20
    for body, _ in copies:
        source = next(
            r for t in state.trials for r in t.rungs if r.proposed.run_id == body.source.run_id
        )
        assert body.source.step == body.steps - 5 == source.proposed.steps
        factor = body.config["lr"] / source.proposed.config["lr"]
        assert factor == pytest.approx(0.8) or factor == pytest.approx(1.2)
    assert all(len(t.rungs) == 5 for t in state.trials)
    first, last = (
        sum(far_from(t.rungs[rung].proposed.config, 25) for t in state.trials) for rung in (0, -1)
    )
    assert last < first


@pytest.mark.parametrize("named", [{}, {"perturb": ["lr"]}, {"perturb": ["batch"]}])
def test_pbt_copies_weights_into_a_config_that_takes_them(named: dict[str, list[str]]) -> None:
    params = {
        "layers": Param(kind="int", low=2, high=12),
        "batch": Param(kind="int", low=8, high=512),
        "mixed": Param(kind="uniform", low=0, high=1, when={"layers": (2, 3, 4)}),
        **LR,
    }
    study = make_study(
        scheduler={"kind": "pbt", **named}, budgets=(5, 10, 15), trials=16, params=params
    )
    state = play(study, far_from).state
    proposed = {r.proposed.run_id: r.proposed for t in state.trials for r in t.rungs}
    copies = [p for p in proposed.values() if p.source and f"t{p.trial:03d}" not in p.source.run_id]
    changed = set()
    for body in copies:
        source = proposed[body.source.run_id].config
        assert body.config.keys() == source.keys()
        changed |= {name for name, value in body.config.items() if value != source[name]}
    assert changed
    assert changed <= set(named.get("perturb", ["lr", "mixed"]))


def test_trials_that_failed_leave_the_worst_quarter_of_pbt_to_those_that_train() -> None:
    params = {"n": Param(kind="choice", values=tuple(range(16)))}

    def curve(config: Mapping[str, Json], steps: int) -> float | None:
        return None if config["n"] >= 12 else float(config["n"])

    study = make_study(
        scheduler={"kind": "pbt"},
        budgets=(5, 10),
        trials=16,
        slots=16,
        params=params,
        search={"kind": "grid"},
    )
    state = play(study, curve).state
    copied = [
        t.number
        for t in state.trials
        if len(t.rungs) > 1 and t.rungs[1].proposed.source.run_id != t.rungs[0].proposed.run_id
    ]
    assert copied == [9, 10, 11]  # a quarter of the 12 that were measured


def test_evolution_keeps_8_of_24_and_fills_up_with_changed_ones_and_immigrants() -> None:
    study = make_study(search={"kind": "evolution"}, trials=48, slots=24)
    state = play(study, far_from).state
    first = sorted(state.trials[:24], key=lambda t: (far_from(t.config, 9), t.number))
    parents = [t.config["lr"] for t in first[:8]]
    second = [t.config["lr"] for t in state.trials[24:]]
    assert second[:8] == [pytest.approx(min(lr * 1.2, 0.1)) for lr in parents]
    assert second[8:16] == [pytest.approx(max(lr * 0.7, 1e-4)) for lr in parents]
    immigrants = second[16:]
    assert len(immigrants) == 8
    assert not set(immigrants) & {lr * f for lr in parents for f in (1.0, 1.2, 0.7)}


def test_evolution_moves_choices_and_trains_nearly_no_config_twice() -> None:
    values = {"a": (1, 2, 3, 4, 6), "b": (64, 96, 128, 192), "c": (0.0, 0.1, 0.2), "d": ("x", "y")}
    params = {name: Param(kind="choice", values=each) for name, each in values.items()}

    def curve(config: Mapping[str, Json], steps: int) -> float:
        return sum(abs(values[name].index(config[name]) - 1) for name in values)

    study = make_study(search={"kind": "evolution"}, params=params, trials=72, slots=24)
    configs = [dict(t.config) for t in play(study, curve).state.trials]
    repeated = [each for n, each in enumerate(configs) if n >= 24 and each in configs[:n]]
    assert len(repeated) < 24  # immigrants are drawn, whatever was tried


@pytest.mark.parametrize(
    ("kind", "scheduler", "budgets"),
    [("evolution", "fifo", (9,)), ("random", "pbt", (1, 2, 3, 4, 5, 6))],
)
def test_a_changed_config_is_one_of_the_space(
    kind: str, scheduler: str, budgets: tuple[int, ...]
) -> None:
    params = {
        "layers": Param(kind="int", low=1, high=3),
        "drop": Param(kind="uniform", low=0.1, high=0.9, when={"layers": (2, 3)}),
        "optimizer": Param(kind="choice", values=("adam", "sgd")),
        "momentum": Param(kind="uniform", low=0.1, high=0.99, when={"optimizer": ("sgd",)}),
    }
    study = make_study(
        search={"kind": kind},
        scheduler={"kind": scheduler},
        budgets=budgets,
        params=params,
        trials=72,
        slots=24,
    )
    state = play(study, lambda config, steps: float(config["layers"])).state
    space = space_of(study)
    configs = [rung.proposed.config for trial in state.trials for rung in trial.rungs]
    assert [found for each in configs for found in space.misfits(each)] == []


def test_16_configs_on_4_slots_are_never_more_than_4_at_once() -> None:
    played = play(make_study(trials=16, slots=4), far_from)
    assert len(played.state.trials) == 16
    assert played.most_open == 4


def test_the_order_in_which_trials_end_changes_no_config_of_a_random_search() -> None:
    study = make_study(trials=20)
    calm = play(study, far_from).state
    other = Played(study, far_from)
    while other.state.finished is None:
        if not other.decide():
            other.judge(other.state.open_rungs[-1])
    assert [t.config for t in other.state.trials] == [t.config for t in calm.trials]


def test_no_number_is_the_worst_and_a_failed_trial_stops_nobody_else() -> None:
    def curve(config: Mapping[str, Json], steps: int) -> float | None:
        if config["lr"] > 0.03:
            return math.nan
        return None if config["lr"] < 2e-4 else far_from(config, steps)

    study = make_study(scheduler={"kind": "halving"}, budgets=(1, 3, 9, 27), trials=81)
    state = play(study, curve).state
    failed = [t for t in state.trials if t.status is TrialStatus.FAILED]
    assert {t.last.judged.outcome for t in failed} == {"failed", "not_a_number"}
    assert all(len(t.rungs) == 1 for t in failed)
    assert Counter(len(t.rungs) for t in state.trials)[4] == 3


@pytest.mark.parametrize("kind", ["fifo", "median", "halving", "asha", "pbt"])
def test_a_study_whose_first_trials_all_fail_ends_with_the_reason(kind: str) -> None:
    study = make_study(scheduler={"kind": kind}, budgets=(1, 3), trials=30, params=LR)
    state = play(study, lambda config, steps: None).state
    assert (state.finished.cause, state.finished.best) == ("all_failed", None)
    assert len(state.trials) <= 3 + 4  # three, and what had begun beside them


class DriesUp:
    """A random search that meets no constraint any more after three configs."""

    def __init__(self, of: Search) -> None:
        self.of = of

    def propose(self, study: StudyState, number: int) -> Config | Waits | None:
        if number >= 3:
            raise InvalidInput("None of 1000 configs meets the constraints.")
        return self.of.propose(study, number)


@pytest.mark.parametrize("kind", ["fifo", "halving", "asha"])
def test_a_search_that_finds_no_further_config_ends_with_those_that_were_tried(kind: str) -> None:
    budgets = (9,) if kind == "fifo" else (1, 9)
    study = make_study(scheduler={"kind": kind}, budgets=budgets, trials=30)
    state = Played(study, far_from, DriesUp(own_search(study))).play()
    assert (state.finished.cause, len(state.trials)) == ("complete", 3)
    assert any(each.status is TrialStatus.DONE for each in state.trials)
    assert state.finished.why == (
        "All 3 trials are over, and the search proposes none of the other 27: "
        "None of 1000 configs meets the constraints."
    )


def test_a_cap_in_device_hours_ends_it_with_what_is_known() -> None:
    study = make_study(trials=60, max_device_hours=9 * 10 / 3600)  # ten trials of 9 s
    state = play(study, far_from).state
    assert state.finished.cause == "device_hours"
    assert sum(t.last.judged is not None for t in state.trials) == 10
    assert state.finished.best is not None


def test_a_study_that_ends_with_open_trials_has_their_device_hours_too() -> None:
    study = make_study(trials=60, max_device_hours=1.0)
    played = Played(study, far_from)
    for _ in range(4):
        played.decide()
    played.judge(played.state.open_rungs[0])
    spent = Spent(device_s=5000.0, cost=2.5, running=())  # by three that were drained too
    answer = decide(played.state, spent, lambda: played.search)
    assert isinstance(answer, StudyFinished)
    assert answer.cause == "device_hours"
    played.add(Kind.STUDY_FINISHED, answer)
    assert (played.state.device_s, played.state.cost) == (5000.0, 2.5)
    larger = StudyExtended(by="ann", why="More.", max_device_hours=9.0)
    played.add(Kind.STUDY_EXTENDED, larger)
    assert played.state.device_s == 9.0  # of the one that is judged: the others are open


def test_the_best_three_are_trained_again_with_two_other_seeds_and_the_best_mean_wins() -> None:
    lucky = 0  # the first seed of this trial; its others are bad

    def curve(config: Mapping[str, Json], steps: int) -> float:
        return float(config["n"])

    params = {"n": Param(kind="choice", values=tuple(range(9)))}
    study = make_study(params=params, search={"kind": "grid"}, repeat={"best": 3, "seeds": 2})
    played = Played(study, curve)
    while played.decide() or played.state.open_rungs:
        for rung in played.state.open_rungs[:1]:
            is_bad = rung.proposed.trial == lucky and rung.proposed.repeat is not None
            played.judge(rung, worse_by=9.0 if is_bad else 0.0)
    state = played.state
    assert [len(each.repeats) for each in state.trials] == [2, 2, 2, 0, 0, 0, 0, 0, 0]
    assert state.trials[lucky].mean_and_deviation == pytest.approx((6.0, math.sqrt(27)))
    assert state.trials[3].mean_and_deviation is None
    assert (state.finished.cause, state.finished.best) == ("complete", 1)
    ids = [r.proposed.run_id for r in state.trials[1].repeats]
    assert ids == ["s-t001-r1", "s-t001-r2"]
    assert epochs_of(state) == 9 * 9 + 6 * 9
    assert played.most_open <= 4
    part = fold(played.records[:20])  # of records at once, as of one after another
    assert fold(played.records[20:], part) == fold(played.records) == state


@dataclass
class EndsInWords:
    """A search that finds no further config after so many, as one of a library under constraints."""

    inner: Search
    count: int

    def propose(self, study: StudyState, number: int) -> Config | Waits | None:
        if number >= self.count:
            raise InvalidInput("No further config meets the constraints.")
        return self.inner.propose(study, number)


def test_repeats_fill_the_slots_also_where_the_search_ended_early_in_words() -> None:
    study = make_study(trials=9, slots=4, repeat={"best": 2, "seeds": 2})
    search = EndsInWords(own_search(study), 3)
    played = Played(study, lambda config, steps: float(config["lr"]), search)
    most_repeats = 0
    while played.decide() or played.state.open_rungs:
        while played.decide():
            pass
        open_rungs = played.state.open_rungs
        most_repeats = max(most_repeats, sum(r.proposed.repeat is not None for r in open_rungs))
        for rung in open_rungs[:1]:
            played.judge(rung)
    assert most_repeats == 4
    assert sum(len(trial.repeats) for trial in played.state.trials) == 4
    why = played.state.finished.why
    assert why.endswith("none of the other 6: No further config meets the constraints.")


def test_a_repeat_that_is_not_a_number_makes_its_trial_the_worst() -> None:
    params = {"n": Param(kind="choice", values=(0, 1))}
    study = make_study(
        params=params, search={"kind": "grid"}, trials=2, repeat={"best": 2, "seeds": 1}
    )
    played = Played(study, lambda config, steps: float(config["n"]))
    while played.decide() or played.state.open_rungs:
        for rung in played.state.open_rungs[:1]:
            is_first = rung.proposed.trial == 0 and rung.proposed.repeat is not None
            played.judge(rung, worse_by=math.nan if is_first else 0.0)
    assert played.state.finished.best == 1
    assert played.state.trials[0].mean_and_deviation is None


def test_where_every_repeat_fails_the_best_is_that_of_the_first_seed() -> None:
    values = (0.9, 0.5, 0.1, 0.7)
    params = {"n": Param(kind="choice", values=(0, 1, 2, 3))}
    study = make_study(
        params=params, search={"kind": "grid"}, trials=4, repeat={"best": 3, "seeds": 1}
    )
    played = Played(study, lambda config, steps: values[config["n"]])
    while played.decide() or played.state.open_rungs:
        for rung in played.state.open_rungs[:1]:
            played.judge(rung, worse_by=math.nan if rung.proposed.repeat else 0.0)
    assert [len(each.repeats) for each in played.state.trials] == [0, 1, 1, 1]
    assert played.state.finished.best == 2

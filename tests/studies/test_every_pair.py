"""Every search with every scheduler comes to its end, whatever becomes of the trials."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise, product
from typing import Any

import pytest

from tests.studies.played import Played, make_study, play
from tracks_dagster.studies.deciding import is_over
from tracks_dagster.studies.judging import refused
from tracks_dagster.studies.schedulers import SCHEDULERS
from tracks_dagster.studies.search import GENERATION, Waits, own_search
from tracks_dagster.studies.space import Config, Param
from tracks_dagster.track.bodies import StudyDeclared
from tracks_dagster.track.records import Json, Kind
from tracks_dagster.track.states.study_state import StudyState, TrialStatus

PARAMS = {
    "lr": Param(kind="loguniform", low=1e-4, high=1e-1, points=3),
    "optimizer": Param(kind="choice", values=("adam", "sgd")),
    "momentum": Param(kind="uniform", low=0.5, high=0.9, points=2, when={"optimizer": ("sgd",)}),
}
TURNS_MAX = 5000
SHARES = {"calm": 0.0, "rough": 0.3}  # of the runs that come to no value


@dataclass(frozen=True)
class Batches:
    """A search of someone else: five at a time, once those before are over, and 14 in all."""

    inner: Any

    def propose(self, study: StudyState, number: int) -> Config | Waits | None:
        if number >= 14:
            return None
        if number % 5 == 0 and not all(map(is_over, study.trials)):
            return Waits("five are not over")
        return self.inner.propose(study, number)


def curve(config: Mapping[str, Json], steps: int) -> float:
    return abs(math.log10(config["lr"]) + 2) + config.get("momentum", 0.6) / steps


def played_of(study: StudyDeclared, rng: random.Random, bad: float) -> Played:
    """Play a study to its end, of whose open runs a drawn one ends next."""
    kind = study.search["kind"]
    search = Batches(own_search(study)) if kind == "random" and study.trials == 16 else None
    played = Played(study, curve, search)
    for _ in range(TURNS_MAX):
        if played.decide():
            continue
        if played.state.finished is not None:
            return played
        rung = rng.choice(played.state.open_rungs)
        if rng.random() >= bad:
            played.judge(rung)
            continue
        match rng.choice(("failed", "nan", "refused")):
            case "refused":
                played.add(Kind.TRIAL_JUDGED, refused(rung, "there is no device"))
            case "failed":
                played.curve = lambda config, steps: None
                played.judge(rung)
                played.curve = curve
            case _:
                played.judge(rung, worse_by=math.nan)
    raise AssertionError(f"not finished after {TURNS_MAX} turns: {Counter(status_of(played))}")


def status_of(played: Played) -> list[str]:
    return [each.status.value for each in played.state.trials]


@pytest.mark.parametrize(
    ("scheduler", "kind", "trials"),
    [
        (scheduler, *search)
        for scheduler, search in product(
            SCHEDULERS, (("grid", 9), ("random", 10), ("random", 16), ("evolution", 55))
        )
    ],
)
def test_each_pair_ends_with_every_trial_at_its_end_and_its_words_true(
    scheduler: str, kind: str, trials: int
) -> None:
    for (case, bad), seed in product(SHARES.items(), (1, 2)):
        print(f"{case}, seed {seed}")
        rng = random.Random(f"{scheduler}/{kind}/{trials}/{case}/{seed}")
        budgets = (9,) if scheduler == "fifo" else (1, 3, 9)
        asked = {} if scheduler == "pbt" else {"best": 2, "seeds": seed}
        study = make_study(
            params=PARAMS,
            constraints=("lr < 0.2",),
            search={"kind": kind},
            scheduler={"kind": scheduler},
            budgets=budgets,
            trials=trials,
            slots=rng.choice((1, 4)),
            seed=seed,
            repeat=asked,
        )
        played = played_of(study, rng, bad)
        state = played.state
        why = state.finished.why
        assert played.most_open <= study.slots
        if state.finished.cause == "all_failed":
            assert bad
            continue
        assert state.finished.cause == "complete"
        assert all(map(is_over, state.trials)), Counter(status_of(played))
        assert not state.open_rungs
        assert why.startswith(f"All {len(state.trials)} trials are over")
        is_short = len(state.trials) < study.trials
        assert is_short == (trials == 16)
        assert is_short == ("the search proposes none of the other 2: it has no further" in why)
        whole = [t for t in state.trials if t.status is TrialStatus.DONE]
        assert whole or bad
        whole.sort(key=lambda t: (state.loss_of(t.last.judged), t.number))
        best = {t.number for t in whole[: asked.get("best", 0)]}
        for trial in state.trials:
            assert len(trial.repeats) == (asked["seeds"] if trial.number in best else 0)


@pytest.mark.parametrize("scheduler", ["halving", "asha"])
def test_the_best_of_each_generation_train_to_the_end_before_the_next_one(scheduler: str) -> None:
    study = make_study(
        search={"kind": "evolution"}, scheduler={"kind": scheduler}, budgets=(1, 3), trials=60
    )
    state = play(study, lambda config, steps: abs(math.log10(config["lr"]) + 2)).state
    generations = [state.trials[n : n + GENERATION] for n in range(0, 60, GENERATION)]
    for generation, after in pairwise(generations):
        ended = max(rung.seq for each in generation for rung in each.rungs)
        assert ended < min(each.rungs[0].seq for each in after)
    counts = [Counter(len(each.rungs) for each in generation) for generation in generations]
    if scheduler == "halving":
        assert counts == [{1: 16, 2: 8}, {1: 16, 2: 8}, {1: 8, 2: 4}]
    else:
        assert counts[0][2] >= 8
    stopped = next(each.stopped for each in state.trials if each.stopped)
    assert " at step 1; " in stopped.why


def test_asha_with_few_trials_trains_its_best_to_the_end() -> None:
    study = make_study(scheduler={"kind": "asha"}, budgets=(1, 3, 9), trials=5)
    state = play(study, lambda config, steps: abs(math.log10(config["lr"]) + 2)).state
    best = min(state.trials, key=lambda each: abs(math.log10(each.config["lr"]) + 2))
    whole = [each.number for each in state.trials if each.status is TrialStatus.DONE]
    assert whole == [best.number]
    assert state.trials[best.number].stopped is None
    assert {each.status for each in state.trials} == {TrialStatus.DONE, TrialStatus.STOPPED}

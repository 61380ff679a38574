"""What a proposal costs after many trials, and which good trials each scheduler stops.

A proposal: processor time of one look at a study of 1 000 finished trials; those of Optuna need the
extra `tune`. The stopped ones: studies of 81 trials played over curves that fall as a power of the
steps, each with an exponent and a height of its own, with noise on each reading. "good" are the
three that would end lowest, as many as `halving` trains to the end.
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tests.studies.played import Played, make_study
from tracks_dagster.studies.deciding import Spent, decide, epochs_of
from tracks_dagster.studies.effects.searching import search_of
from tracks_dagster.studies.space import Param
from tracks_dagster.track.records import Json
from tracks_dagster.track.states.study_state import TrialStatus

FINISHED = 1000
SEARCHES = ("random", "evolution", "tpe", "nsga2")
PARAMS = {
    "lr": Param(kind="loguniform", low=1e-4, high=1e-1),
    "width": Param(kind="int", low=16, high=512),
    "dropout": Param(kind="uniform", low=0.0, high=0.5),
}

TRIALS, SEEDS, GOOD = 81, 20, 3
SPREAD = 0.3  # standard deviation of where the trials end
NOISES = (0.0, 0.03, 0.1)  # of a reading
SCHEDULERS: Mapping[str, Sequence[int]] = {  # with the budgets of each, in epochs
    "halving": (1, 3, 9, 27),
    "asha": (1, 3, 9, 27),
    "median": (9, 27),
}

AT_MOST = {f"proposal_{kind}_s": 1.0 for kind in SEARCHES}
WHY = dict.fromkeys(AT_MOST, "each proposal looks at every trial once; a slower or a busy machine")


def run() -> dict[str, float]:
    """Return seconds of processor time of a proposal, and shares of good trials in percent."""
    return {**_proposals(), **_stopped()}


def _proposals() -> dict[str, float]:
    return {f"proposal_{kind}_s": _proposal_s(kind) for kind in SEARCHES}


def _proposal_s(kind: str) -> float:
    study = make_study(params=PARAMS, search={"kind": "random"}, trials=FINISHED + 9, slots=1)
    played = Played(study, lambda config, steps: config["lr"] * config["width"])
    while len(played.state.trials) < FINISHED or played.state.open_rungs:
        if not (len(played.state.trials) < FINISHED and played.decide()):
            played.judge(played.state.open_rungs[0])
    declared = make_study(params=PARAMS, search={"kind": kind}, trials=FINISHED + 9, slots=1)
    began_s = time.process_time()
    decide(
        replace(played.state, declared=declared),
        Spent(device_s=0.0, cost=0.0, running=()),
        lambda: search_of(declared),
    )
    return time.process_time() - began_s


def _stopped() -> dict[str, float]:
    figures: dict[str, float] = {}
    for name, budgets in SCHEDULERS.items():
        for noise in NOISES:
            plays = [_play(name, budgets, noise, seed) for seed in range(SEEDS)]
            for figure in plays[0]:
                mean = sum(each[figure] for each in plays) / SEEDS
                figures[f"{figure}_{name}_noise_{noise:g}"] = 100 * mean
    return figures


def _play(name: str, budgets: Sequence[int], noise: float, seed: int) -> dict[str, float]:
    """Return shares: of the good that were stopped; of the epochs of all that were trained; of SPREAD
    by which the best that came to its end is worse than the best of all."""
    study = make_study(
        scheduler={"kind": name}, budgets=tuple(budgets), trials=TRIALS, seed=seed, slots=4
    )
    world = Curves(noise, seed)
    played = Played(study, world)
    played.play()
    ends = {each.number: world.at(each.config, budgets[-1]) for each in played.state.trials}
    done = [each.number for each in played.state.trials if each.status is TrialStatus.DONE]
    good = sorted(ends, key=ends.__getitem__)[:GOOD]
    return {
        "good_stopped_percent": sum(each not in done for each in good) / GOOD,
        "epochs_percent": epochs_of(played.state) / (TRIALS * budgets[-1]),
        "regret_percent": (min(ends[each] for each in done) - ends[good[0]]) / SPREAD,
    }


@dataclass(frozen=True, slots=True)
class Curves:
    """Loss after so many epochs: end + height × epochs ** -exponent, and noise on each reading."""

    noise: float
    seed: int

    def __call__(self, config: Mapping[str, Json], steps: int) -> float:
        """Return what is read."""
        rng = random.Random(f"{self.seed}/{config['lr']}/{steps}")
        return self.at(config, steps) + rng.gauss(0.0, self.noise)

    def at(self, config: Mapping[str, Json], steps: int) -> float:
        """Return what is so."""
        rng = random.Random(f"{self.seed}/{config['lr']}")
        end, height, exponent = (
            1 + rng.gauss(0.0, SPREAD),
            rng.uniform(0.5, 1.5),
            rng.uniform(0.5, 1.5),
        )
        return float(end + height * steps**-exponent)

"""What a proposal costs after many trials, what a large study costs the daemon and the board, and which
good trials each scheduler stops.

A proposal: processor time of one look at a study of 1 000 finished trials; those of Optuna need the
extra `tune`. A large study: 10 000 finished trials in a store in a folder, and one that trains; of its
page processor seconds at the first look of a process, and after each new record; of the daemon a tick
in which nothing is decided, as a share of the time between two, and one that judges a trial. The
stopped ones: studies of 81 trials played over curves that fall as a power of the
steps, each with an exponent and a height of its own, with noise on each reading. "good" are the
three that would end lowest, as many as `halving` trains to the end.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tests.deciders import world_of
from tests.histories import History
from tests.studies.played import Played, make_study
from tests.visitors import Visitor
from tracks_dagster.defs.site import TICK_S
from tracks_dagster.ledger.effects.deciding import OF_STUDIES, decide_due
from tracks_dagster.settings import Settings
from tracks_dagster.studies.deciding import Spent, decide, epochs_of, run_id_of
from tracks_dagster.studies.effects.deciding import TuneStudies
from tracks_dagster.studies.effects.searching import search_of
from tracks_dagster.studies.search import space_of
from tracks_dagster.studies.space import Param
from tracks_dagster.track.bodies import Note, TrialProposed
from tracks_dagster.track.records import Json, Kind
from tracks_dagster.track.states.study_state import TrialStatus
from tracks_dagster.wings.watch.board.effects.serving import guarded
from tracks_dagster.wings.watch.board.effects.sources import Sources
from tracks_dagster.wings.watch.board.effects.studies import FRESH_S
from tracks_dagster.wiring import build

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
LARGE = 10_000
ROUNDS = 3
AT_MOST |= {"large_page_s": 1.0, "large_tick_percent": 5.0}
WHY |= {
    "large_page_s": "what is shown of a study looks at every trial more often than a few times",
    "large_tick_percent": "a tick folds or reads what it knows",
}


def run() -> dict[str, float]:
    """Return seconds of processor time of a proposal, what a large study costs, and shares of good
    trials in percent."""
    return {**_proposals(), **_large(), **_stopped()}


def _large() -> dict[str, float]:
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="tracks-bench-") as name:
        settings = Settings.from_environment({"TRACKS_HOME": str(Path(name) / "home")})
        app, played = build(settings), _large_study()
        played.write_to(app.store)
        history = _open_trial(played)
        history.write_to(app.store)
        app.projector.scan()
        world = world_of(app.tracks, app.ledger)

        def tick() -> None:
            found = decide_due(world, [TuneStudies()], kind=OF_STUDIES)
            assert not found.problems, found.problems

        figures["large_tick_first_s"] = _took_s(tick)
        figures["large_tick_percent"] = 100 * min(_took_s(tick) for _ in range(ROUNDS)) / TICK_S
        board, address = (
            Visitor(guarded(Sources(settings))),
            f"/studies/{played.state.declared.study}",
        )

        def page() -> None:
            reply = board.get(address)
            assert reply.status_code == 200, reply.text[:500]

        figures["large_page_first_s"] = _took_s(page)
        took = []
        for number in range(ROUNDS):
            note = app.tracks.draft(Kind.NOTE, Note(by="bench", text=f"Note {number}."))
            app.tracks.append_to_study(app.tracks.study(played.state.declared.study), note)
            time.sleep(FRESH_S)
            took.append(_took_s(page))
        figures["large_page_s"] = max(took)
        steps = played.state.declared.budgets[-1]
        history.commit(steps, metrics={"loss": 1.0}).end(last_step=steps).finish()
        history.write_to(app.store)
        app.tracks.project(history.name)
        figures["large_tick_that_judges_s"] = _took_s(tick)
    return figures


def _took_s(what: Callable[[], object]) -> float:
    began_s = time.process_time()
    what()
    return time.process_time() - began_s


def _large_study() -> Played:
    """Return a study of which LARGE trials are over and one trains."""
    study = make_study(params=PARAMS, search={"kind": "random"}, trials=LARGE + 1, slots=1)
    played = Played(study, lambda config, steps: config["lr"] * config["width"])
    space, rng = space_of(study), random.Random(7)
    for number in range(LARGE + 1):
        proposed = TrialProposed(
            trial=number,
            rung=0,
            run_id=run_id_of(study.study, number, 0),
            config=space.draw(rng),
            steps=study.budgets[0],
            why=f"Trial {number} of {study.trials}, by random.",
            decided_by="bench",
        )
        played.add(Kind.TRIAL_PROPOSED, proposed)
        if number < LARGE:
            played.judge(played.state.trials[-1].last)
    return played


def _open_trial(played: Played) -> History:
    (rung,) = played.state.open_rungs
    history = History(rung.proposed.run_id).declare(experiment=played.state.declared.study)
    return history.open().place().restore()


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

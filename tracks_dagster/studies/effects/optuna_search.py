"""Optuna's samplers behind `Search`: TPE, Gaussian processes, CMA-ES and NSGA-II.

No storage of Optuna's: each proposal rebuilds a study in memory from the fold of ours, finished trials
as COMPLETE, open ones as RUNNING, failed ones as FAIL, and asks a sampler that is seeded by study and
trial. So the same fold proposes the same, whichever process asks. What a sampler would store with its
trials follows from the fold too: NSGA-II's parents are the best of all generations before, and CMA-ES
begins each time with the distribution of the best tenth.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Self

from tracks_dagster.studies.search import PRIORS, generator, space_of
from tracks_dagster.studies.space import CHOICE, DRAWS_MAX, INT, LOGUNIFORM, Config, Param, Space
from tracks_dagster.track.bodies import NOT_A_NUMBER, StudyDeclared
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.records import Json
from tracks_dagster.track.states.study_state import StudyState, Trial, TrialStatus

STARTUP = 12  # random trials before a model of them is made
TENTH_OF_MIN = 10  # finished trials, so that CMA-ES has one to begin with
GENERATION = "NSGAIISampler:generation"  # where NSGA-II looks, in what Optuna stores of a trial
_BESIDE = {"gp": "scipy", "cmaes": "cmaes"}  # what a sampler imports when it is first asked
MISSING = 'needs the extra tune: pip install "tracks-dagster[tune]"'


@dataclass(frozen=True, slots=True)
class OptunaSearch:
    """A sampler of Optuna. kind: of `search.OF_LIBRARY`; startup: trials that are drawn at random."""

    space: Space
    kind: str
    startup: int
    optuna: Any

    @classmethod
    def of(cls, declared: StudyDeclared) -> Self:
        """Return the sampler of a study; raises InvalidInput where Optuna is not installed."""
        kind = declared.search["kind"]
        try:
            import optuna

            import_module(_BESIDE.get(kind, "optuna"))
        except ImportError as error:
            raise InvalidInput(f"The search {kind!r} {MISSING}.") from error
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        startup = int(declared.search.get("startup", STARTUP))
        return cls(space_of(declared), kind, startup, optuna)

    def propose(self, study: StudyState, number: int) -> Config:
        """Return what the sampler asks for; what the constraints forbid counts as failed for it."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", category=self.optuna.exceptions.ExperimentalWarning)
            direction = {"min": "minimize", "max": "maximize"}[study.declared.direction]
            asked = self.optuna.create_study(direction=direction)
            for known in self._known(study):
                asked.add_trial(known)
            seed = generator(study.declared, number).randrange(2**31)
            asked.sampler = self._sampler(seed, asked.get_trials(deepcopy=False))
            for _ in range(DRAWS_MAX):
                trial = asked.ask()
                config = self._suggested(trial)
                if self.space.allows(config):
                    return config
                asked.tell(trial, state=self.optuna.trial.TrialState.FAIL)
        raise InvalidInput(f"None of {DRAWS_MAX} proposals of {self.kind} meets the constraints.")

    def _sampler(self, seed: int, known: Sequence[Any]) -> Any:
        samplers = self.optuna.samplers
        match self.kind:
            case "tpe":
                return samplers.TPESampler(
                    seed=seed,
                    n_startup_trials=self.startup,
                    constant_liar=True,
                    multivariate=True,
                    group=True,
                )
            case "gp":
                return samplers.GPSampler(
                    seed=seed, n_startup_trials=self.startup, deterministic_objective=False
                )
            case "cmaes":
                found = self._to_begin_with(known)
                return samplers.CmaEsSampler(
                    seed=seed, n_startup_trials=self.startup, source_trials=found or None
                )
        return samplers.NSGAIISampler(seed=seed, population_size=self._population)

    @property
    def _population(self) -> int:
        return max(2, self.startup)

    def _to_begin_with(self, known: Sequence[Any]) -> list[Any]:
        """Return the finished trials with the keys alone that CMA-ES moves; none where these are too
        few to take a tenth of."""
        choice = self.optuna.distributions.CategoricalDistribution
        common = self.optuna.search_space.intersection_search_space(known)
        moved = {
            name: each
            for name, each in common.items()
            if not (each.single() or isinstance(each, choice))
        }
        complete = self.optuna.trial.TrialState.COMPLETE
        found = [
            self.optuna.trial.create_trial(
                value=each.value,
                params={name: each.params[name] for name in moved},
                distributions=moved,
            )
            for each in known
            if each.state == complete
        ]
        return found if moved and len(found) >= TENTH_OF_MIN else []

    def _suggested(self, trial: Any) -> dict[str, Json]:
        config: dict[str, Json] = {}
        for name, param in self.space.params.items():
            if not param.is_drawn({**self.space.fixed, **config}):
                continue
            if param.kind == CHOICE:
                config[name] = param.values[trial.suggest_categorical(name, _places(param))]
            elif param.kind == INT:
                config[name] = trial.suggest_int(name, int(param.low), int(param.high))
            else:
                log = param.kind == LOGUNIFORM
                config[name] = trial.suggest_float(name, param.low, param.high, log=log)
        return config

    def _known(self, study: StudyState) -> Iterator[Any]:
        """Yield the priors and our trials as Optuna has them, by what is known of them now."""
        priors = study.declared.search.get(PRIORS, ())
        values = [each["value"] for each in priors]
        values += [value for each in study.trials if (value := _newest_value(each)) is not None]
        worst = (max if study.declared.direction == "min" else min)(values, default=None)
        complete = self.optuna.trial.TrialState.COMPLETE
        found = [(complete, each["config"], each["value"]) for each in priors]
        for trial in study.trials:
            state, value = self._state_of(trial, worst)
            found.append((state, trial.rungs[0].proposed.config, value))
        count = sum(state == complete for state, _, _ in found)
        before = count - count % self._population  # of whole generations
        places = itertools.count()
        for state, config, value in found:
            generation = None if state != complete else int(next(places) >= before)
            yield self._trial(state, config, value, generation)

    def _state_of(self, trial: Trial, worst: float | None) -> tuple[Any, float | None]:
        """Return the state of one of our trials, and its value: of one that is not a number the worst
        of all values."""
        states, value, judged = (
            self.optuna.trial.TrialState,
            _newest_value(trial),
            trial.last.judged,
        )
        if trial.status is TrialStatus.FAILED:
            is_worst = judged is not None and judged.outcome == NOT_A_NUMBER and worst is not None
            return (states.COMPLETE, worst) if is_worst else (states.FAIL, None)
        return (states.RUNNING, None) if value is None else (states.COMPLETE, value)

    def _trial(
        self, state: Any, config: Config, value: float | None, generation: int | None
    ) -> Any:
        params = {name: _inward(self.space.params[name], v) for name, v in config.items()}
        distributions = {name: self._distribution(self.space.params[name]) for name in config}
        return self.optuna.trial.create_trial(
            state=state,
            value=value,
            params=params,
            distributions=distributions,
            system_attrs={} if generation is None else {GENERATION: generation},
        )

    def _distribution(self, param: Param) -> Any:
        kinds = self.optuna.distributions
        if param.kind == CHOICE:
            return kinds.CategoricalDistribution(_places(param))
        if param.kind == INT:
            return kinds.IntDistribution(int(param.low), int(param.high))
        return kinds.FloatDistribution(param.low, param.high, log=param.kind == LOGUNIFORM)


def _newest_value(trial: Trial) -> float | None:
    values = [r.judged.value for r in trial.rungs if r.judged and r.judged.value is not None]
    return values[-1] if values else None


def _places(param: Param) -> tuple[int, ...]:
    """Return the choices as Optuna gets them: their places, for a value of ours may be a list."""
    return tuple(range(len(param.values)))


def _inward(param: Param, value: Json) -> Json:
    return param.values.index(value) if param.kind == CHOICE else value

"""Optuna's samplers behind `Search`: TPE, Gaussian processes, CMA-ES and NSGA-II.

No storage of Optuna's: each proposal rebuilds a study in memory from the fold of ours, finished trials
as COMPLETE, open ones as RUNNING, failed ones as FAIL, and asks a sampler that is seeded by study and
trial. So the same fold proposes the same, whichever process asks.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, Self

from tracks_dagster.studies.search import PRIORS, generator, space_of
from tracks_dagster.studies.space import CHOICE, DRAWS_MAX, INT, LOGUNIFORM, Config, Param, Space
from tracks_dagster.track.bodies import StudyDeclared
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.records import Json
from tracks_dagster.track.states.study_state import StudyState, Trial, TrialStatus

STARTUP = 12  # random trials before a model of them is made
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
            sampler = self._sampler(generator(study.declared, number).randrange(2**31))
            asked = self.optuna.create_study(direction=direction, sampler=sampler)
            for prior in study.declared.search.get(PRIORS, ()):
                complete = self.optuna.trial.TrialState.COMPLETE
                asked.add_trial(self._trial(complete, prior["config"], prior["value"]))
            for trial in study.trials:
                asked.add_trial(self._known(study, trial))
            for _ in range(DRAWS_MAX):
                trial = asked.ask()
                config = self._suggested(trial)
                if self.space.allows(config):
                    return config
                asked.tell(trial, state=self.optuna.trial.TrialState.FAIL)
        raise InvalidInput(f"None of {DRAWS_MAX} proposals of {self.kind} meets the constraints.")

    def _sampler(self, seed: int) -> Any:
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
                return samplers.CmaEsSampler(seed=seed, n_startup_trials=self.startup)
        return samplers.NSGAIISampler(seed=seed, population_size=max(2, self.startup))

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

    def _known(self, study: StudyState, trial: Trial) -> Any:
        """Return one of our trials as Optuna has them, by what is known of it now."""
        states = self.optuna.trial.TrialState
        judged = [r.judged for r in trial.rungs if r.judged and r.judged.value is not None]
        state, value = states.RUNNING, None
        if trial.status is TrialStatus.FAILED:
            state = states.FAIL
        elif trial.status is not TrialStatus.OPEN or judged:
            state, value = states.COMPLETE, judged[-1].value
        return self._trial(state, trial.rungs[0].proposed.config, value)

    def _trial(self, state: Any, config: Config, value: float | None) -> Any:
        params = {name: _inward(self.space.params[name], v) for name, v in config.items()}
        distributions = {name: self._distribution(self.space.params[name]) for name in config}
        return self.optuna.trial.create_trial(
            state=state, value=value, params=params, distributions=distributions
        )

    def _distribution(self, param: Param) -> Any:
        kinds = self.optuna.distributions
        if param.kind == CHOICE:
            return kinds.CategoricalDistribution(_places(param))
        if param.kind == INT:
            return kinds.IntDistribution(int(param.low), int(param.high))
        return kinds.FloatDistribution(param.low, param.high, log=param.kind == LOGUNIFORM)


def _places(param: Param) -> tuple[int, ...]:
    """Return the choices as Optuna gets them: their places, for a value of ours may be a list."""
    return tuple(range(len(param.values)))


def _inward(param: Param, value: Json) -> Json:
    return param.values.index(value) if param.kind == CHOICE else value

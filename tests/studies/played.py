"""Studies played to their end without a process: the same decisions over a formula as a trainer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tests.bodies import declared
from tests.histories import Grown
from tracks_dagster.studies.deciding import Drain, Spent, decide
from tracks_dagster.studies.search import Search, Waits, own_search
from tracks_dagster.studies.space import Param
from tracks_dagster.track.bodies import (
    FAILED,
    MEASURED,
    NOT_A_NUMBER,
    StudyDeclared,
    StudyFinished,
    TrialJudged,
    TrialProposed,
    TrialStopped,
)
from tracks_dagster.track.body_json import to_json
from tracks_dagster.track.names import study_track
from tracks_dagster.track.records import Json, Kind, Record
from tracks_dagster.track.states import study_state
from tracks_dagster.track.states.checkpoints import CheckpointRef
from tracks_dagster.track.states.study_state import Rung, StudyState

KIND = {
    TrialProposed: Kind.TRIAL_PROPOSED,
    TrialStopped: Kind.TRIAL_STOPPED,
    StudyFinished: Kind.STUDY_FINISHED,
}
LR = {"lr": Param(kind="loguniform", low=1e-4, high=1e-1)}
# From the config and the steps of the whole trial to its value; None for one that fails.
Curve = Callable[[Mapping[str, Json], int], float | None]


def make_study(**changes: Any) -> StudyDeclared:
    """Return a study of the gpt of `tests.bodies` over its learning rate."""
    params: Mapping[str, Param] = changes.pop("params", LR)
    fields = {
        "study": "s",
        "run": declared("s-t000-r0"),
        "space": {name: to_json(each) for name, each in params.items()},
        "metric": "loss",
        "direction": "min",
        "search": {"kind": "random"},
        "scheduler": {"kind": "fifo"},
        "budgets": (9,),
        "trials": 9,
        "seed": 1,
        "slots": 4,
        "by": "ann",
    }
    return StudyDeclared(**{**fields, **changes})


class Played(Grown):
    """A study's track that decides on itself; `step` trains the open run that was proposed first."""

    def __init__(self, study: StudyDeclared, curve: Curve, search: Search | None = None) -> None:
        super().__init__(study_track(study.study))
        self._state: StudyState | None = None
        self.curve = curve
        self.search = search or own_search(study)
        self.most_open = 0
        self.add(Kind.STUDY_DECLARED, study)

    @property
    def state(self) -> StudyState:
        """The state after the last record."""
        assert self._state is not None
        return self._state

    def _fold(self, record: Record) -> None:
        self._state = study_state.apply(self._state, record)

    def play(self, turns_max: int = 5000) -> StudyState:
        """Decide and train until the study is finished."""
        for _ in range(turns_max):
            if self.decide():
                continue
            if self.state.finished is not None:
                return self.state
            self.judge(self.state.open_rungs[0])
        raise AssertionError(f"not finished after {turns_max} turns")

    def decide(self) -> bool:
        """Record what follows; False where nothing does before something is judged."""
        spent = Spent(device_s=self.state.device_s, cost=self.state.cost, running=())
        answer = decide(self.state, spent, lambda: self.search)
        if answer is None or isinstance(answer, Waits | Drain):
            return False
        self.add(KIND[type(answer)], answer)
        self.most_open = max(self.most_open, len(self.state.open_rungs))
        return True

    def judge(self, rung: Rung, *, worse_by: float = 0.0) -> None:
        """Train the run of a rung to its end."""
        body = rung.proposed
        value = self.curve(body.config, body.steps)
        value = None if value is None else value + worse_by
        is_number = value is not None and value == value
        trained = body.steps - (body.source.step if body.source else 0)
        judged = TrialJudged(
            trial=body.trial,
            rung=body.rung,
            run_id=body.run_id,
            outcome=MEASURED if is_number else FAILED if value is None else NOT_A_NUMBER,
            value=value if is_number else None,
            checkpoint=CheckpointRef(body.run_id, 1, body.steps, f"runs/{body.run_id}/", "0" * 64),
            device_s=float(trained),
            why="played",
            decided_by="tests",
        )
        self.add(Kind.TRIAL_JUDGED, judged)


def play(study: StudyDeclared, curve: Curve) -> Played:
    """Return a study that was played to its end."""
    played = Played(study, curve)
    played.play()
    return played

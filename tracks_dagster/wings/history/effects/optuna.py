"""Trials of Optuna as runs, from its SQLite file, read by Optuna itself (the extra `tune`)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from pathlib import Path
from typing import Any

from tracks_dagster.reasons.evidence import Evidence
from tracks_dagster.studies.effects.foreign_trials import optuna_studies
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.wings.history.curves import parted, point
from tracks_dagster.wings.history.source import BadRow, NotEnded, Read, SourceAttempt, aware

AS_MEANT = ("COMPLETE", "PRUNED")
UNKNOWN = {
    "devices": "Optuna does not say how many a trial had: one is counted",
    "nodes": "Optuna does not say where a trial ran",
    "owner": "Optuna does not say whose a trial is",
    "times": "Optuna has no times of intermediate values: that of the trial's end is taken",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Optuna:
    """A SQLite storage. zone: of its times, which name none. Implements `History`."""

    path: Path
    zone: tzinfo = UTC
    system: str = "optuna"

    @property
    def origin(self) -> str:
        return str(self.path)

    def read(self) -> Iterator[Read]:
        names, load = optuna_studies(self.path)
        for name in sorted(names):
            try:
                study = load(name)
                trials = study.get_trials()
            except Exception as error:  # of three libraries: whatever they say of a damaged file
                raise InvalidInput(f"{self.path} cannot be read by Optuna: {error}.") from error
            for trial in trials:
                try:
                    yield from self._of_trial(name, study, trial)
                except (ValueError, TypeError) as error:
                    place = f"study {name}, trial {trial.number}"
                    yield BadRow(line=0, why=str(error), file=place)

    def _of_trial(self, name: str, study: Any, trial: Any) -> Iterator[Read]:
        state = trial.state.name
        if state in ("RUNNING", "WAITING") or trial.datetime_complete is None:
            yield NotEnded()
            return
        ended_at = self._time(trial.datetime_complete)
        started_at = None if trial.datetime_start is None else self._time(trial.datetime_start)
        if started_at is not None and ended_at < started_at:
            raise ValueError(f"it ends ({ended_at}) before it starts ({started_at})")
        values = trial.values or []
        named = study.metric_names or [f"value{n}" for n in range(len(values))]
        if len(values) == 1 and not study.metric_names:
            named = ["value"]
        metrics = {each: v for each, v in zip(named, values, strict=False) if math.isfinite(v)}
        words = f"Optuna state: {state}"
        whole = SourceAttempt(
            id=f"{name}/{trial.number}",
            run=f"{name}.{trial.number}",
            title=f"{name} / {trial.number}",
            submitted_at=started_at or ended_at,
            started_at=started_at,
            ended_at=ended_at,
            evidence=Evidence(run_id="", attempt_id=0, launch_id=None, ranks=()),
            row={
                "study": name,
                "state": state,
                "params": dict(trial.params),
                "values": [str(each) for each in values],
                "user_attrs": dict(trial.user_attrs),
            },
            config=dict(trial.params),
            metrics=metrics,
            succeeded=words if state in AS_MEANT else None,
            failed=words,
            unknown=UNKNOWN,
        )
        at, curve = ended_at.timestamp(), str(named[0] if len(named) == 1 else "value")
        found = sorted(trial.intermediate_values.items())
        yield from parted(whole, [point(curve, step, value, at) for step, value in found])

    def _time(self, at: datetime) -> datetime:
        return aware(at if at.tzinfo is not None else at.replace(tzinfo=self.zone))

"""Who evaluates a checkpoint: what the adapters implement."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol

from tracks_dagster.track.bodies import Program, ScoredEval, SnapshotRef
from tracks_dagster.track.records import Json
from tracks_dagster.track.states.checkpoints import CheckpointRef


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalSpec:
    """One attempt at one eval; the evaluator leaves what it measured as JSON at `result_key`.

    program: of a project's own eval, which runs from the stored code `code_key`; files: name → text,
    laid over it. timeout_s: None for the evaluator's own limit. environment: more variables. scored: of
    a scorer, the eval whose files it gets in the place of the checkpoint's.
    """

    store_url: str
    run_id: str
    checkpoint: CheckpointRef
    config: Mapping[str, Json]
    family: str
    snapshot: SnapshotRef | None
    suite: str
    suite_version: str
    seed: int
    result_key: str
    program: Program | None = None
    code_key: str | None = None
    files: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    scored: ScoredEval | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalOutcome:
    """How the evaluator's process ended. message: the last lines it wrote, cleaned of secrets.

    exit_code: None when a signal or the time limit ended it, or nobody saw its end. Only 0 promises a
    stored result.
    """

    exit_code: int | None
    message: str
    started_at: str
    finished_at: str

    @property
    def succeeded(self) -> bool:
        """Whether the result is in the store."""
        return self.exit_code == 0


class Evaluator(Protocol):
    """Runs one evaluation apart from training, so that it can fail without harm."""

    def run(self, spec: EvalSpec) -> EvalOutcome:
        """Evaluate and return how it ended; bounded by a time limit. Call it `alone` only."""
        ...

    def alone(self, result_key: str) -> AbstractContextManager[bool]:
        """Keep everybody else on this machine from that evaluation; gives False where somebody else is
        at it. What a killed one left running is ended first; its devices may be another's after the
        end is recorded. Bounded; raises GangError."""
        ...

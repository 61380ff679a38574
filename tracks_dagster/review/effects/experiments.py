"""Read the runs of an experiment from the ledger: its own, and the baselines that they name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.review.experiments import ExperimentRun
from tracks_dagster.track.records import Json
from tracks_dagster.track.states.run_state import stored_code_sha256

_SQL = Path(__file__).parent / "sql" / "experiment.sql"


def read_experiment(ledger: Ledger, name: str, *, runs_max: int) -> list[ExperimentRun]:
    """Return the newest runs of the experiment, oldest first, with the baselines that they name.

    Where no experiment has that name, the runs of the model family that has it.
    """
    values = {"name": name, "runs_max": runs_max}
    return [_run(row) for row in ledger.query(_SQL.read_text(encoding="utf-8"), values)]


def _run(row: dict[str, Any]) -> ExperimentRun:
    source, config = row["branched_from_run_id"], json.loads(row["config_json"])
    own = {"ranks": row["ranks"], "snapshot": row["snapshot_id"], "code": _code(row)}
    metric, value, direction, measured = _measured(row)
    return ExperimentRun(
        run_id=row["run_id"],
        owner=row["owner"],
        state=row["state"],
        steps=row["recorded_step"],
        # A key of the config may have such a name too: neither hides the other.
        settings={**{f"config.{k}" if k in own else k: v for k, v in config.items()}, **own},
        environment=json.loads(row["environment_json"] or "{}"),
        branched_from=None if source is None else f"{source}@{row['branched_from_step']}",
        device_s=row["device_seconds"] or 0.0,
        alias=row["alias"] if row["promoted"] else None,
        metric=metric,
        value=value,
        direction=direction,
        measured=measured,
        experiment=row["experiment"],
        baseline=row["baseline"],
    )


def _measured(
    row: dict[str, Any],
) -> tuple[str | None, float | None, str | None, tuple[Json, ...]]:
    """Return metric, value, direction, and how it was measured; None of each where nothing was."""
    if row["metric"] is not None and row["value"] is not None:
        names = ("promoted_suite", "promoted_version", "promoted_snapshot", "promoted_seed")
        return row["metric"], row["value"], row["direction"], tuple(row[each] for each in names)
    metrics = json.loads(row["metrics_json"] or "{}")
    if not metrics:
        return None, None, None, ()
    metric = "loss" if "loss" in metrics else min(metrics)
    names = ("suite", "suite_version", "eval_snapshot", "seed")
    return metric, metrics[metric], None, tuple(row[each] for each in names)


def _code(row: dict[str, Any]) -> str:
    """Return the digest of the newest attempt's code, shortened as elsewhere."""
    digest: str = row["code_sha256"] or stored_code_sha256(row["trainer"]) or row["trainer"]
    return digest[:12]

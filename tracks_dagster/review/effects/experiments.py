"""Read the runs of an experiment from the ledger: its own, and the baselines that they name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.review.comparing import Score
from tracks_dagster.review.experiments import (
    Experiment,
    ExperimentRun,
    MeasuredBy,
    baseline_of,
)
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.json_text import parse_json
from tracks_dagster.track.states.run_state import stored_code_sha256

_SQL = Path(__file__).parent / "sql"


def read_experiment(
    ledger: Ledger, name: str, *, runs_max: int, baseline: str = "", others: Sequence[str] = ()
) -> Experiment | None:
    """Return the newest runs of the experiment, with the baselines that they name; None without a run.

    Where no experiment has that name, the runs of the model family that has it. The baseline is chosen
    among all of its runs, however many are shown. baseline: the one that is asked for; others: runs
    that are wanted beside the newest. Raises InvalidInput for one of these that is outside of it.
    """
    named = {f"named_{n}": run_id for n, run_id in enumerate(filter(None, (baseline, *others)))}
    sql = (_SQL / "experiment.sql").read_text(encoding="utf-8")
    sql = sql.replace("{named}", ", ".join(f":{each}" for each in named) or "''")
    rows = ledger.query(sql, {"name": name, "runs_max": runs_max, **named})
    if not rows:
        return None
    found = {row["run_id"] for row in rows}
    if strangers := [run_id for run_id in named.values() if run_id not in found]:
        raise InvalidInput(
            f"{', '.join(strangers)}: outside of the experiment {name}, so not compared. `tracks diff` "
            "compares two attempts or checkpoints of any runs."
        )
    scores = read_scores(ledger, [row["run_id"] for row in rows])
    runs = [_run(row, scores.get(row["run_id"], ())) for row in rows]
    chosen, why = baseline_of(runs, baseline)
    shown = {row["run_id"] for row in rows if row["is_shown"]} | {chosen.run_id, *others}
    return Experiment(
        runs=tuple(run for run in runs if run.run_id in shown),
        baseline=chosen,
        why=why,
        count=rows[0]["run_count"],
        newest=min(rows[0]["run_count"], runs_max),
    )


def read_scores(ledger: Ledger, run_ids: Sequence[str]) -> Mapping[str, tuple[Score, ...]]:
    """Return the completed evals of each run's newest evaluated checkpoint, of every suite.

    A checkpoint in quarantine does not count; of one that was measured again the last eval does.
    """
    values = {f"run_{n}": run_id for n, run_id in enumerate(run_ids)}
    if not values:
        return {}
    sql = (_SQL / "experiment_evals.sql").read_text(encoding="utf-8")
    names = ", ".join(f":{each}" for each in values)
    found: dict[str, dict[tuple[Any, ...], Score]] = {}
    for row in ledger.query(sql.replace("{run_ids}", names), values):
        score = Score(
            suite=row["suite"],
            suite_version=row["suite_version"],
            snapshot_id=row["snapshot_id"] or "",
            seed=row["seed"],
            step=row["step"],
            environment_sha256=row["environment_sha256"],
            metrics=parse_json(row["metrics_json"]),
        )
        key = (score.suite, score.suite_version, score.snapshot_id, score.seed)
        found.setdefault(row["run_id"], {})[key] = score
    return {run_id: tuple(scores.values()) for run_id, scores in found.items()}


def _run(row: dict[str, Any], scores: tuple[Score, ...]) -> ExperimentRun:
    source, config = row["branched_from_run_id"], parse_json(row["config_json"])
    own = {"ranks": row["ranks"], "snapshot": row["snapshot_id"], "code": _code(row)}
    rule = parse_json(row["promotion_json"] or "null")
    trained = parse_json(row["metrics_json"] or "{}")
    return ExperimentRun(
        run_id=row["run_id"],
        owner=row["owner"],
        state=row["state"],
        steps=row["step"],
        # A key of the config may have such a name too: neither hides the other.
        settings={**{f"config.{k}" if k in own else k: v for k, v in config.items()}, **own},
        environment=parse_json(row["environment_json"] or "{}"),
        branched_from=None if source is None else f"{source}@{row['branched_from_step']}",
        device_s=row["device_seconds"] or 0.0,
        alias=row["alias"],
        final_step=row["final_step"],
        rule=rule and MeasuredBy(**{name: rule[name] for name in ("suite", "metric", "direction")}),
        scores=scores,
        trained={name: value for name, value in trained.items() if "loss" in name.lower()},
        trained_step=row["trained_step"],
        experiment=row["experiment"],
        baseline=row["baseline"],
    )


def _code(row: dict[str, Any]) -> str:
    """Return the digest of the newest attempt's code, shortened as elsewhere."""
    digest: str = row["code_sha256"] or stored_code_sha256(row["trainer"]) or row["trainer"]
    return digest[:12]

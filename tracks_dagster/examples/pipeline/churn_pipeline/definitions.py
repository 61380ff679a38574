"""From raw files to scores, each step by its automation condition.

    incoming/*.csv → raw_customers → datasets/customers → churn/training → churn/model → churn_scores

The middle three are tracks_dagster's: a snapshot, a training run with its attempts, a promotion. All
else is plain Dagster. Nothing starts another thing by hand: new customers freeze a snapshot, a
snapshot that differs trains, a model that is promoted scores.
"""

import csv
import os
from pathlib import Path
from typing import Any

import dagster as dg

from tracks_dagster.factory import DatasetSource, build_defs, merge
from tracks_dagster.resource import PromotedModels, TracksResource

HERE = Path(__file__).parent
DATA = Path(os.environ.get("CHURN_DATA", HERE.parent / "data"))
COLUMNS = ["customer", "months", "calls", "churned"]

# Not on each materialization of the snapshot: on one with other files than the last.
NEW_DATA = (
    dg.AutomationCondition.any_deps_match(dg.AutomationCondition.data_version_changed())
    .since_last_handled()
    .with_label("new_data")
    & dg.AutomationCondition.all_deps_blocking_checks_passed()
    & ~dg.AutomationCondition.in_progress()
)


@dg.asset(group_name="churn", automation_condition=dg.AutomationCondition.on_cron("@hourly"))
def raw_customers() -> dg.MaterializeResult[None]:
    """All customers of `incoming/*.csv` in one table; a file that comes later is added."""
    files = sorted((DATA / "incoming").glob("*.csv"))
    rows = [row for file in files for row in _read(file)]
    (DATA / "customers").mkdir(parents=True, exist_ok=True)
    _write(DATA / "customers" / "customers.csv", COLUMNS, rows)
    return dg.MaterializeResult(metadata={"files": len(files), "dagster/row_count": len(rows)})


@dg.asset_check(asset=raw_customers, blocking=True)
def every_customer_is_whole() -> dg.AssetCheckResult:
    """There are rows, and each has a name and no negative count."""
    rows = _read(DATA / "customers" / "customers.csv")
    bad = [row["customer"] for row in rows if not row["customer"] or float(row["months"]) < 0]
    return dg.AssetCheckResult(passed=bool(rows) and not bad, metadata={"bad": bad[:10]})


@dg.asset(
    group_name="churn",
    automation_condition=dg.AutomationCondition.eager(),
    ins={
        "model": dg.AssetIn(
            ["churn", "model"],
            input_manager_key="models",
            metadata={"project": "churn", "alias": "production"},
        )
    },
    deps=[raw_customers],
)
def churn_scores(model: dict[str, Any]) -> dg.MaterializeResult[None]:
    """The probability to leave, of every customer, by the model in production."""
    import torch

    rows = _read(DATA / "customers" / "customers.csv")
    features = torch.tensor([[float(row["months"]), float(row["calls"])] for row in rows])
    logits = (features - model["mean"]) / model["std"] @ model["linear.weight"].T + model[
        "linear.bias"
    ]
    scored = zip(rows, torch.sigmoid(logits)[:, 0].tolist(), strict=True)
    scores = [{"customer": row["customer"], "score": f"{score:.4f}"} for row, score in scored]
    _write(DATA / "scores.csv", ["customer", "score"], scores)
    return dg.MaterializeResult(metadata={"dagster/row_count": len(scores)})


def _read(file: Path) -> list[dict[str, str]]:
    with file.open(newline="", encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


def _write(file: Path, columns: list[str], rows: list[dict[str, str]]) -> None:
    with file.open("w", newline="", encoding="utf-8") as lines:
        writer = csv.DictWriter(lines, columns)
        writer.writeheader()
        writer.writerows(rows)


# Conditions are asked by a sensor; the one that Dagster makes by itself is off until it is switched on.
automation = dg.AutomationConditionSensorDefinition(
    "automation",
    target=dg.AssetSelection.all(),
    default_status=dg.DefaultSensorStatus.RUNNING,
    minimum_interval_seconds=10,
)

tracks = TracksResource()
defs = merge(
    dg.Definitions(
        assets=[raw_customers, churn_scores],
        asset_checks=[every_customer_is_whole],
        sensors=[automation],
        resources={"tracks": tracks, "models": PromotedModels(tracks=tracks)},
    ),
    build_defs(
        [HERE / "model"],
        datasets={
            "customers": DatasetSource(
                path=DATA / "customers",
                deps=["raw_customers"],
                automation=dg.AutomationCondition.eager()
                & dg.AutomationCondition.all_deps_blocking_checks_passed(),
            )
        },
        automation={"churn": NEW_DATA},
    ),
)

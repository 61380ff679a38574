"""A row of a comparison as JSON: hours of devices, seconds of wall time, every run by itself."""

from __future__ import annotations

from tracks_dagster.retry.policy import HOUR_S
from tracks_dagster.simulation.simulation_compare import Row
from tracks_dagster.simulation.simulation_outcome import Outcome
from tracks_dagster.track.records import Json


def row_json(row: Row) -> dict[str, Json]:
    """Return a row: its names, all runs together, and each of them."""
    best: dict[str, Json] = {}
    if row.best_shares is not None:
        best = {
            "share_of_best": {
                "median": row.best_share_median,
                "worst": row.best_share_worst,
                "each": list(row.best_shares),
            }
        }
    return {
        "policy": row.policy,
        "cadence": row.cadence,
        **outcome_json(row.outcome),
        **best,
        "runs": [{"name": run.name, **outcome_json(run)} for run in row.runs],
    }


def outcome_json(outcome: Outcome) -> dict[str, Json]:
    """Return what one run, or several together, came to."""
    return {
        "ettr": outcome.ettr,
        "wall_s": outcome.wall_s,
        "buckets_s": {
            "kept": outcome.kept_s,
            "lost": outcome.lost_s,
            "saving": outcome.saving_s,
            "restart": outcome.restart_s,
            "waiting": outcome.waiting_s,
            "down": outcome.down_s,
            "given_up": outcome.given_up_s,
        },
        "attempts": outcome.attempts,
        "ends": dict(outcome.ends),
        "refused": list(outcome.refused),
        "complete": outcome.complete,
        "device_hours": outcome.device_s / HOUR_S,
        "wasted_device_hours": outcome.wasted_device_s / HOUR_S,
        "wasted_device_hours_by_reason": {
            reason: seconds / HOUR_S for reason, seconds in outcome.wasted.items()
        },
    }

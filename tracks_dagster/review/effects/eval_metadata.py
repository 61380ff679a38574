"""Evals and promotions as flat, named values: what Dagster's UI shows of them.

Units stand in the keys, where a value has one.
"""

from __future__ import annotations

from tracks_dagster.ledger.facts.checkpoint import EVAL, EvalView
from tracks_dagster.ledger.facts.fact import shown
from tracks_dagster.ledger.facts.run import PROMOTION, PromotionView
from tracks_dagster.track.bodies import EvalEnded, EvalOpened, PromotionDecided
from tracks_dagster.track.records import Json, canonical_json, sha256_hex


def eval_metadata(opened: EvalOpened, ended: EvalEnded) -> dict[str, Json]:
    """Return what one attempt at an eval measured, on exactly what."""
    run_id = opened.checkpoint.run_id
    return {
        **shown(EVAL, EvalView(run_id=run_id, opened=opened, ended=ended)),
        "look_up/where_it_comes_from": f"tracks lineage eval:{run_id}/{opened.eval_id}",
        **{f"metrics/{name}": value for name, value in sorted(ended.metrics.items())},
    }


def promotion_metadata(decided: PromotionDecided) -> dict[str, Json]:
    """Return what a promotion, or its refusal, rests on."""
    run_id = decided.checkpoint.run_id
    return {
        **shown(PROMOTION, PromotionView(run_id=run_id, body=decided)),
        "look_up/where_it_comes_from": f"tracks lineage promotion:{run_id}/{decided.alias}",
        **{f"metrics/{name}": value for name, value in sorted(decided.metrics.items())},
    }


def result_sha256(ended: EvalEnded) -> str:
    """Return the version of what was measured: the same metrics have the same."""
    measured = {"metrics": dict(ended.metrics), "sample_count": ended.sample_count}
    return sha256_hex(canonical_json(measured))

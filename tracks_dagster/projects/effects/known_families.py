"""Checks a model family's name against the runs that were declared, and names the nearest one."""

from __future__ import annotations

from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.track.errors import UnknownRun
from tracks_dagster.track.text.nearest import instead

FAMILIES_MAX = 1000  # a trainer of one's own may have any name
NAMED_MAX = 10


def check_family(ledger: Ledger, family: str | None) -> None:
    """Raise UnknownRun, naming the nearest, where no run of `family` was declared; None is any."""
    sql = "select run_id from training_runs where model_family = :family limit 1"
    if family is None or ledger.query(sql, {"family": family}):
        return
    rows = ledger.query(
        "select distinct model_family from training_runs order by model_family "
        f"limit {FAMILIES_MAX}"
    )
    known = [row["model_family"] for row in rows]
    there = ", ".join(known[:NAMED_MAX]) or "none yet"
    raise UnknownRun(
        f"There is no run of family {family!r}; "
        + instead(family, known, f"there are runs of: {there}.")
    )

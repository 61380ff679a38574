"""How long runs of the same task took, from the ledger: the expectation for one without steps yet.

Two runs are of one task where team, project, ranks and number of steps are the same, and the step that
they begin at. The ledger may be seconds behind, which moves no expectation.
"""

from __future__ import annotations

from pathlib import Path

from tracks_dagster.ledger.ledger_views import without_comments
from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.scheduling.recurrence import NEWEST, expected_s
from tracks_dagster.track.bodies import RunDeclared
from tracks_dagster.track.records import Json
from tracks_dagster.track.roles import STEPS, value_of


class PastTimes:
    """Asks the ledger once for each task; make one for a tick. ledger: None: nothing is known."""

    def __init__(self, ledger: Ledger | None) -> None:
        self._ledger = ledger
        self._known: dict[tuple[Json, ...], float | None] = {}

    def expected_s(self, declared: RunDeclared) -> float | None:
        """Return how long such a run holds its devices, all attempts together.

        None where none has succeeded yet, or its config names no number of steps. Raises LedgerError.
        """
        steps = value_of(declared.config, declared.roles, STEPS)
        if type(steps) is not int or self._ledger is None:
            return None
        source = declared.branched_from
        task: dict[str, Json] = {
            "team": declared.team,
            "project": declared.model_family,
            "ranks": declared.compute.ranks,
            "steps": steps,
            "begins_at": 0 if source is None else source.step,
        }
        key = tuple(task.values())
        if key not in self._known:
            rows = self._ledger.query(_sql(), {**task, "newest": NEWEST})
            self._known[key] = expected_s([float(row["held_s"]) for row in reversed(rows)])
        return self._known[key]


def _sql() -> str:
    text = Path(__file__).with_name("sql").joinpath("recurrence.sql").read_text("utf-8")
    return without_comments(text)

"""Pick one failed attempt of the last days at random: the smell test of the record.

By two queries of an index on the ledger, however many attempts there are.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.track.reasons import ReasonFamily, TerminationReason
from tracks_dagster.track.records import Json, format_time

_SQL = Path(__file__).parent
COUNT_SQL, PICK_SQL = _SQL / "random_failed_count.sql", _SQL / "random_failed_pick.sql"
SEED_MAX = 2**32
AS_MEANT = tuple(r.value for r in TerminationReason if r.family is ReasonFamily.AS_MEANT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Picked:
    """The attempt that was picked, of how many, by which seed: the same seed picks it again."""

    run_id: str
    attempt_id: int
    count: int
    seed: int


def pick_failed(ledger: Ledger, *, now: datetime, last_s: float, seed: int) -> Picked | None:
    """Return one of the attempts that failed in the last `last_s` seconds; None when none did.

    Failed: ended for any reason outside the family "ended as meant". Raises LedgerError.
    """
    inside: dict[str, Json] = {
        "since": format_time(now - timedelta(seconds=last_s)),
        "until": format_time(now),
        **{f"meant_{index}": reason for index, reason in enumerate(AS_MEANT)},
    }
    (counted,) = ledger.query(_sql(COUNT_SQL), inside)
    count = int(counted["failed_count"])
    if count == 0:
        return None
    offset = random.Random(seed).randrange(count)
    found = ledger.query(_sql(PICK_SQL), {**inside, "skipped": offset})
    if not found:  # another process filled the ledger anew meanwhile
        return None
    row = found[0]
    return Picked(run_id=row["run_id"], attempt_id=row["attempt_id"], count=count, seed=seed)


def _sql(path: Path) -> str:
    """Return a statement with the reasons that are no failure in their places."""
    names = ", ".join(f":meant_{index}" for index in range(len(AS_MEANT)))
    return path.read_text(encoding="utf-8").replace(":meant", names)

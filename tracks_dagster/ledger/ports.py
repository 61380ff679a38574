"""The ledger as its readers and the projector see it: what both databases implement."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from tracks_dagster.track.records import Json

Row = Mapping[str, Json | datetime]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """How far a track has been projected: `seq` and sha256 of the last record taken in."""

    seq: int
    sha256: str


class Ledger(Protocol):
    """The SQL projection of all tracks. It can be lost: `tracks reindex` rebuilds it.

    Every method may raise LedgerError.
    """

    def cursor(self, track: str) -> Cursor | None:
        """Return how far `track` has been projected, or None."""
        ...

    def apply(
        self,
        track: str,
        *,
        expected: Cursor | None,
        advanced: Cursor,
        rows: Mapping[str, Sequence[Row]],
        replaced_runs: Collection[str] = (),
    ) -> bool:
        """Upsert `rows` by table and move the cursor, in one transaction, if it is at `expected`.

        replaced_runs: all rows of these runs are removed first. False, with nothing written, when
        another projector was faster. Raises RowRefused at a value that no such database takes.
        """
        ...

    def query(
        self, sql: str, parameters: Mapping[str, Json] | None = None
    ) -> list[dict[str, Json]]:
        """Return the rows of one read-only SELECT with `:name` parameters.

        `json_at(COLUMN_json, :key)` in it is JSON text of a list that begins with the value of that
        key, or null, where the column has none; a key of letters, digits, `_`, `-` and `.` alone.
        """
        ...

    def search(
        self,
        phrases: Sequence[str],
        *,
        since: datetime | None = None,
        run_id: str | None = None,
        attempt_id: int | None = None,
        limit: int,
    ) -> list[dict[str, Json]]:
        """Return rows of `texts`, but `words`, in which all `phrases` occur, the newest first.

        phrases: as `ledger.texts` makes them. The same rows in the same order on every database.
        """
        ...

    def forget(self, track: str) -> None:
        """Remove every row of a track and its cursor."""
        ...

    def remembered(self, track: str) -> Mapping[str, Sequence[Row]]:
        """Return every row of a track by table, as `apply` takes them."""
        ...

    def beside(self, *, only_outdated: bool = False) -> AbstractContextManager[Ledger | None]:
        """Give a second ledger to fill, which takes this one's place when the context ends well.

        It starts empty, or, for a ledger of an older version, with what an interrupted call left. One
        process at a time; only_outdated: gives None where another was faster.
        """
        ...

"""Rows of a dataset's source that did not pass their checks, and how they are told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class BadRow:
    """One value that did not pass. row: 1-based, in the order of the source, headings not counted.

    value: shortened, None when it is missing; check: what it should have been.
    """

    row: int
    column: str
    value: str | None
    check: str

    def __str__(self) -> str:
        found = "nothing" if self.value is None else repr(self.value)
        return f"row {self.row}, {self.column}: {found} is not {self.check}"


def rejection(dataset: str, bad_rows: Sequence[BadRow], bad_row_count: int) -> str:
    """Return the message of a DataRejected that names `bad_rows`, the first of `bad_row_count`."""
    named = "; ".join(str(row) for row in bad_rows)
    more = bad_row_count - len(bad_rows)
    rest = f"; and {more} more" if more else ""
    values = "value does" if bad_row_count == 1 else "values do"
    return (
        f"Cannot make a snapshot of {dataset}: {bad_row_count} {values} not pass the checks: "
        f"{named}{rest}. Nothing was stored; correct the source and make the snapshot again."
    )

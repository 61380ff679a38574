"""Checks of rows with pandera, and the words for the rows that fail.

Frames are checked eagerly: on a LazyFrame pandera looks at the schema only, and a bad value passes.
Values are checked as the source spells them, so that a message shows what is in the file.
"""

from __future__ import annotations

import pandera.polars as pa
import polars as pl
from pandera.errors import SchemaErrors

from tracks_dagster.track.errors import BadRow, DataRejected, rejection

BAD_ROWS_NAMED_MAX = 20
VALUE_CHARACTERS_MAX = 60


class RowChecks:
    """Checks the frames of one snapshot, in order; the bad rows of all of them are counted.

    A frame has a column `row`, 1-based, of each row's place in its source.
    """

    def __init__(self, dataset: str, schema: pa.DataFrameSchema) -> None:
        self._dataset = dataset
        self._schema = schema
        self._bad_rows: list[BadRow] = []
        self._bad_row_count = 0

    @property
    def names(self) -> tuple[str, ...]:
        """What is checked, `column: what every value is`."""
        return tuple(
            f"{name}: {check.error}"
            for name, column in self._schema.columns.items()
            for check in column.checks
        )

    def check(self, frame: pl.DataFrame) -> None:
        """Check one frame and remember what fails."""
        try:
            self._schema.validate(frame, lazy=True)
        except SchemaErrors as error:
            failures = error.failure_cases.sort("index", "column", nulls_last=True)
            self._bad_row_count += failures.height
            room = BAD_ROWS_NAMED_MAX - len(self._bad_rows)
            for failure in failures.head(room).iter_rows(named=True):
                self._bad_rows.append(_bad_row(frame, failure))

    def finish(self) -> None:
        """Raise DataRejected when a row of any frame failed."""
        if self._bad_row_count:
            raise DataRejected(
                rejection(self._dataset, self._bad_rows, self._bad_row_count),
                bad_rows=tuple(self._bad_rows),
                bad_row_count=self._bad_row_count,
            )


def number_between(low: float, high: float, meaning: str) -> pa.Check:
    """Check text that spells a number in the range, both ends included."""

    def passes(data: pa.PolarsData) -> pl.LazyFrame:
        value = pl.col(data.key).cast(pl.Float64, strict=False)
        return data.lazyframe.select(_unless_null(data.key, value.is_between(low, high)))

    return pa.Check(passes, error=f"{meaning} from {low:g} to {high:g}")


def matches(pattern: str, meaning: str, *, wanted: bool = True) -> pa.Check:
    """Check text in which `pattern` is found, or is not when it is not `wanted`."""

    def passes(data: pa.PolarsData) -> pl.LazyFrame:
        found = pl.col(data.key).str.contains(pattern)
        return data.lazyframe.select(_unless_null(data.key, found == wanted))

    return pa.Check(passes, error=meaning)


def is_date(meaning: str) -> pa.Check:
    """Check text that spells a date of the calendar, year-month-day."""

    def passes(data: pa.PolarsData) -> pl.LazyFrame:
        value = pl.col(data.key).str.to_date("%Y-%m-%d", strict=False)
        return data.lazyframe.select(_unless_null(data.key, value.is_not_null()))

    return pa.Check(passes, error=meaning)


def _unless_null(column: str, passed: pl.Expr) -> pl.Expr:
    """Let null pass: that it must not be there is the column's own check."""
    return pl.when(pl.col(column).is_null()).then(statement=True).otherwise(passed.fill_null(False))


def _bad_row(frame: pl.DataFrame, failure: dict[str, object]) -> BadRow:
    index, column, check = failure["index"], str(failure["column"]), str(failure["check"])
    if not isinstance(index, int):
        raise DataRejected(f"Column {column} is not as it must be: {check}.")
    value = frame[column][index]
    return BadRow(
        row=frame["row"][index],
        column=column,
        value=None if value is None else _shortened(frame, index, str(value)),
        check="present" if check == "not_nullable" else check,
    )


def _shortened(frame: pl.DataFrame, index: int, value: str) -> str:
    """Return the value's beginning; of a document also its name."""
    short = value if len(value) <= VALUE_CHARACTERS_MAX else f"{value[:VALUE_CHARACTERS_MAX]}…"
    return f"{frame['document'][index]}: {short}" if "document" in frame.columns else short

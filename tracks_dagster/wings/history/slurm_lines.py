"""What a file of Slurm holds: jobs as `sacct` prints them, or nodes as two others do. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, tzinfo
from itertools import chain

from tracks_dagster.reasons.slurm_nodes import DamagedRow, NodeRow, is_of_nodes, read_nodes
from tracks_dagster.reasons.slurm_rows import hosts, time_in
from tracks_dagster.wings.history.slurm import Sacct
from tracks_dagster.wings.history.source import BadRow, Read, SourceNode, aware


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmLines:
    """Reads lines of one of the three. zone: of their times, which name none. seen_at: when they were
    printed. by_name: as of `Sacct`."""

    zone: tzinfo
    seen_at: datetime
    by_name: bool = False

    def read(self, lines: Iterable[str]) -> Iterator[Read]:
        """Yield what each line says; raises InvalidInput for jobs without a usable header."""
        left, empty = iter(lines), list[str]()
        for first in left:
            if first.strip():
                whole = chain(empty, [first], left)
                is_nodes = is_of_nodes(first.removeprefix("\ufeff").rstrip("\r\n"))
                yield from self._nodes(whole) if is_nodes else self._jobs(whole)
                return
            empty.append(first)
        yield from self._jobs(empty)

    def _jobs(self, lines: Iterable[str]) -> Iterator[Read]:
        return Sacct(zone=self.zone, by_name=self.by_name).read(lines)

    def _nodes(self, lines: Iterable[str]) -> Iterator[Read]:
        for row in read_nodes(lines):
            if isinstance(row, DamagedRow):
                yield BadRow(line=row.line, why=row.why)
                continue
            try:
                yield from [*self._of_row(row)]
            except (ValueError, OverflowError) as error:
                yield BadRow(line=row.line, why=str(error))

    def _of_row(self, row: NodeRow) -> Iterator[SourceNode]:
        since_at, booted_at = self._time(row.at, "time"), self._time(row.booted, "BootTime")
        for node in hosts(row.nodes):
            yield SourceNode(
                node=node,
                program=row.program,
                seen_at=self.seen_at,
                row=row.raw,
                state=row.state,
                out=row.out,
                reason="" if row.reason in ("none", "None", "(null)") else row.reason,
                set_by="" if row.by in ("Unknown", "None") else row.by,
                since_at=since_at,
                booted_at=booted_at,
                gres=row.gres,
            )

    def _time(self, text: str, what: str) -> datetime | None:
        try:
            at = time_in(text, self.zone)
            return None if at is None else aware(at)
        except (ValueError, OverflowError):
            raise ValueError(
                f"its {what} is {text[:40]!r}, no time as 2026-01-31T02:00:00"
            ) from None

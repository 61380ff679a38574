"""A store, a ledger and tracks to import into, and lines of sacct to import."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from tests.fakes import FakeClock, FakeObjectStore, SequentialUids
from tracks_dagster.ledger.effects.database import open_ledger
from tracks_dagster.ledger.effects.database.sql_ledger import SqlLedger
from tracks_dagster.ledger.effects.projector import Projector
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.reasons.user_rules import NO_RULES
from tracks_dagster.stores.histories import HistoryStore
from tracks_dagster.wings.history.effects.files import LinesOfFile, ReadLines
from tracks_dagster.wings.history.effects.importing import Imported, import_history
from tracks_dagster.wings.history.slurm_lines import SlurmLines

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
COLUMNS = (
    *(
        "JobIDRaw",
        "JobID",
        "JobName",
        "User",
        "Account",
        "Partition",
        "Cluster",
        "State",
        "ExitCode",
    ),
    *(
        "Submit",
        "Start",
        "End",
        "ElapsedRaw",
        "NNodes",
        "AllocTRES",
        "NodeList",
        "WorkDir",
        "SubmitLine",
    ),
)
HEADER = "|".join(COLUMNS)
READ_SACCT = SlurmLines(zone=UTC, seen_at=BEGIN).read


def row(job: int, *, hour: float = 0.0, hours: float = 1.0, **changes: str) -> str:
    """Return the row of a job that began so many hours after BEGIN."""
    start = BEGIN + timedelta(hours=hour)
    end = start + timedelta(hours=hours)
    fields = dict.fromkeys(COLUMNS, "") | {
        "JobIDRaw": str(job),
        "JobID": str(job),
        "JobName": "train",
        "User": "alice",
        "Account": "nlp",
        "Partition": "gpu",
        "Cluster": "c",
        "State": "COMPLETED",
        "ExitCode": "0:0",
        "Submit": f"{start - timedelta(minutes=10):%Y-%m-%dT%H:%M:%S}",
        "Start": f"{start:%Y-%m-%dT%H:%M:%S}",
        "End": f"{end:%Y-%m-%dT%H:%M:%S}",
        "ElapsedRaw": str(int(hours * 3600)),
        "NNodes": "2",
        "AllocTRES": "cpu=32,gres/gpu=16,gres/gpu:a100=16,node=2",
        "NodeList": "n[1-2]",
    }
    return "|".join((fields | changes).values())


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportWorld:
    """Where histories are imported to."""

    store: HistoryStore
    ledger: SqlLedger
    tracks: Tracks
    folder: Path

    def add(
        self,
        lines: Sequence[str],
        *,
        name: str = "slurm",
        parse: ReadLines = READ_SACCT,
        dry_run: bool = False,
    ) -> Imported:
        """Import these lines."""
        path = self.folder / "given"
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return self.add_file(path, name=name, parse=parse, dry_run=dry_run)

    def add_file(
        self,
        path: Path,
        *,
        name: str = "slurm",
        parse: ReadLines = READ_SACCT,
        dry_run: bool = False,
    ) -> Imported:
        """Import a file."""
        return import_history(
            self.tracks,
            LinesOfFile(system=name, path=path, parse=parse),
            name,
            rules=NO_RULES,
            by="tests",
            dry_run=dry_run,
        )

    def runs(self) -> dict[str, list[str]]:
        """Return why each attempt of each run ended, in order, by the ledger."""
        found: dict[str, list[str]] = {}
        for each in self.ledger.query(
            "select run_id, termination_reason as reason from training_attempts "
            "order by run_id, attempt_id"
        ):
            found.setdefault(each["run_id"], []).append(each["reason"])
        return found


def import_world(folder: Path, name: str = "ledger") -> ImportWorld:
    """Return a new, empty one."""
    store = HistoryStore(FakeObjectStore())  # type: ignore[arg-type] # nobody sweeps it
    ledger = open_ledger(f"sqlite:///{folder / name}.db")
    projector = Projector(store, ledger)
    tracks = Tracks(
        store, now=FakeClock(BEGIN), new_uid=SequentialUids(), project=projector.project
    )
    return ImportWorld(store=store, ledger=ledger, tracks=tracks, folder=folder)

"""What the ledger costs: rebuilding it from the tracks, and one more record of a long track.

The tracks are generated here and lie in a local store; reading and parsing the same records without
a ledger is the floor that `reindex` is compared with.
"""

from __future__ import annotations

import statistics
import tempfile
import time
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from tracks_dagster.ledger.effects.database import open_ledger
from tracks_dagster.ledger.effects.projector import Projector
from tracks_dagster.stores import open_store
from tracks_dagster.track.bodies import (
    CheckpointCadence,
    CodeVersion,
    ComputeRequest,
    Note,
    RunDeclared,
    SnapshotRef,
)
from tracks_dagster.track.body_json import to_json
from tracks_dagster.track.names import run_track
from tracks_dagster.track.ports import ObjectStore
from tracks_dagster.track.records import Draft, Kind, seal, sha256_hex
from tracks_dagster.track.track import log_key, read_records

RUNS = 20
RECORDS_PER_RUN = 200
ROUNDS = 3


def run() -> dict[str, float]:
    """Return records a second, and reindex beside bare reading."""
    with tempfile.TemporaryDirectory() as folder:
        store = open_store(f"{folder}/store")
        for index in range(RUNS):
            _write_track(store, f"bench-{index}")
        ledger = open_ledger(f"sqlite:///{Path(folder) / 'ledger.db'}")
        projector = Projector(store, ledger)
        reading, rebuilding = [], []
        for _ in range(ROUNDS):
            reading.append(_seconds(lambda: _read_all(store)))
            rebuilding.append(_seconds(lambda: Projector(store, ledger).reindex()))
        looking = [_seconds(lambda: projector.project(run_track("bench-0"))) for _ in range(50)][1:]
    records = RUNS * RECORDS_PER_RUN
    read_s, rebuild_s = statistics.median(reading), statistics.median(rebuilding)
    return {
        "reindexed_records_per_s": records / rebuild_s,
        "reindex_to_reading": rebuild_s / read_s,
        "project_nothing_new_to_reading_its_track": statistics.median(looking) / (read_s / RUNS),
    }


def _write_track(store: ObjectStore, run_id: str) -> None:
    """Put a run's records where a track keeps them; `put` without the walk keeps this short."""
    drafts = [Draft(uid=uuid.uuid4().hex, kind=Kind.RUN_DECLARED, body=to_json(declared(run_id)))]
    drafts += [
        Draft(
            uid=uuid.uuid4().hex,
            kind=Kind.NOTE,
            body=to_json(Note(by="bench", text=f"note {index}")),
        )
        for index in range(RECORDS_PER_RUN - 1)
    ]
    before = None
    for seq, draft in enumerate(drafts):
        data = seal(draft, seq=seq, at=datetime.now(UTC), prev_sha256=before)
        store.put(log_key(run_track(run_id), seq), data)
        before = sha256_hex(data)


def _read_all(store: ObjectStore) -> None:
    for index in range(RUNS):
        for _ in read_records(store, run_track(f"bench-{index}")):
            pass


def _seconds(action: Callable[[], object]) -> float:
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


def declared(run_id: str) -> RunDeclared:
    """Return the body of a small run's `run_declared`."""
    return RunDeclared(
        run_id=run_id,
        model_family="gpt",
        config={"steps": 40, "seed": 7, "micro_batch": 4, "accumulation": 6, "global_batch": 24},
        snapshot=SnapshotRef(dataset="aws-docs", snapshot_id="0" * 64),
        code=CodeVersion(git_commit=None, branch=None, dirty=None, package_version="0"),
        owner="bench",
        team="bench",
        stage="smoke",
        intent="Be measured.",
        compute=ComputeRequest(),
        cadence=CheckpointCadence(every_steps=10),
        estimated_device_s=60.0,
    )

"""Puts a part of a generated history into a local store: tracks, evidence and small journals.

The files are written as `LocalStore` names them, without its syncs, which would take most of an hour.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from benchmarks.history_attempts import last_stepped_s
from benchmarks.history_bodies import GLOBAL_BATCH, at, loss_at
from benchmarks.history_others import other_tracks
from benchmarks.history_plan import AttemptPlan, Fleet, RunPlan, launch_id
from benchmarks.history_tracks import run_tracks
from benchmarks.history_written import Written
from tracks_dagster.stores import open_store
from tracks_dagster.stores.journals import journal_prefix
from tracks_dagster.track.records import Json, canonical_json, sha256_hex
from tracks_dagster.track.track import log_key

JOURNAL_STEPS_MAX = 20  # lines of each attempt: its last steps
STEP_S = 2.0


def write_store(fleet: Fleet, root: Path, indices: range) -> int:
    """Write the tracks of these runs, of all datasets and of all pools; return how many records."""
    open_store(str(root))  # makes what every store has
    record_count = 0
    for track in other_tracks(fleet):
        record_count += _write_track(root, track)
    for run, track in run_tracks(fleet, indices, with_objects=True):
        record_count += _write_track(root, track)
        for attempt in run.attempts:
            key, data = _journal(run, attempt)
            _write(root / key, data)
    return record_count


def _write_track(root: Path, track: Written) -> int:
    for seq, data in enumerate(track.stored):
        _write(root / log_key(track.name, seq), data)
    for key, data in track.objects.items():
        _write(root / key, data)
    return len(track.stored)


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def _journal(run: RunPlan, attempt: AttemptPlan) -> tuple[str, bytes]:
    """Return the one segment of an attempt's journal: its last steps, and a heartbeat."""
    prefix = journal_prefix(
        run.run_id, attempt.attempt_id, launch_id(run.index, attempt.attempt_id), 0
    )
    heartbeat = {"kind": "heartbeat", "t": at(run, attempt.ended_s), "step": attempt.last_step}
    lines = [*_steps(run, attempt), heartbeat]
    return f"{prefix}{0:012d}.jsonl", b"".join(canonical_json(line) + b"\n" for line in lines)


def _steps(run: RunPlan, attempt: AttemptPlan) -> Iterator[Mapping[str, Json]]:
    begin = attempt.resume[1] if attempt.resume else 0
    first = max(begin, attempt.last_step - JOURNAL_STEPS_MAX) + 1
    for step in range(first, attempt.last_step + 1):
        ago_s = STEP_S * (attempt.last_step - step)
        yield {
            "kind": "step",
            "t": at(run, last_stepped_s(attempt) - ago_s),
            "step": step,
            "loss": loss_at(step),
            "metrics": {},
            "step_s": STEP_S,
            "data_s": 0.05,
            "cursor_to": step * GLOBAL_BATCH,
            "indices_sha256": sha256_hex(f"{run.run_id} {step}".encode()),
        }

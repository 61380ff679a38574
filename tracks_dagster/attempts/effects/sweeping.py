"""Sweeps what outlived an attempt, where gangs run; what that is, `attempts.orphans` decides.

The ledger names the attempts that are open, and their gangs are left alone; of every other the track
itself is asked before anything is deleted.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from tracks_dagster.attempts.orphans import (
    SERVICE,
    Fate,
    Orphan,
    StandingGang,
    StandingGangs,
    orphans,
)
from tracks_dagster.ledger.effects.ticks import UPKEEP_S_MAX, Seconds, Tick
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.track.bodies import Note
from tracks_dagster.track.errors import TracksError
from tracks_dagster.track.names import attempt_key
from tracks_dagster.track.records import Json, Kind
from tracks_dagster.track.unforeseen import problem_of

LOOKED_AT_MAX = 200  # attempts of one sweep whose tracks are read; the next one sees what is left
RUNS_MAX = 500  # that one query names
SWEPT_BY = "sweeper"


def sweep(
    tracks: Tracks,
    ledger: Ledger,
    cluster: StandingGangs,
    *,
    seconds: Seconds = time.monotonic,
) -> Tick[None]:
    """Sweep for a few seconds; say what was swept and what could not be.

    Safe from two processes: a deletion is repeated without harm, and the note may then be there twice.
    """
    now = tracks.now()
    try:
        standing = cluster.standing()
    except TracksError as error:
        return Tick(problems=(f"the cluster was not swept: {error}",))
    fates, problems = _fates(tracks, _not_open(ledger, standing))
    began_s = seconds()
    for orphan in orphans(standing, fates, tracks.store.url, now):
        if seconds() - began_s >= UPKEEP_S_MAX:
            break  # the next sweep finds the rest
        try:
            cluster.sweep(orphan.gang)
            problems += _note_sweep(tracks, orphan)
        except Exception as error:  # noqa: BLE001 - of that gang alone
            problems.append(f"{orphan.gang.key}: {problem_of(error)}")
    return Tick(problems=tuple(problems))


def _not_open(ledger: Ledger, standing: Sequence[StandingGang]) -> list[StandingGang]:
    """Return what is of no attempt that the ledger shows as open.

    Asked by the runs that have something standing, each for its newest attempt: by primary keys, so
    that it costs the same however many attempts are closed.
    """
    run_ids = sorted({gang.run_id for gang in standing})
    is_open: set[tuple[Json, Json]] = set()
    for first in range(0, len(run_ids), RUNS_MAX):
        given: dict[str, Json] = {
            f"run_{index}": run_id for index, run_id in enumerate(run_ids[first : first + RUNS_MAX])
        }
        rows = ledger.query(
            "select a.run_id, a.attempt_id from training_runs r join training_attempts a "
            "on a.run_id = r.run_id and a.attempt_id = r.attempt_count "
            f"where r.run_id in ({', '.join(f':{name}' for name in given)}) "
            "and a.termination_reason is null",
            given,
        )
        is_open |= {(row["run_id"], row["attempt_id"]) for row in rows}
    return [gang for gang in standing if (gang.run_id, gang.attempt_id) not in is_open]


def _fates(tracks: Tracks, gangs: Iterable[StandingGang]) -> tuple[dict[str, Fate], list[str]]:
    """Return the attempts' fates by their tracks, and the runs whose tracks could not be read."""
    fates: dict[str, Fate] = {}
    problems = []
    wanted = sorted({(gang.run_id, gang.attempt_id) for gang in gangs})[:LOOKED_AT_MAX]
    for run_id, attempt_id in wanted:
        key = attempt_key(run_id, attempt_id)
        try:
            state = tracks.find_run(run_id)
        except Exception as error:  # noqa: BLE001 - of that run alone
            problems.append(f"{key}: {problem_of(error)}")
            continue
        attempt = state.attempt(attempt_id) if state is not None else None
        ended_at = attempt.ended_at if attempt is not None else None
        fates[key] = Fate(is_known=attempt is not None, ended_at=ended_at)
    return fates, problems


def _note_sweep(tracks: Tracks, orphan: Orphan) -> list[str]:
    """Note what was swept in the run's track, where there is one, and return it; nothing where it was
    noted before: some take their time to end, or hang on a machine that is away."""
    gang = orphan.gang
    text = f"Deleted {gang.kind} {gang.name}: {orphan.why}."
    if orphan.is_known and gang.kind != SERVICE:
        data = {"kind": gang.kind, "name": gang.name, "uid": gang.uid}
        notes = (each.body for each in tracks.run(gang.run_id).notes)
        if any((each.by, each.data) == (SWEPT_BY, data) for each in notes):
            return []
        note = Note(by=SWEPT_BY, text=text, data=data)
        tracks.note_run(gang.run_id, tracks.draft(Kind.NOTE, note, attempt_id=gang.attempt_id))
    return [f"{gang.key}: {text}"]

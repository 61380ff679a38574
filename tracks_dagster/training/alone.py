"""Training outside an attempt: a run of one's own in a local folder, for notebooks and first tries.

It is the same record as anywhere: a store, a track, attempts. Each `join` opens a new attempt that
resumes from the newest checkpoint. Rank 0 closes its attempt itself when the script ends; the attempt
of one that was killed is closed by the next `join`, as far as its ranks left a last word. The run is
never finished, so a later `until` simply trains on. A tracks.yaml beside the script, or above it, gives
the config, and the newest snapshot of its dataset in TRACKS_HOME.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

from tracks_dagster.reasons.classify import classifier_version, classify
from tracks_dagster.reasons.evidence import Evidence, LastWord, RankEnd
from tracks_dagster.reasons.fingerprints import fingerprint
from tracks_dagster.stores import open_store
from tracks_dagster.track.bodies import (
    FIRST,
    MANUAL,
    AttemptEnded,
    AttemptOpened,
    CheckpointCadence,
    CodeVersion,
    ComputeRequest,
    RunDeclared,
    SnapshotRef,
)
from tracks_dagster.track.body_json import from_json, to_json
from tracks_dagster.track.errors import StoreError, TrackBroken, TracksError
from tracks_dagster.track.json_text import SMALL_BYTES_MAX, parse_json
from tracks_dagster.track.names import ALONE, AttemptRef, run_track
from tracks_dagster.track.placement import nodes_of
from tracks_dagster.track.ports import ObjectStore
from tracks_dagster.track.reasons import TerminationReason
from tracks_dagster.track.records import (
    Draft,
    Json,
    Kind,
    Record,
    canonical_json,
    format_time,
    parse_time,
    sha256_hex,
)
from tracks_dagster.track.samples import SampleOrder
from tracks_dagster.track.states import run_fold
from tracks_dagster.track.states.checkpoints import resume_target
from tracks_dagster.track.states.run_state import AttemptState, RunState
from tracks_dagster.track.text.redact import redact
from tracks_dagster.track.track import Track
from tracks_dagster.training.environment import CACHE, AttemptPlace
from tracks_dagster.training.last_word import last_word_key
from tracks_dagster.training.launch import Launch, draft, utc_now

RUN_ID = "notebook"
CADENCE = CheckpointCadence(every_steps=100, every_s=60.0)
BY = "join, outside an attempt"
PROJECT = "tracks_dagster.alone_project"  # the program that reads what is beside the script
PROJECT_FILE = "tracks.yaml"
READ_S_MAX = 60.0  # an interpreter from a cold disk, and a bucket's answer


def open_attempt(folder: Path, given: Mapping[str, Json], world_size: int) -> AttemptPlace:
    """Open the folder's next attempt and return its place.

    given: of the config; what it leaves open has the project beside the script. Another process that
    still trains in the folder is fenced thereby.
    """
    beside = _read_beside(world_size)
    config = {**beside.config, **given}
    store_url = str(folder.absolute() / "store")
    store = open_store(store_url)
    track = Track(store, run_track(RUN_ID), now=utc_now)
    compute = ComputeRequest(ranks=world_size)

    def declare(records: list[Record]) -> Draft | None:
        return (
            None
            if records
            else draft(
                Kind.RUN_DECLARED, _declared(config, beside.roles, compute), None, clean=redact
            )
        )

    def open_next(records: list[Record]) -> Draft | None:
        state = _state(records)
        opened = AttemptOpened(
            cause=MANUAL if state.attempts else FIRST,
            decided_by=BY,
            decision="The script was started.",
            config=config,
            compute=compute,
            snapshot=beside.snapshot,
            resume=resume_target(state.resumable) if state.resumable else None,
        )
        next_id = len(state.attempts) + 1
        return run_fold.check(state, draft(Kind.ATTEMPT_OPENED, opened, next_id, clean=redact))

    track.decide(declare)
    track.decide(lambda records: _end(store, records))
    record = track.decide(open_next)
    if record is None or record.attempt_id is None:
        raise TrackBroken(f"{run_track(RUN_ID)} in {folder} did not take a new attempt.")
    return AttemptPlace(
        store_url=store_url,
        run_id=RUN_ID,
        attempt_id=record.attempt_id,
        opened_seq=record.seq,
        work=folder.absolute() / "work" / f"a{record.attempt_id:02d}",
        cache=beside.cache or folder.absolute() / CACHE,
        data_url=beside.data_url,
    )


def folder_of(where: AttemptPlace) -> Path:
    """Return the folder that a script trains alone in, of a place of `open_attempt`."""
    return where.work.parent.parent


def say_resumed(launch: Launch, step: int, until: int | None) -> None:
    """Say on stderr that a script alone goes on where it was before, and what undoes that."""
    if launch.declared.model_family != ALONE or not step or not launch.ranks.is_first:
        return
    of = "" if until is None else f" of {until}"
    done = until is not None and step >= until
    left = ": nothing is left to train" if done else ""
    print(f"Resumed step {step}{of}{left}. {_afresh(launch)}", file=sys.stderr, flush=True)


@contextmanager
def resumed_alone(launch: Launch) -> Iterator[None]:
    """Name the folder to an error of what a script alone resumes from: its model may be another."""
    try:
        yield
    except TracksError as error:
        if launch.declared.model_family == ALONE and launch.opened.resume is not None:
            error.args = (f"{error} {_afresh(launch)}",)
        raise


def _afresh(launch: Launch) -> str:
    folder = folder_of(launch.place)
    return f"It was trained in {folder} before: remove that folder to start afresh."


@dataclass(frozen=True, slots=True, kw_only=True)
class _Beside:
    """What the project around the script says; nothing where there is none."""

    config: Mapping[str, Json] = field(default_factory=dict)
    roles: Mapping[str, str] = field(default_factory=dict)
    snapshot: SnapshotRef | None = None
    data_url: str | None = None
    cache: Path | None = None


def _read_beside(world_size: int) -> _Beside:
    """Read the project of the script, in a notebook of the working directory; say what is wrong."""
    script = getattr(sys.modules["__main__"], "__file__", None)
    start = Path.cwd() if script is None else Path(script).absolute().parent
    if not any((each / PROJECT_FILE).is_file() for each in (start, *start.parents)):
        return _Beside()
    command = [sys.executable, "-m", PROJECT, str(start), str(world_size)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=READ_S_MAX, check=False
        )
        found = parse_json(done.stdout) if done.returncode == 0 else None
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        done, found = None, None
        print(f"{PROJECT_FILE} was not read: {error}", file=sys.stderr)
    if done is not None and found is None:
        why = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        print(f"{PROJECT_FILE} was not read: {why[0]}", file=sys.stderr)
    if not found:
        return _Beside()
    if problem := found.get("problem"):
        print(f"{found['folder']}/{PROJECT_FILE}: {problem}", file=sys.stderr)
    snapshot = found.get("snapshot")
    return _Beside(
        config=found["config"],
        roles=found["roles"],
        snapshot=None if snapshot is None else from_json(SnapshotRef, snapshot),
        data_url=found.get("data_url"),
        cache=Path(found["cache"]) if "cache" in found else None,
    )


def close(store: ObjectStore, attempt_id: int) -> None:
    """End the attempt of this process, by its ranks' last words; do nothing where it has ended.

    Where the store cannot take it, the next `join` closes it.
    """
    track = Track(store, run_track(RUN_ID), now=utc_now)
    try:
        track.decide(lambda records: _end(store, records, attempt_id))
    except StoreError as error:
        print(f"cannot record the end of attempt {attempt_id}: {error}", file=sys.stderr)


def _end(store: ObjectStore, records: list[Record], attempt_id: int | None = None) -> Draft | None:
    """Return the end of the open attempt, if there is one, and if it is `attempt_id`."""
    attempt = _state(records).open_attempt
    if attempt is None or attempt_id not in (None, attempt.attempt_id):
        return None
    return draft(Kind.ATTEMPT_ENDED, _ended(store, attempt), attempt.attempt_id, clean=redact)


def _declared(
    config: Mapping[str, Json], roles: Mapping[str, str], compute: ComputeRequest
) -> RunDeclared:
    code = CodeVersion(
        git_commit=None, branch=None, dirty=None, package_version=version("tracks-dagster")
    )
    return RunDeclared(
        run_id=RUN_ID,
        model_family=ALONE,
        config=config,
        roles=roles,
        snapshot=None,
        code=code,
        owner="",
        team="",
        stage="smoke",
        intent="A script that joined outside an attempt.",
        compute=compute,
        cadence=CADENCE,
        estimated_device_s=0.0,
        trainer="script",
        sample_order=SampleOrder.FEISTEL.value,
    )


def _ended(store: ObjectStore, attempt: AttemptState) -> AttemptEnded:
    """Return the end of an attempt that no supervisor watched, by the last words of its ranks."""
    launch_id = attempt.placed.launch_id if attempt.placed else None
    words = _last_words(store, attempt)
    started_at = format_time(attempt.placed_at) if attempt.placed_at else None
    last_step = max((word.step for word in words if word.step is not None), default=None)
    evidence = Evidence(
        run_id=RUN_ID,
        attempt_id=attempt.attempt_id,
        launch_id=launch_id,
        ranks=tuple(_rank_end(word, started_at) for word in words),
        vanished=not words,
        started_at=started_at,
        finished_at=max((word.at for word in words), default=None),
        last_step=last_step,
        placed=attempt.placed is not None,
    )
    verdict = classify(evidence)
    data = canonical_json(to_json(evidence))
    key = f"{run_track(RUN_ID)}/attempts/{attempt.attempt_id}/evidence/{sha256_hex(data)}.json"
    store.put(key, data)
    return AttemptEnded(
        reason=verdict.reason,
        confidence=verdict.confidence,
        rule=verdict.rule,
        lines=verdict.lines,
        classifier_version=classifier_version(),
        evidence_key=key,
        evidence_sha256=sha256_hex(data),
        device_seconds=_device_seconds(evidence),
        accelerator=attempt.placed.ranks[0].accelerator if attempt.placed else "cpu",
        started_at=evidence.started_at,
        finished_at=evidence.finished_at,
        last_step=last_step,
        first_line_ran=attempt.placed is not None,
        root_message=verdict.root_message,
        fingerprint=fingerprint(
            TerminationReason(verdict.reason),
            verdict.root_message,
            attempt.opened.config,
            attempt.opened.snapshot,
            nodes_of(attempt.placed) if attempt.placed else (),
        ),
        closed_by=BY,
    )


def _last_words(store: ObjectStore, attempt: AttemptState) -> list[LastWord]:
    """Return what the ranks of the attempt's launch left, by rank; one that cannot be read is none."""
    if attempt.placed is None:
        return []
    found = []
    for rank in range(attempt.placed.world_size):
        key = last_word_key(AttemptRef(RUN_ID, attempt.attempt_id), attempt.placed.launch_id, rank)
        with suppress(ValueError, TrackBroken):
            found.append(
                from_json(LastWord, parse_json(store.get(key, SMALL_BYTES_MAX) or b"null"))
            )
    return found


def _rank_end(word: LastWord, started_at: str | None) -> RankEnd:
    as_meant = word.reason in (TerminationReason.COMPLETED, TerminationReason.EARLY_STOPPED)
    return RankEnd(
        rank=word.rank,
        exit_code=0 if as_meant else None,
        started_at=started_at,
        ended_at=word.at,
        last_word=word,
    )


def _device_seconds(evidence: Evidence) -> float:
    """Return the sum over ranks of the seconds from the placement to the rank's last word."""
    if evidence.started_at is None:
        return 0.0
    start = parse_time(evidence.started_at)
    ends = [parse_time(end.ended_at) for end in evidence.ranks if end.ended_at is not None]
    return round(sum(max(0.0, (end - start).total_seconds()) for end in ends), 3)


def _state(records: list[Record]) -> RunState:
    state = run_fold.fold(records)
    if state is None:
        raise TrackBroken(f"{run_track(RUN_ID)} has no records.")
    return state

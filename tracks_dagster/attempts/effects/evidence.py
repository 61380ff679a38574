"""The evidence of an attempt's end: gathered from launcher, last words and journals, and read back.

Only the launch that the track places counts; before there is one, all launches of the attempt do. All
text is cleaned of secrets here, before it is stored. Nothing is judged. The whole logs of the ranks
are stored beside it (`processes.logs`), and read here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice

from tracks_dagster.attempts.pod_files import POD_BYTES_MAX, decode_end, end_key, gang_prefix
from tracks_dagster.attempts.ports import GangPhase, GangReport, OrchestratorRun
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.reasons import hangs
from tracks_dagster.reasons.evidence import Condition, Evidence, LastWord, RankEnd
from tracks_dagster.stores.bounded import read_bounded
from tracks_dagster.stores.journals import (
    journal_prefix,
    line_time,
    lines_backwards,
    memory_of,
    read_segment,
    segment_offsets,
    spent_of,
)
from tracks_dagster.track.addressed import read_addressed
from tracks_dagster.track.bodies import AttemptPlaced, MemoryPeak, RankPlace, TimeSpent
from tracks_dagster.track.body_json import from_json, to_json
from tracks_dagster.track.errors import ObjectLost, TrackBroken
from tracks_dagster.track.json_text import (
    EVIDENCE_BYTES_MAX,
    MANIFEST_BYTES_MAX,
    SMALL_BYTES_MAX,
    parse_json,
)
from tracks_dagster.track.names import AttemptRef
from tracks_dagster.track.placement import decode_places, places_key
from tracks_dagster.track.ports import ObjectStore
from tracks_dagster.track.records import Json, canonical_json
from tracks_dagster.track.states.run_state import AttemptState, RunState
from tracks_dagster.track.text.redact import Redact
from tracks_dagster.track.track import LOG_OBJECTS, log_object, rank_of_log

LAUNCHES_MAX = 64  # of one attempt; each is one restart of rank 0 by something that is not ours
RANKS_READ_MAX = 16  # of a gang, whose memory is looked at
MEMORY_SEGMENTS_MAX = 2  # of a journal that are read for it, beyond the last step's
KEYS_MAX = 4096  # of ranks that ended before their launch had an id
STORED_LOG_BYTES_MAX = 64 * 1024 * 1024  # of a rank: two files of at most 8 MiB, made valid
_NO_LAUNCHES = {"early", "evidence", "gang", "logs", "pods"}  # the other names below an attempt


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalEnd:
    """The end of rank 0's journal. began: whether the launch wrote any line at all.

    spent, memory: by the newest line that has it; last_stepped_at: when the last step was done.
    """

    began: bool = False
    last_step: int | None = None
    cursor_to: int | None = None
    last_line_at: str | None = None
    spent: TimeSpent | None = None
    last_stepped_at: str | None = None
    memory: MemoryPeak | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathered:
    """The evidence, and what `attempt_ended` records beside it."""

    evidence: Evidence
    journal: JournalEnd
    first_line_ran: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class EndProblem:
    """What the one who closes an attempt met or decided itself, in words and as evidence."""

    message: str = ""
    conditions: tuple[Condition, ...] = ()


NO_PROBLEM = EndProblem()
STOPPED_BEFORE_START = EndProblem(message="It was stopped before its gang was started.")


def begin_end(tracks: Tracks, ref: AttemptRef, problem: EndProblem) -> EndProblem:
    """Return with what an attempt is closed whose gang is about to be ended: the hang where one was
    found, by this process or one before it.

    It is stored before the gang is ended: who ends it may be gone before the attempt is closed, and
    nothing of the gang says why.
    """
    key = f"{ref.folder}evidence/ending.json"
    cleaned = EndProblem(
        message=tracks.clean(problem.message),
        conditions=tuple(_clean_condition(each, tracks.clean) for each in problem.conditions),
    )
    is_hang = any(each.type == hangs.CONDITION for each in problem.conditions)
    if is_hang and tracks.store.create(key, canonical_json(to_json(cleaned))):
        return cleaned
    data = tracks.store.get(key, EVIDENCE_BYTES_MAX)
    try:
        first = NO_PROBLEM if data is None else from_json(EndProblem, parse_json(data))
    except (ValueError, TrackBroken):
        first = NO_PROBLEM
    return first if first.conditions else cleaned


def gather(
    tracks: Tracks,
    state: RunState,
    attempt: AttemptState,
    report: GangReport,
    run: OrchestratorRun | None,
    problem: EndProblem,
) -> Gathered:
    """Return all that is known of the end of `attempt` now.

    run: the Dagster run of its newest claim, if Dagster still lists it.
    """
    store, clean = tracks.store, tracks.clean
    launch_ids, words = _launches_and_last_words(store, state, attempt)
    journals = [journal_prefix(state.ref(attempt), id_, 0) for id_ in launch_ids]
    ends = [read_journal_end(store, journal) for journal in journals]
    journal = max(ends, key=lambda end: end.last_step or 0, default=JournalEnd())
    journal = replace(journal, memory=_memory_of_ranks(store, state, attempt, journal.memory))
    ranks = tuple(_rank_end(end, words, clean) for end in _all_ranks(attempt, report, words))
    stop = state.stop_for(attempt)
    evidence = Evidence(
        run_id=state.run_id,
        attempt_id=attempt.attempt_id,
        launch_id=attempt.placed.launch_id if attempt.placed else None,
        ranks=ranks,
        conditions=tuple(
            _clean_condition(c, clean) for c in (*report.conditions, *problem.conditions)
        ),
        stop=None
        if stop is None
        else {"by": stop.body.by, "why": stop.body.why, "mode": stop.body.mode},
        boot_ids=_changed_boots(store, state.run_id, attempt, report),
        dagster=_dagster(attempt, run, clean(problem.message)),
        vanished=_has_vanished(report, ranks),
        started_at=report.started_at,
        finished_at=report.ended_at or journal.last_line_at,
        last_step=journal.last_step,
        last_heartbeat_at=journal.last_line_at,
        placed=attempt.placed is not None,
        drills_fired=_drills_fired(state, attempt),
        cgroup=report.cgroup,
        kernel_lines=tuple(clean(line) for line in report.kernel_lines),
        slurm_state=report.slurm_state,
        allocated=report.allocated,
        beats={str(b.rank): f"{b.phase.value} in step {b.step}" for b in report.beats},
    )
    began = any(end.began for end in ends)
    first_line_ran = attempt.placed is not None or bool(words) or began
    return Gathered(evidence=evidence, journal=journal, first_line_ran=first_line_ran)


def read_journal_end(store: ObjectStore, journal: str) -> JournalEnd:
    """Return the end of a journal, reading few more segments than it takes to find its last step."""
    found, segments_left = JournalEnd(), MEMORY_SEGMENTS_MAX
    for offset in reversed(segment_offsets(store, journal)):
        for line in lines_backwards(read_segment(store, journal, offset) or b""):
            at = line["t"] if line_time(line) is not None else None
            found = replace(found, began=True, last_line_at=found.last_line_at or at)
            found = replace(found, memory=found.memory or memory_of(line))
            step, cursor = line.get("step"), line.get("cursor_to")
            if found.last_step is None:
                found = replace(found, spent=found.spent or spent_of(line))
                if line.get("kind") == "step" and isinstance(step, int):  # else it was damaged
                    cursor_to = cursor if isinstance(cursor, int) else None
                    found = replace(found, last_step=step, cursor_to=cursor_to, last_stepped_at=at)
            if found.last_step is not None and found.memory is not None:
                return found
        if found.last_step is not None:
            segments_left -= 1
            if segments_left < 0:
                break
    return found


def _memory_of_ranks(
    store: ObjectStore, state: RunState, attempt: AttemptState, first: MemoryPeak | None
) -> MemoryPeak | None:
    """Return the most that a rank took, figure by figure; first: of rank 0."""
    found = [first]
    if attempt.placed is not None:
        ref, launch_id = state.ref(attempt), attempt.placed.launch_id
        for rank in range(1, min(attempt.placed.world_size, RANKS_READ_MAX)):
            found.append(read_journal_end(store, journal_prefix(ref, launch_id, rank)).memory)
    known = [to_json(each) for each in found if each is not None]
    most = {
        name: max((each[name] for each in known if each[name] is not None), default=None)
        for name in to_json(MemoryPeak())
    }
    return MemoryPeak(**most) if known else None


def _launches_and_last_words(
    store: ObjectStore, state: RunState, attempt: AttemptState
) -> tuple[list[str], dict[int, LastWord]]:
    """Return the ids of the launches that count, and each rank's last word in them."""
    prefix = state.ref(attempt).folder
    if attempt.placed is not None:
        launch_id = attempt.placed.launch_id
        return [launch_id], _last_words(store, store.list(f"{prefix}{launch_id}/exit/"))
    folders = (name for name in store.folders(prefix) if name not in _NO_LAUNCHES)
    names = list(islice(folders, LAUNCHES_MAX))
    early = islice(store.list(f"{prefix}early/"), KEYS_MAX)
    exits = [key for name in names for key in store.list(f"{prefix}{name}/exit/")]
    return names, _last_words(
        store, [*exits, *(key for key in early if key.endswith("/exit.json"))]
    )


def _last_words(store: ObjectStore, keys: Iterable[str]) -> dict[int, LastWord]:
    """Return the earliest last word of each rank; one that cannot be read is left out."""
    words: dict[int, LastWord] = {}
    for key in keys:
        try:
            word = from_json(LastWord, parse_json(store.get(key, SMALL_BYTES_MAX) or b"null"))
        except (ValueError, TrackBroken):
            continue
        if word.rank not in words or word.at < words[word.rank].at:
            words[word.rank] = word
    return words


def _all_ranks(
    attempt: AttemptState, report: GangReport, words: dict[int, LastWord]
) -> list[RankEnd]:
    """Return an end for each rank: the launcher's, or an empty one where it knows of none."""
    known = {end.rank: end for end in report.ranks}
    placed = range(attempt.placed.world_size) if attempt.placed else range(0)
    return [known.get(rank, RankEnd(rank=rank)) for rank in sorted({*known, *words, *placed})]


def _rank_end(end: RankEnd, words: dict[int, LastWord], clean: Redact) -> RankEnd:
    word = words.get(end.rank)
    if word is not None:
        word = replace(word, message=clean(word.message), traceback_tail=clean(word.traceback_tail))
    return replace(end, log_tail=clean(end.log_tail), last_word=word)


def _clean_condition(condition: Condition, clean: Redact) -> Condition:
    return replace(condition, message=clean(condition.message))


def _changed_boots(
    store: ObjectStore, run_id: str, attempt: AttemptState, report: GangReport
) -> dict[str, str]:
    """Return the boot ids of the nodes that were booted again since the attempt was placed."""
    places = read_places(store, AttemptRef(run_id, attempt.attempt_id), attempt.placed)
    before = {place.node: place.boot_id for place in places}
    now = report.boot_ids
    return {node: now[node] for node in before if node in now and now[node] != before[node]}


def _dagster(
    attempt: AttemptState, run: OrchestratorRun | None, message: str
) -> dict[str, Json] | None:
    if not attempt.claims:
        return {"message": message} if message else None
    if run is None:
        status = "deleted"
    elif run.is_canceling:
        status = "cancelled by a person"
    elif run.is_failed:
        status = "failed"
    else:
        status = "finished" if run.is_finished else "running"
    claimed_by = attempt.claims[-1].body.dagster_run_id
    return {"dagster_run_id": claimed_by, "status": status, "message": message}


def _has_vanished(report: GangReport, ranks: tuple[RankEnd, ...]) -> bool:
    """Whether the gang is gone and neither exit codes nor words of it are left."""
    silent = not any(end.has_ended or end.last_word for end in ranks)
    return report.phase is not GangPhase.ALIVE and silent


def _drills_fired(state: RunState, attempt: AttemptState) -> tuple[str, ...]:
    return tuple(
        note.body.text
        for note in state.notes
        if note.body.by == "drill" and note.seq > attempt.opened_seq
    )


def read_log_tails(store: ObjectStore, run_id: str, attempt: AttemptState) -> Mapping[int, str]:
    """Return the end of each rank's log, or the traceback of its last word, by rank.

    Of an attempt that has ended from its evidence. Of an open one on a cluster from the pods that
    have ended: what runs there is in the store only then. Ranks that left nothing are missing.
    """
    evidence, _ = read_evidence(store, attempt)
    ref = AttemptRef(run_id, attempt.attempt_id)
    ends = evidence.ranks if evidence is not None else _pod_ends(store, ref)
    texts = {end.rank: end.log_tail or _traceback(end) for end in ends}
    return {rank: text for rank, text in sorted(texts.items()) if text}


def stored_logs(store: ObjectStore, ref: AttemptRef) -> dict[int, str]:
    """Return the sha256 of each rank's whole log; empty where none was stored."""
    keys = islice(store.list(f"{ref.folder}{LOG_OBJECTS}"), KEYS_MAX)
    return dict(sorted(found for key in keys if (found := rank_of_log(key)) is not None))


def read_logs(store: ObjectStore, ref: AttemptRef, stored: Mapping[int, str]) -> Mapping[int, str]:
    """Return the logs of these ranks as they were stored; one that has another sha256 is left out.

    stored: rank → sha256, of `stored_logs`.
    """
    texts = {rank: read_log(store, ref, rank, sha256) for rank, sha256 in stored.items()}
    return {rank: text for rank, text in texts.items() if text is not None}


def read_log(store: ObjectStore, ref: AttemptRef, rank: int, sha256: str) -> str | None:
    """Return a rank's log as it was stored; None where it has another sha256, or is gone."""
    with suppress(ObjectLost):
        key = log_object(ref.folder, rank, sha256)
        data = read_addressed(store, key, sha256, bytes_max=STORED_LOG_BYTES_MAX)
        return data.decode("utf-8", errors="replace")
    return None


def _pod_ends(store: ObjectStore, ref: AttemptRef) -> list[RankEnd]:
    pods = store.folders(gang_prefix(ref))
    ends = [decode_end(read_bounded(store, end_key(ref, uid), POD_BYTES_MAX)) for uid in pods]
    return [rank for end in ends if end is not None for rank in end.ranks]


def _traceback(end: RankEnd) -> str:
    return end.last_word.traceback_tail if end.last_word is not None else ""


def read_evidence(store: ObjectStore, attempt: AttemptState) -> tuple[Evidence | None, str | None]:
    """Return the stored evidence, or None and what is wrong with it."""
    if attempt.ended is None:
        return None, None
    ended = attempt.ended
    try:
        data = read_addressed(
            store, ended.evidence_key, ended.evidence_sha256, bytes_max=EVIDENCE_BYTES_MAX
        )
    except ObjectLost as error:
        return None, f"The evidence of the verdict {error}; `tracks fsck` says what else is wrong."
    return from_json(Evidence, parse_json(data, bytes_max=EVIDENCE_BYTES_MAX)), None


def read_places(
    store: ObjectStore, ref: AttemptRef, placed: AttemptPlaced | None
) -> tuple[RankPlace, ...]:
    """Return the place of each rank; what the record holds where the object is lost."""
    if placed is None:
        return ()
    sha256 = placed.places_sha256
    if sha256 is None:
        return placed.ranks
    data = store.get(places_key(ref, placed.launch_id, sha256), MANIFEST_BYTES_MAX)
    try:
        return placed.ranks if data is None else decode_places(data, sha256)
    except TrackBroken:
        return placed.ranks

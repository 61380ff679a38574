"""Read what triage looks at: of each run the ledger's rows, the newest records, the journal's end.

The ledger finds the runs and has what is long past. What is recent is read from the track itself,
from the opening of the last attempt on, because a daemon that is gone has taken nothing in since. Reads
only, and little of each run: one with a thousand records costs a dozen reads.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import groupby
from pathlib import Path

from tracks_dagster.attempts.effects.heartbeat import Heartbeat, describe_launch
from tracks_dagster.attempts.pace import STEPS_MAX
from tracks_dagster.attempts.ports import GangReport, LauncherOf
from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.projects.effects.known_families import check_family
from tracks_dagster.stores.journals import JournalTail, read_tail
from tracks_dagster.track.bodies import StopRequested
from tracks_dagster.track.errors import (
    LedgerError,
    StoreError,
    TrackBroken,
    UnknownRun,
)
from tracks_dagster.track.json_text import RECORD_BYTES_MAX, parse_json
from tracks_dagster.track.names import LOCAL, RUNS, AttemptRef, run_track
from tracks_dagster.track.ports import ObjectStore
from tracks_dagster.track.records import Json, Kind, Record, format_time, parse
from tracks_dagster.track.states.lifecycle import RunLifecycle
from tracks_dagster.track.text.nearest import no_run
from tracks_dagster.track.text.redact import Redact
from tracks_dagster.track.track import check_chain, log_key, read_records
from tracks_dagster.track.unforeseen import problem_of
from tracks_dagster.wings.triage.attempt_tail import Tail, fold_tail
from tracks_dagster.wings.triage.judging import DAEMON_AGE_S_MAX

RUNS_MAX = 200
ATTEMPTS_MAX = 3  # the newest ones: the newest attempt may have taken no step to measure a pace by
COMMITS_MAX = 8  # the newest ones, should the newest of all be quarantined or deleted since
_FSCK = "`tracks fsck` explains it"
TAIL_MAX = 400  # records of one attempt that are read backwards; a longer one from its start
ANSWERS_S_MAX = 5.0  # of a launcher that asks others, until it answers once for all its gangs


@dataclass(frozen=True, slots=True, kw_only=True)
class Daemon:
    """What the daemon does by itself, by its last heartbeat.

    at: when it ticked last, None where none ever did; ticks: whether that was just now. By the key of
    an attempt, or of an attempt at an eval: late: what became of launches that do not come; queue: what
    waits for devices of this machine, in the queue's own words, while a daemon keeps that queue.
    """

    at: str | None
    ticks: bool
    late: Mapping[str, str] = field(default_factory=dict)
    queue: Mapping[str, str] = field(default_factory=dict)


def daemon_of(heartbeat: Heartbeat | None, now: datetime) -> Daemon:
    """Return the daemon as its last heartbeat shows it."""
    if heartbeat is None:
        return Daemon(at=None, ticks=False)
    ticks = (now - heartbeat.at).total_seconds() <= DAEMON_AGE_S_MAX
    asked = [each for each in heartbeat.launches if not each.waits]
    waits = [each for each in heartbeat.launches if each.waits and ticks]
    return Daemon(
        at=format_time(heartbeat.at),
        ticks=ticks,
        late={each.key: words for each in asked if (words := describe_launch(each, now))},
        queue={each.key: each.why for each in waits},
    )


class Gangs:
    """Asks the launchers for gangs within a bounded time: a lost cluster must not delay the answer.

    An error may be of one gang alone, so the next is asked for anyway. A launcher whose errors
    took `ANSWERS_S_MAX` is not asked again. This machine's launcher is asked for all it knows, which
    only reads; any other one for a glance, because observing a gang there starts to store its events.
    """

    def __init__(self, launcher_of: LauncherOf, *, clean: Redact) -> None:
        self._launcher_of = launcher_of
        self._clean = clean
        self._lost: dict[str, str] = {}
        self._answered = {LOCAL}
        self._spent_s: dict[str, float] = {}  # on errors, by launcher
        self._errors: dict[str, str] = {}  # the last one, by launcher

    def look(self, launcher: str, ref: AttemptRef) -> tuple[GangReport | None, str | None]:
        """Return the report on a gang, and None; or None, and why."""
        if launcher in self._lost:
            return None, self._lost[launcher]
        if launcher in self._answered:
            return self._ask(launcher, ref)
        answer: list[tuple[GangReport | None, str | None]] = []
        began_s, left_s = time.monotonic(), ANSWERS_S_MAX - self._spent_s.get(launcher, 0.0)
        if left_s <= 0:
            return None, self._give_up(launcher)
        thread = threading.Thread(
            target=lambda: answer.append(self._ask(launcher, ref)), daemon=True
        )
        thread.start()
        thread.join(left_s)
        if not answer:
            return None, self._give_up(launcher)
        report, problem = answer[0]
        if problem is not None:
            self._errors[launcher] = problem
            self._spent_s[launcher] = ANSWERS_S_MAX - left_s + time.monotonic() - began_s
        else:
            self._answered.add(launcher)
        return report, problem

    def _give_up(self, launcher: str) -> str:
        """Ask it no more, and return why."""
        why = f"launcher {launcher} did not answer within {ANSWERS_S_MAX:g} s"
        if (error := self._errors.get(launcher)) is not None:
            why = (
                f"launcher {launcher} gave nothing but errors in {ANSWERS_S_MAX:g} s, the last one: "
                f"{error}"
            )
        self._lost[launcher] = why
        return why

    def _ask(self, launcher: str, ref: AttemptRef) -> tuple[GangReport | None, str | None]:
        try:
            gangs = self._launcher_of(launcher)
            if launcher == LOCAL:
                return gangs.observe(ref), None
            return gangs.glance(ref), None
        except Exception as error:  # noqa: BLE001 - of that gang, or of its launcher
            return None, self._clean(problem_of(error))


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """A checkpoint to resume from. seq: of its record, None: from the ledger.

    epoch: None where the order of samples is the script's own.
    """

    attempt_id: int
    step: int
    epoch: int | None
    at: datetime
    metrics: Mapping[str, float]
    manifest_sha256: str
    seq: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRead:
    """One run as it was read. row: of `runs.sql`; attempts: the newest ones, oldest first.

    tail: None where the track cannot be read, and `problem` says why. journal: of the newest launch
    that finished a step, and `paced` its attempt; heartbeat_at: the newest line of the last launch.
    """

    row: Mapping[str, Json]
    attempts: tuple[Mapping[str, Json], ...]
    tail: Tail | None
    problem: str | None
    commit: Commit | None
    journal: JournalTail
    paced: int | None
    paced_launch: str | None
    heartbeat_at: datetime | None

    @property
    def run_id(self) -> str:
        """The training run's id."""
        return str(self.row["run_id"])

    @property
    def asked_stop(self) -> StopRequested | None:
        """The stop or drain that a person asked for; nothing follows then by itself."""
        return self.tail.asked_stop if self.tail is not None else None


def find_runs(
    ledger: Ledger, store: ObjectStore, run_ids: Sequence[str], family: str | None
) -> tuple[list[str], bool]:
    """Return the runs to look at, and whether there are more than `RUNS_MAX`.

    run_ids: these; family: all of it; neither: all that are not over. Raises UnknownRun with the
    nearest names.
    """
    if run_ids:
        wanted = list(dict.fromkeys(run_ids))
        return _known(ledger, store, wanted[:RUNS_MAX]), len(wanted) > RUNS_MAX
    if family is None:
        states = {"running": RunLifecycle.RUNNING.value, "waiting": RunLifecycle.WAITING.value}
        rows = ledger.query(read_sql("open"), {**states, "runs_max": RUNS_MAX + 1})
    else:
        check_family(ledger, family)
        rows = ledger.query(read_sql("family"), {"family": family, "runs_max": RUNS_MAX + 1})
    found = [row["run_id"] for row in rows]
    return found[:RUNS_MAX], len(found) > RUNS_MAX


def _known(ledger: Ledger, store: ObjectStore, run_ids: list[str]) -> list[str]:
    rows = _rows(ledger, "runs", run_ids, attempts_max=1)
    missing = [run_id for run_id in run_ids if run_id not in {row["run_id"] for row in rows}]
    if not missing:
        return run_ids
    if store.get(log_key(run_track(missing[0]), 0), RECORD_BYTES_MAX) is not None:
        raise LedgerError(
            f"The ledger does not know training run {missing[0]}, the store does: `tracks reindex` "
            "takes it in, and so does the daemon by itself."
        )
    raise UnknownRun(no_run(missing[0], store.folders(RUNS)))


def read_runs(ledger: Ledger, store: ObjectStore, run_ids: Sequence[str]) -> list[RunRead]:
    """Return what there is on these runs, oldest declaration first."""
    if not run_ids:
        return []
    rows = _rows(ledger, "runs", run_ids, attempts_max=ATTEMPTS_MAX)
    commits: dict[str, list[Commit]] = {}
    for row in _rows(ledger, "commits", run_ids, commits_max=COMMITS_MAX):
        commits.setdefault(row["run_id"], []).append(_commit(row))
    return [
        _read_any(store, list(group), commits.get(run_id, []))
        for run_id, group in groupby(rows, lambda row: row["run_id"])
    ]


def _read_any(store: ObjectStore, rows: list[dict[str, Json]], known: Sequence[Commit]) -> RunRead:
    try:
        return _read(store, rows, known)
    except StoreError:
        raise
    except Exception as error:  # noqa: BLE001 - of that run alone
        return unread(rows[0], problem_of(error))


def unread(row: Mapping[str, Json], problem: str) -> RunRead:
    """Return a run of which nothing but the ledger's row is known, and why."""
    return RunRead(
        row=row,
        attempts=(),
        tail=None,
        problem=problem,
        commit=None,
        journal=JournalTail(),
        paced=None,
        paced_launch=None,
        heartbeat_at=None,
    )


def _read(store: ObjectStore, rows: list[dict[str, Json]], known: Sequence[Commit]) -> RunRead:
    run_id, attempts = rows[0]["run_id"], tuple(r for r in rows if r["attempt_id"] is not None)
    tail, problem = _tail(store, rows[0])
    launches = [(a["attempt_id"], a["launch_id"]) for a in attempts if a["launch_id"]]
    newest = tail.attempt if tail is not None else None
    if newest is not None and newest.placed is not None:
        one = (newest.attempt_id, newest.placed.launch_id)
        launches = [*(each for each in launches if each != one), one]
    journal, paced, launch, heartbeat_at = _journal(store, run_id, launches)
    return RunRead(
        row=rows[0],
        attempts=attempts,
        tail=tail,
        problem=problem,
        commit=_newest_commit(tail, known),
        journal=journal,
        paced=paced,
        paced_launch=launch,
        heartbeat_at=heartbeat_at,
    )


def _journal(
    store: ObjectStore, run_id: str, launches: Sequence[tuple[int, str]]
) -> tuple[JournalTail, int | None, str | None, datetime | None]:
    """Return the newest journal with a step in it, whose it is, and the newest line of the last."""
    heartbeat_at: datetime | None = None
    for number, (attempt_id, launch_id) in enumerate(reversed(launches)):
        found = read_tail(store, AttemptRef(run_id, attempt_id), launch_id, steps_max=STEPS_MAX + 1)
        if number == 0:
            heartbeat_at = found.last_line_at
        if found.steps:
            return found, attempt_id, launch_id, heartbeat_at
    return JournalTail(), None, None, heartbeat_at


def _newest_commit(tail: Tail | None, known: Sequence[Commit]) -> Commit | None:
    """Return the newest checkpoint that can be resumed from, by the ledger and what came after it."""
    unusable = tail.unusable if tail is not None else frozenset()
    own = [
        Commit(
            attempt_id=c.ref.attempt_id,
            step=c.ref.step,
            epoch=c.body.epoch,
            at=c.at,
            metrics=c.body.metrics,
            manifest_sha256=c.ref.manifest_sha256,
            seq=c.seq,
        )
        for c in (tail.commits if tail is not None else ())
    ]
    usable = [c for c in (*known, *own) if c.manifest_sha256 not in unusable]
    return max(usable, key=lambda c: (c.attempt_id, c.step, c.seq or 0), default=None)


def _tail(store: ObjectStore, row: Mapping[str, Json]) -> tuple[Tail | None, str | None]:
    """Return the newest records folded, or why they cannot be read, or are not to be trusted."""
    run_id, head_seq = row["run_id"], row["head_seq"]
    try:
        records = _newest_records(store, run_track(run_id), head_seq)
        if not records:
            return None, f"the store has no track of {run_id}, which the ledger knows; {_FSCK}"
        if head_seq is not None:
            _check_head(records, head_seq, row["head_sha256"])
        return fold_tail(records), None
    except Exception as error:  # noqa: BLE001 - of that run alone
        return None, problem_of(error)


def _check_head(records: Sequence[Record], seq: int, sha256: str) -> None:
    """Raise TrackBroken unless the record that the ledger took in last is still there: a track
    that lost its end would show an attempt that is long over."""
    if records[-1].seq < seq:
        raise TrackBroken(
            f"Record {records[-1].seq + 1} is missing, and the ledger knows the track up to record "
            f"{seq}; {_FSCK}"
        )
    there = next((record for record in records if record.seq == seq), None)
    if there is not None and there.sha256 != sha256:
        raise TrackBroken(f"Record {seq} is not the one that the ledger took in; {_FSCK}")


def _newest_records(store: ObjectStore, track: str, head_seq: int | None) -> list[Record]:
    """Return the records from the opening of the last attempt on, or all of a track without one."""
    back: list[Record] = []
    for seq in range(head_seq if head_seq is not None else -1, -1, -1):
        data = store.get(log_key(track, seq), RECORD_BYTES_MAX) if len(back) < TAIL_MAX else None
        if data is None:
            return list(read_records(store, track))  # longer than expected, or a record is missing
        record = parse(data, seq=seq)
        if back:
            check_chain(track, record, back[-1])
        back.append(record)
        if record.kind is Kind.ATTEMPT_OPENED:
            break
    forward = read_records(store, track, after=back[0] if back else None)
    return [*reversed(back), *forward]


def _commit(row: Mapping[str, Json]) -> Commit:
    return Commit(
        attempt_id=row["attempt_id"],
        step=row["step"],
        epoch=row["epoch"],
        at=row["committed_at"],
        metrics=parse_json(row["metrics_json"]),
        manifest_sha256=row["manifest_sha256"],
    )


def _rows(
    ledger: Ledger, name: str, run_ids: Iterable[str], **values: Json
) -> list[dict[str, Json]]:
    given = {f"run_{index}": run_id for index, run_id in enumerate(run_ids)}
    sql = read_sql(name).replace("{run_ids}", ", ".join(f":{key}" for key in given))
    return ledger.query(sql, {**given, **values})


def read_sql(name: str) -> str:
    """Return the statement of `<name>.sql`; {run_ids} in it is a list of parameters."""
    return Path(__file__).with_name(f"{name}.sql").read_text(encoding="utf-8")

"""Gangs on a Slurm cluster: one job for each attempt, found by its name, no matter who submitted it.

What it asks of Slurm, for all gangs of a home together: the queue, and accounting of the jobs that have
left it, IDS_MAX at once, each every POLL_S (`board`). For one gang: sbatch, scancel, and its own row of
the queue while it is being ended. Nodes put their reports into the store (`gang_files`), as pods do.

A submit is claimed in the store before it is made, by one launcher alone. Where its reply was lost, the
job is looked for by its name, in the queue and in accounting; only when SETTLED_S have passed without
one is there another submit.
"""

from __future__ import annotations

import platform
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

from tracks_dagster.attempts.effects.gang_files import GangFiles, ask_for_stacks, ask_to_save
from tracks_dagster.attempts.orphans import StandingGang
from tracks_dagster.attempts.ports import GangPhase, GangReport, GangSpec
from tracks_dagster.processes.logs import read_tail
from tracks_dagster.reasons.evidence import CANNOT_START
from tracks_dagster.reasons.hangs import StackDump
from tracks_dagster.track.bodies import RankPlace
from tracks_dagster.track.errors import (
    GangError,
    GangUnreachable,
    InvalidInput,
    StoreError,
    StoreUnavailable,
)
from tracks_dagster.track.names import AttemptRef
from tracks_dagster.track.ports import Clock, NewUid, ObjectStore
from tracks_dagster.track.records import format_time, parse_time
from tracks_dagster.track.text.redact import Redact
from tracks_dagster.wings.slurm.effects.board import LOOK_S_MAX, POLL_S, Accounts, Board, Tables
from tracks_dagster.wings.slurm.effects.client import (
    CALL_S_MAX,
    END_S_MAX,
    SlurmClient,
    SubmitUnknown,
)
from tracks_dagster.wings.slurm.effects.known_gang import ASKED_MAX, Gang, has_left, is_newer
from tracks_dagster.wings.slurm.effects.marks import Job, Marks, Submit
from tracks_dagster.wings.slurm.job_fold import Asked, JobSeen, fold, lost
from tracks_dagster.wings.slurm.report import report
from tracks_dagster.wings.slurm.rows import JobRow
from tracks_dagster.wings.slurm.settings import SlurmSettings
from tracks_dagster.wings.slurm.submission import (
    COMMENT,
    NAME_PREFIX,
    Submission,
    in_comment,
    job_name,
    ref_of,
    submission,
)

SETTLED_S = 180.0  # after a submit whose reply was lost: no job of it appears any more
SKEW_S_MAX = 3600.0  # of Slurm's clock and this machine's
NOTED_S_MAX = 300.0  # from a submit to the mark with the job's number, by both clocks
NEVER_S = 10.0  # how old the answer may be that a gang never was
GANGS_MAX = 20_000  # remembered by this process; the one looked at longest ago is dropped first
DRAIN_AGAIN_S = 10.0  # a step that was just being started may have missed the signal
KILL_S_MAX = 120.0  # a site's KillWait, 30 s where it says nothing, and its epilog
KILL_POLL_S = 1.0
ACCOUNT_S_MAX = 2 * POLL_S + 5.0  # for accounting to have the end of a job that the queue has
UNANSWERED_S_MAX = 900.0  # that an accounting which fails keeps an attempt open whose job is gone
NAME_SINCE = "now-30days"  # for how long a job is looked for by its name


class SlurmLauncher:
    """Implements `ports.GangLauncher` for one account of one cluster. seconds: a steady clock.

    folder: of the home, for the queue's last answer and, where the settings name no other, for jobs'
    output.
    """

    def __init__(
        self,
        client: SlurmClient,
        settings: SlurmSettings,
        store: ObjectStore,
        *,
        folder: Path,
        now: Clock,
        new_uid: NewUid,
        clean: Redact,
        sleep: Callable[[float], None] = time.sleep,
        seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client, self._settings, self._store = client, settings, store
        self._now, self._new_uid, self._clean = now, new_uid, clean
        self._sleep, self._seconds = sleep, seconds
        self._logs = logs_of(settings, folder)
        self._board = Board(client, folder / "queue.txt", now=now, seconds=seconds)
        self._asked = Asked(
            notice_s=float(settings.notice_s), scheduling_s=settings.scheduling_timeout_s
        )
        self._lock = threading.RLock()  # of the table of gangs; nothing is asked under it
        self._gangs: OrderedDict[AttemptRef, Gang] = OrderedDict()
        self._tables: Tables | None = None  # as they were seen last
        self._asking: dict[str, Gang] = {}  # job → whose accounting is asked about
        self._accounts = Accounts(
            client,
            folder / "accounts.json",
            now=now,
            seconds=seconds,
            due=self._due,
            take=self._answered,
        )

    def start(self, spec: GangSpec) -> bool:
        """Submit the job; False where the attempt has one."""
        gang = self._gang(spec.ref)
        with _Translated(f"start {spec.ref.key}"):
            number = gang.marks.submits() + 1
            if self._find_job(gang) is not None:
                return False
            self._wait_for_a_lost_one(gang, spec.ref)
            token = self._new_uid()
            output = str(self._logs / f"{job_name(spec.ref, spec.store_url)}-%j.out")
            try:
                job = submission(spec, self._settings, token=token, output=output)
            except InvalidInput as error:
                raise GangError(str(error)) from error
            if self._settings.host is None:
                self._make_logs(spec.ref)
            return self._submit(gang, job, token, number)

    def glance(self, ref: AttemptRef) -> GangReport:
        """Answer from the queue's last answer; of a job that has left it, from accounting's."""
        with _Translated(f"look at {ref.key}"):
            gang = self._gang(ref)
            if self._known_job(gang) is None:
                return self._never_started()
            seen = self._seen(gang)
            return replace(
                self._never_started(),
                phase=seen.phase,
                conditions=seen.conditions,
                waits=seen.waits,
            )

    def observe(self, ref: AttemptRef) -> GangReport:
        """Report the job, and what its nodes stored."""
        with _Translated(f"observe {ref.key}"):
            gang = self._gang(ref)
            job = self._known_job(gang)
            if job is None:
                return self._never_started()
            seen = self._seen(gang, first_s=CALL_S_MAX)
            is_gone = seen.phase is GangPhase.GONE
            # Of a node that runs the end is read as well where it may have ended: its job may not.
            living, ending = ((), job.uids) if is_gone else (job.uids, gang.files.quiet)
            if not seen.waits:
                gang.files.read(living, ending, at_once=is_gone)
            known = {(each.type, each.message) for each in gang.found}
            gang.found += [
                each
                for each in seen.conditions
                if each.type == CANNOT_START and (each.type, each.message) not in known
            ]
            others = [each for each in seen.conditions if each.type != CANNOT_START]
            return report(
                replace(seen, conditions=tuple(others)),
                self._asked,
                nodes=job.nodes,
                ranks_per_node=job.ranks_per_node,
                beats=gang.files.beats,
                ends=gang.files.ends,
                silent=gang.files.silent,
                found=tuple(gang.found),
                output=self._output(job) if is_gone else "",
                ended_by_us=bool(gang.is_cancelled),
                where=self._client.where,
            )

    def drain(self, ref: AttemptRef, *, grace_s: float) -> None:
        """Send SIGTERM to the tasks of a job that runs; take one that waits from the queue."""
        with _Translated(f"drain {ref.key}"):
            gang = self._gang(ref)
            job = self._known_job(gang)
            now_s = self._seconds()
            is_new = gang.drained_s is None or now_s - gang.drained_s >= DRAIN_AGAIN_S
            if job is None or not is_new:
                return
            seen = self._seen(gang)
            if seen.phase is not GangPhase.ALIVE:
                return
            gang.drained_s = now_s
            if seen.waits:
                self._cancel(gang, [job.id])
            else:
                self._client.signal(job.id)

    def kill(self, ref: AttemptRef) -> None:
        """Cancel the job and see it gone; a job that is known to be over is not asked about."""
        while not self.end_in_steps(ref):
            self._sleep(KILL_POLL_S)

    def end_in_steps(self, ref: AttemptRef) -> bool:
        """Take a step of `kill`, as `ports.EndsInSteps`.

        How the job ended is waited for, where accounting may know: by whom, its steps, its devices.
        """
        with _Translated(f"end {ref.key}"):
            gang = self._gang(ref)
            job = self._find_job(gang)
            if job is None:
                return True
            now_s = self._seconds()
            if not (gang.is_over or gang.is_gone) and (living := self._living_now(gang, job)):
                gang.end_by_s = gang.end_by_s or now_s + KILL_S_MAX
                self._end_living(gang, living, now_s)
                return False
            gang.is_gone = True
            gang.settle_by_s = gang.settle_by_s or now_s + ACCOUNT_S_MAX
            problem = "" if gang.is_settled else self._accounts.look()
            is_vain = bool(problem) or self._accounts.is_off or gang.asked >= ASKED_MAX
            return gang.is_settled or is_vain or now_s >= gang.settle_by_s

    def _end_living(self, gang: Gang, living: list[JobRow], now_s: float) -> None:
        """Cancel what lives, again where that did not help; raises GangError once it never will."""
        assert gang.end_by_s is not None
        if now_s > gang.end_by_s:
            gang.end_by_s = None  # who asks again begins again
            raise GangError(
                f"Cannot end the gang of {gang.ref.key}: job {living[0].id} is still "
                f"{living[0].state} {KILL_S_MAX:g} s after it was cancelled; `scontrol show "
                f"job {living[0].id}` says more. The attempt stays open."
            )
        if gang.cancelled_s is None or now_s - gang.cancelled_s > DRAIN_AGAIN_S:
            gang.cancelled_s = now_s
            self._cancel(gang, [row.id for row in living])

    def ship(self, ref: AttemptRef, store: ObjectStore) -> None:
        """Do nothing: the nodes ship their own journals."""

    def ask_to_save(self, ref: AttemptRef, place: RankPlace) -> bool:
        """Leave the wish in the store and wait for the node's word, as on Kubernetes."""
        with _Translated(f"ask {ref.key} to save"):
            gang = self._gang(ref)
            job = self._known_job(gang)
            uid = f"slurm-{place.pod}"
            if job is None or uid not in job.uids or not self._runs(gang):
                return False
            answer = ask_to_save(self._store, ref, uid, sleep=self._sleep, seconds=self._seconds)
            if answer is None:
                raise GangError(
                    f"Cannot tell whether {ref.key} was asked to save: node {place.node} did not "
                    "answer through the store, and may still do so; `tracks checkpoints list "
                    f"{ref.run_id}` shows what was committed."
                )
            return answer.is_asked

    def dump_stacks(self, ref: AttemptRef) -> tuple[StackDump, ...]:
        """Ask every node that runs through the store, and wait a few seconds for the answers."""
        with _Translated(f"dump the stacks of {ref.key}"):
            gang = self._gang(ref)
            job = self._known_job(gang)
            if job is None or not self._runs(gang):
                return ()
            found = ask_for_stacks(
                self._store,
                ref,
                {uid: (index, uid) for index, uid in enumerate(job.uids)},
                job.ranks_per_node,
                clean=self._clean,
                sleep=self._sleep,
                seconds=self._seconds,
            )
            gang.files.read_soon()
            return found

    def standing(self) -> Sequence[StandingGang]:
        """Return this store's jobs that wait or run, by the queue's last answer."""
        url = self._store.url
        found = []
        for row in self._board.look().jobs.values():
            ref = self._ref_of(row) if row.is_live else None
            if ref is not None:
                at = row.submitted_at or self._now()
                gang = StandingGang(
                    run_id=ref.run_id,
                    attempt_id=ref.attempt_id,
                    kind="job",
                    name=row.name,
                    made_at=at,
                    uid=row.id,
                    store_url=url,
                )
                found.append(gang)
        return found

    def sweep(self, gang: StandingGang) -> None:
        """Cancel a job that outlived its attempt; one that is over is not an error."""
        self._client.cancel(gang.uid)

    def _ref_of(self, row: JobRow) -> AttemptRef | None:
        """Return the attempt of a job, by its name or its comment; None where it is another store's."""
        named = ref_of(row.name, self._store.url)
        marked = in_comment(row.comment)
        if named is not None or marked is None or row.name.startswith(NAME_PREFIX):
            return named
        ref, token = marked
        return ref if token in Marks(self._store, ref).tokens() else None

    def _never_started(self) -> GangReport:
        return GangReport(
            phase=GangPhase.NEVER_STARTED, where=self._client.where, sees_all_nodes=True
        )

    def _make_logs(self, ref: AttemptRef) -> None:
        try:
            self._logs.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise GangError(
                f"Cannot start {ref.key}: the folder {self._logs} for its job's output cannot be made: "
                f"{error.strerror}. `logs` in slurm.yaml names another one."
            ) from error

    def _submit(self, gang: Gang, job: Submission, token: str, number: int) -> bool:
        """Claim the submit of that number and make it; True where the job is this one's."""
        submit = Submit(
            token=token,
            at=format_time(self._now()),
            host=platform.node(),
            nodes=job.nodes,
            ranks_per_node=job.ranks_per_node,
        )
        if not gang.marks.begin_submit(number, submit):
            raise GangUnreachable(f"Another process submits {gang.ref.key}; it is asked again.")
        try:
            id_ = self._client.submit(job)
        except SubmitUnknown:
            if self._find_job(gang) is None:
                raise
            return True
        except GangError:
            gang.marks.refuse_submit(number)
            raise
        self._note(gang, id_, submit)
        if gang.job is None or gang.job.id == id_:
            return True
        self._client.cancel(id_)  # another process found, or made, the gang's job meanwhile
        return False

    def _gang(self, ref: AttemptRef) -> Gang:
        with self._lock:
            gang = self._gangs.pop(ref, None) or Gang(
                ref=ref,
                marks=Marks(self._store, ref),
                files=GangFiles(self._store, ref, seconds=self._seconds),
            )
            self._gangs[ref] = gang
            while len(self._gangs) > GANGS_MAX:
                self._gangs.popitem(last=False)
            return gang

    def _runs(self, gang: Gang) -> bool:
        seen = self._seen(gang)
        return seen.phase is GangPhase.ALIVE and not seen.waits

    def _known_job(self, gang: Gang) -> Job | None:
        """Return the gang's job by the store's mark, or by the queue where that was not written."""
        if gang.job is not None:
            return gang.job
        now_s = self._seconds()
        if gang.never_s is not None and now_s - gang.never_s < NEVER_S:
            return None
        gang.job = gang.marks.job()
        if gang.job is None and (last := gang.marks.last_submit()) is not None:
            self._note_first(gang, self._board.look().jobs.values(), last[1])
        gang.never_s = now_s if gang.job is None else None
        return gang.job

    def _find_job(self, gang: Gang) -> Job | None:
        """Return the gang's job; where a submit was lost, asked for by its name, now."""
        gang.never_s = None
        if gang.job is None:
            gang.job = gang.marks.job()
        if gang.job is not None or (last := gang.marks.last_submit()) is None:
            return gang.job
        name = job_name(gang.ref, self._store.url)
        self._note_first(gang, self._client.queue_of(name), last[1])
        if gang.job is None:
            self._note_first(gang, self._client.accounts_of(name, NAME_SINCE), last[1])
        return gang.job

    def _note_first(self, gang: Gang, rows: Iterable[JobRow], submit: Submit) -> None:
        """Note the first of these jobs that a submit of this gang made, if one is.

        A store that was made again at the same place has jobs of the same names from before: their
        comments have other tokens. Where a comment is not ours, for a site has its own, or accounting
        has none, the time has to tell.
        """
        name = job_name(gang.ref, self._store.url)
        since = parse_time(submit.at) - timedelta(seconds=SKEW_S_MAX)
        rows = [row for row in rows if row.name == name]
        tokens = gang.marks.tokens() if rows else set()

        def is_ours(row: JobRow) -> bool:
            words = row.comment.split()
            if words[:1] == [COMMENT]:
                return not tokens.isdisjoint(words)
            return row.submitted_at is None or row.submitted_at >= since

        found = [row.id for row in rows if is_ours(row)]
        if found:
            self._note(gang, min(found, key=int), submit)

    def _note(self, gang: Gang, id_: str, submit: Submit) -> None:
        name = job_name(gang.ref, self._store.url)
        job = Job(
            id=id_,
            name=name,
            nodes=submit.nodes,
            ranks_per_node=submit.ranks_per_node,
            at=format_time(self._now()),
            output=str(self._logs / f"{name}-{id_}.out"),
        )
        gang.job = job if gang.marks.put_job(job) else gang.marks.job() or job

    def _wait_for_a_lost_one(self, gang: Gang, ref: AttemptRef) -> None:
        """Raise GangUnreachable while a submit may still lead to a job."""
        last = gang.marks.last_submit()
        if last is None:
            return
        age_s = (self._now() - parse_time(last[1].at)).total_seconds()
        if age_s < SETTLED_S:
            raise GangUnreachable(
                f"A submit of {ref.key} from {last[1].host} {age_s:.0f} s ago has no reply and no job "
                f"yet; after {SETTLED_S:g} s without one it is submitted again."
            )

    def _seen(self, gang: Gang, *, first_s: float = LOOK_S_MAX) -> JobSeen:
        """Return what the queue and accounting have of the gang's job. first_s: as of `Board.look`."""
        job = gang.job
        assert job is not None
        # The queue may have forgotten it while it ran; its answer for all may be older than its end.
        if gang.is_over and (gang.accounts or gang.is_gone):
            is_ended = gang.last is not None and not gang.last.is_live
            return self._fold(gang, gang.last if is_ended else None)
        try:
            tables = self._board.look(first_s=first_s)
        except GangUnreachable as error:
            if (self._now() - parse_time(job.at)).total_seconds() > SETTLED_S:
                raise
            return JobSeen(phase=GangPhase.ALIVE, waits=f"job {job.id} was submitted. {error}")
        row = tables.jobs.get(job.id)
        row = row if row is not None and self._is_of(gang, job, row) else None
        gang.last = row or gang.last
        self._tables = tables
        problem = "" if row is not None and row.is_live else self._accounts.look()
        return self._judged(gang, row, tables, problem)

    def _judged(self, gang: Gang, row: JobRow | None, tables: Tables, problem: str) -> JobSeen:
        job = gang.job
        assert job is not None
        if row is None and is_newer(job, tables):
            words = f"job {job.id} waits in Slurm's queue{_age(tables)}"
            return JobSeen(phase=GangPhase.ALIVE, waits=words)
        if row is None and not gang.accounts:
            if gang.last is not None and not gang.last.is_live:
                return self._fold(gang, gang.last)
            if not gang.asked and not problem:
                gang.unanswered_s = None
                return JobSeen(phase=GangPhase.ALIVE)
            if not gang.asked:
                gang.unanswered_s = gang.unanswered_s or self._seconds()
                if self._seconds() - gang.unanswered_s < UNANSWERED_S_MAX:
                    raise GangUnreachable(problem)
            return lost(job.id, self._now(), "" if gang.asked else problem)
        seen = self._fold(gang, row)
        return replace(seen, waits=f"{seen.waits}{_age(tables)}") if seen.waits else seen

    def _fold(self, gang: Gang, row: JobRow | None) -> JobSeen:
        job = gang.job
        assert job is not None
        if gang.is_cancelled is None and (row is None or not row.is_live):
            gang.is_cancelled = gang.marks.is_cancelled()
        seen = fold(
            row, gang.accounts, self._now(), self._asked, ended_by_us=bool(gang.is_cancelled)
        )
        if seen is None:
            return lost(job.id, self._now())
        if seen.state is not None and seen.state.startswith("CANCELLED by "):
            uid = seen.state.rpartition(" ")[2]
            who = self._client.user(uid)
            if who != uid:
                return replace(seen, state=f"CANCELLED by {who} ({uid})")
        return seen

    def _due(self) -> dict[str, int]:
        """Return the jobs that have left the queue and whose end is not known, by how often accounting
        was asked about them: it may never have them."""
        with self._lock:
            gangs = list(self._gangs.values())
        self._asking = {g.job.id: g for g in gangs if g.job and has_left(g, self._tables)}
        return {id_: gang.asked for id_, gang in self._asking.items()}

    def _answered(self, id_: str, rows: list[JobRow]) -> None:
        gang = self._asking.get(id_)
        if gang is not None and gang.job is not None:
            self._take(gang, gang.job, rows)
            gang.asked += 1

    def _take(self, gang: Gang, job: Job, rows: list[JobRow]) -> None:
        """Keep the job's rows, under each name that it was seen to have: accounting has no comment.

        Under another one, too, where that is not a gang's and the job was submitted when this one was:
        somebody renamed it, and it left the queue before this process saw that.
        """
        known = {job.name, *([] if gang.last is None else [gang.last.name])}

        def is_of_it(row: JobRow) -> bool:
            if row.id != job.id or row.name in known or row.submitted_at is None:
                return row.id == job.id and row.name in known
            apart_s = abs((row.submitted_at - parse_time(job.at)).total_seconds())
            return apart_s < NOTED_S_MAX and not row.name.startswith(NAME_PREFIX)

        gang.accounts = tuple(filter(is_of_it, rows))

    def _is_of(self, gang: Gang, job: Job, row: JobRow) -> bool:
        """Whether a row is the job's: a number comes again after a database was reset, a name does not.

        Somebody may have given the job another name, `scontrol update JobName=`: its comment tells.
        """
        if row.id != job.id or row.name == job.name:
            return row.id == job.id
        if (found := in_comment(row.comment)) is None or found[0] != gang.ref:
            return False
        gang.tokens = gang.tokens or gang.marks.tokens()
        return found[1] in gang.tokens

    def _living_now(self, gang: Gang, job: Job) -> list[JobRow]:
        """Return what goes on under the job's name, and the job itself by its number, asked for now."""
        rows = self._client.queue_of(job.name, limit_s=END_S_MAX)
        if not any(row.id == job.id for row in rows):
            own = self._client.job(job.id, limit_s=END_S_MAX)
            rows += [own] if own is not None and self._is_of(gang, job, own) else []
        gang.last = next((row for row in rows if row.id == job.id), gang.last)
        return [row for row in rows if row.is_live]

    def _cancel(self, gang: Gang, ids: list[str]) -> None:
        gang.marks.put_cancelled()
        gang.is_cancelled = True
        for id_ in ids:
            self._client.cancel(id_)

    def _output(self, job: Job) -> str:
        """Return the end of the job's output, where its file system is seen here."""
        try:
            return self._clean(read_tail(Path(job.output)))
        except OSError:
            return ""


def logs_of(settings: SlurmSettings, folder: Path) -> Path:
    """Return where jobs' output is. folder: as of `SlurmLauncher`."""
    return Path(settings.logs) if settings.logs else folder / "logs"


def _age(tables: Tables) -> str:
    at: datetime = tables.at
    return f" (as of {at:%H:%M:%S} UTC: {tables.problem})" if tables.problem else ""


class _Translated:
    """A store that fails under a gang is the gang's error, too."""

    def __init__(self, doing: str) -> None:
        self._doing = doing

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, where: object) -> None:
        if isinstance(error, StoreError):
            kind = GangUnreachable if isinstance(error, StoreUnavailable) else GangError
            raise kind(f"Cannot {self._doing}: {error}") from error

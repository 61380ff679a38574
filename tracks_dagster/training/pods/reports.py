"""What a pod puts into the store while it lives: where its ranks stand, and how they ended.

The store may fail, or take its time: that is logged, tried again, and delays nothing.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from signal import SIGKILL

from tracks_dagster.attempts import pod_files
from tracks_dagster.attempts.pod_files import Ask, PodBeat, PodEnd, SaveAnswer
from tracks_dagster.processes.process import boot_id
from tracks_dagster.processes.stack_dumps import dump_stacks
from tracks_dagster.reasons.evidence import Condition, RankEnd
from tracks_dagster.reasons.hangs import Beat, Phase, beat_file, decode_beat
from tracks_dagster.track.json_text import SMALL_BYTES_MAX
from tracks_dagster.track.ports import ObjectStore
from tracks_dagster.track.records import canonical_json, format_time
from tracks_dagster.track.text.redact import Redact
from tracks_dagster.training.machine import MachineWatch
from tracks_dagster.training.pods.environment import PodEnvironment
from tracks_dagster.training.pods.rank_files import RankState, log_tail, read_ranks

PUT_AGAIN_S = 1.0


class Repeat:
    """Does something every few seconds in a thread, until the process ends."""

    def __init__(self, name: str, action: Callable[[], None], *, every_s: float) -> None:
        self._name = name
        self._action = action
        self._every_s = every_s
        self._soon = threading.Event()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def soon(self) -> None:
        """Do it now instead of at its time."""
        self._soon.set()

    def _run(self) -> None:
        while True:  # as long as the pod lives
            self._soon.wait(self._every_s)
            self._soon.clear()
            try:
                self._action()
            except Exception as error:  # noqa: BLE001 - a thread's edge: who is silent seems to hang
                print(f"{self._name}: {error}", file=sys.stderr, flush=True)


class Beats:
    """Puts where the ranks stand, when that has changed, and now and then that the pod is there."""

    def __init__(self, store: ObjectStore, pod: PodEnvironment) -> None:
        self._store = store
        self._pod = pod
        self._key = pod_files.beat_key(pod.ref, pod.pod_uid)
        self._stored: tuple[PodBeat, float] | None = None  # and when, by a steady clock

    def put(self) -> None:
        """Put the newest beats. Raises StoreError; the next call tries again."""
        pod = self._pod
        beat = PodBeat(
            pod=pod.pod,
            node=pod.node,
            boot_id=boot_id(),
            index=pod.index,
            ranks=tuple(self._beat(rank) for rank in pod.all_ranks),
        )
        now_s = time.monotonic()
        if self._stored is not None:
            before, put_at_s = self._stored
            if beat == before and now_s - put_at_s < pod_files.ALIVE_EVERY_S:
                return
        at = format_time(datetime.now(UTC))
        self._store.put(self._key, pod_files.encode_beat(replace(beat, at=at)))
        self._stored = (beat, now_s)

    def _beat(self, rank: int) -> Beat:
        """Return where a rank stood last; one that has written nothing yet is starting."""
        try:
            data = beat_file(self._pod.work, rank).read_bytes()
        except FileNotFoundError:
            data = b""
        return decode_beat(rank, data) or Beat(rank=rank, phase=Phase.STARTING)


class Ends:
    """Puts how the ranks ended: at each end, and whole at the last. One thread takes ends in."""

    def __init__(self, store: ObjectStore, pod: PodEnvironment, *, clean: Redact) -> None:
        self._store = store
        self._pod = pod
        self._clean = clean
        self._key = pod_files.end_key(pod.ref, pod.pod_uid)
        self._machine = MachineWatch(pod.work)
        self._known: dict[int, RankEnd] = {}
        self._newest = b""
        self._stored = threading.Event()
        self._thread = Repeat("cannot tell how ranks ended", self._put, every_s=PUT_AGAIN_S)

    def take(
        self,
        ranks: Mapping[int, RankState],
        *,
        pids: Collection[int] = (),
        conditions: Sequence[Condition] = (),
        problem: str = "",
    ) -> None:
        """Take in what is known now; what was never known before is put soon."""
        ends = {rank: self._end(seen) for rank, seen in ranks.items()}
        machine = self._machine.report_since_start(pids, is_killed=_first_was_killed(ends.values()))
        end = PodEnd(
            pod=self._pod.pod,
            node=self._pod.node,
            boot_id=boot_id(),
            index=self._pod.index,
            ranks=tuple(ends.values()),
            cgroup=machine["cgroup"],
            kernel_lines=tuple(self._clean(line) for line in machine["kernel_lines"]),
            problem=self._clean(problem),
            conditions=tuple(conditions),
        )
        self._newest = pod_files.encode_end(end)
        self._stored.clear()  # after it: `_put` may be at work with what was the newest before
        self._thread.soon()

    def settle(self, within_s: float) -> bool:
        """Wait until the newest is stored, and return whether it is; then leave the machine."""
        is_stored = self._stored.wait(within_s)
        try:
            self._machine.close()
        except OSError as error:
            print(f"a drill's cgroup stays: {error}", file=sys.stderr, flush=True)
        return is_stored

    def _put(self) -> None:
        if self._stored.is_set() or not self._newest:
            return
        data = self._newest
        self._store.put(self._key, data)
        if data is self._newest:
            self._stored.set()

    def _end(self, seen: RankState) -> RankEnd:
        """Return a rank's end, with the tail of its log once it has one."""
        if seen.rank in self._known:
            return self._known[seen.rank]
        end = RankEnd(
            rank=seen.rank,
            exit_code=seen.exit_code,
            signal=seen.signal,
            started_at=seen.started_at,
            ended_at=seen.ended_at,
        )
        if not end.has_ended:
            return end
        tail = self._clean(log_tail(self._pod.work, seen.rank - self._pod.first_rank))
        self._known[seen.rank] = replace(end, log_tail=tail or seen.problem)
        return self._known[seen.rank]


def _first_was_killed(ends: Iterable[RankEnd]) -> bool:
    """Whether the first rank that ended did so by SIGKILL."""
    ended = [end for end in ends if end.has_ended]
    first = min(ended, key=lambda end: end.ended_at or "", default=None)
    return first is not None and first.signal == SIGKILL


class Asks:
    """Answers what the pods of a gang are asked through the store: to save, to dump their stacks.

    A wish is one object, known by its uid; each pod answers the newest one once. One thread calls
    `look`.
    """

    def __init__(self, store: ObjectStore, pod: PodEnvironment, *, clean: Redact) -> None:
        self._store = store
        self._pod = pod
        self._clean = clean
        self._obeyed: str | None = None  # the uid of the newest wish that was obeyed
        self._answer: tuple[str, bytes] | None = None  # key and bytes, until the store has them

    def look(self) -> None:
        """Obey a new wish, and answer. Raises StoreError; the next call continues where this ended."""
        ask = pod_files.decode_ask(self._store.get(self._key, SMALL_BYTES_MAX))
        if ask is not None and ask.uid != self._obeyed:
            self._obeyed = ask.uid  # first: what was done is not done again because of the store
            self._answer = self._obey(ask)
        if self._answer is not None:
            self._store.put(*self._answer)
            self._answer = None

    @property
    def _key(self) -> str:
        return pod_files.ask_key(self._pod.ref)

    def _obey(self, ask: Ask) -> tuple[str, bytes] | None:
        """Do what is asked; return the answer and where it belongs, None where others answer."""
        where = (self._pod.ref, self._pod.pod_uid, ask.uid)
        if ask.what == pod_files.STACKS:
            ranks = read_ranks(self._pod.work, self._pod.all_ranks)
            processes = {r.rank: r.process for r in ranks.values() if r.process is not None}
            dumps = dump_stacks(self._pod.work, processes, clean=self._clean)
            return pod_files.stacks_key(*where), pod_files.encode_stacks(dumps)
        if ask.what == pod_files.SAVE and self._pod.first_rank == 0:  # one rank's wish is enough
            return pod_files.save_key(*where), pod_files.encode_save(self._save())
        return None  # of a newer version, or of another pod

    def _save(self) -> SaveAnswer:
        """Send SIGUSR1, which ends a process that does not catch it, to rank 0 if it does."""
        process = read_ranks(self._pod.work, (0,))[0].process
        if process is None or not process.lives:
            return SaveAnswer(is_asked=False, problem="rank 0 does not live")
        if not process.catches(signal.SIGUSR1):
            return SaveAnswer(is_asked=False, problem="rank 0 does not listen yet, or any more")
        try:
            os.kill(process.pid, signal.SIGUSR1)
        except ProcessLookupError:
            return SaveAnswer(is_asked=False, problem="rank 0 went by itself")
        return SaveAnswer(is_asked=True)


class GangFailure:
    """How pods learn that another pod's rank failed, when no collective shows it.

    is_seen: whether one has.

    With NCCL a rank whose peer died waits until its time-out, and a pod cannot see another pod end.
    One object in the store says it. Without it the devices of all others would stand idle until the
    grace of the pods that their Job's controller deletes is over.
    """

    def __init__(self, store: ObjectStore, pod: PodEnvironment) -> None:
        self.is_seen = False
        self._store = store
        self._pod = pod
        self._key = pod_files.failed_key(pod.ref)

    def report(self) -> None:
        """Let the others know. Raises StoreError; idempotent."""
        self._store.put(self._key, canonical_json({"pod": self._pod.pod}))

    def look(self) -> None:
        """See whether a pod failed. Raises StoreError; the next call looks again."""
        self.is_seen = self.is_seen or self._store.get(self._key, 0) is not None

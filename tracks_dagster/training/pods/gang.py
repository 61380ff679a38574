"""The ranks of one pod, from outside: asked to end, killed, watched. Decides when it is over.

torchrun runs in a thread (`torchrun`); this is what the main thread does meanwhile, in which
signals arrive.
"""

from __future__ import annotations

import os
import signal
import threading
import time
import traceback
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

from tracks_dagster.processes.process import Process, now_text, read_json
from tracks_dagster.reasons.evidence import Condition
from tracks_dagster.track import names
from tracks_dagster.training.gang_parent import AGREED_ENDS, MEMBERS_EVERY_S, SURVIVORS_S_MAX
from tracks_dagster.training.pods import rank_files
from tracks_dagster.training.pods.environment import PodEnvironment
from tracks_dagster.training.pods.rank_files import RankState
from tracks_dagster.training.pods.reports import Ends, GangFailure

POLL_S = 0.1
# For all pods to meet: more than they are given to be scheduled and to start, which is watched from
# outside and ended there with a better reason.
MEET_S_MAX = 3600.0
# After an agreed end: the other pods' ranks speak through the first pod's store.
OTHERS_S_MAX = 120.0
LAST_S_MAX = 20.0  # of the grace after SIGTERM, for the pod's own last words
LAST_PART = 0.25  # and no more of it than that
UNSTARTED_S = 2.0  # after "start no more": what was about to start has its file by then
EXIT_PROBLEM = 1
PROBLEM_CHARS_MAX = 4000


class Notice:
    """Whether the pod was asked to end. A plain attribute: signal handlers may not wait for a lock."""

    def __init__(self) -> None:
        self.is_received = False

    def receive(self, *_: object) -> None:
        """Take in a signal."""
        self.is_received = True


class Torchrun(threading.Thread):
    """torchrun in a thread. failures: rank → code, once it has gone; problem: why it failed itself."""

    def __init__(self, pod: PodEnvironment) -> None:
        super().__init__(name="torchrun", daemon=True)
        self.failures: Mapping[int, int] = {}
        self.problem = ""
        self._pod = pod

    def run(self) -> None:
        """Run the ranks to their ends."""
        # What stands between it and a rank starts with SIGTERM blocked, before there could be a thread.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        try:
            # Torch takes seconds to import; SIGTERM is handled before.
            from tracks_dagster.training.pods.torchrun import run_ranks

            self.failures = run_ranks(self._pod, meet_s_max=MEET_S_MAX, others_s_max=OTHERS_S_MAX)
        except Exception as error:  # noqa: BLE001 - a thread's edge: it goes into the pod's end
            traceback.print_exc()
            self.problem = (
                f"torchrun failed in pod {self._pod.pod} ({self._pod.index} of {self._pod.pods}, "
                f"meeting at {self._pod.master_addr}:{self._pod.master_port}): "
                f"{type(error).__name__}: {error}"
            )[:PROBLEM_CHARS_MAX]


class PodGang:
    """Sees the ranks of a pod to their ends."""

    def __init__(
        self,
        pod: PodEnvironment,
        ends: Ends,
        torchrun: Torchrun,
        notice: Notice,
        failure: GangFailure,
    ) -> None:
        self.ranks: dict[int, RankState] = {}
        self._pod = pod
        self._ends = ends
        self._torchrun = torchrun
        self._notice = notice
        self._failure = failure
        self._failure_seen_at: float | None = None
        self._conditions: list[Condition] = []
        self._pids: set[int] = set()
        self._counted_at = 0.0  # on the monotonic clock, as all that follow
        self._asked_to_end_at: float | None = None
        self._grace_s = pod.grace_s
        self._all_ended_at: float | None = None
        self._drill_fired = False
        self._passed_on: set[int] = set()

    def watch(self) -> None:
        """Watch until every rank has ended and torchrun is done; training itself has no bound here."""
        self._look()
        while not self._is_over():
            time.sleep(POLL_S)
            self._look()
        self._close()

    @property
    def exit_code(self) -> int:
        """The exit code of the rank that failed first; else that of a fenced or drained rank; else 0.

        A rank that signal n ended makes 128 + n. So the kubelet's report of a pod with one rank is
        what the rank ended with, also where the store was never reached.
        """
        ended = sorted(self.ranks.values(), key=lambda rank: rank.ended_at or "~")
        codes = [_shell_code(rank) for rank in ended]
        for code in codes:
            if code not in AGREED_ENDS:
                return code
        return next((c for c in (names.EXIT_FENCED, names.EXIT_DRAINED) if c in codes), 0)

    @property
    def has_failed(self) -> bool:
        """Whether a rank ended in a way that the others cannot know of."""
        return any(
            rank.has_ended and rank.started_at is not None and _shell_code(rank) not in AGREED_ENDS
            for rank in self.ranks.values()
        )

    @property
    def _has_started(self) -> bool:
        return any(rank.started_at is not None for rank in self.ranks.values())

    def _look(self) -> None:
        """Take in the ranks' files, and pass on what the pod was asked."""
        before = self.ranks
        self.ranks = rank_files.read_ranks(self._pod.work, self._pod.all_ranks)
        self._count_members()
        self._play_drill()
        if self._notice.is_received:
            self._ask_to_end()
        self._follow_failure()
        if self.ranks != before and self._has_started:
            self._ends.take(self.ranks, pids=self._pids, conditions=self._conditions)

    def _is_over(self) -> bool:
        if not self._torchrun.is_alive():
            return True
        now = time.monotonic()
        if self._asked_to_end_at is not None and not self._has_started:
            return now - self._asked_to_end_at > UNSTARTED_S
        if not all(rank.has_ended for rank in self.ranks.values()):
            return False
        if self._all_ended_at is None:
            self._all_ended_at = now
        return now - self._all_ended_at > OTHERS_S_MAX

    def _ask_to_end(self) -> None:
        """Send each rank SIGTERM, once; what lives close to the end of the grace is killed.

        A little before it: a process killed with its pod reports no ends.
        """
        now = time.monotonic()
        if self._asked_to_end_at is None:
            self._asked_to_end_at = now
            if not self._has_started:
                rank_files.close(self._pod.work)
        last_s = min(LAST_S_MAX, LAST_PART * self._grace_s)
        is_late = now - self._asked_to_end_at > self._grace_s - last_s
        for rank, process in self._living().items():
            if is_late:
                _kill_group(process)
            elif rank not in self._passed_on:
                self._passed_on.add(rank)
                with suppress(ProcessLookupError):  # not its workers: they must live while it saves
                    os.kill(process.pid, signal.SIGTERM)

    def _follow_failure(self) -> None:
        """End our ranks that wait for a failed rank of another pod, once they had time to find out."""
        if not self._failure.is_seen:
            return
        now = time.monotonic()
        if self._failure_seen_at is None:
            self._failure_seen_at = now
        if now - self._failure_seen_at > SURVIVORS_S_MAX:
            for process in self._living().values():
                _kill_group(process)

    def _living(self) -> dict[int, Process]:
        return {
            rank.rank: rank.process
            for rank in self.ranks.values()
            if not rank.has_ended and rank.process is not None and rank.process.lives
        }

    def _count_members(self) -> None:
        """Learn the pids of loader workers: the kernel may name one that is gone by then."""
        processes = [rank.process for rank in self.ranks.values() if rank.process is not None]
        self._pids.update(process.pid for process in processes)
        if time.monotonic() - self._counted_at > MEMBERS_EVERY_S:
            self._counted_at = time.monotonic()
            for process in processes:
                self._pids.update(process.group)

    def _play_drill(self) -> None:
        """Play a control plane that takes the machine, when a drill asks for it."""
        drill = None if self._drill_fired else read_json(self._pod.work / "drill" / "preempt.json")
        if drill is None:
            return
        self._drill_fired = True
        grace_s = float(drill["grace_s"])
        self._conditions.append(
            Condition(
                type="DisruptionTarget",
                reason="PreemptionByScheduler",
                message=f"A drill preempts this gang with {grace_s:g} s of grace.",
                at=now_text(),
                source="drill",
            )
        )
        self._ends.take(self.ranks, pids=self._pids, conditions=self._conditions)
        self._grace_s = grace_s
        if grace_s > 0:
            self._notice.is_received = True
        else:
            for process in self._living().values():
                _kill_group(process)

    def _close(self) -> None:
        """End what is left, and give every rank an end."""
        rank_files.close(self._pod.work)
        self.ranks = rank_files.read_ranks(self._pod.work, self._pod.all_ranks)
        for process in self._living().values():
            _kill_group(process)
        self.ranks = {number: self._ended(rank) for number, rank in self.ranks.items()}
        self._ends.take(
            self.ranks,
            pids=self._pids,
            conditions=self._conditions,
            problem=self._torchrun.problem,
        )

    def _ended(self, rank: RankState) -> RankState:
        """Return the rank with its end: its own, what torchrun saw, or why it was never started."""
        if rank.has_ended:
            return rank
        code = self._torchrun.failures.get(rank.rank)
        if rank.started_at is not None:
            code = -signal.SIGKILL if code is None or code > 0 else code  # ours, a moment ago
            return replace(rank, signal=-code, ended_at=now_text())
        if self._notice.is_received:
            problem = "The pod had to end before this rank was started."
            return replace(rank, exit_code=names.EXIT_DRAINED, ended_at=now_text(), problem=problem)
        problem = self._torchrun.problem or "torchrun never started this rank."
        return replace(rank, exit_code=EXIT_PROBLEM, ended_at=now_text(), problem=problem)


def _shell_code(rank: RankState) -> int:
    if rank.signal is not None:
        return 128 + rank.signal
    return EXIT_PROBLEM if rank.exit_code is None else rank.exit_code


def _kill_group(process: Process) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)

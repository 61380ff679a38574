"""The parent of a local gang: `python -m tracks_dagster.training.gang_parent WORKDIR`.

It starts the ranks, writes down how each of them ended, and ends after the last one. It lives
in a session of its own, so that training outlives the Dagster run that asked for it; and it is the
only process that can see exit codes, so it does little that could fail: standard library, no store,
no network. It decides nothing about the attempt.

At most one gang per attempt, ever: the parent holds `gang.lock` while it lives, and a `gang.pid` that
is there when the lock is taken means that the attempt had its gang already. A file `closed`, written
under the same lock, means that the attempt has ended without one.

A parent that is killed takes nobody with it. The ranks train on and leave their last words in the
store; what is lost are their exit codes. The alternative (PR_SET_PDEATHSIG on Linux) would lose the
exit codes as well, and the steps since the last checkpoint with them; fencing keeps the ranks of a
lost parent harmless either way.

Files in WORKDIR: `spec.json` and `stored-code` (in), `code/` (the folder that the ranks start in),
`gang.pid`, `rank-<r>.log`, `conditions.jsonl`, `gang_exit.json`
(rewritten at every end, complete once each rank has one; with what the machine reports: memory events,
kernel lines); requests to it are `drain.json` and `drill/preempt.json`, each {"grace_s": seconds},
and `drill/sigkill-<r>.json`, {"rank": r}.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from tracks_dagster.attempts.ports import GangSpec
from tracks_dagster.processes import warm
from tracks_dagster.processes.logs import private
from tracks_dagster.processes.process import (
    find_process,
    name_process,
    now_text,
    read_json,
    this_process,
    write_json,
    write_process,
)
from tracks_dagster.reasons.evidence import Condition
from tracks_dagster.track import names
from tracks_dagster.track.body_json import from_json
from tracks_dagster.training.machine import MachineWatch
from tracks_dagster.training.projects.code import CODE, CodeUnusable, command_line, lay_out, paths

# Written down for a rank whose program could not be started, as shells do; and our own where the stored
# code is none.
EXIT_CANNOT_RUN = 127
POLL_S = 0.05
MEMBERS_EVERY_S = 10.0
# After a rank's abnormal end: time for the others to find out and leave a last word. They hang in a
# collective otherwise, and the end of the gang has to be seen within ten seconds.
SURVIVORS_S_MAX = 5.0
# All ranks agreed on these ends: a slow store may keep one of them with its last words for longer.
AGREED_ENDS = frozenset({0, names.EXIT_DRAINED, names.EXIT_FENCED})
CGROUP_TRIES_MAX = 20  # to remove a drill's: what was killed in it takes a moment to leave it
LAST_WRITES_MAX = 100  # tries to write the last ends down, should the disk be full: 10 s
WRITE_AGAIN_S = 0.1
SIGTERM_GRACE_S = 30.0  # when the parent itself gets SIGTERM, at a shutdown for instance
# https://docs.pytorch.org/docs/stable/elastic/run.html#environment-variables
OF_TORCHRUN = frozenset(
    (
        *("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME", "ROLE_WORLD_SIZE"),
        *("WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
    )
)


def main(work: Path) -> int:
    """Run the gang of `work` to its end; returns the exit code of this process."""
    with (work / "gang.lock").open("w") as lock:  # let go by the kernel, whatever happens to us
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return names.EXIT_STARTED_BEFORE
        if (work / "gang.pid").exists() or (work / names.CLOSED).exists():
            return names.EXIT_STARTED_BEFORE
        spec = from_json(GangSpec, read_json(work / "spec.json"))
        name_process(f"tracks {spec.ref.key} gang_parent")
        stored = work / "stored-code"
        try:
            lay_out(
                work / CODE,
                code=stored.read_bytes() if stored.exists() else None,
                key=spec.code_key,
                files=spec.command.files,
            )
        except CodeUnusable as error:  # the launcher reads it in this process's log
            print(f"{spec.code_key}: {error}", file=sys.stderr, flush=True)
            return EXIT_CANNOT_RUN
        gang = Gang(work, spec)
        signal.signal(signal.SIGTERM, lambda *_: gang.drain(SIGTERM_GRACE_S))
        write_process(work / "gang.pid", this_process(), started_at=now_text(), ranks=[])
        gang.start()
        gang.watch()
        _end_what_is_left()
        gang.close()
    return 0


@dataclass(slots=True)
class Rank:
    """One rank and its end so far; `exit_code` or `signal` is set once it ended."""

    rank: int
    started_at: str
    ended_at: str | None = None
    exit_code: int | None = None
    signal: int | None = None


class Gang:
    """The ranks of one attempt on this machine."""

    def __init__(self, work: Path, spec: GangSpec) -> None:
        self._work = work
        self._spec = spec
        self._ranks: list[Rank] = []
        self._living: dict[int, subprocess.Popen[bytes] | warm.Forked] = {}
        self._kill_at: float | None = None  # on the monotonic clock
        self._grace_s = 0.0
        self._is_draining = False
        self._is_written = True  # what is known of the ends
        self._drill_fired = False
        self._pids: set[int] = set()
        self._counted_at = 0.0  # monotonic
        given = spec.environment.get(names.ENV_LEASED_DEVICES, "")
        self._machine = MachineWatch(work, given.split(","))

    def start(self) -> None:
        """Start every rank and write down their pids; one that cannot be started ends the gang."""
        shared = rendezvous(self._spec)
        for rank in range(self._spec.ranks):
            self._ranks.append(Rank(rank=rank, started_at=now_text()))
            try:
                self._living[rank] = self._start(rank, shared)
            except OSError as error:
                print(f"rank {rank} cannot be started: {error}", flush=True)
                self._end(rank, EXIT_CANNOT_RUN)
        self._pids = {child.pid for child in self._living.values()}
        processes = {rank: find_process(child.pid) for rank, child in self._living.items()}
        started = [{"rank": rank, **asdict(p)} for rank, p in processes.items() if p is not None]
        write_process(self._work / "gang.pid", this_process(), started_at=now_text(), ranks=started)
        if self._is_draining:  # SIGTERM came before there was a rank to pass it on to
            self._kill_at = None  # nobody has had any of the grace
            self._ask_to_end()

    def watch(self) -> None:
        """Write down each end as it happens, until no rank lives; obey requests meanwhile.

        As long as training runs: what bounds it is the attempt, not the parent.
        """
        while self._living:
            for rank, child in list(self._living.items()):
                code = child.poll()
                if code is not None:
                    self._end(rank, code)
            self._obey()
            self._count_members()
            if self._kill_at is not None and time.monotonic() >= self._kill_at:
                self._signal(signal.SIGKILL)
            time.sleep(POLL_S)
        for _ in range(LAST_WRITES_MAX):
            if self._is_written:
                return
            time.sleep(WRITE_AGAIN_S)
            self._write_ends()

    def close(self) -> None:
        """Leave nothing on the machine; called once no rank lives."""
        for left in reversed(range(CGROUP_TRIES_MAX)):
            try:
                self._machine.close()
            except OSError as error:  # a parent's last line: the ends are written
                if not left:
                    print(f"a drill's cgroup stays: {error}", flush=True)
                time.sleep(POLL_S)
            else:
                return

    def drain(self, grace_s: float) -> None:
        """Ask every rank to save and end; what lives after `grace_s` is killed. Once."""
        if self._is_draining:
            return
        self._is_draining = True
        self._grace_s = grace_s
        self._ask_to_end()

    def _ask_to_end(self) -> None:
        self._signal(signal.SIGTERM)
        self._kill_within(self._grace_s)

    def _start(self, rank: int, shared: Mapping[str, str]) -> subprocess.Popen[bytes] | warm.Forked:
        code, command = self._work / CODE, self._spec.command
        environment = {**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        environment[names.ENV_WORK] = str(self._work)
        environment |= paths(code, command.python, environment)
        if self._spec.ranks == 1:
            environment = as_alone(environment)
        path = self._work / f"rank-{rank}.log"
        words = command_line(command.words, command.python)
        with open(path, "ab", opener=private) as log:
            if words[0] == sys.executable:
                script = Path(next((each for each in words[1:] if each != "-m"), "")).name
                name = f"tracks {self._spec.ref.key} rank {rank}: {script}"
                start = warm.Start(
                    words=words[1:], cwd=str(code), environment=environment, name=name
                )
                if (child := warm.fork(start, log.fileno())) is not None:
                    return child
            return subprocess.Popen(
                words,
                cwd=code,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def _end(self, rank: int, code: int) -> None:
        """Write down that `rank` ended; code: as of Popen, -N for signal N."""
        self._living.pop(rank, None)
        ended = self._ranks[rank]
        ended.ended_at = now_text()
        ended.exit_code, ended.signal = (code, None) if code >= 0 else (None, -code)
        self._write_ends()
        if code not in AGREED_ENDS:
            self._kill_within(SURVIVORS_S_MAX)

    def _write_ends(self) -> None:
        """Write down all ends so far; a disk that is full must not end the parent of living ranks."""
        try:
            seen = self._machine.report_since_start(self._pids, is_killed=self._first_was_killed)
            ranks = [asdict(rank) for rank in self._ranks]
            write_json(self._work / "gang_exit.json", {"ranks": ranks, **seen})
        except OSError:
            self._is_written = False  # the next end, or the end of `watch`, tries again
        else:
            self._is_written = True

    @property
    def _first_was_killed(self) -> bool:
        ended = [rank for rank in self._ranks if rank.ended_at is not None]
        first = min(ended, key=lambda rank: rank.ended_at or "", default=None)
        return first is not None and first.signal == signal.SIGKILL

    def _count_members(self) -> None:
        """Learn the pids of loader workers: the kernel may name one that is gone by then."""
        if time.monotonic() - self._counted_at > MEMBERS_EVERY_S:
            self._counted_at = time.monotonic()
            with suppress(OSError, subprocess.SubprocessError):  # the ends matter more
                self._pids.update(this_process().group)

    def _obey(self) -> None:
        request = read_json(self._work / "drain.json")
        if request is not None:
            self.drain(request["grace_s"])
        for rank in list(self._living):
            if (self._work / "drill" / f"sigkill-{rank}.json").exists():
                self._living[rank].kill()
        if self._drill_fired:
            return
        drill = read_json(self._work / "drill" / "preempt.json")
        if drill is not None:
            self._drill_fired = True
            self._preempt(drill["grace_s"])

    def _preempt(self, grace_s: float) -> None:
        """Play a control plane that takes the machine: first its word, then its signals."""
        condition = Condition(
            type="DisruptionTarget",
            reason="PreemptionByScheduler",
            message=f"A drill preempts this gang with {grace_s:g} s of grace.",
            at=now_text(),
            source="drill",
        )
        with (self._work / "conditions.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(condition)) + "\n")
            file.flush()
            os.fsync(file.fileno())
        if grace_s > 0:
            self.drain(grace_s)
        else:
            self._signal(signal.SIGKILL)

    def _kill_within(self, seconds: float) -> None:
        at = time.monotonic() + seconds
        self._kill_at = at if self._kill_at is None else min(self._kill_at, at)

    def _signal(self, number: signal.Signals) -> None:
        """Signal the ranks, and not their loader workers, which must live while a rank saves."""
        for child in self._living.values():
            child.send_signal(number)


def rendezvous(spec: GangSpec) -> dict[str, str]:
    """Return the variables that all ranks share: torchrun's, ours, and the spec's own.

    A rank alone is started without torchrun's (`as_alone`).
    The port is free now and may be taken by the time rank 0 listens; the attempt then fails in words.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shared = {
        "WORLD_SIZE": str(spec.ranks),
        "LOCAL_WORLD_SIZE": str(spec.ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "PYTHONUNBUFFERED": "1",  # a log that ends where the process did
        names.ENV_STORE: spec.store_url,
        names.ENV_RUN_ID: spec.run_id,
        names.ENV_ATTEMPT_ID: str(spec.attempt_id),
        names.ENV_OPENED_SEQ: str(spec.opened_seq),
        **spec.environment,
    }
    if spec.ranks > 1 and "OMP_NUM_THREADS" not in os.environ:
        shared["OMP_NUM_THREADS"] = "1"  # as torchrun does: ranks that share cores get in their way
    return shared


def as_alone(environ: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without torchrun's variables, as of `python train.py`.

    For a gang of one rank: a script that asks `"RANK" in os.environ`, as most do, then trains without
    a process group, and on a CPU where there is no GPU.
    """
    return {
        name: value
        for name, value in environ.items()
        if name not in OF_TORCHRUN and not name.startswith("TORCHELASTIC_")
    }


def _end_what_is_left() -> None:
    """End what the ranks started and left behind, loader workers for instance."""
    for pid in this_process().group:
        if pid != os.getpid():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue  # it went by itself


if __name__ == "__main__":
    # At once: where it was forked with torch, an interpreter's own end takes 0.3 s of processor.
    os._exit(main(Path(sys.argv[1])))

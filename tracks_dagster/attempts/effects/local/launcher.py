"""Gangs on this machine, as processes below a parent of ours (`training.gang_parent`).

The launcher and the parent meet only in files of `work/<run_id>/a<NN>/`, so that any process of this
machine can adopt a gang that it did not start. Nothing here judges an end or speaks to Dagster.
"""

from __future__ import annotations

import fcntl
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from tracks_dagster.attempts.ports import GangPhase, GangReport, GangSpec
from tracks_dagster.processes import warm
from tracks_dagster.processes.logs import (
    clean_logs,
    find_logs,
    read_tail,
    ship_journals,
    ship_logs,
)
from tracks_dagster.processes.process import (
    Process,
    boot_id,
    known_process,
    read_json,
    read_process,
    worker_environment,
    write_json,
)
from tracks_dagster.processes.stack_dumps import dump_stacks
from tracks_dagster.reasons.evidence import Condition, RankEnd
from tracks_dagster.reasons.hangs import Beat, Phase, StackDump, beat_file, decode_beat
from tracks_dagster.track.bodies import RankPlace
from tracks_dagster.track.body_json import from_json, to_json
from tracks_dagster.track.errors import GangError
from tracks_dagster.track.json_text import parse_json
from tracks_dagster.track.names import (
    CLOSED,
    ENV_CACHE,
    ENV_OBSERVE,
    EXIT_STARTED_BEFORE,
    AttemptRef,
)
from tracks_dagster.track.ports import ObjectStore
from tracks_dagster.track.records import format_time
from tracks_dagster.track.text.redact import Redact, redact

PARENT = "tracks_dagster.training.gang_parent"
# What every rank imports that joins, three seconds of processor, and what a gang's parent does.
IMPORTED = (
    *("torch", "tracks_dagster.training.attempt", "tracks_dagster.training.machine"),
    *("tracks_dagster.attempts.ports", "tracks_dagster.training.projects.code"),
)
# And one that is looked at, by `observing`: each optimizer imports torch's compiler when it is made.
OBSERVED = ("tracks_dagster.training.observing", "torch._dynamo")
START_S_MAX = 60.0
KILL_S_MAX = 20.0
RECORD_S_MAX = 3.0  # after the ranks were killed: time for the parent to write down their ends
POLL_S = 0.05


class LocalLauncher:
    """Implements `ports.GangLauncher`. work: the folder below which every gang has its own.

    warm_address: of the warm parents for gangs, one for each interpreter of a project, which are
    started when one is first needed; None: every gang is a new interpreter.
    """

    def __init__(
        self, work: Path, *, clean: Redact = redact, warm_address: Path | None = None
    ) -> None:
        self._work = work
        self._clean = clean
        self._warm_address = warm_address
        self._children: list[subprocess.Popen[bytes] | warm.Child] = []
        self._gone_at: dict[Process, str] = {}  # ranks that ended with no parent to see it

    def start(self, spec: GangSpec) -> bool:
        """Start the gang and return when its parent has written itself down."""
        folder = self._folder(spec.ref)
        with _translated("start", spec.ref):
            folder.mkdir(parents=True, exist_ok=True)
            if (folder / "gang.pid").exists():
                return False
            if spec.code is not None:
                _write_code(folder / "stored-code", spec.code)
            write_json(folder / "spec.json", to_json(replace(spec, code=None)))
            with (folder / "gang.log").open("ab") as log:
                child = self._start_parent(folder, spec, log.fileno())
            self._children.append(child)
            return self._wait_for_parent(folder, child)

    def _start_parent(
        self, folder: Path, spec: GangSpec, log: int
    ) -> subprocess.Popen[bytes] | warm.Child:
        words = ["-m", PARENT, str(folder)]
        # Beside the gangs' folders, so that every attempt finds what one has fetched.
        environment = {**worker_environment(), ENV_CACHE: str(self._work.parent / "cache")}
        environment["PYTHONUNBUFFERED"] = "1"
        if spec.ranks > 1:
            environment.setdefault("OMP_NUM_THREADS", "1")  # as `gang_parent.rendezvous` says why
        if self._warm_address is not None:
            python = spec.command.python
            address = warm.at_interpreter(self._warm_address, python)
            # A warm parent each: what OpenMP reads when it is loaded is not the same.
            several = ".ranks" if spec.ranks > 1 else ""
            address = address.with_name(f"{address.name}{several}")
            start = warm.Start(
                words=words, cwd=str(folder), environment=environment, leads_session=True
            )
            imported = IMPORTED + (OBSERVED if ENV_OBSERVE in spec.environment else ())
            warm.ensure(address, imported, environment, python=python)
            if (child := warm.ask(address, start, log, python=python)) is not None:
                return child
        return subprocess.Popen(
            [sys.executable, *words],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def glance(self, ref: AttemptRef) -> GangReport:
        """Look whether anything of the gang lives; what its ranks wrote is not read."""
        self._collect()
        with _translated("look at", ref):
            folder = self._folder(ref)
            parent = read_process(folder / "gang.pid")
            if parent is None:
                return GangReport(phase=_phase_without_gang(folder), where=platform.node())
            lives = parent.lives or bool(parent.group)
            phase = GangPhase.ALIVE if lives else GangPhase.GONE
            return GangReport(phase=phase, where=platform.node())

    def observe(self, ref: AttemptRef) -> GangReport:
        """Read what the parent wrote, and look whether anything of the gang lives."""
        self._collect()
        folder = self._folder(ref)
        with _translated("observe", ref):
            written = read_json(folder / "gang.pid")
            parent = read_process(folder / "gang.pid")
            if written is None or parent is None:
                return GangReport(
                    phase=_phase_without_gang(folder),
                    where=platform.node(),
                    boot_ids={platform.node(): boot_id()},
                )
            lives = parent.lives or bool(parent.group)
            ended = read_json(folder / "gang_exit.json") or {"ranks": []}
            ranks = self._ranks(folder, ended["ranks"], gone=not lives)
            if lives and not parent.lives:
                processes = _rank_processes(folder)
                ranks = tuple(self._unwatched(end, processes.get(end.rank)) for end in ranks)
            ends = [r.ended_at for r in ranks if r.ended_at is not None]
            return GangReport(
                phase=GangPhase.ALIVE if lives else GangPhase.GONE,
                ranks=ranks,
                conditions=_conditions(folder),
                started_at=written["started_at"],
                ended_at=max(ends) if ends and not lives else None,
                where=platform.node(),
                boot_ids={platform.node(): boot_id()},
                beats=_beats(folder, len(ranks)),
                cgroup=ended.get("cgroup", {}),
                kernel_lines=tuple(ended.get("kernel_lines", ())),
            )

    def drain(self, ref: AttemptRef, *, grace_s: float) -> None:
        """Ask the parent; without one, ask the ranks, and the caller's `kill` is the grace's end."""
        folder = self._folder(ref)
        with _translated("drain", ref):
            parent = read_process(folder / "gang.pid")
            if parent is None:
                return
            if parent.lives:
                write_json(folder / "drain.json", {"grace_s": grace_s})
                return
            for rank in _rank_processes(folder).values():
                if rank.lives:
                    _signal(rank.pid, signal.SIGTERM)

    def ask_to_save(self, ref: AttemptRef, place: RankPlace) -> bool:
        """Send SIGUSR1, which ends a process that does not catch it, to one that does."""
        rank = Process(pid=place.pid, started=place.pid_started, boot_id=place.boot_id)
        try:
            if not (rank.lives and rank.catches(signal.SIGUSR1)):
                return False
            os.kill(rank.pid, signal.SIGUSR1)
        except ProcessLookupError:
            return False  # it went by itself
        except OSError as error:
            raise GangError(f"Cannot ask process {place.pid} to save: {error}.") from error
        return True

    def dump_stacks(self, ref: AttemptRef) -> tuple[StackDump, ...]:
        """Signal every living rank that can dump, and read what it wrote."""
        folder = self._folder(ref)
        with _translated("dump the stacks of", ref):
            return dump_stacks(folder, _rank_processes(folder), clean=self._clean)

    def kill(self, ref: AttemptRef) -> None:
        """Kill the whole process group, the parent last so that it can write down the ends.

        Where there is none yet, none is started any more: a supervisor that was held up must not start
        a gang whose devices may be another one's by then.
        """
        with _translated("kill", ref):
            parent = self._last_parent(self._folder(ref))
            if parent is None:
                return
            began = time.monotonic()
            while members := parent.group:
                waited = time.monotonic() - began
                if waited > KILL_S_MAX:
                    raise GangError(
                        f"Cannot end the gang of {ref.key}: processes "
                        f"{members} still live {KILL_S_MAX:g} s after SIGKILL (a device or file "
                        "system that does not answer?). The attempt stays open."
                    )
                spared = parent.pid if waited < RECORD_S_MAX else None
                for pid in members:
                    if pid != spared:
                        _signal(pid, signal.SIGKILL)
                time.sleep(POLL_S)
            self._collect()

    def ship(self, ref: AttemptRef, store: ObjectStore) -> None:
        """Upload what journals hold beyond their shipped segments, and the ranks' logs, cleaned."""
        folder = self._folder(ref)
        clean_logs(folder, self._clean)
        with _translated("ship the journals of", ref):
            ship_journals(store, folder, prefix=ref.folder)
            logs = {rank: [path] for rank, path in find_logs(folder).items()}
            ship_logs(store, logs, prefix=ref.folder, clean=self._clean)

    def _last_parent(self, folder: Path) -> Process | None:
        """Return the gang's parent; None where there is none and, from now on, never will be."""
        folder.mkdir(parents=True, exist_ok=True)
        give_up_at = time.monotonic() + KILL_S_MAX
        while (parent := read_process(folder / "gang.pid")) is None:
            with (folder / "gang.lock").open("a") as lock:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:  # a parent lives that has not written itself down yet
                    if time.monotonic() > give_up_at:
                        raise GangError(
                            f"A parent of a gang in {folder} holds its lock and has not said who it "
                            f"is in {KILL_S_MAX:g} s; the attempt stays open, and the next tick tries "
                            "again."
                        ) from None
                else:
                    if not (folder / "gang.pid").exists():
                        (folder / CLOSED).touch()
                        return None
            time.sleep(POLL_S)
        return parent

    def _collect(self) -> None:
        """Let the parents that we started and that have ended go from the system's table."""
        self._children = [child for child in self._children if child.poll() is None]

    def _folder(self, ref: AttemptRef) -> Path:
        return self._work / ref.key

    def _wait_for_parent(self, folder: Path, child: subprocess.Popen[bytes] | warm.Child) -> bool:
        """Return True once `child` is the gang's parent, False when another was before it."""
        give_up_at = time.monotonic() + START_S_MAX
        while True:
            code = child.poll()  # before the file: a parent that wrote it may have ended already
            parent = read_process(folder / "gang.pid")
            if parent is not None and parent.pid == child.pid:
                return True
            if code == EXIT_STARTED_BEFORE:
                return False
            if code is not None:
                raise GangError(
                    f"The gang's parent in {folder} ended with {code} before it started a rank: "
                    f"{self._clean(read_tail(folder / 'gang.log')).strip()[-500:]}"
                )
            if time.monotonic() > give_up_at:
                child.kill()
                child.wait()
                raise GangError(
                    f"The gang's parent in {folder} did not start within {START_S_MAX:g} s and was "
                    "killed; the machine is overloaded, or its disk does not answer."
                )
            time.sleep(POLL_S)

    def _ranks(
        self, folder: Path, ends: list[dict[str, object]], *, gone: bool
    ) -> tuple[RankEnd, ...]:
        """Return every rank of the spec, as far as its end is known; logs of those that ended."""
        spec = from_json(GangSpec, read_json(folder / "spec.json"))
        known = {end["rank"]: end for end in ends}
        return tuple(
            self._rank(folder, rank, known.get(rank, {}), gone=gone) for rank in range(spec.ranks)
        )

    def _unwatched(self, end: RankEnd, process: Process | None) -> RankEnd:
        """Return the end of a rank whose parent is gone: how it ended is not known, but that it has is.

        Without it the others, who may wait for that rank in a rendezvous, would keep the gang alive.
        Its `ended_at` is when this process first saw it gone.
        """
        if end.ended_at is not None or process is None or process.lives:
            return end
        now = format_time(datetime.now(UTC))
        return replace(end, ended_at=self._gone_at.setdefault(process, now))

    def _rank(self, folder: Path, rank: int, end: dict[str, object], *, gone: bool) -> RankEnd:
        found = from_json(RankEnd, {"rank": rank, **end})
        if not (found.has_ended or gone):
            return found
        tail = self._clean(read_tail(folder / f"rank-{rank}.log"))
        return from_json(RankEnd, {"rank": rank, **end, "log_tail": tail})


def is_gone(work: Path, key: str) -> bool:
    """Whether no process of that attempt's gang lives, or ever will again; False where nobody can tell.

    work: the folder of the home that started it, which may be another user's.
    """
    folder = work / key
    try:
        parent = read_process(folder / "gang.pid")
        if parent is None:
            return (folder / CLOSED).exists()
        return not (parent.lives or parent.group)
    except (OSError, ValueError):
        return False


def lives(work: Path, key: str) -> bool:
    """Whether that attempt's gang is known to live; as of `is_gone`."""
    parent = known_process(work / key / "gang.pid")
    return parent is not None and bool(parent.lives or parent.group)


def _phase_without_gang(folder: Path) -> GangPhase:
    """Return the phase of an attempt that has had no gang: none comes after a close."""
    return GangPhase.GONE if (folder / CLOSED).exists() else GangPhase.NEVER_STARTED


def living_gangs(work: Path) -> list[tuple[str, Process]]:
    """Return the key of each attempt whose gang lives below `work`, and the gang's parent."""
    found = []
    for path in sorted(work.glob("*/a*/gang.pid")):
        parent = known_process(path)
        if parent is not None and parent.group:
            found.append((f"{path.parts[-3]}/{path.parts[-2]}", parent))
    return found


@contextmanager
def _translated(verb: str, ref: AttemptRef) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, KeyError) as error:
        raise GangError(f"Cannot {verb} the gang of {ref.key}: {error}.") from error


def _rank_processes(folder: Path) -> dict[int, Process]:
    written = read_json(folder / "gang.pid") or {"ranks": []}
    return {
        rank["rank"]: Process(pid=rank["pid"], started=rank["started"], boot_id=rank["boot_id"])
        for rank in written["ranks"]
    }


def _beats(folder: Path, ranks: int) -> tuple[Beat, ...]:
    """Return where each rank stood last; one that has written nothing yet is starting."""
    found = []
    for rank in range(ranks):
        try:
            data = beat_file(folder, rank).read_bytes()
        except FileNotFoundError:
            data = b""
        found.append(decode_beat(rank, data) or Beat(rank=rank, phase=Phase.STARTING))
    return tuple(found)


def _write_code(path: Path, code: bytes) -> None:
    """Write it in one step: a gang that another supervisor started may be reading it."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    scratch.write_bytes(code)
    scratch.replace(path)


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return  # it went by itself


def _conditions(folder: Path) -> tuple[Condition, ...]:
    try:
        text = (folder / "conditions.jsonl").read_text(encoding="utf-8")
    except FileNotFoundError:
        return ()
    lines = text.split("\n")[:-1]  # not the one that is being written
    return tuple(from_json(Condition, parse_json(line)) for line in lines)

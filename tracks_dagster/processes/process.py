"""Processes of this machine, each identified so that another with its number is not taken for it.

A pid alone names nothing: numbers are given again, and after a reboot all of them are. Here a process
is its pid, its start time and the machine's boot. Nothing heavy is imported, because the gang's
parent uses it too; Linux reads /proc, other systems ask `ps`.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tracks_dagster.scheduling.devices_given import cpu_threads, parse_given
from tracks_dagster.track.json_text import parse_json
from tracks_dagster.track.records import format_time

PS_TIMEOUT_S = 10.0
COMMAND_CHARACTERS_MAX = 80  # of a command line, in words
# Of a process that trains or evaluates: no credentials of a database, no Dagster instance to join.
_KEPT_BACK = ("DAGSTER_", "TRACKS_POSTGRES_URL", "PGPASSWORD")
_LISTEN = "0A"  # a socket's state, in /proc/net/tcp
_PROC = Path("/proc")
_ON_LINUX = sys.platform == "linux"


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """One process of one boot. started: seconds, since boot on Linux, else since 1970."""

    pid: int
    started: float
    boot_id: str

    @property
    def lives(self) -> bool:
        """Whether it still runs; one that ended and waits to be collected does not."""
        return self.boot_id == boot_id() and _start_of_living(self.pid) == self.started

    @property
    def began_at(self) -> datetime:
        """When it started, of a process of this boot."""
        booted_at = 0
        if _ON_LINUX:
            stat = (_PROC / "stat").read_text()
            booted_at = int(re.findall(r"^btime (\d+)$", stat, re.MULTILINE)[0])
        return datetime.fromtimestamp(booted_at + self.started, UTC)

    @property
    def group(self) -> list[int]:
        """The pids of all that lives in the process group that it leads, itself included.

        Empty after a reboot, and when its number was given to another process: the system does that
        only once the group is empty.
        """
        if self.boot_id != boot_id():
            return []
        if _start_of_living(self.pid) not in (None, self.started):
            return []
        return [pid for pid, group, lives in _all_processes() if group == self.pid and lives]

    def catches(self, number: signal.Signals) -> bool:
        """Whether it has a handler for that signal; elsewhere than on Linux nobody can tell, so True.

        Ask right before the signal is sent: a handler may go at any time.
        """
        if not _ON_LINUX:
            return True
        try:
            status = (_PROC / str(self.pid) / "status").read_text()
        except (FileNotFoundError, ProcessLookupError):
            return False
        caught = re.search(r"^SigCgt:\s*([0-9a-f]+)$", status, re.MULTILINE)
        return caught is not None and bool(int(caught[1], 16) >> (number - 1) & 1)


def find_process(pid: int) -> Process | None:
    """Return the living process of that pid, or None."""
    started = _start_of_living(pid)
    return None if started is None else Process(pid=pid, started=started, boot_id=boot_id())


def this_process() -> Process:
    """Return the calling process."""
    process = find_process(os.getpid())
    if process is None:
        raise OSError("the system does not list the calling process; is /proc mounted?")
    return process


def boot_id() -> str:
    """Return an identity of this boot of this machine."""
    if _ON_LINUX:
        return (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    return _output("sysctl", "-n", "kern.bootsessionuuid")


def describe_holders(path: Path) -> str:
    """Return who holds a lock (flock) on that file, as "pid 7 (tracks run)"; "" where nobody can tell.

    Linux lists them; only those of this pid namespace have a number here.
    """
    try:
        inode, lines = path.stat().st_ino, (_PROC / "locks").read_text().splitlines()
    except OSError:
        return ""
    pids = set()
    for line in lines:
        fields = line.split()  # 9: FLOCK ADVISORY READ 4711 fe:00:2146453 0 EOF
        if fields[1:2] == ["FLOCK"] and fields[5].rpartition(":")[2] == str(inode):
            pids.add(int(fields[4]))
    return ", ".join(describe_process(pid) for pid in sorted(pids - {0, os.getpid()}))


def describe_process(pid: int) -> str:
    """Return its pid and the start of its command line, without the interpreter and folders."""
    try:
        command = (_PROC / str(pid) / "cmdline").read_bytes().decode("utf-8", "replace")
    except OSError:
        return f"pid {pid}"
    words = [word for word in command.split("\0") if word]
    if len(words) > 1 and Path(words[0]).name.startswith("python"):
        words = words[1:]
    command = " ".join([Path(words[0]).name, *words[1:]]) if words else ""
    return f"pid {pid} ({command[:COMMAND_CHARACTERS_MAX]})" if command else f"pid {pid}"


def name_process(name: str | None) -> None:
    """Let ps, htop, py-spy and nvidia-smi show this process as `name`; None: as they do.

    Called first before the process changes its environment, beside which the kernel shows the name: a
    process that is forked later can be named then.
    """
    try:
        from setproctitle import getproctitle, setproctitle
    except ImportError:  # an interpreter of a person's own; a name is worth no failure
        return
    os.environ["SPT_NOENV"] = "1"  # else it writes over what /proc/PID/environ shows
    setproctitle(getproctitle() if name is None else name)
    del os.environ["SPT_NOENV"]


def worker_environment() -> dict[str, str]:
    """Return this process's variables without those that a trainer must not have, and with the threads
    that its slot of the CPUs allows, where nobody says how many."""
    found = {name: value for name, value in os.environ.items() if not name.startswith(_KEPT_BACK)}
    given = parse_given(os.environ.get("TRACKS_DEVICES", ""), None)
    if (threads := cpu_threads(given, os.cpu_count() or 1)) > 1:
        found.setdefault("OMP_NUM_THREADS", str(threads))
    return found


def is_stopped(pid: int) -> bool:
    """Whether a signal (SIGSTOP, a debugger) holds the process, so that it runs no code."""
    if not _ON_LINUX:
        return _output("ps", "-o", "stat=", "-p", str(pid)).startswith("T")
    stat = _stat(pid)
    return stat is not None and stat[0] in "Tt"


def now_text() -> str:
    """The time of this machine, in the form of our records."""
    return format_time(datetime.now(UTC))


def listens(process: Process, port: int) -> bool:
    """Whether a member of the process' group listens on that TCP port; True where nobody can tell."""
    if not _ON_LINUX:
        return True
    sockets = {f"socket:[{inode}]" for inode in _listening(port)}
    return any(not sockets.isdisjoint(_files_of(pid)) for pid in process.group)


def _listening(port: int) -> Iterator[str]:
    """Yield the inodes of sockets that listen on the port; see proc_net(5)."""
    for line in (_PROC / "net" / "tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if int(fields[1].rpartition(":")[2], 16) == port and fields[3] == _LISTEN:
            yield fields[9]


def _files_of(pid: int) -> Iterator[str]:
    """Yield what the process has open."""
    try:
        for path in (_PROC / str(pid) / "fd").iterdir():
            with suppress(OSError):  # closed meanwhile
                yield str(path.readlink())
    except OSError:
        return  # gone, or of somebody else


def write_process(path: Path, process: Process, **more: object) -> None:
    """Write `process`, and more fields beside it, to a JSON file in one step."""
    write_json(path, {**asdict(process), **more})


def read_process(path: Path) -> Process | None:
    """Return the process that `write_process` wrote, or None when there is no such file.

    Raises ValueError for a file that names none.
    """
    stored = read_json(path)
    if stored is None:
        return None
    if (found := process_in(stored)) is None:
        raise ValueError(f"{path} names no process")
    return found


def known_process(path: Path) -> Process | None:
    """Return the process that a file names; None where there is none, or it is damaged.

    For callers that look after other processes too, or start the program again. Not where None would
    allow a second gang.
    """
    with suppress(OSError, ValueError):
        return read_process(path)
    return None


def process_in(stored: object) -> Process | None:
    """Return the process that a JSON value names, or None: a signal to pid 0 or -1 reaches many."""
    match stored:
        case {"pid": int(pid), "started": int() | float() as started, "boot_id": str(boot)}:
            is_one = not isinstance(pid, bool) and pid > 0
            return Process(pid=pid, started=started, boot_id=boot) if is_one else None
    return None


def write_json(path: Path, value: object) -> None:
    """Write JSON so that a reader finds the old file or the whole new one, also after a crash."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    with scratch.open("w", encoding="utf-8") as file:
        json.dump(value, file)
        file.flush()
        os.fsync(file.fileno())
    scratch.replace(path)


def read_json(path: Path) -> dict[str, Any] | None:
    """Return the JSON object in `path`, or None when there is no such file.

    Raises ValueError, which names the file, for what is not one.
    """
    try:
        stored = parse_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise ValueError(f"{path} holds no JSON: {error}") from error
    if not isinstance(stored, dict):
        raise ValueError(f"{path} holds no JSON object")
    return stored


def _start_of_living(pid: int) -> float | None:
    if not _ON_LINUX:
        text = _output("ps", "-o", "stat=,lstart=", "-p", str(pid))
        return None if not text or text.startswith("Z") else _seconds(text.split(None, 1)[1])
    stat = _stat(pid)
    return None if stat is None or stat[0] in "ZX" else int(stat[19]) / os.sysconf("SC_CLK_TCK")


def _all_processes() -> Iterator[tuple[int, int, bool]]:
    """Yield (pid, process group, lives) of every process."""
    if not _ON_LINUX:
        for line in _output("ps", "-A", "-o", "pid=,pgid=,stat=").splitlines():
            pid, group, state = line.split(None, 2)
            yield int(pid), int(group), not state.startswith("Z")
        return
    for folder in _PROC.iterdir():
        stat = _stat(int(folder.name)) if folder.name.isdigit() else None
        if stat is not None:
            yield int(folder.name), int(stat[2]), stat[0] not in "ZX"


def _stat(pid: int) -> list[str] | None:
    """Return the fields of /proc/<pid>/stat from the third (state) on; see proc_pid_stat(5)."""
    try:
        text = (_PROC / str(pid) / "stat").read_text()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None  # gone, or of somebody else on a machine that hides them (hidepid)
    return text.rpartition(")")[2].split()  # the name before may hold spaces and parentheses


def _seconds(lstart: str) -> float:
    return time.mktime(time.strptime(lstart.strip(), "%a %b %d %H:%M:%S %Y"))


def _output(*command: str) -> str:
    environment = {**os.environ, "LC_ALL": "C"}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=PS_TIMEOUT_S, env=environment, check=False
    )
    return done.stdout.strip()

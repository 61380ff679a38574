"""Ends the programs of a home once nobody uses it, even when its users were killed:

    python -m tracks_dagster.processes.reaper FOLDER NAME

Who uses FOLDER's NAME (the daemon, a web server) holds NAME.users shared. The kernel takes such a
lock back when its process is gone, so a reaper waits for its turn, which costs nothing, and then ends
the process groups that NAME.pid names: code servers and run workers are in them. Gangs are not, each
has a session of its own: one that trains continues and is adopted.

A reaper that was killed is replaced while the home is in use; killed together with the last user it
leaves something behind, which `unused` finds. PR_SET_PDEATHSIG does not do: it follows the thread that
forked, does not reach grandchildren, and does not exist on every system.
"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import IO

from tracks_dagster.processes.process import (
    Process,
    describe_holders,
    known_process,
    process_in,
    read_json,
    write_process,
)
from tracks_dagster.track.errors import OrchestratorError

LOCK_S_MAX = 300.0  # another command may be creating the storage, or stopping a daemon
TERM_S_MAX = 20.0  # between asking processes to end and killing them
POLL_S = 0.1
PROBES_MAX = 10


@contextmanager
def used(folder: Path, name: str) -> Iterator[None]:
    """Use FOLDER's NAME; it is ended when the last user has left. Raises OrchestratorError."""
    with (folder / f"{name}.users").open("w") as users:
        wait_for_lock(users, fcntl.LOCK_SH, f"another command to stop the {name}")
        try:
            yield
        finally:
            if _is_locked(users, fcntl.LOCK_EX):
                end_groups(folder, name)
            else:  # others use it; or the reaper was faster, and is waited for
                wait_for_lock(users, fcntl.LOCK_SH, f"the end of the {name}")


def ensure_reaper(folder: Path, name: str) -> None:
    """Start a reaper if none waits; cheap, call it often. Only for who uses FOLDER's NAME."""
    with (folder / f"{name}.reaper").open("w") as kept:
        if not _is_locked(kept, fcntl.LOCK_EX):
            return
    with (folder / "reaper.log").open("ab") as log:
        subprocess.run(  # it returns at once: what waits is its child, and no child of ours
            [
                sys.executable,
                "-P",  # no module of the folder where its caller works is imported
                "-m",
                "tracks_dagster.processes.reaper",
                str(folder),
                name,
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            timeout=LOCK_S_MAX,
            check=False,
        )


def unused(folder: Path, name: str) -> list[Process]:
    """Return the leaders of the groups of FOLDER's NAME that live and that nobody uses."""
    with (folder / f"{name}.users").open("w") as users:
        return groups(folder, name) if _is_locked(users, fcntl.LOCK_EX) else []


def groups(folder: Path, name: str) -> list[Process]:
    """Return the leaders of the living groups of FOLDER's NAME, the newest first.

    A leader may be gone: a daemon that was killed leaves its code servers and run workers. A file that
    is damaged names none.
    """
    path = folder / f"{name}.pid"
    newest = known_process(path)
    if newest is None:
        return []
    listed = (read_json(path) or {}).get("earlier")
    earlier = map(process_in, listed if isinstance(listed, list) else ())
    return [each for each in (newest, *earlier) if each is not None and each.group]


def add_group(folder: Path, name: str, process: Process) -> None:
    """Write down that `process` leads a group of FOLDER's NAME, beside those that live still."""
    earlier = [asdict(each) for each in groups(folder, name)]
    write_process(folder / f"{name}.pid", process, earlier=earlier)


def end_groups(folder: Path, name: str) -> None:
    """End every group of FOLDER's NAME."""
    for process in groups(folder, name):
        end_group(process)


def end_group(process: Process) -> None:
    """End a program and all that it started: first itself, then the rest, then by force."""
    _signal([process.pid] if process.lives else [], signal.SIGTERM)
    _wait_for_end(process, only_leader=True)
    _signal(process.group, signal.SIGTERM)
    _wait_for_end(process)
    _signal(process.group, signal.SIGKILL)
    _wait_for_end(process)


def wait_for_lock(file: IO[str], kind: int, what: str) -> None:
    """Take the lock within LOCK_S_MAX; raises OrchestratorError naming what it waited for, and whom."""
    give_up_at = time.monotonic() + LOCK_S_MAX
    while not _is_locked(file, kind):
        if time.monotonic() > give_up_at:
            who = describe_holders(Path(file.name)) or "one that is not listed here"
            raise OrchestratorError(
                f"Waited {LOCK_S_MAX:g} s for {what}; it is {who}. End it, then try again."
            )
        time.sleep(POLL_S)


def main(folder: Path, name: str) -> None:
    """Wait until nobody uses FOLDER's NAME, then end it; at once where another reaper waits."""
    with (folder / f"{name}.users").open("w") as users:
        with (folder / f"{name}.reaper").open("w") as kept:
            for _ in range(PROBES_MAX):  # who looks whether there is a reaper holds it for a moment
                if _is_locked(kept, fcntl.LOCK_EX):
                    break
                time.sleep(POLL_S)
            else:
                return
            fcntl.flock(users, fcntl.LOCK_EX)  # for as long as anybody uses it
        # Let go of first: who uses it next finds no reaper, and starts one.
        end_groups(folder, name)


def _is_locked(file: IO[str], kind: int) -> bool:
    """Take the lock if it is free; whether it was."""
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _wait_for_end(process: Process, *, only_leader: bool = False) -> None:
    give_up_at = time.monotonic() + TERM_S_MAX
    while process.lives or (process.group and not only_leader):
        if time.monotonic() > give_up_at:
            return
        time.sleep(POLL_S)


def _signal(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue  # it went by itself


if __name__ == "__main__":
    if os.fork() == 0:
        os.setsid()  # a signal to the command's group, Ctrl-C for one, is not for it
        main(Path(sys.argv[1]), sys.argv[2])

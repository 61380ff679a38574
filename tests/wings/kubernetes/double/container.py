"""A pod's container as a local process: its signals, its end, and everything that it started.

A container's end ends every process in it. Without a PID namespace, the double finds them by a mark
in their environment (Linux).
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from tests.wings.kubernetes.double.logs import LogPump

MARK = "KUBE_DOUBLE_POD"
WAIT_S_MAX = 10.0
DRAIN_S_MAX = 5.0  # for the log of what has ended to be whole


class Container:
    """One running container. uid: of its pod."""

    def __init__(
        self, uid: str, command: Sequence[str], environ: Mapping[str, str], folder: Path
    ) -> None:
        self._mark = f"{MARK}={uid}".encode()
        self._main = subprocess.Popen(
            list(command),
            cwd=folder,
            env={**environ, MARK: uid},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            bufsize=0,
            start_new_session=True,
        )
        self.log = folder / "log"
        self._read_out: threading.Event | None = None
        self._ended_at: float | None = None

    def pump_to(self, pump: LogPump) -> None:
        """Let what it writes be kept."""
        assert self._main.stdout is not None
        self._read_out = pump.take(self._main.stdout, self.log)  # type: ignore[arg-type]

    @property
    def pid(self) -> int:
        """The main process, a real pid of this machine."""
        return self._main.pid

    def poll(self) -> int | None:
        """Return the exit code as a kubelet writes it (128 + signal), None while it runs.

        A container has ended when its log is whole, too.
        """
        code = self._main.poll()
        if code is None:
            return None
        if self._ended_at is None:
            self._ended_at = time.monotonic()
            self._kill_others()
        whole = self._read_out is None or self._read_out.is_set()
        if not whole and time.monotonic() < self._ended_at + DRAIN_S_MAX:
            return None
        return 128 - code if code < 0 else code

    def terminate(self) -> None:
        """SIGTERM to the main process alone, as a runtime does."""
        with suppress(ProcessLookupError):
            os.kill(self._main.pid, signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL to all; returns when the main process is gone."""
        if self._main.poll() is None:
            self._main.kill()
            self._main.wait(WAIT_S_MAX)
        self._kill_others()

    def children(self) -> list[int]:
        """Return what the main process started, and what those did."""
        return [pid for pid in self._members() if pid != self._main.pid]

    def kill_child(self) -> int:
        """SIGKILL to the largest process that the main one started; returns its pid."""
        children = self.children()
        if not children:
            raise AssertionError(f"Container {self._mark.decode()} has no child to kill.")
        largest = max(children, key=_resident_pages)
        os.kill(largest, signal.SIGKILL)
        return largest

    def _kill_others(self) -> None:
        for pid in self._members():
            if pid != self._main.pid:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def _members(self) -> list[int]:
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with suppress(OSError):
                    if self._mark in (entry / "environ").read_bytes().split(b"\0"):
                        found.append(int(entry.name))
        return found


class Pretence:
    """A container without a process, for scale: it runs until a test says how it ends."""

    pid = 0
    log = Path(os.devnull)

    def __init__(self) -> None:
        self.code: int | None = None
        self.on_end: Callable[[], object] = lambda: None

    def end(self, code: int) -> None:
        """Take how it ends; the first word counts."""
        self.code = code if self.code is None else self.code
        self.on_end()

    def poll(self) -> int | None:
        """Return the code that it was given."""
        return self.code

    def terminate(self) -> None:
        """End as a process does that does not catch SIGTERM."""
        self.end(143)

    def kill(self) -> None:
        """End at once."""
        self.end(137)

    def children(self) -> list[int]:
        """None."""
        return []

    def kill_child(self) -> int:
        """A pretence has none; its own end is given by `finish`."""
        return 0


def _resident_pages(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError):
        return 0

"""The one code server of a home that is up, which the daemon starts and its web server uses as well.

Dagster's daemon has one of its own and starts another every minute, its web server has a third. Here
one is replaced when what it loaded has changed: the next one listens before the one before is ended.
No run depends on it, each is a process of its own.
"""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tracks_dagster.home.dagster_home import CODE_ADDRESS
from tracks_dagster.processes.warm import RUN_WORKERS

CODE_SERVER = "tracks_dagster.wings.embedded.edge.code_server"
READY_S_MAX = 300.0  # on a machine that is overloaded its imports take long
LOOK_EVERY_S = 5.0  # whether it lives, and whether the code has changed
START_AGAIN_S = 10.0  # after one that ended by itself
END_S_MAX = 15.0  # for one that is ended, to answer what it was asked
POLL_S = 0.05

_log = logging.getLogger(__name__)

Stamps = Mapping[str, tuple[int, int]]  # files, each with its time and size


class CodeServer:
    """Starts the code server and looks after it.

    sockets: how the names of its addresses begin; stamps: what it loads, as it is now.
    """

    def __init__(self, sockets: Path, *, root: Path, stamps: Callable[[], Stamps]) -> None:
        self._sockets = sockets
        self._root = root
        self._stamps = stamps
        self._count = 0
        self._address = (
            sockets  # of the newest: one that ends removes its own, so each has another one
        )
        self._is_found = False  # whether the newest serves under the name by which it is looked for
        self._code: Stamps = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._again_at = 0.0

    def start(self) -> None:
        """Start one; it has yet to import what it serves."""
        self._code, self._is_found = self._stamps(), False
        self._count += 1
        self._address = self._sockets.with_suffix(f"{CODE_ADDRESS}-{self._count}")
        self._address.unlink(missing_ok=True)
        warm_address = self._sockets.with_suffix(RUN_WORKERS)
        self._process = subprocess.Popen(
            [sys.executable, "-m", CODE_SERVER, str(self._address), str(warm_address)],
            cwd=self._root,
            stdin=subprocess.PIPE,  # which ends with this process, and the code server with it
        )

    def wait(self) -> bool:
        """Let it be found once it listens; False where it has ended, or does not in READY_S_MAX."""
        give_up_at = time.monotonic() + READY_S_MAX
        while not self._address.exists():
            if self._has_ended or time.monotonic() > give_up_at:
                return False
            time.sleep(POLL_S)
        link = self._sockets.with_suffix(f"{CODE_ADDRESS}-new")
        link.unlink(missing_ok=True)
        link.symlink_to(self._address.name)
        link.replace(self._sockets.with_suffix(CODE_ADDRESS))
        self._is_found = True
        return True

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Replace it where it has ended, or its code has changed, for as long as the context lasts."""
        is_over = threading.Event()

        def keep() -> None:
            while not is_over.wait(LOOK_EVERY_S):
                try:
                    self.keep()
                except OSError:
                    _log.exception(
                        "The code server could not be checked; the next look tries again."
                    )

        thread = threading.Thread(target=keep, name="code-server", daemon=True)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join(END_S_MAX)

    def keep(self) -> None:
        """Start another one where this one has ended, or its code has changed; one that does not come
        to listen replaces none that serves. Where none serves it is waited for, however long."""
        if not (self._has_ended or self._is_found) and self.wait():
            return
        has_ended = self._has_ended
        serves = self._is_found and not has_ended
        if time.monotonic() < self._again_at or not (has_ended or self._stamps() != self._code):
            return
        if has_ended:
            _log.warning("The code server has ended; starting another one.")
        before, code, address = self._process, self._code, self._address
        self.start()
        is_ready = self.wait()
        if not (serves and is_ready):
            self._again_at = time.monotonic() + START_AGAIN_S
        if serves and not is_ready:
            _log.error(
                "A code server for the changed code did not start; the one before serves on."
            )
            _end(self._process)
            self._process, self._code, self._address = before, code, address
            self._is_found = True
            return
        _end(before)
        address.unlink(missing_ok=True)

    def close(self) -> None:
        """End it, and leave no address, of the warm parents neither."""
        _end(self._process)
        for path in self._sockets.parent.glob(f"{self._sockets.name}.*"):
            path.unlink(missing_ok=True)

    @property
    def _has_ended(self) -> bool:
        return self._process is None or self._process.poll() is not None


def _end(process: subprocess.Popen[bytes] | None) -> None:
    """Ask it to end, and see to it that it does."""
    if process is None:
        return
    process.terminate()
    try:
        process.wait(END_S_MAX)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdin is not None:
        process.stdin.close()

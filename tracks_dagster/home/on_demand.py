"""Starts a server of ours when somebody first connects: until then it is a socket, and costs nothing.

This process listens and never accepts. The server inherits the socket, and answers what waits there;
when it ends for want of visitors, the next one starts it again. One that fails is started again too,
but not at once time after time.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

ADDRESS = "127.0.0.1"
BOARD_FILE = "board.json"  # in the home: which process answers for the board, and where
IDLE_S_MAX = 600.0  # without a request, after which such a server ends by itself
PORTS_TRIED_MAX = 20
BACKLOG = 128
AGAIN_S_MIN = 5.0  # between two starts
END_S_MAX = 10.0  # from SIGTERM to SIGKILL


class OnDemand:
    """A server that its first visitor starts. command: run with `--fd N`, the socket, appended."""

    def __init__(
        self,
        listener: socket.socket,
        command: Sequence[str],
        *,
        environment: Mapping[str, str],
        log: Path,
    ) -> None:
        self._listener = listener
        self._command = list(command)
        self._environment = dict(environment)
        self._log = log
        self._child: subprocess.Popen[bytes] | None = None
        self._not_before = 0.0

    @property
    def address(self) -> str:
        """Where it answers."""
        return f"http://{ADDRESS}:{self._listener.getsockname()[1]}"

    def wait(self, seconds: float) -> None:
        """Wait that long, and start the server if somebody connects meanwhile while none runs."""
        give_up_at = time.monotonic() + seconds
        while (left := give_up_at - time.monotonic()) > 0:
            if self._lives or time.monotonic() < self._not_before:
                time.sleep(min(left, 0.2))
            elif select.select([self._listener], [], [], left)[0]:
                self._start()

    @property
    def _lives(self) -> bool:
        return self._child is not None and self._child.poll() is None

    def _start(self) -> None:
        fd = self._listener.fileno()
        self._not_before = time.monotonic() + AGAIN_S_MIN
        with self._log.open("ab") as log:
            self._child = subprocess.Popen(
                [*self._command, "--fd", str(fd)],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=(fd,),
                start_new_session=True,  # Ctrl-C is for who started it, who then ends it
            )

    def end(self) -> None:
        """End the server, if one runs."""
        if self._child is None:
            return
        with suppress(ProcessLookupError):
            self._child.send_signal(signal.SIGTERM)
        try:
            self._child.wait(END_S_MAX)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()


@contextmanager
def on_demand(
    near_port: int, arguments: Sequence[str], *, environment: Mapping[str, str], log: Path
) -> Iterator[OnDemand]:
    """Hold a server of `tracks ARGUMENTS` on the next free port after `near_port`, else on any."""
    with _listen(near_port) as listener:
        # With -P: no module of the folder where `tracks up` was called is imported.
        command = [sys.executable, "-P", "-m", "tracks_dagster", *arguments]
        server = OnDemand(listener, command, environment={**os.environ, **environment}, log=log)
        try:
            yield server
        finally:
            server.end()


def _listen(near_port: int) -> socket.socket:
    after = range(near_port + 1, min(near_port + 1 + PORTS_TRIED_MAX, 65536)) if near_port else ()
    for port in (*after, 0):
        found = socket.socket()
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            found.bind((ADDRESS, port))
        except OSError:
            found.close()
            continue
        found.listen(BACKLOG)
        return found
    raise AssertionError("the kernel always has a free port")

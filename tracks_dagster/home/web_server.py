"""Dagster's web server of a home on one port: started again when it died, no matter who killed it.

It counts as there once it answers, and once the port is its own: what answers there may be another
command's server.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from pathlib import Path

from tracks_dagster.processes import reaper
from tracks_dagster.processes.process import Process, listens, write_process
from tracks_dagster.track.errors import OrchestratorError
from tracks_dagster.track.json_text import parse_json

ADDRESS = "127.0.0.1"
ADDRESS_FILE = "webserver.json"  # which web server answers, and where
ASK_S_MAX = 2.0  # who asks keeps a daemon meanwhile
_LOADED = "{workspaceOrError{... on Workspace{locationEntries{locationOrLoadError{__typename}}}}}"


class WebServer:
    """One of them. start: starts the program and returns which process it is.

    answers: whether it has answered since it was started last.
    """

    def __init__(
        self, folder: Path, port: int, *, start: Callable[[], Process], why_ended: Callable[[], str]
    ) -> None:
        self.address = f"http://{ADDRESS}:{port}"
        self.answers = False
        self._folder = folder
        self._port = port
        self._start = start
        self._why_ended = why_ended
        self._process: Process | None = None

    def ensure(self) -> bool:
        """Start it unless it lives; True when this call started it. Cheap: call it often.

        Raises OrchestratorError where it ends at once.
        """
        if self._process is None or not self._process.lives:
            self.answers = False
            name = server_name(self._port)
            reaper.ensure_reaper(self._folder, name)
            self._process = self._start()
            reaper.add_group(self._folder, name, self._process)
            return True
        if not self.answers and listens(self._process, self._port) and self._is_answering():
            write_process(self._folder / ADDRESS_FILE, self._process, address=self.address)
            self.answers = True
        return False

    def why_ended(self) -> str:
        """Say why the one that was started before ended, as far as that is known."""
        return f"Dagster's web server was gone ({self._why_ended()}); started another one"

    def takes_launches(self) -> bool:
        """Whether it has loaded the code; until then it refuses whatever is launched there."""
        from urllib.request import Request, urlopen

        headers = {"Content-Type": "application/json"}
        request = Request(
            f"{self.address}/graphql", json.dumps({"query": _LOADED}).encode(), headers
        )
        try:
            with urlopen(request, timeout=ASK_S_MAX) as reply:
                entries = parse_json(reply.read())["data"]["workspaceOrError"]["locationEntries"]
                loaded = [(each["locationOrLoadError"] or {})["__typename"] for each in entries]
        except (OSError, ValueError, KeyError, TypeError):
            return False
        return set(loaded) == {"RepositoryLocation"}

    def _is_answering(self) -> bool:
        from urllib.request import urlopen  # reading commands import this module and ask no address

        try:
            with urlopen(f"{self.address}/server_info", timeout=ASK_S_MAX):
                return True
        except OSError:  # URLError is one
            return False


def server_name(port: int) -> str:
    """Return under which name a home knows its web server on that port."""
    return f"webserver-{port}"


def check_port(port: int) -> int:
    """Return the port if nothing listens there; raises OrchestratorError."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((ADDRESS, port))
        except (OSError, OverflowError) as error:
            raise OrchestratorError(
                f"Dagster's web server cannot listen on {ADDRESS}:{port}: {error}. Where another "
                "`tracks up`, or another program, does, name another port: `tracks up --port PORT`."
            ) from error
        found: int = probe.getsockname()[1]
        return found

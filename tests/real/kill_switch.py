"""Ends this process by SIGKILL at a chosen call of its object store to the world outside.

Counted is what a store really asks for: of the operating system, everything below one folder; of an
S3 server, every request that is sent, by whatever part of the SDK.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import Any, TypeVar

from botocore.httpsession import URLLib3Session

from tracks_dagster.stores import local

BEFORE, WITHIN, AFTER = "before", "within", "after"
ON_PATHS = ("open", "mkdir", "link", "replace", "rename", "unlink", "rmdir", "scandir", "stat")
ON_DESCRIPTORS = ("write", "fsync", "fstat", "close")
# What the interpreter itself reports of them, no matter who calls: nothing may pass the switch by.
AUDITED = {
    "open": "open",
    "os.mkdir": "mkdir",
    "os.link": "link",
    "os.rename": "replace",
    "os.remove": "unlink",
    "os.rmdir": "rmdir",
    "os.scandir": "scandir",
}

T = TypeVar("T")


class KillSwitch:
    """Kills at call number `at`, 1-based; 0 never. `calls` are the names of those made so far.

    moment: before the call, after it, or within: with half of a write's bytes written (of a call
    that writes nothing, before it).
    """

    def __init__(self, at: int, moment: str) -> None:
        self.calls: list[str] = []
        self._audited: list[str] = []
        self._at = at
        self._moment = moment
        self._lock = threading.Lock()

    def watch_folder(self, root: Path) -> None:
        """Count what this process does below `root`, from now on and for good."""
        below = f"{root}{os.sep}"
        descriptors: set[int] = set()

        def is_below(path: Any) -> bool:
            is_path = isinstance(path, str | os.PathLike)
            return is_path and f"{os.fspath(path)}{os.sep}".startswith(below)

        def on_path(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
            def call(path: Any, *rest: Any, **named: Any) -> Any:
                if not is_below(path):
                    return real(path, *rest, **named)
                result = self._pass(name, lambda: real(path, *rest, **named))
                if name == "open":
                    descriptors.add(result)
                return result

            return call

        def on_descriptor(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
            def call(descriptor: int, *rest: Any) -> Any:
                if descriptor not in descriptors:
                    return real(descriptor, *rest)
                if name == "close":
                    descriptors.discard(descriptor)
                half = None
                if name == "write":
                    data = rest[0]
                    half = lambda: real(descriptor, data[: len(data) // 2])  # noqa: E731
                return self._pass(name, lambda: real(descriptor, *rest), half)

            return call

        for name in ON_PATHS:
            setattr(os, name, on_path(name, getattr(os, name)))
        for name in ON_DESCRIPTORS:
            setattr(os, name, on_descriptor(name, getattr(os, name)))
        local.FileIO = _counted_files(self._pass)  # type: ignore[misc, assignment]

        def audit(event: str, arguments: tuple[Any, ...]) -> None:
            if event in AUDITED and is_below(arguments[0]):
                self._audited.append(AUDITED[event])

        sys.addaudithook(audit)

    def watch_requests(self) -> None:
        """Count the requests of this process's SDK, from now on and for good."""
        real = URLLib3Session.send

        def send(session: URLLib3Session, request: Any) -> Any:
            return self._pass(str(request.method), lambda: real(session, request))

        URLLib3Session.send = send  # type: ignore[method-assign, assignment]

    @property
    def missed(self) -> Counter[str]:
        """Return the calls below the folder that the interpreter saw and the switch did not."""
        names = {"open to read": "open", "rename": "replace"}
        return Counter(self._audited) - Counter(names.get(name, name) for name in self.calls)

    def _pass(self, name: str, call: Callable[[], T], half: Callable[[], T] | None = None) -> T:
        with self._lock:
            self.calls.append(name)
            is_it = len(self.calls) == self._at
        if not is_it:
            return call()
        if self._moment == WITHIN and half is not None:
            half()
        if self._moment == AFTER:
            with suppress(Exception):
                call()
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("SIGKILL does not return")


def _counted_files(count: Callable[..., Any]) -> type[FileIO]:
    """Return a FileIO whose system calls pass the switch."""

    class Counted(FileIO):
        def __init__(self, path: Any) -> None:
            count("open to read", lambda: super(Counted, self).__init__(path))

        def readall(self) -> bytes:
            return bytes(count("read", super().readall))

        def readinto(self, buffer: Any) -> int:
            return int(count("read", lambda: super(Counted, self).readinto(buffer)))

    return Counted

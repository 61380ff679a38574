"""What containers write: one thread reads every pipe and keeps lines with their times, as CRI does.

A log is bounded: past LOG_BYTES_MAX it starts over, as a kubelet's rotation does; a longer line than
LINE_BYTES_MAX is cut into several.
"""

from __future__ import annotations

import os
import selectors
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

LOG_BYTES_MAX = 8 * 1024 * 1024
LINE_BYTES_MAX = 16 * 1024
WORDS_LINES_MAX, WORDS_BYTES_MAX = 80, 2048
READ_BYTES = 64 * 1024
TICK_S = 0.05


class LogPump:
    """Reads the pipes that it is given until each of them ends, or it is closed."""

    def __init__(self) -> None:
        self._given: deque[tuple[BinaryIO, _Log]] = deque()
        self._selector = selectors.DefaultSelector()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._pump, name="kube-double-logs", daemon=True)
        self._thread.start()

    def take(self, pipe: BinaryIO, path: Path) -> threading.Event:
        """Read that pipe from now on; the log exists at once. The event is set at the pipe's end."""
        log = _Log(path)
        os.set_blocking(pipe.fileno(), False)
        self._given.append((pipe, log))
        return log.whole

    def close(self) -> None:
        """Stop reading; what still writes gets SIGPIPE."""
        self._over.set()
        self._thread.join(10.0)
        for key in list(self._selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]
        self._selector.close()
        for pipe, _ in self._given:
            pipe.close()

    def _pump(self) -> None:
        while not self._over.is_set():
            while self._given:
                pipe, log = self._given.popleft()
                self._selector.register(pipe, selectors.EVENT_READ, log)
            for key, _ in self._selector.select(TICK_S):
                self._read(key.fileobj, key.data)  # type: ignore[arg-type]
            if not self._selector.get_map():
                self._over.wait(TICK_S)

    def _read(self, pipe: BinaryIO, log: _Log) -> None:
        data = os.read(pipe.fileno(), READ_BYTES)
        log.write(data)
        if not data:
            self._selector.unregister(pipe)
            pipe.close()
            log.whole.set()


def last_words(path: Path) -> str:
    """Return the end of a log as a termination message takes it: 80 lines, 2048 bytes."""
    lines = list(LogReader(path, timestamps=False, since="").last(WORDS_LINES_MAX))
    return b"".join(lines)[-WORDS_BYTES_MAX:].decode(errors="replace")


class _Log:
    def __init__(self, path: Path) -> None:
        self._path, self._half, self._size = path, b"", 0
        self.whole = threading.Event()
        path.touch()

    def write(self, data: bytes) -> None:
        """Keep whole lines; no data is the end, and then a half line is a line."""
        *lines, half = (self._half + data).split(b"\n")
        while len(half) > LINE_BYTES_MAX:
            lines.append(half[:LINE_BYTES_MAX])
            half = half[LINE_BYTES_MAX:]
        if not data and half:
            lines, half = [*lines, half], b""
        self._half = half
        if not lines:
            return
        at = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f000Z ").encode()
        kept = b"".join(at + line + b"\n" for line in lines)
        fresh = self._size + len(kept) > LOG_BYTES_MAX
        self._size = len(kept) + (0 if fresh else self._size)
        with suppress(FileNotFoundError), self._path.open("wb" if fresh else "ab") as file:
            file.write(kept)


class LogReader:
    """Reads one kept log from its begin, or its last lines, and then what comes."""

    def __init__(self, path: Path, *, timestamps: bool, since: str) -> None:
        self._path, self._timestamps, self._since, self._at = path, timestamps, since, 0

    def last(self, lines: int | None) -> Iterator[bytes]:
        """Yield what there is, the last lines only if a number is given."""
        kept: deque[bytes] = deque(self.fresh(), maxlen=lines)
        yield from kept

    def fresh(self) -> Iterator[bytes]:
        """Yield the whole lines that were not yielded yet."""
        with suppress(FileNotFoundError), self._path.open("rb") as file:
            if file.seek(0, os.SEEK_END) < self._at:
                self._at = 0  # it was rotated
            file.seek(self._at)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                self._at += len(line)
                at, _, text = line.partition(b" ")
                if at.decode() >= self._since:
                    yield line if self._timestamps else text

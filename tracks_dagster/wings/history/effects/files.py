"""Sources that are lines of a file, or of a command that prints them."""

from __future__ import annotations

import gzip
import os
import subprocess
import tempfile
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO, cast

from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.wings.history import slurm
from tracks_dagster.wings.history.source import BadRow, Read

LINE_CHARACTERS_MAX = 4 * 1024 * 1024
PROGRAM_S_MAX = 3600.0  # until one of Slurm's programs has printed all
PROGRAM_WORDS_MAX = 500  # of what it says on stderr, in bytes
WITHOUT_ACCOUNTING = (
    "Where accounting is off, Slurm's controller remembers a job that ended for some minutes only "
    "(MinJobAge): why, where and how long earlier ones ran is lost, and nothing of them imported; of "
    "nodes, `scontrol show node -o > FILE` and import that"
)
PROGRESS_BYTES = 1024 * 1024  # between two words on how far the reading is
OnBytes = Callable[[int], object]  # that many more were read

ReadLines = Callable[[Iterable[str]], Iterator[Read]]


def _ignore(count: int) -> None:
    """Do nothing with how far the reading is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinesOfFile:
    """A file of lines, also one that ends in .gz. Implements `History`."""

    system: str
    path: Path
    parse: ReadLines
    on_bytes: OnBytes = _ignore

    @property
    def origin(self) -> str:
        return str(self.path)

    def read(self) -> Iterator[Read]:
        is_any = False
        try:
            for each in self.parse(self._lines()):
                is_any = True
                yield each
        except (EOFError, zlib.error) as error:
            why = f"{self.path} is cut or damaged: {error}"
            if not is_any:
                raise InvalidInput(f"{why}.") from error
            yield BadRow(line=0, why=f"{why}; what follows comes by an import of the whole file")
        except OSError as error:
            raise InvalidInput(f"{self.path} cannot be read: {error.strerror or error}.") from error
        except InvalidInput as error:
            raise InvalidInput(f"{self.path} cannot be imported. {error}") from error

    def _lines(self) -> Iterator[str]:
        with self.path.open("rb") as raw, _unpacked(raw, self.path) as file:
            before = 0
            while line := file.readline(LINE_CHARACTERS_MAX):
                yield line.decode("utf-8", "replace")
                if (at := raw.tell()) - before > PROGRESS_BYTES:
                    self.on_bytes(at - before)
                    before = at
            self.on_bytes(raw.tell() - before)


def changed_at(path: Path) -> datetime:
    """Return when the file was written, so when its lines were printed; raises InvalidInput."""
    try:
        return datetime.fromtimestamp(path.stat().st_mtime, UTC)
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror or error}.") from error


def _unpacked(raw: BinaryIO, path: Path) -> BinaryIO:
    return cast(BinaryIO, gzip.GzipFile(fileobj=raw)) if path.suffix == ".gz" else raw


@dataclass(slots=True, kw_only=True)
class LinesOfSlurm:
    """What this machine's own `sacct`, and then `scontrol`, print now. Implements `History`.

    limit_s: within which each must be done; one that hangs is ended then. What one printed before it
    failed counts, and its words are a bad row. is_cut: whether `sacct` failed after its first row, so
    that jobs are missing.
    """

    since: datetime
    parse: ReadLines
    system: str = "slurm"
    limit_s: float = PROGRAM_S_MAX
    is_cut: bool = field(default=False, init=False)

    @property
    def origin(self) -> str:
        return f"sacct -S {self.since:%Y-%m-%dT%H:%M:%S}"

    def read(self) -> Iterator[Read]:
        command = ["sacct", "-D", "-P", "-a", "--delimiter=\x1f", f"--format={slurm.FIELDS}"]
        command += ["-S", f"{self.since:%Y-%m-%dT%H:%M:%S}"]
        is_any = False
        try:
            for each in self._printed(command):
                is_any = True
                yield each
        except FileNotFoundError as error:
            raise InvalidInput(
                "There is no `sacct` on this machine. Run `tracks import` where Slurm's client is, or "
                f"print a file there and name it: {slurm.COMMAND}"
            ) from error
        except (OSError, ValueError) as error:
            if not is_any:
                raise InvalidInput(f"sacct failed: {error}. {WITHOUT_ACCOUNTING}.") from error
            self.is_cut = True
            yield _of_program(command, str(error))
        nodes = ["scontrol", "show", "node", "-o"]
        try:
            yield from self._printed(nodes)
        except (OSError, ValueError) as error:  # the jobs are there without them
            yield _of_program(nodes, str(error))

    def _printed(self, command: Sequence[str]) -> Iterator[Read]:
        """Yield what a program prints; raises OSError where there is none, ValueError as it fails."""
        with (
            tempfile.TemporaryFile() as words,  # a pipe that nobody reads would stop it once it is full
            subprocess.Popen(
                command,
                env={**os.environ, "TZ": "UTC", "SLURM_TIME_FORMAT": "standard"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=words,
                encoding="utf-8",
                errors="replace",
            ) as process,
        ):
            assert process.stdout is not None, "it is a pipe"
            timer = threading.Timer(self.limit_s, process.kill)
            timer.daemon = True  # a command that is stopped does not wait for it
            timer.start()
            try:
                yield from self.parse(process.stdout)
            except InvalidInput as error:
                if not process.stdout.read(1):  # of no line at all its end says more
                    self._check_ended(process, timer, words)
                raise ValueError(str(error)) from error
            else:
                warning = self._check_ended(process, timer, words)
            finally:
                timer.cancel()
                process.kill()
        if warning:
            yield _of_program(command, warning)

    def _check_ended(
        self, process: subprocess.Popen[str], timer: threading.Timer, words: BinaryIO
    ) -> str:
        """Wait for its end, return its words on stderr; raises ValueError where it failed."""
        code = process.wait()
        words.seek(0)
        found = words.read(PROGRAM_WORDS_MAX).decode("utf-8", "replace").strip()
        if timer.finished.is_set():
            raise ValueError(f"it was not done after {self.limit_s:g} s, and was ended")
        if code != 0:
            how = f"ended with exit code {code}" if code > 0 else f"was ended by signal {-code}"
            raise ValueError(found or f"it {how}")
        return found


def _of_program(command: Sequence[str], why: str) -> BadRow:
    return BadRow(line=0, why=why, file=" ".join(command[:3]))

"""The parent of a trainer that knows nothing of us: `python -m …training.projects.command ARGV…`.

One parent for each rank. It starts the command (a Python script or `-m` in its own interpreter), which
speaks by files and exit codes only, and does for it what a script does through `attempt`: restores,
commits, reports, obeys SIGTERM.

What the command finds in its environment, beside torchrun's variables:

    TRACKS_RESUME_FOLDER   the verified folder to resume from; empty for a fresh start
    TRACKS_RESUME_STEP     its step; 0
    TRACKS_CHECKPOINTS     where it publishes: a folder that is renamed to `step-<n>` is whole, and is
                           committed and removed. Other names are its own. Every rank publishes every
                           step, an empty folder where it has nothing to add.
    TRACKS_METRICS         a file of JSON lines that rank 0 appends to: {"step": 41, "loss": 2.31, …};
                           "last": true beside them where it stops before the config's last step

SIGTERM reaches the command alone, not its children: save, publish, and end with 0 or 75 (or by the
signal). Any other end but 0 is a failure, and the rank ends as the command did, without a last word:
what it printed says more.
"""

from __future__ import annotations

import faulthandler
import math
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tracks_dagster.track import names
from tracks_dagster.track.errors import RankLost, TrainingError
from tracks_dagster.track.json_text import parse_json
from tracks_dagster.track.records import Json
from tracks_dagster.training import attempt
from tracks_dagster.training.attempt import Attempt
from tracks_dagster.training.folder_steps import FolderSteps
from tracks_dagster.training.journal import complain
from tracks_dagster.training.last_word import ChildFailed
from tracks_dagster.training.projects.code import command_line, is_python
from tracks_dagster.training.projects.watched import Watched, lay_back

POLL_S = 0.2
STILL_S = 0.5  # without a change, for `tracks conform`
END_S_MAX = 10.0  # how long a command may take to end when its parent must
LINES_MAX = 1000  # of metrics, taken in at one look
LINE_BYTES_MAX = 64 * 1024
COMPLAINTS_MAX = 10  # about lines that cannot be read
# A command that reports no steps looks like one that hangs. After it reported one, the next may
# take as long as a save.
UNREPORTED_S_MAX = 30 * 24 * 3600.0
REPORTED_S_MAX = 900.0
OBSERVING = "tracks_dagster.training.observing"
PUBLISHED = re.compile(r"step-(\d{1,12})")
_OBEYED = frozenset({0, names.EXIT_DRAINED, -signal.SIGTERM, 128 + signal.SIGTERM})
_OURS = frozenset({names.EXIT_STARTED_BEFORE, names.EXIT_DRAINED, names.EXIT_FENCED})


def main(argv: Sequence[str]) -> int:
    """Run `argv` as this rank's trainer; returns the exit code of this process, or ends by a signal."""
    if not argv:
        print(
            "Name the command: python -m tracks_dagster.training.projects.command ARGV…",
            file=sys.stderr,
        )
        return 2
    try:
        with attempt.join(is_parent=True) as a:
            follow(a, command_line(argv, None))
    except ChildFailed as failed:
        return _end_as(failed.returncode)
    return 0


def follow(a: Attempt, argv: Sequence[str]) -> None:
    """Train the attempt by a command, to its end.

    Raises ChildFailed where this rank's command failed, RankLost where another's did, TrainingError
    for steps out of order, Drained after SIGTERM, and what a commit raises.
    """
    resumed = a.folder()
    box = Box(a.work / "command", a.rank)
    patterns = a.folder_steps.watch
    if patterns and resumed is not None:
        lay_back(resumed, Path.cwd())
    watched = Watched(patterns, Path.cwd(), box.checkpoints) if patterns else None
    environment = {**os.environ, **box.environment(resumed, a.folder_steps.saver.saved_step)}
    if a.world_size > 1:  # the parents talk on the port that the launcher gave
        environment["MASTER_PORT"] = str(a.agree(_free_port))
    for name in (names.ENV_STORE, names.ENV_RUN_ID, names.ENV_ATTEMPT_ID, names.ENV_OPENED_SEQ):
        environment.pop(name, None)  # it has joined already: by this process
    with _child(_observed(argv), environment) as child:
        _Watch(a, child, box, watched).watch()


def _observed(argv: Sequence[str]) -> Sequence[str]:
    """Return what starts the command, looked on where `tracks conform` asks for it."""
    is_ours = argv[0] == sys.executable or is_python(argv)
    if names.ENV_OBSERVE not in os.environ or not is_ours:
        return argv
    return [argv[0], "-m", OBSERVING, *argv[1:]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankNow:
    """What one rank's parent sees. code: of Popen; lines: of metrics, rank 0's count."""

    code: int | None
    is_stopping: bool
    published: tuple[int, ...]
    lines: tuple[Mapping[str, Json], ...]

    def to_json(self) -> Json:
        """Return it as JSON."""
        return [self.code, self.is_stopping, list(self.published), list(self.lines)]

    @classmethod
    def from_json(cls, stored: Json) -> RankNow:
        """Return what another rank sees."""
        code, is_stopping, published, lines = stored
        return cls(
            code=code, is_stopping=is_stopping, published=tuple(published), lines=tuple(lines)
        )


class _Watch:
    """Follows the commands of all ranks together; every decision is made from what all of them see."""

    def __init__(
        self, a: Attempt, child: subprocess.Popen[bytes], box: Box, watched: Watched | None = None
    ) -> None:
        self._a = a
        self._watched = watched
        self._steps: FolderSteps = a.folder_steps
        self._child = child
        self._box = box
        self._committed: set[int] = set()
        self._failed: set[int] = set()  # steps whose commit failed: the next is tried instead
        self._is_stopping = False
        self._has_reported = False
        # A folder is whole once it has its name; where it is tried whether that is so, it has to show.
        self._still_s = STILL_S if names.ENV_OBSERVE in os.environ else 0.0

    def watch(self) -> None:
        """Take in what the commands do until all have ended: what bounds it is the attempt."""
        self._steps.expect(UNREPORTED_S_MAX)
        while True:
            code = self._child.poll()  # before the look: what it published last is seen
            if self._watched is not None and self._a.rank == 0:
                self._watched.publish(code)
            lines = self._box.new_lines() if self._a.rank == 0 else ()
            now = RankNow(
                code=code,
                is_stopping=self._steps.is_asked_to_stop,
                # After the lines: what came before them is seen.
                published=self._box.published(still_s=self._still_s if code is None else 0.0),
                lines=lines,
            )
            all_now = [RankNow.from_json(each) for each in self._a.gather(now.to_json())]
            self._committed = set()
            self._take_in(all_now)
            if all(each.code is not None for each in all_now) and not all_now[0].lines:
                break
            time.sleep(POLL_S)
        if self._is_stopping:
            self._steps.drain()

    def _take_in(self, all_now: Sequence[RankNow]) -> None:
        if any(each.is_stopping for each in all_now) and not self._is_stopping:
            self._is_stopping = True
            with suppress(ProcessLookupError):
                self._child.send_signal(signal.SIGTERM)
        for line in all_now[0].lines:
            self._commit(all_now, below=line["step"])  # in the order in which they were made
            self._report(line)
        failed = [(rank, each.code) for rank, each in enumerate(all_now) if self._is_bad(each.code)]
        is_over = all(each.code is not None for each in all_now)
        self._commit(all_now, is_last=is_over or bool(failed), is_done=is_over and not failed)
        if failed:
            rank, code = failed[0]
            if self._is_bad(all_now[self._a.rank].code):
                raise ChildFailed(all_now[self._a.rank].code or 1)
            raise RankLost(f"The command of rank {rank} ended {describe_end(code)}.")

    def _is_bad(self, code: int | None) -> bool:
        return code is not None and code not in (_OBEYED if self._is_stopping else (0,))

    def _report(self, line: Mapping[str, Json]) -> None:
        step, loss = line["step"], line["loss"]
        if line["last"]:
            self._steps.say_last()
        if line["last"] and loss is None and step == self._steps.last_ended:
            return
        if self._steps.begun < step <= self._steps.last_ended and not (
            loss is not None and self._steps.may_report(step)
        ):
            if self._a.rank == 0:
                newest = self._steps.last_ended
                self._box.complain(
                    f"has step {step} after step {newest}; write each once, in order"
                )
            return
        if step != self._steps.last_ended:
            self._steps.ends(step, last=None)
        if loss is not None:
            self._steps.report(step, float(loss), line["metrics"])
        self._has_reported = True
        self._steps.expect(REPORTED_S_MAX)

    def _commit(
        self,
        all_now: Sequence[RankNow],
        *,
        is_last: bool = False,
        is_done: bool = False,
        below: int | None = None,
    ) -> None:
        """Commit what every rank has published, oldest first; at the end what failed before, too.

        is_done: the commands have ended well, so what is left is the final checkpoint. While one runs,
        nobody knows whether more will come, and its last folder counts as any other.
        below: of steps before this one only.
        """
        if (
            self._watched is not None
        ):  # what rank 0 sees in the trainer's folder is of the whole gang
            self._box.add_empty(all_now[0].published)
            all_now = [replace(each, published=all_now[0].published) for each in all_now]
        shared = set.intersection(*(set(each.published) for each in all_now))
        open_steps = shared - self._committed - (set() if is_last else self._failed)
        due = sorted(step for step in open_steps if below is None or step < below)
        for step in due:
            if step > self._steps.last_ended:
                self._steps.ends(step, last=None)
            elif step <= self._steps.saver.saved_step:
                raise TrainingError(
                    f"The command published step {step} and step {self._steps.saver.saved_step} is "
                    "committed: publish steps in order, and load TRACKS_RESUME_FOLDER at the start."
                )
            trigger = "sigterm" if self._is_stopping else "final" if is_done else "demand"
            trigger = trigger if step == due[-1] else "demand"
            if self._steps.commit(step, self._box.folder(step), trigger=trigger):
                self._committed.add(step)  # in this look: the next does not see it any more
                self._box.remove(step)
            else:
                self._failed.add(step)
            self._steps.expect(REPORTED_S_MAX if self._has_reported else UNREPORTED_S_MAX)
        left = sorted({step for each in all_now for step in each.published} - shared)
        if left and is_last and all(each.code == 0 for each in all_now):
            raise TrainingError(
                f"Step {left[0]} was published by some ranks and not by all: every rank publishes "
                "every step, an empty folder where it has nothing to add."
            )


class Box:
    """The files through which one rank's command and its parent speak."""

    def __init__(self, folder: Path, rank: int) -> None:
        self.checkpoints = folder / f"rank-{rank}" / "checkpoints"
        self.checkpoints.mkdir(parents=True, exist_ok=True)
        self.metrics = folder / f"rank-{rank}" / "metrics.jsonl"
        self._offset = 0
        self._is_cut = False  # in the middle of a line that is too long
        self._complaints = 0

    def environment(self, resumed: Path | None, step: int) -> dict[str, str]:
        """Return the environment that the command gets."""
        return {
            names.ENV_RESUME_FOLDER: str(resumed or ""),
            names.ENV_RESUME_STEP: str(step),
            names.ENV_CHECKPOINTS: str(self.checkpoints),
            names.ENV_METRICS: str(self.metrics),
        }

    def published(self, *, still_s: float = 0.0) -> tuple[int, ...]:
        """Return the steps that lie here whole, in order. still_s: and have not changed for so long."""
        since = time.time() - still_s
        found = (
            PUBLISHED.fullmatch(entry.name)
            for entry in self.checkpoints.iterdir()
            if not still_s or _changed_at(entry) < since
        )
        return tuple(sorted(int(match[1]) for match in found if match is not None))

    def folder(self, step: int) -> Path:
        """Return where a published step lies."""
        return next(
            entry
            for entry in self.checkpoints.iterdir()
            if (match := PUBLISHED.fullmatch(entry.name)) and int(match[1]) == step
        )

    def add_empty(self, steps: Sequence[int]) -> None:
        """Publish nothing of these steps, where nothing is published of them."""
        for step in set(steps) - set(self.published()):
            (self.checkpoints / f"step-{step}").mkdir()

    def remove(self, step: int) -> None:
        """Make room: the step is committed. First out of sight, so that half of it is never seen."""
        gone = self.checkpoints / f".committed-{step}"
        with suppress(OSError):  # room is all that is lost
            self.folder(step).rename(gone)
            shutil.rmtree(gone)

    def new_lines(self) -> tuple[Mapping[str, Json], ...]:
        """Return the metrics that were written since the last look; a torn line is of the next.

        What is not a JSON object with a whole step is complained of and left out.
        """
        try:
            with self.metrics.open("rb") as file:
                file.seek(self._offset)
                data = file.read(LINES_MAX * 1024)
        except FileNotFoundError:
            return ()
        whole = data[: data.rfind(b"\n") + 1]
        if not whole and len(data) > LINE_BYTES_MAX:
            whole, self._is_cut = data, True
            self.complain(f"has a line of more than {LINE_BYTES_MAX} bytes")
        self._offset += len(whole)
        if self._is_cut:  # the rest of that line
            end = whole.find(b"\n") + 1
            whole, self._is_cut = whole[end:] if end else b"", not end
        if names.ENV_OBSERVE in os.environ:
            self.metrics.with_name(names.TAKEN).write_text(str(self._offset))
        return tuple(line for each in whole.splitlines() if (line := self._parse(each)) is not None)

    def _parse(self, data: bytes) -> Mapping[str, Json] | None:
        with suppress(ValueError):
            line = parse_json(data, foreign=True)
            if (
                isinstance(line, dict)
                and _is_whole(line.get("step"))
                and _is_loss(line.get("loss"))
            ):
                return _plain(line)
        if data.strip():
            self.complain(
                "has a line that is not a JSON object with a step of 1 or more and, where it has one, "
                f"a loss that is a number: {data[:200]!r}"
            )
        return None

    def complain(self, what: str) -> None:
        """Say what is wrong with the metrics that the command writes; so many times at most."""
        self._complaints += 1
        if self._complaints <= COMPLAINTS_MAX:
            complain(f"TRACKS_METRICS, {self.metrics}, {what}; it is left out.")


def _changed_at(folder: Path) -> float:
    """Return when something in a folder last changed, in seconds since 1970."""
    return max(each.stat().st_mtime for each in (folder, *folder.rglob("*")))


def _is_whole(step: Any) -> bool:
    return type(step) is int and 1 <= step < 10**12


def _is_loss(loss: Any) -> bool:
    return loss is None or _is_number(loss)


def _is_number(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return isinstance(value, float) or abs(value) <= sys.float_info.max


def _plain(line: Mapping[str, Any]) -> Mapping[str, Json]:
    """Return a line as it goes to the other ranks: JSON has no word for a loss that is not finite."""
    others = {name: value for name, value in line.items() if name not in ("step", "loss")}
    numbers = {name: float(value) for name, value in others.items() if _is_number(value)}
    return {
        "step": line["step"],
        "loss": None if line.get("loss") is None else str(float(line["loss"])),
        "last": line.get("last") is True,
        "metrics": {name: value for name, value in numbers.items() if math.isfinite(value)},
    }


@contextmanager
def _child(
    argv: Sequence[str], environment: Mapping[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    """Start the command; end it with this process, in whatever way that ends."""
    child = subprocess.Popen(argv, env=environment, stdin=subprocess.DEVNULL)
    try:
        yield child
    finally:
        if child.poll() is None:
            child.terminate()
            try:
                child.wait(END_S_MAX)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait(END_S_MAX)


def describe_end(code: int | None) -> str:
    """Return how a command ended, in words."""
    if code is not None and code < 0:
        return f"by {signal.Signals(-code).name}"
    return f"with exit code {code}"


def _end_as(code: int) -> int:
    """End as the command did: by its signal, or with its exit code where that says nothing of ours."""
    print(f"The command ended {describe_end(code)}.", file=sys.stderr, flush=True)
    if code < 0:
        faulthandler.disable()  # this process did not crash
        with suppress(OSError, ValueError):  # SIGKILL has no handler to take away
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
        time.sleep(END_S_MAX)
    return 1 if code in _OURS or code < 0 else code


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

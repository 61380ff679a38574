"""Lives that are killed, one after the other, each a fork of one warm process.

`python -m tests.real.killing FOLDER S3|"" FAULT|""` imports torch once, leads one life to its end, so
that nothing is loaded for the first time in a fork, and then does what it is asked, a line of JSON
each: [at, moment] asks for a life that is killed there, in a copy of the same store, and for its
sequel. It has one thread whenever it forks. `KilledLives` is the test's end of it.
"""

from __future__ import annotations

import gc
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING

from tracks_dagster.track.records import Json

if TYPE_CHECKING:
    from tests.real.points import Point

PROBLEMS_MAX = 8  # reported of one point
LIFE_S_MAX = 120  # a process that takes longer is killed by SIGALRM, which is reported as a problem
ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class LifeEnd:
    """What came of one life. calls: the names of its calls, when it was not killed."""

    was_killed: bool
    problems: list[str]
    calls: list[str]


class KilledLives:
    """The warm process."""

    def __init__(self, to: IO[str], of: IO[str]) -> None:
        self._to = to
        self._of = of

    def kill(self, at: int, moment: str) -> LifeEnd:
        """Lead a life that is killed at its call number `at`, 1-based (0: never), and its sequel."""
        self._to.write(f"{json.dumps([at, moment])}\n")
        self._to.flush()
        line = self._of.readline()
        assert line, "the warm process has ended; its stderr says why"
        return LifeEnd(**json.loads(line))


@contextmanager
def killed_lives(folder: Path, *, s3: bool = False, plant: str = "") -> Iterator[KilledLives]:
    """Give a warm process that works in `folder`, on S3 where the AWS variables say.

    plant: the fault that all lives have, by its name in `planted_faults`.
    """
    quiet = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    command = [sys.executable, "-m", __name__, str(folder), "S3" if s3 else "", plant]
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env={**os.environ, **quiet},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield KilledLives(process.stdin, process.stdout)
        finally:
            process.stdin.close()  # it ends with its input
            process.wait(timeout=LIFE_S_MAX)


def serve(folder: Path, *, s3: bool, plant: str) -> None:
    """Be the warm process, until the input ends."""
    import torch

    from tests.real.checkpoint_life import use_small_chunks
    from tests.real.points import Points

    torch.set_num_threads(1)
    # A kill takes nothing from the kernel: syncs are counted, and left out, for their time. What
    # they are for is the power-loss proof's.
    os.fsync = lambda descriptor: None  # type: ignore[assignment]
    use_small_chunks()
    points = Points(folder, s3=s3, plant=plant)
    points.warm_up()
    gc.collect()
    gc.freeze()  # what is shared stays shared
    output = os.dup(1)
    os.dup2(2, 1)  # what lives print is not an answer
    for line in sys.stdin:
        end = _kill(points.next(), *json.loads(line))
        os.write(output, f"{json.dumps(asdict(end))}\n".encode())


def _kill(point: Point, at: int, moment: str) -> LifeEnd:
    """Lead one life and its sequel; what a point with a problem holds stays, to be looked at."""
    assert threading.active_count() == 1, threading.enumerate()
    status, calls = _forked(lambda: point.live(at, moment))
    was_killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    problems = [] if was_killed else _failed("the life", status)
    if not problems:
        status, found = _forked(lambda: list(islice(point.judge(), PROBLEMS_MAX)))
        problems = found or _failed("its sequel", status)
    if not problems:
        shutil.rmtree(point.folder)
    return LifeEnd(was_killed=was_killed, problems=problems, calls=calls or [])


def _forked(act: Callable[[], Json]) -> tuple[int, Json]:
    """Do it in a fork of this process; return its wait status and what it returned, if it did."""
    reading, writing = os.pipe()
    process = os.fork()
    if process == 0:
        code = 1
        try:
            signal.alarm(LIFE_S_MAX)
            os.close(reading)
            with os.fdopen(writing, "w") as answer:
                json.dump(act(), answer)
            code = 0
        except BaseException:  # noqa: BLE001 - a fork's edge: nothing may go on as its parent would
            traceback.print_exc()
        finally:
            os._exit(code)
    os.close(writing)
    with os.fdopen(reading) as answer:
        text = answer.read()
    _, status = os.waitpid(process, 0)
    return status, json.loads(text) if text and status == 0 else None


def _failed(who: str, status: int) -> list[str]:
    return [] if status == 0 else [f"{who} ended with the wait status {status}; see stderr"]


if __name__ == "__main__":
    serve(Path(sys.argv[1]), s3=sys.argv[2] == "S3", plant=sys.argv[3])

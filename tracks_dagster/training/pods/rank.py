"""Between torchrun and one rank: `python -m tracks_dagster.training.pods.rank WORK LOCAL_RANK`.

torchrun has one meaning for every exit code but 0: the gang failed, end all others at once. A rank
has more to say. So torchrun starts this process in its place, which starts the rank, writes down how
it truly ended, and then gives torchrun 0 for an end that all ranks agreed on (done, drained, fenced):
torchrun waits for the others, and keeps the store by which they speak. After any other end
it holds the news back for SURVIVORS_S_MAX, in which the others find out by themselves and leave their
last words; then torchrun's SIGTERM comes, and means here: end your rank now.

A person's or a node's SIGTERM never comes this way: the pod passes it on to the ranks themselves,
which have sessions of their own and save as long as they need. Standard library only.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tracks_dagster.processes.process import now_text, read_json
from tracks_dagster.track import names
from tracks_dagster.training.gang_parent import (
    AGREED_ENDS,
    EXIT_CANNOT_RUN,
    LAST_WRITES_MAX,
    SURVIVORS_S_MAX,
    WRITE_AGAIN_S,
    as_alone,
)
from tracks_dagster.training.pods.rank_files import RankFile, is_closed, read_ranks

POLL_S = 0.05
SIGNAL_EXIT = 128  # a rank that signal n ended ends this process with 128 + n, as shells do


def main(work: Path, local_rank: int) -> int:
    """Run the rank to its end; returns the exit code for torchrun."""
    # one log of a rank, in the order it was written
    os.dup2(sys.stdout.fileno(), sys.stderr.fileno())
    stop = _Stop()
    gang = read_json(work / "pod.json") or {}
    rank = gang["first_rank"] + local_rank
    if is_closed(work):
        return names.EXIT_DRAINED  # the pod was asked to end before there was a rank
    file = RankFile(work, rank, started_at=now_text())
    try:
        with stop.let_through():
            child = subprocess.Popen(
                gang["command"],
                cwd=gang["folder"],
                env={**_environment(gang["ranks"]), **gang["environment"]},
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
    except OSError as error:
        print(f"rank {rank} cannot be started: {error}", flush=True)
        code = EXIT_CANNOT_RUN
    else:
        file.began(child.pid)
        code = _wait(child, file, stop, work / "drill" / f"sigkill-{rank}.json")
    _write_end(file, code)
    if code not in AGREED_ENDS:
        _hold(work, rank, range(gang["first_rank"], gang["first_rank"] + gang["ranks"]), stop)
    if code != EXIT_CANNOT_RUN:
        _signal_group(child.pid)  # loader workers that it left behind
    if code in AGREED_ENDS:
        return 0
    return code if code > 0 else SIGNAL_EXIT - code


class _Stop:
    """Whether torchrun, this process's parent, asked this rank to end.

    What manages a node may send SIGTERM to every process of a gang, as some Slurm sites do: then the
    rank has it too, and saves. So a signal waits until it is looked for, with who sent it. Any thread
    that does not block it would take it at once: a site's `sitecustomize` may start one before this
    module, so torchrun's thread starts this process with the signal blocked.
    """

    def __init__(self) -> None:
        self._is_asked = False
        signal.signal(signal.SIGTERM, self._ask)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})

    def _ask(self, *_: object) -> None:
        self._is_asked = True

    @contextmanager
    def let_through(self) -> Iterator[None]:
        """While the rank starts, for it would inherit the mask: it has nothing to save yet."""
        self._is_asked = self.is_asked  # what came before has a sender
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})

    @property
    def is_asked(self) -> bool:
        while (sent := signal.sigtimedwait([signal.SIGTERM], 0)) is not None:
            self._is_asked = self._is_asked or sent.si_pid == os.getppid()
        return self._is_asked


def _wait(child: subprocess.Popen[bytes], file: RankFile, stop: _Stop, drill: Path) -> int:
    """Return the rank's code, -N for signal N; as long as training runs, the attempt bounds it."""
    while (code := child.poll()) is None:
        if stop.is_asked or drill.exists():
            _signal_group(child.pid)
        file.write_again()
        time.sleep(POLL_S)
    return code


def _write_end(file: RankFile, code: int) -> None:
    file.ended(code, at=now_text())
    for _ in range(LAST_WRITES_MAX):
        if file.is_written:
            return
        time.sleep(WRITE_AGAIN_S)
        file.write_again()


def _hold(work: Path, rank: int, ranks: range, stop: _Stop) -> None:
    """Return once the pod's other ranks have ended as well; bounded."""
    deadline = time.monotonic() + SURVIVORS_S_MAX
    while time.monotonic() < deadline and not stop.is_asked:
        found = read_ranks(work, ranks)
        if all(other == rank or (found[other].has_ended) for other in ranks):
            return
        time.sleep(POLL_S)


def _signal_group(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def _environment(ranks: int) -> dict[str, str]:
    """Return the rank's variables: this process's own, torchrun's among them in a gang of several."""
    shared = {"PYTHONUNBUFFERED": "1"}  # a log that ends where the process did
    if ranks > 1:
        shared["OMP_NUM_THREADS"] = "1"  # as torchrun does: ranks that share cores get in their way
    environment = {**shared, **os.environ}
    return as_alone(environment) if environment["WORLD_SIZE"] == "1" else environment


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2])))

"""The files of a pod's ranks in its folder: who they are, when they started, how they ended.

`ranks/rank-<r>.json` is written by the process that starts the rank, and read by the pod's main
process. A disk that is full ends no rank: what could not be written is tried again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tracks_dagster.processes.logs import read_tail
from tracks_dagster.processes.process import (
    Process,
    find_process,
    read_json,
    write_json,
)
from tracks_dagster.reasons.evidence import LOG_TAIL_BYTES_MAX

CLOSED = "closed"  # the file that keeps ranks of this pod from starting


@dataclass(frozen=True, slots=True, kw_only=True)
class RankState:
    """One rank by its file. started_at None: it was not started yet; process: who it is, or was.

    problem: the pod's own words on its end.
    """

    rank: int
    process: Process | None = None
    started_at: str | None = None
    ended_at: str | None = None
    exit_code: int | None = None
    signal: int | None = None
    problem: str = ""

    @property
    def has_ended(self) -> bool:
        """Whether its end is known."""
        return self.ended_at is not None


class RankFile:
    """Writes one rank's file."""

    def __init__(self, work: Path, rank: int, *, started_at: str) -> None:
        self.is_written = True
        self._path = _path(work, rank)
        self._facts: dict[str, Any] = {"rank": rank, "started_at": started_at}

    def began(self, pid: int) -> None:
        """Write down which process it is."""
        process = find_process(pid)
        if process is not None:
            self._facts["process"] = asdict(process)
        self._write()

    def ended(self, code: int, *, at: str) -> None:
        """Write down its end; code: as of Popen, -N for signal N."""
        exit_code, number = (code, None) if code >= 0 else (None, -code)
        self._facts |= {"exit_code": exit_code, "signal": number, "ended_at": at}
        self._write()

    def write_again(self) -> None:
        """Write what the disk did not take before; nothing when it took all."""
        if not self.is_written:
            self._write()

    def _write(self) -> None:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_json(self._path, self._facts)
        except OSError:
            self.is_written = False
        else:
            self.is_written = True


def read_ranks(work: Path, ranks: Iterable[int]) -> dict[int, RankState]:
    """Return what is known of each rank; of one without a file, nothing."""
    return {rank: _read(work, rank) for rank in ranks}


def close(work: Path) -> None:
    """Let no rank start any more."""
    (work / CLOSED).touch()


def is_closed(work: Path) -> bool:
    """Whether no rank may start any more."""
    return (work / CLOSED).exists()


def log_folder(work: Path) -> Path:
    """Return the folder in which torchrun keeps the ranks' logs."""
    return work / "logs"


def log_tail(work: Path, local_rank: int) -> str:
    """Return the end of a rank's log, not cleaned yet; "" where there is none."""
    return "".join(map(read_tail, log_files(work, local_rank)))[-LOG_TAIL_BYTES_MAX:]


def log_files(work: Path, local_rank: int) -> list[Path]:
    """Return the files of a rank's log in their order.

    Errors first: all that is in there came before `rank` made one log of the two.
    """
    return sorted(log_folder(work).glob(f"*/attempt_0/{local_rank}/std*.log"))


def _read(work: Path, rank: int) -> RankState:
    facts = read_json(_path(work, rank))
    if facts is None:
        return RankState(rank=rank)
    process = facts.pop("process", None)
    return RankState(process=None if process is None else Process(**process), **facts)


def _path(work: Path, rank: int) -> Path:
    return work / "ranks" / f"rank-{rank}.json"

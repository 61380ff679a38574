"""What committing a folder of four ranks costs, against one raw write and fsync of as many bytes.

Four ranks write their files into one folder, as a framework does, and commit it; rank 0 measures from
the call to its return, when the checkpoint is durable and in the track. In turns with it one process
writes as many bytes into one file and calls fsync. Every byte is new in each round, and the disk is
at rest before each measurement. Restoring is measured against copying the folder.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

from tests.ports import free_port
from tracks_dagster.training import attempt
from tracks_dagster.training.attempt import Attempt

RANKS = 4
ROUNDS = 5  # the first warms up and is not counted
RESTORES = 3
SIZE_MB = 2000
BLOCK = 1024 * 1024
GANG_S_MAX = 900.0

AT_MOST = {"folder_commit_to_raw_write_fsync": 1.3}
WHY = {
    "folder_commit_to_raw_write_fsync": "beside the write: reading the files, hashes, an fsync for "
    "each chunk; a shared disk",
}


def run(size_mb: int = SIZE_MB) -> dict[str, float]:
    """Return all figures, by name and size."""
    with tempfile.TemporaryDirectory(prefix="tracks-bench-") as name:
        folder = Path(name)
        gang("commit", folder, size_mb)
        for _ in range(RESTORES):
            gang("restore", folder, size_mb)
        lines = (folder / "seconds.jsonl").read_text().splitlines()
    seconds: dict[str, list[float]] = defaultdict(list)
    for line in lines:
        what, took = json.loads(line)
        seconds[what].append(took)
    median = {what: statistics.median(values[1:]) for what, values in seconds.items()}
    found = {
        "folder_commit_to_raw_write_fsync": median["commit"] / median["raw"],
        "folder_restore_to_copy": median["restore"] / median["copy"],
        "folder_raw (s)": median["raw"],
    }
    return {f"{what} @{size_mb} MB": value for what, value in found.items()}


def gang(what: str, folder: Path, size_mb: int) -> None:
    """Run four ranks to their end."""
    shared = {**os.environ, "WORLD_SIZE": str(RANKS), "MASTER_ADDR": "127.0.0.1"}
    shared |= {"MASTER_PORT": str(free_port()), "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "benchmarks.folder", what, str(folder), str(size_mb)],
            env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(RANKS)
    ]
    deadline = time.monotonic() + GANG_S_MAX
    try:
        codes = [rank.wait(max(0.0, deadline - time.monotonic())) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    if any(codes):
        raise RuntimeError(f"the ranks ended with {codes}")


def commits(a: Attempt, folder: Path, size_mb: int) -> None:
    """Be one rank of a gang that commits, in turns with the raw write."""
    a.folder()
    made = folder / "made"
    made.mkdir(exist_ok=True)
    for step in range(1, ROUNDS + 1):
        write(made / f"rank-{a.rank}.bin", size_mb // RANKS, seed=step * RANKS + a.rank)
        wait(a)
        if a.rank == 0:
            os.sync()
            began = time.perf_counter()
            write(folder / "raw", size_mb // RANKS * RANKS, seed=-step, durable=True)
            note(folder, "raw", time.perf_counter() - began)
            (folder / "raw").unlink()
            os.sync()
        wait(a)
        a.ends(step)
        began = time.perf_counter()
        a.commit_folder(step, made)
        if a.rank == 0:
            note(folder, "commit", time.perf_counter() - began)
            clear(folder, keep_step=step)
        wait(a)


def restores(a: Attempt, folder: Path) -> None:
    """Be one rank of a gang that restores; files are in the page cache."""
    wait(a)
    began = time.perf_counter()
    a.folder()
    wait(a)
    if a.rank == 0:
        note(folder, "restore", time.perf_counter() - began)
        note(folder, "copy", copy(folder))
    wait(a)
    if a.rank == 0:
        clear(folder, keep_step=ROUNDS)


def note(folder: Path, what: str, took: float) -> None:
    """Write down what was measured."""
    with (folder / "seconds.jsonl").open("a") as file:
        file.write(json.dumps([what, took]) + "\n")


def wait(a: Attempt) -> None:
    """Meet the other ranks."""
    a.gather(None)


def copy(folder: Path) -> float:
    """Return how long it takes to copy what the round before wrote, which is in the page cache."""
    began = time.perf_counter()
    shutil.copytree(folder / "made", folder / "copied")
    took = time.perf_counter() - began
    shutil.rmtree(folder / "copied")
    return took


def write(path: Path, size_mb: int, *, seed: int, durable: bool = False) -> None:
    """Write bytes that no other seed gives; every block differs."""
    block = bytearray(os.urandom(BLOCK))
    path.unlink(missing_ok=True)
    with path.open("wb", buffering=0) as file:
        for number in range(size_mb):
            block[:16] = (seed & 0xFFFFFFFF).to_bytes(8, "little") + number.to_bytes(8, "little")
            file.write(block)
        if durable:
            os.fsync(file.fileno())


def clear(folder: Path, *, keep_step: int) -> None:
    """Remove older checkpoints, so that every round finds the same room."""
    for path in (folder / "ours").rglob("step-*"):
        if path.is_dir() and path.name != f"step-{keep_step}":
            shutil.rmtree(path)
    for path in (folder / "ours" / "work").glob("*/resume"):
        shutil.rmtree(path)


def main(what: str, folder: Path, size_mb: int) -> None:
    """Be one rank."""
    with attempt.join(folder=folder / "ours") as a:
        if what == "commit":
            commits(a, folder, size_mb)
        else:
            restores(a, folder)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))

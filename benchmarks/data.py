"""What freezing files costs: 20 000 small ones, and one large one, into a store in a folder.

Measured in turns with the two things that it cannot do without: reading and hashing the same files with
the same threads, and writing as many bytes with an fsync, in pieces of a shard's size. The slower of
the two is the floor. A second freezing after one small file was changed is compared with the first;
a large file that was changed is read whole again.
"""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from tracks_dagster.data.effects.freezing import Frozen, freeze, list_files
from tracks_dagster.stores import open_store
from tracks_dagster.stores.hashes import GRAIN_S, Hashes, digest, thread_count
from tracks_dagster.stores.sources import FolderSource, SourceFile
from tracks_dagster.track.ports import ObjectStore
from tracks_dagster.track.states.files_manifest import CHUNK_BYTES, cut

SMALL_COUNT = 20_000
PAGE_KB, PICTURE_KB = (
    48,
    110,
)  # of each small file: a page of text; a picture of ImageNet, on average
LARGE_MB = 2000
CHANGED = "000/changed.bin"  # beside them, a small file
CHANGED_BYTES = PAGE_KB * 1024
ROUNDS = {SMALL_COUNT: 5, 1: 3}  # files: rounds; the first warms up and is not counted
DATASET = "bench"

T = TypeVar("T")

AT_LEAST = {"freeze_speed_to_floor": 0.8}
AT_MOST = {"second_time_share": 0.1, "second_bytes_share": 0.1}
WHY = {
    "freeze_speed_to_floor": "beside hash and write: listing and two stats of every file, the "
    "manifest; where hash and write take turns on too few cores they add up",
    "second_time_share": "every file's state, 4 of 10 µs of processor a file, then all names once "
    "more, since none may come or go meanwhile, the one changed pack, hints and manifest; all in one "
    "thread, where the first takes about 100 for one of 48 KB, 170 for one of 110 KB, with all cores",
}


def run() -> dict[str, float]:
    """Return all figures, by name and kind of data."""
    figures: dict[str, float] = {}
    for name, count, size_bytes in (
        (f"{SMALL_COUNT} files of {PAGE_KB} KB", SMALL_COUNT, PAGE_KB * 1024),
        (f"{SMALL_COUNT} files of {PICTURE_KB} KB", SMALL_COUNT, PICTURE_KB * 1024),
        (f"{LARGE_MB} MB file", 1, LARGE_MB * 1_000_000),
    ):
        with tempfile.TemporaryDirectory(prefix="bench-data-", dir=Path.cwd()) as folder:
            measured = _measure(Path(folder), count, size_bytes)
        figures |= {f"{figure} @{name}": value for figure, value in measured.items()}
    return figures


def _measure(folder: Path, count: int, size_bytes: int) -> dict[str, float]:
    root = _make_files(folder / "in", count, size_bytes)
    source = FolderSource(root)
    files = list_files(source)
    total_bytes = sum(file.size_bytes for file in files)
    time.sleep(GRAIN_S + 1.0)  # what is younger is not remembered
    times: dict[str, list[float]] = defaultdict(list)
    shares: list[float] = []
    for number in range(ROUNDS[count]):
        home = folder / f"home-{number}"
        times["hash"].append(_timed(_hash, source, files)[0])
        times["write"].append(_timed(_write, home / "raw", total_bytes)[0])
        store = open_store(str(home / "store"))
        times["first"].append(_timed(_freeze, root, store, home)[0])
        (root / CHANGED).write_bytes(os.urandom(CHANGED_BYTES))
        time.sleep(GRAIN_S + 1.0)
        seconds, frozen = _timed(_freeze, root, store, home)
        times["second"].append(seconds)
        shares.append(frozen.written_bytes / total_bytes)
        files = list_files(source)
        shutil.rmtree(home)
    middle = {name: statistics.median(values[1:]) for name, values in times.items()}
    floor = max(middle["hash"], middle["write"])
    return {
        "freeze_speed_to_floor": floor / middle["first"],
        "freeze_mb_per_s": total_bytes / 1e6 / middle["first"],
        "hash_mb_per_s": total_bytes / 1e6 / middle["hash"],
        "write_mb_per_s": total_bytes / 1e6 / middle["write"],
        "second_time_share": middle["second"] / middle["first"],
        "second_bytes_share": statistics.median(shares),
    }


def _make_files(root: Path, count: int, size_bytes: int) -> Path:
    for number in range(count):
        path = root / f"{number // 1000:03d}" / f"{number:06d}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as made:
            for _, part_bytes in cut(size_bytes):
                made.write(os.urandom(part_bytes))
    (root / CHANGED).write_bytes(os.urandom(CHANGED_BYTES))
    return root


def _freeze(root: Path, store: ObjectStore, home: Path) -> Frozen:
    source = FolderSource(root)
    hashes = Hashes(home / "hashes", source.url)
    return freeze(source, list_files(source), store, DATASET, in_place=False, hashes=hashes)


def _hash(source: FolderSource, files: list[SourceFile]) -> list[str]:
    """Read and hash every part, as anybody would."""

    def hash_one(path: Path, offset: int, size_bytes: int) -> str:
        with path.open("rb") as read:
            read.seek(offset)
            return digest(read.read(size_bytes))

    parts = [
        (Path(source.url, file.path), *part) for file in files for part in cut(file.size_bytes)
    ]
    with ThreadPoolExecutor(thread_count()) as pool:
        return list(pool.map(lambda part: hash_one(*part), parts))


def _write(home: Path, total_bytes: int) -> None:
    home.mkdir(parents=True)
    data = os.urandom(min(CHUNK_BYTES, total_bytes))
    with ThreadPoolExecutor(thread_count()) as pool:
        paths = [home / f"raw-{number}" for number in range(-(-total_bytes // len(data)))]
        list(pool.map(lambda path: _write_one(path, data), paths))


def _write_one(path: Path, data: bytes) -> None:
    with path.open("wb") as made:
        made.write(data)
        made.flush()
        os.fsync(made.fileno())


def _timed(call: Callable[..., T], *given: Any) -> tuple[float, T]:
    began = time.perf_counter()
    result = call(*given)
    return time.perf_counter() - began, result

"""A disk that loses power: what a file system may hold after a crash, by the letter of POSIX.

`Disk` replays a trace (`recording`) up to a point and yields the states that a power loss there may
leave. It promises no more than POSIX does, which is less than ext4 gives:

- a byte is on the medium only once its file was synced; before that, every page of it may be there,
  be zeros, be torn, and the file may be shorter;
- a name is there only once its folder was synced; before that, names appear and vanish in any order,
  each on its own (of several changes of one name, the first few), whatever the files hold;
- what lies in a folder without a name is gone with it.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator

from tests.model.recording import Made, Named, Op, Opened, Synced, Unnamed, Written

PAGE_BYTES = 4096
FILE_FATES = 4  # of a file that was not synced; see `_after`


class Disk:
    """What stands on the medium after the operations given so far, and what may not yet.

    unread: a folder whose names nobody reads, so that it does not matter which of them stand.
    dropped: the call site whose syncs this disk ignores, for mutants.
    """

    def __init__(self, *, unread: str, dropped: str | None = None) -> None:
        self._unread = unread
        self._dropped = dropped
        self._names: dict[str, list[int | None]] = {}  # path → what it named, the durable one first
        self._folders: set[str] = {"."}
        self._durable: dict[int, bytes] = {}
        self._data: dict[int, bytes] = {}

    def apply(self, op: Op) -> None:
        """Take the next operation of the trace."""
        match op:
            case Made(path):
                self._folders.add(path)
                self._name(path, 0)
            case Opened(path, file):
                self._data[file] = self._durable[file] = b""
                self._name(path, file)
            case Written(file, data):
                self._data[file] += data
            case Named(path, file):
                self._name(path, file)
            case Unnamed(path):
                self._name(path, None)
            case Synced(file, folder, site) if site != self._dropped:
                if file is not None:
                    self._durable[file] = self._data[file]
                for path, named in self._names.items():
                    if folder is not None and _folder_of(path) == _prefix(folder):
                        del named[:-1]

    def states(self, seed: int, limit: int) -> Iterator[dict[str, bytes]]:
        """Yield states that a power loss now may leave, as path → bytes: all of them when they are
        at most `limit`, else so many: the outermost ones first, then random ones of this seed.
        """
        chance = random.Random(seed)
        names = [path for path, named in self._names.items() if len(named) > 1]
        seen = {file for path in names for file in self._names[path]}
        seen |= {named[0] for named in self._names.values()}
        files = [f for f, data in self._data.items() if f in seen and data != self._durable[f]]
        counts = [len(self._names[path]) for path in names] + [FILE_FATES] * len(files)
        for fates in _choices(counts, limit, chance):
            named = {path: options[0] for path, options in self._names.items()}
            named |= {p: self._names[p][n] for p, n in zip(names, fates, strict=False)}
            data = dict(self._durable)
            for file, fate in zip(files, fates[len(names) :], strict=True):
                data[file] = _after(fate, self._durable[file], self._data[file], chance)
            yield self._reachable(named, data)

    def _name(self, path: str, file: int | None) -> None:
        if _folder_of(path) != self._unread:
            self._names.setdefault(path, [None]).append(file)

    def _reachable(self, names: dict[str, int | None], data: dict[int, bytes]) -> dict[str, bytes]:
        def stands(path: str) -> bool:
            return path == "" or (names.get(path) is not None and stands(_folder_of(path)))

        return {
            path: data[file]
            for path, file in names.items()
            if file is not None and path not in self._folders and stands(path)
        }


def _folder_of(path: str) -> str:
    return path.rpartition("/")[0]


def _prefix(folder: str) -> str:
    return "" if folder == "." else folder


def _choices(counts: list[int], limit: int, chance: random.Random) -> Iterator[tuple[int, ...]]:
    """Yield what becomes of each open change: 0 is nothing of it, the last one all of it.

    All combinations when they are few; else none, all, each alone, all but each, then random ones.
    """
    if math.prod(counts) <= limit:
        yield from itertools.product(*(range(count) for count in counts))
        return
    every, places = [count - 1 for count in counts], range(len(counts))
    outermost = [
        (0,) * len(counts),
        tuple(every),
        *(tuple(every[n] if n == alone else 0 for n in places) for alone in places),
        *(tuple(every[n] if n != alone else 0 for n in places) for alone in places),
    ]
    yield from outermost[:limit]
    for _ in range(limit - len(outermost)):
        yield tuple(chance.randrange(count) for count in counts)


def _after(fate: int, durable: bytes, written: bytes, chance: random.Random) -> bytes:
    """Return what a file that was not synced holds: as before, zeros, torn, or all that was written."""
    if fate in (0, FILE_FATES - 1):
        return written if fate else durable
    if fate == 1:  # the size got there before the bytes
        return durable + b"\0" * (len(written) - len(durable))
    pages = [written[at : at + PAGE_BYTES] for at in range(0, len(written), PAGE_BYTES)]
    torn = b"".join(chance.choice([page, b"\0" * len(page), _torn(page)]) for page in pages)
    return torn[: chance.randint(0, len(torn))]


def _torn(page: bytes) -> bytes:
    half = len(page) // 2
    return page[:half] + b"\0" * (len(page) - half)

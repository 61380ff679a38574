"""What code really asks of the operating system under one folder, in order: the trace of a test.

Writes, syncs and changes of names are written down as they are done. `disk` says what a power loss
may leave of them.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

STORE_CODE = "stores/local.py"  # where a sync's call site is looked for
SYNCS = ("write_new", "sync_folder", "_sync")  # its tools; a site is who asked them


@dataclass(frozen=True, slots=True)
class Made:
    """The folder `path` was made."""

    path: str


@dataclass(frozen=True, slots=True)
class Opened:
    """An empty file got the name `path`."""

    path: str
    file: int


@dataclass(frozen=True, slots=True)
class Written:
    """`data` was appended to a file."""

    file: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Named:
    """`path` became a name of `file`, the old one's place taken."""

    path: str
    file: int


@dataclass(frozen=True, slots=True)
class Unnamed:
    """`path` is not a name any more."""

    path: str


@dataclass(frozen=True, slots=True)
class Synced:
    """A file or folder was synced. site: which call of the store's code asked for it."""

    file: int | None
    folder: str | None
    site: str


@dataclass(frozen=True, slots=True)
class Promised:
    """Not the disk's: from now on `key` must hold one of `values` (None: it may be missing)."""

    key: str
    values: frozenset[bytes | None]


Op = Made | Opened | Written | Named | Unnamed | Synced | Promised


@dataclass
class Trace:
    """What was asked of the system, in order. `meanwhile` lets somebody else act in between."""

    ops: list[Op] = field(default_factory=list)
    _waiting: list[tuple[Iterator[None], Callable[[Op], bool], Callable[[], None]]] = field(
        default_factory=list
    )

    def meanwhile(self, when: Callable[[Op], bool], act: Callable[[], None], *, skip: int) -> None:
        """Right after an operation that `when` accepts, `skip` of them passed over: let `act` run to
        its end, as another process would while the first one is stopped there."""
        self._waiting.append((itertools.repeat(None, skip), when, act))

    def add(self, op: Op) -> None:
        """Write down what has just been done."""
        self.ops.append(op)
        accepting = [waiting for waiting in self._waiting if waiting[1](op)]
        due = [waiting for waiting in accepting if next(waiting[0], op) is op]
        self._waiting = [waiting for waiting in self._waiting if waiting not in due]
        for _, _, act in due:
            act()


@contextmanager
def recorded(root: Path) -> Iterator[Trace]:
    """Record what this process does under `root`, which exists and is empty."""
    trace, files, descriptors = Trace(), {}, {}  # type: ignore[var-annotated]
    real = {name: getattr(os, name) for name in ("open", "write", "fsync", "close", "mkdir")}
    real |= {name: getattr(os, name) for name in ("link", "replace", "unlink")}

    def below(path: Any) -> str | None:
        text = os.fspath(path)
        return os.path.relpath(text, root) if str(text).startswith(str(root)) else None

    def open_(path: Any, flags: int, mode: int = 0o777, **rest: Any) -> int:
        descriptor: int = real["open"](path, flags, mode, **rest)
        name = below(path)
        if name is not None:
            descriptors[descriptor] = name
            if flags & os.O_CREAT:
                assert flags & os.O_EXCL, "the model knows no file that is opened to be changed"
                files[name] = len(trace.ops)
                trace.add(Opened(name, files[name]))
        return descriptor

    def write(descriptor: int, data: Any) -> int:
        count: int = real["write"](descriptor, data)
        if descriptor in descriptors:
            trace.add(Written(files[descriptors[descriptor]], bytes(data[:count])))
        return count

    def fsync(descriptor: int) -> None:
        real["fsync"](descriptor)
        name = descriptors.get(descriptor)
        if name is not None:
            file = files.get(name)
            trace.add(Synced(file, name if file is None else None, _site()))

    def close(descriptor: int) -> None:
        real["close"](descriptor)
        descriptors.pop(descriptor, None)

    def mkdir(path: Any, *args: Any, **rest: Any) -> None:
        real["mkdir"](path, *args, **rest)
        if (name := below(path)) is not None:
            trace.add(Made(name))

    def link(source: Any, target: Any, **rest: Any) -> None:
        real["link"](source, target, **rest)
        if (name := below(target)) is not None:
            files[name] = files[below(source)]
            trace.add(Named(name, files[name]))

    def replace(source: Any, target: Any, **rest: Any) -> None:
        real["replace"](source, target, **rest)
        if (name := below(target)) is not None:
            files[name] = files.pop(below(source))
            trace.add(Named(name, files[name]))
            trace.add(Unnamed(str(below(source))))

    def unlink(path: Any, **rest: Any) -> None:
        real["unlink"](path, **rest)
        if (name := below(path)) is not None:
            del files[name]
            trace.add(Unnamed(name))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "open", open_)
        for double in (write, fsync, close, mkdir, link, replace, unlink):
            patch.setattr(os, double.__name__, double)
        yield trace


def _site() -> str:
    """Return which call of the store's code asked for this sync: "create > _make_folder"."""
    names: list[str] = []
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        name = frame.f_code.co_name
        if frame.f_code.co_filename.endswith(STORE_CODE):
            if name not in SYNCS and names[:1] != [name]:
                names.insert(0, name)
        elif frame.f_code is Trace.add.__code__:  # below it is the one who is stopped meanwhile
            break
        frame = frame.f_back
    assert names, "a sync that no store asked for"
    return " > ".join(names)

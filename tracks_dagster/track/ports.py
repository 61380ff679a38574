"""The object store, its keys and the clock: what the stores implement, and what callers may trust.

Every port documents atomicity, idempotence and errors. Fakes that honour the same guarantees live
in `tests/fakes.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Protocol
from urllib.parse import unquote

from tracks_dagster.track.errors import InvalidInput

Clock = Callable[[], datetime]  # an aware UTC datetime
NewUid = Callable[[], str]  # a fresh random identity, 32 hex digits
LEFTOVER_AGE_S = 24 * 3600.0  # a living writer is far younger: one object is written in minutes
# Keys are the same everywhere: no store holds what another cannot, and none is led out of its root.
KEY_BYTES_MAX = 900  # S3 takes 1024, its prefix included
_ONE = r"(?!\.{1,2}(?:/|$))[A-Za-z0-9._=@-]{1,200}"
_PART = re.compile(_ONE)
_KEY = re.compile(rf"{_ONE}(?:/{_ONE})*")


class ObjectStore(Protocol):
    """Named objects of bytes. Keys are relative, "/"-separated, of `[A-Za-z0-9._=@-]` parts; under any
    other key, which a forged record may name, nothing is and nothing can be written (InvalidInput).

    Every method may raise StoreUnavailable; all are safe to call from several threads. What is
    created or deleted never outlives a power loss without what was read through this object before.
    """

    @property
    def url(self) -> str:
        """Where this store is, without credentials, for people and for the gang's environment."""
        ...

    def get(self, key: str, bytes_max: int | None = None) -> bytes | None:
        """Return the object's bytes, or None when there is none. Reads see completed writes.

        bytes_max: of a larger object its first `bytes_max` + 1 are read, which no parser takes.
        """
        ...

    def read_into(self, key: str, buffer: memoryview) -> int | None:
        """Read the object into the start of `buffer`; return its size in bytes, None without one.

        An object larger than `buffer` (writable, contiguous, of bytes) fills it, and the size shows
        that. The whole object is never copied on the way. What `buffer` holds after an error is
        undefined.
        """
        ...

    def create(self, key: str, data: bytes | memoryview) -> bool:
        """Create the object durably if there is none; True when this call created it.

        Atomic: readers see nothing or all of it, and exactly one creator of a key gets
        True. False when the key was taken (perhaps by an earlier try of one's own). Raises
        OutcomeUnknown when the reply was lost or contradictory: read back.
        """
        ...

    def put(self, key: str, data: bytes | memoryview) -> None:
        """Write the object durably, replacing what was there. Atomic for readers, idempotent."""
        ...

    def list(self, prefix: str) -> Iterator[str]:
        """Yield the keys that begin with `prefix`, in ascending order. Never used to decide."""
        ...

    def folders(self, prefix: str) -> Iterator[str]:
        """Yield what follows `prefix` up to the next "/", once each, in the order of keys.

        `prefix` is empty or ends with "/". Cheap: what lies in the folders is not listed. May name
        a folder whose objects were all deleted.
        """
        ...

    def delete(self, key: str) -> None:
        """Remove the object; nothing happens when there is none.

        Nothing relies on it: after a power loss the object may be there again.
        """
        ...


class Leftovers(Protocol):
    """What killed writers left in an object store: bytes without a key, which no method shows."""

    def sweep(self, *, older_than_s: float = LEFTOVER_AGE_S) -> int:
        """Remove what nobody has added to for that long; return how many were removed.

        At most 10 000 are looked at; the next call continues. Idempotent, safe beside living writers.
        Raises StoreUnavailable.
        """
        ...


def is_part(name: str) -> bool:
    """Whether `name` can be one part of a key."""
    return _PART.fullmatch(name) is not None


def is_key(key: str) -> bool:
    """Whether `key` can name an object."""
    return len(key) <= KEY_BYTES_MAX and _KEY.fullmatch(key) is not None


def check_key(key: str) -> str:
    """Return `key` if it can name an object; raises InvalidInput otherwise."""
    if not is_key(key):
        raise InvalidInput(
            f"{key!r} cannot name an object: use parts of A-Z, a-z, 0-9 and . _ = @ -, "
            f'joined by "/", {KEY_BYTES_MAX} bytes in all.'
        )
    return key


def local_path(store_url: str) -> str | None:
    """Return the folder of a store that is one, None for a remote one."""
    scheme, separator, rest = store_url.partition("://")
    if not separator:
        return store_url
    return unquote(rest.removeprefix("localhost")) if scheme == "file" else None

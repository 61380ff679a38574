"""Which keys an object store takes. The same everywhere, so that no store can hold what another
cannot, and none can be led out of its root.
"""

from __future__ import annotations

import re

from tracks_dagster.track.errors import InvalidInput

KEY_BYTES_MAX = 900  # S3 takes 1024, its prefix included

_PART = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._=@-]{1,200}")


def is_part(name: str) -> bool:
    """Tell whether `name` can be one part of a key."""
    return _PART.fullmatch(name) is not None


def is_key(key: str) -> bool:
    """Tell whether `key` can name an object."""
    return len(key) <= KEY_BYTES_MAX and all(is_part(part) for part in key.split("/"))


def check_key(key: str) -> str:
    """Return `key` if it can name an object; raises InvalidInput otherwise."""
    if not is_key(key):
        raise InvalidInput(
            f"{key!r} cannot name an object: use parts of A-Z, a-z, 0-9 and . _ = @ -, "
            f'joined by "/", {KEY_BYTES_MAX} bytes in all.'
        )
    return key

"""The end of a log, as far as evidence keeps it: whole lines, so that a secret is seen as one."""

from __future__ import annotations

import os
from pathlib import Path

from tracks_dagster.reasons.evidence import LOG_TAIL_BYTES_MAX


def read_tail(path: Path) -> str:
    """Return the last 64 KiB of a log, not cleaned yet; "" where there is none."""
    try:
        with path.open("rb") as file:
            begin = max(0, file.seek(0, os.SEEK_END) - LOG_TAIL_BYTES_MAX)
            file.seek(begin)
            if begin:  # half a line hides what a secret in it is called, and so that it is one
                half = file.readline(LOG_TAIL_BYTES_MAX)
                if file.tell() - begin == LOG_TAIL_BYTES_MAX:
                    return half.partition(b" ")[2].decode("utf-8", errors="replace")
            return file.read(LOG_TAIL_BYTES_MAX).decode("utf-8", errors="replace")
    except FileNotFoundError:
        return ""

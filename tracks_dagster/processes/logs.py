"""The files of a gang's ranks on this machine: logs are read and cleaned, journals are shipped.

A rank writes its log without anything in between, or it could not outlive what was in between. So
what it prints lies there as it is while the gang lives, and secrets leave it once the gang is gone.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from io import BufferedReader
from itertools import islice
from pathlib import Path

from tracks_dagster.reasons.evidence import LOG_TAIL_BYTES_MAX
from tracks_dagster.stores.journals import (
    SHIPPED_BYTES_MAX,
    read_segment,
    segment_key,
    segment_offsets,
)
from tracks_dagster.track.ports import ObjectStore
from tracks_dagster.track.records import sha256_hex
from tracks_dagster.track.text.redact import Redact
from tracks_dagster.track.track import log_object

BLOCK_BYTES = 64 * 1024  # read at once; a longer line comes in pieces of at most this size
# Of one log; some seconds' work while its attempt waits to end.
CLEANED_BYTES_MAX = 64 * 1024 * 1024
STORED_BYTES_MAX = 8 * 1024 * 1024  # of one log, in the store
RANKS_STORED_MAX = 64  # of one attempt: as many as its record can name

_NAME = re.compile(r"rank-(?P<rank>[0-9]+)\.log")


def find_logs(folder: Path) -> dict[int, Path]:
    """Return the log of each rank of a gang's work folder, by rank; empty where there are none."""
    try:
        found = [(_NAME.fullmatch(path.name), path) for path in folder.iterdir()]
    except (FileNotFoundError, NotADirectoryError):
        return {}
    return dict(sorted((int(match["rank"]), path) for match, path in found if match))


def clean_logs(folder: Path, clean: Redact) -> None:
    """Rewrite what a gang that is gone has printed without its secrets, a file at once.

    Of a log of more than CLEANED_BYTES_MAX the end stays, after a line that says so. Idempotent, safe
    from two processes; anyone who reads an old file reads on in it. A log that cannot be rewritten (the
    disk is full) stays as it is, for its user alone: that must not keep an attempt open.
    """
    for path in (*find_logs(folder).values(), folder / "gang.log"):
        scratch = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            if _write_clean(path, scratch, clean):
                scratch.replace(path)
        except OSError:
            continue
        finally:
            scratch.unlink(missing_ok=True)


def _write_clean(path: Path, scratch: Path, clean: Redact) -> bool:
    """Write the log, cleaned, to `scratch`; whether it differs."""
    size = path.stat().st_size
    left_out = 0 if size <= CLEANED_BYTES_MAX else size - CLEANED_BYTES_MAX + BLOCK_BYTES
    differs = left_out > 0
    with open(scratch, "w", encoding="utf-8", newline="", opener=private) as file:
        if left_out:
            file.write(
                f"[the first {left_out} bytes of this log were left out when it was cleaned]\n"
            )
        for text in GrowingLog(path, begin=left_out).read(is_complete=True):
            cleaned = clean(text)
            differs = differs or cleaned != text
            file.write(cleaned)
    return differs


def private(path: str, flags: int) -> int:
    """Open a file that, where it is made, is for this user alone: a log may hold what it should not."""
    return os.open(path, flags, 0o600)


class GrowingLog:
    """One log, read from byte `begin` on; every call continues where the last one stopped.

    The file is kept open in between: the one that takes its name when it is cleaned is another.
    """

    def __init__(self, path: Path, *, begin: int = 0) -> None:
        self._path = path
        self._offset = begin
        self._file: BufferedReader | None = None

    def read(self, *, is_complete: bool) -> Iterator[str]:
        """Yield what is new, blocks of whole lines with their ends, and only text that is valid.

        Whole lines, so that a secret and what it is called are cleaned together; what is longer than a
        block ends with a whole word. is_complete: nothing more will come, so a last line without its
        end counts too, and the file is closed.
        """
        file = self._file = self._file or self._path.open("rb")
        file.seek(self._offset)
        while block := file.read(BLOCK_BYTES):
            end = block.rfind(b"\n") + 1
            if not end and len(block) == BLOCK_BYTES:
                end = block.rfind(b" ") + 1 or len(block)
            if not end and is_complete:
                end = len(block)
            if not end:
                return
            self._offset = file.seek(self._offset + end)
            yield block[:end].decode("utf-8", errors="replace")
        if is_complete:
            file.close()
            self._file = None


def read_tail(path: Path) -> str:
    """Return the last 64 KiB of a log, in whole lines, not cleaned yet; "" where there is none."""
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


def tail_offset(path: Path, lines: int) -> int:
    """Return the byte at which the last `lines` lines of a log begin; reads no more than these."""
    missing = lines
    with path.open("rb") as file:
        end = file.seek(0, os.SEEK_END) - 1  # what ends the last line begins none
        while end > 0:
            begin = max(0, end - BLOCK_BYTES)
            file.seek(begin)
            block = file.read(end - begin)
            found = block.count(b"\n")
            if found >= missing:
                at = len(block)
                for _ in range(missing):
                    at = block.rindex(b"\n", 0, at)
                return begin + at + 1
            missing, end = missing - found, begin
    return 0


def ship_logs(
    store: ObjectStore, logs: Mapping[int, Sequence[Path]], *, prefix: str, clean: Redact
) -> None:
    """Upload what each rank of a gang that is gone has printed, its files one after the other.

    prefix: of its attempt. Of each file the end of STORED_BYTES_MAX, of a gang the first
    RANKS_STORED_MAX ranks. An object is named by its sha256 (`track.track.log_object`): idempotent.
    """
    for rank, paths in islice(logs.items(), RANKS_STORED_MAX):
        data = "".join(_stored_text(path, clean) for path in paths).encode()
        store.create(log_object(prefix, rank, sha256_hex(data)), data)


def _stored_text(path: Path, clean: Redact) -> str:
    """Return a log's whole lines without secrets; of a long one the end, after a line that says so."""
    begin = max(0, path.stat().st_size - STORED_BYTES_MAX)
    text = "".join(clean(text) for text in GrowingLog(path, begin=begin).read(is_complete=True))
    if not begin:
        return text
    return f"[the first {begin} bytes of this log are not stored]\n{text.partition(chr(10))[2]}"


def ship_journals(store: ObjectStore, folder: Path, *, prefix: str) -> None:
    """Upload the whole lines of every journal below a gang's `folder`, beyond their shipped segments.

    prefix: of its attempt. For a gang that is gone; ranks that live ship for themselves
    (`training.journal`). Segments are keyed by the offset of their first byte, so this is idempotent.
    """
    for path in sorted(folder.glob("journal/*/rank-*.jsonl")):
        _ship_file(store, path, f"{prefix}{path.parent.name}/journal/{path.stem}/")


def _ship_file(store: ObjectStore, path: Path, prefix: str) -> None:
    offset = _shipped_bytes(store, prefix)
    with path.open("rb") as file:
        file.seek(offset)
        while lines := file.readlines(SHIPPED_BYTES_MAX):
            # not a torn last one
            segment = b"".join(line for line in lines if line.endswith(b"\n"))
            if segment:
                store.put(segment_key(prefix, offset), segment)
            offset += len(segment)


def _shipped_bytes(store: ObjectStore, prefix: str) -> int:
    """Return up to which byte the file was shipped; its segments follow one another.

    A last one that is not ours counts for nothing: it is written again.
    """
    last = max(segment_offsets(store, prefix), default=0)
    return last + len(read_segment(store, prefix, last) or b"")

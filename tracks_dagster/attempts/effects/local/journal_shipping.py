"""Ships the journals of a gang that cannot do it any more: what lies beyond their shipped segments.

Segments follow one another, each keyed by its first byte's offset, so shipping again ships nothing.
While a gang lives its ranks ship for themselves (`training.journal`).
"""

from __future__ import annotations

from pathlib import Path

from tracks_dagster.track.ports import ObjectStore

SEGMENT_BYTES_MAX = 8 * 1024 * 1024


def ship_journals(store: ObjectStore, folder: Path, *, prefix: str) -> None:
    """Upload the whole lines of every journal below a gang's `folder`; prefix: of its attempt."""
    for path in sorted(folder.glob("journal/*/rank-*.jsonl")):
        _ship_file(store, path, f"{prefix}{path.parent.name}/journal/{path.stem}/")


def _ship_file(store: ObjectStore, path: Path, prefix: str) -> None:
    offset = _shipped_bytes(store, prefix)
    with path.open("rb") as file:
        file.seek(offset)
        while lines := file.readlines(SEGMENT_BYTES_MAX):
            segment = b"".join(
                line for line in lines if line.endswith(b"\n")
            )  # not a torn last one
            if segment:
                store.put(f"{prefix}{offset:012d}.jsonl", segment)
            offset += len(segment)


def _shipped_bytes(store: ObjectStore, prefix: str) -> int:
    """Return up to which byte the file was shipped; its segments follow one another."""
    segments = list(store.list(prefix))
    if not segments:
        return 0
    last = store.get(segments[-1]) or b""
    return int(segments[-1].removeprefix(prefix).removesuffix(".jsonl")) + len(last)

"""What a script logs beside numbers: texts, tables, images, histograms, confusion matrices, sounds.

Pure. The bytes of each are stored once, under their sha256; an index beside the launch's journal says
what was logged under which name at which step. Nothing is decided by it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass

from tracks_dagster.track.names import AttemptRef
from tracks_dagster.track.records import Json, canonical_json

TEXT, TABLE, IMAGE = "text", "table", "image"
HISTOGRAM, CONFUSION, AUDIO = "histogram", "confusion_matrix", "audio"
ITEM_BYTES_MAX = 16 * 1024 * 1024
NAME_CHARACTERS_MAX = 200
WORDS_MAX = 20  # sentences on what was not stored
# What a browser may show as it is; all else is served as text.
PICTURES = ("image/png", "image/jpeg", "image/gif", "image/webp")
SOUNDS = ("audio/wav", "audio/mpeg", "audio/ogg", "audio/flac")
AS_TEXT, AS_JSON = "text/plain", "application/json"
_TYPES = {
    TEXT: (AS_TEXT,),
    TABLE: (AS_JSON,),
    HISTOGRAM: (AS_JSON,),
    CONFUSION: (AS_JSON,),
    IMAGE: PICTURES,
    AUDIO: SOUNDS,
}
_ENDINGS = {"image/jpeg": "jpg", "audio/mpeg": "mp3", AS_TEXT: "txt"}
_BEGINNINGS = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF8", "image/gif"),
    (b"ID3", "audio/mpeg"),
    (b"OggS", "audio/ogg"),
    (b"fLaC", "audio/flac"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Logged:
    """One thing that was logged. kind: TEXT … AUDIO; media_type: of its bytes."""

    step: int
    name: str
    kind: str
    sha256: str
    size_bytes: int
    media_type: str


_FIELDS = {"step": int, "name": str, "kind": str, "sha256": str} | {
    "size_bytes": int,
    "media_type": str,
}


def part_key(run_id: str, sha256: str) -> str:
    """Return where the bytes are."""
    return f"runs/{run_id}/media/parts/{sha256}"


def index_key(ref: AttemptRef, launch_id: str) -> str:
    """Return where a launch says what it logged."""
    return f"{ref.folder}{launch_id}/media.json"


def index_bytes(items: Iterable[Logged], words: Iterable[str]) -> bytes:
    """Return the index as it is stored. words: on what was not stored."""
    return canonical_json({"items": [asdict(item) for item in items], "words": list(words)})


def index_of(found: Json) -> tuple[tuple[Logged, ...], tuple[str, ...]]:
    """Return what an index names, and its words; what in it cannot be is left out."""
    made = (_item(each) for each in _list(found, "items"))
    texts = (each for each in _list(found, "words") if isinstance(each, str))
    return tuple(item for item in made if item is not None), tuple(texts)


def left_out(found: Json) -> int:
    """Return how many things of an index `index_of` leaves out; one where it is not an index at all."""
    if not isinstance(found, dict) or not isinstance(found.get("items"), list):
        return 1
    return sum(_item(each) is None for each in found["items"])


def file_ending(media_type: str) -> str:
    """Return how the name of such a file ends: image/jpeg → jpg."""
    return _ENDINGS.get(media_type, media_type.partition("/")[2])


def _list(found: Json, name: str) -> list[Json]:
    values = found.get(name) if isinstance(found, dict) else None
    return values if isinstance(values, list) else []


def _item(found: Json) -> Logged | None:
    if not isinstance(found, dict) or not found.keys() >= _FIELDS.keys():
        return None
    if any(type(found[name]) is not kind for name, kind in _FIELDS.items()):
        return None
    item = Logged(**{name: found[name] for name in _FIELDS})
    is_known = item.media_type in _TYPES.get(item.kind, ())
    is_known = is_known and _is_unicode(item.name)
    return item if is_known and item.size_bytes >= 0 and _is_sha256(item.sha256) else None


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # half of a pair, which JSON can have and no page, file or tag
        return False
    return True


def _is_sha256(text: Json) -> bool:
    return isinstance(text, str) and len(text) == 64 and set(text) <= set("0123456789abcdef")


def type_of(data: bytes) -> str | None:
    """Return the type of a picture or a sound by how it begins; None for anything else."""
    for beginning, media_type in _BEGINNINGS:
        if data.startswith(beginning):
            return media_type
    if data[:1] == b"\xff" and data[1:2] and data[1] & 0xE6 == 0xE2:  # a frame of layer III
        return "audio/mpeg"
    if data[:4] == b"RIFF":
        return {b"WEBP": "image/webp", b"WAVE": "audio/wav"}.get(data[8:12])
    return None

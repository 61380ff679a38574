"""What `a.log` takes, and the thread that stores it: training never waits for it, and never ends by it.

What is logged is copied at once and encoded in the thread. Whatever cannot be stored (too much, too
large, no such file, a store that is down) costs itself alone: stderr and the run's page say so.
"""

from __future__ import annotations

import io
import json
import math
import struct
import threading
import time
import wave
import zlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from tracks_dagster.track.errors import InvalidInput, StoreError
from tracks_dagster.track.media import (
    AS_JSON,
    AS_TEXT,
    AUDIO,
    CONFUSION,
    HISTOGRAM,
    IMAGE,
    ITEM_BYTES_MAX,
    NAME_CHARACTERS_MAX,
    PICTURES,
    SOUNDS,
    TABLE,
    TEXT,
    WORDS_MAX,
    Logged,
    index_bytes,
    part_key,
    type_of,
)
from tracks_dagster.track.ports import ObjectStore
from tracks_dagster.track.records import Json, sha256_hex
from tracks_dagster.track.text.redact import Redact
from tracks_dagster.track.text.safe_text import valid_json, valid_text
from tracks_dagster.track.text.units import STEPS_MAX, counted
from tracks_dagster.training.journal import complain

ROWS_MAX, COLUMNS_MAX = 1000, 50  # of a table
CLASSES_MAX = 200  # of a confusion matrix
BINS = 64
CHANNELS_MAX = 8  # of a sound
STEP_CHARACTERS_MAX = 40  # of a refused one, in words
SIDE_MAX = 8192  # pixels of an array's picture
WAITING_BYTES_MAX = 64 * 1024 * 1024  # that the store has not taken yet
WAITING_MAX = 100
INDEX_EVERY_S = 2.0
CLOSE_S_MAX = 10.0  # until an ending rank gives up the rest


class Encoded(NamedTuple):
    """Something as it is stored."""

    kind: str
    media_type: str
    data: bytes


Taken = tuple[int, Callable[[], Encoded]]  # a copy: its bytes in memory, and what encodes it


class Media(Protocol):
    """Something that can be logged."""

    def taken(self, clean: Redact) -> Taken:
        """Return a copy of it. Raises InvalidInput, OSError."""
        ...


@dataclass(frozen=True, slots=True)
class Text:
    """A text, as a sample of what a model writes. HTML and SVG are shown as text."""

    text: str

    def taken(self, clean: Redact) -> Taken:
        """Implements `Media`."""
        data = valid_text(clean(str(self.text))).encode()
        return len(data), lambda: Encoded(TEXT, AS_TEXT, data)


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under named columns: at most 1000 rows of at most 50 texts, numbers, booleans or None.

    A row is a sequence, or a mapping by the names of columns.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[Json] | Mapping[str, Json]]

    def taken(self, clean: Redact) -> Taken:
        """Implements `Media`."""
        columns = [clean(str(name)) for name in self.columns]
        if len(columns) > COLUMNS_MAX or len(self.rows) > ROWS_MAX:
            raise InvalidInput(
                f"A table of {len(self.rows)} rows and {len(columns)} columns was not logged: at most "
                f"{ROWS_MAX} rows and {COLUMNS_MAX} columns are."
            )
        rows = [[_cell(value, clean) for value in self._row(row)] for row in self.rows]
        return _json(TABLE, {"columns": columns, "rows": rows})

    def _row(self, row: Any) -> Sequence[Any]:
        names = [str(name) for name in self.columns]
        if isinstance(row, Mapping) and {*row} == {*names}:
            return [row[name] for name in names]
        if isinstance(row, Mapping | str | bytes) or len(row) != len(names):
            raise InvalidInput(
                f"A table was not logged: each row has {len(names)} values, one for each column, or is "
                f"a mapping with these keys: {', '.join(names)[:NAME_CHARACTERS_MAX]}."
            )
        values: Sequence[Any] = row
        return values


@dataclass(frozen=True, slots=True)
class Image:
    """A picture: a PNG, JPEG, GIF or WebP as bytes or as a path, or an array.

    An array is (H, W), (H, W, 1), (H, W, 3) or (H, W, 4): whole numbers from 0 to 255, reals from 0 to
    1, or booleans, True being white. At most 16 MiB, which a file's size says before it is read.
    """

    source: Any

    def taken(self, clean: Redact) -> Taken:
        """Implements `Media`."""
        if isinstance(self.source, str | Path | bytes):
            data, media_type = _file(self.source, "image", PICTURES)
            return len(data), lambda: Encoded(IMAGE, media_type, data)
        pixels = _pixels(self.source)
        return pixels.nbytes, lambda: Encoded(IMAGE, "image/png", png(pixels))


@dataclass(frozen=True, slots=True)
class Audio:
    """A sound: WAV, MP3, Ogg or FLAC as bytes or as a path, or samples and their rate in Hz.

    Samples are (N,) or (N, channels), at most 8, reals from -1 to 1.
    """

    source: Any
    rate: int | None = None

    def taken(self, clean: Redact) -> Taken:
        """Implements `Media`."""
        if isinstance(self.source, str | Path | bytes):
            data, media_type = _file(self.source, "sound", SOUNDS)
            return len(data), lambda: Encoded(AUDIO, media_type, data)
        samples, rate = _array(self.source), self.rate
        if rate is None or rate <= 0 or samples.ndim not in (1, 2):
            raise InvalidInput(
                f"A sound of shape {samples.shape} was not logged: give samples (N,) or (N, channels) "
                "and rate=, in Hz."
            )
        if samples.ndim == 2 and samples.shape[1] > CHANNELS_MAX:
            raise InvalidInput(
                f"A sound of {samples.shape[1]} channels was not logged: samples are (N, channels), at "
                f"most {CHANNELS_MAX}; of (channels, N) give the transpose."
            )
        if samples.dtype.kind != "f":
            raise InvalidInput(
                f"A sound of {samples.dtype} was not logged: samples are reals from -1 to 1; of 16 "
                "bits give samples / 32768."
            )
        return samples.nbytes, lambda: Encoded(AUDIO, "audio/wav", _wav(samples, rate))


@dataclass(frozen=True, slots=True)
class Histogram:
    """How values are distributed: any array of numbers, in 64 bins from the smallest to the largest.

    What is not finite is counted apart.
    """

    values: Any

    def taken(self, clean: Redact) -> Taken:
        """Implements `Media`."""
        import numpy as np

        values = _array(self.values).ravel().astype(np.float64)
        return _json(HISTOGRAM, _counted(values))  # at once: it is small, and many values are not


@dataclass(frozen=True, slots=True)
class ConfusionMatrix:
    """How often each class (a row) was taken for each (a column): counts (C, C), and C labels."""

    counts: Any
    labels: Sequence[str] = ()

    def taken(self, clean: Redact) -> Taken:
        """Implements `Media`."""
        counts = _array(self.counts)
        size = len(counts)
        labels = [clean(str(label)) for label in self.labels] or [str(n) for n in range(size)]
        if counts.shape != (size, size) or len(labels) != size or size > CLASSES_MAX:
            raise InvalidInput(
                f"A confusion matrix of shape {counts.shape} with {len(labels)} labels was not logged: "
                f"it is (C, C) with C labels, C at most {CLASSES_MAX}."
            )
        rows = [[_cell(value, clean) for value in row] for row in counts.tolist()]
        return _json(CONFUSION, {"labels": labels, "counts": rows})


def _json(kind: str, found: Json) -> Taken:
    data = json.dumps(valid_json(found), separators=(",", ":"), allow_nan=False).encode()
    return len(data), lambda: Encoded(kind, AS_JSON, data)


def _counted(values: Any) -> Json:
    """Return the histogram of float64 (N,) as it is stored: counts (B,), edges (B + 1,)."""
    import numpy as np

    finite = values[np.isfinite(values)]
    counts, edges = np.zeros(0), np.zeros(0)
    if len(finite):
        try:
            with np.errstate(all="ignore"):
                counts, edges = np.histogram(finite, BINS)
        except ValueError:  # between two so large numbers there are no 64 others
            counts, edges = np.array([len(finite)]), np.array([finite.min(), finite.max()])
    return {
        "counts": [int(count) for count in counts],
        "edges": [float(edge) for edge in edges],
        "not_finite": len(values) - len(finite),
    }


def _cell(value: Any, clean: Redact) -> Json:
    value = value.item() if hasattr(value, "item") else value
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    return clean(str(value))


def _file(source: str | Path | bytes, what: str, types: Sequence[str]) -> tuple[bytes, str]:
    """Return the bytes of a file of these types, whose size was looked at before, and its type."""
    size = len(source) if isinstance(source, bytes) else Path(source).stat().st_size
    if size > ITEM_BYTES_MAX:
        raise InvalidInput(
            f"A file of {size} bytes was not logged: at most {ITEM_BYTES_MAX} are. Leave it by "
            "a.artifact(path)."
        )
    data = source if isinstance(source, bytes) else Path(source).read_bytes()
    media_type = type_of(data)
    if media_type is None or media_type not in types:
        names = ", ".join(each.partition("/")[2] for each in types)
        raise InvalidInput(f"It was not logged: the bytes of the {what} are not {names}.")
    return data, media_type


def _array(source: Any) -> Any:
    """Return a copy of an array or a tensor as a NumPy array."""
    import numpy as np

    if hasattr(source, "detach"):
        source = source.detach().cpu()
        source = source.float().numpy() if source.is_floating_point() else source.numpy()
    return np.array(source)


def _pixels(source: Any) -> Any:
    """Return (H, W, channels) of uint8."""
    import numpy as np

    found = _array(source)
    if found.ndim == 2:
        found = found[:, :, None]
    if found.ndim != 3 or found.shape[2] not in (1, 3, 4) or not 0 < found.size <= SIDE_MAX**2:
        raise InvalidInput(
            f"An image of shape {found.shape} was not logged: it is (H, W), or (H, W, C) with 1, 3 or "
            "4 channels."
        )
    if found.dtype == bool:
        found = found * np.uint8(255)
    if np.issubdtype(found.dtype, np.floating):
        found = np.nan_to_num(found, nan=0.0, posinf=1.0, neginf=0.0) * 255.0 + 0.5
    return np.clip(found, 0, 255).astype(np.uint8)


def png(pixels: Any) -> bytes:
    """Return a PNG of (H, W, channels), uint8: https://www.w3.org/TR/png-3/#11Chunks."""
    height, width, channels = pixels.shape
    colour = {1: 0, 3: 2, 4: 6}[channels]
    lines = b"".join(b"\0" + pixels[row].tobytes() for row in range(height))
    head = struct.pack(">IIBBBBB", width, height, 8, colour, 0, 0, 0)
    parts = ((b"IHDR", head), (b"IDAT", zlib.compress(lines)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in parts
    )


def _wav(samples: Any, rate: int) -> bytes:
    import numpy as np

    finite = np.nan_to_num(np.asarray(samples, np.float64))
    whole = (np.clip(finite, -1.0, 1.0) * 32767).astype("<i2")
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(1 if whole.ndim == 1 else whole.shape[1])
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(whole.tobytes())
    return out.getvalue()


# --- storing ----------------------------------------------------------------------------------------


class _Waiting(NamedTuple):
    """size_bytes: in memory; reserved_bytes: of the policy's, until it is known how many are stored."""

    step: int
    name: str
    size_bytes: int
    reserved_bytes: int
    encode: Callable[[], Encoded]


class _CapReached(InvalidInput):
    """The policy allows no more. cap: the key of its section `tracking`."""

    def __init__(self, cap: str, words: str) -> None:
        super().__init__(words)
        self.cap = cap


class MediaLog:
    """Stores what rank 0 of one launch logs, in a thread that begins with the first."""

    def __init__(
        self,
        store: ObjectStore,
        *,
        run_id: str,
        index: str,
        items_max: int,
        bytes_max: int,
        clean: Redact,
    ) -> None:
        self._store = store
        self._run_id = run_id
        self._index = index
        self._clean = clean
        self._items_max, self._items_left = items_max, items_max
        self._bytes_max, self._bytes_left = bytes_max, bytes_max
        self._reached: set[str] = set()  # caps that were named: the words are for other things too
        self._waiting: deque[_Waiting] = deque()
        self._waiting_bytes = 0
        self._items: list[Logged] = []
        self._words: list[str] = []
        self._thread: threading.Thread | None = None
        self._changed = threading.Condition()
        self._is_closing = False
        self._is_new = False  # whether the stored index lacks something

    def take(self, step: int, name: str, media: Media) -> bool:
        """Take one thing to be stored; return whether. Raises nothing."""
        name = valid_text(self._clean(str(name)))[:NAME_CHARACTERS_MAX]
        try:
            self._take(_step(step), name, media)
        except Exception as error:  # noqa: BLE001 - no picture is worth a run
            self._say(step, name, error)
            return False
        return True

    def _take(self, step: int, name: str, media: Media) -> None:
        if not hasattr(media, "taken"):
            raise InvalidInput(
                f"A {type(media).__name__} was not logged: give Text, Table, Image, Histogram, "
                "ConfusionMatrix or Audio; numbers go to a.report(…)."
            )
        if self._items_left <= 0:
            raise _CapReached(
                "media_items",
                "It was not stored: the policy allows this launch "
                f"{counted(self._items_max, 'thing')} (tracking.media_items, docs/policy.md). More are "
                "left out without a further word; numbers and checkpoints go on.",
            )
        size_bytes, encode = media.taken(self._clean)
        # It may become smaller as it is stored, and nothing larger is.
        reserved = min(size_bytes, ITEM_BYTES_MAX)
        with self._changed:
            if reserved > self._bytes_left:
                raise self._no_room(size_bytes, self._bytes_left)
            if size_bytes > WAITING_BYTES_MAX:
                raise InvalidInput(
                    f"{size_bytes} bytes were not logged: at most {WAITING_BYTES_MAX} are taken at "
                    "once."
                )
            is_full = len(self._waiting) >= WAITING_MAX
            if is_full or self._waiting_bytes + size_bytes > WAITING_BYTES_MAX:
                raise InvalidInput(
                    f"It was not logged: {len(self._waiting)} things wait for the store already."
                )
            self._waiting.append(_Waiting(step, name, size_bytes, reserved, encode))
            self._waiting_bytes += size_bytes
            self._items_left -= 1
            self._bytes_left -= reserved
            self._wake()

    def _no_room(self, size_bytes: int, left: int) -> _CapReached:
        return _CapReached(
            "media_size",
            f"{size_bytes} bytes were not stored: {left} are left of the "
            f"{self._bytes_max} that the policy allows this launch (tracking.media_size, "
            "docs/policy.md). What is smaller is still stored; others that do not fit are left out "
            "without a further word.",
        )

    def close(self) -> None:
        """Let what waits be stored, for CLOSE_S_MAX at most."""
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(CLOSE_S_MAX)
            if self._waiting:
                complain(f"a.log: {len(self._waiting)} things that were logged last are not stored")

    def _wake(self) -> None:
        """Let the thread look, which is started by the first; under the lock."""
        self._changed.notify()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="media", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        index_at = 0.0
        while True:
            with self._changed:
                if not self._waiting and not self._is_closing:
                    self._changed.wait(INDEX_EVERY_S)
                next_one = self._waiting[0] if self._waiting else None
                is_over = self._is_closing and next_one is None
            if next_one is not None:
                self._store_one(next_one)
                with self._changed:
                    self._waiting.popleft()
                    self._waiting_bytes -= next_one.size_bytes
            if self._is_new and (is_over or time.monotonic() >= index_at):
                self._write_index()
                index_at = time.monotonic() + INDEX_EVERY_S
            if is_over:
                return

    def _store_one(self, waiting: _Waiting) -> None:
        taken_bytes = waiting.reserved_bytes
        try:
            kind, media_type, data = waiting.encode()
            if len(data) > ITEM_BYTES_MAX:
                raise InvalidInput(
                    f"{len(data)} bytes were not logged: at most {ITEM_BYTES_MAX} are."
                )
            with self._changed:
                left = self._bytes_left + taken_bytes
                if len(data) > left:
                    raise self._no_room(len(data), left)
                self._bytes_left, taken_bytes = left - len(data), len(data)
            sha256 = sha256_hex(data)
            self._store.create(part_key(self._run_id, sha256), data)
        except Exception as error:  # noqa: BLE001 - it costs this one alone
            with self._changed:
                self._items_left += 1
                self._bytes_left += taken_bytes
            self._say(waiting.step, waiting.name, error)
            return
        item = Logged(
            step=waiting.step,
            name=waiting.name,
            kind=kind,
            sha256=sha256,
            size_bytes=len(data),
            media_type=media_type,
        )
        with self._changed:
            self._items.append(item)
            self._is_new = True

    def _write_index(self) -> None:
        """Write down what is stored; what comes meanwhile is for the next time."""
        with self._changed:
            index, self._is_new = index_bytes(self._items, self._words), False
        try:
            self._store.put(self._index, index)
        except StoreError as error:
            self._is_new = True
            complain(f"a.log: the list of what was logged is not stored: {error}")

    def _say(self, step: object, name: str, error: Exception) -> None:
        """Complain of what is not stored, and let the page say it: a few times, of a cap once."""
        with self._changed:
            if isinstance(error, _CapReached):
                if error.cap in self._reached:
                    return
                self._reached.add(error.cap)
            elif len(self._words) - len(self._reached) >= WORDS_MAX:
                return
            words = self._clean(f"{name} of step {_shown(step)}: {error}")
            self._words.append(words)
            self._is_new = True
            self._wake()
        complain(f"a.log: {words}")


def _step(given: Any) -> int:
    try:
        step = int(given)
    except (ValueError, TypeError, OverflowError):
        step = -1
    if not 0 <= step <= STEPS_MAX:
        raise InvalidInput(f"It was not logged: a step is a whole number from 0 to {STEPS_MAX}.")
    return step


def _shown(step: object) -> str:
    try:
        return str(step)[:STEP_CHARACTERS_MAX]
    except ValueError:
        return "…"  # Python writes no number of more than 4300 digits

"""Text of a person's own: one UTF-8 file, or a folder of .txt files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from tracks_dagster.data.effects.datasets.documents import Document
from tracks_dagster.track.errors import InvalidInput

DOCUMENT_BYTES_MAX = 256 * 1024 * 1024  # one document is one row, and read whole
ORIGIN = "own text"


def read_documents(source: Path) -> Iterator[Document]:
    """Yield one document a file, folders in the order of the files' names.

    Raises InvalidInput for what is missing, empty, too large or no UTF-8; the file is named.
    """
    is_there = os.access(source, os.F_OK)
    if is_there and source.is_dir():
        files = sorted(path for path in source.rglob("*.txt") if path.is_file())
        if not files:
            raise InvalidInput(f"{source} holds no .txt file; name a folder that does.")
        return (_document(path, path.relative_to(source).as_posix()) for path in files)
    if not is_there or not source.is_file():
        raise InvalidInput(f"There is no file or folder {source}; name one that holds text.")
    return iter([_document(source, source.name)])


def _document(path: Path, name: str) -> Document:
    try:
        size_bytes = path.stat().st_size
        if size_bytes > DOCUMENT_BYTES_MAX:
            raise InvalidInput(
                f"{path} has {size_bytes} bytes, and a document at most {DOCUMENT_BYTES_MAX}; "
                "split it into several files of one folder."
            )
        data = path.read_bytes()
    except OSError as error:
        raise InvalidInput(f"Cannot read {path}: {error.strerror}.") from error
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidInput(
            f"{path} is no UTF-8: byte {error.start} is 0x{data[error.start]:02x}. Convert the "
            "file to UTF-8, for example with iconv, and try again."
        ) from error
    if not text.strip():
        raise InvalidInput(f"{path} holds no text; remove it or name another file.")
    return Document(name=name, text=text)

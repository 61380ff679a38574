"""English text that is already installed: the service documentation inside botocore.

A document is one service: every `documentation` string of its newest API, in the order of the file,
without HTML. Which services are held out depends on their names only.
"""

from __future__ import annotations

import gzip
import hashlib
import html
import importlib.metadata
import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path

from tracks_dagster.data.effects.datasets.text import Document
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.json_text import MANIFEST_BYTES_MAX, parse_json
from tracks_dagster.track.records import Json

TRAINING_BYTES_MAX = 6_000_000
HELDOUT_BYTES_MAX = 500_000
HELDOUT_ONE_IN = 16
MODEL_FILES = ("service-2.json", "service-2.json.gz")

_TAG = re.compile(r"<[^>]*>")
_SPACE = re.compile(r"\s+")


def training_documents() -> Iterator[Document]:
    """Yield the services that are not held out, in name order, up to 6 MB of UTF-8."""
    return _documents(heldout=False, bytes_max=TRAINING_BYTES_MAX)


def heldout_documents() -> Iterator[Document]:
    """Yield held-out services in name order, up to 0.5 MB of UTF-8."""
    return _documents(heldout=True, bytes_max=HELDOUT_BYTES_MAX)


def origin() -> str:
    """Return what the text is and of which version."""
    return f"botocore {importlib.metadata.version('botocore')}, service documentation"


def is_heldout(service: str) -> bool:
    """Whether a service is held out: one in 16, by the sha256 of its name."""
    return hashlib.sha256(service.encode()).digest()[0] % HELDOUT_ONE_IN == 0


def _documents(*, heldout: bool, bytes_max: int) -> Iterator[Document]:
    """Yield whole documents and stop before the first that would exceed `bytes_max`."""
    total_bytes = 0
    for folder in sorted(path for path in _data_folder().iterdir() if path.is_dir()):
        if is_heldout(folder.name) is not heldout:
            continue
        text = _service_text(folder)
        total_bytes += len(text.encode())
        if total_bytes > bytes_max:
            return
        if text:
            yield Document(name=folder.name, text=text)


def _data_folder() -> Path:
    found = importlib.util.find_spec("botocore")
    if found is None or not found.submodule_search_locations:
        raise InvalidInput("botocore is not installed; it brings the text: pip install boto3.")
    return Path(found.submodule_search_locations[0]) / "data"


def _service_text(folder: Path) -> str:
    """Return the text of a service's newest API version, or "" when it has no model."""
    versions = sorted(path for path in folder.iterdir() if path.is_dir())
    models = [version / name for version in versions for name in MODEL_FILES]
    newest = next((model for model in reversed(models) if model.exists()), None)
    if newest is None:
        return ""
    data = newest.read_bytes()
    text = gzip.decompress(data) if newest.suffix == ".gz" else data
    model = parse_json(text, bytes_max=MANIFEST_BYTES_MAX, foreign=True)
    return "\n".join(filter(None, map(_plain, _documentation(model))))


def _documentation(value: Json) -> Iterator[str]:
    """Yield every `documentation` string below `value`, in the order of the file."""
    if isinstance(value, dict):
        for key, item in value.items():
            if key == "documentation" and isinstance(item, str):
                yield item
            else:
                yield from _documentation(item)
    elif isinstance(value, list):
        for item in value:
            yield from _documentation(item)


def _plain(text: str) -> str:
    """Return HTML as one line of plain text."""
    return _SPACE.sub(" ", html.unescape(_TAG.sub(" ", text))).strip()

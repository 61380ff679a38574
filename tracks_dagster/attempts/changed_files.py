"""In which files two stored codes differ, by name: a digest tells nobody what was changed. Pure."""

from __future__ import annotations

import io
import tarfile

from tracks_dagster.track.records import sha256_hex
from tracks_dagster.track.text.safe_text import visible

FILES_NAMED_MAX = 4


def changed_files(before: bytes, after: bytes) -> str:
    """Return the files in words, "model.py changed, out.log new, old.py gone and 3 more".

    before, after: stored code, each a tar; "" where one of them cannot be read as one.
    """
    try:
        old, new = _files(before), _files(after)
    except tarfile.TarError:
        return ""
    found = [
        f"{visible(name)} {'new' if name not in old else 'gone' if name not in new else 'changed'}"
        for name in sorted({*old, *new})
        if old.get(name) != new.get(name)
    ]
    more = len(found) - FILES_NAMED_MAX
    return ", ".join(found[:FILES_NAMED_MAX]) + (f" and {more} more" if more > 0 else "")


def _files(code: bytes) -> dict[str, tuple[int, str, str]]:
    """Return of each file its mode, where it leads as a link, and the sha256 of its bytes."""
    with tarfile.open(fileobj=io.BytesIO(code)) as tar:
        opened = {member: tar.extractfile(member) if member.isreg() else None for member in tar}
        return {
            member.name: (
                member.mode,
                member.linkname,
                "" if file is None else sha256_hex(file.read()),
            )
            for member, file in opened.items()
        }

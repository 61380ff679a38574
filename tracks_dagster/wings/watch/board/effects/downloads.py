"""Files of a run to take away: what its evals and its script left, logs, local changes of its code.

What others wrote is never shown as a page of ours: it is sent as bytes to be saved, and every part is
verified by its sha256 before it is sent.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import chain
from urllib.parse import quote

from starlette.responses import Response, StreamingResponse

from tracks_dagster.track.addressed import read_addressed
from tracks_dagster.track.artifacts import ArtifactFile, artifacts_of, files_of, list_key, part_key
from tracks_dagster.track.errors import ObjectLost, UnknownRun
from tracks_dagster.track.json_text import MANIFEST_BYTES_MAX, parse_json
from tracks_dagster.track.ports import ObjectStore
from tracks_dagster.track.states.evals import artifact_key, result_key
from tracks_dagster.track.states.run_state import RunState, code_of
from tracks_dagster.track.track import code_diff_key

DIFF_BYTES_MAX = 2 * 1024 * 1024  # of local changes, as a page
EVAL_FILE_BYTES_MAX = 64 * 1024 * 1024  # of all files of one eval, so of each
SAVED, CSV = "application/octet-stream", "text/csv; charset=utf-8"
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")


def download(name: str, parts: Iterable[bytes], media_type: str = SAVED) -> Response:
    """Return bytes as a file to be saved; the first part is read before anything is sent."""
    found = iter(parts)
    first = next(found, b"")
    plain = _UNSAFE.sub("_", name.rpartition("/")[2])
    headers = {
        "Content-Disposition": f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(plain)}",
        "Content-Security-Policy": "default-src 'none'; sandbox",
        "Cache-Control": "no-store",
    }
    return StreamingResponse(chain((first,), found), media_type=media_type, headers=headers)


def eval_file(
    store: ObjectStore, state: RunState, eval_id: str, number: str, name: str
) -> Response:
    """Return a file that an eval left; raises UnknownRun."""
    for each in state.evals:
        if (each.opened.eval_id, str(each.opened.number)) != (
            eval_id,
            number,
        ) or each.ended is None:
            continue
        found = next((file for file in each.ended.artifacts if file.name == name), None)
        if found is not None:
            key = artifact_key(result_key(state.run_id, eval_id, each.opened.number), found.name)
            return download(name, [_read(store, key, found.sha256, EVAL_FILE_BYTES_MAX)])
    raise UnknownRun(f"{state.run_id} has no file {name!r} of {eval_id!r}; its page lists them.")


def artifact_files(store: ObjectStore, state: RunState, name: str) -> tuple[ArtifactFile, ...]:
    """Return the files of an artifact that the script left; raises UnknownRun."""
    artifacts = artifacts_of(each.body for each in state.notes)
    found = next((each for each in artifacts if each.name == name), None)
    if found is None:
        there = ", ".join(each.name for each in artifacts) or "none"
        raise UnknownRun(f"{state.run_id} has no artifact {name!r}; it has: {there}.")
    data = _read(store, list_key(state.run_id, found.sha256), found.sha256, MANIFEST_BYTES_MAX)
    return files_of(parse_json(data, bytes_max=MANIFEST_BYTES_MAX))


def artifact_file(store: ObjectStore, state: RunState, name: str, path: str) -> Response:
    """Return one file of an artifact; raises UnknownRun."""
    files = artifact_files(store, state, name)
    found = next((each for each in files if each.path == path), None)
    if found is None:
        raise UnknownRun(f"The artifact {name!r} of {state.run_id} has no file {path!r}.")

    def parts() -> Iterator[bytes]:
        for part in found.parts:
            yield _read(store, part_key(state.run_id, part), part)

    return download(path, parts())


def code_diff(store: ObjectStore, state: RunState) -> str:
    """Return what the commit of the newest attempt's code lacks; raises UnknownRun where it is not
    stored."""
    attempt = state.last_attempt
    code = state.declared.code if attempt is None else code_of(state, attempt)
    if code.diff_sha256 is None:
        raise UnknownRun(f"No local changes of the code of {state.run_id} are stored.")
    key = code_diff_key(state.run_id, code.diff_sha256)
    return _read(store, key, code.diff_sha256, DIFF_BYTES_MAX).decode("utf-8", errors="replace")


def _read(store: ObjectStore, key: str, sha256: str, bytes_max: int = MANIFEST_BYTES_MAX) -> bytes:
    try:
        return read_addressed(store, key, sha256, bytes_max=bytes_max)
    except ObjectLost as error:
        raise UnknownRun(f"It cannot be read: {error}.") from error

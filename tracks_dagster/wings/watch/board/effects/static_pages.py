"""Pages of chosen runs as files that open without a server: `tracks board --export FOLDER`.

They are the board's own pages, with links among them; a link to anything else is a plain word. The
first one compares the runs, with its numbers in it, so that its script works from a folder; of one run
it is that run's page.
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape, unescape
from pathlib import Path
from typing import cast
from urllib.parse import unquote, urlencode

from starlette.requests import Request
from starlette.types import Scope

from tracks_dagster.curves.curve import AXES
from tracks_dagster.curves.effects.media import read_bytes, read_logged
from tracks_dagster.track.errors import InvalidInput, ObjectLost
from tracks_dagster.track.media import Logged, file_ending
from tracks_dagster.track.records import Json
from tracks_dagster.track.text.units import counted
from tracks_dagster.wings.watch.board.comparison import RUNS_MAX
from tracks_dagster.wings.watch.board.effects import pages
from tracks_dagster.wings.watch.board.effects.app import Board
from tracks_dagster.wings.watch.board.effects.sources import Sources
from tracks_dagster.wings.watch.board.logged import NAMES_MAX

BUCKETS = 240  # of a curve: nobody asks for a part of it again
FILES_MAX = 2000  # that scripts logged
FILES_BYTES_MAX = 2 * 1024**3  # of these
INDEX = "index.html"
_LINK = re.compile(r'(<(?:a|img|audio|link|script)\b[^>]*?) (href|src)="(/[^"]*|\?[^"]*)"')


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What was written. index: the page to open; left_out: files of scripts beyond the bounds."""

    index: Path
    file_count: int
    total_bytes: int
    left_out: int


def write_pages(sources: Sources, run_ids: Sequence[str], folder: Path) -> Written:
    """Write the pages of these runs into `folder`, which is made and must be empty.

    Raises InvalidInput for no run, for too many, and for a folder with something in it; UnknownRun.
    """
    if not 0 < len(run_ids) <= RUNS_MAX:
        raise InvalidInput(
            f"{len(run_ids)} runs cannot be exported: name 1 to {RUNS_MAX}, as `tracks board --export "
            "FOLDER RUN RUN`."
        )
    if folder.exists() and any(folder.iterdir()):
        raise InvalidInput(f"{folder} has something in it: name a new folder, or an empty one.")
    writer = _Writer(Board(sources), sources, list(dict.fromkeys(run_ids)))
    folder.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    count = total = 0
    try:  # all of it or nothing
        for name, data in writer.files():
            (scratch / name).write_bytes(data)
            count, total = count + 1, total + len(data)
        scratch.chmod(0o755)
        scratch.replace(folder)
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise
    return Written(
        index=folder / INDEX, file_count=count, total_bytes=total, left_out=writer.left_out
    )


class _Writer:
    """Makes the files of one export."""

    def __init__(self, board: Board, sources: Sources, run_ids: list[str]) -> None:
        self._board = board
        self._sources = sources
        self._run_ids = run_ids
        self.left_out = 0
        self._media_pages: dict[str, int] = {}
        self._logged = dict(self._find_logged())
        self._names = {"/": INDEX, **{f"/{name}": name for name in pages.FILES}}
        self._is_compared = len(run_ids) > 1
        if self._is_compared:
            self._names["/compare"] = INDEX
        for run_id in run_ids:
            own = f"run-{run_id}.html" if self._is_compared else INDEX
            self._names[f"/runs/{run_id}"] = own
            self._names[f"/runs/{run_id}/report"] = f"report-{run_id}.html"
            self._names[f"/media?run={run_id}"] = _media_name(run_id, 0)
            for page in range(self._media_pages[run_id]):
                self._names[f"?{_media_query(run_id, page)}"] = _media_name(run_id, page)
        self._names |= {
            f"/media/{run}/{sha}": _file_name(item) for (run, sha), item in self._logged.items()
        }

    def files(self) -> Iterator[tuple[str, bytes]]:
        """Yield every file with its name."""
        for name in pages.FILES:
            yield name, pages.file(name)[0].encode()
        if self._is_compared:
            yield INDEX, self._comparison()
        for run_id in self._run_ids:
            address = f"/runs/{run_id}"
            request = _request(address, run_id=run_id)
            yield self._names[address], self._page(self._board.run(request).body)
            report = self._board.report(_request(f"/runs/{run_id}/report", run_id=run_id))
            yield f"report-{run_id}.html", bytes(report.body)
            for page in range(self._media_pages[run_id]):
                answer = self._board.media(_request("/media", _media_query(run_id, page)))
                yield _media_name(run_id, page), self._media_page(answer.body)
        for (run_id, _), item in self._logged.items():
            yield _file_name(item), read_bytes(self._sources.tracks.store, run_id, item)

    def _find_logged(self) -> Iterator[tuple[tuple[str, str], Logged]]:
        store, count, total = self._sources.tracks.store, 0, 0
        for run_id in self._run_ids:
            items = read_logged(store, self._sources.tracks.run(run_id)).items
            self._media_pages[run_id] = max(1, -(-len({each.name for each in items}) // NAMES_MAX))
            for item in items:
                if count >= FILES_MAX or total + item.size_bytes > FILES_BYTES_MAX:
                    self.left_out += 1
                    continue
                count, total = count + 1, total + item.size_bytes
                try:
                    read_bytes(store, run_id, item)
                except ObjectLost:
                    continue
                yield (run_id, item.sha256), item

    def _comparison(self) -> bytes:
        """Return the page with every run, and its numbers by each axis that one of them has."""
        query = urlencode([("run", run_id) for run_id in self._run_ids])
        page = self._page(self._board.compare(_request("/compare", query)).body)
        numbers = {}
        for by in AXES:
            found = self._board.all_numbers(_request("/compare.json", f"{query}&by={by}"), BUCKETS)
            if len(found["without"]) < len(self._run_ids):
                numbers[by] = found
        block = f'<script type="application/json" id="numbers">{in_script(numbers)}</script>'
        return page.replace(b"</main>", f"</main>{block}".encode(), 1)

    def _page(self, body: bytes | memoryview) -> bytes:
        """Return a page of the board as a file."""
        text = bytes(body).decode()
        text = text.replace('<html lang="en">', '<html lang="en" data-exported>', 1)
        text = text.replace("<main data-live", "<main", 1)
        return _LINK.sub(self._link, text).encode()

    def _media_page(self, body: bytes | memoryview) -> bytes:
        """Return a page of what a run logged, which says where files are left out."""
        page = self._page(body)
        if not self.left_out:
            return page
        words = (
            f"<p>{counted(self.left_out, 'file')} of what these runs logged are not here: at most "
            f"{FILES_MAX} files and {FILES_BYTES_MAX // 1024**2} MiB are written.</p></main>"
        )
        return page.replace(b"</main>", words.encode(), 1)

    def _link(self, found: re.Match[str]) -> str:
        """Return a link to a file of the export; the element without one to anything else."""
        address = unescape(found[3])
        path, _, query = address.partition("?")
        name = self._names.get(unquote(path)) if path != "/media" else None
        name = name or self._names.get(f"{path}?{query}")
        return f'{found[1]} {found[2]}="{escape(name)}"' if name else found[1]


def _media_query(run_id: str, page: int) -> str:
    return urlencode({"run": run_id, "every": "1", "page": str(page)})


def _media_name(run_id: str, page: int) -> str:
    return f"media.{page + 1}-{run_id}.html" if page else f"media-{run_id}.html"


def _file_name(item: Logged) -> str:
    return f"{item.sha256}.{file_ending(item.media_type)}"


def in_script(value: Json) -> str:
    """Return JSON for an element `script`: no text in it ends the element, or begins another."""
    text = json.dumps(value, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _request(path: str, query: str = "", **params: str) -> Request:
    scope = {
        "type": "http",
        "method": "GET",
        "path": path,
        "query_string": query.encode(),
        "headers": [],
        "path_params": params,
    }
    return Request(cast(Scope, scope))

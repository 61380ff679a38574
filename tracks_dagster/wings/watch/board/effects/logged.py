"""The page /media, and the files that it shows: what runs logged beside numbers.

Whatever a script logged is text, a picture or a sound to a browser: nothing of it runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response

from tracks_dagster.curves.effects.media import RunLogged, read_bytes, read_logged
from tracks_dagster.track.errors import ObjectLost, UnknownRun
from tracks_dagster.track.json_text import parse_json
from tracks_dagster.track.media import AS_JSON, AS_TEXT, ITEM_BYTES_MAX, PICTURES, SOUNDS, Logged
from tracks_dagster.wings.watch.board import formats
from tracks_dagster.wings.watch.board.colours import looks_of
from tracks_dagster.wings.watch.board.comparison import ColouredRun
from tracks_dagster.wings.watch.board.effects import queries
from tracks_dagster.wings.watch.board.effects.fresh import Fresh
from tracks_dagster.wings.watch.board.effects.sources import Sources
from tracks_dagster.wings.watch.board.logged import (
    NAMES_MAX,
    LoggedRow,
    LoggedView,
    Shown,
    shown,
)
from tracks_dagster.wings.watch.board.run_page import Link

RUNS_MAX = 12  # side by side
FRESH_S = 2.0  # of a run's list
# What a script logged may be hostile: a browser takes it for what its type says, and runs nothing.
FILE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; sandbox",
    "Cache-Control": "private, max-age=31536000, immutable",  # its address has its sha256
}
EMPTY = "Nothing was logged beside numbers: `a.log(step, name=Image(…))` does."


class LoggedPages:
    """Answers what asks for things that runs logged. Safe in threads."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._read: Fresh[RunLogged] = Fresh(for_s=FRESH_S, entries_max=64)

    def page(self, request: Request) -> LoggedView:
        """Return what the runs of the address logged, up to a step; raises UnknownRun."""
        run_ids = queries.listed(request, "run")
        looks = looks_of(run_ids[:RUNS_MAX])
        found = {run_id: self._logged(run_id) for run_id in looks}
        steps = [item.step for run in found.values() for item in run.items]
        last = max(steps, default=0)
        step = min(last, queries.whole(request, "step", last))
        names = sorted({item.name for run in found.values() for item in run.items})
        page = queries.page(request)
        rows = [
            LoggedRow(
                name=name,
                cells=tuple(self._cell(run_id, run, name, step) for run_id, run in found.items()),
                every=tuple(_every(found, name)) if "every" in request.query_params else (),
            )
            for name in names[page * NAMES_MAX : (page + 1) * NAMES_MAX]
        ]
        return LoggedView(
            title=f"What {' and '.join(looks) if len(looks) < 4 else f'{len(looks)} runs'} logged",
            runs=tuple(ColouredRun(run_id=run_id, colour=look) for run_id, look in looks.items()),
            rows=tuple(rows),
            first=min(steps, default=0),
            last=last,
            step=step,
            given=tuple(each for each in request.query_params.multi_items() if each[0] != "step"),
            pages=tuple(_pages(request, page, len(names))),
            words=tuple(_words(found, run_ids[RUNS_MAX:])),
        )

    def file(self, run_id: str, sha256: str) -> Response:
        """Return one thing's bytes; raises UnknownRun where the run did not log it."""
        logged = self._logged(run_id)
        item = next((each for each in logged.items if each.sha256 == sha256), None)
        if item is None:
            raise UnknownRun(f"{run_id} logged nothing with the sha256 {sha256[:64]!r}.")
        try:
            data = read_bytes(self._sources.tracks.store, run_id, item)
        except ObjectLost as error:
            raise UnknownRun(f"{error}.") from error
        media_type = item.media_type if item.media_type in (*PICTURES, *SOUNDS) else AS_TEXT
        return Response(data, media_type=media_type, headers=FILE_HEADERS)

    def _logged(self, run_id: str) -> RunLogged:
        def read() -> RunLogged:
            return read_logged(self._sources.tracks.store, self._sources.tracks.run(run_id))

        return self._read.get(run_id, read)

    def _cell(self, run_id: str, run: RunLogged, name: str, step: int) -> Shown:
        item = run.at(name, step)
        if item is None:
            return Shown()
        address = _address(run_id, item)
        if item.media_type not in (AS_TEXT, AS_JSON):
            return shown(item, address, "", None)
        text = self._text(run_id, item)
        try:
            found = (
                parse_json(text, bytes_max=ITEM_BYTES_MAX) if item.media_type == AS_JSON else None
            )
        except ValueError:
            found = None
        return shown(item, address, text, found)

    def _text(self, run_id: str, item: Logged) -> str:
        try:
            data = read_bytes(self._sources.tracks.store, run_id, item)
        except ObjectLost as error:
            return f"{error}."
        return data.decode("utf-8", "replace")


def _address(run_id: str, item: Logged) -> str:
    return f"/media/{quote(run_id)}/{item.sha256}"


def _every(found: Mapping[str, RunLogged], name: str) -> Iterable[Link]:
    """Yield links to all files of a name, by step."""
    for run_id, run in found.items():
        before = f"{run_id}, " if len(found) > 1 else ""
        for item in sorted(run.items, key=lambda each: each.step):
            if item.name == name:
                label = f"{before}step {formats.grouped(item.step)}"
                yield Link(label=label, address=_address(run_id, item))


def _pages(request: Request, page: int, count: int) -> Iterable[Link]:
    if count and "every" not in request.query_params:
        yield Link(label="files of all steps", address=queries.address(request, every="1"))
    if page:
        yield Link(label="before", address=queries.address(request, page=str(page - 1)))
    if (page + 1) * NAMES_MAX < count:
        yield Link(label="next", address=queries.address(request, page=str(page + 1)))


def _words(found: dict[str, RunLogged], others: Iterable[str]) -> Iterable[str]:
    if not any(run.items for run in found.values()):
        yield EMPTY
    named = list(others)
    if named:
        yield f"Only {RUNS_MAX} runs are shown; left out: {', '.join(named)}."
    for run_id, run in found.items():
        if run.lost_count:
            yield f"{run_id}: {run.lost_count} more were logged at steps that were lost."
        for line in run.words:
            yield f"{run_id}: {line}"

"""Folders that `wandb sync` uploads: one offline run of W&B for a training run, by W&B's own client.

Its client can only begin such a folder, not go on with one, and takes no step twice. So the folder is
written again whenever there is something new, beside the old one, and then takes its place: no step is
there twice, and uploading it again replaces what W&B has of the run (wandb#7951).
"""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracks_dagster.track import media
from tracks_dagster.track.errors import InvalidInput, TrackerError
from tracks_dagster.track.json_text import parse_json
from tracks_dagster.track.media import Logged, file_ending
from tracks_dagster.track.text.safe_text import one_line
from tracks_dagster.wings.watch.effects.trackers.exporting import News, check_key, progressed
from tracks_dagster.wings.watch.exports import (
    BELOW_0,
    NOTHING_SENT,
    ExportedRun,
    Sent,
    as_histogram,
    as_table,
    safe_key,
)

if TYPE_CHECKING:
    import wandb

CURSOR_FILE = "tracks-export.json"
NAME_CHARACTERS_MAX = 150  # of a thing's: a file's name has its step and a digest too, at most 255
WORDS_MAX = 300  # of why W&B's client refuses a thing
PREFIX = "offline-run-"  # by which `wandb sync` knows such a folder


@dataclass(frozen=True, slots=True)
class WandbFolder:
    """A folder with a folder for each run, as W&B's client leaves them."""

    folder: Path

    @property
    def name(self) -> str:
        """Where it is."""
        return f"W&B's folder {self.folder}"

    @contextmanager
    def open(self, run: ExportedRun) -> Iterator[_WandbTarget]:
        """Yield the run's folder; raises TrackerError where it cannot be written."""
        _check_client()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            yield _WandbTarget(self.folder, run)
        except OSError as error:
            raise TrackerError(
                f"{run.run_id} cannot be exported to {self.folder}: {error.strerror or error}."
            ) from error


class _WandbTarget:
    """One run's folder, which is replaced as a whole."""

    def __init__(self, folder: Path, run: ExportedRun) -> None:
        self._folder, self._place = folder, folder / f"{PREFIX}{run.run_id}"
        self.sent, self._status = _read(self._place / CURSOR_FILE, run)

    def write(self, news: News) -> None:
        """Implements `Target`."""
        first, done = next(news.rows, None), news.logged(news.sent).end
        is_same = self._status == news.run.status and done == news.sent
        if first is None and news.rollback is None and is_same:
            return
        with tempfile.TemporaryDirectory(dir=self._folder, prefix=".tracks-") as scratch:
            made, sent = _written(Path(scratch), news)
            stored = {"key": news.run.key, **sent.to_json(), "status": news.run.status}
            (made / CURSOR_FILE).write_text(json.dumps(stored), encoding="utf-8")
            if self._place.exists():
                self._place.rename(Path(scratch) / "before")
            made.rename(self._place)
        for _ in news.rows:  # all of them are in it
            pass
        self.sent = sent


def _written(folder: Path, news: News) -> tuple[Path, Sent]:
    """Write the run into a folder of W&B's below `folder`; return it, and how far it has come."""
    import wandb

    run, sent = news.run, news.sent
    settings = wandb.Settings(
        console="off",
        disable_code=True,
        disable_git=True,
        silent=True,
        x_disable_meta=True,
        x_disable_stats=True,
    )
    offline = wandb.init(
        mode="offline",
        dir=str(folder),
        id=run.key,
        name=run.run_id,
        project=run.project,
        config={**run.config, "tracks": dict(run.tags)},
        reinit="create_new",
        settings=settings,
    )
    try:
        things = news.all_logged()
        waiting = next(things, None)
        for row in news.all_rows():
            while waiting is not None and waiting[0].step <= row.step:
                _add_thing(offline, folder, news, *waiting)
                waiting = next(things, None)
            values = {name: value for name, value in row.values.items() if math.isfinite(value)}
            offline.log({**values, "_timestamp": row.at}, step=row.step)
            sent = progressed(sent, row)
        sent = news.logged(sent).end
        if sent.rollbacks:
            offline.summary["tracks.rolled_back"] = "\n".join(sent.rollbacks)
    finally:
        offline.finish(exit_code=0)
    (made,) = (folder / "wandb").glob(f"{PREFIX}*")
    return made, sent


def _add_thing(run: wandb.Run, scratch: Path, news: News, item: Logged, data: bytes) -> None:
    """Log a thing as `media/NAME`, beside the numbers; one that W&B cannot take costs itself alone."""
    import wandb

    if item.step < 0:  # which its client drops with a warning
        news.leave_out(item, BELOW_0)
        return
    key = f"media/{safe_key(item.name, NAME_CHARACTERS_MAX)}"
    path = scratch / f"thing.{file_ending(item.media_type)}"
    path.write_bytes(data)
    try:
        thing = _thing(item, data, path)
        if isinstance(thing, wandb.Table):
            # Else it would be an artifact too, outside of the folder.
            thing.bind_to_run(run, key, item.step)
        run.log({key: thing}, step=item.step)
    except Exception as error:  # noqa: BLE001 - of a damaged picture: whatever its reader raises
        news.leave_out(item, one_line(str(error).replace(str(path), path.name))[:WORDS_MAX])
    finally:
        path.unlink()


def _thing(item: Logged, data: bytes, path: Path) -> Any:
    """Return it as W&B shows it; a text is a cell of a table, never HTML. Raises ValueError."""
    import wandb

    match item.kind:
        case media.IMAGE:
            return wandb.Image(str(path))
        case media.AUDIO:
            return wandb.Audio(str(path))
        case media.HISTOGRAM:
            return wandb.Histogram(np_histogram=as_histogram(data))
        case media.TEXT:
            columns, rows = ["text"], [[data.decode(errors="replace")]]
        case _:
            columns, rows = as_table(item, data)
    return wandb.Table(columns=columns, data=rows, allow_mixed_types=True)


def _read(file: Path, run: ExportedRun) -> tuple[Sent, str]:
    """Return what the folder holds, and what the run was then."""
    try:
        stored = parse_json(file.read_bytes())
        found = Sent.from_json(stored), str(stored["status"])
    except FileNotFoundError:
        return NOTHING_SENT, ""
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise TrackerError(
            f"{file} does not say how far the export has come: {error}. Remove its folder to export "
            "the run again."
        ) from error
    check_key(stored, run, file.parent)
    return found


def _check_client() -> None:
    try:
        import wandb  # noqa: F401
    except ImportError as error:
        raise InvalidInput(
            "W&B's client is not installed, nothing was written: pip install 'tracks-dagster[wandb]'."
        ) from error

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

from tracks_dagster.track.errors import InvalidInput, TrackerError
from tracks_dagster.track.json_text import parse_json
from tracks_dagster.wings.watch.effects.trackers.exporting import News, check_key, progressed
from tracks_dagster.wings.watch.exports import NOTHING_SENT, ExportedRun, Sent

CURSOR_FILE = "tracks-export.json"
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
        first = next(news.rows, None)
        if first is None and news.rollback is None and self._status == news.run.status:
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
        for row in news.all_rows():
            values = {name: value for name, value in row.values.items() if math.isfinite(value)}
            offline.log({**values, "_timestamp": row.at}, step=row.step)
            sent = progressed(sent, row)
        if sent.rollbacks:
            offline.summary["tracks.rolled_back"] = "\n".join(sent.rollbacks)
    finally:
        offline.finish(exit_code=0)
    (made,) = (folder / "wandb").glob(f"{PREFIX}*")
    return made, sent


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

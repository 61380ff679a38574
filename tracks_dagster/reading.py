"""Opens what a reading command looks at: nothing is made, probed or written.

Beside `wiring`, which builds the application that writes. Adapters are imported where they are opened,
so that a command loads what it needs, and neither dagster nor torch.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tracks_dagster.checkpoints.ports import CheckpointReader
from tracks_dagster.home.home_folder import check_home
from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.settings import LEDGER_FILE, Settings
from tracks_dagster.track.errors import LedgerError, NothingYet, TrackBroken
from tracks_dagster.track.ports import ObjectStore
from tracks_dagster.track.text.redact import redact
from tracks_dagster.wiring import new_uid, project_nothing, read_checkpoints, utc_now

if TYPE_CHECKING:
    from tracks_dagster.ledger.effects.tracks import Tracks


def open_store_to_read(settings: Settings) -> ObjectStore:
    """Return the store for a command that only reads: nothing is made, probed or written.

    Raises NothingYet where home and store are still to be made, else what `build` raises.
    """
    from tracks_dagster.stores import open_store
    from tracks_dagster.stores.histories import HistoryStore

    check_home(settings.home)
    places = (settings.home, Path(settings.store_url))
    is_local = "://" not in settings.store_url
    is_there = any(os.access(place / "format.json", os.F_OK) for place in places)
    if is_local and not is_there and not settings.is_archive:
        raise NothingYet(
            f"Nothing was recorded in TRACKS_HOME {settings.home} yet; `tracks run` in a project's "
            "folder starts a training run there."
        )
    return HistoryStore(open_store(settings.store_url, probe=False))


def open_tracks_to_read(settings: Settings) -> Tracks:
    """Return the tracks for a command that only reads; raises as `open_store_to_read`."""
    from tracks_dagster.ledger.effects.tracks import Tracks

    store = open_store_to_read(settings)
    return Tracks(store, now=utc_now, new_uid=new_uid, project=project_nothing)


def open_dry_run(settings: Settings) -> tuple[Tracks, CheckpointReader]:
    """Return tracks and checkpoints on which everything can be tried: nothing is written below.

    Raises as `open_store_to_read`.
    """
    from tracks_dagster.ledger.effects.tracks import Tracks
    from tracks_dagster.stores.overlay import OverlayStore

    store = OverlayStore(open_store_to_read(settings))
    clean = partial(redact, secrets=settings.secrets)
    tracks = Tracks(store, now=utc_now, new_uid=new_uid, project=project_nothing, clean=clean)
    return tracks, read_checkpoints(store)


def open_ledger_to_read(settings: Settings) -> Ledger:
    """Return the ledger for a command that only reads; raises LedgerError when there is none."""
    from tracks_dagster.ledger.effects import database as ledger

    if settings.is_archive:
        return _ledger_of_archive(settings)
    check_home(settings.home)
    if settings.postgres_url is None and not os.access(settings.home / LEDGER_FILE, os.F_OK):
        raise LedgerError(
            f"There is no ledger at {settings.home / LEDGER_FILE}; `tracks reindex` builds it from "
            "the tracks."
        )
    return ledger.open_ledger_to_read(settings.ledger_url)


def _ledger_of_archive(settings: Settings) -> Ledger:
    """Return a ledger of an exported run, in a folder that is removed with this process."""
    from tracks_dagster.ledger.effects.database import open_ledger
    from tracks_dagster.ledger.effects.projector import Projector

    folder = tempfile.mkdtemp(prefix="tracks-archive-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    ledger = open_ledger(f"sqlite:///{folder}/{LEDGER_FILE}")
    with suppress(TrackBroken):  # what comes before the break is taken in
        Projector(open_store_to_read(settings), ledger).scan()
    return ledger

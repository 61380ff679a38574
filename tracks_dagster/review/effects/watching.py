"""What the core asks of the wing that watches runs: lights, alerts of a machine, who is notified."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Protocol, cast

from tracks_dagster.attempts.idle import IdleDay
from tracks_dagster.ledger.effects.ticks import Tick
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.retry.contracts import Contracts, refused
from tracks_dagster.review.lights import Lights
from tracks_dagster.track.ports import ObjectStore
from tracks_dagster.track.records import Record
from tracks_dagster.wing import load, wings

FindFile = Callable[
    [str], Path | None
]  # of settings, by the variable that names it; None: there is none


class Watching(Protocol):
    """What the module has that a wing names as `watching`: a function each."""

    def look_back(
        self,
        store: ObjectStore,
        records: Iterable[Record],
        attempt_ids: Collection[int],
        now: datetime,
    ) -> Mapping[int, Lights]:
        """Return the lights of these attempts of a run: as of the last line of each that ended, else
        now. records: of its track, from the first on. Raises what the store raises.
        """

    def watch_machine(self, tracks: Tracks, pool: str, day: IdleDay, now: datetime) -> Tick[None]:
        """Record what begins and ends of alerts of a machine's devices, in the track of its pool.

        day: as it was just seen.
        """

    def check_notified(self, contracts: Contracts, stage: str, team: str, find: FindFile) -> None:
        """Raise InvalidInput where the policy asks that alerts of a stage reach somebody, and red ones
        of this team would not."""


class Unwatched:
    """Where no wing watches: nothing is judged or recorded, and nobody is notified."""

    def look_back(
        self,
        store: ObjectStore,
        records: Iterable[Record],
        attempt_ids: Collection[int],
        now: datetime,
    ) -> Mapping[int, Lights]:
        """Return none."""
        return {}

    def watch_machine(self, tracks: Tracks, pool: str, day: IdleDay, now: datetime) -> Tick[None]:
        """Record nothing."""
        return Tick()

    def check_notified(self, contracts: Contracts, stage: str, team: str, find: FindFile) -> None:
        """Raise InvalidInput where the policy asks that alerts of the stage reach somebody."""
        if stage in contracts.monitoring.notify_stages:
            raise refused(
                "monitoring.notify_stages",
                f"alerts of a {stage} run would reach nobody: what sends them is not installed.",
            )


def watching() -> Watching:
    """Return the functions of the wing that watches."""
    package = next((name for name, wing in wings().items() if wing.watching), None)
    if package is None:
        return Unwatched()
    return cast(Watching, load(package, wings()[package].watching))

"""What a thing rests on, what came of it, and which of that is in quarantine: one reading of it all."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from tracks_dagster.holds.effects.descent import (
    Ancestors,
    Descendants,
    ancestors,
    descendants,
)
from tracks_dagster.holds.effects.holds import quarantined_sources
from tracks_dagster.holds.effects.things import find_exact, find_thing
from tracks_dagster.holds.hold import Hold
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.track.body_json import to_json
from tracks_dagster.track.records import Json, format_time

SOURCE_KEYS = ("source", "by", "why", "at", "track", "seq", "through")  # of one in quarantine


@dataclass(frozen=True, slots=True, kw_only=True)
class Lineage:
    """The lineage of one thing. called: its name with its kind; then: as of when, None for now."""

    called: str
    then: str | None
    holds: tuple[Hold, ...]
    rests_on: Ancestors
    came_of_it: Descendants

    @property
    def facts(self) -> dict[str, Json]:
        """The same as `tracks lineage --json` prints it."""
        sources = [{key: to_json(hold)[key] for key in SOURCE_KEYS} for hold in self.holds]
        asked = {"thing": self.called, "as_of": self.then, "quarantined": sources}
        return {**asked, "rests_on": to_json(self.rests_on), "came_of_it": to_json(self.came_of_it)}


def read_lineage(
    tracks: Tracks, ledger: Ledger, name: str, *, as_of: datetime | None = None
) -> Lineage:
    """Return the lineage of what `name` names; raises UnknownRun or InvalidInput as `find_thing`."""
    asked = find_thing(tracks, ledger, name)
    found = find_exact(tracks, ledger, asked)
    return Lineage(
        called=found.called,
        then=None if as_of is None else format_time(as_of),
        holds=quarantined_sources(tracks, ledger, asked, as_of=as_of),
        rests_on=ancestors(ledger, found, as_of=as_of),
        came_of_it=descendants(ledger, found, as_of=as_of),
    )

"""The blast radius of a source: what came of it, what of that is in use, and what is clean and why."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from tracks_dagster.holds.effects.descent import Descendants, Group, descendants
from tracks_dagster.holds.effects.holds import Holds
from tracks_dagster.holds.effects.quarantines import SOURCES
from tracks_dagster.holds.effects.things import find_exact
from tracks_dagster.holds.lineage import Thing, ThingKind
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.records import format_time


@dataclass(frozen=True, slots=True, kw_only=True)
class Clean:
    """What descends from nothing of the source, though one might think so, and why. of: the rest of
    what it is, after `what` and its plural."""

    what: str
    of: str
    why: str
    group: Group


@dataclass(frozen=True, slots=True, kw_only=True)
class Blast:
    """What came of a source. as_of: None for all that is recorded. quarantine: since when nothing may
    start from it as of then, by whom and why; None where it may. is_promoted: an alias names, or named,
    a descendant."""

    source: str
    as_of: str | None
    quarantine: str | None
    is_promoted: bool
    hit: Descendants
    clean: tuple[Clean, ...]


_APART = {  # why an attempt of a run that was hit is not
    ThingKind.SNAPSHOT: "they were opened on another one, and resumed from nothing that holds it",
    ThingKind.CHECKPOINT: "they resumed from other checkpoints, or began before it was there",
    ThingKind.NODE: "they ran on other nodes, and resumed from no checkpoint that was saved on it",
    ThingKind.CODE: "no gang of theirs was placed with that code",
    ThingKind.ATTEMPT: "they resumed from checkpoints that the attempt did not work on",
}


def blast(tracks: Tracks, ledger: Ledger, thing: Thing, *, as_of: datetime | None = None) -> Blast:
    """Return the blast radius of `thing`.

    Raises UnknownRun naming the nearest, InvalidInput for what is ambiguous or no source, LedgerError.
    """
    if thing.kind not in SOURCES:
        kinds = ", ".join(f"{kind}:…" for kind in SOURCES)
        raise InvalidInput(
            f"{thing} is no source; ask for one of {kinds}, or `tracks lineage {thing}`."
        )
    source = find_exact(tracks, ledger, thing)
    hit = descendants(ledger, source, as_of=as_of)
    own = Holds(tracks, as_of=as_of).of_exact(source).values()
    mine = next((hold for hold in own if hold.source == source.called and hold.at), None)
    since = format_time(mine.at) if mine is not None and mine.at is not None else ""
    quarantine = f"since {since} by {mine.by}: {mine.why}" if mine is not None else None
    return Blast(
        source=source.called,
        as_of=format_time(as_of) if as_of is not None else None,
        quarantine=quarantine,
        is_promoted=hit.promotions.count > 0,
        hit=hit,
        clean=_clean(thing.kind, hit),
    )


def _clean(kind: ThingKind, hit: Descendants) -> tuple[Clean, ...]:
    told = (
        Clean(
            what="attempt",
            of="",
            why="they were opened on it and consumed no sample",
            group=hit.idle,
        ),
        Clean(what="attempt", of=" of the same runs", why=_APART[kind], group=hit.apart),
        Clean(
            what="checkpoint",
            of=" of the same runs",
            why="they were saved before it came in, or by attempts that it did not reach",
            group=hit.spared,
        ),
    )
    return tuple(each for each in told if each.group.count)

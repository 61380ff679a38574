"""Put a source in quarantine in a person's name, and release it: one record each.

A snapshot's stands in its dataset's track, where every attempt that is opened looks for it already; all
others stand in the track of quarantines. What descends from the source is touched by neither.
"""

from __future__ import annotations

from dataclasses import dataclass

from tracks_dagster.holds.effects.snapshot_quarantines import quarantine_snapshot, release_snapshot
from tracks_dagster.holds.effects.things import Exact, find_exact
from tracks_dagster.holds.lineage import Thing, ThingKind
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.track.bodies import SourceDecision
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.records import Draft, Kind, Record
from tracks_dagster.track.states.quarantine_state import QuarantineState
from tracks_dagster.track.text.safe_text import check_words

SOURCES = (
    ThingKind.SNAPSHOT,
    ThingKind.CHECKPOINT,
    ThingKind.NODE,
    ThingKind.CODE,
    ThingKind.ATTEMPT,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """What was decided about which source. record: None when it stood so already."""

    source: Exact
    record: Record | None


def quarantine_source(
    tracks: Tracks, ledger: Ledger, thing: Thing, *, by: str, why: str
) -> Decided:
    """Let nothing new start from `thing`, or from what descends from it. Idempotent.

    Attempts that run go on. Raises UnknownRun naming the nearest, and InvalidInput for what is
    ambiguous or no source.
    """
    check_words({"why": why, "by": by})
    source = find_exact(tracks, ledger, _check_source(thing, "put in quarantine"))
    if source.snapshot is not None:
        record = quarantine_snapshot(tracks, source.snapshot, by=by, why=why)
        return Decided(source=source, record=record)
    body = SourceDecision(source=source.text, called=source.called, by=by, why=why)
    draft = tracks.draft(Kind.SOURCE_QUARANTINED, body)

    def choose(state: QuarantineState | None) -> Draft | None:
        return None if state is not None and source.text in state.in_force else draft

    return Decided(source=source, record=tracks.decide_quarantines(choose))


def release_source(tracks: Tracks, ledger: Ledger, thing: Thing, *, by: str, why: str) -> Decided:
    """End the quarantine of `thing`: what descends from it may be built upon again. Idempotent.

    A refused retry is not repeated by itself: `tracks retry` opens it. Raises as `quarantine_source`.
    """
    check_words({"why": why, "by": by})
    _check_source(thing, "released")
    source = _in_quarantine(tracks, thing) or find_exact(tracks, ledger, thing)
    if source.snapshot is not None:
        record = release_snapshot(tracks, source.snapshot, by=by, why=why)
        return Decided(source=source, record=record)
    body = SourceDecision(source=source.text, called=source.called, by=by, why=why)
    draft = tracks.draft(Kind.SOURCE_RELEASED, body)

    def choose(state: QuarantineState | None) -> Draft | None:
        return draft if state is not None and source.text in state.in_force else None

    return Decided(source=source, record=tracks.decide_quarantines(choose))


def _in_quarantine(tracks: Tracks, thing: Thing) -> Exact | None:
    """Find what is in quarantine by the name that its record has, also where its run or the ledger is
    lost."""
    state = tracks.find_quarantines()
    for text, quarantine in (state.in_force if state is not None else {}).items():
        if str(thing) in (text, quarantine.body.called):
            return Exact(kind=thing.kind, text=text, called=quarantine.body.called)
    return None


def _check_source(thing: Thing, verb: str) -> Thing:
    if thing.kind not in SOURCES:
        kinds = ", ".join(kind.value for kind in SOURCES)
        raise InvalidInput(
            f"{thing} is a {thing.kind}, which cannot be {verb}; what can: {kinds}. `tracks lineage "
            f"{thing}` shows what it comes from."
        )
    return thing

"""The blast radius of a source: what came of it, what of that is in use, and what is clean and why.

Also renders lineage, up and down, as bounded lines for people.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from tracks_dagster.holds.effects.descent import (
    Ancestor,
    Ancestors,
    Descendants,
    Group,
    Named,
    descendants,
)
from tracks_dagster.holds.effects.holds import Holds
from tracks_dagster.holds.effects.quarantines import SOURCES
from tracks_dagster.holds.effects.things import find_exact
from tracks_dagster.holds.hold import ThingKind
from tracks_dagster.holds.lineage import Thing
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.records import format_time
from tracks_dagster.track.text.units import counted

_APART = {  # why an attempt of a run that was hit is not
    ThingKind.SNAPSHOT: "they were opened on another one, and resumed from nothing that holds it",
    ThingKind.CHECKPOINT: "they resumed from other checkpoints, or started before it was there",
    ThingKind.NODE: "they ran on other nodes, and resumed from no checkpoint that was saved on it",
    ThingKind.CODE: "no gang of theirs was placed with that code",
    ThingKind.ATTEMPT: "they resumed from checkpoints that the attempt did not work on",
}
IN_USE_HERE = "in use as far as this archive knows"  # another run may hold the alias
LINKS_NAMED_MAX = 20  # attempts of a chain, the nearest first
NODES_NAMED_MAX = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Clean:
    """Things that might seem to descend from it, and why not. of: follows `what` in a sentence."""

    what: str
    of: str
    why: str
    group: Group


@dataclass(frozen=True, slots=True, kw_only=True)
class Blast:
    """What came of a source.

    as_of: None for all that is recorded. quarantine: since when, by whom and why it is in quarantine;
    None where it is not. is_promoted: an alias names, or named, a descendant.
    """

    source: str
    as_of: str | None
    quarantine: str | None
    is_promoted: bool
    hit: Descendants
    clean: tuple[Clean, ...]


def blast(tracks: Tracks, ledger: Ledger, thing: Thing, *, as_of: datetime | None = None) -> Blast:
    """Return the blast radius of `thing`.

    Raises UnknownRun naming the nearest, InvalidInput for what is ambiguous or no source, LedgerError.
    """
    if thing.kind not in SOURCES:
        kinds = ", ".join(f"{kind}:…" for kind in SOURCES)
        raise InvalidInput(
            f"{thing} is not a source; ask for one of {kinds}, or `tracks lineage {thing}`."
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
    candidates = (
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
    return tuple(each for each in candidates if each.group.count)


def blast_lines(radius: Blast, *, of_archive: bool = False) -> Iterator[str]:
    """Yield what came of a source: first what is in use, then all of it, then what is clean.

    of_archive: read from an exported run, which does not know other runs that took an alias since.
    """
    as_of = f" as of {radius.as_of}" if radius.as_of else ""
    when = "in use then" if radius.as_of else "in use now"
    yield f"{radius.source}{as_of}: {_sum(radius.hit, when=IN_USE_HERE if of_archive else when)}"
    if radius.quarantine is not None:
        yield f"  in quarantine {radius.quarantine}"
    yield from descendants_lines(radius.hit, of_archive=of_archive)
    for each in radius.clean:
        what = counted(each.group.count, each.what)
        yield f"clean: {what}{each.of}: {each.why}"
        yield from _named_lines(each.group, {})


def descendants_lines(hit: Descendants, *, of_archive: bool = False) -> Iterator[str]:
    """Yield each kind downstream with its count and the newest by name."""
    shown = {"in use": IN_USE_HERE} if of_archive else {}
    for what, group in (
        ("promotion", hit.promotions),
        ("checkpoint", hit.checkpoints),
        ("eval", hit.evals),
        ("attempt", hit.attempts),
    ):
        if group.count:
            yield f"{counted(group.count, what)}{_statuses(group, shown)}"
            yield from _named_lines(group, shown)


def ancestors_lines(found: Ancestors) -> Iterator[str]:
    """Yield the attempts that a thing rests on, the nearest first, each below what came of it."""
    for depth, link in enumerate(found.chain[:LINKS_NAMED_MAX]):
        yield f"{'  ' * min(depth, 8)}└ {_link(link)}"
    left = len(found.chain) - LINKS_NAMED_MAX
    if left > 0 or found.is_cut:
        more = "more than can be followed" if found.is_cut else f"{left} more attempts"
        yield f"  … and {more}; --json lists up to 1000"
    if found.missing is not None:
        yield f"  what came before is not known: the ledger does not hold {found.missing}"


def _sum(hit: Descendants, *, when: str) -> str:
    if not any((hit.attempts.count, hit.checkpoints.count, hit.evals.count, hit.promotions.count)):
        return "nothing descends from it."
    in_use = (hit.promotions.counts or {}).get("in use", 0)
    aliases = counted(in_use, "alias", "aliases") if in_use else "no alias"
    used = f"{aliases} {when} rest{'' if in_use > 1 else 's'} on it"
    return (
        f"{counted(hit.attempts.count, 'attempt')} in {counted(hit.run_count, 'run')} and "
        f"{counted(hit.checkpoints.count, 'checkpoint')} descend from it; {used}."
    )


def _link(link: Ancestor) -> str:
    up_to = "" if link.up_to_step is None else f", up to its checkpoint of step {link.up_to_step}"
    used = link.consumed.words if link.consumed is not None else "no sample of its own"
    nodes = ", ".join(link.nodes[:NODES_NAMED_MAX]) or "nowhere yet"
    more = (
        f" and {len(link.nodes) - NODES_NAMED_MAX} more"
        if len(link.nodes) > NODES_NAMED_MAX
        else ""
    )
    code = (link.git_commit or link.code_sha256 or "of no commit")[:12]
    start = f"from step {link.from_step}" if link.from_step else "from step 0"
    return (
        f"{link.attempt} {start}{up_to}: {used} of {link.snapshot or 'no snapshot'}, on {nodes}{more}, "
        f"code {code} (tracks-dagster {link.package_version})"
    )


def _named_lines(group: Group, shown: Mapping[str, str]) -> Iterator[str]:
    for each in group.newest:
        yield f"  {_name(each, shown)}"
    if group.count > len(group.newest):
        yield f"  … and {group.count - len(group.newest)} older"


def _name(named: Named, shown: Mapping[str, str]) -> str:
    status = shown.get(named.status, named.status)
    more = ", ".join(part for part in (status, named.detail) if part)
    return f"{named.thing} ({named.at[:19]}Z{f', {more}' if more else ''})"


def _statuses(group: Group, shown: Mapping[str, str]) -> str:
    if not group.counts:
        return ":"
    parts: Sequence[str] = [
        f"{n} {shown.get(status, status)}" for status, n in sorted(group.counts.items())
    ]
    return f" ({', '.join(parts)}):"

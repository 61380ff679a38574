"""Reads the lineage of a thing for its page."""

from __future__ import annotations

from collections.abc import Mapping

from tracks_dagster.holds.effects.descent import Ancestor, Descendants, Group, Named
from tracks_dagster.holds.effects.lineage import read_lineage
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.wings.watch.board.lineage import LineagePage, Node, Relations, lineage_page

DIGITS = 12


def read_page(tracks: Tracks, ledger: Ledger, name: str) -> LineagePage:
    """Return the page of what `name` names; raises UnknownRun, InvalidInput, LedgerError."""
    found = read_lineage(tracks, ledger, name)
    rests_on = found.rests_on
    missing = f"Before that: {rests_on.missing} is not in the ledger." if rests_on.missing else ""
    groups = _groups(found.came_of_it)
    of = Relations(
        before=[_before(each) for each in rests_on.chain],
        after={kind: [_after(each) for each in group.newest] for kind, group in groups.items()},
        counts={kind: group.count for kind, group in groups.items()},
        sources=[hold.source for hold in found.holds],
        holds=[hold.sentence for hold in found.holds],
        missing=missing,
    )
    return lineage_page(found.called, of)


def _groups(hit: Descendants) -> Mapping[str, Group]:
    """Return what came of it by kind: what an alias may name first."""
    return {
        "promotion": hit.promotions,
        "checkpoint": hit.checkpoints,
        "eval": hit.evals,
        "attempt": hit.attempts,
    }


def _before(link: Ancestor) -> Node:
    used = link.consumed.words if link.consumed is not None else "no sample of its own"
    data = link.snapshot or "no snapshot"
    code = (link.git_commit or link.code_sha256 or "")[:DIGITS]
    up_to = "" if link.up_to_step is None else f" to {link.up_to_step}"
    names = {
        link.attempt,
        f"snapshot:{link.snapshot}",
        *(f"node:{node}" for node in link.nodes),
        *(f"code:{each}" for each in (link.git_commit, link.code_sha256, link.package_version)),
        f"checkpoint:{link.attempt.partition(':')[2]}@{link.up_to_step}",
    }
    return Node(
        thing=link.attempt,
        words=f"steps {link.from_step}{up_to}; {used} of {data}{f'; code {code}' if code else ''}",
        status=link.reason or "open",
        uses=frozenset(names),
    )


def _after(named: Named) -> Node:
    return Node(
        thing=named.thing,
        words="; ".join(filter(None, (named.detail, f"{named.at[:19]}Z"))),
        status=named.status,
    )

"""Lineage in words, line by line: for people, bounded, with what was left out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tracks_dagster.holds.effects.blast import Blast
from tracks_dagster.holds.effects.descent import Ancestor, Ancestors, Descendants, Group, Named

IN_USE_HERE = "in use as far as this archive knows"  # another run may hold the alias
LINKS_TOLD_MAX = 20  # attempts of a chain, the nearest first
NODES_TOLD_MAX = 4


def blast_lines(told: Blast, *, of_archive: bool = False) -> Iterator[str]:
    """Yield what came of a source: first what is in use, then all of it, then what is clean.

    of_archive: told from an exported run, which knows of no other run that holds an alias since.
    """
    as_of = f" as of {told.as_of}" if told.as_of else ""
    when = "in use then" if told.as_of else "in use now"
    yield f"{told.source}{as_of}: {_sum(told.hit, when=IN_USE_HERE if of_archive else when)}"
    if told.quarantine is not None:
        yield f"  in quarantine {told.quarantine}"
    yield from descendants_lines(told.hit, of_archive=of_archive)
    for each in told.clean:
        what = _count(each.group.count, each.what)
        yield f"clean: {what}{each.of}: {each.why}"
        yield from _named_lines(each.group, {})


def descendants_lines(hit: Descendants, *, of_archive: bool = False) -> Iterator[str]:
    """Yield each kind downstream with its count and the newest by name; of_archive: as there."""
    shown = {"in use": IN_USE_HERE} if of_archive else {}
    for what, group in (
        ("promotion", hit.promotions),
        ("checkpoint", hit.checkpoints),
        ("eval", hit.evals),
        ("attempt", hit.attempts),
    ):
        if group.count:
            yield f"{_count(group.count, what)}{_statuses(group, shown)}"
            yield from _named_lines(group, shown)


def ancestors_lines(found: Ancestors) -> Iterator[str]:
    """Yield the attempts that a thing rests on, the nearest first, each below what came of it."""
    for depth, link in enumerate(found.chain[:LINKS_TOLD_MAX]):
        yield f"{'  ' * min(depth, 8)}└ {_link(link)}"
    left = len(found.chain) - LINKS_TOLD_MAX
    if left > 0 or found.is_cut:
        more = "more than can be followed" if found.is_cut else f"{left} more attempts"
        yield f"  … and {more}; --json lists up to 1000"
    if found.missing is not None:
        yield f"  what came before is not known: the ledger does not hold {found.missing}"


def _sum(hit: Descendants, *, when: str) -> str:
    if not any((hit.attempts.count, hit.checkpoints.count, hit.evals.count, hit.promotions.count)):
        return "nothing descends from it."
    in_use = (hit.promotions.counts or {}).get("in use", 0)
    aliases = _count(in_use, "alias", "aliases") if in_use else "no alias"
    used = f"{aliases} {when} rest{'' if in_use > 1 else 's'} on it"
    return (
        f"{_count(hit.attempts.count, 'attempt')} in {_count(hit.run_count, 'run')} and "
        f"{_count(hit.checkpoints.count, 'checkpoint')} descend from it; {used}."
    )


def _link(link: Ancestor) -> str:
    up_to = "" if link.up_to_step is None else f", up to its checkpoint of step {link.up_to_step}"
    used = link.consumed.words if link.consumed is not None else "no sample of its own"
    nodes = ", ".join(link.nodes[:NODES_TOLD_MAX]) or "nowhere yet"
    more = (
        f" and {len(link.nodes) - NODES_TOLD_MAX} more" if len(link.nodes) > NODES_TOLD_MAX else ""
    )
    commit = (link.git_commit or "no commit")[:12]
    began = f"from step {link.from_step}" if link.from_step else "from the beginning"
    return (
        f"{link.attempt} {began}{up_to}: {used} of {link.snapshot}, on {nodes}{more}, "
        f"code {commit} ({link.package_version})"
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


def _count(n: int, one: str, many: str | None = None) -> str:
    return f"{n} {one if n == 1 else many or f'{one}s'}"

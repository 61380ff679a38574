"""A compute pool: the health of its nodes, or of one machine's devices, and who holds these. A pure
fold over its track.

A quarantine ends by the clock, without a record: the caller gives the time. A lease ends with what it
was given for, as other tracks say (`scheduling.leases`); here it counts until a later one frees it, or
a person gives it back.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime

from tracks_dagster.track.bodies import (
    DevicesLeased,
    LeaseConfirmed,
    LeaseReleased,
    NodeQuarantined,
    NodeReleased,
    NodeStruck,
)
from tracks_dagster.track.body_json import body_of, from_json
from tracks_dagster.track.errors import InvalidDecision, TrackBroken
from tracks_dagster.track.records import Draft, Kind, Record, parse_time
from tracks_dagster.track.states import alerts
from tracks_dagster.track.states.alerts import Alerts


@dataclass(frozen=True, slots=True, kw_only=True)
class Strike:
    """One `node_struck`. struck_at: when its attempt ended."""

    seq: int
    at: datetime
    struck_at: datetime
    body: NodeStruck


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """One `node_released`."""

    seq: int
    at: datetime
    body: NodeReleased


@dataclass(frozen=True, slots=True, kw_only=True)
class Quarantine:
    """One `node_quarantined`. release: the first one after it, None where nobody released the node."""

    seq: int
    at: datetime
    until_at: datetime
    body: NodeQuarantined
    release: Release | None = None

    @property
    def is_by_rule(self) -> bool:
        """Whether strikes led to it, not a person."""
        return bool(self.body.counted_seqs)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeState:
    """A node, or one device of a machine by its name, with its strikes, quarantines and releases, each
    in the order of the track."""

    node: str
    strikes: tuple[Strike, ...] = ()
    quarantines: tuple[Quarantine, ...] = ()
    releases: tuple[Release, ...] = ()

    def quarantine_at(self, now: datetime) -> Quarantine | None:
        """Return the quarantine that holds at `now`, or None. The newest decision counts."""
        if not self.quarantines:
            return None
        newest = self.quarantines[-1]
        return newest if newest.release is None and now < newest.until_at else None

    @property
    def released_seq(self) -> int:
        """The newest release; strikes before it no longer count. -1 where there is none."""
        return self.releases[-1].seq if self.releases else -1

    @property
    def standing(self) -> tuple[Strike, ...]:
        """The strikes that no release has forgiven."""
        return tuple(strike for strike in self.strikes if strike.seq > self.released_seq)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """One `devices_leased`. confirmed_at: when what it was given for started under it, at the latest;
    confirmed_by: the Dagster run that said so last."""

    seq: int
    at: datetime
    body: DevicesLeased
    confirmed_at: datetime | None = None
    confirmed_by: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolState:
    """A pool's nodes, the one named first first. `head` is the last record folded.

    devices: those that a record strikes, quarantines or releases alone, likewise; their nodes are not
    among `nodes` for that. leases: those that no later one has freed and nobody gave back, in the
    order of the track.
    alerts: about its devices; one is open until its `alert_cleared`.
    """

    head: Record
    pool: str
    nodes: tuple[NodeState, ...] = ()
    devices: tuple[NodeState, ...] = ()
    leases: tuple[Lease, ...] = ()
    alerts: Alerts = ()

    def node(self, name: str) -> NodeState | None:
        """Return the node of that name, or None when no record names it."""
        return next((node for node in self.nodes if node.node == name), None)

    def device(self, name: str) -> NodeState | None:
        """Return the device of that name, or None when no record blames or releases it."""
        return next((device for device in self.devices if device.node == name), None)

    @property
    def by_device(self) -> PoolState:
        """The same pool with its devices as its nodes, for the rule that both have."""
        return replace(self, nodes=self.devices)

    def lease_of(self, key: str) -> Lease | None:
        """Return the lease of that attempt, or attempt at an eval; None where it has none."""
        return next((lease for lease in self.leases if lease.body.key == key), None)

    def has_struck(self, run_id: str, attempt_id: int) -> bool:
        """Whether that attempt's end is a strike already."""
        return any(
            (strike.body.run_id, strike.body.attempt_id) == (run_id, attempt_id)
            for node in (*self.nodes, *self.devices)
            for strike in node.strikes
        )

    def quarantined_at(self, now: datetime) -> tuple[Quarantine, ...]:
        """Return the quarantines that hold at `now`, the newest decision first."""
        found = [q for node in self.nodes if (q := node.quarantine_at(now)) is not None]
        return tuple(sorted(found, key=lambda quarantine: -quarantine.seq))


def fold(records: Iterable[Record], state: PoolState | None = None) -> PoolState | None:
    """Return the state after `records`, starting from `state`; None for an empty track."""
    for record in records:
        state = apply(state, record)
    return state


def apply(state: PoolState | None, record: Record) -> PoolState:
    """Return the state after one more record; raises TrackBroken for one that cannot come next."""
    match record.kind:
        case Kind.NODE_STRUCK:
            struck = body_of(NodeStruck, record)
            at = _time(record, struck.struck_at)
            strike = Strike(seq=record.seq, at=record.at, struck_at=at, body=struck)
            before = _member(state, struck)
            return _with(state, record, struck, _struck(state, before, strike))
        case Kind.NODE_QUARANTINED:
            body = body_of(NodeQuarantined, record)
            until_at = _time(record, body.until_at)
            decided = Quarantine(seq=record.seq, at=record.at, until_at=until_at, body=body)
            before = _member(state, body)
            after = replace(before, quarantines=(*before.quarantines, decided))
            return _with(state, record, body, after)
        case Kind.NODE_RELEASED:
            released = body_of(NodeReleased, record)
            release = Release(seq=record.seq, at=record.at, body=released)
            after = _released(_member(state, released), release)
            return _with(state, record, released, after)
        case Kind.DEVICES_LEASED:
            leased = body_of(DevicesLeased, record)
            state = _of(state, record, leased.pool)
            kept = (lease for lease in state.leases if lease.seq not in leased.freed)
            return replace(state, leases=(*kept, Lease(seq=record.seq, at=record.at, body=leased)))
        case Kind.LEASE_CONFIRMED:
            confirmed = body_of(LeaseConfirmed, record)
            state = _of(state, record, confirmed.pool)
            leases = (_confirmed(lease, record, confirmed) for lease in state.leases)
            return replace(state, leases=tuple(leases))
        case Kind.LEASE_RELEASED:
            freed = body_of(LeaseReleased, record)
            state = _of(state, record, freed.pool)
            kept = (lease for lease in state.leases if lease.seq != freed.lease_seq)
            return replace(state, leases=tuple(kept))
        case Kind.NOTE if state is not None:
            return replace(state, head=record)
        case Kind.ALERT if state is not None:
            return replace(state, head=record, alerts=alerts.raised(state.alerts, record))
        case Kind.ALERT_CLEARED if state is not None:
            return replace(state, head=record, alerts=alerts.cleared(state.alerts, record))
        case _:
            raise TrackBroken(
                f"Record {record.seq} ({record.kind}) does not belong there in a compute pool's track."
            )


def check(state: PoolState | None, pool: str, draft: Draft) -> Draft:
    """Return `draft` if it may be the next record of `pool`'s track; raises InvalidDecision."""
    named = draft.body.get("pool")
    if draft.kind in _NAME_POOL and named != pool:
        raise InvalidDecision(f"Cannot append {draft.kind}: it is of pool {named!r}, not {pool!r}.")
    if draft.kind not in _NAME_POOL and state is None:
        raise InvalidDecision(f"Cannot append {draft.kind}: no record names pool {pool!r} yet.")
    problem = None
    if draft.kind is Kind.DEVICES_LEASED:
        leases = state.leases if state is not None else ()
        problem = _objection_to_lease(leases, from_json(DevicesLeased, draft.body))
    elif draft.kind in (Kind.LEASE_CONFIRMED, Kind.LEASE_RELEASED):
        seq = draft.body.get("lease_seq")
        is_there = state is not None and any(lease.seq == seq for lease in state.leases)
        problem = None if is_there else f"there is no lease {seq}"
    if problem is not None:
        raise InvalidDecision(f"Cannot append {draft.kind}: {problem}.")
    return draft


_NAME_POOL = frozenset(
    {
        Kind.NODE_STRUCK,
        Kind.NODE_QUARANTINED,
        Kind.NODE_RELEASED,
        Kind.DEVICES_LEASED,
        Kind.LEASE_CONFIRMED,
        Kind.LEASE_RELEASED,
    }
)


def _objection_to_lease(leases: tuple[Lease, ...], wanted: DevicesLeased) -> str | None:
    """Return why these devices may not be leased beside `leases`, or None."""
    if not wanted.devices or len(set(wanted.devices)) < len(wanted.devices):
        return f"it names no devices, or one twice: {', '.join(wanted.devices) or 'none'}"
    standing = {lease.seq: lease for lease in leases}
    unknown = [seq for seq in wanted.freed if seq not in standing]
    if unknown:
        return f"it frees lease {unknown[0]}, which is not there"
    for lease in leases:
        if lease.seq in wanted.freed:
            continue
        if lease.body.key == wanted.key:
            return f"{wanted.key} has lease {lease.seq} already"
        shared = set(lease.body.devices) & set(wanted.devices)
        if shared and None in (lease.body.memory_bytes, wanted.memory_bytes):
            return f"lease {lease.seq} of {lease.body.key} holds {min(shared)}"
    return None


def _confirmed(lease: Lease, record: Record, body: LeaseConfirmed) -> Lease:
    if lease.seq != body.lease_seq:
        return lease
    at = lease.confirmed_at or record.at
    return replace(lease, confirmed_at=at, confirmed_by=body.dagster_run_id)


_OfNode = NodeStruck | NodeQuarantined | NodeReleased


def _member(state: PoolState | None, body: _OfNode) -> NodeState:
    """Return the node, or the device of it, that a record is about."""
    name = body.node if body.device is None else body.device
    found = None
    if state is not None:
        found = state.node(name) if body.device is None else state.device(name)
    return found or NodeState(node=name)


def _struck(state: PoolState | None, before: NodeState, strike: Strike) -> NodeState:
    """Return the node with one strike more; an attempt strikes once, a repeated record is none."""
    if state is not None and state.has_struck(strike.body.run_id, strike.body.attempt_id):
        return before
    return replace(before, strikes=(*before.strikes, strike))


def _released(before: NodeState, release: Release) -> NodeState:
    quarantines = tuple(
        quarantine if quarantine.release is not None else replace(quarantine, release=release)
        for quarantine in before.quarantines
    )
    return replace(before, quarantines=quarantines, releases=(*before.releases, release))


def _of(state: PoolState | None, record: Record, pool: str) -> PoolState:
    """Return the state with `record` at its head; raises TrackBroken for one of another pool."""
    if state is None:
        return PoolState(head=record, pool=pool)
    if state.pool != pool:
        raise TrackBroken(
            f"Record {record.seq} ({record.kind}) is of pool {pool!r} in the track of {state.pool!r}."
        )
    return replace(state, head=record)


def _with(state: PoolState | None, record: Record, body: _OfNode, after: NodeState) -> PoolState:
    state = _of(state, record, body.pool)
    if body.device is None:
        return replace(state, nodes=_replaced(state.nodes, after))
    return replace(state, devices=_replaced(state.devices, after))


def _replaced(members: tuple[NodeState, ...], after: NodeState) -> tuple[NodeState, ...]:
    if all(each.node != after.node for each in members):
        return (*members, after)
    return tuple(after if each.node == after.node else each for each in members)


def _time(record: Record, text: str) -> datetime:
    try:
        return parse_time(text)
    except ValueError as error:
        raise TrackBroken(f"Record {record.seq} ({record.kind}) cannot be read: {error}") from error

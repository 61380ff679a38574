"""Which node of a pool is to be quarantined: the policy's rule, asked of the pool's state. Pure.

A node stands out by its rate: strikes for the time that it worked, against the pool's other nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from tracks_dagster.track.reasons import TerminationReason
from tracks_dagster.track.records import format_time
from tracks_dagster.track.states.pool_state import NodeState, PoolState, Strike

DAY_S = 86_400.0
_R = TerminationReason


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRule:
    """What strikes a node, and which struck nodes stand out.

    reasons: ends that are a strike against the node of the rank that failed first. Hangs, crashes and
    memory are not among them: they follow the job as often as the node.
    at_once: those of which the first is enough. strikes: how many of the others inside `window_s`;
    None: no node is ever quarantined by itself.
    rate_factor: how many times the strikes that it would have at the rate of the pool's other nodes, so
    that a node is not blamed for being busy, nor for a fault that all of them have.
    share: the part of the pool's nodes, 0 to 1, that may be in quarantine together. A quarter, because
    on Titan 551 of 30 207 GPU slots (1.8 %) ever saw a second hardware event: where a quarter of the
    nodes looks bad, the cause is common to them; and a pool of four can still lose one.
    quarantine_s: how long the first one lasts; doubled by each earlier one inside `memory_s`, up to
    quarantine_s_max.
    """

    reasons: tuple[TerminationReason, ...] = (
        _R.NODE_FAILURE,
        _R.GPU_HARDWARE,
        _R.NETWORK_FABRIC,
        _R.SILENT_CORRUPTION,
    )
    at_once: tuple[TerminationReason, ...] = (_R.SILENT_CORRUPTION,)
    strikes: int | None = 2
    window_s: float = 7 * DAY_S
    rate_factor: float = 3.0
    share: float = 0.25
    quarantine_s: float = DAY_S
    quarantine_s_max: float = 14 * DAY_S
    memory_s: float = 90 * DAY_S

    def __post_init__(self) -> None:
        if self.strikes is not None and self.strikes < 1:
            raise ValueError(
                "A node is quarantined from 1 strike on at the earliest; strikes: none switches it off."
            )
        if min(self.window_s, self.memory_s) <= 0:
            raise ValueError("A node's window and memory must be longer than nothing.")
        if self.rate_factor < 0 or not 0.0 <= self.share <= 1.0:
            raise ValueError("A rate factor is 0 or more, a share of the pool's nodes 0 to 1.")
        if not 0 < self.quarantine_s <= self.quarantine_s_max:
            raise ValueError("A quarantine needs a length that is not above its maximum.")
        if not set(self.at_once) <= set(self.reasons):
            others = ", ".join(sorted(set(self.at_once) - set(self.reasons)))
            raise ValueError(
                "What quarantines a node at once must be one of its reasons: add "
                f"{others} to reasons, or take it out of at_once (`at_once: []`: nothing does)."
            )


# Of a machine's devices one may go at any rate while another is left: what names a device is not a
# guess by its rank alone, and few machines have so many that a quarter is one.
DEVICES_ALLOWED_MIN = 1
QUARANTINED_MAX = 32  # by the rule, in one pool: as many as an attempt's record can name
DOUBLINGS_MAX = 32

# What nodes without a strike may still do: half an event more than was seen (Jeffreys' prior).
UNSEEN_STRIKES = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """The health of one node at a time. strikes: those that count; others_strikes: of the other nodes.

    expected: how many strikes the node would have at the rate of the others. is_due: it is to be
    quarantined; why: that, or why not. spared_by: what keeps a node that is due out of quarantine.
    """

    node: str
    strikes: tuple[Strike, ...]
    exposure_s: float
    others_strikes: int
    expected: float
    is_due: bool
    why: str
    spared_by: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DueQuarantine:
    """A node to quarantine now. number: which one in a row it is, 1-based."""

    node: str
    until_at: datetime
    number: int
    why: str
    counted_seqs: tuple[int, ...]


def due_quarantine(
    state: PoolState, rule: NodeRule, now: datetime, *, allowed_min: int = 0
) -> DueQuarantine | None:
    """Return the node to quarantine next, the one struck first; None where there is none.

    More strikes against a node never make it less due. allowed_min: as many may be in quarantine
    whatever share that is, while one is left.
    """
    for health in healths(state, rule, now, allowed_min=allowed_min):
        node = state.node(health.node)
        if node is None or not health.is_due or health.spared_by is not None:
            continue
        number = 1 + _earlier_count(node, rule, now)
        length_s = quarantine_length_s(rule, number)
        return DueQuarantine(
            node=health.node,
            until_at=now + timedelta(seconds=length_s),
            number=number,
            why=health.why,
            counted_seqs=tuple(strike.seq for strike in health.strikes),
        )
    return None


def healths(
    state: PoolState, rule: NodeRule, now: datetime, *, allowed_min: int = 0
) -> list[Health]:
    """Return the health of every node that a record names, in the order of their first record."""
    spared_by = _why_spared(state, rule, now, allowed_min)
    counted = [_counted(node, rule, now) for node in state.nodes]
    total = sum(len(strikes) for strikes in counted)
    return [
        _health(node, strikes, total - len(strikes), rule, now, spared_by)
        for node, strikes in zip(state.nodes, counted, strict=True)
    ]


def quarantine_length_s(rule: NodeRule, number: int) -> float:
    """Return how long the `number`-th quarantine in a row lasts: 24 h, 48 h, 96 h … up to a bound."""
    doubled = rule.quarantine_s * 2.0 ** min(number - 1, DOUBLINGS_MAX)
    return min(doubled, rule.quarantine_s_max)


def node_count(state: PoolState, rule: NodeRule, now: datetime) -> int:
    """Return how many nodes the pool is known to have: those of its newest strike, or those that a
    record of the window names. A cluster that grows and shrinks never sees most names again."""
    strikes = [strike for node in state.nodes for strike in node.strikes]
    newest = max(strikes, key=lambda strike: strike.seq, default=None)
    named = sum(
        node.quarantine_at(now) is not None or bool(_counted(node, rule, now))
        for node in state.nodes
    )
    return max(newest.body.pool_node_count if newest is not None else 0, named)


def _health(
    node: NodeState,
    counted: tuple[Strike, ...],
    others: int,
    rule: NodeRule,
    now: datetime,
    spared_by: str | None,
) -> Health:
    exposure_s = counted[-1].body.exposure_s if counted else 0.0
    expected = _expected(counted[-1], others) if counted else 0.0
    due = _why_due(node, counted, expected, rule)
    current = node.quarantine_at(now)
    is_due = due is not None and current is None
    return Health(
        node=node.node,
        strikes=counted,
        exposure_s=exposure_s,
        others_strikes=others,
        expected=expected,
        is_due=is_due,
        why=due or "",
        spared_by=spared_by if is_due else None,
    )


def _counted(node: NodeState, rule: NodeRule, now: datetime) -> tuple[Strike, ...]:
    """Return the strikes inside the window that no release forgave, by the reasons of the rule."""
    since = now - timedelta(seconds=rule.window_s)
    reasons = {reason.value for reason in rule.reasons}
    return tuple(
        strike
        for strike in node.standing
        if strike.struck_at > since and strike.body.reason in reasons
    )


def _expected(newest: Strike, others: int) -> float:
    """Return the strikes that the node would have at the rate of the pool's other nodes.

    The others: 10 strikes in 10 000 h; the node worked 1000 h: (10 + 0.5) / 10 000 × 1000 = 1.05
    """
    own_s = newest.body.exposure_s
    others_s = newest.body.pool_exposure_s - own_s
    if own_s <= 0:
        return 0.0  # it fails before it has worked
    if others_s <= 0:
        return float("inf")  # there is nothing to compare it with
    return (others + UNSEEN_STRIKES) * own_s / others_s


def _why_due(
    node: NodeState, counted: Sequence[Strike], expected: float, rule: NodeRule
) -> str | None:
    """Return why the node is to be quarantined, or None. Old strikes alone do not bring it back."""
    since = node.quarantines[-1].seq if node.quarantines else -1
    fresh = [strike for strike in counted if strike.seq > since]
    if rule.strikes is None or not fresh:
        return None
    at_once = [strike for strike in fresh if strike.body.reason in set(rule.at_once)]
    if at_once:
        return f"{_named(at_once[:1])}: the first is enough"
    if len(counted) < rule.strikes or len(counted) < rule.rate_factor * expected:
        return None
    hours = counted[-1].body.exposure_s / 3600.0
    return (
        f"{len(counted)} strikes in {hours:.3g} h of work, where {expected:.2g} are expected at the "
        f"rate of the pool's other nodes: {_named(counted)}"
    )


def _named(strikes: Sequence[Strike]) -> str:
    newest = strikes[-3:]
    named = ", ".join(
        f"{s.body.reason} of {s.body.run_id}/a{s.body.attempt_id:02d} (record {s.seq})"
        for s in newest
    )
    more = len(strikes) - len(newest)
    return f"{named} and {more} before" if more > 0 else named


def _earlier_count(node: NodeState, rule: NodeRule, now: datetime) -> int:
    """Return how many quarantines by the rule the node had that are remembered and not forgiven."""
    since = now - timedelta(seconds=rule.memory_s)
    return sum(
        each.is_by_rule and each.seq > node.released_seq and each.until_at > since
        for each in node.quarantines
    )


def _why_spared(state: PoolState, rule: NodeRule, now: datetime, allowed_min: int) -> str | None:
    """Return why no further node may be quarantined by the rule, or None."""
    nodes = node_count(state, rule, now)
    allowed = min(int(rule.share * nodes + 1e-9), QUARANTINED_MAX)
    allowed = max(allowed, min(allowed_min, nodes - 1))
    gone = len(state.quarantined_at(now))
    if gone < allowed:
        return None
    return (
        f"{gone} of {nodes} known nodes are in quarantine, and {allowed} may be "
        f"({rule.share:.0%}, at most {QUARANTINED_MAX}), as of {format_time(now)}"
    )

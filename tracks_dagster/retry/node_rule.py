"""When a node of a compute pool gets quarantined, and for how long: plain values of the retry policy.

The rule is applied by `pool_state`.
"""

from __future__ import annotations

from dataclasses import dataclass

from tracks_dagster.track.reasons import TerminationReason

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

"""What each stage of a run may use, and what has to be shown before it: `stages:` of policy.yaml.

A cheap run first: a wiring bug costs twenty steps in a smoke, and weeks in the run that it wasted. Here
are the values of the two profiles; `attempts.gates` applies them. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from tracks_dagster.retry.node_health import DAY_S
from tracks_dagster.track.bodies import CERTIFIES, CONFORM, TESTS
from tracks_dagster.track.names import STAGES
from tracks_dagster.track.text.units import duration

MINUTE_S = 60.0

KITCHEN_SINK, SMOKE, CANARY, FULL = STAGES
JUDGED = (KITCHEN_SINK, CANARY)  # of which success alone shows nothing


class Profile(StrEnum):
    """Two whole policies: what a laptop needs, and what a run of weeks does."""

    LIGHT = "light"  # no gates: a stage is a word
    STRICT = "strict"  # all of them


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRule:
    """One stage. steps: at most, counted from where a branch starts; device_s: how long each of its
    devices may work, over all attempts; money: in the price table's currency. None: no limit.

    needs: GATES that must be passed with the same key. loss_falls_by: the last quarter's median loss is
    so much below the first's, as a share of it, and `trend_p_max` bounds the p of its trend; None: its
    success is enough.
    """

    steps: int | None = None
    device_s: float | None = None
    money: float | None = None
    needs: tuple[str, ...] = ()
    loss_falls_by: float | None = None
    trend_p_max: float = 0.05

    def __post_init__(self) -> None:
        """Raise ValueError for a limit that nothing could keep."""
        if self.steps is not None and self.steps < 1:
            raise ValueError("A stage has 1 step or more; leave steps out for no limit.")
        if any(each is not None and each <= 0 for each in (self.device_s, self.money)):
            raise ValueError("A limit of time or money is more than 0; leave it out for none.")
        if self.loss_falls_by is not None and not 0 < self.loss_falls_by < 1:
            raise ValueError("A loss falls by more than 0 and less than 1, for example 2%.")
        if not 0 < self.trend_p_max < 1:
            raise ValueError("trend_p_max is a probability between 0 and 1, for example 0.05.")


SHIPPED: Mapping[str, StageRule] = {
    KITCHEN_SINK: StageRule(),
    SMOKE: StageRule(steps=20, device_s=5 * MINUTE_S),
    CANARY: StageRule(steps=200, device_s=30 * MINUTE_S, loss_falls_by=0.02),
    FULL: StageRule(),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePolicy:
    """The rules by stage. fresh_s: how long what was shown counts, from its end on."""

    profile: Profile = Profile.LIGHT
    fresh_s: float = 7 * DAY_S
    rules: Mapping[str, StageRule] = field(default_factory=lambda: SHIPPED)

    def __post_init__(self) -> None:
        """Raise ValueError unless there is one rule a stage, and each needs only what comes before."""
        if set(self.rules) != set(STAGES):
            raise ValueError(f"The stages are {', '.join(STAGES)}, each with one rule.")
        for place, stage in enumerate(STAGES):
            before = (*CERTIFIES, *STAGES[:place])
            for need in self.rules[stage].needs:
                if need not in before:
                    raise ValueError(
                        f"{stage} cannot need {need!r}; what comes before it: {', '.join(before)}."
                    )
        if self.fresh_s <= 0:
            raise ValueError("fresh is more than 0: nothing that was shown would ever count.")

    def rule(self, stage: str) -> StageRule:
        """Return the rule of a stage; of an unknown one, which older records name, no limit."""
        return self.rules.get(stage, StageRule())

    @property
    def has_gates(self) -> bool:
        """Whether any stage needs something; else a stage is a word, and nothing of it is enforced."""
        return any(rule.needs for rule in self.rules.values())


LIGHT = StagePolicy()
STRICT = StagePolicy(
    profile=Profile.STRICT,
    rules={**SHIPPED, FULL: replace(SHIPPED[FULL], needs=(TESTS, SMOKE, CANARY, CONFORM))},
)
PROFILES: Mapping[Profile, StagePolicy] = {Profile.LIGHT: LIGHT, Profile.STRICT: STRICT}


def stage_lines(policy: StagePolicy) -> Iterator[str]:
    """Yield the profile and its stages, a sentence each."""
    if not policy.has_gates:
        yield f"profile {policy.profile}: no stage needs another, and a stage limits nothing"
        yield "`tracks smoke` and `tracks canary` keep to the limits of theirs:"
    else:
        yield (
            f"profile {policy.profile}: what a stage needs counts for {duration(policy.fresh_s)}, for "
            "the same code, config, data and environment"
        )
    for stage in STAGES:
        yield f"stage {stage}: {_rule(policy.rules[stage])}"


def _rule(rule: StageRule) -> str:
    limits = [] if rule.steps is None else [f"{rule.steps} steps"]
    if rule.device_s is not None:
        limits.append(f"{duration(rule.device_s)} of each device")
    if rule.money is not None:
        limits.append(f"{rule.money:g} in money")
    parts = [f"{', '.join(limits)} at most"] if limits else []
    if rule.loss_falls_by is not None:
        parts.append(f"loss falls by {rule.loss_falls_by:.0%} (p < {rule.trend_p_max:g})")
    if rule.needs:
        parts.append(f"needs {', '.join(rule.needs)}")
    return "; ".join(parts) or "no limit"

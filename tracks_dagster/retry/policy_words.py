"""A retry policy in words: a line for each reason, and a sentence for each limit over all. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tracks_dagster.retry.next_sensor import sensor_of
from tracks_dagster.retry.node_health import NodeRule
from tracks_dagster.retry.policy import RetryPolicy, RetryRule
from tracks_dagster.track.text.units import duration


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleLine:
    """One row as text. is_changed: whether it differs from the base."""

    reason: str
    budget: str
    refund: str
    backoff: str
    remedy: str
    sensor: str
    is_changed: bool


def rule_lines(policy: RetryPolicy, base: RetryPolicy) -> list[RuleLine]:
    """Return a line for each reason, in the order of the policy."""
    return [
        RuleLine(
            reason=rule.reason.value,
            budget=_budget(rule),
            refund=_refund(rule),
            backoff=_backoff(rule),
            remedy=_remedy(rule),
            sensor=sensor_of(rule.reason),
            is_changed=rule != base.rule(rule.reason),
        )
        for rule in policy.rules
    ]


def limit_lines(policy: RetryPolicy) -> Iterator[str]:
    """Yield the limits over all reasons, a sentence each."""
    yield (
        f"one and the same failure: {policy.fingerprint_limit} retries without progress, whatever "
        "its reason's row leaves"
    )
    yield (
        f"device time of a run: {policy.device_hours_factor:g} × its estimate, at least "
        f"{duration(policy.device_s_floor)}"
    )
    yield (
        f"attempts that never started: {policy.never_started_limit} free retries, after "
        f"{duration(policy.never_started_backoff_s)} to {duration(policy.never_started_backoff_s_max)}"
    )
    for pool, other in policy.other_pools.items():
        yield (
            f"pool {pool}: to {other} from preemption {policy.other_pool_from} within "
            f"{duration(policy.other_pool_window_s)} on, and back after {duration(policy.other_pool_s)}"
        )
    if policy.checkpoints_may_be_off:
        yield "a run may train without periodic checkpoints"
    yield _nodes(policy.nodes)
    storm = policy.storm
    if storm.ends is None:
        yield "a storm in a pool: never"
        return
    yield (
        f"a storm in a pool: {storm.ends} ends of {storm.runs} runs or more, which are "
        f"{storm.share:.0%} of the pool's, in {duration(storm.window_s)}; its retries pause until it "
        f"was quiet for {duration(storm.pause_s)}, each for {duration(storm.pause_s_max)} at most"
    )


def _nodes(rule: NodeRule) -> str:
    if rule.strikes is None:
        return "a node's quarantine: by a person only"
    at_once = ", ".join(reason.value for reason in rule.at_once)
    first = f", {at_once} from the first on" if at_once else ""
    return (
        f"a node's quarantine: {rule.strikes} strikes in {duration(rule.window_s)} at "
        f"{rule.rate_factor:g} times the rate of its pool's others{first}; "
        f"{duration(rule.quarantine_s)} to {duration(rule.quarantine_s_max)}, at most "
        f"{rule.share:.0%} of the pool's nodes"
    )


def _budget(rule: RetryRule) -> str:
    if rule.time_s is not None:
        return f"{duration(rule.time_s)} without progress"
    if rule.count is None:
        words = rule.count_by_words
        by_words = "" if words is None else f", {words} where only words in a log tell of it"
        return f"by device time alone{by_words}"
    window = ""
    if rule.window_s is not None:
        window = f" in {duration(rule.window_s)}"
    elif rule.window_steps is not None:
        window = f" in {rule.window_steps} steps"
    first = rule.count_before_first_step
    before = "" if first is None else f", {first} before the first step"
    shared = "" if rule.counts_as is None else f", shared with {rule.counts_as}"
    return f"{rule.count}{window}{before}{shared}"


def _refund(rule: RetryRule) -> str:
    if rule.refund == 0:
        return "–"
    return f"{rule.refund:.0%}{' past the onset' if rule.refund_past_onset else ''}"


def _backoff(rule: RetryRule) -> str:
    if rule.backoff_s == 0:
        return "–"
    return f"{duration(rule.backoff_s)} to {duration(rule.backoff_s_max)}"


def _remedy(rule: RetryRule) -> str:
    if rule.other_node_from is None:
        return rule.remedy.value
    window_s = rule.other_node_window_s
    inside = "" if window_s is None else f" in {duration(window_s)}"
    return f"{rule.remedy.value}, node left from end {rule.other_node_from}{inside} on"

"""Compares what two checkpoints scored, where that means something. Pure.

A difference of two metrics means something only where both were measured by the same version of the
same suite, on the same snapshot, and with the same seeds or several each. Where they were not, the
values are left out and the reason stands in their place; forced, the reason stands beside them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """One completed eval of a checkpoint. metrics: as the evaluator reported them."""

    suite: str
    suite_version: str
    snapshot_id: str
    seed: int
    step: int
    environment_sha256: str
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One metric of one side over its seeds. spread: the sample standard deviation, None for one."""

    mean: float
    spread: float | None
    seeds: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricLine:
    """One metric side by side.

    label: "" where the two may be compared; else why not, and `a` and `b` are None unless that was
    forced. difference: of the means, b less a. is_within_spread: it is no larger than the seeds alone
    make it, None where nobody knows or where the two may not be compared.
    """

    suite: str
    metric: str
    a: Measured | None
    b: Measured | None
    difference: float | None
    is_within_spread: bool | None
    label: str
    remark: str = ""


def compare_scores(
    a: Sequence[Score], b: Sequence[Score], *, is_forced: bool = False
) -> tuple[MetricLine, ...]:
    """Return every metric of every suite side by side, by suite and metric."""
    lines: list[MetricLine] = []
    for suite in sorted({score.suite for score in (*a, *b)}):
        of_a = _comparable([s for s in a if s.suite == suite], [s for s in b if s.suite == suite])
        of_b = _comparable([s for s in b if s.suite == suite], of_a)
        label = why_not_comparable(of_a, of_b)
        for metric in sorted({name for score in (*of_a, *of_b) for name in score.metrics}):
            lines.append(_line(suite, metric, of_a, of_b, label, is_forced=is_forced))
    return tuple(lines)


def why_not_comparable(a: Sequence[Score], b: Sequence[Score]) -> str:
    """Return "" where the scores of one suite may be compared, else "not comparable: …".

    Where either side has none there is nothing to compare, and nothing to refuse.
    """
    if not a or not b:
        return ""
    problems = []
    versions = _named(a, "suite_version"), _named(b, "suite_version")
    if versions[0] != versions[1]:
        problems.append(f"suite {_versions(versions[0])} against {_versions(versions[1])}")
    snapshots = _named(a, "snapshot_id"), _named(b, "snapshot_id")
    if snapshots[0] != snapshots[1]:
        problems.append(f"eval snapshot {_ids(snapshots[0])} against {_ids(snapshots[1])}")
    seeds = {s.seed for s in a}, {s.seed for s in b}
    if not seeds[0] & seeds[1] and 1 in (len(seeds[0]), len(seeds[1])):
        problems.append(f"seed {_numbers(seeds[0])} against {_numbers(seeds[1])}")
    return f"not comparable: {', '.join(problems)}" if problems else ""


def _comparable(own: list[Score], other: Sequence[Score]) -> list[Score]:
    """Return the scores of one version and snapshot: those that the other side has too, else the
    newest; without what was measured by another version there is a difference that means something."""
    if not own:
        return []
    there = {(s.suite_version, s.snapshot_id) for s in other}
    kinds = dict.fromkeys((s.suite_version, s.snapshot_id) for s in own)
    kind = next((each for each in reversed(kinds) if each in there), list(kinds)[-1])
    return [s for s in own if (s.suite_version, s.snapshot_id) == kind]


def _line(
    suite: str,
    metric: str,
    a: Sequence[Score],
    b: Sequence[Score],
    label: str,
    *,
    is_forced: bool,
) -> MetricLine:
    if label and not is_forced:
        return MetricLine(
            suite=suite,
            metric=metric,
            a=None,
            b=None,
            difference=None,
            is_within_spread=None,
            label=label,
        )
    shared = {s.seed for s in a} & {s.seed for s in b}
    of_a, of_b = _measured(a, metric, shared), _measured(b, metric, shared)
    difference = None if of_a is None or of_b is None else of_b.mean - of_a.mean
    return MetricLine(
        suite=suite,
        metric=metric,
        a=of_a,
        b=of_b,
        difference=difference,
        is_within_spread=None if label else _within(of_a, of_b, difference),
        label=label,
        remark=_remark(a, b),
    )


def _measured(scores: Sequence[Score], metric: str, shared: set[int]) -> Measured | None:
    """Return a metric over the seeds that both sides have; over its own where they share none."""
    told = {s.seed: s.metrics[metric] for s in scores if metric in s.metrics}
    seeds = tuple(sorted(seed for seed in told if not shared or seed in shared))
    if not seeds:
        return None
    values = [told[seed] for seed in seeds]
    return Measured(mean=math.fsum(values) / len(values), spread=_spread(values), seeds=seeds)


def _spread(values: Sequence[float]) -> float | None:
    """Return the sample standard deviation; None for a single value. [1, 2, 3] → 1."""
    if len(values) < 2:
        return None
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))


def _within(a: Measured | None, b: Measured | None, difference: float | None) -> bool | None:
    """Whether the seeds alone make such a difference: at most two standard errors of it, √(s²/n + …).

    Spreads of 1 over four seeds each: √(1/4 + 1/4) = 0.71, so 1.4 is within and 1.5 is not.
    """
    if a is None or b is None or difference is None or a.spread is None or b.spread is None:
        return None
    error = math.sqrt(a.spread**2 / len(a.seeds) + b.spread**2 / len(b.seeds))
    return abs(difference) <= 2 * error


def _remark(a: Sequence[Score], b: Sequence[Score]) -> str:
    remarks = []
    if a and b and {s.environment_sha256 for s in a} != {s.environment_sha256 for s in b}:
        remarks.append("the evaluators' environments differ")
    if a and b and {s.seed for s in a} != {s.seed for s in b}:
        seeds = f"{_numbers({s.seed for s in a})} and {_numbers({s.seed for s in b})}"
        remarks.append(f"evaluated with seeds {seeds}")
    return "; ".join(remarks)


def _named(scores: Sequence[Score], field: str) -> tuple[str, ...]:
    return tuple(sorted({str(getattr(score, field)) for score in scores}))


def _versions(versions: Iterable[str]) -> str:
    return ", ".join(f"v{version.removeprefix('v')}" for version in versions)


def _ids(ids: Iterable[str]) -> str:
    return ", ".join(f"{each[:12]}…" for each in ids)


def _numbers(numbers: Iterable[int]) -> str:
    return ", ".join(str(number) for number in sorted(numbers))

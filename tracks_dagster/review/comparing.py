"""Two attempts, or two checkpoints, side by side. Pure: `review.effects.comparing` reads them.

Everything is shown but metrics that were not measured alike; `why_not_comparable` says when they were.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tracks_dagster.track.records import Json
from tracks_dagster.track.roles import GLOBAL_BATCH, SEED, Roles, value_of
from tracks_dagster.track.samples import SKIP_WINDOWS, skipped_blocks
from tracks_dagster.track.states.checkpoints import CheckpointRef


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One of the two things, as far as its track goes.

    steps: facts of its steps, by name. cursor_from, cursor_to: how far it and what it descends
    from went through the order of samples. descent: the checkpoints that it rests on, the newest
    first; a checkpoint is the first of its own. scores: its evals, those of its newest evaluated step.
    """

    name: str
    steps: Mapping[str, Json]
    dataset: str | None
    snapshot_id: str | None
    cursor_from: int | None
    cursor_to: int | None
    config: Mapping[str, Json]
    roles: Roles
    code: Mapping[str, Json]
    environment: Mapping[str, Json]
    placement: Mapping[str, Json]
    descent: tuple[CheckpointRef, ...] = ()
    in_use: Mapping[str, Json] = field(default_factory=dict)  # by name, as its first step began
    ancestor_cursors: Mapping[str, int] | None = None  # manifest sha256 → its cursor
    scores: tuple[Score, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One thing that both have, or one of them; `a` or `b` is None where it is not there."""

    name: str
    a: Json
    b: Json

    @property
    def is_equal(self) -> bool:
        """Whether both are the same."""
        return bool(self.a == self.b)


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedData:
    """How many samples both consumed, the same in the same order, from the first on; and why so."""

    samples: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Descent:
    """What both rest on. ancestor: the newest checkpoint that both descend from, None for none;
    a_steps, b_steps: how far each went beyond it."""

    ancestor: CheckpointRef | None
    a_steps: int | None
    b_steps: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Everything side by side. config, in_use, code, environment, placement: only what differs.

    refused: the comparisons of metrics that were not made, a sentence each.
    """

    a: str
    b: str
    steps: tuple[Difference, ...]
    data: tuple[Difference, ...]
    shared_data: SharedData
    config: tuple[Difference, ...]
    in_use: tuple[Difference, ...]
    code: tuple[Difference, ...]
    environment: tuple[Difference, ...]
    placement: tuple[Difference, ...]
    descent: Descent
    evals: tuple[MetricLine, ...]
    refused: tuple[str, ...]


def compare(a: Side, b: Side, *, is_forced: bool = False) -> Comparison:
    """Return the two side by side; is_forced shows metrics that cannot be compared, labelled so."""
    descent = common_descent(a, b)
    lines = compare_scores(a.scores, b.scores, is_forced=is_forced)
    labels = dict.fromkeys((line.suite, line.label) for line in lines if line.label)
    refused = () if is_forced else tuple(f"{suite}: {label}." for suite, label in labels)
    return Comparison(
        a=a.name,
        b=b.name,
        steps=_all(a.steps, b.steps),
        data=(
            Difference(name="dataset", a=a.dataset, b=b.dataset),
            Difference(name="snapshot", a=a.snapshot_id, b=b.snapshot_id),
            Difference(name="cursor_from", a=a.cursor_from, b=b.cursor_from),
            Difference(name="cursor_to", a=a.cursor_to, b=b.cursor_to),
        ),
        shared_data=shared_data(a, b, descent.ancestor),
        config=_differing(a.config, b.config),
        in_use=_in_use(a, b),
        code=_differing(a.code, b.code),
        environment=_differing(a.environment, b.environment),
        placement=_differing(a.placement, b.placement),
        descent=descent,
        evals=lines,
        refused=refused,
    )


def common_descent(a: Side, b: Side) -> Descent:
    """Return the newest checkpoint that both rest on, and how far each went beyond it."""
    of_b = {ref.manifest_sha256 for ref in b.descent}
    ancestor = next((ref for ref in a.descent if ref.manifest_sha256 in of_b), None)
    if ancestor is None:
        return Descent(ancestor=None, a_steps=None, b_steps=None)
    return Descent(
        ancestor=ancestor,
        a_steps=_steps_beyond(a, ancestor),
        b_steps=_steps_beyond(b, ancestor),
    )


def shared_data(a: Side, b: Side, ancestor: CheckpointRef | None) -> SharedData:
    """Return how much of their data is the same: what both consumed from the order's beginning.

    The order is a function of the snapshot and the seed, less the blocks that skip windows take out;
    how many ranks there are changes nothing.
    """
    inherited = _inherited(a, ancestor)
    if a.snapshot_id is None and b.snapshot_id is None:
        return SharedData(
            samples=inherited, why="no snapshot was named: what was read is not known"
        )
    if a.snapshot_id != b.snapshot_id:
        why = "different snapshots"
    elif value_of(a.config, a.roles, SEED) != value_of(b.config, b.roles, SEED):
        why = "the same snapshot in different orders: the seeds differ"
    elif a.cursor_to is None or b.cursor_to is None:
        return SharedData(samples=inherited, why="how far one of them went is not recorded")
    else:
        both = min(a.cursor_to, b.cursor_to)
        parted = _parted_at(a, b)
        samples = max(inherited, both if parted is None else min(both, parted))
        if samples < both:
            return SharedData(samples=samples, why="from there on they skipped different windows")
        return SharedData(samples=samples, why="the same snapshot in the same order")
    if inherited:
        why += "; the same only up to the checkpoint that both descend from"
    return SharedData(samples=inherited, why=why)


def _in_use(a: Side, b: Side) -> tuple[Difference, ...]:
    """Return what differs, or that it is not known: an older version, or a framework, keeps none."""
    if a.in_use and b.in_use:
        return _differing(a.in_use, b.in_use)
    recorded = ["recorded" if each.in_use else "not recorded" for each in (a, b)]
    return (Difference(name="numbers", a=recorded[0], b=recorded[1]),)


def _all(a: Mapping[str, Json], b: Mapping[str, Json]) -> tuple[Difference, ...]:
    return tuple(Difference(name=name, a=a.get(name), b=b.get(name)) for name in _keys(a, b))


def _differing(a: Mapping[str, Json], b: Mapping[str, Json]) -> tuple[Difference, ...]:
    return tuple(each for each in _all(a, b) if not each.is_equal)


def _keys(a: Mapping[str, Json], b: Mapping[str, Json]) -> Iterable[str]:
    return dict.fromkeys((*a, *b))


def _steps_beyond(side: Side, ancestor: CheckpointRef) -> int | None:
    last = side.steps.get("last_step", side.steps.get("step"))
    return last - ancestor.step if isinstance(last, int) else None


def _inherited(side: Side, ancestor: CheckpointRef | None) -> int:
    if ancestor is None or side.ancestor_cursors is None:
        return 0
    return side.ancestor_cursors.get(ancestor.manifest_sha256, 0)


def _parted_at(a: Side, b: Side) -> int | None:
    """Return the cursor from which on skip windows give them different samples; None for nowhere.

    [[11, 15]] against none, in batches of 24: block 11 is left out by one of them, so from 240 on.
    """
    edges = _skip_edges(a) ^ _skip_edges(b)
    return min(edges, default=None)


def _skip_edges(side: Side) -> set[int]:
    """Return the cursors where what is left out begins, and where it has ended."""
    blocks = skipped_blocks(side.config.get(SKIP_WINDOWS))
    batch = value_of(side.config, side.roles, GLOBAL_BATCH)
    if not isinstance(batch, int):  # no key has that role: nobody knows how long a block is
        return {0} if blocks else set()
    return {batch * block for first, last in blocks for block in (first - 1, last)}


# Scores are compared only where both were measured by the same version of the same suite, on the same
# snapshot, and with the same seeds or several each. Elsewhere the reason replaces the values; forced,
# both are shown.


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
    forced. difference: of the means, b less a. is_within_spread: it is not larger than the seeds alone
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


def own_values(scores: Sequence[Score]) -> dict[tuple[str, str], tuple[float, int]]:
    """Return (suite, metric) → the mean over its seeds and the step of one side's scores."""
    steps = {score.suite: score.step for score in scores}
    lines = ((x.suite, x.metric, x.b) for x in compare_scores(scores, scores))
    return {(suite, name): (b.mean, steps[suite]) for suite, name, b in lines if b is not None}


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
    by_seed = {s.seed: s.metrics[metric] for s in scores if metric in s.metrics}
    seeds = tuple(sorted(seed for seed in by_seed if not shared or seed in shared))
    if not seeds:
        return None
    values = [by_seed[seed] for seed in seeds]
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

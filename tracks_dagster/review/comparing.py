"""Compares two attempts, or two checkpoints, side by side. Pure: `review.effects.comparing` reads them.

Everything is shown but metrics that were not measured alike; `comparing_scores` says when they were.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tracks_dagster.review.comparing_scores import MetricLine, Score, compare_scores
from tracks_dagster.track.records import Json
from tracks_dagster.track.samples import SKIP_WINDOWS, skipped_blocks
from tracks_dagster.track.states.checkpoints import CheckpointRef


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One of the two things, as far as its track tells.

    steps: what is said of its steps, by name. cursor_from, cursor_to: how far it and what it descends
    from went through the order of samples. descent: the checkpoints that it rests on, the newest
    first; a checkpoint is the first of its own. scores: its evals, those of its newest evaluated step.
    """

    name: str
    steps: Mapping[str, Json]
    dataset: str
    snapshot_id: str
    cursor_from: int | None
    cursor_to: int | None
    config: Mapping[str, Json]
    code: Mapping[str, Json]
    environment: Mapping[str, Json]
    placement: Mapping[str, Json]
    descent: tuple[CheckpointRef, ...] = ()
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
        """Whether both say the same."""
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
    """Everything side by side. config, code, environment, placement: only what differs.

    refused: the comparisons of metrics that were not made, a sentence each.
    """

    a: str
    b: str
    steps: tuple[Difference, ...]
    data: tuple[Difference, ...]
    shared_data: SharedData
    config: tuple[Difference, ...]
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
    if a.snapshot_id != b.snapshot_id:
        why = "different snapshots"
    elif a.config.get("seed") != b.config.get("seed"):
        why = "the same snapshot in different orders: the seeds differ"
    elif a.cursor_to is None or b.cursor_to is None:
        return SharedData(samples=inherited, why="how far one of them went is not recorded")
    else:
        both = min(a.cursor_to, b.cursor_to)
        parted = _parted_at(a.config, b.config)
        samples = max(inherited, both if parted is None else min(both, parted))
        if samples < both:
            return SharedData(samples=samples, why="from there on they skipped different windows")
        return SharedData(samples=samples, why="the same snapshot in the same order")
    if inherited:
        why += "; the same only up to the checkpoint that both descend from"
    return SharedData(samples=inherited, why=why)


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


def _parted_at(a: Mapping[str, Json], b: Mapping[str, Json]) -> int | None:
    """Return the cursor from which on skip windows give them different samples; None for nowhere.

    [[11, 15]] against none, in batches of 24: block 11 is left out by one of them, so from 240 on.
    """
    edges = _skip_edges(a) ^ _skip_edges(b)
    return min(edges, default=None)


def _skip_edges(config: Mapping[str, Json]) -> set[int]:
    """Return the cursors where what is left out begins, and where it has ended."""
    blocks, batch = skipped_blocks(config.get(SKIP_WINDOWS)), config.get("global_batch")
    if not isinstance(batch, int):  # a trainer of one's own: nobody knows how long a block is
        return {0} if blocks else set()
    return {batch * block for first, last in blocks for block in (first - 1, last)}

"""The numbers of many runs' curves on one axis, for a page that draws them itself, and for pictures.

What was read of a run that nobody writes to stays in memory until its track grows; of one that
trains the newest steps are read again. A reading opens a run's journals only where something of it is
not kept.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from tracks_dagster.curves.curve import (
    STEP,
    TRAINING,
    Curve,
    Metric,
    Point,
    Series,
    axis_range,
    number_json,
    smoothed,
)
from tracks_dagster.curves.effects.buckets import (
    Buckets,
    SoFar,
    extent,
    newest_values,
    read_buckets,
)
from tracks_dagster.curves.effects.journals import SETTLED_S, Journals
from tracks_dagster.curves.effects.pixels import Pixels, round_up
from tracks_dagster.curves.effects.reading import Axis, axis_of
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.review.effects.pages.charts import Band
from tracks_dagster.stores.journal_tables import Array
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.journal_lines import EVALUATED, RANKS
from tracks_dagster.track.records import Json
from tracks_dagster.track.states.run_state import RunState
from tracks_dagster.wings.watch.board.catalogue import title_of
from tracks_dagster.wings.watch.board.effects.fresh import Fresh
from tracks_dagster.wings.watch.board.effects.sources import Sources

KEPT_MAX = 300  # answers about runs that nobody writes to, of 35 kB for up to twelve metrics each
NAMES_KEPT_MAX = 200  # runs that nobody writes to, with their metrics' names and newest values
DIGITS = 6  # of a number in an answer: a screen shows fewer
BUCKETS_MAX = 1000
NOTHING_YET: Mapping[str, str] = MappingProxyType({})

T = TypeVar("T")
Range = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunMetrics:
    """What metrics a run has. newest: of the training and its evaluations, by name; left_out: names
    of its script that are not read, at least; lost: what cannot be read, a sentence each."""

    metrics: tuple[Metric, ...]
    newest: Mapping[str, Point]
    left_out: int
    lost: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Lines:
    """Some metrics of some runs in the same buckets.

    within: where the axis begins and ends; grid: its buckets; found: by metric, then by run; without:
    of each run that does not have this axis, why; steps_per_x: of each run, for averages over steps;
    growing: the runs whose journals grow; is_over: whether none of the runs will ever have another
    attempt; names: `names_digest` of them; basis: a digest of the buckets and the attempts: while it is
    the same, a run that grows changes no bucket before its newest one.
    """

    x_label: str
    within: Range
    grid: Pixels
    metrics: Mapping[str, Metric]
    found: Mapping[str, Mapping[str, Buckets]]
    without: Mapping[str, str]
    steps_per_x: Mapping[str, float]
    growing: tuple[str, ...]
    is_over: bool
    names: str
    basis: str

    def cursor(self, name: str) -> str:
        """Return from which of its buckets on a metric may change, for `first_changed`."""
        newest = (self.found[name].get(run_id) for run_id in self.growing)
        ends = [0 if run is None or not len(run.used) else int(run.used[-1]) for run in newest]
        return f"{self.basis}.{min(ends, default=self.grid.count)}"

    def first_changed(self, cursor: str) -> int:
        """Return the first bucket that may have changed since a cursor was given out; 0, all of them,
        where it is of other buckets, or of before a resume."""
        basis, _, bucket = cursor.partition(".")
        is_known = basis == self.basis and re.fullmatch("[0-9]{1,4}", bucket) is not None
        return min(int(bucket), self.grid.count) if is_known else 0

    def places(self, name: str) -> tuple[Array, Array]:
        """Return the buckets that any run has a value in, and where each is drawn: in the middle of
        the values' places, so at the step itself where a bucket has one step."""
        import numpy as np

        runs = list(self.found[name].values())
        used = np.flatnonzero(np.any([(run.count > 0) | run.odd for run in runs], axis=0))
        grid = self.grid
        x0 = np.min([run.x0 for run in runs], axis=0)[used]
        x1 = np.max([run.x1 for run in runs], axis=0)[used]
        x = grid.x0 + (used + 0.5) * (grid.x1 - grid.x0) / grid.count
        has_place = np.isfinite(x0)  # none where all values are not finite
        x[has_place] = x0[has_place] / 2 + x1[has_place] / 2
        return used, x


class SideBySide:
    """Reads for comparisons. Safe in threads."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._kept: Fresh[Any] = Fresh(for_s=math.inf, entries_max=KEPT_MAX)
        self._names: Fresh[Any] = Fresh(for_s=math.inf, entries_max=NAMES_KEPT_MAX)

    def metrics(self, states: Sequence[RunState]) -> dict[str, RunMetrics]:
        """Return of each run which metrics it has, and their newest values."""

        def read(cache: Path | None) -> dict[str, RunMetrics]:
            return {each.run_id: each.metrics for each in self._readings(states, cache)}

        return self._sources.reading(read)

    def lines(
        self,
        states: Sequence[RunState],
        names: Sequence[str],
        *,
        by: str,
        within: Range | None,
        buckets: int,
    ) -> Lines:
        """Return these metrics of these runs. by: what the axis counts; within: a part of it.

        A run that does not have a metric is not among its lines.
        """

        def read(cache: Path | None) -> Lines:
            return _lines(self._readings(states, cache), names, by, within, buckets)

        return self._sources.reading(read)

    def _readings(self, states: Sequence[RunState], cache: Path | None) -> list[_Reading]:
        tracks = self._sources.tracks
        now = tracks.now()
        return [_Reading(tracks, state, cache, now, self._kept, self._names) for state in states]


class _Reading:
    """One run, for one answer."""

    def __init__(
        self,
        tracks: Tracks,
        state: RunState,
        cache: Path | None,
        now: datetime,
        kept: Fresh[Any],
        names: Fresh[Any],
    ) -> None:
        self.run_id = state.run_id
        self.is_settled = _is_settled(state, now)
        # One that waits for its next attempt, or was refused and may be retried, goes on one day.
        self.is_over = self.is_settled and state.finished is not None
        attempts = [(each.attempt_id, each.resumed_step, each.ended_seq) for each in state.attempts]
        self.basis = (state.run_id, self.is_settled, attempts)
        self._tracks = tracks
        self._state = state
        self._cache = cache
        self._kept = kept
        self._names = names
        self._axes: dict[str, Axis] = {}

    @cached_property
    def _journals(self) -> Journals:
        return Journals(self._tracks, self._state, self._cache)

    @cached_property
    def metrics(self) -> RunMetrics:
        """Its metrics."""
        return self._once(self._names, ("metrics",), self._read_metrics)

    def ends(self, by: str) -> tuple[Range, str, float] | None:
        """Return where it begins and ends on an axis, what that counts, and steps a unit; None for a
        run without a step. Raises InvalidInput where it does not have the axis."""
        return self._once(self._names, ("ends", by), lambda: self._read_ends(by))

    def buckets(self, metrics: Sequence[Metric], by: str, pixels: Pixels) -> dict[str, Buckets]:
        """Return metrics in the buckets of an axis, by name, from each file in one go."""

        names = tuple(metric.name for metric in metrics)
        what = (names, by, pixels)

        def read() -> dict[str, Buckets]:
            so_far: SoFar | None = None
            if by == STEP and not self.is_settled:
                so_far = self._kept.get((self.run_id, *what), SoFar)
            return read_buckets(self._journals, self._axis(by), metrics, pixels, so_far)

        return self._once(self._kept, what, read)

    def _once(self, kept: Fresh[Any], what: tuple[Hashable, ...], make: Callable[[], T]) -> T:
        if not self.is_settled:
            return make()
        found: T = kept.get((self.run_id, self._state.head.seq, *what), make)
        return found

    def _axis(self, by: str) -> Axis:
        if by not in self._axes:
            self._axes[by] = axis_of(self._journals, by)
        return self._axes[by]

    def _read_metrics(self) -> RunMetrics:
        journals = self._journals
        trained = [each for each in journals.metrics if each.group in (TRAINING, EVALUATED)]
        return RunMetrics(
            metrics=journals.metrics,
            newest=newest_values(journals, trained),
            left_out=journals.left_out,
            lost=tuple(journals.lost),
        )

    def _read_ends(self, by: str) -> tuple[Range, str, float] | None:
        axis = self._axis(by)
        ends = extent(self._journals, axis)
        if ends is None:
            return None
        steps = sum(max(0, each.end - each.resume) for each in self._journals.accounts)
        span = ends[1] - ends[0]
        return ends, axis.label, steps / span if span > 0 else 1.0


def _is_settled(state: RunState, now: datetime) -> bool:
    """Whether nobody writes to its journals before there is another attempt."""
    ends = [attempt.ended_at for attempt in state.attempts]
    return all(end is not None and (now - end).total_seconds() > SETTLED_S for end in ends)


def _lines(
    readings: Sequence[_Reading],
    names: Sequence[str],
    by: str,
    within: Range | None,
    buckets: int,
) -> Lines:
    ends: dict[str, tuple[Range, str, float]] = {}
    without: dict[str, str] = {}
    for each in readings:
        try:
            found = each.ends(by)
        except InvalidInput as error:
            without[each.run_id] = str(error)
            continue
        if found is not None:
            ends[each.run_id] = found
    places = [place for found_at, _, _ in ends.values() for place in found_at]
    begin, end = within or (axis_range(places) if places else (0.0, 1.0))
    is_settled = all(each.is_settled for each in readings)
    # While one run grows what is kept of the others fits still: their buckets stay where they are.
    pixels = Pixels(begin, end if within or is_settled else round_up(end), buckets)
    metrics: dict[str, Metric] = {}
    lines: dict[str, dict[str, Buckets]] = {name: {} for name in names}
    for each in readings:
        known = {metric.name: metric for metric in each.metrics.metrics if metric.kind != RANKS}
        asked = [known[name] for name in names if name in known and each.run_id in ends]
        found_of_run = each.buckets(asked, by, pixels) if asked else {}
        for metric in asked:
            metrics.setdefault(metric.name, metric)
            lines[metric.name][each.run_id] = found_of_run[metric.name]
    return Lines(
        x_label=" or ".join(dict.fromkeys(label for _, label, _ in ends.values())) or by,
        within=(begin, end),
        grid=pixels,
        metrics=metrics,
        found={name: of_runs for name, of_runs in lines.items() if of_runs},
        without=without,
        steps_per_x={run_id: steps for run_id, (_, _, steps) in ends.items()},
        growing=tuple(each.run_id for each in readings if not each.is_settled),
        is_over=all(each.is_over for each in readings),
        names=names_digest({each.run_id: each.metrics for each in readings}),
        basis=_digest(by, pixels, *(each.basis for each in readings)),
    )


def names_digest(of_runs: Mapping[str, RunMetrics]) -> str:
    """Return a digest of which metrics each run has: while it is the same, so are a page's panels."""
    return _digest(
        [(run_id, sorted(m.name for m in of_runs[run_id].metrics)) for run_id in of_runs]
    )


def _digest(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:12]


# --- for a page -------------------------------------------------------------------------------------


def lines_json(lines: Lines, since: Mapping[str, str] = NOTHING_YET) -> dict[str, Json]:
    """Return the lines for the page's script.

    Of each metric: `x`, the places; of each run `at`, which of these it has a value at, `mean`, and
    where a place has several values `first` and `second`: the smallest and the largest, as they came;
    `odd`: the places of what is not a finite number; `cursor`, with which the script asks again. Beside
    them `names`, which changes with the panels that there are.

    since: cursors by metric, as they were given out. Of such a metric only the places that may have
    changed are there, which come behind the first `after` that the script has.
    """
    return {
        "x_label": lines.x_label,
        "within": list(lines.within),
        "is_over": lines.is_over,
        "names": lines.names,
        "without": dict(lines.without),
        "metrics": {
            name: _metric_json(lines, name, lines.first_changed(since.get(name, "")))
            for name in lines.found
        },
    }


def _metric_json(lines: Lines, name: str, first: int) -> dict[str, Json]:
    import numpy as np

    metric = lines.metrics[name]
    used, x = lines.places(name)
    position = np.zeros(lines.grid.count, np.int64)
    position[used] = np.arange(len(used))
    after = int(np.searchsorted(used, first))
    return {
        "title": title_of(metric),
        "unit": metric.unit,
        "cursor": lines.cursor(name),
        "after": after,
        "x": [float(f"{place:.10g}") for place in x[after:].tolist()],
        "runs": {
            run_id: {
                **_run_json(found, position, first),
                "steps_per_x": lines.steps_per_x[run_id],
            }
            for run_id, found in lines.found[name].items()
        },
    }


def _run_json(found: Buckets, position: Array, begin: int) -> dict[str, Json]:
    import numpy as np

    is_asked = found.used >= begin
    used = found.used[is_asked]
    low, high = found.low[used], found.high[used]
    means = found.means()[is_asked]
    line: dict[str, Json] = {"at": position[used].tolist(), "mean": _rounded(means)}
    if (low != high).any():
        is_low_first = found.low_x[used] <= found.high_x[used]
        line["first"] = _rounded(np.where(is_low_first, low, high))
        line["second"] = _rounded(np.where(is_low_first, high, low))
    odd = np.flatnonzero(found.odd)
    if len(odd := odd[odd >= begin]):
        line["odd"] = position[odd].tolist()
    return line


def _rounded(values: Array) -> list[Json]:
    return [number_json(float(f"{value:.{DIGITS}g}")) for value in values.tolist()]


def drawn_curve(lines: Lines, name: str, run_id: str) -> Curve:
    """Return a run's line as a curve for a picture: of each bucket the smallest and the largest value,
    as they came, and a point that is not a finite number where it has one."""
    metric = lines.metrics[name]
    found = lines.found[name].get(run_id)
    if found is None:
        return Curve(metric=metric, series=())
    used, x = lines.places(name)
    scale = lines.steps_per_x[run_id]
    points: list[Point] = []
    for place, bucket in zip(x.tolist(), used.tolist(), strict=True):
        values = [found.low[bucket].item(), found.high[bucket].item()]
        if found.low_x[bucket] > found.high_x[bucket]:
            values.reverse()
        if not found.count[bucket]:
            values = []
        elif values[0] == values[1]:
            values.pop()
        if found.odd[bucket]:
            values.append(math.nan)
        points += [Point(round(place * scale), place, value, math.nan) for value in values]
    if not points:
        return Curve(metric=metric, series=())
    count = int(found.count.sum())
    series = Series(attempt_id=1, rank=None, is_kept=True, points=tuple(points), count=count)
    return Curve(metric=metric, series=(series,))


def band_of(lines: Lines, name: str, run_ids: Sequence[str], *, css: str, smooth: int = 0) -> Band:
    """Return mean ± deviation of some runs, at the places where at least two of them are: each is
    everywhere from its first place to its last, on a straight line between two values. As `bandOf` of
    compare.js. css: the class of its colour; smooth: over how many steps each run is averaged first."""
    import numpy as np

    used, x = lines.places(name)
    position = np.zeros(lines.grid.count, np.int64)
    position[used] = np.arange(len(used))
    values = np.full((len(run_ids), len(used)), np.nan)
    odd: list[Point] = []
    for row, run_id in enumerate(run_ids):
        found = lines.found[name].get(run_id)
        if found is None:
            continue
        scale = lines.steps_per_x[run_id]
        odd += _at(x[position[np.flatnonzero(found.odd)]], scale=scale)
        at = position[found.used]
        if not len(at):
            continue
        own = _at(x[at], found.means(), scale=scale)
        own = smoothed(own, smooth) if smooth else own
        along = slice(at[0], at[-1] + 1)
        values[row, along] = np.interp(x[along], x[at], [point.value for point in own])
    several = np.flatnonzero((~np.isnan(values)).sum(axis=0) > 1)
    with np.errstate(
        over="ignore", invalid="ignore"
    ):  # of the largest floats: it is not drawn there
        mean = np.nanmean(values[:, several], axis=0)
        off = np.nanstd(values[:, several], axis=0, ddof=1)
        edges = [_at(x[several], edge) for edge in (mean, mean - off, mean + off)]
    return Band(name=name, css=css, mean=edges[0], low=edges[1], high=edges[2], odd=odd)


def _at(x: Array, values: Array | None = None, *, scale: float = 1.0) -> list[Point]:
    """Return points at these places; without values, such as are not finite numbers."""
    found = [math.nan] * len(x) if values is None else values.tolist()
    return [
        Point(round(place * scale), place, value, math.nan)
        for place, value in zip(x.tolist(), found, strict=True)
    ]

"""The page /compare: what it asks of the sources, and its curves as the server draws them.

The server draws a picture of each metric as far as CURVES_MAX curves go: for the first paint, print and
who has no script. The page's script draws over them from `numbers`, the same lines as JSON.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlencode

from starlette.requests import Request

from tracks_dagster.curves.curve import AXES, Curve
from tracks_dagster.review.comparing import Score
from tracks_dagster.review.effects.experiments import read_scores
from tracks_dagster.review.effects.pages.charts import Band, Look, compare_panel
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.journal_lines import LOSS
from tracks_dagster.track.names import IMPORTED
from tracks_dagster.track.records import Json
from tracks_dagster.track.roles import SEED, key_of
from tracks_dagster.track.states.run_state import RunState
from tracks_dagster.wings.watch.board.catalogue import Catalogue, MetricLine, catalogue
from tracks_dagster.wings.watch.board.comparison import (
    RUNS_MAX,
    ColouredRun,
    ComparedRun,
    ComparisonView,
    CurvesView,
    DrawnGroup,
    DrawnMetric,
    coloured,
    comparison_view,
    measured_of,
    numbers_of,
    outcome_of,
)
from tracks_dagster.wings.watch.board.effects import pages, queries
from tracks_dagster.wings.watch.board.effects.configs import config_picture
from tracks_dagster.wings.watch.board.effects.side_by_side import (
    BUCKETS_MAX,
    Lines,
    RunMetrics,
    SideBySide,
    band_of,
    drawn_curve,
    lines_json,
    names_digest,
)
from tracks_dagster.wings.watch.board.effects.sources import Sources
from tracks_dagster.wings.watch.board.reading import RunReading
from tracks_dagster.wings.watch.board.run_page import Link

CURVES_MAX = 144  # in pictures of one page: six runs in each of its panels
PICTURE_BUCKETS = (30, 240)  # of a curve in one: the fewer curves, the more
PICTURES_BUCKETS = 12_000  # of all curves together
NUMBERS_MAX = 12  # metrics of one answer
BUCKETS = 480  # of one answer, unless it asks for others
LIVE_RUNS_MAX = 12  # that a page looks at every two seconds
FORM = ("by", "y", "smooth", "find", "clip", "bands")  # of the address, in the form over the curves
LINEAR, LOG = "linear", "log"


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """The runs of one request. others: run ids beyond RUNS_MAX."""

    readings: tuple[RunReading, ...]
    others: tuple[str, ...]

    @property
    def states(self) -> list[RunState]:
        """Their folds."""
        return [reading.state for reading in self.readings]

    @property
    def is_live(self) -> bool:
        """Whether the page asks for its part again and again."""
        return len(self.readings) <= LIVE_RUNS_MAX


class Comparisons:
    """Answers what asks for several runs. Safe in threads."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._curves = SideBySide(sources)

    def runs(self, request: Request) -> Compared:
        """Return the runs that the address names; raises UnknownRun."""
        asked = list(dict.fromkeys(filter(None, request.query_params.getlist("run"))))
        readings = tuple(self._sources.run(run_id) for run_id in asked[:RUNS_MAX])
        return Compared(readings=readings, others=tuple(asked[RUNS_MAX:]))

    def page(self, request: Request, found: Compared) -> ComparisonView:
        """Return the page."""
        scores = read_scores(self._sources.ledger, [state.run_id for state in found.states])
        metrics = self._curves.metrics(found.states)
        runs = [
            self._compared(each, scores.get(each.state.run_id, ()), metrics[each.state.run_id])
            for each in found.readings
        ]
        shown = self._shown(request, runs)
        banners = []
        if found.others:
            banners.append(f"Only {RUNS_MAX} runs are shown; left out: {', '.join(found.others)}.")
        return comparison_view(
            runs,
            shown=shown,
            picture=config_picture(
                runs,
                shown,
                request.query_params.get("against", ""),
                lambda name: f"{queries.address(request, against=name)}#configs",
            ),
            curves=self._curves_of(request, found.states, shown, metrics) if runs else None,
            banners=banners,
        )

    def curves(self, request: Request, found: Compared) -> CurvesView:
        """Return the curves alone, for a script that has changed what is looked for."""
        runs = [
            ComparedRun(
                run_id=state.run_id,
                settings=self._sources.settings_of(state),
                outcome={},
                seed_key=_seed_key(state),
                called=state.labels.name,
            )
            for state in found.states
        ]
        metrics = self._curves.metrics(found.states)
        return self._curves_of(
            request, found.states, self._shown(request, runs), metrics, draws=False
        )

    def numbers(self, request: Request, found: Compared) -> dict[str, Json]:
        """Return some metrics of the runs as JSON, of each what is new since its cursor where the
        request has one: as many `since` as `metric`, in the same order. Raises InvalidInput."""
        names = queries.listed(request, "metric")[:NUMBERS_MAX]
        lines = self._curves.lines(
            found.states,
            names,
            by=queries.axis(request),
            within=queries.within(request),
            buckets=min(BUCKETS_MAX, queries.whole(request, "buckets", BUCKETS, least=1)),
        )
        asked = request.query_params
        pairs = zip(asked.getlist("metric"), asked.getlist("since"), strict=False)
        return lines_json(lines, dict(pairs))

    def all_numbers(self, request: Request, found: Compared, buckets: int) -> dict[str, Json]:
        """Return the numbers of every panel of the page."""
        metrics = self._curves.metrics(found.states)
        names = {run_id: of_run.metrics for run_id, of_run in metrics.items()}
        panels = [line.name for line in catalogue(names, queries.wanted(request)).lines]
        by = queries.axis(request)
        return lines_json(
            self._curves.lines(found.states, panels, by=by, within=None, buckets=buckets)
        )

    def _compared(
        self, reading: RunReading, scores: Sequence[Score], metrics: RunMetrics
    ) -> ComparedRun:
        settings = self._sources.settings_of(reading.state)
        return ComparedRun(
            run_id=reading.state.run_id,
            settings={**settings, "evals": measured_of(scores)},
            outcome=outcome_of(reading, metrics.newest, scores),
            numbers=numbers_of(metrics.newest, scores),
            seed_key=_seed_key(reading.state),
            called=reading.state.labels.name,
            has_code=reading.state.declared.compute.launcher != IMPORTED,
        )

    def _shown(self, request: Request, runs: Sequence[ComparedRun]) -> tuple[ColouredRun, ...]:
        without = {run.run_id: queries.without_run(request, run.run_id) for run in runs}
        return coloured(runs, without, queries.listed(request, "off"))

    def _curves_of(
        self,
        request: Request,
        states: Sequence[RunState],
        shown: Sequence[ColouredRun],
        metrics: Mapping[str, RunMetrics],
        *,
        draws: bool = True,
    ) -> CurvesView:
        by, look, text = queries.axis(request), queries.look(request), queries.find(request)
        names = {run_id: of_run.metrics for run_id, of_run in metrics.items()}
        every = dict.fromkeys(each.name for of_run in names.values() for each in of_run)
        found = catalogue(names, queries.wanted(request), matching(list(every), text))
        svgs, words = self._pictures(request, states, shown, found) if draws else ({}, [])
        words += [each for of_run in metrics.values() for each in of_run.lost]
        left_out = max((of_run.left_out for of_run in metrics.values()), default=0)
        if left_out:
            words.append(f"A script reports more names than are read: {left_out} are left out.")
        items = request.query_params.multi_items()
        runs = [("run", state.run_id) for state in states]
        return CurvesView(
            by=by,
            axes=AXES,
            scale=LOG if look.is_log else LINEAR,
            smooth=look.smooth,
            find=text,
            is_clipped="clip" in request.query_params,
            is_banded="bands" in request.query_params,
            has_bands=any(run.band is not None for run in shown),
            given=tuple(each for each in items if each[0] not in (*FORM, "page", "steps", "x")),
            data=f"/compare.json?{urlencode(runs)}",
            names=names_digest(metrics),
            catalogue=found,
            groups=tuple(_groups(request, found, svgs)),
            hidden=tuple(
                Link(label=name, address=queries.toggled(request, "hide", name))
                for name in found.hidden
            ),
            pages=tuple(_pages(request, found)),
            zoom=_way_back(request),
            runs=tuple(shown),
            words=tuple(words),
        )

    def _pictures(
        self,
        request: Request,
        states: Sequence[RunState],
        shown: Sequence[ColouredRun],
        found: Catalogue,
    ) -> tuple[dict[str, str], list[str]]:
        """Return the pictures of the first metrics of the page, and what to say about them."""
        count = max(1, CURVES_MAX // max(1, len(states)))
        names = [line.name for group in found.groups for line in group.lines][:count]
        least, most = PICTURE_BUCKETS
        curves_count = max(1, len(states) * len(names))
        lines = self._curves.lines(
            states,
            names,
            by=queries.axis(request),
            within=queries.within(request),
            buckets=min(most, max(least, PICTURES_BUCKETS // curves_count)),
        )
        is_shown = [run for run in shown if run.run_id not in lines.without]
        look = queries.look(request)
        bands = _families(shown) if "bands" in request.query_params else ()
        svgs = {name: _picture(lines, name, is_shown, bands, look) for name in names}
        return svgs, [f"Not drawn by {queries.axis(request)}: {e}" for e in lines.without.values()]


def _families(shown: Sequence[ColouredRun]) -> list[list[ColouredRun]]:
    """Return the runs of each band that are shown, in their order."""
    found: dict[int, list[ColouredRun]] = {}
    for run in shown:
        if run.band is not None and run.is_shown:
            found.setdefault(run.band, []).append(run)
    return [*found.values()]


def _picture(
    lines: Lines,
    name: str,
    shown: Iterable[ColouredRun],
    families: Iterable[Sequence[ColouredRun]],
    look: Look,
) -> str:
    """Return the picture of a metric. families: runs that are one band where two of them have it."""
    if name not in lines.found:
        return ""
    bands: dict[str, Band] = {}
    in_bands: set[str] = set()
    for family in families:
        having = [run for run in family if run.run_id in lines.found[name]]
        if len(having) < 2:
            continue
        members = [run.run_id for run in having]
        in_bands.update(members)
        bands[f"mean of {', '.join(members)}"] = band_of(
            lines, name, members, css=having[0].colour, smooth=look.smooth
        )
    alone = [run for run in shown if run.run_id not in in_bands]
    curves: dict[str, Curve] = {run.run_id: drawn_curve(lines, name, run.run_id) for run in alone}
    width, height = pages.LARGE if name == LOSS else (pages.WIDTH, pages.HEIGHT)
    return compare_panel(
        curves,
        x_label=lines.x_label,
        x_range=lines.within,
        width=width,
        height=height,
        look=look,
        colours={run.run_id: run.classes for run in alone},
        bands=bands,
    )


def _groups(request: Request, found: Catalogue, svgs: Mapping[str, str]) -> Iterable[DrawnGroup]:
    for group in found.groups:
        yield DrawnGroup(
            title=group.title,
            count=group.count,
            is_folded=group.is_folded,
            fold=queries.toggled(request, "fold", group.name),
            panels=tuple(_drawn(request, line, svgs.get(line.name, "")) for line in group.lines),
        )


def _drawn(request: Request, line: MetricLine, svg: str) -> DrawnMetric:
    return DrawnMetric(
        name=line.name,
        title=line.title,
        unit=line.unit,
        missing=line.missing,
        is_starred=line.is_starred,
        svg=svg,
        alone=queries.toggled(request, "metric", line.name),
        star=queries.toggled(request, "star", line.name),
        hide=queries.toggled(request, "hide", line.name),
    )


def _pages(request: Request, found: Catalogue) -> Iterable[Link]:
    if found.page:
        yield Link(label="before", address=queries.address(request, page=str(found.page - 1)))
    if found.page + 1 < found.pages:
        yield Link(label="next", address=queries.address(request, page=str(found.page + 1)))


def _way_back(request: Request) -> Link | None:
    if queries.within(request) is None:
        return None
    others = [each for each in request.query_params.multi_items() if each[0] not in ("steps", "x")]
    return Link(label="show the whole axis", address=f"?{urlencode(others)}")


def _seed_key(state: RunState) -> str | None:
    return key_of(state.declared.config, state.declared.roles or {}, SEED)


def matching(names: Sequence[str], pattern: str) -> Collection[str] | None:
    """Return the names that a regular expression finds, in time that grows with their length alone;
    None for all. Raises InvalidInput."""
    if not pattern:
        return None
    import pyarrow as pa
    import pyarrow.compute as pc

    try:
        is_found = pc.match_substring_regex(
            pa.array(names, pa.string()), pattern=pattern, ignore_case=True
        )
    except pa.ArrowInvalid as error:
        raise InvalidInput(
            f"find={pattern[:60]!r} is not a regular expression ({error}): write a part of a name, or "
            "for example ^train/.*loss."
        ) from error
    return {name for name, is_one in zip(names, is_found.to_pylist(), strict=True) if is_one}

"""The pages of a run, of its devices, and of the runs of an experiment: what they read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from urllib.parse import quote, urlencode

from starlette.requests import Request

from tracks_dagster.curves.curve import STEP, Curves, Point
from tracks_dagster.review.effects.explain.run import attempt_address
from tracks_dagster.track.bodies import AttemptPlaced
from tracks_dagster.track.errors import InvalidInput, UnknownRun
from tracks_dagster.track.journal_lines import DEVICE, LOSS
from tracks_dagster.track.states.run_state import RunState
from tracks_dagster.wings.watch.board.catalogue import metric_page
from tracks_dagster.wings.watch.board.colours import looks_of
from tracks_dagster.wings.watch.board.comparison import (
    ColouredRun,
    ExperimentView,
    experiment_view,
)
from tracks_dagster.wings.watch.board.devices import DevicesPage, devices_page, ranks_from
from tracks_dagster.wings.watch.board.effects import pages, queries
from tracks_dagster.wings.watch.board.effects.sources import Sources
from tracks_dagster.wings.watch.board.heat_map import HeatMap, rank_maps
from tracks_dagster.wings.watch.board.reading import RunReading
from tracks_dagster.wings.watch.board.run_page import Beside, Link, RunPage, hot_ranks, run_page

EXPERIMENT_CURVES_MAX = 6  # /compare draws more


class RunPages:
    """Answers what asks for one run, or for those of an experiment. Safe in threads."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources

    def page(self, request: Request, *, may_act: bool) -> RunPage:
        """Return the page of a run; raises UnknownRun, InvalidInput."""
        reading = self._sources.run(request.path_params["run_id"])
        state, by, steps = reading.state, queries.axis(request), queries.step_range(request)
        shown = metric_page(
            self._sources.metrics(state),
            request.query_params.get("group", ""),
            queries.page(request),
        )
        names = [*shown.names, f"{DEVICE}/*"]  # in one go: each reading looks for new segments
        curves, banners = self._curves(state, by, steps, names)
        newest = self._sources.newest(state, names)
        is_growing = steps is None and state.open_attempt is not None
        look = replace(queries.look(request), is_growing=is_growing)
        panels, left_out = pages.panels_of(curves, newest, look)
        log = self._sources.log(state, queries.rank(request), hot_ranks(reading))
        record = self._sources.record(state)
        beside = Beside(
            panels=(*panels, *pages.progress_panels(state, reading.now)),
            maps=tuple(self._maps(reading)),
            choices=(
                *queries.metric_choices(request, shown),
                *queries.choices(request, curves.by),
            ),
            zoom=queries.way_back(request, steps),
            banners=banners,
            left_out=left_out,
            logs=log.text,
            log_ranks=queries.rank_links(request, log.ranks, log.rank),
            log_words=log.words,
            links=(*_study_links(record.trial), *self._links(state)),
            attempt_pages=self._attempt_pages(state),
            record=record,
            may_act=may_act,
            loss=newest.get(LOSS) or self._newest_loss(state),
        )
        return run_page(reading, beside)

    def devices(self, request: Request) -> DevicesPage:
        """Return the devices of its newest attempt, a few ranks at a time; raises UnknownRun."""
        state = self._sources.run(request.path_params["run_id"]).state
        placed = None if state.last_attempt is None else state.last_attempt.placed
        world_size = 0 if placed is None else placed.world_size
        ranks = ranks_from(queries.rank(request, "first") or 0, world_size)
        found = self._sources.devices(state, ranks) if ranks else {}
        places = {} if placed is None else _places(placed)
        return devices_page(state.run_id, found, places, ranks, world_size)

    def experiment(self, request: Request) -> ExperimentView:
        """Return the page of an experiment, else of a family; raises UnknownRun, InvalidInput."""
        name, by = request.path_params["name"], queries.axis(request)
        found = self._sources.experiment(name, request.query_params.get("baseline", ""))
        if found is None:
            raise UnknownRun(
                f"No training run is of an experiment or a family {name!r}; the fleet lists the runs."
            )
        baseline = found.baseline
        others = [run for run in reversed(found.runs) if run.run_id != baseline.run_id]
        drawn: list[tuple[ColouredRun, Curves]] = []
        shown = (baseline, *others[: EXPERIMENT_CURVES_MAX - 1])
        looks = looks_of([run.run_id for run in shown])
        for seat, run in enumerate(shown):
            state = self._sources.run(run.run_id).state
            coloured = ColouredRun(run_id=run.run_id, colour=looks[run.run_id], seat=seat)
            drawn.append((coloured, self._curves(state, by)[0]))
        return replace(
            experiment_view(name, found),
            panels=tuple(pages.compared_panels(drawn, queries.look(request))),
            runs=tuple(run for run, _ in drawn),
            choices=tuple(queries.choices(request, by)),
        )

    def _curves(
        self,
        state: RunState,
        by: str,
        steps: tuple[int, int] | None = None,
        metrics: Sequence[str] | None = None,
    ) -> tuple[Curves, tuple[str, ...]]:
        """Return a run's curves, of all its metrics for None, and what to say: they are by step where
        its journals do not have the axis."""
        try:
            return self._sources.curves(state, metrics, by, steps), ()
        except InvalidInput as error:
            if by == STEP:
                raise
            found = self._sources.curves(state, metrics, STEP, steps)
            return found, (f"Shown by step: {error}",)

    def _newest_loss(self, state: RunState) -> Point | None:
        """Return the newest loss of a run whose loss is not drawn on this page."""
        if all(each.name != LOSS for each in self._sources.metrics(state)):
            return None
        return self._sources.newest(state, [LOSS]).get(LOSS)

    def _maps(self, reading: RunReading) -> list[HeatMap]:
        """Return the heat maps of what is known by rank, for a gang of at least two."""
        attempt, step = reading.state.last_attempt, reading.step
        placed = None if attempt is None else attempt.placed
        if placed is None or step is None or placed.world_size < 2:
            return []
        return rank_maps(self._sources.by_rank(reading.state, step), _places(placed))

    def _links(self, state: RunState) -> list[Link]:
        run_id, ui_url = state.run_id, self._sources.ui_url
        experiment = state.declared.experiment or state.declared.model_family
        links = [
            Link(label="report", address=f"/runs/{run_id}/report"),
            Link(label="logs of all ranks", address=f"/runs/{run_id}/log"),
            Link(label="devices", address=f"/runs/{run_id}/devices"),
            Link(label="what it logged", address=f"/media?run={run_id}"),
            Link(
                label=f"experiment {experiment}",
                address=f"/experiments/{quote(experiment, safe='')}",
            ),
        ]
        source = state.declared.branched_from
        if source is not None:
            both = urlencode([("run", source.run_id), ("run", run_id)])
            links.append(Link(label=f"compare with {source.run_id}", address=f"/compare?{both}"))
        attempt = state.last_attempt
        if ui_url and attempt is not None:
            address = attempt_address(run_id, attempt, ui_url, self._sources.settings.prefix)
            links.append(Link(label="in Dagster", address=address))
        return links

    def _attempt_pages(self, state: RunState) -> dict[int, str]:
        ui_url = self._sources.ui_url
        if not ui_url:
            return {}
        prefix = self._sources.settings.prefix
        return {
            each.attempt_id: attempt_address(state.run_id, each, ui_url, prefix)
            for each in state.attempts
        }


def _places(placed: AttemptPlaced) -> dict[int, str]:
    """Return where each rank is, in words."""
    return {each.rank: f"{each.node}, {each.device}" for each in placed.ranks}


def _study_links(trial: tuple[str, int] | None) -> Iterable[Link]:
    """Yield the way to the study that a run is a trial of."""
    if trial is not None:
        study, number = trial
        yield Link(label=f"trial {number} of the study {study}", address=f"/studies/{study}")

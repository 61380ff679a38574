"""The board as a web application: an address each for what a person looks at. Reads only.

| address | shows |
|---|---|
| `/` | the fleet |
| `/runs` | all runs; `where=FILTER`, `sort=-NAME`, `columns=A,B`; `/runs.csv`, `/runs.json` |
| `/runs/RUN` | a run; `by=hours`, `steps=100-200`, `y=log`, `smooth=100`, `rank=N` of the log |
| `/runs/RUN/report` | its report, as `tracks report` writes it |
| `/compare?run=A&run=B` | runs side by side |
| `/experiments/NAME` | a baseline and what each run changed; `baseline=RUN` |
| `/runbooks/RULE` | what to do about an alert |
| `/find?run=TEXT` | runs by a part of their name |
| `/curves.json?run=RUN` | curves for a program; `metric=NAME`, `by=…` |
| `/metrics` | gauges for Prometheus |

A page that is open asks for its own `main` again and again (header `X-Part: main`), and gets 304 while
nothing changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from urllib.parse import quote, urlencode

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import (
    HTMLResponse,
    JSONResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
)
from starlette.routing import Route

from tracks_dagster.curves.curve import STEP, TRAINING, Curves, curves_json
from tracks_dagster.review.comparing import Score
from tracks_dagster.review.effects.experiments import read_scores
from tracks_dagster.review.effects.explain.run import attempt_address, load_run
from tracks_dagster.review.effects.pages.report import render_loaded
from tracks_dagster.review.effects.run_table import Asked
from tracks_dagster.review.experiments import baseline_of
from tracks_dagster.review.run_table import Run, default_columns, table_csv
from tracks_dagster.track.errors import (
    InvalidInput,
    LedgerError,
    NothingYet,
    StoreError,
    TracksError,
    UnknownRun,
)
from tracks_dagster.track.journal_lines import EVALUATED, LOSS
from tracks_dagster.track.states.run_state import RunState
from tracks_dagster.track.text.units import counted
from tracks_dagster.wings.watch.board import formats
from tracks_dagster.wings.watch.board.all_runs import all_runs_view
from tracks_dagster.wings.watch.board.comparison import (
    RUNS_MAX,
    ColouredRun,
    ComparedRun,
    colours_of,
    comparison_view,
    experiment_view,
    measured_of,
    outcome_of,
)
from tracks_dagster.wings.watch.board.effects import pages, queries
from tracks_dagster.wings.watch.board.effects.sources import Sources
from tracks_dagster.wings.watch.board.fleet import fleet_view
from tracks_dagster.wings.watch.board.gauges import Gauge, gauges
from tracks_dagster.wings.watch.board.heat_map import HeatMap, rank_maps
from tracks_dagster.wings.watch.board.reading import RunReading
from tracks_dagster.wings.watch.board.run_page import Beside, Key, Link, hot_ranks, run_page
from tracks_dagster.wings.watch.health import rules
from tracks_dagster.wings.watch.health.rules import RULES

EXPERIMENT_CURVES_MAX = 6  # as many as there are colours
TABLE_ROWS = 100  # of all runs, on a page
FILE_ROWS_MAX = 100_000
METRICS_MAX = 100  # of one request for curves
RUNBOOK_PAGES = Path(rules.__file__).parent / "runbooks"
FOUND_BY = "id, experiment, family, owner, team, intent or config"
HTTP_503 = 503  # from here on nothing could be read
NO_CLIENT = (
    "There is no /metrics here: the package prometheus-client is not installed. Install it beside "
    "tracks_dagster (`pip install prometheus-client`, or the extra `metrics`), then start the board "
    "again."
)
REPORT_POLICY = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"

Endpoint = Callable[[Request], Response]


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """A page of sentences. text: a file as it is."""

    title: str
    lines: Sequence[str] = ()
    text: str = ""
    links: Sequence[Link] = ()


class Board:
    """The pages over one home. Its methods are called in threads."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources

    def app(self) -> Starlette:
        """Return the application, without its door (`guard`)."""
        routes = {
            "/": self.fleet,
            "/runs/{run_id}": self.run,
            "/runs/{run_id}/report": self.report,
            "/compare": self.compare,
            "/experiments/{name:path}": self.experiment,
            "/runbooks/{rule}": self.runbook,
            "/runs": self.all_runs,
            "/runs.csv": self.all_runs_csv,
            "/runs.json": self.all_runs_json,
            "/find": self.find,
            "/curves.json": self.curves,
            "/metrics": self.metrics,
        }
        found = [Route(path, self._answered(answer)) for path, answer in routes.items()]
        return Starlette(routes=[*found, Route("/board.css", _style), Route("/board.js", _script)])

    def _answered(self, answer: Endpoint) -> Endpoint:
        """Turn an error of ours into a page that says it, which is asked for again like any other."""

        @wraps(answer)
        def answered(request: Request) -> Response:
            try:
                return answer(request)
            except TracksError as error:
                words = Words(title=_title_of(error), lines=[self._sources.clean(str(error))])
                return self._page(
                    request, "words.html", words, words.title, status=_status_of(error)
                )

        return answered

    def fleet(self, request: Request) -> Response:
        """`/`: every open run."""
        read = self._sources.fleet()
        view = fleet_view(
            read.rows,
            read.readings,
            problems=read.problems,
            banners=read.banners,
            experiments=read.experiments,
        )
        return self._page(request, "fleet.html", view, view.title)

    def run(self, request: Request) -> Response:
        """`/runs/RUN`."""
        reading = self._sources.run(request.path_params["run_id"])
        state, by, steps = reading.state, queries.axis(request), queries.step_range(request)
        curves, banners = self._curves(state, by, steps)
        devices = self._sources.curves(state, ["device/*"], curves.by, steps)
        newest = self._sources.newest(state, None)
        last = {**newest, **self._sources.newest(state, ["device/*"])}
        panels, left_out = pages.panels_of(curves, devices, last, queries.look(request))
        log = self._sources.log(state, queries.rank(request), hot_ranks(reading))
        beside = Beside(
            panels=(*panels, *pages.progress_panels(state, reading.now)),
            maps=tuple(self._maps(reading)),
            choices=queries.choices(request, curves.by),
            zoom=queries.way_back(request, steps),
            banners=banners,
            left_out=left_out,
            logs=log.text,
            log_ranks=queries.rank_links(request, log.ranks, log.rank),
            log_words=log.words,
            links=tuple(self._links(state)),
            attempt_pages=self._attempt_pages(state),
            loss=newest.get(LOSS),
        )
        return self._page(request, "run.html", run_page(reading, beside), state.run_id)

    def _curves(
        self, state: RunState, by: str, steps: tuple[int, int] | None = None
    ) -> tuple[Curves, tuple[str, ...]]:
        """Return a run's curves, by step where its journals do not have the axis; and what to say."""
        try:
            return self._sources.curves(state, None, by, steps), ()
        except InvalidInput as error:
            if by == STEP:
                raise
            found = self._sources.curves(state, None, STEP, steps)
            return found, (f"Shown by step: {error}",)

    def _maps(self, reading: RunReading) -> list[HeatMap]:
        """Return the heat maps of what is known by rank, for a gang of at least two."""
        attempt, step = reading.state.last_attempt, reading.step
        placed = None if attempt is None else attempt.placed
        if placed is None or step is None or placed.world_size < 2:
            return []
        places = {each.rank: f"{each.node}, {each.device}" for each in placed.ranks}
        return rank_maps(self._sources.by_rank(reading.state, step), places)

    def _links(self, state: RunState) -> list[Link]:
        run_id, ui_url = state.run_id, self._sources.ui_url
        experiment = state.declared.experiment or state.declared.model_family
        links = [
            Link(label="report", address=f"/runs/{run_id}/report"),
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

    def report(self, request: Request) -> Response:
        """`/runs/RUN/report`: the file that `tracks report` writes, as of now."""
        sources, context = self._sources, self._sources.context()
        loaded = load_run(sources.tracks, request.path_params["run_id"], context)
        html = render_loaded(sources.tracks, loaded, context)
        return HTMLResponse(html, headers={"Content-Security-Policy": REPORT_POLICY})

    def compare(self, request: Request) -> Response:
        """`/compare?run=A&run=B`: at most as many runs as there are colours."""
        asked = list(dict.fromkeys(filter(None, request.query_params.getlist("run"))))
        by, steps, wanted = queries.axis(request), queries.step_range(request), asked[:RUNS_MAX]
        banners: list[str] = []
        if len(asked) > RUNS_MAX:
            banners.append(
                f"Only {RUNS_MAX} runs are shown; left out: {', '.join(asked[RUNS_MAX:])}."
            )
        runs: list[ComparedRun] = []
        drawn: list[tuple[ColouredRun, Curves]] = []
        scores = read_scores(self._sources.ledger, wanted)
        colours = colours_of(wanted)
        for run_id in wanted:
            reading = self._sources.run(run_id)
            curves, words = self._curves(reading.state, by, steps)
            banners += words
            drawn.append((ColouredRun(run_id=run_id, colour=colours[run_id]), curves))
            runs.append(self._compared(reading, scores.get(run_id, ())))
        view = comparison_view(
            runs,
            panels=pages.compared_panels(drawn, queries.look(request)),
            choices=queries.choices(request, by),
            zoom=queries.way_back(request, steps),
            banners=banners,
            without={run_id: queries.without_run(request, run_id) for run_id in wanted},
        )
        return self._page(request, "compare.html", view, view.title)

    def _compared(self, reading: RunReading, scores: Sequence[Score]) -> ComparedRun:
        settings = self._sources.settings_of(reading.state)
        newest = self._sources.newest(reading.state, None, (TRAINING, EVALUATED))
        return ComparedRun(
            run_id=reading.state.run_id,
            settings={**settings, "evals": measured_of(scores)},
            outcome=outcome_of(reading, newest, scores),
        )

    def experiment(self, request: Request) -> Response:
        """`/experiments/NAME`, of an experiment, else of a family."""
        name, by = request.path_params["name"], queries.axis(request)
        runs = self._sources.experiment(name)
        if not runs:
            raise UnknownRun(
                f"No training run is of an experiment or a family {name!r}; the fleet lists the runs."
            )
        baseline, why = baseline_of(runs, request.query_params.get("baseline", ""))
        others = [run for run in reversed(runs) if run.run_id != baseline.run_id]
        drawn: list[tuple[ColouredRun, Curves]] = []
        shown = (baseline, *others[: EXPERIMENT_CURVES_MAX - 1])
        colours = colours_of([run.run_id for run in shown])
        for run in shown:
            state = self._sources.run(run.run_id).state
            coloured = ColouredRun(run_id=run.run_id, colour=colours[run.run_id])
            drawn.append((coloured, self._curves(state, by)[0]))
        view = replace(
            experiment_view(name, runs, baseline, why),
            panels=tuple(pages.compared_panels(drawn, queries.look(request))),
            keys=tuple(Key(colour=run.colour, text=run.run_id) for run, _ in drawn),
            choices=tuple(queries.choices(request, by)),
        )
        return self._page(request, "experiment.html", view, name)

    def runbook(self, request: Request) -> Response:
        """`/runbooks/RULE`: the page of docs/runbooks that came with the program."""
        rule = RULES.get(request.path_params["rule"])
        if rule is None:
            raise UnknownRun(f"There is no such rule; the rules are {', '.join(sorted(RULES))}.")
        path = RUNBOOK_PAGES / f"{rule.name}.md"
        try:
            text = path.read_text(encoding="utf-8")
        except OSError as error:
            raise InvalidInput(f"The runbook {rule.runbook} cannot be read: {error}.") from error
        words = Words(title=rule.name, lines=[f"{rule.threshold}; {rule.holds}."], text=text)
        return self._page(request, "words.html", words, rule.name, is_live=False)

    def all_runs(self, request: Request) -> Response:
        """`/runs`: finished ones too."""
        asked, page = queries.table(request), queries.page(request)
        table = self._sources.table(
            Asked(**queries.filter_of(asked), limit=TABLE_ROWS, skip=page * TABLE_ROWS)
        )
        view = all_runs_view(
            table.rows,
            queries.names(asked.get("columns", "")) or default_columns(table.rows),
            asked,
            page=page,
            page_size=TABLE_ROWS,
            is_more=table.is_more,
        )
        return self._page(request, "runs.html", view, view.title, is_live=False)

    def all_runs_csv(self, request: Request) -> Response:
        """`/runs.csv`: as `tracks runs --csv`."""
        rows, columns = self._whole_table(request)
        return Response(table_csv(rows, columns), media_type="text/csv; charset=utf-8")

    def all_runs_json(self, request: Request) -> Response:
        """`/runs.json`: as `tracks runs --json`."""
        return JSONResponse([dict(run.values) for run in self._whole_table(request)[0]])

    def _whole_table(self, request: Request) -> tuple[Sequence[Run], Sequence[str]]:
        asked = queries.table(request)
        rows = self._sources.table(Asked(**queries.filter_of(asked), limit=FILE_ROWS_MAX)).rows
        return rows, queries.names(asked.get("columns", "")) or default_columns(rows)

    def find(self, request: Request) -> Response:
        """`/find?run=TEXT`: leads to the run where only one is meant."""
        text = request.query_params.get("run", "").strip()
        found = self._sources.find(text) if text else []
        ids = [str(row["run_id"]) for row in found]
        exact = text if text in ids else (ids[0] if len(ids) == 1 else None)
        if exact is not None:
            return RedirectResponse(f"/runs/{quote(exact)}", status_code=303)
        line = f"{counted(len(ids), 'run')}, the newest first."
        if not ids:
            line = f"No run has {text!r} in its {FOUND_BY}."
        words = Words(
            title=f"Runs like {text}" if text else "Find a run",
            lines=[line if text else f"Write a part of its {FOUND_BY}."],
            links=[
                Link(label=f"{row['run_id']}: {row['intent']}", address=f"/runs/{row['run_id']}")
                for row in found
            ],
        )
        return self._page(request, "words.html", words, words.title, is_live=False)

    def curves(self, request: Request) -> Response:
        """`/curves.json`: for a program."""
        asked = request.query_params
        metrics = asked.getlist("metric")[:METRICS_MAX] or None
        state = self._sources.run(asked.get("run", "")).state
        return JSONResponse(
            curves_json(self._sources.curves(state, metrics, queries.axis(request)))
        )

    def metrics(self, request: Request) -> Response:
        """`/metrics`: of the runs with an open attempt."""
        try:
            fleet = self._sources.fleet()
            found = gauges(fleet.readings.values(), unread=len(fleet.problems))
            text, content_type = exposition(found)
        except ImportError:
            return PlainTextResponse(f"{NO_CLIENT}\n", status_code=501)
        return Response(text, media_type=content_type)

    def _page(
        self,
        request: Request,
        part: str,
        view: object,
        title: str,
        *,
        status: int = 200,
        is_live: bool = True,
    ) -> Response:
        """Return a page, or what is inside of its `main` where only that is asked for."""
        body = pages.render_part(part, view)
        version = f'"{pages.digest(body)}"'
        as_of = f"as of {formats.clock(self._sources.now())[11:]}"
        is_away = status >= HTTP_503
        headers = {"ETag": version, "X-As-Of": as_of, "Cache-Control": "no-store", "Vary": "X-Part"}
        if request.headers.get("X-Part") == "main":
            if request.headers.get("If-None-Match") == version:
                return Response(status_code=304, headers=headers)
            return HTMLResponse(body, status_code=status, headers=headers)
        html = pages.render_page(
            part,
            title,
            body,
            as_of="not live" if is_away else as_of,
            ui_url=self._sources.ui_url,
            is_live=is_live,
            is_away=is_away,
        )
        return HTMLResponse(html, status_code=status, headers=headers)


def exposition(found: Iterable[Gauge]) -> tuple[bytes, str]:
    """Return the text of gauges by Prometheus' own client, and its type; raises ImportError."""
    from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
    from prometheus_client import Gauge as Exposed

    registry = CollectorRegistry()
    for each in found:
        exposed = Exposed(each.name, each.meaning, each.labels, registry=registry)
        for labels, value in each.samples:
            (exposed.labels(*labels) if labels else exposed).set(value)
    return generate_latest(registry), CONTENT_TYPE_LATEST


def _style(request: Request) -> Response:
    return Response(pages.style(), media_type="text/css", headers=_KEEP)


def _script(request: Request) -> Response:
    return Response(pages.script(), media_type="text/javascript", headers=_KEEP)


_KEEP = {"Cache-Control": "max-age=86400"}  # their addresses change with them


def _title_of(error: TracksError) -> str:
    if isinstance(error, NothingYet):
        return "Nothing was recorded yet"
    return "Not found" if isinstance(error, UnknownRun) else "This cannot be shown now"


def _status_of(error: TracksError) -> int:
    """Return the status that says whether asking again may help."""
    if isinstance(error, NothingYet):
        return 200
    if isinstance(error, UnknownRun):
        return 404
    if isinstance(error, StoreError | LedgerError):
        return 503
    return 400 if isinstance(error, InvalidInput) else 500

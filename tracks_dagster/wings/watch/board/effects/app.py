"""The board as a web application: an address each for what a person looks at.

It writes only where it is given what acts (`acting`), and then by POST alone.

| address | shows |
|---|---|
| `/` | the fleet |
| `/runs` | all runs; `where=FILTER`, `sort=-A,B`, `columns=A,B`, `group=A`, `view=NAME`; `/runs.csv` |
| `/runs/RUN` | a run; `by=hours`, `steps=100-200`, `y=log`, `smooth=100`, `group=NAME`, `page=N` |
| `/runs/RUN/report` | its report, as `tracks report` writes it |
| `/runs/RUN/devices` | the device of every rank; `first=RANK` |
| `/runs/RUN/log` | what all ranks printed, by time; `attempt=N`, `rank=N`, `level=errors`, `text` |
| `/runs/RUN/log.txt` | all of it that is kept, to be saved |
| `/runs/RUN/code.diff` | what the commit of its code lacks |
| `/runs/RUN/evals/EVAL/TRY/FILE`, `/runs/RUN/artifacts/NAME/FILE` | files that it left |
| `/runs/RUN/acts/ACT` | POST: retry, drain, stop, note, mute, promote, quarantine |
| `/views/acts/ACT` | POST: save, remove |
| `/lineage?thing=KIND:NAME` | what it rests on, what came of it |
| `/compare?run=A&run=B` | runs side by side; `by=…`, `x=100..200`, `find=REGEX`, `star=NAME` |
| `/compare.json?run=A&run=B&metric=NAME&since=CURSOR` | their curves, for the page's script |
| `/media?run=A&run=B` | what they logged beside numbers; `step=N`, `every=1` |
| `/experiments/NAME` | a baseline and what each run changed; `baseline=RUN` |
| `/studies`, `/studies.csv`, `/studies.json` | all studies |
| `/studies/NAME` | a study; `show=stopped`, `sort=-lr`, `page=N`; `/studies/NAME.csv`, `….json` |
| `/runbooks/RULE` | what to do about an alert |
| `/find?run=TEXT` | runs by a part of their name |
| `/curves.json?run=RUN` | curves for a program; `metric=NAME`, `by=…` |
| `/metrics` | gauges for Prometheus |

A page that is open asks for its own `main` again and again (header `X-Part: main`), and gets 304 while
nothing changed; with `X-Part: difference` what differs from the version that it names (`If-None-Match`,
`difference.py`), or all of it where that version was forgotten. A version is a digest of what is sent:
a page that made something else of a difference asks for all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, wraps
from pathlib import Path
from urllib.parse import quote, urlencode

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import (
    HTMLResponse,
    JSONResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
)
from starlette.routing import Route
from starlette.types import ASGIApp

from tracks_dagster.curves.curve import curves_json
from tracks_dagster.review.effects.code_diff import diff_code
from tracks_dagster.review.effects.explain.run import load_run
from tracks_dagster.review.effects.pages.report import render_loaded
from tracks_dagster.settings import person
from tracks_dagster.studies.words import as_facts
from tracks_dagster.track.errors import (
    InvalidInput,
    LedgerError,
    NothingYet,
    StoreError,
    TracksError,
    UnknownRun,
)
from tracks_dagster.track.records import Json
from tracks_dagster.track.states.lifecycle import RunLifecycle
from tracks_dagster.track.states.run_state import RunState
from tracks_dagster.track.states.study_state import StudyState
from tracks_dagster.track.text.units import counted
from tracks_dagster.wings.watch.board import formats
from tracks_dagster.wings.watch.board.difference import difference
from tracks_dagster.wings.watch.board.effects import downloads, pages, queries
from tracks_dagster.wings.watch.board.effects.acting import Acting, read_form
from tracks_dagster.wings.watch.board.effects.below import Below, address_below, page_below
from tracks_dagster.wings.watch.board.effects.compare import Comparisons
from tracks_dagster.wings.watch.board.effects.lineage_source import read_page
from tracks_dagster.wings.watch.board.effects.logged import LoggedPages
from tracks_dagster.wings.watch.board.effects.run_pages import RunPages
from tracks_dagster.wings.watch.board.effects.sources import FOUND_MAX, Sources
from tracks_dagster.wings.watch.board.effects.studies import STUDIES_MAX, StudyPages
from tracks_dagster.wings.watch.board.effects.table_pages import TablePages
from tracks_dagster.wings.watch.board.fleet import fleet_view
from tracks_dagster.wings.watch.board.gauges import Gauge, gauges
from tracks_dagster.wings.watch.board.log_lines import log_page
from tracks_dagster.wings.watch.board.run_page import Link
from tracks_dagster.wings.watch.board.runbook import Block, blocks
from tracks_dagster.wings.watch.board.study import studies_csv, studies_view, study_csv
from tracks_dagster.wings.watch.health import rules
from tracks_dagster.wings.watch.health.rules import RULES

METRICS_MAX = 100  # of one request for curves
RUNBOOK_PAGES = Path(rules.__file__).parent / "runbooks"
FOUND_BY = "id, name, tags, experiment, family, owner, team, intent or config"
HTTP_200 = 200
MAIN, DIFFERENCE = "main", "difference"  # what an open page asks for
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
    """A page of sentences. blocks: of a runbook; text: a file as it is."""

    title: str
    lines: Sequence[str] = ()
    blocks: Sequence[Block] = ()
    text: str = ""
    links: Sequence[Link] = ()


class Board:
    """The pages over one home. Its methods are called in threads."""

    def __init__(
        self,
        sources: Sources,
        *,
        acting: Acting | None = None,
        user_header: str = "",
        prefix: str = "",
    ) -> None:
        """acting: does what forms ask for, None where nothing may be written. user_header: whom the
        proxy names. prefix: the path below which the board is reached."""
        self._sources = sources
        self._acting = acting
        self._user_header = user_header
        self._prefix = prefix
        self._sent = pages.Sent()
        self._runs = RunPages(sources)
        self._table = TablePages(sources)
        self._comparisons = Comparisons(sources)
        self._logged = LoggedPages(sources)
        self._studies = StudyPages(sources)

    def app(self) -> ASGIApp:
        """Return the application, without its door (`guard`)."""
        routes = {
            "/": self.fleet,
            "/runs/{run_id}": self.run,
            "/runs/{run_id}/report": self.report,
            "/runs/{run_id}/devices": self.devices,
            "/runs/{run_id}/log": self.log,
            "/runs/{run_id}/log.txt": self.whole_log,
            "/runs/{run_id}/code.diff": self.code_diff,
            "/runs/{run_id}/evals/{eval_id}/{number}/{name:path}": self.eval_file,
            "/runs/{run_id}/artifacts/{name}": self.artifact,
            "/runs/{run_id}/artifacts/{name}/{path:path}": self.artifact_file,
            "/runs/{run_id}/did/{key}": self.did,
            "/views/did/{key}": self.did,
            "/lineage": self.lineage,
            "/compare": self.compare,
            "/compare/curves": self.compared_curves,
            "/compare.json": self.compared_numbers,
            "/compare/code": self.compared_code,
            "/media": self.media,
            "/media/{run_id}/{sha256}": self.media_file,
            "/experiments/{name:path}": self.experiment,
            "/studies": self.studies,
            "/studies.csv": self.studies_csv,
            "/studies.json": self.studies_json,
            "/studies/{name}.csv": self.study_csv,
            "/studies/{name}.json": self.study_json,
            "/studies/{name}": self.study,
            "/runbooks/{rule}": self.runbook,
            "/runs": self.all_runs,
            "/runs.csv": self.all_runs_csv,
            "/runs.json": self.all_runs_json,
            "/find": self.find,
            "/curves.json": self.curves,
            "/metrics": self.metrics,
        }
        found = [Route(path, self._answered(answer)) for path, answer in routes.items()]
        found += [Route(f"/{name}", _file) for name in pages.FILES]
        if self._acting is not None:
            for path in ("/runs/{run_id}/acts/{name}", "/views/acts/{name}"):
                found.append(Route(path, self.act, methods=["GET", "POST"]))
        return Below(Starlette(routes=found, exception_handlers={404: self._no_page}), self._prefix)

    def _answered(self, answer: Endpoint) -> Endpoint:
        """Turn an error of ours into a page that says it, which is asked for again like any other."""

        @wraps(answer)
        def answered(request: Request) -> Response:
            try:
                queries.check_length(request)
                return answer(request)
            except TracksError as error:
                return self._refused(request, error)

        return answered

    def _no_page(self, request: Request, _: Exception) -> Response:
        words = Words(
            title="Not found",
            lines=["No page has this address."],
            links=[Link(label="the fleet", address="/"), Link(label="all runs", address="/runs")],
        )
        return self._page(request, "words.html", words, words.title, status=404, is_live=False)

    def _refused(self, request: Request, error: TracksError) -> Response:
        words = Words(title=_title_of(error), lines=[self._sources.clean(str(error))])
        return self._page(request, "words.html", words, words.title, status=_status_of(error))

    def fleet(self, request: Request) -> Response:
        """`/`: every open run."""
        read = self._sources.fleet()
        view = fleet_view(
            read.rows,
            read.readings,
            problems=read.problems,
            banners=read.banners,
            experiments=read.experiments,
            earlier=read.earlier,
        )
        view = replace(view, studies=tuple(read.studies))
        return self._page(request, "fleet.html", view, view.title)

    def run(self, request: Request) -> Response:
        """`/runs/RUN`."""
        view = self._runs.page(request, may_act=self._acting is not None)
        return self._page(request, "run.html", view, request.path_params["run_id"])

    def report(self, request: Request) -> Response:
        """`/runs/RUN/report`: the file that `tracks report` writes, as of now."""
        sources, context = self._sources, self._sources.context()
        loaded = load_run(sources.tracks, request.path_params["run_id"], context)
        html = render_loaded(sources.tracks, loaded, context)
        return HTMLResponse(html, headers={"Content-Security-Policy": REPORT_POLICY})

    def compare(self, request: Request) -> Response:
        """`/compare?run=A&run=B`: at most RUNS_MAX runs."""
        found = self._comparisons.runs(request)
        view = self._comparisons.page(request, found)
        return self._page(request, "compare.html", view, view.title, is_live=found.is_live)

    def compared_curves(self, request: Request) -> Response:
        """`/compare/curves`: the curves' part of that page, for its script."""
        view = self._comparisons.curves(request, self._comparisons.runs(request))
        part = pages.render_part("compared_curves.html", view)
        return HTMLResponse(page_below(self._prefix, part))

    def compared_numbers(self, request: Request) -> Response:
        """`/compare.json`."""
        found = self._comparisons.runs(request)
        return JSONResponse(self._comparisons.numbers(request, found))

    def all_numbers(self, request: Request, buckets: int) -> dict[str, Json]:
        """Return what the script of `/compare` needs where it cannot ask: every panel of that page."""
        found = self._comparisons.runs(request)
        return self._comparisons.all_numbers(request, found, buckets)

    def compared_code(self, request: Request) -> Response:
        """`/compare/code?run=A&run=B`: of the newest attempt of each, the second beside the first."""
        states = self._comparisons.runs(request).states
        attempts = [(each, each.last_attempt) for each in states if each.last_attempt is not None]
        if len(attempts) != 2:
            raise InvalidInput(
                "Two runs that have an attempt are needed: /compare/code?run=A&run=B."
            )
        found = diff_code(self._sources.tracks.store, *attempts)
        same, runs = counted(found.equal_count, "file"), [("run", each.run_id) for each in states]
        words = Words(
            title=f"Code of {found.b} beside {found.a}",
            lines=[f"{counted(len(found.files), 'file')} differ, {same} are the same."],
            text=self._sources.clean(found.text),
            links=[Link(label="compare", address=f"/compare?{urlencode(runs)}")],
        )
        return self._page(request, "words.html", words, words.title, is_live=False)

    def media(self, request: Request) -> Response:
        """`/media?run=A&run=B`."""
        view = self._logged.page(request)
        return self._page(request, "media.html", view, view.title)

    def media_file(self, request: Request) -> Response:
        """`/media/RUN/SHA256`."""
        return self._logged.file(request.path_params["run_id"], request.path_params["sha256"])

    def experiment(self, request: Request) -> Response:
        """`/experiments/NAME`, of an experiment, else of a family."""
        view = self._runs.experiment(request)
        return self._page(request, "experiment.html", view, request.path_params["name"])

    def studies(self, request: Request) -> Response:
        """`/studies`."""
        view = studies_view(self._studies.all(), most=STUDIES_MAX, now=self._sources.now())
        return self._page(request, "studies.html", view, view.title)

    def studies_csv(self, request: Request) -> Response:
        """`/studies.csv`."""
        return Response(studies_csv(self._studies.all()), media_type=downloads.CSV)

    def studies_json(self, request: Request) -> Response:
        """`/studies.json`."""
        return JSONResponse(self._studies.all())

    def study(self, request: Request) -> Response:
        """`/studies/NAME`."""
        view = self._studies.page(request)
        return self._page(request, "study.html", view, view.title)

    def study_csv(self, request: Request) -> Response:
        """`/studies/NAME.csv`: a line for each run of a trial."""
        return Response(study_csv(self._study_of(request)), media_type=downloads.CSV)

    def study_json(self, request: Request) -> Response:
        """`/studies/NAME.json`: as `tracks studies NAME --json`."""
        return JSONResponse(as_facts(self._study_of(request)))

    def _study_of(self, request: Request) -> StudyState:
        return self._studies.study(request.path_params["name"])

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
        line = f"{rule.threshold}; {rule.holds}."
        words = Words(title=rule.name, lines=[line], blocks=blocks(text))
        return self._page(request, "words.html", words, rule.name, is_live=False)

    def all_runs(self, request: Request) -> Response:
        """`/runs`: finished ones too; in groups where the address asks for them."""
        view = self._table.page(request, may_act=self._acting is not None)
        return self._page(request, "runs.html", view, view.title, is_live=False)

    def all_runs_csv(self, request: Request) -> Response:
        """`/runs.csv`."""
        return self._table.csv(request)

    def all_runs_json(self, request: Request) -> Response:
        """`/runs.json`."""
        return self._table.json(request)

    def find(self, request: Request) -> Response:
        """`/find?run=TEXT`: leads to the run where only one is meant."""
        text = request.query_params.get("run", "").strip()
        read = self._sources.find(text) if text else []
        found = read[:FOUND_MAX]
        ids = [str(row["run_id"]) for row in found]
        exact = text if text in ids else (ids[0] if len(read) == 1 else None)
        if exact is not None:
            return self._redirect(f"/runs/{quote(exact)}")
        more = "; there are more: write more of the text" if len(read) > len(found) else ""
        line = f"{counted(len(ids), 'run')}, the newest first{more}."
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

    # --- beside a run's page ---

    def _run_of(self, request: Request) -> RunState:
        return self._sources.run(request.path_params["run_id"]).state

    def devices(self, request: Request) -> Response:
        """`/runs/RUN/devices`: of the newest attempt, a few ranks at a time."""
        view = self._runs.devices(request)
        return self._page(request, "devices.html", view, view.title)

    def log(self, request: Request) -> Response:
        """`/runs/RUN/log`: of an attempt, by default the newest."""
        state = self._run_of(request)
        attempt = queries.attempt(request, state)
        if attempt is None:
            words = Words(title=state.run_id, lines=["No attempt was opened yet."])
            return self._page(request, "words.html", words, words.title)
        asked = queries.log_asked(request, attempt.attempt_id)
        texts, is_cut = self._sources.log_ends(state, attempt, asked.rank)
        view = log_page(
            state.run_id,
            texts,
            asked,
            attempts=[each.attempt_id for each in state.attempts],
            is_cut=is_cut,
        )
        is_live = attempt.ended is None
        return self._page(request, "log.html", view, view.title, is_live=is_live)

    def whole_log(self, request: Request) -> Response:
        """`/runs/RUN/log.txt`."""
        state = self._run_of(request)
        attempt = queries.attempt(request, state)
        if attempt is None:
            raise UnknownRun(f"{state.run_id} has no attempt yet.")
        parts = self._sources.logs_of(state, attempt).whole(queries.rank(request))
        name = f"{state.run_id}-a{attempt.attempt_id:02d}.log"
        return downloads.download(name, (text.encode() for text in parts))

    def code_diff(self, request: Request) -> Response:
        """`/runs/RUN/code.diff`."""
        state = self._run_of(request)
        text = self._sources.clean(downloads.code_diff(self._sources.tracks.store, state))
        words = Words(title=f"Local changes of {state.run_id}", text=text)
        return self._page(request, "words.html", words, words.title, is_live=False)

    def eval_file(self, request: Request) -> Response:
        """`/runs/RUN/evals/EVAL/TRY/FILE`."""
        asked = request.path_params
        return downloads.eval_file(
            self._sources.tracks.store,
            self._run_of(request),
            asked["eval_id"],
            asked["number"],
            asked["name"],
        )

    def artifact(self, request: Request) -> Response:
        """`/runs/RUN/artifacts/NAME`: its files."""
        state, name = self._run_of(request), request.path_params["name"]
        files = downloads.artifact_files(self._sources.tracks.store, state, name)
        address = f"/runs/{state.run_id}/artifacts/{quote(name)}"
        words = Words(
            title=f"{name} of {state.run_id}",
            lines=[f"{counted(len(files), 'file')}."],
            links=[
                Link(
                    label=f"{each.path} ({formats.size(each.size_bytes)})",
                    address=f"{address}/{quote(each.path)}",
                )
                for each in files
            ],
        )
        return self._page(request, "words.html", words, words.title, is_live=False)

    def artifact_file(self, request: Request) -> Response:
        """`/runs/RUN/artifacts/NAME/FILE`."""
        asked, store = request.path_params, self._sources.tracks.store
        return downloads.artifact_file(store, self._run_of(request), asked["name"], asked["path"])

    def lineage(self, request: Request) -> Response:
        """`/lineage?thing=KIND:NAME`."""
        name = request.query_params.get("thing", "").strip()
        if not name:
            raise InvalidInput("Name a thing: /lineage?thing=RUN, RUN@STEP or snapshot:DATASET@ID.")
        view = read_page(self._sources.tracks, self._sources.ledger, name)
        return self._page(request, "lineage.html", view, view.title, is_live=False)

    # --- what is done ---

    async def act(self, request: Request) -> Response:
        """`/runs/RUN/acts/ACT`, `/views/acts/ACT`: does it once, and leads to what came of it."""
        if request.method != "POST":
            words = Words(
                title="Nothing is done by a link", lines=["The forms are on the pages themselves."]
            )
            return self._page(request, "words.html", words, words.title, status=405, is_live=False)
        try:
            given = await read_form(request)
        except InvalidInput as error:
            return self._refused(request, error)
        return await run_in_threadpool(self._answered(partial(self._act, given)), request)

    def _act(self, given: Mapping[str, str], request: Request) -> Response:
        assert self._acting is not None, "the route is there with it alone"
        asked = request.path_params
        run_id = asked.get("run_id", "")
        key = self._acting.act(asked["name"], run_id, given, self._user(request))
        return self._redirect(f"/runs/{quote(run_id)}/did/{key}" if run_id else f"/views/did/{key}")

    def did(self, request: Request) -> Response:
        """`/runs/RUN/did/KEY`, `/views/did/KEY`: what came of an act, so that a reload does nothing
        again."""
        run_id = request.path_params.get("run_id", "")
        key = request.path_params["key"]
        answer = "" if self._acting is None else self._acting.answer(key, run_id)
        address = f"/runs/{quote(run_id)}" if run_id else "/runs"
        words = Words(
            title=run_id or "Saved views",
            lines=[self._sources.clean(answer)],
            links=[Link(label=f"back to {run_id or 'all runs'}", address=address)],
        )
        return self._page(request, "words.html", words, words.title, is_live=False)

    def _user(self, request: Request) -> str:
        """Return whom the proxy names; "" where it is this machine's owner."""
        given = request.headers.get(self._user_header, "") if self._user_header else ""
        try:  # a proxy sends UTF-8, and a header is read as latin-1
            return given.encode("latin-1").decode("utf-8")
        except UnicodeError:
            return given

    def _redirect(self, address: str) -> Response:
        return RedirectResponse(address_below(self._prefix, address), status_code=303)

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
            running = [
                str(row["run_id"])
                for row in fleet.rows
                if row["state"] == RunLifecycle.RUNNING.value
            ]
            found = gauges(fleet.readings, running=running, problems=fleet.problems)
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
        inside = page_below(self._prefix, body)
        version = f'"{pages.digest(inside)}"'
        as_of = f"as of {formats.clock(self._sources.now())[11:]}"
        is_away = status >= HTTP_503
        headers = {"ETag": version, "X-As-Of": as_of, "Cache-Control": "no-store", "Vary": "X-Part"}
        asked, known = request.headers.get("X-Part"), request.headers.get("If-None-Match", "")
        if asked in (MAIN, DIFFERENCE):
            if known == version:
                return Response(status_code=304, headers=headers)
            before = self._sent.find(known) if asked == DIFFERENCE else None
            self._sent.add(version, inside)
            if status != HTTP_200 or before is None:
                return HTMLResponse(inside, status_code=status, headers=headers)
            return JSONResponse(difference(before, inside), headers=headers)
        html = pages.render_page(
            part,
            title,
            body,
            version=version,
            as_of="not live" if is_away else as_of,
            ui_url=self._sources.ui_url,
            is_live=is_live,
            is_away=is_away,
            actor=(self._user(request) or person()) if self._acting is not None else "",
        )
        html = page_below(self._prefix, html)
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


def _file(request: Request) -> Response:
    text, media_type = pages.file(request.url.path.removeprefix("/"))
    return Response(text, media_type=media_type, headers=_KEEP)


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

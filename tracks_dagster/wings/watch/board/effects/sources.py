"""What the pages are made of: runs, their journals and lights, read again when they are old.

Nothing is written. What one look costs the store is bounded: of a run the records that came since, and
the newest segments of rank 0's journal. The fleet is read by a few threads within a named time, after
which the page is shown as far as it came; what is late is there at the next look.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar

from tracks_dagster.attempts.effects.evidence import read_log_tails
from tracks_dagster.attempts.effects.heartbeat import Heartbeat, describe_age, read_heartbeat
from tracks_dagster.curves.curve import STEP, Curve, Curves, Metric, Point
from tracks_dagster.curves.effects.journals import again
from tracks_dagster.curves.effects.reading import read_curves, read_metrics
from tracks_dagster.evals.effects.promoting import find_holder
from tracks_dagster.holds.effects.holds import Holds
from tracks_dagster.holds.effects.starts import describe_sources, next_start
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.ledger.prices import Prices
from tracks_dagster.processes.logs import find_logs, read_tail
from tracks_dagster.reading import open_ledger_to_read, open_tracks_to_read
from tracks_dagster.retry.caps import cost_of
from tracks_dagster.review.effects.comparing import Named, side_of
from tracks_dagster.review.effects.experiments import read_experiment
from tracks_dagster.review.effects.explain.run import ExplainContext
from tracks_dagster.review.effects.run_table import Asked, Table, read_table
from tracks_dagster.review.effects.search import find_runs
from tracks_dagster.review.effects.status import as_they_are_now, waiting_for, waits_for_devices
from tracks_dagster.review.experiments import EXPERIMENT_RUNS_MAX, Experiment
from tracks_dagster.review.run_filter import Run
from tracks_dagster.scheduling.policy import SchedulingPolicy
from tracks_dagster.settings import (
    Settings,
    eval_tries,
    find_ui_url,
    usable_policy,
    usable_prices,
    usable_rules,
)
from tracks_dagster.track.errors import StoreError, TrackBroken
from tracks_dagster.track.names import attempt_key
from tracks_dagster.track.reasons import TerminationReason
from tracks_dagster.track.records import Json, format_time
from tracks_dagster.track.states.lifecycle import RunLifecycle
from tracks_dagster.track.states.run_state import AttemptState, RunState
from tracks_dagster.track.states.view_state import ViewState
from tracks_dagster.track.text.redact import redact
from tracks_dagster.track.unforeseen import problem_of
from tracks_dagster.wings.watch.board.effects.fresh import Fresh
from tracks_dagster.wings.watch.board.effects.rank_logs import RankLogs
from tracks_dagster.wings.watch.board.heat_map import Values
from tracks_dagster.wings.watch.board.reading import RunReading
from tracks_dagster.wings.watch.board.record import Origin, RecordContext
from tracks_dagster.wings.watch.health.effects.looking import Looks
from tracks_dagster.wiring import utc_now

T = TypeVar("T")

FRESH_S = 1.0  # of a run's page: a browser asks for it every two seconds
FLEET_FRESH_S = 4.0
RECORD_FRESH_S = 10.0  # what other tracks have on a run changes seldom
ENDED_LOG_FRESH_S = 30.0  # of an attempt that has ended: whole logs are read for their ends
FLEET_S_MAX = 0.3  # until the fleet is shown, however many runs were read by then
# A reading that came too late for a look is there at the next one, unless that comes so much later; one
# that was shown is shown again for so long, until the next of that run is there.
LATE_S_MAX, SHOWN_S_MAX = 10.0, 60.0
RUNS_MAX = 500  # of the fleet
RECENT = timedelta(hours=24)  # for so long a run that ended, or was refused, is listed
# That read runs: a store elsewhere is mostly waited for; of one in a folder the lines are parsed, and
# more threads would only hold up the one that renders the page.
THREADS_FAR, THREADS_NEAR = 8, 1
PAGES_KEPT_MAX, CURVES_KEPT_MAX, MAPS_KEPT_MAX, RECORDS_MAX, LOGS_MAX = 64, 12, 4, 64, 8
READS_MAX = 3  # of curves, at once
EARLIER_MAX = 20  # runs, below the fleet
EXPERIMENTS_MAX = 40  # on the fleet's page, those with the newest runs
FOUND_MAX = 30
LOG_LINES_MAX = 200
POINTS_MAX = 600  # of a curve: what a panel has pixels for
MAP_STEPS = 600  # newest steps of a heat map
SQL = Path(__file__).with_name("sql")

Row = Mapping[str, Json]


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetRead:
    """rows: of fleet.sql; readings: of its open runs, as far as they were read; problems: why one
    cannot be read; banners: sentences about the whole home; experiments: those with the newest
    runs; studies: the newest; earlier: the newest of those that ended before."""

    rows: Sequence[Row]
    readings: Mapping[str, RunReading]
    problems: Mapping[str, str]
    banners: tuple[str, ...]
    experiments: tuple[str, ...]
    studies: tuple[str, ...]
    earlier: tuple[Run, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEnd:
    """The end of a rank's log. ranks: that have one; words: why there is none."""

    rank: int | None = None
    text: str = ""
    ranks: tuple[int, ...] = ()
    words: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Home:
    """What one look at every run shares."""

    heartbeat: Heartbeat | None
    prices: Prices | None
    scheduling: SchedulingPolicy
    eval_tries: int | None
    banners: tuple[str, ...]


class Sources:
    """Reads for the board; nothing is opened before it is asked for. Safe in threads."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.clean = partial(redact, secrets=settings.secrets)
        self._home: Fresh[_Home] = Fresh(for_s=FRESH_S, entries_max=1)
        self._fleet: Fresh[FleetRead] = Fresh(for_s=FLEET_FRESH_S, entries_max=1)
        self._runs: Fresh[RunReading] = Fresh(for_s=FRESH_S, entries_max=PAGES_KEPT_MAX)
        self._curves: Fresh[Curves] = Fresh(for_s=FRESH_S, entries_max=CURVES_KEPT_MAX)
        self._metrics: Fresh[tuple[Metric, ...]] = Fresh(for_s=FRESH_S, entries_max=CURVES_KEPT_MAX)
        self._by_rank: Fresh[Mapping[str, Values]] = Fresh(for_s=FRESH_S, entries_max=MAPS_KEPT_MAX)
        self._records: Fresh[RecordContext] = Fresh(for_s=RECORD_FRESH_S, entries_max=RECORDS_MAX)
        self._logs: Fresh[tuple[Mapping[int, str], bool]] = Fresh(
            for_s=FRESH_S, entries_max=LOGS_MAX
        )
        self._ended_logs: Fresh[tuple[Mapping[int, str], bool]] = Fresh(
            for_s=ENDED_LOG_FRESH_S, entries_max=LOGS_MAX
        )
        self._reads = threading.Semaphore(READS_MAX)
        threads = THREADS_FAR if "://" in settings.store_url else THREADS_NEAR
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="board")
        self._pending: dict[str, Future[tuple[datetime, RunReading | str]]] = {}
        self._known: dict[str, RunReading] = {}

    @cached_property
    def tracks(self) -> Tracks:
        """The tracks; raises NothingYet while nothing was recorded."""
        return open_tracks_to_read(self.settings)

    @cached_property
    def ledger(self) -> Ledger:
        """The ledger; raises LedgerError while there is none."""
        return open_ledger_to_read(self.settings)

    @cached_property
    def _looks(self) -> Looks:
        return Looks(self.tracks, self.ledger)

    @property
    def ui_url(self) -> str:
        """Where Dagster's UI answers; "" while it does not."""
        return find_ui_url(self.settings)

    def now(self) -> datetime:
        """Return the time."""
        return utc_now()

    def context(self) -> ExplainContext:
        """Return what a report may use beside the store."""
        return ExplainContext(
            rules=usable_rules(self.settings)[0],
            ledger=self.ledger,
            ui_url=self.ui_url,
            prefix=self.settings.prefix,
            prices=usable_prices(self.settings)[0],
        )

    def close(self) -> None:
        """Let the threads end."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    # --- one run ---

    def run(self, run_id: str) -> RunReading:
        """Return a run as it is now; raises UnknownRun."""
        return self._runs.get(run_id, partial(self._read, run_id))

    def _read(self, run_id: str) -> RunReading:
        home = self._home.get("", self._read_home)
        state = self.tracks.run(run_id)
        look = self._looks.look(state, scheduling=home.scheduling, prices=home.prices)
        now = self.tracks.now()
        return RunReading(
            state=state,
            tail=look.tail,
            lights=look.lights,
            now=now,
            cost=None if home.prices is None else cost_of(state, home.prices, now),
            waits_for=None
            if self.settings.is_archive
            else waiting_for(state, home.heartbeat, now, lambda: home.eval_tries),
            queue=waits_for_devices(state, home.heartbeat, now),
        )

    def _read_home(self) -> _Home:
        prices, no_prices = usable_prices(self.settings)
        policy, no_policy = usable_policy(self.settings)
        heartbeat = read_heartbeat(self.tracks.store)
        age = None if self.settings.is_archive else describe_age(heartbeat, self.tracks.now())
        banners = (
            f"{age[0].upper()}{age[1:]}." if age else None,
            no_prices,
            no_policy,
        )
        return _Home(
            heartbeat=heartbeat,
            prices=prices,
            scheduling=policy.scheduling,
            eval_tries=policy.rule(TerminationReason.EVALUATOR_ERROR).count,
            banners=tuple(filter(None, banners)),
        )

    def metrics(self, state: RunState) -> tuple[Metric, ...]:
        """Return which metrics a run has."""

        def read() -> tuple[Metric, ...]:
            with self._reads:
                return read_metrics(self.tracks, state, cache=self._cache)[0]

        return self._metrics.get((state.run_id, state.head.seq), read)

    def curves(
        self,
        state: RunState,
        metrics: Sequence[str] | None,
        by: str,
        steps: tuple[int, int] | None = None,
    ) -> Curves:
        """Return the curves of a run, from step to step; raises InvalidInput for a metric that is not
        there."""
        names = None if metrics is None else tuple(metrics)

        def read() -> Curves:
            return self._read_curves(state, names, by=by, steps=steps, points_max=POINTS_MAX)

        return self._curves.get((state.run_id, state.head.seq, names, by, steps), read)

    def newest(self, state: RunState, metrics: Sequence[str] | None) -> dict[str, Point]:
        """Return the newest kept value of each metric, whatever part of the curves is looked at."""
        found = self.curves(state, metrics, STEP).curves
        return {each.name: last for each in found if (last := each.last) is not None}

    def by_rank(self, state: RunState, last_step: int) -> Mapping[str, Values]:
        """Return what the newest attempt measured of each rank in its newest steps, by name."""
        return self._by_rank.get(
            (state.run_id, state.head.seq), lambda: self._read_by_rank(state, last_step)
        )

    def _read_by_rank(self, state: RunState, last_step: int) -> Mapping[str, Values]:
        steps = (max(0, last_step - MAP_STEPS), last_step)
        found = self._read_curves(state, ["ranks/*"], steps=steps, points_max=2 * MAP_STEPS)
        attempt = state.last_attempt
        attempt_id = None if attempt is None else attempt.attempt_id
        return {
            curve.name.removeprefix("ranks/"): _values(curve, attempt_id) for curve in found.curves
        }

    def devices(self, state: RunState, ranks: Sequence[int]) -> Mapping[str, Values]:
        """Return what these ranks of the newest attempt wrote of their devices, by column."""
        key = (state.run_id, state.head.seq, "devices", tuple(ranks))
        return self._by_rank.get(key, lambda: self._read_devices(state, ranks))

    def _read_devices(self, state: RunState, ranks: Sequence[int]) -> Mapping[str, Values]:
        attempt = state.last_attempt
        found = self._read_curves(state, ["device/*"], points_max=MAP_STEPS, ranks=ranks)
        attempt_id = None if attempt is None else attempt.attempt_id
        return {
            curve.name.removeprefix("device/"): _values(curve, attempt_id) for curve in found.curves
        }

    def _read_curves(self, state: RunState, metrics: Sequence[str] | None, **how: Any) -> Curves:
        """Read curves, a few runs at a time: ten million points take memory while they are read."""
        with self._reads:
            return read_curves(self.tracks, state, metrics, cache=self._cache, **how)

    def reading(self, read: Callable[[Path | None], T]) -> T:
        """Return what `read` makes of journals, given where they are kept as columns."""
        with self._reads:
            return again(read, self._cache)

    @property
    def _cache(self) -> Path | None:
        """Where journals are kept as columns; of an exported run nowhere."""
        return None if self.settings.is_archive else self.settings.cache

    def log(self, state: RunState, rank: int | None, likely: Sequence[int] = ()) -> LogEnd:
        """Return the end of the newest attempt's log of a rank; None: of `likely`, else the first.

        From this machine, else from the store, which has it once the attempt, or its pod, has ended.
        """
        attempt = state.last_attempt
        if attempt is None:
            return LogEnd()
        key = attempt_key(state.run_id, attempt.attempt_id)
        folder = None if self.settings.is_archive else self.settings.work / key
        here = {} if folder is None else find_logs(folder)
        texts = (
            dict.fromkeys(here, "")
            if here
            else dict(read_log_tails(self.tracks.store, state.run_id, attempt))
        )
        if not texts:
            return LogEnd(words=f"No log of {key} is on this machine, or in the store yet.")
        wanted = (rank, *likely, *texts)
        chosen = next(each for each in wanted if each in texts)
        assert chosen is not None, "it is one of the texts"
        text = read_tail(here[chosen]) if here else texts[chosen]
        lines = self.clean(text).splitlines()[-LOG_LINES_MAX:]
        return LogEnd(rank=chosen, text="\n".join(lines), ranks=tuple(texts))

    def logs_of(self, state: RunState, attempt: AttemptState) -> RankLogs:
        """Return the logs of all ranks of an attempt."""
        work = None if self.settings.is_archive else self.settings.work
        return RankLogs(self.tracks.store, state, attempt, work=work, clean=self.clean)

    def log_ends(
        self, state: RunState, attempt: AttemptState, rank: int | None
    ) -> tuple[Mapping[int, str], bool]:
        """Return the end of each rank's log, and whether there is more; read again when it is old.

        rank: the only one that is read; the others are named without a text.
        """
        key = (state.run_id, attempt.attempt_id, attempt.ended_seq, rank)
        logs = self._logs if attempt.ended is None else self._ended_logs
        return logs.get(key, lambda: self.logs_of(state, attempt).ends(rank))

    # --- the record of a run ---

    def record(self, state: RunState) -> RecordContext:
        """Return what a run's record is read with; what other tracks lack is left out."""
        return self._records.get((state.run_id, state.head.seq), lambda: self._read_record(state))

    def _read_record(self, state: RunState) -> RecordContext:
        holds = Holds(self.tracks)
        try:
            by_checkpoint = holds.of_checkpoints(state)
            resumes_from = next_start(holds, state).resume
        except TrackBroken:  # of another run, or of the quarantines: `sources` says so
            by_checkpoint, resumes_from = {}, state.resumes_from
        origin = None
        with suppress(Exception):  # what is wrong with another run says its own page
            origin = self._origin(state)
        trials = self._query("trial", run_id=state.run_id) if state.declared.experiment else ()
        return RecordContext(
            origin=origin,
            trial=next(((str(row["study"]), int(row["trial"])) for row in trials), None),
            holders=self._holders(state),
            quarantined={
                sha256: [hold.source for hold in by_source.values()]
                for sha256, by_source in by_checkpoint.items()
            },
            sources=describe_sources(holds, state),
            eval_tries=self._home.get("", self._read_home).eval_tries,
            resumes_from=None if state.finished is not None else resumes_from,
        )

    def _origin(self, state: RunState) -> Origin | None:
        """Return the run that it branched from, else the baseline of its experiment, else the one that
        was declared before it."""
        source, baseline = state.declared.branched_from, state.declared.baseline
        run_id: str | None
        if source is not None:
            run_id, why = source.run_id, "which it branched from"
        elif baseline is not None:
            run_id, why = baseline, "the baseline of its experiment"
        else:
            run_id, why = self._previous(state), "which was declared before it"
        other = None if run_id is None else self.tracks.find_run(run_id)
        if other is None:
            return None
        attempt = other.last_attempt if source is None else other.attempt(source.attempt_id)
        config = other.declared.config if attempt is None else attempt.opened.config
        return Origin(run_id=other.run_id, config=config, why=why)

    def _previous(self, state: RunState) -> str | None:
        rows = self._query(
            "previous",
            run_id=state.run_id,
            family=state.declared.model_family,
            experiment=state.declared.experiment,
            declared_at=state.declared_at,
        )
        return str(rows[0]["run_id"]) if rows else None

    def _holders(self, state: RunState) -> dict[str, tuple[str, str]]:
        """Return what each alias that the run was given names now."""
        given = {each.body.alias for each in state.promotions if each.body.promoted}
        family = state.declared.model_family
        found = {alias: find_holder(self.ledger, family, alias) for alias in sorted(given)}
        return {alias: holder for alias, holder in found.items() if holder is not None}

    # --- the fleet ---

    def fleet(self) -> FleetRead:
        """Return every open run, and what ended lately."""
        return self._fleet.get("", self._read_fleet)

    def _read_fleet(self) -> FleetRead:
        rows = self._query(
            "fleet",
            running=RunLifecycle.RUNNING.value,
            waiting=RunLifecycle.WAITING.value,
            refused=RunLifecycle.REFUSED.value,
            since=self.tracks.now() - RECENT,
            runs_max=RUNS_MAX,
        )
        open_ids = [str(row["run_id"]) for row in rows if row["finished_at"] is None]
        late = self.tracks.now() - timedelta(seconds=LATE_S_MAX)
        for run_id, future in list(self._pending.items()):
            if future.done() and future.result()[0] < late:
                del self._pending[run_id]
        for run_id in open_ids:
            if run_id not in self._pending:
                self._pending[run_id] = self._threads.submit(self._try, run_id)
        wait(self._pending.values(), timeout=FLEET_S_MAX)
        problems: dict[str, str] = {}
        since = self.tracks.now() - timedelta(seconds=SHOWN_S_MAX)
        known = {
            run_id: reading
            for run_id, reading in self._known.items()
            if run_id in open_ids and reading.now >= since
        }
        for run_id in [each for each, future in self._pending.items() if future.done()]:
            _, found = self._pending.pop(run_id).result()
            if isinstance(found, str):
                problems[run_id] = found
                known.pop(run_id, None)
            elif run_id in open_ids:
                known[run_id] = found
        self._known = known
        banners = self._home.get("", self._read_home).banners
        named = self._query("experiments", experiments_max=EXPERIMENTS_MAX)
        studies = tuple(str(row["study"]) for row in self.studies(EXPERIMENTS_MAX))
        ended = f"finished<{format_time(self.tracks.now() - RECENT)}"
        return FleetRead(
            rows=rows,
            readings=known,
            problems=problems,
            banners=banners,
            experiments=tuple(
                name for row in named if (name := str(row["experiment"])) not in studies
            ),
            studies=studies,
            earlier=self.table(Asked(where=ended, limit=EARLIER_MAX)).rows,
        )

    def _try(self, run_id: str) -> tuple[datetime, RunReading | str]:
        """Return when it was read, and the run, or why it cannot be read: one broken track hides no
        other run."""
        at = self.tracks.now()
        try:
            return at, self._read(run_id)
        except Exception as error:  # noqa: BLE001 - of that run alone
            return at, self.clean(problem_of(error))

    # --- several runs ---

    def settings_of(self, state: RunState) -> Mapping[str, Mapping[str, Json]]:
        """Return what is compared of a run, by group: of its newest attempt, else as declared."""
        attempt = state.last_attempt
        if attempt is None:
            return {"config": state.declared.config}
        side = side_of(self.tracks, Named(state=state, attempt=attempt, checkpoint=None))
        return {
            "config": side.config,
            "in use": side.in_use,
            "data": {"dataset": side.dataset, "snapshot": side.snapshot_id},
            "code": side.code,
            "placement": side.placement,
            "environment": side.environment,
        }

    def experiment(self, name: str, baseline: str) -> Experiment | None:
        """Return an experiment, else a model family; None without a run, raises InvalidInput for a
        baseline that is not of it."""
        return read_experiment(self.ledger, name, runs_max=EXPERIMENT_RUNS_MAX, baseline=baseline)

    def studies(self, most: int) -> list[dict[str, Json]]:
        """Return the newest studies; raises LedgerError."""
        return self._query("studies", studies_max=most)

    def table(self, asked: Asked) -> Table:
        """Return runs of the table of all of them; raises InvalidInput, LedgerError."""
        prices = usable_prices(self.settings)[0]
        table = read_table(self.ledger, asked, now=self.now(), prices=prices)
        if asked.names or self.settings.is_archive:
            return table
        tries = partial(eval_tries, self.settings)
        return replace(table, rows=as_they_are_now(self.tracks, self.ledger, table.rows, tries))

    def views(self) -> ViewState | None:
        """Return the saved views of that table; None where there was none, or the store is away."""
        with suppress(StoreError):
            return self.tracks.find_views()
        return None

    def find(self, text: str) -> Sequence[Row]:
        """Return runs whose id, name, tags or declaration holds the text: FOUND_MAX, and one more where
        there are more."""
        return find_runs(self.ledger, text, runs_max=FOUND_MAX + 1)

    def _query(self, name: str, **values: object) -> list[dict[str, Json]]:
        sql = (SQL / f"{name}.sql").read_text(encoding="utf-8")
        return self.ledger.query(sql, values)


def _values(curve: Curve, attempt_id: int | None) -> Values:
    values: dict[int, list[tuple[int, float]]] = {}
    for series in curve.series:
        if series.attempt_id == attempt_id and series.rank is not None:
            points = [(point.step, point.value) for point in series.points]
            values.setdefault(series.rank, []).extend(points)
    return {rank: sorted(line) for rank, line in sorted(values.items())}


# --- values that are made again once they are old --------------------------------------------------

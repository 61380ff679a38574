"""MLflow's runs: of its folder `mlruns`, or of its database `mlflow.db`, without its package; of a
server by its own client.

A run is an attempt; one more begins where a metric's step falls. Seen with MLflow 2 and 3, whose folder
and tables are alike.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

from tracks_dagster.reasons.evidence import Evidence
from tracks_dagster.studies.effects.foreign_trials import lines_of
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.records import Json
from tracks_dagster.track.text.redact import redact, secrets_of
from tracks_dagster.track.text.safe_text import one_line
from tracks_dagster.wings.history.curves import POINTS_MAX, parted, point
from tracks_dagster.wings.history.effects.foreign import (
    LINE_CUT,
    columns,
    database,
    folders_in,
    object_of,
    plain,
    rows,
    text_of,
)
from tracks_dagster.wings.history.source import (
    SILENT_S,
    BadRow,
    NotEnded,
    Point,
    Read,
    SourceAttempt,
    time_of,
)

if TYPE_CHECKING:
    from mlflow import MlflowClient

STATES = {1: "RUNNING", 2: "SCHEDULED", 3: "FINISHED", 4: "FAILED", 5: "KILLED"}
NOT_ENDED = ("RUNNING", "SCHEDULED")
LARGEST = 1.7976931348623157e308  # how its database writes an infinite number
# Of a server. Its client's own bounds are 2 minutes a request, and 7 times that.
REQUEST_S_MAX = 60
RETRIES = 2
PAGE = 100  # of experiments and runs
PAGES_MAX = 10_000
WORDS_MAX = 300  # characters of an error
TABLES = {
    "runs": {"run_uuid", "status", "start_time", "end_time"},
    "metrics": {"key", "value", "timestamp", "run_uuid", "step", "is_nan"},
}
UNKNOWN = {
    "cause": "MLflow does not say who started a run again",
    "checkpoints": "MLflow knows no checkpoints that a run resumed from",
    "devices": "MLflow does not say how many there were: one is counted",
    "nodes": "MLflow does not say where a run ran",
}


@dataclass(slots=True, kw_only=True)
class _Run:
    """A run as it was read. meta: of it; bad: what of it cannot be read."""

    meta: Mapping[str, Json]
    experiment: str
    place: str
    params: dict[str, Json] = field(default_factory=dict)
    tags: dict[str, Json] = field(default_factory=dict)
    points: list[Point] = field(default_factory=list)
    bad: list[BadRow] = field(default_factory=list)
    beyond: int = 0  # values that are left out

    def add(self, name: str, step: Json, value: Json, at_ms: Json, *, file: str, line: int) -> None:
        """Take in a value; one that cannot be read is named."""
        if len(self.points) >= POINTS_MAX:
            self.beyond += 1
            return
        try:
            at_s = float(at_ms) / 1000
            self.points.append(point(name, step, value, at_s))
        except (ValueError, TypeError, OverflowError) as error:
            self.bad.append(BadRow(line=line, why=f"{name}: {error}", file=file))


@dataclass(frozen=True, slots=True, kw_only=True)
class MLflow:
    """A folder `mlruns`, or a file `mlflow.db`. Implements `History`."""

    path: Path
    now: datetime
    system: str = "mlflow"

    @property
    def origin(self) -> str:
        return str(self.path)

    def read(self) -> Iterator[Read]:
        for run in self._of_folder() if self.path.is_dir() else self._of_database():
            yield from [run] if isinstance(run, BadRow) else _read(run, self.now)

    def _of_folder(self) -> Iterator[_Run | BadRow]:
        is_any = False
        for experiment in folders_in(self.path):
            if not (experiment / "meta.yaml").is_file():
                continue
            is_any = True
            name = ""
            try:
                name = str(_meta(experiment / "meta.yaml").get("name") or "")
                if not name:  # its folder's name has often more characters, and would stay
                    raise ValueError("it has no name: it is cut, or still being written")
            except ValueError as error:
                yield BadRow(line=0, why=str(error), file=self._name(experiment / "meta.yaml"))
            for folder in folders_in(experiment):
                if (folder / "meta.yaml").is_file():
                    yield self._of_run(folder, name)
        if not is_any:
            raise InvalidInput(
                f"{self.path} has no experiment of MLflow, a folder with a meta.yaml: name its folder "
                "`mlruns`, or its database `mlflow.db`."
            )

    def _of_run(self, folder: Path, experiment: str) -> _Run | BadRow:
        file = self._name(folder / "meta.yaml")
        try:
            run = _Run(meta=_meta(folder / "meta.yaml"), experiment=experiment, place=file)
        except ValueError as error:
            return BadRow(line=0, why=str(error), file=file)
        for kind, into in (("params", run.params), ("tags", run.tags)):
            for path, name in _files(folder / kind):
                try:
                    into[name] = text_of(path)
                except ValueError as error:
                    run.bad.append(BadRow(line=0, why=str(error), file=self._name(path)))
        for path, name in _files(folder / "metrics"):
            try:
                for number, line in lines_of(path):
                    _add_line(run, name, line, number, self._name(path))
            except ValueError as error:
                run.bad.append(BadRow(line=0, why=str(error), file=self._name(path)))
        return run

    def _name(self, path: Path) -> str:
        return str(path.relative_to(self.path))

    def _of_database(self) -> Iterator[_Run]:
        with database(self.path) as opened:
            for table, needed in TABLES.items():
                missing = needed - columns(opened, table)
                if missing:
                    raise InvalidInput(
                        f"{self.path} is not a database of MLflow that can be read: its table {table} "
                        f"has no {', '.join(sorted(missing))}."
                    )
            names = {each["experiment_id"]: each["name"] for each in rows(opened, "experiments")}
            for meta in list(rows(opened, "runs", "order by start_time, run_uuid")):
                experiment = str(names.get(meta.get("experiment_id")) or "")
                run = _Run(meta=meta, experiment=experiment, place=f"run {meta['run_uuid']}")
                for table, into in (("params", run.params), ("tags", run.tags)):
                    of_run = opened.execute(
                        f"select key, value from {table} where run_uuid = ?", (meta["run_uuid"],)
                    )
                    into.update({each["key"]: each["value"] for each in of_run})
                for each in opened.execute(
                    "select * from metrics where run_uuid = ? order by timestamp, step",
                    (meta["run_uuid"],),
                ):
                    run.add(
                        each["key"],
                        each["step"],
                        math.nan if each["is_nan"] else _infinite(each["value"]),
                        each["timestamp"],
                        file=f"{run.place}, metrics",
                        line=0,
                    )
                yield run


@dataclass(frozen=True, slots=True, kw_only=True)
class MLflowServer:
    """A tracking server, asked by MLflow's client. Implements `History`.

    uri: its address, whose password is neither recorded nor shown.
    """

    uri: str = field(repr=False)
    now: datetime
    system: str = "mlflow"

    @property
    def origin(self) -> str:
        parts = urlsplit(self.uri)
        host = parts.netloc.rpartition("@")[2]
        return urlunsplit((parts.scheme, host, parts.path.rstrip("/"), "", ""))

    def read(self) -> Iterator[Read]:
        client = _client(self.uri.partition("#")[0].rstrip("/"))  # of a page: its place in it
        try:
            for experiment in _pages(client.search_experiments):
                asked = partial(
                    client.search_runs,
                    [experiment.experiment_id],
                    order_by=["attributes.start_time ASC"],
                )
                for found in _pages(asked):
                    yield from _read(_asked(client, found, experiment.name), self.now)
        except _foreign() as error:
            clean = redact(str(error), secrets_of({"URI": self.uri}))
            raise InvalidInput(
                f"The MLflow server {self.origin} cannot be read: {one_line(clean)[:WORDS_MAX]}"
            ) from None  # its own words may hold the password of the address


def _asked(client: MlflowClient, found: Any, experiment: str) -> _Run:
    """Return a run with all values of its metrics, a request for each; one that fails is named."""
    from mlflow.exceptions import RestException

    info = found.info
    names = ("run_id", "run_name", "experiment_id", "user_id", "status", "start_time", "end_time")
    meta = {name: getattr(info, name, None) for name in (*names, "lifecycle_stage")}
    run = _Run(meta=meta, experiment=str(experiment), place=f"run {info.run_id}")
    run.params.update(found.data.params)
    run.tags.update(found.data.tags)
    for name in sorted(found.data.metrics):
        place = f"{run.place}, metrics"
        try:
            history = client.get_metric_history(info.run_id, name)
        except RestException as error:  # the server answers, so others may be read
            why = f"{name}: {one_line(str(error))[:WORDS_MAX]}"
            run.bad.append(BadRow(line=0, why=why, file=place))
            continue
        for each in history:
            run.add(name, each.step, _infinite(each.value), each.timestamp, file=place, line=0)
    return run


def _pages(ask: Callable[..., Any]) -> Iterator[Any]:
    """Yield all that a question has on its pages; raises InvalidInput where they do not end."""
    token = None
    for _ in range(PAGES_MAX):
        page = ask(max_results=PAGE, page_token=token)
        yield from page
        token = page.token
        if not token:
            return
    raise InvalidInput(
        f"MLflow's server has more than {PAGES_MAX} pages of {PAGE}: import less of it."
    )


def _client(uri: str) -> MlflowClient:
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # its import sends usage data
    try:
        from mlflow import MlflowClient
        from mlflow.environment_variables import (
            MLFLOW_HTTP_REQUEST_MAX_RETRIES,
            MLFLOW_HTTP_REQUEST_TIMEOUT,
        )
    except ImportError as error:
        raise InvalidInput(
            "A server of MLflow is asked by its client, which is not installed: "
            "pip install 'tracks-dagster[mlflow]'. A folder mlruns or a file mlflow.db needs none."
        ) from error
    for variable, value in (
        (MLFLOW_HTTP_REQUEST_TIMEOUT, REQUEST_S_MAX),
        (MLFLOW_HTTP_REQUEST_MAX_RETRIES, RETRIES),
    ):
        if not variable.is_set():
            variable.set(value)
    return MlflowClient(tracking_uri=uri)


def _foreign() -> tuple[type[Exception], ...]:
    """Return the errors of MLflow's client and of what it is made of."""
    from mlflow.exceptions import MlflowException
    from requests import RequestException

    return (MlflowException, RequestException, OSError)


def _infinite(value: Json) -> Json:
    is_infinite = isinstance(value, float) and abs(value) >= LARGEST
    return math.copysign(math.inf, value) if is_infinite else value


def _meta(path: Path) -> Mapping[str, Json]:
    """Return a meta.yaml; ValueError for one that is cut, also in the middle of an id or a time."""
    if not text_of(path).endswith("\n"):
        raise ValueError("it has no end: it is cut, or still being written")
    return object_of(path)


def _add_line(run: _Run, name: str, line: str, number: int, file: str) -> None:
    """Take in "1700000000000 0.5 3": a time, a value and a step, which older ones do not have."""
    words = line.split()
    if not line.endswith("\n"):  # 0.1 may be the beginning of 0.125
        run.bad.append(BadRow(line=number, why=LINE_CUT, file=file))
        return
    try:
        at_ms, value = int(words[0]), float(words[1])
        step = int(words[2]) if len(words) > 2 else 0
    except (ValueError, IndexError):
        why = f"it is {line.strip()[:60]!r}, not a time, a value and a step"
        run.bad.append(BadRow(line=number, why=why, file=file))
        return
    run.add(name, step, value, at_ms, file=file, line=number)


def _files(folder: Path) -> Iterable[tuple[Path, str]]:
    """Return the files of a folder with their names, which may have a slash."""
    paths = sorted(folder.rglob("*")) if folder.is_dir() else []
    return ((each, str(each.relative_to(folder))) for each in paths if each.is_file())


def _read(run: _Run, now: datetime) -> Iterator[Read]:
    """Yield what there is of a run; one that was deleted is left out."""
    if run.meta.get("lifecycle_stage") == "deleted":
        return
    yield from run.bad
    try:
        yield from _attempts(run, now)
    except (ValueError, TypeError, KeyError) as error:
        yield BadRow(line=0, why=str(error), file=run.place)


def _attempts(run: _Run, now: datetime) -> Iterator[Read]:
    meta = run.meta
    status = meta.get("status")
    state = STATES.get(status, str(status)) if isinstance(status, int) else str(status)
    started_at, ended_at = _time(meta, "start_time"), _time(meta, "end_time")
    words = f"MLflow status: {state}"
    if state in NOT_ENDED or ended_at is None:  # as a process that was killed leaves it for ever
        newest = max((time_of(each.at) for each in run.points), default=started_at)
        if newest is None or (now - newest).total_seconds() < SILENT_S:
            yield NotEnded()
            return
        ended_at = max(newest, started_at or newest)
        words += f", and nothing happened in it after {ended_at:%Y-%m-%d %H:%M} UTC"
    run_id = str(meta.get("run_uuid") or meta.get("run_id") or "")
    if not run_id:
        raise ValueError("it has no run_id")
    if started_at is not None and ended_at < started_at:
        raise ValueError(f"it ends ({meta['end_time']}) before it starts ({meta['start_time']})")
    name = str(meta.get("name") or meta.get("run_name") or run.tags.get("mlflow.runName") or "")
    by_person = {"mode": "stop", "by": "a person", "why": words} if state == "KILLED" else None
    whole = SourceAttempt(
        id=run_id,
        run=run_id,
        title=" / ".join(filter(None, (run.experiment, name))) or run_id,
        owner=str(meta.get("user_id") or run.tags.get("mlflow.user") or ""),
        submitted_at=started_at or ended_at,
        started_at=started_at,
        ended_at=ended_at,
        evidence=Evidence(run_id="", attempt_id=0, launch_id=None, ranks=(), stop=by_person),
        row={
            "experiment": run.experiment,
            "run": dict(meta),
            "params": run.params,
            "tags": run.tags,
        },
        config={name: plain(value) for name, value in run.params.items()},
        succeeded=words if state == "FINISHED" else None,
        failed=words,
        unknown=UNKNOWN,
    )
    yield from parted(whole, run.points, beyond=run.beyond)


def _time(meta: Mapping[str, Json], key: str) -> datetime | None:
    found = meta.get(key)
    if found is None or found == "":
        return None
    try:
        return time_of(int(found) / 1000)
    except (ValueError, TypeError, OverflowError):
        raise ValueError(f"its {key} is {str(found)[:40]!r}, not milliseconds since 1970") from None

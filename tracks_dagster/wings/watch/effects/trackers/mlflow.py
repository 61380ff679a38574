"""MLflow: one run of its for a training run, however many attempts that takes; by `mlflow-skinny`.

Found by its tag `tracks.key`. MLflow's stores drop a metric that they have to the bit, all but the
one of files, which keeps it twice: so after an export that was killed, what is there is asked for.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, TypeVar

from tracks_dagster.curves.effects.rows import Row
from tracks_dagster.track.errors import InvalidInput, TrackerError
from tracks_dagster.track.json_text import parse_json
from tracks_dagster.track.media import file_ending
from tracks_dagster.track.records import Json
from tracks_dagster.track.states.lifecycle import RunLifecycle
from tracks_dagster.track.text.redact import Redact, redact, secrets_of
from tracks_dagster.track.text.safe_text import one_line
from tracks_dagster.wings.watch.effects.trackers.exporting import News, progressed
from tracks_dagster.wings.watch.exports import NOTHING_SENT, ExportedRun, Sent, safe_key

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Metric
    from mlflow.entities import Run as MlflowRun

TAG_KEY = "tracks.key"
TAG_SENT = "tracks.exported"  # how far the export has come, as JSON
TAG_SENDING = "tracks.exporting"  # set while metrics are under way
TAG_ROLLBACKS = "tracks.rolled_back"
STATUS = {
    RunLifecycle.RUNNING: "RUNNING",
    RunLifecycle.WAITING: "SCHEDULED",  # for a person
    RunLifecycle.SUCCEEDED: "FINISHED",
    RunLifecycle.REFUSED: "FAILED",
    RunLifecycle.CANCELLED: "KILLED",
}
# Limits of MLflow's REST API
METRICS_A_CALL = 1000
PARAMS_A_CALL = 100
TAGS_A_CALL = 100
THINGS_A_TAG = 10  # after which how far it has come is tagged
TOO_LARGE = 413  # HTTP's status
VALUE_CHARACTERS_MAX = 5000  # of a tag, and of a param
REQUEST_S_MAX = 15  # then MLflow's client gives one request up
RETRIES = 1
MESSAGE_CHARACTERS_MAX = 500

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Mlflow:
    """A tracking server or store. experiment: of all runs; None: each in that of its project."""

    uri: str = field(repr=False)
    experiment: str | None = None

    @property
    def name(self) -> str:
        """Where it is, without a password."""
        return f"MLflow at {self._clean(self.uri)}"

    @property
    def _clean(self) -> Redact:
        secrets = secrets_of({"URI": self.uri})
        return lambda text: redact(text, secrets)

    @contextmanager
    def open(self, run: ExportedRun) -> Iterator[_MlflowTarget]:
        """Yield the run in MLflow, which is made with its first write."""
        try:
            yield _MlflowTarget(_client(self.uri), self.experiment or run.project, run)
        except _foreign() as error:
            words = one_line(self._clean(str(error)))[:MESSAGE_CHARACTERS_MAX]
            raise TrackerError(
                f"{run.run_id} cannot be exported to {self.name}: {words} The next export goes on."
            ) from None  # its own words may hold the password of the address


class _MlflowTarget:
    """One run in MLflow."""

    def __init__(self, client: MlflowClient, experiment: str, run: ExportedRun) -> None:
        self._client, self._experiment_name = client, experiment
        self._experiment_id = self._find_experiment()
        self._found = self._find(run.key)
        self.sent = _sent(self._found)

    def write(self, news: News) -> None:
        """Implements `Target`."""
        found = self._found or self._make(news.run)
        mlflow_id = found.info.run_id
        was_killed = TAG_SENDING in found.data.tags
        there = self._there(found, after=news.sent.step) if was_killed else frozenset()
        self._add_params(found, news.run.config)
        if news.rollback is not None:
            self._tag(mlflow_id, _progress(news.sent))
        is_sending, sent = was_killed, news.sent
        for rows in _chunks(news.rows):
            if not is_sending:
                self._tag(mlflow_id, {TAG_SENDING: "true"})
                is_sending = True
            self._add(mlflow_id, [m for m in _metrics(rows) if (m.key, m.step) not in there])
            sent = self._add_logged(mlflow_id, news, progressed(sent, rows[-1]))
            self._tag(mlflow_id, _progress(sent))
        done = self._add_logged(mlflow_id, news, sent)
        if done != sent:
            self._tag(mlflow_id, _progress(done))
        self._describe(found, news.run)
        if is_sending:
            self._client.delete_tag(mlflow_id, TAG_SENDING)

    def _find_experiment(self) -> str | None:
        found = self._client.get_experiment_by_name(self._experiment_name)
        return None if found is None else str(found.experiment_id)

    def _find(self, key: str) -> MlflowRun | None:
        """Return the run; where two exports made one each at once, the older one, for all of them."""
        if self._experiment_id is None:
            return None
        found = self._client.search_runs(
            [self._experiment_id], filter_string=f"tags.`{TAG_KEY}` = '{key}'", max_results=100
        )
        return min(found, key=lambda each: (each.info.start_time, each.info.run_id), default=None)

    def _make(self, run: ExportedRun) -> MlflowRun:
        from mlflow.exceptions import MlflowException

        if self._experiment_id is None:
            try:
                self._experiment_id = str(self._client.create_experiment(self._experiment_name))
            except MlflowException:
                self._experiment_id = self._find_experiment()  # another export was faster
                if self._experiment_id is None:
                    raise
        made = self._client.create_run(
            self._experiment_id,
            start_time=_ms(run.began_at),
            tags={TAG_KEY: run.key},
            run_name=run.run_id,
        )
        first = self._find(run.key)
        if first is None or first.info.run_id == made.info.run_id:
            return made
        self._client.delete_run(made.info.run_id)
        return first

    def _add_params(self, found: MlflowRun, config: Mapping[str, Json]) -> None:
        """Add what of the config is not there: a param can be given only once."""
        from mlflow.entities import Param

        there = found.data.params
        params = [
            Param(name, _text(value)[:VALUE_CHARACTERS_MAX])
            for name, value in ((safe_key(key), value) for key, value in sorted(config.items()))
            if name not in there
        ]
        for some in _some(params, PARAMS_A_CALL):
            self._client.log_batch(found.info.run_id, params=some)

    def _there(self, found: MlflowRun, *, after: int) -> frozenset[tuple[str, int]]:
        """Return the metrics, by name and step, that it has of steps after that one."""
        return frozenset(
            (key, metric.step)
            for key in found.data.metrics
            for metric in self._client.get_metric_history(found.info.run_id, key)
            if metric.step > after
        )

    def _add(self, mlflow_id: str, metrics: list[Metric]) -> None:
        for some in _some(metrics, METRICS_A_CALL):
            self._client.log_batch(mlflow_id, metrics=some)

    def _add_logged(self, mlflow_id: str, news: News, sent: Sent) -> Sent:
        """Add things as files, `media/NAME/step-N`; one that is there is replaced by itself.

        Returns how far it has come, which is tagged after every few of them.
        """
        things = news.logged(sent)
        for number, (item, data) in enumerate(things, 1):
            with TemporaryDirectory() as folder:
                path = Path(folder) / f"step-{item.step:09}.{file_ending(item.media_type)}"
                path.write_bytes(data)
                try:
                    self._client.log_artifact(mlflow_id, str(path), f"media/{safe_key(item.name)}")
                except _foreign() as error:
                    if getattr(getattr(error, "response", None), "status_code", None) != TOO_LARGE:
                        raise
                    news.leave_out(item, f"MLflow refuses its {len(data)} bytes as too large")
            if number % THINGS_A_TAG == 0:
                self._tag(mlflow_id, _progress(things.sent))
        return things.sent

    def _describe(self, found: MlflowRun, run: ExportedRun) -> None:
        """Bring its tags and its status up to date, where they differ."""
        tags = {safe_key(key): value[:VALUE_CHARACTERS_MAX] for key, value in run.tags.items()}
        there = found.data.tags
        self._tag(found.info.run_id, {k: v for k, v in tags.items() if there.get(k) != v})
        status = STATUS.get(RunLifecycle(run.status), "KILLED")
        if found.info.status == status:
            return
        if run.ended_at is None:
            self._client.update_run(found.info.run_id, status=status)
        else:
            self._client.set_terminated(found.info.run_id, status, _ms(run.ended_at))

    def _tag(self, mlflow_id: str, tags: Mapping[str, str]) -> None:
        from mlflow.entities import RunTag

        for some in _some([RunTag(key, value) for key, value in tags.items()], TAGS_A_CALL):
            self._client.log_batch(mlflow_id, tags=some)


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
            "MLflow's client is not installed, nothing was sent: pip install 'tracks-dagster[mlflow]'."
        ) from error
    for variable, value in (
        (MLFLOW_HTTP_REQUEST_TIMEOUT, REQUEST_S_MAX),
        (MLFLOW_HTTP_REQUEST_MAX_RETRIES, RETRIES),
    ):
        if not variable.is_set():
            variable.set(value)  # by default a server that hangs is waited for up to 15 minutes
    return MlflowClient(tracking_uri=uri)


def _foreign() -> tuple[type[Exception], ...]:
    """Return the errors of MLflow's client and of what it is made of."""
    try:
        from mlflow.exceptions import MlflowException
        from requests import RequestException
    except ImportError:
        return ()
    return (MlflowException, RequestException, OSError)


def _sent(found: MlflowRun | None) -> Sent:
    stored = None if found is None else found.data.tags.get(TAG_SENT)
    if stored is None:
        return NOTHING_SENT
    try:
        return Sent.from_json(parse_json(stored))
    except (ValueError, AttributeError) as error:
        raise TrackerError(
            f"The tag {TAG_SENT} of its run in MLflow does not say how far the export has come: "
            f"{error}. Delete that run in MLflow to export it again."
        ) from error


def _progress(sent: Sent) -> dict[str, str]:
    tags = {TAG_SENT: json.dumps(sent.to_json())}
    if sent.rollbacks:
        tags[TAG_ROLLBACKS] = "\n".join(sent.rollbacks)
    return tags


def _chunks(rows: Iterable[Row]) -> Iterator[list[Row]]:
    """Yield rows in lists of about as many values as a call takes."""
    some: list[Row] = []
    count = 0
    for row in rows:
        some.append(row)
        count += len(row.values)
        if count >= METRICS_A_CALL:
            yield some
            some, count = [], 0
    if some:
        yield some


def _metrics(rows: Iterable[Row]) -> Iterator[Metric]:
    from mlflow.entities import Metric

    for row in rows:
        for name, value in row.values.items():
            yield Metric(safe_key(name), value, _ms(row.at), row.step)


def _text(value: Json) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _ms(seconds: float) -> int:
    return int(seconds * 1000)


def _some(values: Sequence[T], count_max: int) -> Iterator[list[T]]:
    for begin in range(0, len(values), count_max):
        yield list(values[begin : begin + count_max])

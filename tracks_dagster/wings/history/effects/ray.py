"""Folders of Ray: trials of Tune (`params.json`, `result.json`, `error.txt`, and the state of all,
`experiment_state-….json`), runs of Train v2 (`checkpoint_manager_snapshot.json`).

A trial is a run; an attempt begins where `training_iteration` or `iterations_since_restore` falls. That
a function has ended is only in the state: `done: true` is for what Tune stops.
Of Train v2 only what its checkpoints say is there, with the times in their names.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, tzinfo
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

from tracks_dagster.reasons.evidence import LOG_TAIL_BYTES_MAX, Evidence, RankEnd
from tracks_dagster.studies.effects.foreign_trials import RAY_STEP, ray_config, ray_reports
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.json_text import parse_json
from tracks_dagster.track.records import Json
from tracks_dagster.wings.history.curves import parted, point
from tracks_dagster.wings.history.effects.foreign import (
    FILE_BYTES_MAX,
    LINE_CUT,
    object_of,
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

STATE = "experiment_state-*.json"
ENDS = ENDED, FAILED = "TERMINATED", "ERROR"  # every other is of a trial that waits or runs
States = dict[
    str, tuple[str, str]
]  # of each trial, by its id and by its folder: the id and the state
UNREPORTED = "its last attempt has no report with a time"
BY_NUMBER = "the times of its failures do not say which attempt each ended: the nth that of the nth"
SNAPSHOT = "checkpoint_manager_snapshot.json"
RESTORED = "iterations_since_restore"
# What Ray adds to each report that is not a metric.
ITS_OWN = frozenset(
    {"config", "date", "done", "hostname", "node_ip", "pid", "timestamp", "trial_id", RESTORED}
    | {"time_since_restore", "time_total_s", "experiment_tag", "checkpoint_dir_name"}
    | {"should_checkpoint", RAY_STEP, "timesteps_total", "episodes_total", "experiment_id"}
)
STEPS = (RAY_STEP, "global_step", "step", "epoch")  # of a checkpoint, the first that it reports
UNKNOWN = {
    "cause": "Ray does not say who started a trial again",
    "checkpoints": "which checkpoint a trial resumed from is not in its results",
    "devices": "Ray does not say how many a trial had: one is counted",
    "owner": "Ray does not say whose a trial is",
}
_FAILURE = re.compile(r"^Failure # \d+ \(occurred at ([^)]*)\)\n", re.MULTILINE)
# In the name of a folder after the trainable's: of Tune's own generator, or of a searcher.
_TRIAL = re.compile(r"_([0-9a-f]{2,8}_\d{5}|[0-9a-f]{8})(?=_|$)")
_LOCAL = re.compile(r"(\d{4}-\d\d-\d\d)_(\d\d)-(\d\d)-(\d\d(?:\.\d+)?)")


class _Failure(NamedTuple):
    """at: seconds since 1970, None where its heading has no time."""

    at: float | None
    log: str


# Of an attempt: what it reported, and the failure that ended it.
_End = tuple[SourceAttempt | None, _Failure | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trial:
    """A trial of Tune. state: as Tune calls it, "" where that is not known; first, last: reports."""

    folder: str
    experiment: str
    trial: str
    config: Mapping[str, Json]
    first: Mapping[str, Json]
    last: Mapping[str, Json]
    state: str
    failures: Sequence[_Failure]

    @property
    def is_done(self) -> bool:
        return self.state == ENDED or self.last.get("done") is True


@dataclass(frozen=True, slots=True, kw_only=True)
class Ray:
    """A folder of Ray's results. zone: of times in names. Implements `History`."""

    path: Path
    now: datetime
    zone: tzinfo = UTC
    system: str = "ray"

    @property
    def origin(self) -> str:
        return str(self.path)

    def read(self) -> Iterator[Read]:
        results = sorted(self.path.rglob("result.json"))
        snapshots = sorted(self.path.rglob(SNAPSHOT))
        if not results and not snapshots:
            raise InvalidInput(
                f"{self.path} has no result.json of Ray Tune, and no {SNAPSHOT} of Ray Train v2."
            )
        states: States = {}
        for folder in dict.fromkeys(path.parent.parent for path in results):
            yield from self._take_states(folder, states)
        reads: list[tuple[Path, Callable[[Path], Iterator[Read]]]] = [
            *((path, partial(self._of_trial, states=states)) for path in results),
            *((path, self._of_train) for path in snapshots),
        ]
        for path, read in reads:
            try:
                yield from read(path)
            except (ValueError, TypeError, KeyError) as error:
                yield BadRow(line=0, why=str(error), file=self._name(path))

    def _name(self, path: Path) -> str:
        return str(path.relative_to(self.path))

    def _take_states(self, folder: Path, states: States) -> Iterator[BadRow]:
        """Take in what Tune says of each trial of an experiment; the newest file counts."""
        for path in sorted(folder.glob(STATE)):
            try:
                for trial, *_ in object_of(path)["trial_data"]:
                    found = parse_json(trial, bytes_max=FILE_BYTES_MAX, foreign=True)
                    name = str(found.get("relative_logdir") or "").rpartition("/")[2]
                    of_trial = (str(found["trial_id"]), str(found["status"]))
                    states[of_trial[0]] = states[name or of_trial[0]] = of_trial
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                why = f"how its trials ended cannot be read: {error}"
                yield BadRow(line=0, why=why, file=self._name(path))

    def _of_trial(self, path: Path, states: States) -> Iterator[Read]:
        file, bad = self._name(path), list[BadRow]()

        def on_bad(line: int, why: str) -> None:
            bad.append(BadRow(line=line, why=why, file=file))

        reports, config = ray_reports(path, on_bad), dict[str, Json]()
        try:
            config = dict(ray_config(path.parent))
        except ValueError as error:
            bad.append(BadRow(line=0, why=str(error), file=self._name(path.parent)))
        points, first, last = list[Point](), dict[str, Json](), dict[str, Json]()
        restarts, newest, clock = list[float](), 0, _Clock(self.zone)
        for line, report in reports:
            try:
                at = float(report["timestamp"])
                points += _points(report, RAY_STEP, at)
                time_of(at)
            except (ValueError, TypeError, KeyError, OverflowError) as error:
                why = str(error) if not isinstance(error, KeyError) else f"it has no {error}"
                on_bad(line, why)
                continue
            first, last = first or dict(report), dict(report)
            clock.note(str(report.get("date")), at)
            since = report.get(RESTORED)
            if type(since) is int:
                if since <= newest:  # as little as one report after the attempt before
                    restarts.append(at)
                newest = since
        failures = self._failures(path.with_name("error.txt"), clock, bad)
        yield from bad
        name, reported = path.parent.name, str(last.get("trial_id") or "")
        trial, state = states.get(reported or name, (reported or _trial_in(name), ""))
        if not first and not failures:
            if state not in (*ENDS, ""):
                yield NotEnded()
                return
            raise ValueError(UNREPORTED)
        found = _Trial(
            folder=path.parent.name,
            experiment=path.parent.parent.name,
            trial=trial,
            config=config,
            first=first,
            last=last,
            state=state,
            failures=failures,
        )
        yield from self._attempts(found, points, restarts)

    def _failures(self, path: Path, clock: _Clock, bad: list[BadRow]) -> list[_Failure]:
        """Return what each failure of a trial left in its error.txt, the earliest first.

        A line without its end is left out: half a heading would be taken for words of a failure.
        """
        if not path.is_file():
            return []
        file = self._name(path)
        try:
            whole, end, cut = text_of(path).rpartition("\n")
        except ValueError as error:
            bad.append(BadRow(line=0, why=str(error), file=file))
            return []
        if cut.strip():
            bad.append(BadRow(line=whole.count("\n") + len(end) + 1, why=LINE_CUT, file=file))
        before, *parts = _FAILURE.split(whole + end)
        found = [_Failure(None, before)] if before.strip() else []
        return found + [
            _Failure(clock.at(when), log) for when, log in zip(parts[::2], parts[1::2], strict=True)
        ]

    def _attempts(
        self, trial: _Trial, points: Sequence[Point], restarts: Sequence[float]
    ) -> Iterator[Read]:
        """Yield the attempts of a trial: those that reported, and those that failed before they did."""
        failures, is_done = trial.failures, trial.is_done
        if trial.first:
            took = float(trial.first.get("time_this_iter_s") or 0.0)
            started_at = time_of(float(trial.first["timestamp"]) - took)
            ended_at = max(started_at, time_of(float(trial.last["timestamp"])))
        else:
            started_at, ended_at = (_failed_at(failures[n]) for n in (0, -1))
        is_over = is_done or trial.state == FAILED or (bool(failures) and not trial.state)
        if not is_over and (self.now - ended_at).total_seconds() < SILENT_S:
            yield NotEnded()
            return
        whole = _whole(trial, started_at, ended_at)
        attempts = list(parted(whole, points, restarts)) if trial.first else []
        ends = _ends_of(trial, attempts)
        for number, (attempt, failure) in enumerate(ends, 1):
            if attempt is None and failure is not None:
                at = _failed_at(failure)
                attempt = replace(whole, submitted_at=at, started_at=None, ended_at=at)
            if attempt is not None:
                attempt = replace(attempt, id=f"{whole.id}/{number}")
                yield attempt if failure is None else _failed(attempt, failure.log)
        if is_done and (not ends or ends[-1][1] is not None):
            raise ValueError(UNREPORTED)

    def _of_train(self, path: Path) -> Iterator[Read]:
        snapshot = object_of(path)
        results, name = snapshot.get("checkpoint_results"), path.parent.name
        if not isinstance(results, list):
            raise ValueError("it has no checkpoint_results")
        points, times = list[Point](), list[float]()
        # Which of all reports each was, from 0.
        places = snapshot.get("checkpoint_report_indices")
        if not isinstance(places, list) or len(places) != len(results):
            places = range(len(results))
        for number, each in enumerate(results, 1):
            try:
                report = int(places[number - 1]) + 1
                at = _local(str(each["checkpoint_dir_name"]), self.zone).timestamp()
                metrics = each["metrics"]
                step = next((key for key in STEPS if type(metrics.get(key)) is int), None)
                points += _points(
                    metrics if step else {**metrics, RAY_STEP: report}, step or RAY_STEP, at
                )
                times.append(at)
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                why = f"its checkpoint {number} cannot be read: {error}"
                yield BadRow(line=0, why=why, file=self._name(path))
        if not times:
            return
        started_at, ended_at = (time_of(f(times)) for f in (min, max))
        if (self.now - ended_at).total_seconds() < SILENT_S:
            yield NotEnded()
            return
        whole = SourceAttempt(
            id=f"{name}/train",
            run=name,
            title=name,
            submitted_at=started_at,
            started_at=started_at,
            ended_at=ended_at,
            evidence=Evidence(run_id="", attempt_id=0, launch_id=None, ranks=()),
            row=dict(snapshot),
            failed="Ray Train does not store how it ended",
            unknown={
                **UNKNOWN,
                "times": "Ray Train stores the times of its checkpoints: the first counts as its start",
                "attempts": "Ray Train does not store how often it was started again",
                "config": "Ray Train does not store the config of its loop",
                "nodes": "Ray Train does not store where it ran",
            },
        )
        points.sort(key=lambda each: each.at)
        yield from parted(whole, points)


class _Clock:
    """The clock of a trial, as the local times beside those in UTC of its reports show it.

    zone: where no report has both.
    """

    def __init__(self, zone: tzinfo) -> None:
        self._zone = zone
        self._ahead: list[tuple[float, float]] = []  # of UTC, in seconds, from a local time on

    def note(self, name: str, at: float) -> None:
        """Note the local time of a report at `at`, where it has one."""
        if _LOCAL.search(name) is None:
            return
        local = _local(name, UTC).timestamp()
        ahead_s = round((local - at) / 60) * 60.0
        if not self._ahead or self._ahead[-1][1] != ahead_s:  # summer begins, or ends
            self._ahead.append((local, ahead_s))

    def at(self, name: str) -> float | None:
        """Return seconds since 1970 of the local time in a name, None where it has none."""
        if _LOCAL.search(name) is None:
            return None
        if not self._ahead:
            return _local(name, self._zone).timestamp()
        local = _local(name, UTC).timestamp()
        until = [ahead_s for begin, ahead_s in self._ahead if begin <= local]
        return local - (until or [self._ahead[0][1]])[-1]


def _local(name: str, zone: tzinfo) -> datetime:
    """Return the time in a name, which is of a zone."""
    found = _LOCAL.search(name)
    if found is None:
        raise ValueError(f"{name[:60]!r} has no time as 2026-01-31_02-00-00 in it")
    at = datetime.fromisoformat(f"{found[1]}T{found[2]}:{found[3]}:{found[4]}")
    return at.replace(tzinfo=zone)


def _failed_at(failure: _Failure) -> datetime:
    if failure.at is None:
        raise ValueError("its error.txt has a failure without a time")
    return time_of(failure.at)


def _ends_of(trial: _Trial, attempts: Sequence[SourceAttempt]) -> list[_End]:
    """Return the attempts of a trial, in order, with the failures that ended them.

    A failure is of the attempt that had reported before it; more are of attempts that had not, though
    their reports may yet come. Where the times do not say it, or what cannot be (an attempt that
    reports after it failed), the nth is of the nth attempt, and what ended well has none.
    """
    failures = trial.failures
    timed = [(each.at, each) for each in failures if each.at is not None]
    if len(timed) == len(failures):
        ends = _by_times(attempts, timed)
        is_short = trial.is_done and len(failures) < len(attempts)
        if ends is not None and not (is_short and ends[-1][1] is not None):
            return ends
    failing = len(attempts) - 1 if trial.is_done and attempts else len(attempts)
    pairs = zip_longest(attempts[:failing], failures)
    ends = [(each if failure is None else _by_number(each), failure) for each, failure in pairs]
    return [*ends, *((each, None) for each in attempts[failing:])]


def _by_number(attempt: SourceAttempt | None) -> SourceAttempt | None:
    if attempt is None:
        return None
    return replace(attempt, unknown={**attempt.unknown, "failures": BY_NUMBER})


def _by_times(
    attempts: Sequence[SourceAttempt], failures: Sequence[tuple[float, _Failure]]
) -> list[_End] | None:
    """Return the attempts and failures in the order of their times, None where these cannot be."""
    found, left = list[_End](), [*reversed(attempts)]
    for at, failure in failures:
        while left and _reported_at(left[-1], 0) < at:
            found.append((left.pop(), None))
        is_ended = not found or found[-1][1] is not None
        if is_ended and left and _reported_at(left[-1], 0) <= at:
            found.append((left.pop(), failure))
        elif is_ended:
            found.append((None, failure))
        else:
            found[-1] = (found[-1][0], failure)
        ended = found[-1][0]
        if ended is not None and _reported_at(ended, -1) > at:
            return None
    return [*found, *((each, None) for each in reversed(left))]


def _reported_at(attempt: SourceAttempt, number: int) -> float:
    """Return when the first (0) or last (-1) report of an attempt was."""
    return attempt.points[number].at if attempt.points else attempt.submitted_at.timestamp()


def _trial_in(folder: str) -> str:
    """Return the id in the name of a trial's folder, the name where Ray made it otherwise: before its
    first report and the first state of all a trial has to be the run that it is after them."""
    found = _TRIAL.search(folder)
    return folder if found is None else found[1]


def _whole(trial: _Trial, started_at: datetime, ended_at: datetime) -> SourceAttempt:
    words = f"Ray Tune's status: {trial.state}"
    if trial.last.get("done") is True:
        words = "done: true"
    elif not trial.state:
        words = "its results end without done: true"
    node = str(trial.last.get("hostname") or trial.last.get("node_ip") or "")
    return SourceAttempt(
        id=f"{trial.experiment}/{trial.folder}",
        run=trial.trial,
        title=f"{trial.experiment} / {trial.trial}",
        submitted_at=started_at,
        started_at=started_at,
        ended_at=ended_at,
        nodes=(node,) if node else (),
        evidence=Evidence(run_id="", attempt_id=0, launch_id=None, ranks=()),
        row={
            "trial": trial.folder,
            "status": trial.state or None,
            "last_result": dict(trial.last),
            "params": dict(trial.config),
        },
        config=trial.config,
        succeeded=words if trial.is_done else None,
        failed=words,
        unknown=UNKNOWN,
    )


def _points(report: Mapping[str, Json], step: str, at: float) -> Iterator[Point]:
    """Yield the numbers of a report; those in an object by both names, "eval/loss"."""
    for name, value in report.items():
        if isinstance(value, Mapping) and name not in ITS_OWN:
            inner = {f"{name}/{key}": each for key, each in value.items()}
            yield from _points({**inner, step: report[step]}, step, at)
        elif name not in ITS_OWN and name != step and type(value) in (int, float):
            yield point(name, report[step], value, at)


def _failed(attempt: SourceAttempt, log: str) -> SourceAttempt:
    if len(log) > LOG_TAIL_BYTES_MAX:  # whole lines: half a secret looks like none
        log = log[-LOG_TAIL_BYTES_MAX:].partition("\n")[2]
    end = RankEnd(rank=0, log_tail=log)
    return replace(
        attempt,
        succeeded=None,
        failed="error.txt has a failure",
        evidence=replace(attempt.evidence, ranks=(end,)),
    )

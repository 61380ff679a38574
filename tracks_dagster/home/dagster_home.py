"""Dagster on this machine, below TRACKS_HOME: `dagster.yaml`, its storage, its daemon, its web server.

Daemon and web server run as processes in sessions of their own, so that nothing of them is left when
they are stopped. Commands share one daemon: each notes that it uses it, and the last one stops it;
where that one was killed, `reaper` does. A daemon that somebody started by other means is not known
here; two on one home do no harm, Dagster only complains. Dagster itself is not imported: a reading
command stays light.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.metadata
import json
import os
import signal
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from tracks_dagster.home.home_folder import PRIVATE
from tracks_dagster.home.programs import Programs
from tracks_dagster.home.web_server import ADDRESS, ADDRESS_FILE, WebServer, check_port, server_name
from tracks_dagster.processes import reaper
from tracks_dagster.processes.process import (
    Process,
    describe_holders,
    find_process,
    known_process,
    read_json,
)
from tracks_dagster.processes.reaper import wait_for_lock
from tracks_dagster.track.errors import LedgerError, OrchestratorError
from tracks_dagster.track.names import ENV_SOCKETS, TAG_ATTEMPT, TAG_NO_LEASE

CONFIG_FILE = "dagster.yaml"
STOCK = Programs()
SCHEMA = "dagster"  # of Dagster's tables, apart from the ledger's in the same database
POSTGRES_VARIABLE = "TRACKS_DAGSTER_POSTGRES_URL"  # the file names it, so it holds no password
# What has devices never waits here: its lease would be given on. So these are above the number of
# devices of a machine, a slot for each CPU of a large one included.
RUNS_MAX = 400  # at once, of all kinds, on one machine
ATTEMPTS_MAX = 256  # of these, so that evals and snapshots always find a place
EVALS_MAX = 3  # that hold no device, so that many evals of commits leave CPUs to the gangs
BACKFILL_RUNS_MAX = 8  # of all backfills: somebody may ask for hundreds of snapshots in one click
# Generous: at a load of 60 on two cores a run worker needs more than Dagster's 60 s for its imports,
# and a time-out only starts the same work again.
CODE_SERVER_S_MAX = 300  # until a code server answers: its own start, a sensor's tick, a launch
DEADLINES = {
    "DAGSTER_GRPC_TIMEOUT_SECONDS": str(CODE_SERVER_S_MAX),
    # By default as long as the one before; a code server that is asked to end must not take that long.
    "DAGSTER_GRPC_SHUTDOWN_GRACE_PERIOD": "60",
}
LINE_MAX = 300  # characters of a line of Dagster's output
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
_QUEUE = f"""\
run_coordinator:
  module: tracks_dagster.defs.resources.run_coordinator
  class: TracksRunCoordinator
  config:
    max_concurrent_runs: {RUNS_MAX}
    dequeue_interval_seconds: 1
    tag_concurrency_limits:
      - key: {TAG_ATTEMPT}
        limit: {ATTEMPTS_MAX}
      - key: {TAG_NO_LEASE}
        limit: {EVALS_MAX}
      - key: dagster/backfill
        limit: {BACKFILL_RUNS_MAX}
"""
# The monitoring finds runs that died together with who started them. Nothing is resumed: attempts are
# adopted.
_LAUNCHING = """\
run_launcher:
  module: {module}
  class: {name}
run_monitoring:
  enabled: true
  poll_interval_seconds: 10
  start_timeout_seconds: {start_s_max}
  max_resume_run_attempts: 0
"""
_POSTGRES = f"""\
storage:
  postgres:
    postgres_url:
      env: {POSTGRES_VARIABLE}
"""
WORKSPACE = "workspace.yaml"  # in the home: where the code is found
DEFINITIONS = "tracks_dagster.definitions"
LOCATION = "tracks_dagster"  # as the root's workspace.yaml calls it, too
CODE_ADDRESS = ".code"  # what the code server's address ends with
USERS_FILE = "daemon.users"  # locked by every command that uses the daemon
TMPDIR_CHARACTERS_MAX = 60
LOG_CHARACTERS_MAX = 300  # of the last line of a log


def local_config(folder: Path, programs: Programs = STOCK, *, on_postgres: bool) -> str:
    """Return the `dagster.yaml` of an instance whose runs are processes of this machine.

    folder: in which it lies, with Dagster's databases where they are files.
    """
    module, name = programs.launcher
    runs = _QUEUE + _LAUNCHING.format(module=module, name=name, start_s_max=programs.start_s_max)
    return instance_config(
        runs if on_postgres else runs + programs.storage(folder), on_postgres=on_postgres
    )


def instance_config(runs: str, *, on_postgres: bool) -> str:
    """Return a `dagster.yaml`; runs: its part on how runs are queued, launched and monitored."""
    return _COMMON + runs + (_POSTGRES if on_postgres else "")


def write_config(folder: Path, text: str) -> None:
    """Write `dagster.yaml` in one step, unless the file is the same already."""
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
    """Return why the server cannot be used now; None where it answers, or none is used."""
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


class DagsterHome:
    """DAGSTER_HOME of one TRACKS_HOME. environment: the settings, for every process started here.

    programs: Dagster's, of this home. config: its `dagster.yaml` where runs are not processes of this
    machine. Who names none takes what the daemon that lives was started with.
    """

    def __init__(
        self,
        folder: Path,
        *,
        root: Path,
        environment: Mapping[str, str],
        postgres_url: str | None,
        programs: Programs = STOCK,
        config: str | None = None,
    ) -> None:
        self._folder = folder
        self._programs = programs
        self._config = config
        self._root = root
        self._postgres_url = postgres_url
        self._sockets = sockets_of(folder)
        self._environment = {**DEADLINES, **os.environ, **environment, "DAGSTER_HOME": str(folder)}
        self._environment[ENV_SOCKETS] = str(self._sockets) if programs.has_code_server else ""
        if postgres_url is not None:
            self._environment[POSTGRES_VARIABLE] = in_own_schema(postgres_url)
        self._children: list[subprocess.Popen[bytes]] = []

    @property
    def environment(self) -> dict[str, str]:
        """The variables with which any process joins this instance."""
        return dict(self._environment)

    def prepare(self) -> None:
        """Write `dagster.yaml` and create the storage's tables, once per version and database."""
        self._folder.mkdir(parents=True, exist_ok=True)
        marker = self._folder / "prepared"
        made = importlib.metadata.version("dagster")
        if self._postgres_url is not None:
            made += f" on Postgres {_database_id(self._postgres_url)}"
        with self._lock("prepare"):
            self._configure()
            self._make_workspace()
            if self._postgres_url is not None:
                create_schema(self._postgres_url)
            if not marker.exists() or marker.read_text() != made:
                create_storage(self._folder, self._environment)
                marker.write_text(made)

    def _configure(self) -> None:
        """Write `dagster.yaml`, but not under a daemon that lives and was started with another one."""
        if self._config is None and self.find_daemon() is not None:
            return
        on_postgres = self._postgres_url is not None
        text = self._config or local_config(self._folder, self._programs, on_postgres=on_postgres)
        path = self._folder / CONFIG_FILE
        differs = path.exists() and path.read_text(encoding="utf-8") != text
        if differs and (daemon := self.find_daemon()) is not None:
            users = describe_holders(self._folder / USERS_FILE) or "a command of this home"
            raise OrchestratorError(
                f"A daemon of {self._folder} lives (pid {daemon.pid}) that was started with other "
                f"settings of Kubernetes, or without them. It is used by {users}: end that (the gangs "
                "continue and are adopted), then try again."
            )
        write_config(self._folder, text)

    def _make_workspace(self) -> None:
        """Write where the code is found, but not under a daemon that lives."""
        path = self._folder / WORKSPACE
        if path.exists() and self.find_daemon() is not None:
            return
        named = {"location_name": LOCATION}
        if self._programs.has_code_server:
            make_private_sockets(self._sockets.parent)
            address = str(self._sockets.with_suffix(CODE_ADDRESS))
            where: Mapping[str, object] = {"grpc_server": {"socket": address, **named}}
        else:
            code = {"module_name": DEFINITIONS, "working_directory": str(self._root), **named}
            where = {"python_module": code}
        path.write_text(json.dumps({"load_from": [where]}), encoding="utf-8")

    def find_daemon(self) -> Process | None:
        """Return the daemon of this home, or None when none lives that was started here."""
        process = known_process(self._folder / "daemon.pid")
        return process if process is not None and process.lives else None

    @contextmanager
    def daemon(self) -> Iterator[DagsterHome]:
        """Use the daemon of this home: start one if none lives; the last user stops it.

        Raises OrchestratorError when it cannot be started.
        """
        self.prepare()
        with self._used("daemon"):
            self.ensure_daemon()
            yield self

    def ensure_daemon(self) -> bool:
        """Start the daemon if none lives, and its reaper; True when this call started the daemon.

        Cheap: call it often while it is used.
        """
        self._collect()
        reaper.ensure_reaper(self._folder, "daemon")
        with self._lock("daemon"):
            if self.find_daemon() is not None:
                return False
            sockets = (str(self._sockets),) if self._programs.has_code_server else ()
            process = self._start("daemon", *self._programs.daemon, self._workspace, *sockets)
            reaper.add_group(self._folder, "daemon", process)
            return True

    def end_unused(self) -> list[str]:
        """End what commands that were killed left and nobody uses; return what it was, in words."""
        ended = []
        for name in self._names():
            for process in reaper.unused(self._folder, name):
                ended.append(_describe(name, process))
                reaper.end_group(process)
        return ended

    def running(self) -> list[str]:
        """Return what runs of this home, in words."""
        found = [
            (name, each) for name in self._names() for each in reaper.groups(self._folder, name)
        ]
        return [_describe(name, each) for name, each in found]

    def _names(self) -> list[str]:
        return sorted(path.stem for path in self._folder.glob("*.pid"))

    @contextmanager
    def webserver(
        self, port: int | None = None, *, hosts: Sequence[str] = ()
    ) -> Iterator[WebServer]:
        """Use the UI's server on that port, None: a free one; its `ensure` starts it, and keeps it.
        hosts: names by which others come, through a proxy.

        Raises OrchestratorError where something listens there already.
        """
        self.prepare()
        chosen = check_port(port or 0)
        allowed = (f"--allow-host={host}" for host in hosts)
        options = ("-h", ADDRESS, "-p", str(chosen), "-w", self._workspace, *allowed)

        def start() -> Process:
            self._collect()
            return self._start("webserver", self._programs.webserver, *options)

        with self._used(server_name(chosen)):
            why_ended = partial(self._why_ended, "webserver")
            yield WebServer(self._folder, chosen, start=start, why_ended=why_ended)

    def _start(self, name: str, module: str, *arguments: str) -> Process:
        """Start one of Dagster's programs; return which process it is."""
        command = [sys.executable, "-m", module, *arguments]
        with (self._folder / f"{name}.log").open("ab") as log, _interruptible():
            child = subprocess.Popen(
                command,
                cwd=self._root,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._children.append(child)
        process = find_process(child.pid)
        if process is None:
            raise OrchestratorError(f"Dagster's {name} ended at once: {self._why_ended(name)}")
        return process

    @property
    def _workspace(self) -> str:
        return str(self._folder / WORKSPACE)

    @contextmanager
    def _used(self, name: str) -> Iterator[None]:
        try:
            with reaper.used(self._folder, name):
                yield
        finally:
            self._collect()

    def _collect(self) -> None:
        """Let what was started here and has ended go from the system's table."""
        self._children = [child for child in self._children if child.poll() is None]

    @contextmanager
    def _lock(self, name: str) -> Iterator[None]:
        with (self._folder / f"{name}.lock").open("w") as file:
            wait_for_lock(file, fcntl.LOCK_EX, f"another command to let go of {name}.lock")
            yield

    def why_daemon_ended(self) -> str:
        """Say why the daemon that was started before ended, as far as that is known."""
        return f"Dagster's daemon was gone ({self._why_ended('daemon')}); started another one"

    def _why_ended(self, name: str) -> str:
        """Say in words why a program of Dagster ended: Postgres first, without which none lives."""
        if problem := postgres_problem(self._postgres_url):
            return problem
        path = self._folder / f"{name}.log"
        text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
        last = next((line for line in reversed(text.splitlines()) if line.strip()), "nothing")
        return f"the last line of {path} is: {last.strip()[:LOG_CHARACTERS_MAX]}"


def sockets_of(folder: Path) -> Path:
    """Return how the names begin by which the programs of the home in `folder` find each other.

    Not in the home: the name of a socket has room for a hundred characters.
    """
    mark = hashlib.sha256(str(folder).encode()).hexdigest()[:16]
    place = tempfile.gettempdir()
    if len(place) > TMPDIR_CHARACTERS_MAX:
        place = "/tmp"  # in a folder of this user's alone
    return Path(place) / f"tracks-{os.getuid()}" / mark


def make_private_sockets(folder: Path) -> None:
    """Create the folder for this user alone; raises OrchestratorError where it is another's."""
    try:
        folder.mkdir(mode=PRIVATE, exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        raise OrchestratorError(
            f"Cannot make {folder}, in which the daemon and its code server find each other: {error}. "
            "Name another folder in TMPDIR."
        ) from error
    if found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise OrchestratorError(
            f"{folder} is not this user's alone, and anyone who may write there could run code here. "
            "Remove it, or name another folder in TMPDIR."
        )


def _describe(name: str, process: Process) -> str:
    members = process.group
    others = len(members) - (process.pid in members)
    more = f" and {others} that it started" if others else ""
    whose = f"pid {process.pid}" if process.lives else f"pid {process.pid}, which is gone,"
    return f"{name}: {whose}{more}, since {process.began_at:%Y-%m-%dT%H:%M:%SZ}"


@contextmanager
def _interruptible() -> Iterator[None]:
    """Let what is started here get SIGINT, though a shell's `tracks up &` has it ignored.

    Dagster takes SIGTERM as it takes SIGINT: its programs would ignore both, and be killed in the end.
    """
    is_ours = threading.current_thread() is threading.main_thread()
    if not is_ours or signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def read_address(folder: Path, name: str = ADDRESS_FILE) -> str:
    """Return where the web server that `name` in `folder` names answers; empty while none does."""
    process = known_process(folder / name)
    if process is None or not process.lives:
        return ""
    # Read after the process: where a new server took its place in between, its address is there too.
    return str((read_json(folder / name) or {}).get("address", ""))


def _database_id(postgres_url: str) -> str:
    """Return a short digest of which database the URL names, no matter who asks with which password."""
    parts = urlsplit(postgres_url)
    options = [(name, value) for name, value in parse_qsl(parts.query) if name != "password"]
    where = parts.netloc.rpartition("@")[2]
    named = f"{where}{parts.path}?{urlencode(sorted(options))}"
    return hashlib.sha256(named.encode()).hexdigest()[:16]

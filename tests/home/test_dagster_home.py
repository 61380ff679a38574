"""Dagster's files and processes below TRACKS_HOME; small scripts play its daemon and web server."""

from __future__ import annotations

import importlib.metadata
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
import sqlalchemy
import yaml
from dagster._core.storage.tags import BACKFILL_ID_TAG

from tracks_dagster.attempts.machine import CPU_SLOTS
from tracks_dagster.cli.start.follow import Keeper
from tracks_dagster.home import dagster_home
from tracks_dagster.home.dagster_home import (
    DagsterHome,
    create_schema,
    in_own_schema,
    local_config,
    read_address,
    sockets_of,
    write_config,
)
from tracks_dagster.home.programs import Programs
from tracks_dagster.home.web_server import WebServer, check_port, server_name
from tracks_dagster.processes import reaper
from tracks_dagster.processes.process import Process, this_process
from tracks_dagster.track import names
from tracks_dagster.track.errors import OrchestratorError

SLEEPS = "import subprocess, sys, time\n"
SLEEPS += "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
SLEEPS += "time.sleep(600)\n"
SERVES = """
import http.server, sys
port = int(sys.argv[sys.argv.index("-p") + 1])
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
http.server.HTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""
PLAYED = Programs(daemon=("played_daemon",), webserver="played_webserver", has_code_server=True)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DagsterHome:
    """A home whose storage counts as made, and whose programs are played."""
    (tmp_path / "played_daemon.py").write_text(SLEEPS)
    (tmp_path / "played_webserver.py").write_text(SERVES)
    monkeypatch.setattr(reaper, "TERM_S_MAX", 60.0)
    return another(tmp_path)


def another(tmp_path: Path) -> DagsterHome:
    folder = tmp_path / "dagster"
    folder.mkdir(exist_ok=True)
    (folder / "prepared").write_text(importlib.metadata.version("dagster"))
    return DagsterHome(
        folder,
        root=tmp_path,
        environment={"TRACKS_HOME": str(tmp_path), "PYTHONPATH": str(tmp_path)},
        postgres_url=None,
        programs=PLAYED,
    )


def test_a_daemon_is_started_once_shared_and_stopped_by_its_last_user(
    home: DagsterHome, tmp_path: Path
) -> None:
    with home.daemon():
        first = home.find_daemon()
        assert first is not None
        with another(tmp_path).daemon() as second_user:
            assert second_user.find_daemon() == first
        assert home.find_daemon() == first
        assert not home.ensure_daemon()
    assert home.find_daemon() is None
    assert first.group == []  # nor is anything left of what it started


def test_a_daemon_that_died_is_started_again(home: DagsterHome) -> None:
    with home.daemon():
        died = home.find_daemon()
        assert died is not None
        os.killpg(died.pid, signal.SIGKILL)
        os.waitpid(died.pid, 0)
        assert home.ensure_daemon()
        assert home.find_daemon() != died


def test_a_daemon_ends_by_sigterm_where_a_shell_has_sigint_ignored(home: DagsterHome) -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as by `tracks up &` in a script
    try:
        with home.daemon():
            daemon = home.find_daemon()
            assert daemon is not None
            status = Path(f"/proc/{daemon.pid}/status").read_text()
            ignored = int(status.split("SigIgn:")[1].split()[0], 16)
            # Dagster gives SIGTERM what SIGINT has.
            assert not ignored >> (signal.SIGINT - 1) & 1
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


USES = """
import sys
from pathlib import Path
from tracks_dagster.attempts.machine import CPU_SLOTS
from tracks_dagster.home import dagster_home
from tracks_dagster.home.dagster_home import DagsterHome
from tracks_dagster.home.programs import Programs
root = Path(sys.argv[1])
played = Programs(daemon=("played_daemon",), webserver="played_webserver", has_code_server=True)
home = DagsterHome(root / "dagster", root=root, environment={}, postgres_url=None, programs=played)
with home.daemon(), home.webserver() as web:
    web.ensure()
    print("up", flush=True)
    sys.stdin.read()
"""


def up(tmp_path: Path) -> subprocess.Popen[str]:
    """Start a command that uses the home, in a group of its own, and return it once all is up."""
    process = subprocess.Popen(
        [sys.executable, "-c", USES, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    return process


def groups_of(tmp_path: Path) -> list[Process]:
    folder = tmp_path / "dagster"
    names = [path.stem for path in folder.glob("*.pid")]
    return [each for name in names for each in reaper.groups(folder, name)]


def wait_for(what: Callable[[], bool]) -> None:
    while not what():  # the suite's own time-out ends it
        time.sleep(0.1)


def reapers(tmp_path: Path) -> list[int]:
    found = subprocess.run(
        ["pgrep", "-f", f"processes.reaper {tmp_path}"],
        stdout=subprocess.PIPE,
        check=False,
    )
    return [int(pid) for pid in found.stdout.split()]


def test_what_a_killed_command_started_ends_with_it(home: DagsterHome, tmp_path: Path) -> None:
    command = up(tmp_path)
    assert len(groups_of(tmp_path)) == 2
    daemon = home.find_daemon()
    wait_for(lambda: daemon is not None and len(daemon.group) == 2)  # the played one has a child
    command.kill()
    command.communicate()
    wait_for(lambda: groups_of(tmp_path) == [] and reapers(tmp_path) == [])
    assert home.end_unused() == []


def test_of_two_users_one_may_be_killed(home: DagsterHome, tmp_path: Path) -> None:
    first, second = up(tmp_path), up(tmp_path)
    first.kill()
    first.communicate()
    wait_for(lambda: len(groups_of(tmp_path)) == 2)  # its own web server ends
    daemon = home.find_daemon()
    assert daemon is not None
    second.communicate(input="")  # it leaves in order
    assert groups_of(tmp_path) == []
    wait_for(lambda: reapers(tmp_path) == [])


def test_a_reaper_that_was_killed_is_replaced(home: DagsterHome, tmp_path: Path) -> None:
    with home.daemon():
        [before] = reapers(tmp_path)
        os.kill(before, signal.SIGKILL)
        wait_for(lambda: reapers(tmp_path) == [])
        home.ensure_daemon()
        wait_for(lambda: len(reapers(tmp_path)) == 1)
    assert home.find_daemon() is None
    wait_for(lambda: reapers(tmp_path) == [])


def test_what_was_left_after_all_is_found_named_and_ended(
    home: DagsterHome, tmp_path: Path
) -> None:
    command = up(tmp_path)
    for pid in reapers(tmp_path):
        os.kill(pid, signal.SIGKILL)
    daemon = home.find_daemon()
    assert daemon is not None
    wait_for(lambda: len(daemon.group) == 2)
    os.kill(daemon.pid, signal.SIGKILL)  # its child stays
    assert home.end_unused() == []  # as long as it is used
    assert len(home.running()) == 2
    command.kill()
    command.communicate()
    ended = home.end_unused()
    assert len(ended) == 2
    child, server = ended
    assert child.startswith(
        f"daemon: pid {daemon.pid}, which is gone, and 1 that it started, since 2"
    )
    assert server.startswith("webserver-")
    assert groups_of(tmp_path) == []


def test_what_a_daemon_that_died_had_started_ends_with_the_next_one(
    home: DagsterHome, tmp_path: Path
) -> None:
    with home.daemon():
        died = home.find_daemon()
        assert died is not None
        wait_for(lambda: len(died.group) == 2)
        os.kill(died.pid, signal.SIGKILL)
        os.waitpid(died.pid, 0)
        assert home.ensure_daemon()
        assert died.group != []  # a run worker may still watch its gang
    assert died.group == []


def answering(web: WebServer) -> str:
    """Keep the web server until it answers; return where."""

    def answers() -> bool:
        web.ensure()
        return web.answers

    wait_for(answers)
    return web.address


def test_the_web_server_answers_at_the_address_that_is_given_and_goes(
    home: DagsterHome, tmp_path: Path
) -> None:
    with home.webserver() as web:
        with urllib.request.urlopen(answering(web)) as reply:
            assert reply.status == 200
        assert read_address(tmp_path / "dagster") == web.address  # by others, for links
    assert read_address(tmp_path / "dagster") == ""
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(web.address)


def test_until_a_web_server_answers_nobody_is_sent_to_the_one_before(
    home: DagsterHome, tmp_path: Path
) -> None:
    for _ in range(2):
        with home.webserver() as web:
            web.ensure()
            assert read_address(tmp_path / "dagster") == ""
            assert read_address(tmp_path / "dagster") in ("", answering(web))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_web_server_that_was_killed_comes_back_and_says_so(
    number: signal.Signals, home: DagsterHome, tmp_path: Path
) -> None:
    reported: list[str] = []
    with home.webserver() as web:
        answering(web)
        keeper = Keeper(web.ensure, web.why_ended, reported.append)
        for _ in range(2):
            [process] = reaper.groups(tmp_path / "dagster", server_name(port_of(web)))
            os.kill(process.pid, number)
            wait_for(lambda process=process: not process.lives)
            assert read_address(tmp_path / "dagster") == ""
            keeper._next_at = 0.0
            keeper.keep()
            assert reported.pop().startswith("Dagster's web server was gone (")
            with urllib.request.urlopen(answering(web)) as reply:
                assert reply.status == 200
        assert read_address(tmp_path / "dagster") == web.address


@pytest.mark.parametrize(
    ("locations", "takes"),
    [
        ([None], False),  # it is being loaded
        (["PythonError"], False),
        (["RepositoryLocation", None], False),
        (["RepositoryLocation", "RepositoryLocation"], True),
    ],
)
def test_launches_are_taken_once_all_code_is_loaded(
    locations: list[str | None], takes: bool, tmp_path: Path
) -> None:
    """`tracks up` prints its address then: what is launched before is refused."""
    loaded = [{"locationOrLoadError": each and {"__typename": each}} for each in locations]
    answer = {"data": {"workspaceOrError": {"locationEntries": loaded}}}

    class Played(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(answer).encode())

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    with HTTPServer(("127.0.0.1", 0), Played) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        port = server.server_address[1]
        web = WebServer(tmp_path, port, start=lambda: this_process(), why_ended=lambda: "")
        assert web.takes_launches() is takes
    assert not web.takes_launches()  # nobody listens any more


def port_of(web: WebServer) -> int:
    return int(web.address.rpartition(":")[2])


def test_a_web_server_that_cannot_start_ends_nothing_and_its_keeper_says_why(
    home: DagsterHome, tmp_path: Path
) -> None:
    (tmp_path / "played_webserver.py").write_text("raise SystemExit('no such workspace')")
    reported: list[str] = []
    with home.webserver() as web:
        keeper = Keeper(web.ensure, web.why_ended, reported.append)

        def said() -> bool:
            keeper._next_at = 0.0
            keeper.keep()
            return any("no such workspace" in each for each in reported)

        wait_for(said)
        assert not web.answers


def test_what_another_program_answers_on_the_port_is_not_taken_for_the_own_server(
    home: DagsterHome, tmp_path: Path
) -> None:
    with home.webserver() as web:
        answering(web)
        port = port_of(web)
        with pytest.raises(OrchestratorError, match=f"{port}.*name another port"):
            check_port(port)
        # Started in the same moment as the other, before that one listened.
        late = WebServer(tmp_path, port, start=lambda: this_process(), why_ended=lambda: "")
        assert late.ensure()
        for _ in range(5):
            assert not late.ensure()
        assert not late.answers


@pytest.mark.parametrize("what", ["others may write there", "a file"])
def test_programs_do_not_meet_where_others_could_be_met(
    what: str, home: DagsterHome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dagster_home, "TMPDIR_CHARACTERS_MAX", 1000)
    monkeypatch.setattr(dagster_home.tempfile, "tempdir", str(tmp_path))
    folder = sockets_of(tmp_path / "dagster").parent
    assert folder.parent == tmp_path
    if what == "a file":
        folder.touch()
    else:
        folder.mkdir()
        folder.chmod(0o777)
    with pytest.raises(OrchestratorError, match="TMPDIR"):
        another(tmp_path).prepare()


def test_the_config_switches_off_what_calls_home_and_what_would_retry(tmp_path: Path) -> None:
    write_config(tmp_path, local_config(tmp_path, on_postgres=False))
    config = yaml.safe_load((tmp_path / "dagster.yaml").read_text())
    assert config["telemetry"] == {"enabled": False}
    assert config["nux"] == {"enabled": False}
    assert config["run_retries"] == {"enabled": False}
    assert "storage" not in config


def test_what_has_its_devices_never_waits_in_dagsters_queue(tmp_path: Path) -> None:
    """There a lease would be given on. What has none is limited there alone."""
    config = yaml.safe_load(local_config(tmp_path, on_postgres=False))
    coordinator = config["run_coordinator"]["config"]
    limits = {each["key"]: each["limit"] for each in coordinator["tag_concurrency_limits"]}
    assert set(limits) == {names.TAG_ATTEMPT, names.TAG_NO_LEASE, BACKFILL_ID_TAG}
    devices = 8 * CPU_SLOTS
    assert coordinator["max_concurrent_runs"] > limits[names.TAG_ATTEMPT] + devices
    assert limits[names.TAG_ATTEMPT] > devices
    assert max(limits[names.TAG_NO_LEASE], limits[BACKFILL_ID_TAG]) < CPU_SLOTS


def test_what_is_started_here_waits_longer_for_a_code_server_unless_a_time_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    variable = "DAGSTER_GRPC_TIMEOUT_SECONDS"
    monkeypatch.delenv(variable, raising=False)
    config = yaml.safe_load(local_config(tmp_path, on_postgres=False))
    assert another(tmp_path).environment[variable] == "300"
    assert config["code_servers"]["local_startup_timeout"] == 300
    # a launch that is not answered in time is not given up at that moment
    assert config["run_monitoring"]["start_timeout_seconds"] > 300
    monkeypatch.setenv(variable, "900")
    assert another(tmp_path).environment[variable] == "900"


def test_on_postgres_the_password_is_not_in_the_file(tmp_path: Path) -> None:
    home = DagsterHome(
        tmp_path, root=tmp_path, environment={}, postgres_url="postgresql+psycopg2://u:hunter22@h/d"
    )
    write_config(tmp_path, local_config(tmp_path, on_postgres=True))
    text = (tmp_path / "dagster.yaml").read_text()
    assert "hunter22" not in text
    variable = yaml.safe_load(text)["storage"]["postgres"]["postgres_url"]["env"]
    assert home.environment[variable] == (
        "postgresql+psycopg2://u:hunter22@h/d?options=-csearch_path%3Ddagster"
    )


def test_the_schema_is_found_whatever_else_the_url_says() -> None:
    assert in_own_schema("postgresql+psycopg2://u@/d?host=/tmp").endswith(
        "?host=/tmp&options=-csearch_path%3Ddagster"
    )


def test_dagsters_tables_lie_in_a_schema_of_their_own(tmp_path: Path, postgres_url: str) -> None:
    create_schema(postgres_url)
    create_schema(postgres_url)
    home = DagsterHome(
        tmp_path / "dagster",
        root=tmp_path,
        environment={"PYTHONPATH": os.pathsep.join(sys.path)},
        postgres_url=postgres_url,
    )
    home.prepare()
    engine = sqlalchemy.create_engine(postgres_url)
    try:
        inspected = sqlalchemy.inspect(engine)
        assert "runs" in inspected.get_table_names(schema=dagster_home.SCHEMA)
        assert "runs" not in inspected.get_table_names()
    finally:
        engine.dispose()


def test_storage_is_made_once_in_every_database_that_a_home_is_pointed_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str | None] = []
    monkeypatch.setattr(dagster_home, "create_schema", lambda url: None)

    def prepare(url: str | None) -> None:
        monkeypatch.setattr(dagster_home, "create_storage", lambda *_: made.append(url))
        DagsterHome(tmp_path, root=tmp_path, environment={}, postgres_url=url).prepare()

    urls = [None, "postgresql://u:hunter22@h/one", "postgresql://u:hunter22@h/two"]
    for url in urls:
        prepare(url)
        prepare(url)
    prepare("postgresql://u:another-password@h/two")
    assert made == urls
    assert "hunter22" not in (tmp_path / "prepared").read_text()


def test_preparing_an_empty_home_makes_a_storage_that_dagster_accepts(tmp_path: Path) -> None:
    home = DagsterHome(tmp_path / "dagster", root=tmp_path, environment={}, postgres_url=None)
    home.prepare()
    done = subprocess.run(
        [sys.executable, "-m", "dagster", "run", "list"],
        env=home.environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_who_names_no_config_takes_that_of_the_daemon_that_lives(
    home: DagsterHome, tmp_path: Path
) -> None:
    path = tmp_path / "dagster" / "dagster.yaml"
    with home.daemon():
        path.write_text("telemetry: {enabled: false}\n")
        another(tmp_path).prepare()
        assert path.read_text() == "telemetry: {enabled: false}\n"
    another(tmp_path).prepare()
    assert path.read_text() == local_config(path.parent, on_postgres=False)

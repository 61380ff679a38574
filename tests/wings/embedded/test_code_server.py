"""The code server of a home is replaced where it has ended or its code has changed; scripts play it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from unittest.mock import Mock

import pytest
from dagster._core.errors import DagsterUserCodeUnreachableError
from dagster._core.remote_representation.code_location import GrpcServerCodeLocation

from tracks_dagster.processes.process import find_process
from tracks_dagster.wings.embedded.edge import one_code_server as code_server
from tracks_dagster.wings.embedded.edge.one_code_server import CodeServer
from tracks_dagster.wings.embedded.edge.paced_sensors import read_when_changed

# Listens, writes its pid, and ends with its stdin or by SIGTERM, as the real one does.
SERVES = """
import os, socket, sys
from pathlib import Path
address = sys.argv[1]
listener = socket.socket(socket.AF_UNIX)
Path(address).with_name("pids").open("a").write(f"{os.getpid()}\\n")
listener.bind(address)
listener.listen()
sys.stdin.read()
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "played_server.py").write_text(SERVES)
    monkeypatch.setattr(code_server, "CODE_SERVER", "played_server")
    monkeypatch.chdir(tmp_path)  # the names of sockets have to be short
    return Path()


@pytest.fixture
def server(folder: Path) -> Iterator[CodeServer]:
    stamp = folder / "stamp"
    stamp.write_text("one")
    server = CodeServer(folder / "s", root=folder, stamps=lambda: {stamp.read_text(): (0, 0)})
    server.start()
    server.wait()
    yield server
    server.close()


def pids(folder: Path) -> list[int]:
    return [int(line) for line in (folder / "pids").read_text().split()]


def wait_for(what: Callable[[], object]) -> None:
    while not what():  # the suite's own time-out ends it
        time.sleep(0.05)


def served_by(folder: Path) -> str:
    return str((folder / "s.code").readlink())


def test_as_long_as_nothing_changes_it_stays(server: CodeServer, folder: Path) -> None:
    server.keep()
    assert len(pids(folder)) == 1
    assert served_by(folder) == "s.code-1"


def test_another_one_serves_before_the_one_with_old_code_ends(
    server: CodeServer, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    serving: list[str] = []
    end = code_server._end
    monkeypatch.setattr(
        code_server, "_end", lambda old: (serving.append(served_by(folder)), end(old))
    )
    (folder / "stamp").write_text("two")
    server.keep()
    first, second = pids(folder)
    assert serving == ["s.code-2"]
    assert find_process(first) is None
    assert find_process(second) is not None
    assert (folder / "s.code").exists()
    assert not (folder / "s.code-1").exists()


def test_one_that_does_not_start_replaces_none_that_serves(
    server: CodeServer, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "played_server.py").write_text("raise SystemExit(1)")
    (folder / "stamp").write_text("two")
    server.keep()
    [first] = pids(folder)
    assert find_process(first) is not None
    assert (served_by(folder), (folder / "s.code").exists()) == ("s.code-1", True)
    (folder / "played_server.py").write_text(SERVES)
    server.keep()  # not again at once
    assert len(pids(folder)) == 1
    monkeypatch.setattr(server, "_again_at", 0.0)
    server.keep()
    assert served_by(folder) == "s.code-3"
    assert find_process(first) is None
    assert not (folder / "s.code-1").exists()


def test_one_that_was_killed_is_replaced_and_not_again_at_once(
    server: CodeServer, folder: Path
) -> None:
    for expected in (2, 2):
        os.kill(pids(folder)[-1], signal.SIGKILL)
        wait_for(lambda: find_process(pids(folder)[-1]) is None)
        server.keep()
        assert len(pids(folder)) == expected


@pytest.mark.parametrize("is_first", [True, False])
def test_one_that_listens_later_than_it_is_waited_for_is_found_then(
    folder: Path, monkeypatch: pytest.MonkeyPatch, is_first: bool
) -> None:
    """On a machine that is overloaded: else nothing of the home loads until its code changes."""
    with closing(CodeServer(folder / "s", root=folder, stamps=dict)) as server:
        if not is_first:
            server.start()
            server.wait()
            os.kill(pids(folder)[-1], signal.SIGKILL)
            wait_for(lambda: find_process(pids(folder)[-1]) is None)
        late = "import os, time\nwhile not os.path.exists('go'): time.sleep(0.05)\n"
        (folder / "played_server.py").write_text(late + SERVES)
        with monkeypatch.context() as patch:
            patch.setattr(code_server, "READY_S_MAX", 0.0)
            if is_first:
                server.start()
                assert not server.wait()
            else:
                server.keep()
        (folder / "go").touch()
        server.keep()
        assert (folder / "s.code").exists()
        assert find_process(pids(folder)[-1]) is not None
        assert len(pids(folder)) == (1 if is_first else 2)


def test_it_ends_with_the_process_that_started_it(folder: Path) -> None:
    starts = (
        "import os, sys\nfrom pathlib import Path\n"
        "from tracks_dagster.wings.embedded.edge import one_code_server as code_server\n"
        "code_server.CODE_SERVER = 'played_server'\n"
        "server = code_server.CodeServer(Path('s'), root=Path(), stamps=dict)\n"
        "server.start()\nserver.wait()\nos.kill(os.getpid(), 9)\n"
    )
    os.spawnv(os.P_WAIT, sys.executable, [sys.executable, "-c", starts])
    [pid] = pids(folder)
    wait_for(lambda: find_process(pid) is None)
    assert pids(folder) == [pid]  # and nobody started another


SHARES = """
import sys
from dagster import DagsterInstance
from dagster._core.instance.ref import InstanceRef
from tracks_dagster.wings.embedded.edge.code_server import keep_instance
keep_instance()
mine, other = (InstanceRef.from_dir(folder) for folder in sys.argv[1:])
with DagsterInstance.from_ref(mine) as first:
    pass
with DagsterInstance.from_ref(mine) as again:
    assert again is first
with DagsterInstance.from_ref(other) as strange:
    assert strange is not first
    strange.add_dynamic_partitions("there", ["a"])
assert not again.get_dynamic_partitions("there")
"""


def test_ticks_share_one_instance_of_dagster_and_another_homes_is_its_own(tmp_path: Path) -> None:
    folders = [tmp_path / "mine", tmp_path / "other"]
    for folder in folders:
        folder.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", SHARES, *map(str, folders)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("now", "reads"),
    [
        pytest.param({"return_value": "first"}, 0, id="the same process"),
        pytest.param({"return_value": "second"}, 1, id="another process"),
        pytest.param({"side_effect": DagsterUserCodeUnreachableError("gone")}, 1, id="no answer"),
        pytest.param(None, 1, id="never loaded"),
    ],
)
def test_what_a_code_server_serves_is_read_again_once_another_one_serves(
    now: dict[str, object] | None, reads: int
) -> None:
    location = None
    if now is not None:
        location = Mock(spec=GrpcServerCodeLocation, client=Mock(), server_id="first")
        location.client.get_server_id.configure_mock(**now)
    context = Mock()
    request = context.create_request_context.return_value
    request.get_code_location_entries.return_value = {"tracks": Mock(code_location=location)}
    read = context.refresh_workspace
    read_when_changed(context)
    context.refresh_workspace()
    assert read.call_count == reads

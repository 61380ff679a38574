"""A warm parent with real processes: what it forks is what a new interpreter would be, or nothing."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import sysconfig
import threading
import time
import venv
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import tracks_dagster
from tracks_dagster.processes import warm
from tracks_dagster.processes.process import find_process

WAIT_S_MAX = 60.0
TELLS = """
import json, os, signal, sys
result = {
    "argv": sys.argv[1:], "name": __name__, "file": __file__, "cwd": os.getcwd(), "first": sys.path[0],
    "environment": dict(os.environ), "stdin": sys.stdin.read(), "leads": os.getsid(0) == os.getpid(),
    "sigterm": signal.getsignal(signal.SIGTERM) is signal.SIG_DFL,
    "blocked": sorted(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, []))),
    "files": len(os.listdir("/proc/self/fd")),
}
print(json.dumps(result))
"""


@pytest.fixture
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where a warm parent listens that has a module of the test imported."""
    folder = tmp_path_factory.mktemp("w")
    (folder / "library.py").write_text("value = 1\n")
    address = folder / "socket"
    assert warm.ensure(address, ["library"], environment(folder))
    parent = warm._started[-1]
    yield address
    while asked:
        asked.pop().close()
    parent.kill()
    parent.wait()


def environment(folder: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(folder), "SECRET": "of the parent"}


@pytest.fixture
def start(address: Path, tmp_path: Path) -> warm.Start:
    (tmp_path / "script.py").write_text(TELLS)
    return warm.Start(
        words=["script.py", "a", "b c"], cwd=str(tmp_path), environment=environment(address.parent)
    )


asked: list[warm.Child] = []


def ask(address: Path, start: warm.Start, output: Path) -> warm.Child | None:
    with output.open("ab") as file:
        child = warm.ask(address, start, file.fileno())
    if child is not None:
        asked.append(child)
    return child


def wait_for(what: Callable[[], object]) -> None:
    give_up_at = time.monotonic() + WAIT_S_MAX
    while not what():
        assert time.monotonic() < give_up_at
        time.sleep(0.02)


def test_a_child_has_what_a_new_interpreter_has(
    address: Path, start: warm.Start, tmp_path: Path
) -> None:
    given = {**start.environment, "TRACKS_RUN_ID": "r-1", "RANK": "0"}
    start = replace(start, environment=given, leads_session=True)
    child = ask(address, start, tmp_path / "warm")
    assert child is not None
    wait_for(lambda: child.poll() is not None)
    assert child.poll() == 0
    cold = subprocess.run(
        [sys.executable, *start.words],
        cwd=tmp_path,
        env=given,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=True,
        start_new_session=True,
    )
    assert json.loads((tmp_path / "warm").read_text()) == json.loads(cold.stdout)


@pytest.mark.parametrize(
    ("script", "code"),
    [
        ("raise SystemExit(7)", 7),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", -signal.SIGSEGV),
        ("raise ValueError('what it says')", 1),
        ("raise KeyboardInterrupt", -signal.SIGINT),
    ],
)
def test_its_end_is_seen_as_of_a_child_of_ones_own(
    script: str, code: int, address: Path, start: warm.Start, tmp_path: Path
) -> None:
    (tmp_path / "script.py").write_text(script)
    child = ask(address, start, tmp_path / "out")
    assert child is not None
    wait_for(lambda: child.poll() is not None)
    assert child.poll() == code
    if code == 1:
        expected = f'File "{tmp_path}/script.py", line 1, in <module>'
        assert expected in (tmp_path / "out").read_text()
        assert "warm.py" not in (tmp_path / "out").read_text()


def unlike(start: warm.Start, tmp_path: Path, what: str) -> warm.Start:
    match what:
        case "a variable that a library may have read":
            return replace(start, environment={**start.environment, "OMP_NUM_THREADS": "3"})
        case "a variable that is missing":
            left = {name: each for name, each in start.environment.items() if name != "SECRET"}
            return replace(start, environment=left)
        case "a file of the program's that has the name of what is imported":
            (tmp_path / "library.py").write_text("value = 2\n")
        case "a package of the program's that has such a name":
            (tmp_path / "json").mkdir()
            (tmp_path / "json" / "__init__.py").touch()
        case "what an interpreter imports by itself":
            (tmp_path / "sitecustomize.py").touch()
        case "another program":
            return replace(start, words=["/bin/true"])
    return start


@pytest.mark.parametrize(
    "what",
    [
        "a variable that a library may have read",
        "a variable that is missing",
        "a file of the program's that has the name of what is imported",
        "a package of the program's that has such a name",
        "what an interpreter imports by itself",
        "another program",
    ],
)
def test_what_would_not_be_the_same_is_refused(
    what: str, address: Path, start: warm.Start, tmp_path: Path
) -> None:
    assert ask(address, unlike(start, tmp_path, what), tmp_path / "out") is None
    assert not (tmp_path / "out").read_text()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "script.py").write_text(TELLS)
    assert ask(address, replace(start, cwd=str(tmp_path / "other")), tmp_path / "out") is not None


def test_one_that_has_woken_the_driver_of_a_gpu_is_not_forked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "script.py").write_text(TELLS)
    given = dict(os.environ)
    start = warm.Start(words=["script.py"], cwd=str(tmp_path), environment=given)
    monkeypatch.setattr(warm, "_DEVICES", (str(tmp_path / "nvidia"),))
    monkeypatch.setattr(
        warm, "_imported_first", lambda start: ()
    )  # a test's process has any module
    monkeypatch.setattr(threading, "active_count", lambda: 1)  # and other tests' threads
    with (tmp_path / "nvidia0").open("w"):
        assert warm._refusal(start, given) == "it holds a device"
    assert warm._refusal(start, given) is None


def test_who_needs_one_finds_the_one_that_listens(address: Path, start: warm.Start) -> None:
    before = list(warm._started)
    assert warm.ensure(address, ["library"], start.environment)
    assert warm._started == before


def test_after_a_change_of_what_is_imported_it_forks_no_more_and_the_next_one_has_it(
    address: Path, start: warm.Start, tmp_path: Path
) -> None:
    (tmp_path / "script.py").write_text("import library; print(library.value, flush=True)")
    assert ask(address, start, tmp_path / "out") is not None
    wait_for(lambda: (tmp_path / "out").read_text() == "1\n")
    (address.parent / "library.py").write_text("value = 23\n")
    assert ask(address, start, tmp_path / "out") is None
    before = warm._started[-1]
    wait_for(lambda: before.poll() is not None)
    assert warm.ensure(address, ["library"], start.environment)
    assert ask(address, start, tmp_path / "out") is not None
    wait_for(lambda: (tmp_path / "out").read_text() == "1\n23\n")
    before = warm._started[-1]
    before.kill()
    before.wait()


def test_after_something_was_installed_it_forks_no_more(tmp_path: Path) -> None:
    """As `pip install -e` does: only a new interpreter reads the .pth file."""
    venv.create(tmp_path / "own", symlinks=True)
    bases = dict.fromkeys(("base", "platbase"), str(tmp_path / "own"))
    place = Path(sysconfig.get_path("purelib", vars=bases))
    package = Path(tracks_dagster.__file__).parents[1]
    (place / "own.pth").write_text(f"{package}\n{sysconfig.get_path('purelib')}\n")
    python, address = str(tmp_path / "own" / "bin" / "python"), tmp_path / "socket"
    assert warm.ensure(address, [], environment(tmp_path), python=python)
    parent = warm._started[-1]
    (tmp_path / "script.py").write_text("import installed")
    (tmp_path / "library").mkdir()
    (tmp_path / "library" / "installed.py").touch()
    script = ["script.py"]
    start = warm.Start(words=script, cwd=str(tmp_path), environment=environment(tmp_path))
    (place / "installed.pth").write_text(f"{tmp_path / 'library'}\n")
    with (tmp_path / "out").open("ab") as file:
        assert warm.ask(address, start, file.fileno(), python=python) is None
    wait_for(lambda: parent.poll() is not None)


def test_a_child_that_cannot_be_prepared_ends_and_is_not_a_second_parent(
    address: Path, start: warm.Start, tmp_path: Path
) -> None:
    child = ask(address, replace(start, cwd=str(tmp_path / "gone")), tmp_path / "out")
    assert child is not None
    wait_for(lambda: child.poll() is not None)
    assert child.poll() == warm.EXIT_UNPREPARED
    assert "script.py was not started" in (tmp_path / "out").read_text()
    good = ask(address, start, tmp_path / "good")
    assert good is not None
    wait_for(lambda: good.poll() == 0)


def test_a_parent_that_cannot_start_is_not_tried_at_each_start(tmp_path: Path) -> None:
    address = tmp_path / "socket"

    def tried() -> subprocess.Popen[bytes]:
        assert not warm.ensure(address, ["no_such_module"], environment(tmp_path))
        return warm._started[-1]

    first = tried()
    assert tried() is first
    long_ago = time.time() - warm.AGAIN_S
    os.utime(f"{address}.failed", (long_ago, long_ago))
    again = tried()
    assert again is not first
    assert tried() is again


@pytest.mark.filterwarnings("error")
def test_a_child_that_is_let_go_while_it_lives_leaves_no_socket_open() -> None:
    ours, its = socket.socketpair()
    child = warm.Child(1, ours)
    del child, ours  # an open one would be a ResourceWarning, and so an error
    assert its.recv(1) == b""  # the other end learns it
    its.close()


def test_a_parent_that_has_ended_is_not_a_zombie_once_another_is_needed(
    address: Path, start: warm.Start
) -> None:
    before = warm._started[-1]
    before.kill()
    wait_for(lambda: find_process(before.pid) is None)
    assert warm.ensure(address, ["library"], start.environment)
    assert before not in warm._started
    assert before.returncode == -signal.SIGKILL
    warm._started[-1].kill()
    warm._started[-1].wait()


def test_children_outlive_the_parent_and_a_child_may_fork_on(
    address: Path, start: warm.Start, tmp_path: Path
) -> None:
    forks = """
import os, sys, time
from tracks_dagster.processes import warm
start = warm.Start(words=["rank.py"], cwd=os.getcwd(), environment=dict(os.environ))
child = warm.fork(start, 1)
while child.poll() is None:
    time.sleep(0.02)
print("parent of", child.poll(), flush=True)
time.sleep(600)
"""
    (tmp_path / "script.py").write_text(forks)
    (tmp_path / "rank.py").write_text(
        "import sys; print('rank', __name__, flush=True); sys.exit(5)"
    )
    child = ask(address, replace(start, leads_session=True), tmp_path / "out")
    assert child is not None
    wait_for(lambda: "parent of" in (tmp_path / "out").read_text())
    assert (tmp_path / "out").read_text() == "rank __main__\nparent of 5\n"
    parent = warm._started[-1]
    parent.kill()
    parent.wait()
    assert child.poll() is None
    assert find_process(child.pid) is not None
    assert ask(address, start, tmp_path / "out") is None
    child.kill()


def test_one_that_nobody_asks_ends_and_leaves_no_address(
    address: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert warm.ensure(
        address, ["library"], environment(address.parent)
    )  # it listens: none is started
    parent = warm._started[-1]
    other = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import os, sys; from pathlib import Path\n"
            "from tracks_dagster.processes import warm\n"
            "warm.IDLE_S_MAX = 0.1\nwarm.main(Path(sys.argv[1]), [])",
            str(address),
        ]
    )
    wait_for(lambda: other.poll() is not None)
    assert other.returncode == 0
    wait_for(lambda: parent.poll() is not None)  # the other had taken its place
    assert not address.exists()

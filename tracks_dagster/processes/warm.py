"""Python processes that start at once: forked from a warm parent, which has their imports done.

    python -m tracks_dagster.processes.warm ADDRESS INTERPRETER MODULE …

A warm parent imports the modules, listens at ADDRESS, and forks a child for each program that it is
asked for. Each interpreter has a parent of its own. A child is what a new interpreter would be, or
there is none:

- The interpreter is the same, no file that the parent imported has changed since, and nothing was
  installed. Another one than that of who asks, a project's own, has this very package: the two agree on
  what a request means.
- Its environment is the parent's but for what is read late (`LATE`): a library that read another value
  when it was imported would keep it. A secret that the parent was not started with is in no child.
- Nothing that the program would import first has the name of what is imported already.
- The parent runs no second thread of Python, and holds no GPU.

The caller starts a new interpreter wherever the answer is no: nothing but time depends on it. A warm
parent ends when nobody has asked for IDLE_S_MAX and none of its children lives, when it finds itself
stale, and with the group of processes that it was started in.
"""

from __future__ import annotations

import gc
import hashlib
import json
import os
import runpy
import select
import signal
import site
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import cache
from importlib import import_module, invalidate_caches
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import FrameType, ModuleType, TracebackType
from typing import Any

from tracks_dagster.processes.process import name_process
from tracks_dagster.track.json_text import parse_json

RUN_WORKERS, GANGS = ".run", ".gang"  # what the names of their addresses end with
MODULE = "tracks_dagster.processes.warm"
IDLE_S_MAX = 120.0
IMPORT_S_MAX = 60.0  # until one listens; then the caller starts an interpreter itself
AGAIN_S = 300.0  # from one that could not start to the next try
ANSWER_S_MAX = 10.0
POLL_S = 0.05
LOOK_S = 1.0  # from one look whether it is still needed to the next
MESSAGE_BYTES_MAX = 1024 * 1024
EXIT_UNPREPARED = 126  # of a child that could not be made a new process, as shells have it
# Read when they are used, not when a library is imported; those of torchrun are for a process group.
LATE = frozenset(
    (
        *("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "PATH", "PYTHONPATH", "PWD", "SHLVL", "_"),
        *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
    )
)
LATE_TOO = "TRACKS_"  # begins the names of ours
_AT_START = frozenset(("sitecustomize", "usercustomize"))  # an interpreter imports them by itself
_DEVICES = ("/dev/nvidia", "/dev/kfd", "/dev/dri")
# Of a traceback's lines: they say nothing of the program that failed.
_OURS = frozenset((__file__, "<frozen runpy>"))
_started: list[subprocess.Popen[bytes]] = []  # they outlive who started them
_given: Mapping[str, str] | None = None  # what this process was started with, where it may fork


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """A program to start. words: as after `python`: `-m MODULE …` or `SCRIPT.py …`.

    leads_session: whether it gets a session of its own, and so outlives who asked. name: as `ps` shows
    it; empty: as it shows who forked it.
    """

    words: Sequence[str]
    cwd: str
    environment: Mapping[str, str]
    leads_session: bool = False
    name: str = ""


class Become(BaseException):
    """Raised in a forked child through all that its parent was at: it runs `start` and nothing else."""

    def __init__(self, start: Start) -> None:
        super().__init__(start.words)
        self.start = start


class Child:
    """A process that a warm parent has forked, as far as who asked for it can see it."""

    def __init__(self, pid: int, connection: socket.socket) -> None:
        self.pid = pid
        self._connection = connection
        self._code: int | None = None

    def __del__(self) -> None:
        """Close the socket: a launcher may be dropped while its gang trains."""
        self.close()

    def poll(self) -> int | None:
        """Return its exit code, -N for signal N; None while it lives, and where nobody knows it."""
        if self._code is None and self._connection.fileno() >= 0:
            with suppress(BlockingIOError):
                self._connection.setblocking(False)
                if data := self._connection.recv(MESSAGE_BYTES_MAX):
                    self._code = int(parse_json(data)["code"])
                self.close()
        return self._code

    def kill(self) -> None:
        """Send SIGKILL."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> None:
        """Nothing: its own parent collects it."""

    @property
    def is_orphan(self) -> bool:
        """Whether its warm parent is gone, and its exit code with it."""
        return self._code is None and self._connection.fileno() < 0

    def close(self) -> None:
        """Want no exit code of it."""
        self._connection.close()


class Forked:
    """A process that this one has forked by `fork`: as much of `Popen` as a gang's parent needs."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._code: int | None = None

    def poll(self) -> int | None:
        """Return its exit code, -N for signal N; None while it lives."""
        if self._code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._code = os.waitstatus_to_exitcode(status)
        return self._code

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Send SIGKILL, unless it has ended."""
        self.send_signal(signal.SIGKILL)


def at_interpreter(address: Path, python: str | None) -> Path:
    """Return where that interpreter's own warm parent listens, `address` being this one's."""
    if python in (None, sys.executable):
        return address
    return address.with_name(f"{address.name}.{hashlib.sha256(python.encode()).hexdigest()[:8]}")


def ask(
    address: Path,
    start: Start,
    output: int,
    errors: int | None = None,
    *,
    python: str | None = None,
) -> Child | None:
    """Return the process that the warm parent at `address` forked; None where none listens, or refuses.

    output, errors: the descriptors for stdout and stderr, one for both by default; stdin is empty.
    python: the interpreter that is needed; None: this one.
    """
    try:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    except OSError:  # a system without such sockets
        return None
    try:
        connection.settimeout(ANSWER_S_MAX)
        connection.connect(str(address))
        request = {"python": _interpreter(python), "start": asdict(start)}
        outputs = [output, output if errors is None else errors]
        socket.send_fds(connection, [json.dumps(request).encode()], outputs)
        answer = parse_json(connection.recv(MESSAGE_BYTES_MAX) or "{}")
    except (OSError, ValueError):
        answer = {}
    if "pid" not in answer:
        connection.close()
        return None
    return Child(answer["pid"], connection)


def ensure(
    address: Path,
    modules: Sequence[str],
    environment: Mapping[str, str],
    *,
    python: str | None = None,
) -> bool:
    """Start a warm parent at `address` unless one listens, and wait for it; whether one listens.

    environment: the whole of it, for the parent and so for its children. python: as of `ask`.
    After one that could not start nobody tries again for AGAIN_S: each try may take IMPORT_S_MAX.
    """
    if _listens(address):
        return True
    failed = address.with_name(f"{address.name}.failed")
    with suppress(OSError):
        if 0 <= time.time() - failed.stat().st_mtime < AGAIN_S:
            return False
    interpreter = _interpreter(python)
    child = subprocess.Popen(
        [interpreter[0], "-m", MODULE, str(address), json.dumps(interpreter), *modules],
        cwd="/",  # with `-m`, what lies in the folder of who asks would be imported first
        env=dict(environment),
        stdin=subprocess.DEVNULL,
    )
    # Asking those that have ended for their exit code takes them from the system's table.
    _started[:] = [*(each for each in _started if each.poll() is None), child]
    give_up_at = time.monotonic() + IMPORT_S_MAX
    while child.poll() is None and time.monotonic() < give_up_at:
        if _listens(address):
            return True
        time.sleep(POLL_S)
    if _listens(address):  # another one was faster
        return True
    with suppress(OSError):
        failed.touch()
    return False


def fork(start: Start, output: int) -> Forked | None:
    """Fork this process, which a warm parent forked itself; None where it may not be forked.

    In the child it raises Become.
    """
    if _given is None or _refusal(start, _given) is not None:
        return None
    return Forked(_fork(start, output, output))


def main(address: Path, modules: Sequence[str], interpreter: Sequence[str] | None = None) -> None:
    """Be a warm parent until it is not needed any more; a child runs what it was asked for.

    interpreter: what this one was started as, of `_interpreter`; another one ends in a sentence.
    """
    given = dict(os.environ)
    own = _interpreter()
    if interpreter is not None and list(interpreter) not in (own, [sys.executable, _package()]):
        sys.exit(
            f"No process is forked for {interpreter[0]}, each starts as a new interpreter, which takes "
            f"seconds more: it runs as {sys.executable}, or has another version of tracks-dagster."
        )
    name_process(None)
    for name in modules:
        import_module(name)
    run_children(lambda: WarmParent(address, given, interpreter=interpreter or own).serve())


def run_children(parent: Any) -> None:
    """Call `parent`; in a process that it forked, run what that has become, as a program of its own."""
    start = _start_of(parent)
    while start is not None:
        start = _start_of(lambda start=start: _run(start))


def _start_of(work: Any) -> Start | None:
    try:
        work()
    except Become as become:
        return become.start
    return None


class WarmParent:
    """Forks what it is asked for.

    given: the environment that this process was started with. lives_with: a descriptor that is at its
    end when the process that it works for ends. interpreter: what this one is to those who ask; None:
    their own.
    """

    def __init__(
        self,
        address: Path,
        given: Mapping[str, str],
        lives_with: int | None = None,
        *,
        interpreter: Sequence[str] | None = None,
    ) -> None:
        self._address = address
        self._given = given
        self._interpreter = list(interpreter or _interpreter())
        self._lives_with = lives_with
        self._imported = _imported_files()
        self._children: dict[int, socket.socket] = {}
        self._asked_at = time.monotonic()
        self._is_over = False

    def serve(self) -> None:
        """Answer until nobody needs it; raises Become in a child."""
        global _given
        _given = self._given
        gc.collect()
        gc.freeze()  # memory of what is imported stays shared with the children
        try:
            with _listening(self._address) as listener, _woken_by_children() as woken:
                self._serve(listener, woken)
        except Become:
            for connection in self._children.values():
                connection.close()
            raise
        except FileNotFoundError:
            if self._address.parent.is_dir():
                raise
            return  # its folder was removed before it had started: nobody will ask

    def _serve(self, listener: socket.socket, woken: socket.socket) -> None:
        watched: list[socket.socket | int] = [listener, woken]
        watched += [] if self._lives_with is None else [self._lives_with]
        own = _identity(self._address)
        while not self._is_over and _identity(self._address) == own:
            ready, _, _ = select.select(watched, [], [], LOOK_S)
            if self._lives_with in ready:
                return
            if woken in ready:
                woken.recv(MESSAGE_BYTES_MAX)
            self._collect()
            if listener in ready:
                self._answer(listener.accept()[0])
            elif not self._children:
                self._is_over = time.monotonic() - self._asked_at > IDLE_S_MAX

    def _answer(self, connection: socket.socket) -> None:
        """Fork, and keep the connection for the exit code; or say why not."""
        connection.settimeout(ANSWER_S_MAX)
        outputs: list[int] = []
        pid = None
        try:
            data, outputs, _, _ = socket.recv_fds(connection, MESSAGE_BYTES_MAX, 2)
            if not data:
                return  # it was looked whether one listens
            self._asked_at = time.monotonic()
            asked = parse_json(data)
            start = Start(**asked["start"])
            refusal = self._stale(asked["python"]) or _refusal(start, self._given)
            pid = None if refusal else _fork(start, *outputs)
            answer = {"refused": refusal} if pid is None else {"pid": pid}
            connection.send(json.dumps(answer).encode())
        except (OSError, ValueError, TypeError, LookupError):
            pass  # who asked has gone, or is none of ours
        finally:  # in a child, too
            for each in outputs:
                os.close(each)
            if pid is None:
                connection.close()
            else:
                self._children[pid] = connection

    def _stale(self, python: Sequence[str]) -> str | None:
        """Return why this process must not be forked any more; then it ends."""
        changed = [path for path, stamp in self._imported.items() if _stamp(path) != stamp]
        if list(python) != self._interpreter:
            changed.append("the interpreter")
        self._is_over = bool(changed)
        return f"{changed[0]} has changed" if changed else None

    def _collect(self) -> None:
        """Pass on the exit codes of children that have ended."""
        while self._children:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            connection = self._children.pop(pid, None)
            if connection is not None:
                with suppress(OSError):
                    code = os.waitstatus_to_exitcode(status)
                    connection.send(json.dumps({"code": code}).encode())
                connection.close()


def _refusal(start: Start, given: Mapping[str, str]) -> str | None:
    """Return why a fork of this process is not what a new interpreter would be; None where it is."""
    for name in sorted(given.keys() | start.environment.keys()):
        is_late = name in LATE or name.startswith(LATE_TOO)
        if not is_late and given.get(name) != start.environment.get(name):
            return f"{name} has another value"
    if not (start.words[0] == "-m" or start.words[0].endswith(".py")):
        return f"{start.words[0]} is not a program of Python"
    known = {name.partition(".")[0] for name in sys.modules} | _AT_START
    for path in _imported_first(start):
        if path.name.partition(".")[0] in known:
            return f"{path} would be imported instead of what is"
    if threading.active_count() > 1:
        return "it runs several threads"
    if _holds_a_device():
        return "it holds a device"
    return None


def _holds_a_device() -> bool:
    """Whether a driver of GPUs has been woken: no child could use one any more."""
    for path in Path("/proc/self/fd").glob("*"):
        with suppress(OSError):
            if os.readlink(path).startswith(_DEVICES):  # noqa: PTH115
                return True
    return False


def _imported_first(start: Start) -> Iterator[Path]:
    """Yield what the program can import from folders that this process does not import from."""
    own = {os.path.realpath(each) for each in sys.path if each}
    for folder in _first_folders(start):
        if os.path.realpath(folder) in own or not os.path.isdir(folder):  # noqa: PTH112
            continue
        for path in Path(folder).iterdir():
            if path.suffix in (".py", ".so", ".pyc") or (path / "__init__.py").exists():
                yield path


def _first_folders(start: Start) -> list[str]:
    """Return what an interpreter puts before its own folders in `sys.path`."""
    script = Path(start.cwd, "x" if start.words[0] == "-m" else start.words[0])
    given = start.environment.get("PYTHONPATH", "").split(os.pathsep)
    return [str(script.parent), *filter(None, given)]


def _fork(start: Start, output: int, errors: int) -> int:
    """Return the child's pid; raises Become in the child, which is like a new process by then."""
    sys.stdout.flush()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        pid = os.fork()
        if pid == 0:
            _prepare_or_die(start, output, errors)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    if pid == 0:
        raise Become(start)
    return pid


def _prepare_or_die(start: Start, output: int, errors: int) -> None:
    """Prepare a forked child; one that cannot be ends here, and is not a second warm parent."""
    try:
        _prepare(start, output, errors)
    except BaseException as error:  # noqa: BLE001  # whatever it is, nothing of the parent's may go on
        with suppress(OSError):
            os.write(errors, f"{start.words[0]} was not started: {error}\n".encode())
        os._exit(EXIT_UNPREPARED)


def _prepare(start: Start, output: int, errors: int) -> None:
    """Make a forked child what a new process is."""
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            is_interrupt = number == signal.SIGINT
            signal.signal(number, signal.default_int_handler if is_interrupt else signal.SIG_DFL)
    if start.leads_session:
        os.setsid()
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.close(empty)
    os.dup2(output, 1)
    os.dup2(errors, 2)
    os.chdir(start.cwd)
    first = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    left_out = {sys.path[0], *first}
    sys.path[:] = [*_first_folders(start), *(each for each in sys.path if each not in left_out)]
    os.environ.clear()
    os.environ.update(start.environment)
    invalidate_caches()
    if (process := sys.modules.get("multiprocessing.process")) is not None:
        vars(process)["ORIGINAL_DIR"] = start.cwd  # where its own children look for the script
    if (random := sys.modules.get("numpy.random")) is not None:
        random.seed()  # Python's own is seeded at a fork


def _run(start: Start) -> None:
    """Run the program in this process; an error that it raises is printed as an interpreter does."""
    if start.name:
        name_process(start.name)
    is_module = start.words[0] == "-m"
    sys.argv[:] = start.words[is_module:]
    try:
        if is_module:
            runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        else:
            _run_script(Path(sys.argv[0]).absolute())
    except Exception as error:  # noqa: BLE001  # an interpreter's own last resort
        own = error.with_traceback(_of_program(error.__traceback__))
        sys.excepthook(type(own), own, own.__traceback__)
        sys.exit(1)


def _run_script(path: Path) -> None:
    """Run it as the main module, which stays for what runs at the interpreter's end."""
    main = ModuleType("__main__")
    main.__file__, main.__loader__ = str(path), SourceFileLoader("__main__", str(path))
    sys.modules["__main__"] = main
    exec(compile(path.read_bytes(), path, "exec"), main.__dict__)


def _of_program(traceback: TracebackType | None) -> TracebackType | None:
    """Return the traceback from the program's own first line on."""
    while traceback is not None and traceback.tb_frame.f_code.co_filename in _OURS:
        traceback = traceback.tb_next
    return traceback


def _interpreter(python: str | None = None) -> list[str]:
    """Return by what an interpreter is known; of another than this one only its path can be."""
    if python in (None, sys.executable):
        return [sys.executable, sys.version, str(sys.flags)]
    return [python, _package()]


@cache
def _package() -> str:
    """Return the sha256 of this package's source: some 30 ms."""
    digest = hashlib.sha256()
    folder = Path(__file__).parents[1]
    for path in sorted(folder.rglob("*.py")):
        digest.update(f"{path.relative_to(folder)}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _imported_files() -> dict[str, tuple[int, int]]:
    """Return the file of every module that is imported, and the interpreter's, with their stamps; and
    of what an interpreter reads at its start: what was installed since may add to `sys.path`."""
    files = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    paths = {str(each) for each in files if each} | {os.path.realpath(sys.executable)}
    for folder in (*site.getsitepackages(), site.getusersitepackages()):
        paths |= {folder, *map(str, Path(folder).glob("*.pth"))}
    return {path: _stamp(path) for path in sorted(paths)}


def _stamp(path: str) -> tuple[int, int]:
    try:
        found = os.stat(path)  # noqa: PTH116  # thousands of them before each fork
    except OSError:
        return (0, 0)
    return (found.st_mtime_ns, found.st_size)


def _identity(path: Path) -> int | None:
    with suppress(OSError):
        return path.stat().st_ino
    return None


@contextmanager
def _listening(address: Path) -> Iterator[socket.socket]:
    """Listen at `address` in place of an earlier parent; it is removed again, by its owner only."""
    own, scratch = os.getpid(), address.with_name(f"{address.name}.{os.getpid()}")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        scratch.unlink(missing_ok=True)
        listener.bind(str(scratch))
        listener.listen()
        identity = _identity(scratch)
        scratch.replace(address)
        try:
            yield listener
        finally:
            if os.getpid() == own and _identity(address) == identity:
                address.unlink(missing_ok=True)


@contextmanager
def _woken_by_children() -> Iterator[socket.socket]:
    """Yield what can be read once a child has ended."""

    def ended(number: int, frame: FrameType | None) -> None:
        """Only wake."""

    woken, wakes = socket.socketpair()
    with woken, wakes:
        wakes.setblocking(False)
        signal.set_wakeup_fd(wakes.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, ended)
        yield woken


def _listens(address: Path) -> bool:
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
            probe.connect(str(address))
    except OSError:
        return False
    return True


if __name__ == "__main__":
    # By its name: who forks further, and who catches it, have to mean the same `Become`.
    from tracks_dagster.processes import warm

    warm.main(Path(sys.argv[1]), sys.argv[3:], parse_json(sys.argv[2]))

"""The code server of a home, a module of its own with two arguments, ADDRESS and WARM_ADDRESS.

It is Dagster's own, of our definitions. The daemon and the web server share it, and the daemon starts
another one in its place when the code has changed. Its twin, forked before it had a thread, is the
first warm parent of run workers: its imports are done already.

Both end when the process at the other end of their stdin ends; the twin also when it is not used.
"""

import gc
import os
import signal
import sys
import threading
from importlib import import_module
from pathlib import Path
from typing import Any

from tracks_dagster.home.dagster_home import LOCATION
from tracks_dagster.processes import warm
from tracks_dagster.wings.embedded.edge.plain_imports import import_plain
from tracks_dagster.wings.embedded.edge.run_process import DEFINITIONS, IMPORTED

STDIN = 0


def main(address: Path, warm_address: Path) -> None:
    """Serve until the daemon is gone or SIGTERM comes; a child of the twin is a run worker."""
    given = dict(os.environ)
    import_plain()
    is_usable = imported()
    gc.collect()
    gc.freeze()  # what is imported stays shared between the two, untouched by either's collections
    if is_usable:
        child = os.fork()
        if child == 0:
            twin = warm.WarmParent(warm_address, given, lives_with=STDIN)
            warm.run_children(twin.serve)
            return
        # Once it has ended nothing is left of it.
        threading.Thread(target=os.waitpid, args=(child, 0), name="twin", daemon=True).start()
    threading.Thread(target=end_with_daemon, name="ends with the daemon", daemon=True).start()
    serve(address)


def imported() -> bool:
    """Import all that run workers need; whether that was possible. The code server shows why not."""
    try:
        for module in IMPORTED:
            import_module(module)
    except Exception:  # noqa: BLE001  # whatever a project's or a person's code raises
        return False
    return True


def end_with_daemon() -> None:
    """Wait for the end of stdin, then end this process in order."""
    while os.read(STDIN, 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def serve(address: Path) -> None:
    """Be Dagster's code server at that address."""
    from dagster._cli.api import api_cli

    keep_instance()
    options = ["--socket", str(address), "-m", DEFINITIONS, "--location-name", LOCATION]
    options += ["--lazy-load-user-code", "--use-python-environment-entry-point"]
    api_cli(["grpc", *options, "--log-level", "warning"], standalone_mode=False)


def keep_instance() -> None:
    """Let every tick have the instance of the first one, as the daemon's threads share theirs.

    Dagster opens one for each tick, and reads all migrations of its storage for it: that was three
    quarters of the tick. An instance of another home is opened and closed as ever.
    """
    from dagster import DagsterInstance

    open_instance, dispose = DagsterInstance.from_ref, DagsterInstance.dispose
    lock = threading.Lock()
    kept: list[DagsterInstance] = []

    def from_ref(ref: Any) -> DagsterInstance:
        with lock:
            if not kept:
                kept.append(open_instance(ref))
        return kept[0] if kept[0].get_ref() == ref else open_instance(ref)

    def dispose_others(instance: DagsterInstance) -> None:
        if instance not in kept:
            dispose(instance)

    patched: Any = DagsterInstance  # both are replaced for this process
    patched.from_ref = staticmethod(from_ref)
    patched.dispose = dispose_others


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))

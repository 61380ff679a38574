"""The main process of a gang's pod: `python -m tracks_dagster.training.pod`.

It runs torchrun's machinery in its own process, as torchrun does not report what has to be known:
how each rank truly ended, with which signal, while the pod's own status knows one exit code and goes
with its pod. SIGTERM, the notice that a pod gets before its end, is passed on to the ranks once; they
finish their step, save and end by themselves as long as the grace lasts.

The pod ends with 0 when its ranks are done, EXIT_DRAINED when they saved and ended on SIGTERM,
EXIT_FENCED when another launch took over, else with the code of the rank that failed first (128 + n
for signal n); EXIT_PROBLEM when no rank could be started, EXIT_SETTINGS when its variables are wrong.

It talks to the object store only. What it leaves there: `attempts.pod_files`, and the journals' tails.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from functools import partial

from tracks_dagster.attempts.pod_files import ASK_EVERY_S, BEAT_EVERY_S
from tracks_dagster.processes.logs import ship_journals, ship_logs
from tracks_dagster.processes.process import write_json
from tracks_dagster.stores import open_store
from tracks_dagster.track import names
from tracks_dagster.track.addressed import read_addressed
from tracks_dagster.track.errors import ObjectLost, SettingsError, StoreError, TracksError
from tracks_dagster.track.ports import ObjectStore
from tracks_dagster.track.text.redact import redact
from tracks_dagster.training.pods.environment import PodEnvironment, read_pod_environment
from tracks_dagster.training.pods.gang import EXIT_PROBLEM, Notice, PodGang, Torchrun
from tracks_dagster.training.pods.rank_files import log_files
from tracks_dagster.training.pods.reports import Asks, Beats, Ends, GangFailure, Repeat
from tracks_dagster.training.projects.code import CODE, CodeUnusable, command_line, lay_out, paths

EXIT_SETTINGS = 2
REPORT_S_MAX = 5.0  # that the gang has failed
END_PUT_S_MAX = 20.0  # for the store to take how the ranks ended
SHIP_S_MAX = 20.0  # and their journals


def main() -> int:
    """Run the pod that the environment names; returns its exit code."""
    notice = Notice()
    # First of all: process 1 of a container is not ended by a signal that it does not handle.
    signal.signal(signal.SIGTERM, notice.receive)
    try:
        pod = read_pod_environment(os.environ)
        store = open_store(pod.store_url, probe=False)
        prepare(store, pod)
    except TracksError as error:
        print(error, file=sys.stderr, flush=True)
        return EXIT_SETTINGS if isinstance(error, SettingsError) else EXIT_PROBLEM
    return run(store, pod, notice)


def prepare(store: ObjectStore, pod: PodEnvironment) -> None:
    """Lay out the pod's folder: the stored code, when there is any, and what starts each rank.

    Raises StoreError, SettingsError when the code is not there, was changed, or is not code.
    """
    pod.work.mkdir(parents=True, exist_ok=True)
    folder, command = pod.work / CODE, pod.command
    try:
        code = None if pod.code_key is None else read_addressed(store, pod.code_key)
        lay_out(folder, code=code, key=pod.code_key, files=command.files)
    except ObjectLost as error:
        raise SettingsError(
            f"Cannot start: the run's code {error}, in {store.url}; it is stored before the Job is."
        ) from error
    except CodeUnusable as error:
        raise SettingsError(f"{pod.code_key}: {error}") from error
    started = {
        "command": command_line(command.words, command.python),
        "folder": str(folder),
        "environment": paths(folder, command.python, os.environ),
    }
    write_json(pod.work / "pod.json", {"first_rank": pod.first_rank, "ranks": pod.ranks, **started})


def run(store: ObjectStore, pod: PodEnvironment, notice: Notice) -> int:
    """Run the ranks to their ends, store how they ended, and return the pod's exit code."""
    clean = partial(redact, secrets=pod.secrets)
    ends = Ends(store, pod, clean=clean)
    beats = Beats(store, pod)
    Repeat("cannot put a beat", beats.put, every_s=BEAT_EVERY_S).soon()  # the first at once
    Repeat("cannot answer", Asks(store, pod, clean=clean).look, every_s=ASK_EVERY_S)
    torchrun = Torchrun(pod)
    failure = GangFailure(store, pod)
    Repeat("cannot see whether the gang failed", failure.look, every_s=ASK_EVERY_S)
    gang = PodGang(pod, ends, torchrun, notice, failure)
    if not notice.is_received:
        torchrun.start()
    gang.watch()
    if gang.has_failed:
        _within(REPORT_S_MAX, "cannot tell the other pods", failure.report)
    if not ends.settle(END_PUT_S_MAX):
        print("the store has not taken how the ranks ended", file=sys.stderr, flush=True)
    if gang.exit_code != names.EXIT_FENCED:  # a fenced launch writes nothing more
        ship = partial(ship_journals, store, pod.work, prefix=pod.ref.folder)
        _within(SHIP_S_MAX, "journals stay unshipped", ship)
        logs = {pod.first_rank + rank: log_files(pod.work, rank) for rank in range(pod.ranks)}
        store_logs = partial(ship_logs, store, logs, prefix=pod.ref.folder, clean=clean)
        _within(SHIP_S_MAX, "the ranks' logs stay on the pod", store_logs)
    return gang.exit_code


def _within(limit_s: float, complaint: str, action: Callable[[], None]) -> None:
    """Do something with the store, for so long at most; what it does not take is logged."""

    def act() -> None:
        try:
            action()
        except (StoreError, OSError) as error:
            print(f"{complaint}: {error}", file=sys.stderr, flush=True)

    thread = threading.Thread(target=act, name=complaint, daemon=True)
    thread.start()
    thread.join(limit_s)


def _leave(code: int) -> None:
    """End the process, whatever a thread still waits for: a rendezvous, a store."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    _leave(main())

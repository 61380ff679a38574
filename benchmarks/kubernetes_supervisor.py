"""A process that supervises gangs with everything a run worker has; started by `kubernetes_gangs`.

    python -m benchmarks.kubernetes_supervisor '{"kubeconfig": …, "store": …, "runs": [...], …}'

It loads the code location as a run worker does, then supervises attempt 1 of each run in a thread of
its own. It reports its memory at its start, and for each line that it is sent; it ends with its input.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

from benchmarks.kubernetes_meter import Counted
from tests.fakes import FakeOrchestrator
from tracks_dagster import definitions
from tracks_dagster.attempts.effects.supervise import Supervisor
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.retry.default_policy import DEFAULT_POLICY
from tracks_dagster.stores import open_store
from tracks_dagster.track.text.redact import redact
from tracks_dagster.wings.kubernetes.effects.client import connect
from tracks_dagster.wings.kubernetes.effects.launcher import KubernetesLauncher
from tracks_dagster.wings.kubernetes.settings import ClusterSettings
from tracks_dagster.wiring import new_uid, utc_now

STATUS = Path("/proc/self/status")


def main() -> None:
    """Supervise until the input ends."""
    assert definitions is not None
    given = json.loads(sys.argv[1])
    store = Counted(open_store(given["store"]))
    cluster = ClusterSettings(
        image="train:1", namespace=given["namespace"], kubeconfig=given["kubeconfig"]
    )
    ended: list[str] = []
    with connect(cluster) as client:
        launcher = KubernetesLauncher(client, cluster, store, now=utc_now, clean=redact)
        _report("idle", store, ended)
        for run_id in given["runs"]:
            threading.Thread(
                target=_supervise, args=(store, launcher, run_id, ended), daemon=True
            ).start()
        for line in sys.stdin:
            _report(line.strip(), store, ended)
    os._exit(0)  # whatever watches still: as a run worker that is killed


def _supervise(store: Any, launcher: KubernetesLauncher, run_id: str, ended: list[str]) -> None:
    tracks = Tracks(store, now=utc_now, new_uid=new_uid, project=lambda name: None)
    supervisor = Supervisor(
        tracks=tracks,
        gangs=launcher,
        orchestrator=FakeOrchestrator(),
        foresee=lambda *_: {},
        policy=DEFAULT_POLICY,
        dagster_run_id=f"dagster-{run_id}",
        host="bench",
        sleep=time.sleep,
        on_growth=lambda state: None,
    )
    attempt = supervisor.supervise(run_id, 1)
    ended.append(f"{run_id}: {attempt.reason if attempt is not None else 'superseded'}")


def _report(at: str, store: Counted, ended: list[str]) -> None:
    status = dict(line.split(":", 1) for line in STATUS.read_text().splitlines() if ":" in line)
    measured = {
        "at": at,
        "rss_bytes": 1024 * int(status["VmRSS"].split()[0]),
        "peak_bytes": 1024 * int(status["VmHWM"].split()[0]),
        "threads": int(status["Threads"]),
        "cpu_s": time.process_time(),
        "store_calls": dict(store.calls),
        "ended": ended,
    }
    print(json.dumps(measured), flush=True)


if __name__ == "__main__":
    main()

"""The main job with its gang on two pods: every way in which a cluster takes pods away, in one run.

The daemon, the run workers and their supervisors are processes of this machine; the pods are
processes of the double. One run meets a preemption, an OOM, a rack that is cut off while its gang
trains on, an eviction and the death of its run worker, and is finished anyway.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

import tracks_dagster
from tests.integration.homes import COMMAND_S_MAX, Home, embedded, outcome, wait_for
from tests.integration.test_crashes import worker_pid
from tests.wings.kubernetes.double.furniture import NAMESPACE
from tests.wings.kubernetes.double.kube_double import KubeDouble, kube_double
from tracks_dagster.track.names import LABEL_ATTEMPT
from tracks_dagster.track.states.run_state import AttemptState, RunState

pytestmark = [pytest.mark.full, pytest.mark.timeout(3 * COMMAND_S_MAX)]

RUN = "on-pods"
ROOT = Path(tracks_dagster.__file__).parents[1]


@pytest.fixture
def kube(tmp_path: Path) -> Iterator[KubeDouble]:
    """A double whose image has this repository."""
    environ = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    with kube_double(tmp_path / "kube", image_env=environ) as double:
        for name in ("node3", "node4", "node5", "node6"):
            double.add_node(name)
        yield double


@pytest.fixture
def home(kube: KubeDouble, tmp_path: Path) -> Iterator[Home]:
    """An embedded home whose gangs run on the double; a daemon runs."""
    found = embedded(tmp_path)
    store = str(found.settings.home / "store")
    cluster = {
        "image": "train:1",
        "namespace": NAMESPACE,
        "kubeconfig": str(kube.kubeconfig),
        "termination_grace": "30s",
        "python": sys.executable,
        "volumes": [{"name": "store", "hostPath": {"path": store}}],
        "volume_mounts": [{"name": "store", "mountPath": store}],
    }
    found.settings.home.mkdir(parents=True, exist_ok=True)
    file = found.settings.home / "kubernetes.yaml"
    file.write_text(yaml.safe_dump(cluster))
    found.variables["TRACKS_KUBERNETES"] = str(file)
    with found.daemon():
        yield found


def folded(home: Home) -> RunState | None:
    """Return the run as its track tells it; None before it is declared."""
    return home.app.tracks.find_run(RUN)


def commits_of(state: RunState, attempt_id: int) -> int:
    return sum(c.ref.attempt_id == attempt_id for c in state.checkpoints)


def trains(home: Home, command: subprocess.Popen[str], attempt_id: int) -> AttemptState:
    """Wait until that attempt has committed a checkpoint of its own, and is open."""

    def has_committed() -> bool:
        if command.poll() is not None:
            raise AssertionError(command.communicate())
        state = folded(home)
        if state is None or len(state.attempts) < attempt_id:
            return False
        reasons = [attempt.reason for attempt in state.attempts]
        assert len(reasons) == attempt_id, reasons
        assert reasons[-1] is None, reasons
        return commits_of(state, attempt_id) > 0

    wait_for(has_committed)
    state = folded(home)
    assert state is not None
    return state.attempts[attempt_id - 1]


def pods_of(kube: KubeDouble, attempt_id: int) -> list[str]:
    """Return the names of an attempt's pods, by index."""
    found, _ = kube.objects.all("pods", (LABEL_ATTEMPT, str(attempt_id)))
    return [pod["metadata"]["name"] for pod in found]


def test_a_run_on_pods_survives_all_that_a_cluster_does_to_it(
    kube: KubeDouble, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = ("--steps", "400", "--checkpoint-every", "20", "--memory", "1GiB")
    command = home.run(RUN, "--on", "kubernetes", "--ranks", "2", *size)

    trains(home, command, 1)
    kube.preempt(pods_of(kube, 1)[0])

    trains(home, command, 2)
    kube.oom(pods_of(kube, 2)[1])

    trains(home, command, 3)
    rack = pods_of(kube, 3)
    zombies = [pid for pod in rack for pid in (kube.pids()[pod], *kube.children(pod))]
    send(zombies, signal.SIGSTOP)  # cut off from the store, too, which would tell them to save
    for node in {kube.pod(pod)["spec"]["nodeName"] for pod in rack}:
        kube.lose_node(node)

    trains(home, command, 4)
    send(zombies, signal.SIGCONT)
    wait_for(lambda: not any(map(lives, zombies)))  # fenced: nobody ended them
    kube.evict(pods_of(kube, 4)[0])

    fifth = trains(home, command, 5)
    [claim] = fifth.claims
    os.kill(worker_pid(home, claim.body.dagster_run_id, monkeypatch), signal.SIGKILL)

    run = outcome(command)
    reasons = [attempt["termination_reason"] for attempt in run["attempts"]]
    assert reasons == ["preempted", "host_oom", "node_failure", "node_drained", "completed"]
    state = folded(home)
    assert state is not None
    assert len(state.attempts[4].claims) == 2  # adopted by the next supervisor
    assert state.attempts[4].placed == fifth.placed  # the gang that lived, not another one
    assert len(state.evals) == 1
    late = [key for key in home.app.store.list(f"runs/{RUN}/attempts/3/") if "/exit/" in key]
    assert any(b"fenced" in (home.app.store.get(key) or b"") for key in late), late


def send(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        os.kill(pid, number)


def lives(pid: int) -> bool:
    """Whether a process runs; one that ended and was not waited for does not."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] != "Z"

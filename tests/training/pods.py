"""Pods of a gang as processes of this machine: what a manifest tells, and no kubelet."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.examples import EXAMPLES
from tests.ports import free_port
from tracks_dagster.attempts import pod_files
from tracks_dagster.attempts.effects.local.code_archive import pack_folder
from tracks_dagster.attempts.pod_files import PodEnd
from tracks_dagster.attempts.ports import SCRIPT
from tracks_dagster.track import names
from tracks_dagster.track.names import AttemptRef
from tracks_dagster.track.ports import ObjectStore
from tracks_dagster.track.records import sha256_hex
from tracks_dagster.track.track import code_key

WAIT_S_MAX = 120.0  # for what takes seconds on an idle machine
POLL_S = 0.05
ROOT = Path(__file__).resolve().parents[2]


@dataclass(kw_only=True)
class Pod:
    """One pod and its main process."""

    process: subprocess.Popen[bytes]
    uid: str
    work: Path
    log_file: Path
    store: ObjectStore

    @property
    def log(self) -> str:
        """What its container's log says."""
        return self.log_file.read_text()

    @property
    def end(self) -> PodEnd:
        """What it left of its ranks' ends."""
        end = pod_files.decode_end(self.store.get(pod_files.end_key(AttemptRef("r", 1), self.uid)))
        assert end is not None, self.log
        return end

    def terminate(self) -> None:
        """Send what a kubelet sends first."""
        self.process.send_signal(signal.SIGTERM)

    def wait(self) -> int:
        """Return its exit code."""
        return self.process.wait(WAIT_S_MAX)


class PodStarter:
    """Starts the pods of attempt 1 of run "r"; all that live are ended at the last."""

    def __init__(self, folder: Path, store: ObjectStore) -> None:
        self._folder = folder
        self._store = store
        self._port = free_port()
        self._pods: list[Pod] = []

    def start(
        self,
        *,
        index: int = 0,
        pods: int = 1,
        ranks: int = 1,
        opened_seq: int = 1,
        script: str = "",
        python_path: Path = ROOT,
    ) -> Pod:
        """Start one pod; script: stored code, as of an older version; without one an example trains.

        python_path: a folder that every Python of it looks in, for a site's own start of each.
        """
        uid = f"uid-{index}"
        work = self._folder / uid
        environment = os.environ | {
            names.ENV_STORE: self._store.url,
            names.ENV_RUN_ID: "r",
            names.ENV_ATTEMPT_ID: "1",
            names.ENV_OPENED_SEQ: str(opened_seq),
            names.ENV_WORK: str(work),
            names.ENV_NODE: f"node-{index}",
            names.ENV_POD: f"pod-{index}",
            names.ENV_POD_UID: uid,
            names.ENV_IMAGE: "image:1",
            names.ENV_COMMAND: json.dumps({"words": [SCRIPT if script else "train.py"]}),
            "TRACKS_NODES": str(pods),
            "TRACKS_RANKS_PER_NODE": str(ranks),
            "TRACKS_MASTER_ADDR": "127.0.0.1",
            "TRACKS_MASTER_PORT": str(self._port),
            "TRACKS_TERMINATION_GRACE_S": "60",
            "JOB_COMPLETION_INDEX": str(index),
            "PYTHONPATH": f"{python_path}{os.pathsep}{ROOT}",
            "OMP_NUM_THREADS": "1",
        }
        if script:
            key = f"scripts/{sha256_hex(script.encode())}.py"
            self._store.put(key, script.encode())
            environment[names.ENV_CODE_KEY] = key
        elif names.ENV_CODE_KEY not in environment:
            packed = pack_folder(EXAMPLES / "tabular")
            environment[names.ENV_CODE_KEY] = code_key("r", packed.sha256)
            self._store.put(code_key("r", packed.sha256), packed.data)
        log_file = self._folder / f"{uid}.log"
        with log_file.open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "tracks_dagster.training.pod"],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        pod = Pod(process=process, uid=uid, work=work, log_file=log_file, store=self._store)
        self._pods.append(pod)
        return pod

    def close(self) -> None:
        """End what a failed test left."""
        for pod in self._pods:
            pod.process.kill()
            pod.process.wait(WAIT_S_MAX)


def until(is_so: Callable[[], bool], pod: Pod) -> None:
    """Return once `is_so`; fails with the pod's log after a while."""
    deadline = time.monotonic() + WAIT_S_MAX
    while not is_so():
        assert time.monotonic() < deadline, pod.log
        time.sleep(POLL_S)

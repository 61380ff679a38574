"""The gates of a full run whose gangs are pods: closed, opened by tests, smoke and canary, and closed.

The launcher, the supervisor and the cluster's file are the real ones; the pods pretend, and leave what
a rank leaves, with the image that their manifest names.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.asked import Asked, declare
from tests.attempts.test_stage_gates import FALLING, FLAT, POLICY, train
from tests.examples import EXAMPLES
from tests.fakes import FakeOrchestrator
from tests.histories import DatasetHistory
from tests.wings.kubernetes.double.furniture import NAMESPACE
from tests.wings.kubernetes.double.kube_double import KubeDouble, kube_double
from tests.wings.kubernetes.double.launching import running
from tracks_dagster.attempts.effects.local.project_code import read_project_code
from tracks_dagster.attempts.effects.retry import Retries
from tracks_dagster.attempts.effects.supervise import Supervisor
from tracks_dagster.ledger.effects.deciding import settle
from tracks_dagster.projects.effects.certificates import certify
from tracks_dagster.reasons.evidence import LastWord
from tracks_dagster.settings import Settings
from tracks_dagster.track.bodies import ComputeRequest, RunDeclared
from tracks_dagster.track.body_json import to_json
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.names import ENV_IMAGE
from tracks_dagster.track.records import canonical_json, format_time, sha256_hex
from tracks_dagster.track.states.lifecycle import RunLifecycle, run_status
from tracks_dagster.wings.kubernetes.settings import KUBERNETES
from tracks_dagster.wiring import build, gang_check

TRACKS_YAML = """
name: mine
entry: train.py
dataset: rows
config: {max_iters: 400, lr: 0.1}
keys: {steps: max_iters}
"""


class Site:
    """A home whose gangs are pods of the double, and a project."""

    def __init__(self, kube: KubeDouble, tmp_path: Path) -> None:
        home = tmp_path / "home"
        home.mkdir()
        self.kube, self.file, self.folder = kube, home / "kubernetes.yaml", tmp_path / "mine"
        self.folder.mkdir()
        (self.folder / "tracks.yaml").write_text(TRACKS_YAML)
        (self.folder / "train.py").write_text("import model\n")
        store = str(home / "store")
        self.write_cluster("train:1", store)
        settings = Settings(
            home=home, store_url=store, root=EXAMPLES.parent, files={"TRACKS_KUBERNETES": self.file}
        )
        self.app = build(settings)
        self.launcher = self.app.launcher_of(KUBERNETES)
        self.rows = DatasetHistory("rows").declare().commit("d" * 64)
        self.rows.write_to(self.app.store)

    def write_cluster(self, image: str, store: str) -> None:
        """Describe the cluster, with that image of its gangs."""
        cluster = {
            "image": image,
            "namespace": NAMESPACE,
            "kubeconfig": str(self.kube.kubeconfig),
            "volumes": [{"name": "store", "hostPath": {"path": store}}],
            "volume_mounts": [{"name": "store", "mountPath": store}],
        }
        self.file.write_text(yaml.safe_dump(cluster))

    def declare(self, stage: str, **changes: Any) -> RunDeclared:
        """Declare a run of the folder as it is now, called as its stage; changes: of the request."""
        url = self.app.store.url
        found = read_project_code(
            self.folder, store_url=url, clean=self.app.redact, launcher=KUBERNETES
        )
        usual = {"run_id": f"{stage}-1", "intent": "Rehearse.", "owner": "ann", "stage": stage}
        request = Asked(found=found).but(**{**usual, "launcher": KUBERNETES, **changes})
        return declare(
            self.app.tracks,
            request,
            check_gang=gang_check(self.app.settings),
            policy=POLICY,
            ledger=self.app.ledger,
            foresee=self.app.foresee,
        )

    def refused(self, **changes: Any) -> str:
        with pytest.raises(InvalidInput) as caught:
            self.declare("full", **changes)
        return str(caught.value)

    def certify(self) -> None:
        """Leave the receipt of green tests of the folder's code."""
        packed = read_project_code(
            self.folder, store_url="", clean=self.app.redact, launcher=KUBERNETES
        )
        certify(
            self.app.tracks,
            what="tests",
            code_sha256=sha256_hex(packed.archive),
            project="mine",
            passed=3,
            failed=0,
            by="ann",
            where="ci",
        )

    def run(self, stage: str, losses: Sequence[float] = FALLING, **changes: Any) -> str:
        """Declare a run, and let its gang train to its end; return the run's state."""
        run_id = self.declare(stage, **changes).run_id
        steps = iter([lambda: self._train(run_id, losses)])
        supervisor = Supervisor(
            tracks=self.app.tracks,
            gangs=self.launcher,
            orchestrator=FakeOrchestrator(),
            foresee=partial(self.app.foresee, ComputeRequest(launcher=KUBERNETES)),
            policy=POLICY,
            dagster_run_id=f"dagster-{run_id}",
            host="run-worker",
            sleep=lambda seconds: next(steps, lambda: time.sleep(0.02))(),
            on_growth=lambda state: None,
        )
        supervisor.supervise(run_id, 1)
        settle(self.app.world(POLICY), Retries(name="tests", reasons=None), run_id)
        return run_status(self.app.tracks.run(run_id)).state

    def _train(self, run_id: str, losses: Sequence[float]) -> None:
        """Be the gang's only rank: train, save, leave a last word and end with 0."""
        [pod] = running(self.kube, run_id, count=1)
        [container] = self.kube.pod(pod)["spec"]["containers"]
        environ: Mapping[str, str] = {e["name"]: e.get("value", "") for e in container["env"]}
        found = {"python": "3.12.1", "image": environ[ENV_IMAGE]}
        train(self.app.tracks, run_id, losses, found=found)
        word = LastWord(
            rank=0,
            reason="completed",
            exception=None,
            message="",
            traceback_tail="",
            step=len(losses),
            at=format_time(self.app.tracks.now()),
        )
        key = f"runs/{run_id}/attempts/1/launch-1/exit/rank-0.json"
        self.app.store.put(key, canonical_json(to_json(word)))
        self.kube.finish(pod, 0)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """An empty home, beside a cluster whose pods have no processes."""
    with kube_double(tmp_path / "kube", pretend=True) as kube:
        found = Site(kube, tmp_path)
        yield found
        found.launcher.close()  # type: ignore[attr-defined]


def test_a_full_run_on_pods_follows_its_tests_smoke_and_canary_on_pods(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = f"tracks smoke --project {site.folder} --on kubernetes"
    refusal = site.refused()
    assert "tests: none of this code" in refusal
    assert f"smoke: there is none of this project; `{command}`" in refusal
    site.certify()
    assert [site.run("smoke"), site.run("canary")] == [RunLifecycle.SUCCEEDED] * 2
    [smoke, canary] = (site.app.tracks.run(name) for name in ("smoke-1", "canary-1"))
    assert smoke.declared.config["max_iters"] == 20
    assert smoke.attempts[0].placed is not None
    assert smoke.attempts[0].placed.image == smoke.declared.environment["image"] == "train:1"

    site.write_cluster("train:2", site.app.store.url)
    assert "environment image train:1 → train:2" in site.refused()
    site.write_cluster("train:1", site.app.store.url)
    (site.folder / "model.py").write_text("width = 2\n")
    changed = site.refused()
    assert "tests: none of this code" in changed
    assert "from the nearest, canary-1: code " in changed
    (site.folder / "model.py").unlink()
    assert "lr 0.1 → 0.5" in site.refused(config={"lr": 0.5})
    with monkeypatch.context() as a_week_later:
        now = site.app.tracks.now() + timedelta(days=7, seconds=1)
        a_week_later.setattr(site.app.tracks, "now", lambda: now)
        assert site.refused().count("7.0 d old, and 7 d count") == 3

    assert site.run("full") == RunLifecycle.SUCCEEDED
    passed = site.app.tracks.run("full-1").declared.passed_gates
    assert (passed["smoke"], passed["canary"]) == ("smoke-1", "canary-1")
    assert canary.declared.gate_key == site.app.tracks.run("full-1").declared.gate_key
    assert site.kube.requests["create", "jobs.batch"] == 3

    site.rows.commit("f" * 64).write_to(site.app.store)
    assert "snapshot dddddddddddd → ffffffffffff" in site.refused(run_id="full-2")


def test_a_canary_on_pods_whose_loss_stays_flat_does_not_count(site: Site) -> None:
    site.certify()
    assert site.run("canary", FLAT) == RunLifecycle.SUCCEEDED
    assert "canary-1, did not pass: the median loss of the last quarter of 40" in site.refused()

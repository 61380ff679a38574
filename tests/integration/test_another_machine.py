"""A project of one machine is trained by another one that has the store and the database alone.

Both machines are homes here; their store is a folder that the pods of the double reach at its path.
The second machine's gangs are pods, as the project's file says; its folder is gone by then.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

import tracks_dagster
from tests.integration.homes import COMMAND_S_MAX, Home, embedded, wait_for
from tests.wings.kubernetes.double.furniture import NAMESPACE
from tests.wings.kubernetes.double.kube_double import KubeDouble, kube_double
from tracks_dagster.track.names import LABEL_RUN, RUNS, SCHEDULE_OWNER

pytestmark = [pytest.mark.full, pytest.mark.timeout(2 * COMMAND_S_MAX)]

ROOT = Path(tracks_dagster.__file__).parents[1]
PROJECT = """\
name: churn
entry: train.py
launcher: kubernetes
config: {steps: 4}
checkpoint: {every_steps: 2}
schedule: {cron: "* * * * *"}
"""
TRAIN = """\
import model
import torch
from tracks_dagster.training import attempt

with attempt.join() as a:
    layer = torch.nn.Linear(model.WIDTH, 1)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    a.register(model=layer, optimizer=optimizer)
    for step, _ in a.steps(until=a.config["steps"]):
        loss = layer(torch.ones(model.WIDTH)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        a.report(step, loss=loss)
"""


@pytest.fixture
def kube(tmp_path: Path) -> Iterator[KubeDouble]:
    """A double whose image has this repository."""
    environ = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    with kube_double(tmp_path / "kube", image_env=environ) as double:
        yield double


def machine(folder: Path, store: Path, postgres_url: str) -> Home:
    """A machine that has nothing but where the store and the database are."""
    home = embedded(folder)
    home.settings.home.mkdir(parents=True)
    home.variables.update(TRACKS_STORE=str(store), TRACKS_POSTGRES_URL=postgres_url)
    return home


def test_a_project_added_on_one_machine_is_scheduled_on_another_and_trains_in_its_pods(
    kube: KubeDouble, postgres_url: str, tmp_path: Path
) -> None:
    store, folder = tmp_path / "store", tmp_path / "churn"
    mine, other = (machine(tmp_path / name, store, postgres_url) for name in ("mine", "other"))
    cluster = {
        "image": "train:1",
        "namespace": NAMESPACE,
        "kubeconfig": str(kube.kubeconfig),
        "python": sys.executable,
        "volumes": [{"name": "store", "hostPath": {"path": str(store)}}],
        "volume_mounts": [{"name": "store", "mountPath": str(store)}],
    }
    file = other.settings.home / "kubernetes.yaml"
    file.write_text(yaml.safe_dump(cluster))
    other.variables["TRACKS_KUBERNETES"] = str(file)
    folder.mkdir()
    for name, text in (
        ("tracks.yaml", PROJECT),
        ("train.py", TRAIN),
        ("model.py", "WIDTH = 2\n"),
    ):
        (folder / name).write_text(text)
    added = mine.call("projects", "add", str(folder))
    assert added.returncode == 0, added.stderr
    shutil.rmtree(folder)

    tracks = other.app.tracks

    def succeeded() -> list[str]:
        # A folder is there before the run is declared.
        found = (tracks.find_run(run_id) for run_id in other.app.store.folders(RUNS))
        return [each.run_id for each in found if each is not None and each.finished is not None]

    with other.daemon():
        wait_for(lambda: bool(succeeded()))
    state = tracks.run(succeeded()[0])
    assert (state.declared.owner, state.declared.folder) == (SCHEDULE_OWNER, "projects/churn@1")
    assert state.declared.compute.launcher == "kubernetes"
    assert [each.reason for each in state.attempts] == ["completed"]
    assert [each.ref.step for each in state.checkpoints] == [2, 4]
    jobs = [each for each in kube.received if each["kind"] == "Job"]
    assert any(each["metadata"]["labels"].get(LABEL_RUN) == state.run_id for each in jobs)

"""Two sets of ours and a user's assets of the same words, in one deployment: they train side by side.

Both homes have a run of the same id of a project of the same name, so that nothing but the prefix
tells them apart in Dagster. In `--full` only: `tests/code_location/test_two_sets.py` has what loads.
"""

from __future__ import annotations

from collections import Counter

import pytest
from dagster import AssetKey, DagsterEventType, DagsterInstance, DagsterRun, RunsFilter
from dagster._core.scheduler.instigation import InstigatorType

from tests.integration.homes import COMMAND_S_MAX
from tests.integration.test_any_deployment import Deployment, deployment, wait_for
from tracks_dagster.client import Tracks

__all__ = ["deployment"]
pytestmark = [pytest.mark.full, pytest.mark.timeout(2 * COMMAND_S_MAX)]

RUN, STEPS = "same", 4
SETS = ("a", "b")
WORDS = ("datasets", "checkpoints", "evals")
TRAINER = """\
import torch
from tracks_dagster.training import attempt

with attempt.join() as a:
    layer = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.constant_(layer.weight, a.config["begin"])
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    a.register(model=layer, optimizer=optimizer)
    for step, _ in a.steps(until=a.config["steps"]):
        loss = layer(torch.ones(1)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        a.report(step, loss=loss)
"""
EVALUATE = "def evaluate(*_): return {'score': 1.0}\n"
PROJECT = f"""\
name: churn
entry: train.py
config: {{steps: {STEPS}, begin: 1.0}}
checkpoint: {{every_steps: 2}}
evals: {{quality: evaluate.py}}
promotion: {{eval: quality, metric: score, at_least: 0.5}}
"""
DEFINITIONS = """\
import dagster as dg
from tracks_dagster.factory import build_defs, merge

words = [dg.asset(name=word)(lambda: None) for word in {words!r}]
own = dg.define_asset_job("own", selection=dg.AssetSelection.assets(*words))
ours = [
    build_defs([{project!r}], prefix=each, settings={{"TRACKS_HOME": {homes!r} + each}})
    for each in {sets!r}
]
defs = merge(dg.Definitions(assets=words, jobs=[own]), *ours)
"""


@pytest.fixture
def clients(deployment: Deployment) -> dict[str, Tracks]:
    """The client of each set's home; definitions.py has both sets and the user's own."""
    folder = deployment.folder / "churn"
    folder.mkdir()
    (folder / "train.py").write_text(TRAINER)
    (folder / "evaluate.py").write_text(EVALUATE)
    (folder / "tracks.yaml").write_text(PROJECT)
    homes = str(deployment.folder / "home-")
    text = DEFINITIONS.format(project=str(folder), homes=homes, words=WORDS, sets=SETS)
    (deployment.folder / "definitions.py").write_text(text)
    return {each: Tracks(home=homes + each, by="tests") for each in SETS}


def owner_of(name: str) -> str:
    """The set that a job, a sensor or the first word of an asset's key belongs to."""
    begin = name.split("_")[0]
    return begin if begin in SETS else "user"


def jobs_of(instance: DagsterInstance, kind: InstigatorType) -> list[tuple[str, str]]:
    """Return who ticked and whose job it asked for, of each run that a tick asked for."""
    return [
        (owner_of(state.instigator_name), owner_of(job_of(instance, run_id)))
        for state in instance.all_instigator_state(instigator_type=kind)
        for tick in instance.get_ticks(state.instigator_origin_id, state.selector_id)
        for run_id in tick.run_ids
    ]


def job_of(instance: DagsterInstance, run_id: str) -> str:
    run = instance.get_run_by_id(run_id)
    assert run is not None
    return run.job_name


def made_by(instance: DagsterInstance, run: DagsterRun) -> Counter[str]:
    """Return how many materializations of whose assets a run stored."""
    logged = instance.all_logs(run.run_id, of_type=DagsterEventType.ASSET_MATERIALIZATION)
    keys = [each.asset_key for each in (entry.dagster_event for entry in logged) if each]
    return Counter(owner_of(key.path[0]) for key in keys if key is not None)


def test_two_sets_and_a_users_assets_of_the_same_words_train_side_by_side_and_stay_apart(
    deployment: Deployment, clients: dict[str, Tracks]
) -> None:
    folder = deployment.folder / "churn"
    with (
        deployment.running(),
        DagsterInstance.from_config(str(deployment.folder)) as instance,
    ):
        runs = {
            each: client.submit(folder, run_id=RUN, config={"begin": begin}, intent=f"Of {each}.")
            for (each, client), begin in zip(clients.items(), (1.0, 2.0), strict=True)
        }
        deployment.launch_own()
        for each in runs.values():
            assert each.wait(COMMAND_S_MAX)["state"] == "succeeded"

        def count(*path: str) -> int:
            return len(instance.fetch_materializations(AssetKey(path), limit=99).records)

        # The model is the last of a set that is shown.
        wait_for(lambda: all(count(each, "churn", "model") for each in SETS))
        wait_for(lambda: all(each.is_finished for each in instance.get_runs()))
        wait_for(lambda: all(count(each, "evals") == 1 for each in SETS))

        for each, client in clients.items():
            state = client.stored.run(RUN)
            assert state.declared.intent == f"Of {each}."
            assert [attempt.reason for attempt in state.attempts] == ["completed"]
            assert [commit.ref.step for commit in state.checkpoints] == [2, STEPS]
            assert client.sql("select count(*) as n from training_attempts") == [{"n": 1}]
            assert (count(each, "training_attempts"), count(each, "checkpoints")) == (1, 2)
            assert (count(each, "evals"), count(each, "churn", "model")) == (1, 1)
            [trained] = instance.get_runs(RunsFilter(job_name=f"{each}_train_attempt"))
            [claim] = state.attempts[0].claims
            assert claim.body.dagster_run_id == trained.run_id
        manifests = {
            client.stored.run(RUN).checkpoints[-1].ref.manifest_sha256
            for client in clients.values()
        }
        assert len(manifests) == len(SETS)
        assert [count(word) for word in WORDS] == [1, 1, 1]
        asked = jobs_of(instance, InstigatorType.SENSOR)
        assert set(asked) == {(each, each) for each in SETS}
        for run in instance.get_runs():
            assert set(made_by(instance, run)) <= {owner_of(run.job_name)}

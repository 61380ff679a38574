"""A run declared from Dagster's launchpad: what is inherited, and what is refused in words."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace

import pytest
from dagster import (
    AssetKey,
    DagsterInstance,
    DagsterInvalidConfigError,
    DagsterRun,
    DagsterRunStatus,
    ExecuteInProcessResult,
    asset,
    job,
    materialize,
)

from tests.code_location.test_training import write
from tests.examples import EXAMPLES, example_config
from tests.histories import DatasetHistory, History
from tests.plain_site import training_runs_of
from tracks_dagster.defs.assets.declarations import LAUNCHPAD, first_try
from tracks_dagster.home import stored_projects
from tracks_dagster.projects.effects.registered import Registered, load_shipped
from tracks_dagster.track import names
from tracks_dagster.track.bodies import (
    CheckpointCadence,
    ComputeRequest,
    Program,
    RetentionRule,
    SnapshotRef,
)
from tracks_dagster.track.declared_fields import NAMES
from tracks_dagster.track.records import sha256_hex
from tracks_dagster.track.track import code_key
from tracks_dagster.wiring import App


@job
def noop() -> None:
    """Do nothing."""


def test_the_launchpad_has_every_field_of_a_declaration() -> None:
    parts = [LAUNCHPAD[part].config_type.inner_type.fields for part in ("retention", "cluster")]
    assert {*LAUNCHPAD, *parts[0], *parts[1]} >= NAMES


def test_the_launchpad_declares_nothing_without_an_intent(
    app: App, instance: DagsterInstance
) -> None:
    filled = {"ops": {"training_runs": {"config": {"run_id": "from-ui"}}}}
    with pytest.raises(DagsterInvalidConfigError, match='Missing required config entry "intent"'):
        materialize(
            [training_runs_of(load_shipped(EXAMPLES))],
            instance=instance,
            resources={"app": app},
            run_config=filled,
        )
    assert app.tracks.find_run("from-ui") is None


@pytest.mark.usefixtures("snapshots")
def test_the_job_of_the_launchpad_declares_a_run_and_opens_its_first_attempt(
    app: App, instance: DagsterInstance
) -> None:
    config = {"project": {"gpt": {"steps": 5}}, "intent": "See the launchpad work."}
    given = {"run_id": "from-ui", "workload_class": "urgent", **config}
    result = declare(app, instance, given)
    assert result.success
    state = app.tracks.run("from-ui")
    assert state.declared.config["steps"] == 5
    assert state.declared.workload_class == "urgent"
    assert state.open_attempt is not None


@pytest.mark.usefixtures("snapshots")
def test_the_launchpad_says_what_of_the_code_may_hold_keys(
    app: App, instance: DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = stored_projects.read_project_code
    remarks = ("Not stored with the code, being called like keys: .env.",)
    monkeypatch.setattr(
        stored_projects,
        "read_project_code",
        lambda *a, **b: replace(read(*a, **b), remarks=remarks),
    )
    result = declare(app, instance, {"run_id": "from-ui"})
    said = [each.user_message for each in instance.all_logs(result.run_id)]
    assert [each for each in said if "called like keys" in each] == list(remarks)


@pytest.mark.usefixtures("snapshots")
def test_a_run_is_named_by_the_dagster_run_that_declares_it_which_dagster_does_not_retry(
    app: App, instance: DagsterInstance
) -> None:
    result = declare(app, instance, {"project": {"gpt": {"steps": 5}}})
    run = instance.get_run_by_id(result.run_id)
    assert run is not None
    assert run.tags["dagster/max_retries"] == "0"
    run_id = run.tags[names.TAG_TRAINING_RUN]
    assert run_id == f"gpt-{app.now():%Y%m%d}-{result.run_id[:4]}"
    assert app.tracks.run(run_id).open_attempt is not None


def test_what_repeats_a_declaration_that_failed_declares_the_same_run(
    instance: DagsterInstance,
) -> None:
    """Retried by the instance or by a person; of a success a person wants another training run."""

    def run(parent: DagsterRun | None, status: DagsterRunStatus) -> DagsterRun:
        parent_id = None if parent is None else parent.run_id
        root_id = None if parent is None else parent.root_run_id or parent.run_id
        return instance.create_run_for_job(
            noop, parent_run_id=parent_id, root_run_id=root_id, status=status
        )

    failed, success = DagsterRunStatus.FAILURE, DagsterRunStatus.SUCCESS
    first = run(None, failed)
    second = run(first, failed)
    third = run(second, success)
    fourth = run(third, failed)
    fifth = run(fourth, DagsterRunStatus.STARTED)
    found = [
        first_try(instance, each).dagster_run_id for each in (first, second, third, fourth, fifth)
    ]
    assert found == [first.run_id] * 3 + [fourth.run_id] * 2
    instance.delete_run(fourth.run_id)
    assert first_try(instance, fifth).dagster_run_id == fourth.run_id  # still the one it repeats


@pytest.mark.usefixtures("snapshots")
def test_a_wrong_value_in_the_launchpad_is_refused_in_words_and_nothing_is_written(
    app: App, instance: DagsterInstance
) -> None:
    with pytest.raises(DagsterInvalidConfigError, match='unexpected config entry "leyers"'):
        declare(app, instance, {"run_id": "from-ui", "project": {"gpt": {"leyers": 2}}})
    given = {"run_id": "from-ui", "project": {"gpt": {"layers": 2}}, "config": {"lr": 0.1}}
    assert "write them below project" in description(declare(app, instance, given))
    result = declare(app, instance, {"run_id": "from-ui", "workload_class": "urgnt"})
    assert "did you mean urgent" in description(result)
    result = declare(app, instance, {"run_id": "from-ui", "checkpoint_every_steps": None})
    assert "checkpoints_may_be_off" in description(result)
    assert app.tracks.find_run("from-ui") is None


@pytest.mark.usefixtures("snapshots")
@pytest.mark.parametrize(
    ("text", "rules"),
    [
        (
            "submission: {required_fields: [on_call], required_parameters: {sweep: [warmup]}}\n"
            "retention: {keep_last: 5}\ncost: {max_cost: 200}\ntuning: {trials: 3}",
            [
                "submission.required_fields",
                "submission.required_parameters",
                "retention.keep_last",
                "cost.max_cost",
                "tuning.trials",
            ],
        ),
        ("monitoring: {notify_stages: [smoke]}", ["monitoring.notify_stages"]),
        ("scheduling: {teams: {vision: {devices: 2}}}", ["scheduling.teams"]),
    ],
)
def test_the_launchpad_obeys_the_policy(
    text: str, rules: list[str], app: App, instance: DagsterInstance
) -> None:
    home = app.settings.home
    (home / "policy.yaml").write_text(text)
    (home / "prices.yaml").write_text("currency: USD\nper_device_hour: {cpu: 3.6}\n")
    asked = {"workload_class": "sweep", "max_cost": 900.0, "retention": {"keep_last": 2}}
    refused = description(declare(app, instance, {"run_id": "from-ui", **asked}))
    assert re.findall(r"Refused by policy ([\w.]+):", refused) == rules
    assert app.tracks.find_run("from-ui") is None


@pytest.mark.usefixtures("snapshots")
def test_the_launchpad_says_which_checkpoints_are_kept(app: App, instance: DagsterInstance) -> None:
    rule = {"keep_last": 9, "metric": "lr", "milestone_every_steps": 100, "delete_after_s": 60.0}
    assert declare(app, instance, {"run_id": "from-ui", "retention": rule}).success
    declared = app.tracks.run("from-ui").declared
    assert declared.retention == RetentionRule(**rule)  # type: ignore[arg-type]
    refused = declare(app, instance, {"run_id": "from-ui-2", "retention": {"keep_last": 0}})
    assert "keep 1 to" in description(refused)
    assert app.tracks.find_run("from-ui-2") is None


@pytest.fixture
def source(app: App, snapshots: None) -> History:
    """A run that committed step 20 twice, by attempts 1 and 2, and keeps its own way."""
    dataset = app.tracks.find_dataset("aws-docs")
    assert dataset is not None
    history = History("r-0").declare(
        config=example_config({"steps": 40, "seed": 11}, ranks=2),
        trainer=code_key("r-0", sha256_hex(b"a tar")),
        program=Program(entry=("train.py",)),
        snapshot=SnapshotRef(dataset="aws-docs", snapshot_id=dataset.snapshots[0].body.snapshot_id),
        cadence=CheckpointCadence(every_steps=25, every_s=600.0),
        retention=RetentionRule(keep_last=7, metric="val"),
        compute=ComputeRequest(ranks=2, device_class="h200"),
        stage="full",
    )
    app.store.put(code_key("r-0", sha256_hex(b"a tar")), b"a tar")
    history.open().place().restore().commit(20).end("preempted", last_step=23)
    history.open(resume=None).place().restore().commit(20).end("preempted", last_step=23)
    return write(app, history)


def test_a_branch_from_the_launchpad_takes_over_what_is_left_out(
    source: History, app: App, instance: DagsterInstance
) -> None:
    config = {"branch_from": "r-0@20", "branch_from_attempt": 1, "retention": {"keep_best": 4}}
    assert declare(app, instance, {"run_id": "b-1", "checkpoint_every_steps": 10, **config}).success
    declared = app.tracks.run("b-1").declared
    assert declared.branched_from == source.state.checkpoints[0].ref
    assert declared.config == source.state.declared.config
    assert declared.cadence == CheckpointCadence(every_steps=10, every_s=600.0)
    assert declared.retention == RetentionRule(keep_last=7, keep_best=4, metric="val")
    assert declared.compute == ComputeRequest(ranks=2, device_class="h200")
    assert (declared.stage, declared.owner) == ("full", "dagster")
    assert app.tracks.run("r-0").checkpoints[0].pins == {"branch:b-1"}


@pytest.mark.usefixtures("source")
@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"branch_from": "r-0"}, "write RUN@STEP"),
        ({"branch_from_attempt": 1}, "give both"),
        ({"branch_from": "r-0@11"}, "it has: 20 (attempt 1)"),
        ({"branch_from": "nobody@20"}, "no training run 'nobody'"),
        ({"branch_from": "r-0@20", "project": {"tabular": {}}}, "name no project"),
    ],
)
def test_a_branch_that_cannot_be_is_refused_in_words(
    config: Mapping[str, object], words: str, app: App, instance: DagsterInstance
) -> None:
    refused = declare(app, instance, {"run_id": "b-1", **config})
    assert words in description(refused)
    assert app.tracks.find_run("b-1") is None


@pytest.fixture
def snapshots(app: App) -> None:
    """Committed snapshots of the text datasets, without their bytes."""
    for dataset in ("aws-docs", "aws-docs-heldout"):
        DatasetHistory(dataset).declare().commit().write_to(app.store)


def declare(
    app: App,
    instance: DagsterInstance,
    config: Mapping[str, object],
    *,
    projects: Iterable[Registered] = load_shipped(EXAMPLES),
) -> ExecuteInProcessResult:
    """Materialize the asset as it is filled in."""
    return materialize(
        [training_runs_of(projects)],
        instance=instance,
        resources={"app": app},
        run_config={"ops": {"training_runs": {"config": {"intent": "Try it.", **config}}}},
        raise_on_error=False,
    )


def test_what_makes_other_assets_too_declares_nothing(app: App, instance: DagsterInstance) -> None:
    @asset
    def aws_docs() -> None:
        """Stand in for a snapshot."""

    training_runs = training_runs_of(load_shipped(EXAMPLES))
    refused = materialize(
        [training_runs, aws_docs],
        instance=instance,
        resources={"app": app},
        run_config={"ops": {"training_runs": {"config": {"intent": "Try it."}}}},
        raise_on_error=False,
    )
    assert description(refused).startswith(
        "This Dagster run makes aws_docs as well, and in no order."
    )
    assert list(app.store.folders("runs/")) == []
    assert not training_runs.asset_deps[AssetKey("training_runs")]  # or Dagster asks: are you sure?


def description(refused: ExecuteInProcessResult) -> str:
    """Return the words with which the job failed."""
    failure = refused.failure_data_for_node("training_runs")
    assert failure is not None
    assert failure.user_failure_data is not None
    return failure.user_failure_data.description or ""

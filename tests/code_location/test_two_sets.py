"""Two sets of our definitions and a user's own of the same words live in one code location."""

from __future__ import annotations

from pathlib import Path

import dagster
import pytest
from dagster import (
    AssetKey,
    DagsterInstance,
    DefaultSensorStatus,
    Definitions,
    SensorResult,
    asset,
    build_sensor_context,
)

from tests.fakes import FakeOrchestrator
from tests.histories import History
from tests.plain_site import asset_of
from tracks_dagster.definitions import defs as plain
from tracks_dagster.factory import build_defs, merge
from tracks_dagster.settings import Settings
from tracks_dagster.track import names
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.names import Prefix
from tracks_dagster.wiring import App, build

TRACKS_YAML = """
name: churn-model
entry: train.py --lr={lr}
config: {lr: 0.1}
dataset: customers
schedule: {cron: "0 3 * * 1", on: new snapshot}
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "churn"
    folder.mkdir()
    (folder / "train.py").write_text("")
    (folder / "tracks.yaml").write_text(TRACKS_YAML)
    return folder


def of_a_user() -> Definitions:
    """Return definitions with words of ours."""
    words = ("datasets", "checkpoints", "evals", "receipts")
    made = [asset(name=word)(lambda: None) for word in words]
    return Definitions(assets=made, resources={"app": object()})


def test_two_prefixes_and_a_users_words_load_in_one_deployment(project: Path) -> None:
    both = merge(of_a_user(), build_defs([project], prefix="a"), build_defs([project], prefix="b"))
    Definitions.validate_loadable(both)
    repository = both.get_repository_def()
    for name in (names.TRAIN_ATTEMPT_JOB, names.EVALUATE_CHECKPOINT_JOB):
        assert {f"a_{name}", f"b_{name}"} <= set(repository.job_names)
    sensors = {each.name for each in repository.sensor_defs}
    assert {"a_watch_attempts", "b_new_snapshot_retrains_churn_model"} <= sensors
    keys = repository.asset_graph.get_all_asset_keys()
    assert {AssetKey("evals"), AssetKey(["a", "evals"]), AssetKey(["b", "evals"])} <= keys
    for key in (AssetKey([prefix, "evals"]) for prefix in "ab"):
        partitions = repository.asset_graph.get(key).partitions_def
        assert isinstance(partitions, dagster.DynamicPartitionsDefinition)
        assert partitions.name == "_".join(key.path)


def test_without_a_prefix_and_with_the_examples_every_name_is_as_it_ever_was() -> None:
    made = build_defs(examples=True).get_repository_def()
    before = plain.get_repository_def()
    assert made.asset_graph.get_all_asset_keys() <= before.asset_graph.get_all_asset_keys()
    assert set(made.job_names) <= set(before.job_names)
    assert "app" in made.get_top_level_resources()


def test_what_the_builder_says_of_all_assets_and_sensors_counts(project: Path) -> None:
    made = build_defs(
        [project],
        prefix="a",
        owners=["team:ml"],
        group="ml",
        tags={"cost": "gpu"},
        sensors_run=False,
        tick_s=30,
    ).get_repository_def()
    for node in made.asset_graph.asset_nodes:
        assert (list(node.owners), node.group_name) == (["team:ml"], "ml")
        assert node.tags["cost"] == "gpu"
    for each in made.sensor_defs:
        assert each.default_status is DefaultSensorStatus.STOPPED
        assert each.minimum_interval_seconds >= 30


@pytest.mark.parametrize("tick_s", [0, 4, 61])
def test_ticks_are_five_to_sixty_seconds_apart(tick_s: int) -> None:
    with pytest.raises(InvalidInput, match=rf"tick_s: {tick_s} is not 5 to 60 seconds"):
        build_defs(tick_s=tick_s)


def test_what_a_projects_file_says_of_its_assets_counts_before_the_builder(project: Path) -> None:
    file = project / "tracks.yaml"
    file.write_text(file.read_text() + "owners: [team:churn]\ngroup: churn\ntags: {cost: cpu}\n")
    made = build_defs([project], owners=["team:ml"], group="ml", tags={"cost": "gpu", "of": "ml"})
    graph = made.get_repository_def().asset_graph
    training = graph.get(AssetKey(["churn-model", "training"]))
    assert (list(training.owners), training.group_name) == (["team:churn"], "churn")
    assert {"cost": "cpu", "of": "ml"}.items() <= training.tags.items()
    evals = graph.get(AssetKey("evals"))
    assert (list(evals.owners), evals.group_name, evals.tags["cost"]) == (["team:ml"], "ml", "gpu")


def test_a_sensor_of_a_set_asks_for_its_own_job_partitions_and_resources(
    project: Path, app: App, instance: DagsterInstance
) -> None:
    History("r-1").declare().open().write_to(app.store)
    app.projector.scan()
    made = build_defs([project], prefix="a")
    ours = build(
        Settings(home=app.settings.home, store_url=app.settings.store_url, prefix=Prefix("a"))
    )
    sensor = made.get_repository_def().get_sensor_def("a_launch_attempts")
    assert sensor.job_name == "a_train_attempt"
    resources = {"a_app": ours, "a_orchestrator": FakeOrchestrator()}
    with build_sensor_context(instance=instance, resources=resources, definitions=made) as context:
        result = sensor(context)
    assert isinstance(result, SensorResult)
    [added] = result.dynamic_partitions_requests or ()
    assert added.partitions_def_name == "a_training_attempts"


def test_a_receipt_of_a_set_is_shown_under_its_prefix(
    project: Path, app: App, instance: DagsterInstance
) -> None:
    run = History("r-1").declare().open().supervise("dead").place().restore().commit(40)
    run.end("completed").finish().write_to(app.store)
    app.projector.scan()
    made = build_defs([project], prefix="a")
    ours = build(
        Settings(home=app.settings.home, store_url=app.settings.store_url, prefix=Prefix("a"))
    )
    instance.add_dynamic_partitions("a_training_attempts", ["r-1/a01"])
    done = dagster.materialize(
        [asset_of(made, AssetKey(["a", "receipts"]))],
        instance=instance,
        partition_key="r-1/a01",
        resources={"a_app": ours, "a_orchestrator": FakeOrchestrator()},
    )
    [event] = done.get_asset_materialization_events()
    assert event.asset_key == AssetKey(["a", "receipts"])


@pytest.mark.parametrize("prefix", ["A", "a-b", "1a", "a/b", "a" * 31])
def test_a_prefix_that_cannot_begin_names_is_refused_at_load(prefix: str) -> None:
    with pytest.raises(InvalidInput, match="cannot begin names in Dagster"):
        build_defs(prefix=prefix)


def test_two_projects_of_one_name_are_refused_at_load_with_both_places(
    project: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    for file in ("train.py", "tracks.yaml"):
        (other / file).write_text((project / file).read_text())
    with pytest.raises(InvalidInput) as refused:
        build_defs([project, other])
    assert str(project) in str(refused.value)
    assert str(other) in str(refused.value)


def test_a_secret_is_not_given_in_code() -> None:
    with pytest.raises(InvalidInput, match="give it by the environment"):
        build_defs(settings={"TRACKS_POSTGRES_URL": "postgresql://me:hunter2@host/db"})


def test_a_name_that_two_sets_have_is_refused_at_load_with_both_places(project: Path) -> None:
    @asset(name="evals")
    def mine() -> None: ...

    with pytest.raises(InvalidInput) as refused:
        merge(Definitions(assets=[mine]), build_defs([project]))
    here = Path(__file__).name
    line = next(
        number
        for number, text in enumerate(Path(__file__).read_text().splitlines(), start=1)
        if text.strip() == '@asset(name="evals")'
    )
    words = str(refused.value)
    assert f"asset evals: {Path(__file__)}:{line} and build_defs at " in words
    assert here in words.split("build_defs at ", 1)[1]


def test_a_partition_set_of_the_same_name_is_refused_at_load(project: Path) -> None:
    own_keys = dagster.DynamicPartitionsDefinition(name="checkpoints")

    @asset(name="of_mine", partitions_def=own_keys)
    def mine() -> None: ...

    with pytest.raises(InvalidInput, match=r"partition set checkpoints: .*test_two_sets.py:"):
        merge(Definitions(assets=[mine]), build_defs([project]))
    merge(Definitions(assets=[mine]), build_defs([project], prefix="a"))


def test_two_sets_of_one_prefix_are_refused_at_load(project: Path) -> None:
    first = build_defs([project], prefix="a")
    second = build_defs([project], prefix="a")
    with pytest.raises(
        InvalidInput, match=r"(?s)asset a/datasets: build_defs at .* and build_defs"
    ):
        merge(first, second)

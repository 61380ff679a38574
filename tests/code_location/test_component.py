"""The component of a trained project, in a project of a user's as `dg` makes one."""

from __future__ import annotations

import re
import tomllib
import traceback
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest
from dagster import AssetKey, Definitions
from dagster.components.testing.utils import DefsFolderSandbox, create_defs_folder_sandbox

from tracks_dagster.components import TrainedProject
from tracks_dagster.projects.effects.project_file import COMPONENT, find_project, read_project
from tracks_dagster.track.errors import SettingsError

ROOT = Path(__file__).resolve().parents[2]
# Dagster's own ways, when it reads a component's file.
pytestmark = pytest.mark.filterwarnings(
    "ignore:.parse_obj_as. is deprecated",
    "ignore::dagster.BetaWarning",
    "ignore::dagster.PreviewWarning",
)


@pytest.fixture
def sandbox() -> Iterator[DefsFolderSandbox]:
    with create_defs_folder_sandbox() as made:
        yield made


def test_dg_finds_it_by_its_entry_point() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    points = tomllib.loads(text)["project"]["entry-points"]["dagster_dg_cli.registry_modules"]
    module, _, name = COMPONENT.rpartition(".")
    assert module in points.values()
    assert getattr(import_module(module), name) is TrainedProject
    assert "entry" in TrainedProject.get_model_cls().model_json_schema()["properties"]


def test_what_it_scaffolds_loads_as_a_project_and_is_one_for_tracks_run_too(
    sandbox: DefsFolderSandbox,
) -> None:
    folder = sandbox.scaffold_component(TrainedProject, defs_path="churn")
    assert (folder / "train.py").is_file()
    assert find_project(folder / "deeper") == folder
    assert read_project(folder).name == "churn"
    with sandbox.build_all_defs() as made:
        keys = made.resolve_asset_graph().get_all_asset_keys()
    assert {AssetKey(["churn", "training"]), AssetKey(["churn", "model"])} <= keys


def write(sandbox: DefsFolderSandbox, name: str, *lines: str) -> Path:
    """Scaffold a project and write its file again, so that lines are known."""
    folder = sandbox.scaffold_component(TrainedProject, defs_path=name)
    (folder / "defs.yaml").write_text("\n".join([f"type: {COMPONENT}", "attributes:", *lines]))
    return folder


def of(name: str, *more: str) -> list[str]:
    return [f"  name: {name}", "  entry: train.py", *more]


def test_projects_of_one_prefix_share_one_set_and_those_of_two_stay_apart(
    sandbox: DefsFolderSandbox,
) -> None:
    write(sandbox, "one", *of("one", "  prefix: ml"))
    write(sandbox, "two", *of("two", "  prefix: ml"))
    write(sandbox, "other", *of("other"))
    with sandbox.build_all_defs() as made:
        Definitions.validate_loadable(made)
        repository = made.get_repository_def()
    keys = repository.asset_graph.get_all_asset_keys()
    expected = {("ml", "one", "model"), ("ml", "two", "model"), ("other", "model")}
    assert {AssetKey(list(parts)) for parts in expected} <= keys
    jobs = [name for name in repository.job_names if name.endswith("train_attempt")]
    assert sorted(jobs) == ["ml_train_attempt", "train_attempt"]


def test_the_key_on_of_a_schedule_means_what_it_says(sandbox: DefsFolderSandbox) -> None:
    write(sandbox, "one", *of("one", "  dataset: d", "  schedule: {on: new snapshot}"))
    with sandbox.build_all_defs() as made:
        sensors = {each.name for each in made.get_repository_def().sensor_defs}
    assert "new_snapshot_retrains_one" in sensors


def test_where_the_files_of_a_dataset_are_is_an_edge_and_a_condition(
    sandbox: DefsFolderSandbox,
) -> None:
    source = "  datasets: {customers: {path: data, deps: [raw/customers], automation: eager}}"
    folder = write(sandbox, "one", *of("one", "  dataset: customers", source))
    assert read_project(folder).dataset == "customers"
    with sandbox.build_all_defs() as made:
        node = made.resolve_asset_graph().get(AssetKey(["datasets", "customers"]))
    assert AssetKey(["raw", "customers"]) in node.parent_keys
    assert node.automation_condition is not None


def test_two_projects_that_say_where_one_dataset_is_are_refused_with_both_places(
    sandbox: DefsFolderSandbox,
) -> None:
    for name in ("one", "two"):
        write(sandbox, name, *of(name, "  datasets: {customers: {path: data}}"))
    with pytest.raises(Exception, match="Error") as refused, sandbox.build_all_defs():
        pass
    shown = "".join(traceback.format_exception(refused.value))
    assert re.search(r"customers is given in .*one/defs.yaml and in .*two/defs.yaml", shown)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("  ranks: 0", "write 1 or more"),
        ("  rank: 2", "rank"),
        ("  prefix: a-b", "cannot begin names"),
        ("  upstream: dbt", "is not a list"),
        ("  datasets: {d: {path: data, automation: often}}", "write eager, or a cron"),
        ("  datasets: {d: {paths: data}}", "paths"),
    ],
)
def test_an_attribute_that_is_wrong_is_shown_with_its_line(
    sandbox: DefsFolderSandbox, line: str, words: str
) -> None:
    write(sandbox, "one", *of("one", line))
    with pytest.raises(Exception, match="Error while loading") as refused, sandbox.build_all_defs():
        pass
    shown = "".join(traceback.format_exception(refused.value))
    assert "defs.yaml:5" in shown
    assert words in shown


def test_what_two_attributes_make_wrong_is_refused_with_a_line_too(
    sandbox: DefsFolderSandbox,
) -> None:
    folder = write(sandbox, "one", *of("one", "  schedule: {on: new snapshot}"))
    with pytest.raises(SettingsError, match=r"line 5.*name their dataset"):
        read_project(folder)

"""Tracks in a user's own Dagster, in process: training, a model, batch scoring, a sensor."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from dagster import (
    AssetExecutionContext,
    AssetIn,
    AssetKey,
    AssetSpec,
    DagsterInstance,
    ExecuteInProcessResult,
    MaterializeResult,
    SensorEvaluationContext,
    SkipReason,
    asset,
    build_sensor_context,
    materialize,
    sensor,
)

from tests.cli.conftest import Call
from tests.stories import RUN_ID, Story
from tracks_dagster import resource as resource_module
from tracks_dagster.client import Model, Run, Tracks
from tracks_dagster.defs.assets.declarations import FirstTry
from tracks_dagster.resource import PromotedModels, TracksResource

# Dagster's own, where a resource with config is inside another one.
pytestmark = pytest.mark.filterwarnings("ignore:InitResourceContext.dagster_run:DeprecationWarning")
MODEL = AssetSpec("gpt_model")
NAMED = AssetIn(
    "gpt_model", input_manager_key="models", metadata={"project": "gpt", "alias": "best"}
)


@asset(ins={"gpt_model": NAMED})
def scores(gpt_model: Path) -> MaterializeResult[None]:
    """Score a batch with what was promoted."""
    assert (gpt_model / "weights.pt").is_file()
    return MaterializeResult(metadata={"rows": 3})


@pytest.fixture
def resource(story: Story, home: Path) -> TracksResource:
    return TracksResource(home=str(home), by="ann")


@pytest.fixture
def instance() -> Iterator[DagsterInstance]:
    with DagsterInstance.ephemeral() as found:
        yield found


def score(
    resource: TracksResource, instance: DagsterInstance, scored: Any = scores
) -> ExecuteInProcessResult:
    resources = {"models": PromotedModels(tracks=resource)}
    return materialize(
        [scored, MODEL], resources=resources, instance=instance, raise_on_error=False
    )


def failure_of(result: ExecuteInProcessResult) -> str:
    [event] = [each for each in result.all_events if each.is_step_failure]
    error = event.step_failure_data.error
    assert error is not None
    return f"{error.message} {error.cause.message if error.cause else ''}"


def test_a_promoted_model_is_handed_to_the_asset_that_scores_with_it(
    resource: TracksResource, instance: DagsterInstance
) -> None:
    result = score(resource, instance)
    assert result.success
    [seen] = [each for each in result.all_events if each.event_type_value == "ASSET_OBSERVATION"]
    assert seen.asset_key == AssetKey("gpt_model")
    shown = seen.asset_observation_data.asset_observation.metadata
    assert (shown["run"].value, shown["step"].value) == (RUN_ID, 40)


@pytest.mark.parametrize("kind", [Model, dict])
def test_the_annotation_of_the_parameter_chooses_what_is_handed_over(
    resource: TracksResource, instance: DagsterInstance, kind: type
) -> None:
    got = []

    @asset(ins={"gpt_model": NAMED})
    def use(gpt_model: kind) -> None:  # type: ignore[valid-type]
        got.append(type(gpt_model))

    assert score(resource, instance, use).success
    assert got == [kind]


def test_a_model_that_was_put_in_quarantine_while_the_step_waited_is_not_scored_with(
    resource: TracksResource, instance: DagsterInstance, call: Call
) -> None:
    call("quarantine", f"{RUN_ID}@40", "--why", "bad data")
    result = score(resource, instance)
    assert "gpt/best may not be used" in failure_of(result)


def test_an_input_that_names_no_model_is_refused_with_what_to_write(
    resource: TracksResource, instance: DagsterInstance
) -> None:
    @asset(ins={"gpt_model": AssetIn("gpt_model", input_manager_key="models")})
    def use(gpt_model: Path) -> None: ...

    assert 'metadata={"project"' in failure_of(score(resource, instance, use))


def test_an_asset_of_a_user_materializes_a_model_with_its_hash_as_data_version(
    resource: TracksResource, instance: DagsterInstance
) -> None:
    @asset
    def latest(tracks: TracksResource) -> MaterializeResult[None]:
        return tracks.materialized(tracks.client().promoted("gpt", "best"))

    result = materialize([latest], resources={"tracks": resource}, instance=instance)
    [event] = result.get_asset_materialization_events()
    made = event.materialization
    sha256 = resource.client().promoted("gpt", "best").manifest_sha256
    assert made.tags is not None
    assert made.tags["dagster/data_version"] == sha256
    assert made.metadata["model"].value == "gpt/best"


def test_an_asset_trains_and_its_repeated_step_waits_for_the_same_run(
    resource: TracksResource,
    instance: DagsterInstance,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "train.py").write_text("print('hello')\n")
    done = Tracks(home=resource.home).run(RUN_ID).wait(60)
    waited: list[str] = []

    def wait(run: Run, timeout_s: float, **_: object) -> dict[str, Any]:
        waited.append(run.run_id)
        if len(waited) == 1:
            raise ConnectionError("the worker died")
        return {**done, "run_id": run.run_id}

    monkeypatch.setattr(Run, "wait", wait)

    @asset
    def trained(context: AssetExecutionContext, tracks: TracksResource) -> MaterializeResult[None]:
        return tracks.train(context, tmp_path / "train.py", intent="See it.")

    given = {"resources": {"tracks": resource}, "instance": instance}
    first = materialize([trained], raise_on_error=False, **given)  # type: ignore[arg-type]
    assert not first.success
    begun = FirstTry(dagster_run_id=first.run_id, at=datetime(2026, 2, 1, tzinfo=UTC))
    monkeypatch.setattr(resource_module, "first_try", lambda *_: begun)  # what it repeats
    second = materialize([trained], **given)  # type: ignore[arg-type]
    assert second.success
    assert len(set(waited)) == 1
    [event] = second.get_asset_materialization_events()
    assert event.materialization.metadata["run"].value == waited[0]


def test_a_sensor_of_a_user_asks_the_client(resource: TracksResource) -> None:
    @sensor(job_name="train")
    def when_new(context: SensorEvaluationContext, tracks: TracksResource) -> SkipReason:
        return SkipReason(tracks.client().promoted("gpt", "best").name)

    context = build_sensor_context(resources={"tracks": resource})
    answer = when_new(context)
    assert isinstance(answer, SkipReason)
    assert answer.skip_message == f"{RUN_ID}@40"

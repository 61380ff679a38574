"""Tracks in a Dagster that a user has: a resource and an IO manager. Public: docs/client.md.

    from tracks_dagster.resource import PromotedModels, TracksResource

Ops, assets and sensors get the client of `tracks_dagster.client`; an asset's body declares a run and
waits for it, or reads what was promoted.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_origin

from dagster import (
    AssetExecutionContext,
    ConfigurableIOManager,
    ConfigurableResource,
    DataVersion,
    Failure,
    InputContext,
    MaterializeResult,
    OpExecutionContext,
    OutputContext,
    ResourceDependency,
)

from tracks_dagster.client import WAIT_S, Model, Tracks
from tracks_dagster.defs.assets.declarations import first_try
from tracks_dagster.track.errors import InvalidInput, TracksError
from tracks_dagster.track.records import Json
from tracks_dagster.track.states.lifecycle import RunLifecycle


class TracksResource(ConfigurableResource[Tracks]):
    """The client as a resource; what is left out is as in the environment (docs/settings.md)."""

    home: str | None = None
    store: str | None = None
    postgres_url: str | None = None
    by: str | None = None

    def client(self) -> Tracks:
        """Return the client; raises SettingsError."""
        return Tracks(home=self.home, store=self.store, postgres_url=self.postgres_url, by=self.by)

    def train(
        self,
        context: AssetExecutionContext | OpExecutionContext,
        project: str | Path,
        *,
        timeout_s: float = WAIT_S,
        **given: Any,
    ) -> MaterializeResult[None]:
        """Declare a run, wait for its end and return it as what the asset materialized.

        given: as of `Tracks.submit`. A step that Dagster tries again, or that is executed again because
        it failed, waits for the same run. Raises Failure where the run did not succeed.
        """
        is_op = isinstance(context, OpExecutionContext)
        op = context if is_op else context.op_execution_context
        step = "/".join(op.op_handle.path)
        first = first_try(context.instance, context.run).dagster_run_id
        try:
            run = self.client().submit(
                project, **{"key": f"{first}/{step}", "remark": context.log.warning, **given}
            )
            context.log.info(f"Waits for the training run {run.run_id}.")
            outcome = run.wait(timeout_s, report=context.log.info)
        except InvalidInput as error:
            raise Failure(str(error), allow_retries=False) from error
        if outcome["state"] != RunLifecycle.SUCCEEDED:
            why = run.status()["why"]
            raise Failure(f"{run.run_id} is {outcome['state']}: {why}", allow_retries=False)
        return MaterializeResult(metadata=_metadata_of_run(outcome))

    def materialized(self, model: Model) -> MaterializeResult[None]:
        """Return a model as what an asset materialized: its data version is the manifest's sha256."""
        return MaterializeResult(
            data_version=DataVersion(model.manifest_sha256), metadata=metadata_of(model)
        )


class PromotedModels(ConfigurableIOManager):
    """Hands what a project's alias was given to last to the asset that reads it.

    The input's metadata names it: `AssetIn(input_manager_key="models", metadata={"project": "mine",
    "alias": "production"})`. The annotation of the parameter chooses: `Model`, `Path` (a folder, every
    byte verified) or `dict` (name → tensor). It is asked when the step starts: what was put in
    quarantine, or has lost the alias, since the step was asked for is not handed over.
    """

    tracks: ResourceDependency[TracksResource]

    def load_input(self, context: InputContext) -> Model | Path | dict[str, Any]:
        """Return the model; the asset's page then says which it was. Raises Failure."""
        project, alias = _named(context.definition_metadata)
        try:
            model = self.tracks.client().promoted(project, alias)
            context.add_input_metadata(metadata_of(model))
            kind = context.dagster_type.typing_type
            if kind is Path:
                return model.path()
            return model.state_dict() if dict in (kind, get_origin(kind)) else model
        except TracksError as error:
            raise Failure(str(error), allow_retries=not isinstance(error, InvalidInput)) from error

    def handle_output(self, context: OutputContext, obj: object) -> None:
        """Raise Failure: a model is promoted by its track, not written by an asset."""
        raise Failure(
            f"{context.get_identifier()} cannot be stored as a promoted model: `tracks promote`, or "
            "the rule in a project's tracks.yaml, promotes one. Give the asset another io_manager_key.",
            allow_retries=False,
        )


def metadata_of(model: Model) -> dict[str, Any]:
    """Return what Dagster's pages show of a model."""
    return {
        "model": f"{model.project}/{model.alias}",
        "run": model.run_id,
        "step": model.step,
        "promoted by": model.decided_by,
        "why": model.why,
        "manifest_sha256": model.manifest_sha256,
        **{f"metrics/{name}": value for name, value in sorted(model.metrics.items())},
    }


def _metadata_of_run(outcome: Mapping[str, Json]) -> dict[str, Any]:
    final, promotion = outcome["final"] or {}, outcome["promotion"] or {}
    found = {
        "run": outcome["run_id"],
        "attempts": len(outcome["attempts"]),
        "step": final.get("step"),
        "manifest_sha256": final.get("manifest_sha256"),
        "weights_sha256": final.get("weights_sha256"),
        "promoted to": promotion.get("alias"),
    }
    return {name: value for name, value in found.items() if value is not None}


def _named(metadata: Mapping[str, Any]) -> tuple[str, str]:
    """Return the project and the alias that an input names; raises Failure."""
    project, alias = metadata.get("project"), metadata.get("alias")
    if not isinstance(project, str) or not isinstance(alias, str):
        raise Failure(
            f"The input names no promoted model: its metadata is {dict(metadata)}. Write "
            'AssetIn(metadata={"project": "mine", "alias": "production"}, input_manager_key=…).',
            allow_retries=False,
        )
    return project, alias

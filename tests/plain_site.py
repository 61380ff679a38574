"""Each of our definitions by itself, as a deployment without a prefix has it."""

from __future__ import annotations

from collections.abc import Iterable

from dagster import (
    AssetKey,
    AssetMaterialization,
    AssetsDefinition,
    Definitions,
    ExecuteInProcessResult,
)

from tracks_dagster.defs.assets import attempts, checkpoints, declarations, review
from tracks_dagster.defs.assets import datasets as own_files
from tracks_dagster.defs.assets import evals as measured
from tracks_dagster.defs.assets import receipts as receipt_assets
from tracks_dagster.defs.assets.snapshots import snapshots
from tracks_dagster.defs.sensors import deciders
from tracks_dagster.defs.sensors import launch_attempts as launching
from tracks_dagster.defs.sensors import run_evals as evaluating
from tracks_dagster.defs.sensors import show_datasets as showing
from tracks_dagster.defs.sensors import show_studies as showing_studies
from tracks_dagster.defs.sensors import watch_attempts as watching
from tracks_dagster.defs.site import Site
from tracks_dagster.projects.effects.registered import Registered
from tracks_dagster.wings.lab.edge import weekly_drills as drills
from tracks_dagster.wings.watch.edge import export_curves as exporting
from tracks_dagster.wings.watch.edge import notifications

SITE = Site(has_examples=True)


def site_of(projects: Iterable[Registered]) -> Site:
    """Return a site that trains these."""
    return Site(has_examples=True, projects=tuple(projects))


def training_runs_of(projects: Iterable[Registered]) -> AssetsDefinition:
    """Return the asset that declares runs of these."""
    return declarations.training_runs(site_of(projects))


def materialized(done: ExecuteInProcessResult, *key: str) -> AssetMaterialization:
    """Return the one materialization of an asset in a Dagster run that may show others too."""
    events = done.get_asset_materialization_events()
    [found] = [each for each in events if each.asset_key == AssetKey(list(key))]
    return found.materialization


def asset_of(made: Definitions, key: AssetKey) -> AssetsDefinition:
    """Return one asset of a set, without the set's resources."""
    assets = (each for each in made.assets or () if isinstance(each, AssetsDefinition))
    return next(each for each in assets if key in each.keys)


aws_docs, _, flights, _ = snapshots(SITE)
datasets = own_files.datasets(SITE)
declare_training_run = declarations.declare_training_run(SITE)
training_attempts = attempts.training_attempts(SITE)
receipts = receipt_assets.receipts(SITE)
evals = measured.evals(SITE)
collect_checkpoints = checkpoints.collect_checkpoints(SITE)
collect_checkpoints_every_15_minutes = checkpoints.collect_checkpoints_every_15_minutes(SITE)
play_drills = drills.play_drills(SITE)
drill_every_week = drills.drill_every_week(SITE)
review_every_day = review.review_every_day(SITE)

launch_attempts = launching.launch_attempts(SITE)
watch_attempts = watching.watch_attempts(SITE)
run_evals = evaluating.run_evals(SITE)
show_datasets = showing.show_datasets(SITE)
show_studies = showing_studies.show_studies(SITE)
send_notifications = notifications.send_notifications(SITE)
export_curves = exporting.export_curves(SITE)
retry_preempted, retry_oom, retry_numerics, retry_infrastructure, tune_studies = (
    deciders.decider_sensors(SITE)
)

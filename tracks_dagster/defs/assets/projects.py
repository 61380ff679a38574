"""The assets of each project: its training, which declares a run, its models, and its datasets.

A model is materialized at each promotion, also by a person: `run_evals` shows it by the record. So what
a user makes of a model has `deps=["PROJECT/model"]`, and what changes a project's data trains it again
where the condition of `PROJECT/training` says so.
"""

from collections.abc import Iterator

from dagster import (
    AssetCheckExecutionContext,
    AssetCheckResult,
    AssetChecksDefinition,
    AssetCheckSeverity,
    AssetCheckSpec,
    AssetKey,
    AssetsDefinition,
    AssetSpec,
    Failure,
    FreshnessPolicy,
    ResourceParam,
    multi_asset_check,
)

from tracks_dagster.defs.assets.datasets import dataset_of_own
from tracks_dagster.defs.assets.declarations import project_training
from tracks_dagster.defs.site import Site
from tracks_dagster.projects.model_checks import check_model
from tracks_dagster.projects.project import ALIAS, Project
from tracks_dagster.projects.schedule import Schedule, longest_gap
from tracks_dagster.track import names
from tracks_dagster.wiring import App

_NEWEST = (
    "select p.run_id, p.seq from promotions p join training_runs r on r.run_id = p.run_id "
    "where p.promoted and p.alias = :alias and r.model_family = :project "
    "order by p.decided_at desc, p.seq desc limit 1"
)
WARN, FAIL = 1.5, 2  # gaps of the schedule without a promotion after which a model is not fresh


def assets_of_projects(site: Site) -> Iterator[AssetsDefinition | AssetSpec]:
    """Yield the assets of each project that can be read, and of each dataset of theirs once."""
    for project in site.trained:
        yield project_training(site, project)
        yield from (_model(site, project, alias) for alias in site.aliases(project))
    for dataset in site.own_datasets:
        yield dataset_of_own(site, dataset)


def model_checks(site: Site) -> Iterator[AssetChecksDefinition]:
    """Yield the checks of each model: what its project's promotion and evals say of the checkpoint.

    `run_evals` makes them with each promotion; executed by hand they look at the record again.
    """
    for project in site.trained:
        for alias in site.aliases(project):
            if project.promotion is not None or project.evals:
                yield _checks(site, project, alias)


def _checks(site: Site, project: Project, alias: str) -> AssetChecksDefinition:
    key = site.model_key(project, alias)

    def look(
        context: AssetCheckExecutionContext, app: ResourceParam[App]
    ) -> Iterator[AssetCheckResult]:
        found = app.ledger.query(_NEWEST, {"project": project.name, "alias": alias})
        if not found:
            raise Failure(f"No checkpoint of {project.name} has had the alias {alias} yet.")
        state = app.tracks.run(found[0]["run_id"])
        made = next(each for each in state.promotions if each.seq == found[0]["seq"])
        for each in check_model(project, state, made.body):
            yield AssetCheckResult(
                asset_key=key,
                check_name=each.name,
                passed=each.passed,
                severity=AssetCheckSeverity.WARN,
                description=each.words,
            )

    name = names.dagster_name("_".join((project.name, alias, "checks")))
    return multi_asset_check(name=site.name(name), specs=list(_specs(project, key)))(
        site.body(look)
    )


def _specs(project: Project, key: AssetKey) -> Iterator[AssetCheckSpec]:
    if project.promotion is not None:
        yield AssetCheckSpec(
            names.MEETS_ITS_RULE,
            asset=key,
            description=f"{project.promotion.metric} of {project.promotion.suite} is as good as its "
            "project asks. A warning where a person promoted it nevertheless.",
        )
    for each in project.evals:
        yield AssetCheckSpec(
            names.eval_check(each.name),
            asset=key,
            description=f"The eval {each.name} has completed on exactly these weights. A warning where "
            "it has not.",
        )


def _model(site: Site, project: Project, alias: str) -> AssetSpec:
    rule = ALIAS if project.promotion is None else project.promotion.alias
    measured = (names.CHECKPOINT_PARTITIONS, names.EVAL_PARTITIONS)
    return AssetSpec(
        key=site.model_key(project, alias),
        deps=[
            site.key(project.name, names.TRAINING),
            # For the graph alone: which checkpoint it is, and how good, its metadata says.
            *map(site.shown_after, measured),
        ],
        group_name=project.assets.group or names.PROJECTS_GROUP,
        kinds=set(project.assets.kinds or ("pytorch",)),
        owners=list(project.assets.owners or ("team:training",)),
        tags={**project.assets.tags, names.TAG_PROJECT: project.name},
        freshness_policy=_freshness(project.schedule) if alias == rule else None,
        description=(
            f"The checkpoint of {project.name} that has the alias {alias}, materialized at each "
            "promotion: its data version is the sha256 of its manifest.\n\n"
            "Nothing computes it: a promotion is a record, by the project's rule or by `tracks "
            "promote`. Which run and step, what was measured and who decided is in the metadata of the "
            "newest materialization; the decisions on all projects are in `promotions`."
        ),
    )


def _freshness(schedule: Schedule | None) -> FreshnessPolicy | None:
    """Return how old the model may be by the gaps of its cron; None without a promise.

    A schedule that trains on new data only promises nothing by the clock.
    """
    if schedule is None or schedule.cron is None or schedule.only_if_snapshot_differs:
        return None
    gap = longest_gap(schedule.cron)
    return FreshnessPolicy.time_window(fail_window=gap * FAIL, warn_window=gap * WARN)

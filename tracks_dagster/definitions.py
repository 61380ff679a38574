"""The Dagster code location: what Dagster loads, put together in one place.

The only module that imports assets, resources and sensors. It loads neither torch nor the cluster's
client, and touches no store: what it names is built when it is first used. It reads the files of this
home's projects, for their schedules and the launchpad: another one is there after a reload.
"""

from dagster import Definitions

from tracks_dagster.defs.assets.attempts import train_attempt, training_attempts
from tracks_dagster.defs.assets.checkpoints import (
    checkpoints,
    collect_checkpoints,
    collect_checkpoints_every_15_minutes,
)
from tracks_dagster.defs.assets.datasets import datasets
from tracks_dagster.defs.assets.declarations import declare_training_run, training_runs_of
from tracks_dagster.defs.assets.drills import drill_every_week, play_drills
from tracks_dagster.defs.assets.evals import evals, evaluate_checkpoint, promotions
from tracks_dagster.defs.assets.receipts import receipts
from tracks_dagster.defs.assets.review import incident_review, review_every_day, review_incidents
from tracks_dagster.defs.assets.snapshots import SNAPSHOTS
from tracks_dagster.defs.resources.application import RESOURCES
from tracks_dagster.defs.sensors.deciders import (
    retry_infrastructure,
    retry_numerics,
    retry_oom,
    retry_preempted,
    tune_studies,
    watch_health,
)
from tracks_dagster.defs.sensors.launch_attempts import launch_attempts
from tracks_dagster.defs.sensors.retraining import retraining_schedules, retraining_sensors
from tracks_dagster.defs.sensors.run_evals import run_evals
from tracks_dagster.defs.sensors.show_datasets import show_datasets
from tracks_dagster.defs.sensors.watch_attempts import watch_attempts
from tracks_dagster.settings import usable_projects
from tracks_dagster.wing import load, wings

PROJECTS = usable_projects()
OF_WINGS = [
    each
    for package, wing in wings().items()
    for module in wing.sensors
    for each in load(package, module).sensors()
]

defs = Definitions(
    assets=[
        *SNAPSHOTS,
        datasets,
        training_runs_of(PROJECTS),
        training_attempts,
        receipts,
        checkpoints,
        evals,
        promotions,
        incident_review,
    ],
    jobs=[
        train_attempt,
        evaluate_checkpoint,
        declare_training_run,
        collect_checkpoints,
        review_incidents,
        play_drills,
    ],
    schedules=[
        *retraining_schedules(PROJECTS),
        collect_checkpoints_every_15_minutes,
        review_every_day,
        drill_every_week,
    ],
    sensors=[
        launch_attempts,
        retry_infrastructure,
        retry_numerics,
        retry_oom,
        retry_preempted,
        run_evals,
        show_datasets,
        tune_studies,
        watch_attempts,
        watch_health,
        *retraining_sensors(PROJECTS),
        *OF_WINGS,
    ],
    resources=RESOURCES,
)

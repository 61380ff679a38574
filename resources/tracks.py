"""What assets and sensors get: the application that wiring built, and Dagster as services see it.

They ask for it by parameter: `app: ResourceParam[App]`, `orchestrator: ResourceParam[Orchestrator]`.
Built at first use, once per process and settings, so that loading definitions touches nothing.
"""

from functools import cache

from dagster import DagsterInstance, InitResourceContext, resource

from resources.orchestrator import DagsterOrchestrator
from tracks_dagster.attempts.ports import Orchestrator
from tracks_dagster.clean_errors import without_secrets
from tracks_dagster.settings import Settings
from tracks_dagster.wiring import App, build


@resource(description="The application; every setting comes from the environment.")
@without_secrets
def app_resource(_context: InitResourceContext) -> App:
    """Return this process's application; it reads the policy and rules files when they are used."""
    return build_once(Settings.from_environment())


@resource(description="Dagster's own instance, as far as decisions need it.")
def orchestrator_resource(context: InitResourceContext) -> Orchestrator:
    """Return the instance that is being used, behind the port that services know."""
    return DagsterOrchestrator(context.instance or DagsterInstance.get())


build_once = cache(build)
RESOURCES = {"app": app_resource, "orchestrator": orchestrator_resource}

"""Starts a gang: its Service, then its Job; what stands there already is adopted or refused.

The Service comes first, so that the names of the pods are known before the pods look for each other.
Whoever dies between two steps leaves what the next start, or the sweeper, takes up.
"""

from __future__ import annotations

from tracks_dagster.attempts.ports import GangSpec
from tracks_dagster.kubernetes.effects.api.gang_api import attempt_of, is_of
from tracks_dagster.kubernetes.effects.api.kube_requests import Object
from tracks_dagster.kubernetes.effects.homes import variables_of
from tracks_dagster.kubernetes.effects.watched_gang import Tools, WatchedGang
from tracks_dagster.kubernetes.objects.manifests import gang_objects
from tracks_dagster.reasons.kube_json import mapping, text
from tracks_dagster.track.errors import GangError, GangUnreachable, InvalidInput
from tracks_dagster.track.names import ENV_STORE, attempt_key

CREATE_TRIES_MAX = 5  # a quota that many write, or a Job that goes while it is looked at
CREATE_AGAIN_S = 1.0


def start_gang(tools: Tools, gang: WatchedGang, spec: GangSpec) -> bool:
    """Start the gang; False when exactly this attempt's stands there already.

    Raises GangError naming everything that is wrong with the request, or whose Job it is.
    """
    doing = f"start {attempt_key(spec.run_id, spec.attempt_id)}"
    try:
        service, job = gang_objects(spec, tools.cluster)
    except InvalidInput as error:
        raise GangError(str(error)) from error
    tools.api.home.mark((service, job))
    tools.api.create_service(service, doing=doing)
    for _ in range(CREATE_TRIES_MAX):
        created = tools.api.create_job(job, doing=doing)
        kind = text(job["kind"])
        found = created or tools.api.job_of_anybody(spec.run_id, spec.attempt_id, kind)
        if found is not None:
            _check(found, spec, tools, doing)
            # What was read from a list lacks its own kind; what was made has it.
            gang.mark({**job, **found})
            tools.api.own_service({**job, **found}, doing=doing)
            return created is not None
        tools.sleep(CREATE_AGAIN_S)
    raise GangUnreachable(
        f"Cannot {doing}: the API server refused its {job['kind']} as contended "
        f"{CREATE_TRIES_MAX} times, and there is none of its name; the next start tries again."
    )


def _check(job: Object, spec: GangSpec, tools: Tools, doing: str) -> None:
    """Raise GangError when the Job of that name is not this attempt's, of this store."""
    name = mapping(job.get("metadata")).get("name")
    place = f"{job.get('kind') or 'Job'} {name} in namespace {tools.cluster.namespace}"
    if not is_of(job, spec.run_id, spec.attempt_id):
        whose = attempt_of(job) or "something that is not ours"
        raise GangError(
            f"Cannot {doing}: {place} is there already, and it is of {whose}. Delete it if nobody "
            "needs it, or let this run have another id or namespace."
        )
    if not tools.api.home.owns(job):
        store_url = variables_of(job).get(ENV_STORE, "it does not say which")
        raise GangError(
            f"Cannot {doing}: {place} is there already, and its pods write to another store "
            f"({tools.clean(store_url)}). Two homes share this namespace: give each its own."
        )

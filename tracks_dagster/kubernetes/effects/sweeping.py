"""What of ours stands in a namespace, and its deletion: implements `orphans.StandingGangs`.

Two lists a call; a deletion is two requests. What carries our label but no attempt that can be read, or
another name than this attempt's, was not made by us and is left alone; so is what another home made.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

from tracks_dagster.kubernetes.effects.api.gang_api import GangApi, attempt_of, gang_name, uid_of
from tracks_dagster.kubernetes.effects.api.kube_requests import Object
from tracks_dagster.kubernetes.gangs.orphans import SERVICE, StandingGang
from tracks_dagster.kubernetes.objects.job_names import job_name
from tracks_dagster.reasons.kube_json import mapping, text, time_text
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.names import parse_attempt_key
from tracks_dagster.track.records import parse_time


class Sweeping:
    """Asks one namespace."""

    def __init__(self, api: GangApi) -> None:
        self._api = api

    def standing(self) -> Sequence[StandingGang]:
        """Return the Jobs (one of a JobSet as the JobSet), then the Services."""
        found = {each.kind + each.name: each for each in self._listed()}
        return list(found.values())

    def sweep(self, gang: StandingGang) -> None:
        """Delete a Job and its pods with their grace; its Service, which it owns, goes after it. What
        was made anew since it was listed stays."""
        doing = f"sweep {gang.key}"
        if gang.kind == SERVICE:
            self._api.delete_service(gang.name, uid=gang.uid, doing=doing)
        else:
            self._api.delete_job(gang.name, gang.kind, uid=gang.uid, doing=doing)

    def _listed(self) -> Iterator[StandingGang]:
        for job in self._api.jobs():
            yield from _read(job, *gang_name(job), self._api.home.address_in(job))
        for service in self._api.services():
            name = text(mapping(service.get("metadata")).get("name"))
            yield from _read(service, SERVICE, name, uid_of(service))


def _read(
    found: Object, kind: str, name: str, uid: str, store_url: str = ""
) -> Iterator[StandingGang]:
    """Yield the object, if it says whose it is and when it was made, and is called as it should."""
    made_at = _made_at(found)
    try:
        run_id, attempt_id = parse_attempt_key(attempt_of(found))
    except InvalidInput:
        return
    if made_at is not None and name == job_name(run_id, attempt_id):
        yield StandingGang(
            run_id=run_id,
            attempt_id=attempt_id,
            kind=kind,
            name=name,
            uid=uid,
            made_at=made_at,
            store_url=store_url,
        )


def _made_at(found: Object) -> datetime | None:
    told = time_text(mapping(found.get("metadata")).get("creationTimestamp"))
    return None if told is None else parse_time(told)

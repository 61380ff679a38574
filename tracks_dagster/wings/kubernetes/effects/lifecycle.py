"""Starts a gang, and ends its pods: with time to save, or at once and seen gone.

To start: the Service comes first, so that the names of the pods are known before the pods look for each
other; then the Job. What is there already is adopted or refused. Who dies between two steps leaves
what the next start, or the sweeper, takes up.

To end: a pod goes when its kubelet says that its processes are gone. Nothing is forced here: a forced
deletion only makes the API server forget a pod that may run on.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence

from tracks_dagster.attempts.ports import GangSpec
from tracks_dagster.reasons.evidence import Condition
from tracks_dagster.reasons.kube_json import mapping, text
from tracks_dagster.track.errors import GangError, GangUnreachable, InvalidInput
from tracks_dagster.track.names import ENV_STORE, AttemptRef
from tracks_dagster.track.ports import Clock
from tracks_dagster.wings.kubernetes.effects.gang_api import GangApi, attempt_of, is_of, uid_of
from tracks_dagster.wings.kubernetes.effects.homes import variables_of
from tracks_dagster.wings.kubernetes.effects.kube_requests import Object
from tracks_dagster.wings.kubernetes.effects.watched_gang import Tools, WatchedGang
from tracks_dagster.wings.kubernetes.job_names import job_name
from tracks_dagster.wings.kubernetes.manifests import gang_objects
from tracks_dagster.wings.kubernetes.pod_lives import (
    OVERDUE_S,
    PodLife,
    is_lost,
    life_of,
    unreachable,
)

CREATE_TRIES_MAX = 5  # a quota that many write, or a Job that is deleted while it is looked at
CREATE_AGAIN_S = 1.0
KILL_S_MAX = 40.0  # more than OVERDUE_S: a pod that does not go by then is unreachable
KILL_GRACE_S = 1  # the shortest that still waits for the kubelet's word
DELETE_AGAIN_S = 5.0  # pods that were being made may have missed the deletion before
NODES_ASKED_MAX = 16  # about whether they answer, at each end of a gang
POLL_S = 1.0


def start_gang(tools: Tools, gang: WatchedGang, spec: GangSpec) -> bool:
    """Start the gang; False when exactly this attempt's is there already.

    Raises GangError naming everything that is wrong with the request, or whose Job it is.
    """
    doing = f"start {spec.ref.key}"
    try:
        service, job = gang_objects(spec, tools.cluster)
    except InvalidInput as error:
        raise GangError(str(error)) from error
    tools.api.home.mark((service, job))
    tools.api.create_service(service, doing=doing)
    for _ in range(CREATE_TRIES_MAX):
        created = tools.api.create_job(job, doing=doing)
        kind = text(job["kind"])
        found = created or tools.api.job_of_anybody(spec.ref, kind)
        if found is not None:
            _check_owner(found, spec, tools, doing)
            # What was read from a list lacks its own kind; what was made has it.
            gang.mark({**job, **found})
            tools.api.own_service({**job, **found}, doing=doing)
            return created is not None
        tools.sleep(CREATE_AGAIN_S)
    raise GangUnreachable(
        f"Cannot {doing}: the API server refused its {job['kind']} as contended "
        f"{CREATE_TRIES_MAX} times, and there is none of its name; the next start tries again."
    )


def _check_owner(job: Object, spec: GangSpec, tools: Tools, doing: str) -> None:
    """Raise GangError when the Job of that name is not this attempt's, of this store."""
    name = mapping(job.get("metadata")).get("name")
    place = f"{job.get('kind') or 'Job'} {name} in namespace {tools.cluster.namespace}"
    if not is_of(job, spec.ref):
        whose = attempt_of(job) or "something that is not ours"
        raise GangError(
            f"Cannot {doing}: {place} is there already, and it is of {whose}. Delete it if nobody "
            "needs it, or let this run have another id or namespace."
        )
    if not tools.api.home.owns(job):
        store_url = variables_of(job).get(ENV_STORE, "unnamed")
        raise GangError(
            f"Cannot {doing}: {place} is there already, and its pods write to another store "
            f"({tools.clean(store_url)}). Two homes share this namespace: give each its own."
        )


class Ending:
    """Ends gangs through the API server. now: for its messages; seconds: a steady clock.

    A gang that is another home's, by its Job or its pods, is left alone.
    """

    def __init__(
        self,
        api: GangApi,
        *,
        now: Clock,
        sleep: Callable[[float], None] = time.sleep,
        seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api, self._now, self._sleep, self._seconds = api, now, sleep, seconds

    def drain(self, ref: AttemptRef, kind: str, *, grace_s: float) -> None:
        """Ask the pods to end within `grace_s`; delete a Job without pods: it has nothing to save."""
        if self._api.pods(ref):
            self._api.delete_pods(ref, grace_s=max(1, math.ceil(grace_s)))
            return
        self._delete_job(ref, kind, f"drain {ref.key}")

    def kill(self, ref: AttemptRef, kind: str) -> dict[str, Condition]:
        """End the gang now, and return when no pod of it lives: pod → why, of those that are
        unreachable. Raises GangError naming the pods that live after KILL_S_MAX."""
        doing = f"end {ref.key}"
        # First: a Job makes no more pods then.
        is_ours = self._delete_job(ref, kind, doing)
        left = self._end_pods(ref)
        if is_ours:
            self._api.delete_service(job_name(ref), doing=doing)
        return left

    def _delete_job(self, ref: AttemptRef, kind: str, doing: str) -> bool:
        """Delete the Job, if it is there; False when another home's has its name."""
        found = self._api.job_of_anybody(ref, kind)
        if found is None:
            return True
        if not self._api.home.owns(found):
            return False
        name = job_name(ref)
        self._api.delete_job(name, kind, uid=uid_of(found), doing=doing)
        return True

    def _end_pods(self, ref: AttemptRef) -> dict[str, Condition]:
        began_s = self._seconds()
        deleted_s: float | None = None
        lost: dict[str, bool] = {}
        while True:
            living = self._living(ref)
            waited_s = self._seconds() - began_s
            left = self._left(living, lost, is_overdue=waited_s > OVERDUE_S + KILL_GRACE_S)
            if len(left) == len(living):
                return left
            if waited_s > KILL_S_MAX:
                raise GangError(_still_alive(ref, living))
            if deleted_s is None or self._seconds() - deleted_s > DELETE_AGAIN_S:
                deleted_s = self._seconds()
                self._api.delete_pods(ref, grace_s=KILL_GRACE_S)
            elif waited_s > DELETE_AGAIN_S:
                self._ask_nodes(living, lost)
            self._sleep(POLL_S)

    def _living(self, ref: AttemptRef) -> list[PodLife]:
        lives = map(life_of, self._api.pods(ref))
        return [pod for pod in lives if not pod.is_over]

    def _left(
        self, living: Iterable[PodLife], lost: dict[str, bool], *, is_overdue: bool
    ) -> dict[str, Condition]:
        """Return those that are unreachable, and why.

        is_overdue: by the time that passed here. A deletion that cuts an earlier one short is written
        down as if it had been asked for then, so the end of its grace may be long over at once.
        """
        now = self._now()
        found = {
            pod.name: unreachable(
                pod, now, node_is_lost=lost.get(pod.node, False), is_overdue=is_overdue
            )
            for pod in living
        }
        return {name: condition for name, condition in found.items() if condition is not None}

    def _ask_nodes(self, pods: Sequence[PodLife], lost: dict[str, bool]) -> None:
        """Ask about the nodes of the pods that do not go, each once. Who may not see nodes waits
        until the pods are overdue."""
        for node in sorted({pod.node for pod in pods if pod.node} - lost.keys()):
            if len(lost) >= NODES_ASKED_MAX:
                return
            try:
                lost[node] = is_lost(self._api.node(node))
            except GangError:
                lost[node] = False


def _still_alive(ref: AttemptRef, pods: Sequence[PodLife]) -> str:
    named = ", ".join(f"{pod.name} on {pod.node or 'no node'}" for pod in pods[:8])
    more = f" and {len(pods) - 8} more" if len(pods) > 8 else ""
    return (
        f"Cannot end the gang of {ref.key}: {named}{more} still live "
        f"{KILL_S_MAX:g} s after their deletion was asked for. The attempt stays open; `kubectl get "
        "pods` shows why."
    )

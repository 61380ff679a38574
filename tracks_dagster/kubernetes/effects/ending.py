"""Ends the pods of a gang: with time to save, or at once and seen gone.

A pod goes when its kubelet says that its processes are gone. Nothing is forced here: a forced deletion
only makes the API server forget a pod that may run on.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence

from tracks_dagster.kubernetes.effects.api.gang_api import GangApi, uid_of
from tracks_dagster.kubernetes.objects.job_names import job_name
from tracks_dagster.kubernetes.objects.pod_lives import (
    OVERDUE_S,
    PodLife,
    is_lost,
    life_of,
    unreachable,
)
from tracks_dagster.reasons.evidence import Condition
from tracks_dagster.track.errors import GangError
from tracks_dagster.track.names import attempt_key
from tracks_dagster.track.ports import Clock

KILL_S_MAX = 40.0  # more than OVERDUE_S: a pod that does not go by then is unreachable
KILL_GRACE_S = 1  # the shortest that still waits for the kubelet's word
DELETE_AGAIN_S = 5.0  # pods that were being made may have missed the deletion before
NODES_ASKED_MAX = 16  # about whether they answer, at each end of a gang
POLL_S = 1.0


class Ending:
    """Ends gangs through the API server. now: for what it says; seconds: a steady clock.

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

    def drain(self, run_id: str, attempt_id: int, kind: str, *, grace_s: float) -> None:
        """Ask the pods to end within `grace_s`; a Job that has none has nothing to save, and goes."""
        if self._api.pods(run_id, attempt_id):
            self._api.delete_pods(run_id, attempt_id, grace_s=max(1, math.ceil(grace_s)))
            return
        self._delete_job(run_id, attempt_id, kind, f"drain {attempt_key(run_id, attempt_id)}")

    def kill(self, run_id: str, attempt_id: int, kind: str) -> dict[str, Condition]:
        """End the gang now, and return when no pod of it lives: pod → why, of those that are
        unreachable. Raises GangError naming the pods that live after KILL_S_MAX."""
        doing = f"end {attempt_key(run_id, attempt_id)}"
        # First: a Job makes no more pods then.
        is_ours = self._delete_job(run_id, attempt_id, kind, doing)
        left = self._end_pods(run_id, attempt_id)
        if is_ours:
            self._api.delete_service(job_name(run_id, attempt_id), doing=doing)
        return left

    def _delete_job(self, run_id: str, attempt_id: int, kind: str, doing: str) -> bool:
        """Delete the Job, if it is there; False when another home's has its name."""
        found = self._api.job_of_anybody(run_id, attempt_id, kind)
        if found is None:
            return True
        if not self._api.home.owns(found):
            return False
        name = job_name(run_id, attempt_id)
        self._api.delete_job(name, kind, uid=uid_of(found), doing=doing)
        return True

    def _end_pods(self, run_id: str, attempt_id: int) -> dict[str, Condition]:
        began_s = self._seconds()
        deleted_s: float | None = None
        lost: dict[str, bool] = {}
        while True:
            living = self._living(run_id, attempt_id)
            waited_s = self._seconds() - began_s
            left = self._left(living, lost, is_overdue=waited_s > OVERDUE_S + KILL_GRACE_S)
            if len(left) == len(living):
                return left
            if waited_s > KILL_S_MAX:
                raise GangError(_still_alive(run_id, attempt_id, living))
            if deleted_s is None or self._seconds() - deleted_s > DELETE_AGAIN_S:
                deleted_s = self._seconds()
                self._api.delete_pods(run_id, attempt_id, grace_s=KILL_GRACE_S)
            elif waited_s > DELETE_AGAIN_S:
                self._ask_nodes(living, lost)
            self._sleep(POLL_S)

    def _living(self, run_id: str, attempt_id: int) -> list[PodLife]:
        lives = map(life_of, self._api.pods(run_id, attempt_id))
        return [pod for pod in lives if not pod.is_over]

    def _left(
        self, living: Iterable[PodLife], lost: dict[str, bool], *, is_overdue: bool
    ) -> dict[str, Condition]:
        """Return those that are unreachable, and why.

        is_overdue: by the time that passed here. A deletion that cuts an earlier one short is written
        down as if it had been asked for then, so the end of its grace may be long over at once.
        """
        now = self._now()
        told = {
            pod.name: unreachable(
                pod, now, node_is_lost=lost.get(pod.node, False), is_overdue=is_overdue
            )
            for pod in living
        }
        return {name: condition for name, condition in told.items() if condition is not None}

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


def _still_alive(run_id: str, attempt_id: int, pods: Sequence[PodLife]) -> str:
    named = ", ".join(f"{pod.name} on {pod.node or 'no node'}" for pod in pods[:8])
    more = f" and {len(pods) - 8} more" if len(pods) > 8 else ""
    return (
        f"Cannot end the gang of {attempt_key(run_id, attempt_id)}: {named}{more} still live "
        f"{KILL_S_MAX:g} s after their deletion was asked for. The attempt stays open; `kubectl get "
        "pods` says what holds them."
    )

"""Gangs on a Kubernetes cluster: an Indexed Job (or JobSet) for each attempt, and a headless Service.

Who starts a gang need not live on: the Job's name is derived from run and attempt, so that a second
start meets the first one's, and a mark in the store outlives the Job. Pods put their reports into
the store; what happens to them is watched and stored as it happens (`pod_watch`).

Requests to the API server, for N pods of a gang:

    start     4: Service, Job, and the Service's owner; one more Job read where there was one
    glance    1 list of Jobs every BOARD_S (4 s) for all gangs of this process together, paged by 500;
              3 once, when a gang is found gone: its Job and its pods
    observe   the watch: 3 lists and 3 streams when it begins, and logs; then none, whatever N. As long
              as the watch shows no Job, one read of it every JOB_LOOK_S (5 s)
    drain     2 every DRAIN_AGAIN_S (10 s), whatever N
    kill      4, and one list of pods a second until they are gone, at most KILL_S_MAX (40 s)
    ask_to_save, dump_stacks          1 list of pods; ship: none
    standing  2 lists, for the sweeper of a whole namespace; sweep: 1
    taint     1 list of nodes, and a patch for each that changes

To the store: N small reads every BEAT_READ_S (5 s) while a gang is observed, and one for a glance at a
gang without a Job.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet

from kubernetes.client import ApiClient

from tracks_dagster.attempts.effects.gang_files import (
    SAVE_S_MAX,
    ask_for_stacks,
    ask_to_save,
)
from tracks_dagster.attempts.orphans import StandingGang
from tracks_dagster.attempts.ports import GangPhase, GangReport, GangSpec
from tracks_dagster.reasons.hangs import StackDump
from tracks_dagster.track.bodies import RankPlace
from tracks_dagster.track.errors import GangError, GangUnreachable, StoreError, StoreUnavailable
from tracks_dagster.track.names import AttemptRef
from tracks_dagster.track.ports import Clock, ObjectStore
from tracks_dagster.track.text.redact import Redact
from tracks_dagster.wings.kubernetes.effects.gang_api import GangApi
from tracks_dagster.wings.kubernetes.effects.gang_job import Glances
from tracks_dagster.wings.kubernetes.effects.homes import Home
from tracks_dagster.wings.kubernetes.effects.kube_requests import HURRIED, KubeRequests
from tracks_dagster.wings.kubernetes.effects.lifecycle import Ending, start_gang
from tracks_dagster.wings.kubernetes.effects.sweeping import NodeTainting, Sweeping
from tracks_dagster.wings.kubernetes.effects.watched_gang import Tools, WatchedGang
from tracks_dagster.wings.kubernetes.settings import ClusterSettings

# A drain is asked for every second; pods that were being made may have missed it.
DRAIN_AGAIN_S = 10.0
GANGS_MAX = 4096  # remembered by this process; the one looked at longest ago is dropped first
IDLE_S = 600.0  # without a look: then it is watched no more, until the next one


class KubernetesLauncher:
    """Implements `ports.GangLauncher` in one namespace, and for the upkeep `upkeep.StandingGangs` and
    `upkeep.NodeTaints`.

    seconds: a steady clock.
    """

    def __init__(
        self,
        client: ApiClient,
        cluster: ClusterSettings,
        store: ObjectStore,
        *,
        now: Clock,
        clean: Redact,
        sleep: Callable[[float], None] = time.sleep,
        seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        requests = KubeRequests(client, cluster, sleep=sleep)
        api = GangApi(requests, cluster.namespace, Home(store))
        # What only sensors ask: a tick never waits long for a cluster that does not answer.
        hurried = KubeRequests(
            client, cluster, sleep=sleep, patience=HURRIED, silence=requests.silence
        )
        hurried_api = GangApi(hurried, cluster.namespace, api.home)
        self._tools = Tools(
            api=api,
            client=client,
            cluster=cluster,
            store=store,
            now=now,
            clean=clean,
            seconds=seconds,
            sleep=sleep,
        )
        place = self._tools.place
        self._glances = Glances(
            hurried_api, store, cluster=cluster, place=place, now=now, seconds=seconds
        )
        self._sweeping = Sweeping(hurried_api)
        self._tainting = NodeTainting(hurried, api.home)
        self._ending = Ending(api, now=now, sleep=sleep, seconds=seconds)
        self._lock = threading.Lock()  # of the tables; nothing is asked under it
        # With when it was looked at last; the one looked at longest ago comes first.
        self._gangs: OrderedDict[AttemptRef, tuple[WatchedGang, float]] = OrderedDict()
        self._drained: dict[AttemptRef, tuple[float, float]] = {}  # grace, and when it was asked

    def start(self, spec: GangSpec) -> bool:
        """Create the Service and the Job. A Job of that name adopts only when it is marked as this
        attempt's, of this store."""
        gang = self._gang(spec.ref)
        with _Translated(f"start {spec.ref.key}"):
            if gang.started is not None:
                return False
            is_new = start_gang(self._tools, gang, spec)
            self._glances.forget(spec.ref)
            return is_new

    def glance(self, ref: AttemptRef) -> GangReport:
        """Answer from the last list of Jobs; of a gang without one, whether the store knows it."""
        with _Translated(f"look at {ref.key}"):
            return self._glances.look(ref)

    def observe(self, ref: AttemptRef) -> GangReport:
        """Report what the watch saw and the pods stored; the first call starts the watch."""
        with _Translated(f"observe {ref.key}"):
            return self._gang(ref).report()

    def drain(self, ref: AttemptRef, *, grace_s: float) -> None:
        """Delete the pods with that grace; their Job then fails, and stays as a mark until `kill`."""
        now_s = self._tools.seconds()
        with self._lock:
            before_s, asked_at_s = self._drained.get(ref, (float("inf"), 0.0))
            if grace_s >= before_s and now_s - asked_at_s < DRAIN_AGAIN_S:
                return
            self._drained[ref] = (grace_s, now_s)
        with _Translated(f"drain {ref.key}"):
            gang = self._gang(ref)
            gang.check_place()
            self._ending.drain(ref, gang.kind, grace_s=grace_s)

    def kill(self, ref: AttemptRef) -> None:
        """Delete the Job and its pods, once their files were read, and see the pods gone. A pod
        whose node is lost counts as unreachable, and is in the reports."""
        with _Translated(f"end {ref.key}"):
            gang = self._gang(ref)
            gang.check_place()
            gang.catch_up()
            gang.ended(self._ending.kill(ref, gang.kind))
            gang.settle()
        self._glances.forget(ref)
        with self._lock:
            self._drained.pop(ref, None)

    def ship(self, ref: AttemptRef, store: ObjectStore) -> None:
        """Do nothing: the pods ship their own journals, and nobody can read what they did not."""

    def ask_to_save(self, ref: AttemptRef, place: RankPlace) -> bool:
        """Leave the wish in the store, if the rank's pod runs, and wait for the pod's word: it looks
        every few seconds, and asks the rank only if that listens. No answer is an error: the rank
        may still be asked."""
        with _Translated(f"ask {ref.key} to save"):
            gang = self._gang(ref)
            if gang.report().phase is not GangPhase.ALIVE:
                return False
            gang.catch_up()
            uid = next((uid for uid, (_, name) in gang.living().items() if name == place.pod), None)
            if uid is None:
                return False
            tools = self._tools
            answer = ask_to_save(tools.store, ref, uid, sleep=tools.sleep, seconds=tools.seconds)
            if answer is None:
                raise GangError(
                    f"Cannot tell whether {ref.key} was asked to save: pod "
                    f"{place.pod} did not answer through the store within {SAVE_S_MAX:g} s, and may "
                    f"still do so; `tracks checkpoints list {ref.run_id}` shows what was committed."
                )
            return answer.is_asked

    def dump_stacks(self, ref: AttemptRef) -> tuple[StackDump, ...]:
        """Ask every pod that runs through the store, and wait a few seconds for the answers."""
        with _Translated(f"dump the stacks of {ref.key}"):
            gang = self._gang(ref)
            gang.catch_up()
            found = ask_for_stacks(
                self._tools.store,
                ref,
                gang.living(),
                1 if gang.started is None else gang.started.ranks_per_node,
                clean=self._tools.clean,
                sleep=self._tools.sleep,
                seconds=self._tools.seconds,
            )
            gang.read_beats_soon()
            return found

    def standing(self) -> Sequence[StandingGang]:
        """Return our objects in the namespace."""
        return self._sweeping.standing()

    def sweep(self, gang: StandingGang) -> None:
        """Delete what outlived its attempt."""
        self._sweeping.sweep(gang)

    @property
    def taints_nodes(self) -> bool:
        """Whether the settings ask for taints on nodes in quarantine."""
        return self._tools.cluster.taint_quarantined_nodes

    def taint(self, nodes: AbstractSet[str]) -> Sequence[str]:
        """Let these nodes, and no others, have this home's taint."""
        with _Translated("keep the nodes' taints"):
            return self._tainting.taint(nodes)

    def close(self) -> None:
        """Stop every watch; what was seen is in the store then."""
        with self._lock:
            gangs = [gang for gang, _ in self._gangs.values()]
            self._gangs.clear()
        for gang in gangs:
            gang.close()

    def _gang(self, ref: AttemptRef) -> WatchedGang:
        """Return the gang, and let those go that nobody looks at any more: another process may have
        closed their attempts."""
        now_s = self._tools.seconds()
        idle = []
        with self._lock:
            gang, _ = self._gangs.pop(ref, (None, 0.0))
            gang = gang or WatchedGang(self._tools, ref)
            self._gangs[ref] = (gang, now_s)
            for each, (left, looked_s) in list(self._gangs.items()):
                if now_s - looked_s <= IDLE_S and len(self._gangs) <= GANGS_MAX:
                    break
                idle.append(left)
                self._drained.pop(each, None)
                del self._gangs[each]
        for left in idle:
            left.close()
        return gang


class _Translated:
    """A store that fails under a gang is the gang's error, too."""

    def __init__(self, doing: str) -> None:
        self._doing = doing

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, where: object) -> None:
        if isinstance(error, StoreError):
            kind = GangUnreachable if isinstance(error, StoreUnavailable) else GangError
            raise kind(f"Cannot {self._doing}: {error}") from error

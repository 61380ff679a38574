"""One gang as this process has watched it, from its first look until the gang is gone.

While it is watched, all that is asked of the API server is the watch itself (`pod_watch`) and, as long
as that shows no Job, the Job every `JOB_LOOK_S`. Once it is gone, what every watcher stored is read.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from kubernetes.client import ApiClient

from tracks_dagster.attempts.effects.gang_files import GangFiles
from tracks_dagster.attempts.ports import GangPhase, GangReport
from tracks_dagster.reasons.evidence import CANNOT_START, Condition
from tracks_dagster.track.errors import GangError, StoreError
from tracks_dagster.track.names import AttemptRef
from tracks_dagster.track.ports import Clock, ObjectStore
from tracks_dagster.track.text.redact import Redact
from tracks_dagster.wings.kubernetes.effects.gang_api import GangApi
from tracks_dagster.wings.kubernetes.effects.gang_job import GangJob, JobState
from tracks_dagster.wings.kubernetes.effects.homes import Place
from tracks_dagster.wings.kubernetes.effects.kube_requests import Object
from tracks_dagster.wings.kubernetes.effects.pod_evidence import read_evidence
from tracks_dagster.wings.kubernetes.effects.pod_watch import PodWatch
from tracks_dagster.wings.kubernetes.effects.started import Started
from tracks_dagster.wings.kubernetes.job_names import gang_labels
from tracks_dagster.wings.kubernetes.pod_lives import OVERDUE_S, boot_id_of, life_in, unreachable
from tracks_dagster.wings.kubernetes.report import ReportInputs, report
from tracks_dagster.wings.kubernetes.settings import ClusterSettings
from tracks_dagster.wings.kubernetes.sightings import GangSeen, PodStory
from tracks_dagster.wings.kubernetes.start_budget import StartBudget, cannot_start

CAUGHT_UP_S_MAX = 15.0  # for the watch to have read what there is, logs too
STORED_S_MAX = 30.0  # for the store to have what was seen, before it is let go here
NODES_ASKED_MAX = 8  # of pods without a last record: whether they were rebooted
POLL_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """What every gang of a launcher is watched with. seconds: a steady clock."""

    api: GangApi
    client: ApiClient
    cluster: ClusterSettings
    store: ObjectStore
    now: Clock
    clean: Redact
    seconds: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    @property
    def place(self) -> Place:
        """Where gangs are looked for."""
        return Place(
            namespace=self.cluster.namespace, server=str(self.client.configuration.host or "")
        )

    @property
    def budget(self) -> StartBudget:
        """How long a gang may take to come up."""
        return StartBudget(
            scheduling_s=self.cluster.scheduling_timeout_s,
            start_s=self.cluster.start_timeout_s,
            partial_s=self.cluster.partial_start_timeout_s,
        )


class WatchedGang:
    """Safe for several threads."""

    def __init__(self, tools: Tools, ref: AttemptRef) -> None:
        self._tools, self._ref = tools, ref
        self._files = GangFiles(tools.store, ref, seconds=tools.seconds)
        self._job = GangJob(
            tools.api,
            self._files,
            tools.store,
            tools.place,
            ref,
            configured=tools.cluster.job_kind,
            now=tools.now,
            seconds=tools.seconds,
        )
        self._lock = threading.RLock()
        self._watch: PodWatch | None = None
        self._found: list[Condition] = []
        self._lost: dict[str, Condition] = {}  # pods that live on where nobody can end them
        self._leaving_s: dict[str, float] = {}  # by uid: when this process saw that it was deleted
        self._is_ended = False  # by this process: its Job makes no more pods
        self._is_over = False  # was reported gone: nothing is watched any more

    @property
    def started(self) -> Started | None:
        """What its start left in the store."""
        with self._lock:
            return self._job.started

    @property
    def kind(self) -> str:
        """What holds the pods: a Job or a JobSet."""
        with self._lock:
            return self._job.kind

    def mark(self, job: Object) -> None:
        """Remember that this gang was started, as `job`."""
        with self._lock:
            self._job.mark(job)
            self._job.forget()
            self._is_ended = False

    def report(self) -> GangReport:
        """Return all that is known now, and watch on while something of the gang lives."""
        with self._lock:
            state = self._job.state(self._seen().jobs, is_ended=self._is_ended)
            if state is JobState.ABSENT and not self._was_started():
                where = self._where
                return GangReport(phase=GangPhase.NEVER_STARTED, where=where, sees_all_nodes=True)
            self._watch_what_lives(state)
            if self._watch is not None:
                seen = self._watch.seen()
                if self._phase(state, seen) is GangPhase.ALIVE:
                    return self._living(seen)
            return self._gone()

    def check_place(self) -> None:
        """Raise GangError when the gang may live where this process does not look."""
        with self._lock:
            self._job.check_place()

    def catch_up(self) -> None:
        """Watch, and return when the watch has read what there is: what is ended next is then not
        lost. Bounded by twice CAUGHT_UP_S_MAX."""
        if self._tools.api.pods(self._ref):
            self._begin_watch().wait_until_listed(CAUGHT_UP_S_MAX)
            self._wait_until(lambda seen: all(map(_is_read, seen.pods)))

    def settle(self) -> None:
        """Return when the watch has seen the end of what was just killed; bounded the same way."""
        self._wait_until(lambda seen: not any(self._lives(pod) for pod in seen.pods))

    def add_conditions(self, conditions: Iterable[Condition]) -> None:
        """Keep what the launcher found, for every report from now on."""
        with self._lock:
            known = {(each.type, each.message) for each in self._found}
            self._found += [each for each in conditions if (each.type, each.message) not in known]

    def ended(self, lost: Mapping[str, Condition]) -> None:
        """Take in that this process has just ended the gang; lost: pod → why nobody can end it."""
        with self._lock:
            self._lost.update(lost)
            self._job.forget()
            self._is_ended = True
        self.add_conditions(lost.values())

    def living(self) -> dict[str, tuple[int, str]]:
        """Return the pods that run, uid → (index, name)."""
        up = [pod for pod in self._seen().pods if pod.phase == "Running"]
        return {pod.uid: (pod.index or 0, pod.name) for pod in up if self._lives(pod)}

    def read_beats_soon(self) -> None:
        """Let the next report read the beats, however soon it comes."""
        self._files.read_soon()

    def close(self) -> None:
        """Stop the watch; what it has seen is in the store then."""
        with self._lock:
            if self._watch is not None:
                self._watch.stop()
                self._watch = None

    def _was_started(self) -> bool:
        return self._job.started is not None or self._files.any_evidence()

    def _seen(self) -> GangSeen:
        with self._lock:
            return GangSeen() if self._watch is None else self._watch.seen()

    def _watch_what_lives(self, state: JobState) -> None:
        """Watch whatever still has a Job, or pods: a gang whose Job was deleted may be saving.

        Of what has ended already, the watch reads what is left, and is waited for.
        """
        if self._watch is None and state is JobState.STANDING:
            self._begin_watch()
        elif self._watch is None and not self._is_over:
            self.catch_up()

    def _begin_watch(self) -> PodWatch:
        with self._lock:
            if self._watch is not None:
                return self._watch
            labels = gang_labels(self._ref)
            self._watch = PodWatch(
                self._tools.client,
                namespace=self._tools.cluster.namespace,
                selector=",".join(f"{key}={value}" for key, value in labels.items()),
                store=self._tools.store,
                prefix=self._ref.folder,
                now=self._tools.now,
                clean=self._tools.clean,
            )
            self._watch.start()
            return self._watch

    def _wait_until(self, wanted: Callable[[GangSeen], bool]) -> None:
        watch = self._watch
        give_up_at = self._tools.seconds() + CAUGHT_UP_S_MAX
        while watch is not None and not wanted(watch.seen()):
            if self._tools.seconds() >= give_up_at:
                return  # a pod that is not seen now is reported as missed by the watch
            self._tools.sleep(POLL_S)

    @property
    def _where(self) -> str:
        return f"namespace {self._tools.cluster.namespace}"

    def _phase(self, state: JobState, seen: GangSeen) -> GangPhase:
        """Return ALIVE while a pod can live that somebody would see end, or is still to be made."""
        left = [pod for pod in seen.pods if not pod.is_over]
        why = [found for pod in left if (found := self._unreachable(pod)) is not None]
        self.add_conditions(why)
        if len(why) < len(left):
            return GangPhase.ALIVE
        waits = state is JobState.STANDING and not left and not self._is_ended
        return GangPhase.ALIVE if waits else GangPhase.GONE

    def _lives(self, pod: PodStory) -> bool:
        return not pod.is_over and self._unreachable(pod) is None

    def _unreachable(self, pod: PodStory) -> Condition | None:
        """Return why nobody can end it. Its time is measured here: this machine's clock may be another
        than the API server's, and a pod that is taken for overdue is killed while it saves."""
        tools, now_s = self._tools, self._tools.seconds()
        since_s = self._leaving_s.setdefault(pod.uid, now_s) if pod.leaves_at else now_s
        is_overdue = now_s - since_s > tools.cluster.termination_grace_s + OVERDUE_S
        return self._lost.get(pod.name) or unreachable(
            life_in(pod), tools.now(), is_overdue=is_overdue
        )

    def _living(self, seen: GangSeen) -> GangReport:
        ending = [pod.uid for pod in seen.pods if pod.is_over or pod.leaves_at is not None]
        alive = [pod.uid for pod in seen.pods if pod.has_run and not pod.is_over]
        self._files.read(alive, ending)
        self._give_up_if_late(seen)
        known = replace(self._known(seen, {}), silent=self._files.silent)
        return report(known, GangPhase.ALIVE, where=self._where)

    def _give_up_if_late(self, seen: GangSeen) -> None:
        """Say once that the gang cannot start; never while its pods may only not be seen."""
        is_listed = self._watch is not None and self._watch.wait_until_listed(0.0)
        is_blind = bool(seen.problems) and not seen.pods
        if not is_listed or is_blind or any(each.type == CANNOT_START for each in self._found):
            return
        nodes, now = self._known(seen, {}).nodes, self._tools.now()
        found = cannot_start(seen, nodes, self._tools.budget, now, more=self._events_of)
        self.add_conditions([] if found is None else [found])

    def _gone(self) -> GangReport:
        """Stop watching, and report what every watcher and every pod left."""
        key = self._ref.key
        self._wait_until(lambda seen: all(map(_is_read, seen.pods)))
        if self._watch is not None and not self._watch.flush(STORED_S_MAX):
            raise GangError(
                f"Cannot keep how {key} ended: the object store has not taken it for "
                f"{STORED_S_MAX:g} s. It is kept here, and the next look tries again."
            )
        self.close()
        self._is_over = True
        try:
            seen = read_evidence(self._tools.store, self._ref.folder)
            uids = {pod.uid for pod in seen.pods} | self._files.pods()
        except StoreError as error:
            raise GangError(f"Cannot read the evidence of {key}: {error}") from error
        self._files.read(uids, uids, at_once=True)
        known = self._known(seen, self._boot_ids(seen))
        return report(known, GangPhase.GONE, where=self._where)

    def _events_of(self, uid: str) -> list[Object]:
        """Return the events of one pod, those of a routine start too, which the watch leaves out."""
        try:
            return self._tools.api.events_of(uid)
        except GangError:
            return []

    def _known(self, seen: GangSeen, boot_ids: dict[str, str]) -> ReportInputs:
        started = self._job.started
        indexes = [pod.index or 0 for pod in seen.pods]
        return ReportInputs(
            nodes=max(indexes, default=0) + 1 if started is None else started.nodes,
            ranks_per_node=1 if started is None else started.ranks_per_node,
            seen=seen,
            beats=self._files.beats,
            ends=self._files.ends,
            launcher_conditions=tuple(self._found),
            boot_ids=boot_ids,
        )

    def _boot_ids(self, seen: GangSeen) -> dict[str, str]:
        """Return the boots of the nodes whose pods left no word; who may not see nodes has none."""
        silent = {p.node for p in seen.pods if p.node and p.uid not in self._files.ends}
        found: dict[str, str] = {}
        for name in sorted(silent)[:NODES_ASKED_MAX]:
            try:
                node = self._tools.api.node(name)
            except GangError:
                break
            if node is not None and (boot_id := boot_id_of(node)):
                found[name] = boot_id
        return found


def _is_read(pod: PodStory) -> bool:
    """Whether a watcher has all of it that it will have: of a pod that ended, its log too."""
    return not pod.is_over or not pod.has_run or pod.log_is_whole or pod.gone_at is not None

"""Watches the pods of one gang from their birth, and stores what it sees as it happens.

Three streams a gang: its pods and its Jobs by their labels, and the events of the namespace. Events
cannot be selected by a set of names, and they lie in no cache of the API server: a LIST reads all of
them, one watch a pod would be 64 a gang. So it is one watch a gang, from which the server leaves out
what nodes say and the routine of every pod's start before it is sent. A LIST of events is needed at the
begin and after a 410 only.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from uuid import uuid4

from kubernetes.client import ApiClient

from tracks_dagster.kubernetes.effects.api.change_stream import ChangeStream, LastingThread
from tracks_dagster.kubernetes.effects.api.reads import EVENTS, JOBS, PODS, Listed, Reads, Wanted
from tracks_dagster.kubernetes.effects.log_tails import LogTails
from tracks_dagster.kubernetes.effects.pod_evidence import EvidenceWriter, read_lines
from tracks_dagster.kubernetes.effects.watch_pace import Pace
from tracks_dagster.kubernetes.gangs.fold import PODS_MAX, GangFold
from tracks_dagster.kubernetes.gangs.sightings import (
    GangSeen,
    JobStory,
    Line,
    PodStory,
    event_line,
    gap_line,
    gone_line,
    has_begun,
    has_ended,
    is_disrupted,
    job_line,
    log_line,
    pod_line,
    problem_line,
    same_sight,
)
from tracks_dagster.kubernetes.objects.event_sieve import EVENT_FIELDS, EventSieve
from tracks_dagster.reasons.kube_json import mapping, text, version_order
from tracks_dagster.track.errors import StoreError
from tracks_dagster.track.ports import Clock, ObjectStore
from tracks_dagster.track.records import Json, format_time
from tracks_dagster.track.text.redact import Redact

STOP_S_MAX = 10.0
LAST_LOGS_S = 3.0  # at a stop, for logs of pods that have just ended
RECALL_AGAIN_S = 2.0
WATCHER = "watcher"  # whose trouble is this process's own
_log = logging.getLogger(__name__)


class PodWatch:
    """The watcher of one gang in this process. Never raises for what the cluster or the store does.

    selector: of labels, on the gang's Jobs and pods. prefix: the attempt's folder in the store. What
    earlier watchers of the attempt stored there is part of what this one has seen. Several may watch
    at once. Holds, of 512 pods, at most 32 MiB of logs and 16 MiB of statuses.
    """

    def __init__(
        self,
        client: ApiClient,
        *,
        namespace: str,
        selector: str,
        store: ObjectStore,
        prefix: str,
        now: Clock,
        clean: Redact,
        pace: Pace | None = None,
    ) -> None:
        pace = pace or Pace()
        self.uid = uuid4().hex
        self._store, self._prefix, self._now, self._clean = store, prefix.rstrip("/"), now, clean
        self._reads = Reads(client, namespace)
        self._fold = GangFold()
        self._last: dict[str, Line] = {}  # each object's newest line
        self._present: dict[str, set[str]] = {}  # what the newest LIST had, and came since
        self._listed_at: dict[str, tuple[int, str]] = {}  # of which version that LIST was
        self._heard_at: dict[str, str] = {}
        self._troubles: dict[str, str] = {}
        self._sieve = EventSieve()
        self._tailed: dict[str, Line] = {}  # of the pods that run: the newest log line
        self._tails_changed = False
        self._lock = threading.RLock()
        self._stop = threading.Event()
        self._listed = {each: threading.Event() for each in (PODS, JOBS, EVENTS)}
        self._recalled = threading.Event()
        folder = f"{self._prefix}/pods/{self.uid}"
        self._writer = EvidenceWriter(
            store, folder, tails=self._tails, tails_every_s=pace.tails_every_s
        )
        self._logs = LogTails(
            self._reads,
            self._took_log,
            self.troubled,
            clean=clean,
            reads_per_s=pace.log_reads_per_s,
            every_s=pace.log_every_s,
        )
        wanted = (
            Wanted(resource=PODS, labels=selector),
            Wanted(resource=JOBS, labels=selector),
            Wanted(resource=EVENTS, fields=EVENT_FIELDS),
        )
        self._streams = [
            ChangeStream(
                self._reads,
                each,
                self,
                stop=self._stop,
                backoff=pace.backoff,
                has_bookmarks=each.resource != EVENTS,
            )
            for each in wanted
        ]
        self._threads: list[LastingThread] = []

    def start(self) -> None:
        """Begin to watch, and return at once; does nothing the second time."""
        with self._lock:
            if self._threads or self._stop.is_set():
                return
            runs = [self._recall, self._writer.run, *(stream.run for stream in self._streams)]
            self._threads = [
                LastingThread(run, "pod-watch", self._stop, self._broke) for run in runs
            ]
        for thread in self._threads:
            thread.start()

    def wait_until_listed(self, timeout_s: float) -> bool:
        """Wait until `seen` holds what there is now, and what earlier watchers stored.

        False when the API server or the store did not tell by then; what is refused counts as told.
        """
        waits = (self._recalled, *self._listed.values())
        return all(told.wait(timeout_s) for told in waits)

    def seen(self) -> GangSeen:
        """Return what was seen so far. Cheap when nothing changed since the last call."""
        with self._lock:
            return self._fold.seen()

    def flush(self, timeout_s: float) -> bool:
        """Wait until everything seen so far stands in the store."""
        return self._writer.flush(timeout_s)

    def stop(self) -> None:
        """Stop watching; what was seen is put into the store first. Bounded, in a few seconds."""
        self._stop.set()
        self._logs.close(LAST_LOGS_S)
        self._reads.cut()
        self._writer.close()
        for thread in self._threads:
            thread.join(STOP_S_MAX / len(self._threads))

    def listed(self, resource: str, listed: Listed, gap: str) -> None:
        """Take everything there is, on the stream's thread; after a gap say what went unseen."""
        uids = {text(mapping(item.get("metadata")).get("uid")) for item in listed.items}
        with self._lock:
            self._present[resource] = uids
            self._listed_at[resource] = version_order(listed.version)
            self._miss(resource, gap)
            for item in listed.items:
                self.changed(resource, "LISTED", item)
            self._listed[resource].set()

    def changed(self, resource: str, change: str, item: Json) -> None:
        """Take one change of a pod, a Job or an event; one that cannot be read keeps back no other."""
        try:
            self._take_change(resource, change, item)
        except Exception as error:  # noqa: BLE001 - of a shape that the stream would give again
            _log.exception("Cannot read a change of %s", resource)
            self._broke(f"{type(error).__name__}: {error}")

    def _take_change(self, resource: str, change: str, item: Json) -> None:
        at = self._at()
        with self._lock:
            self._heard_at[resource] = at
            if resource == EVENTS:
                event = event_line(item, at=at, clean=self._clean)
                if change != "DELETED" and self._sieve.passes(event):  # deleted: it became old
                    self._take(event)
                return
            make = pod_line if resource == PODS else job_line
            line = make(change, item, at=at, clean=self._clean)
            before = self._last.get(line["uid"])
            if len(self._last) >= 2 * PODS_MAX and before is None:
                return
            if same_sight(line, before):
                return
            self._last[line["uid"]] = line
            self._present.setdefault(resource, set()).add(line["uid"])
            self._take(line)
            self._know(line["uid"], line["name"] if resource == JOBS else "")
            if resource == PODS:
                self._read_logs(line, before)

    def troubled(self, resource: str, message: str) -> None:
        """Keep why something cannot be watched, until it can."""
        with self._lock:
            if message and resource in self._listed:
                self._listed[resource].set()  # a refusal is an answer, too
            if self._troubles.get(resource) == message:
                return
            self._troubles[resource] = message
            self._take(problem_line(resource, self._clean(message), at=self._at()))

    def _broke(self, words: str) -> None:
        self.troubled(WATCHER, f"Cannot take in what happens to the gang: {words}")

    def _recall(self) -> None:
        """Take in what earlier watchers of the attempt stored, once the store answers."""
        while not self._stop.is_set():
            try:
                lines = list(read_lines(self._store, self._prefix))
            except StoreError:
                self._stop.wait(RECALL_AGAIN_S)
                continue
            with self._lock:
                for line in lines:
                    self._fold.add(line)
                for job in self._fold.seen().jobs:
                    self._know(job.uid, job.name)
                for pod in self._fold.seen().pods:
                    self._know(pod.uid, "")
                for resource in (PODS, JOBS):
                    if self._listed[resource].is_set() and resource in self._present:
                        self._miss(resource, "")  # what went between two watchers
            self._recalled.set()
            return

    def _take(self, line: Line) -> None:
        self._fold.add(line)
        self._writer.add(line)

    def _miss(self, resource: str, gap: str) -> None:
        """Say what of the known is not there any more, though nobody saw it go.

        What another watcher saw after that LIST is not missed: the stream here has yet to tell of it.
        """
        seen = self._fold.seen()
        known: Sequence[PodStory | JobStory] = ()
        if resource != EVENTS:  # these only become old
            known = seen.pods if resource == PODS else seen.jobs
        present = self._present[resource]
        left = [each for each in known if each.gone_at is None and each.uid not in present]
        missed = [e for e in left if self._fold.version_of(e.uid) <= self._listed_at[resource]]
        at = self._at()
        if gap:
            since, names = self._heard_at.get(resource, ""), [each.name for each in missed]
            self._take(gap_line(resource, since=since, at=at, why=gap, missed=names))
        for each in missed:
            self._take(gone_line(each.uid, at=at))
            self._logs.drop(each.uid)

    def _know(self, uid: str, job: str) -> None:
        """Take in the events that came before what they are about."""
        for line in self._sieve.know(uid, job=job):
            self._take(line)

    def _read_logs(self, line: Line, before: Line | None) -> None:
        """Read the log at once when something happens to a pod that has run."""
        uid = line["uid"]
        if not has_begun(line):
            return
        self._logs.follow(uid, line["name"], line["container"])
        if has_ended(line):
            if before is None or not has_ended(before):
                self._logs.hurry(uid, ended=True)
        elif is_disrupted(line) and (before is None or not is_disrupted(before)):
            self._logs.hurry(uid, ended=False)
        if line["change"] == "DELETED":
            self._logs.drop(uid)

    def _took_log(self, uid: str, log: str, *, until: str, whole: bool, at_once: bool) -> None:
        """Keep a tail: as a line when something happened to the pod, else with the next tails."""
        line = log_line(uid, log, until=until, whole=whole, at=self._at())
        with self._lock:
            self._fold.add(line)
            self._tailed[uid] = line
            self._tails_changed = True
            if whole or at_once:
                self._writer.add(line)
            if whole:
                del self._tailed[uid]

    def _tails(self) -> Sequence[Line] | None:
        """Return the newest log lines of the pods that run, if any is new."""
        with self._lock:
            if not self._tails_changed or not self._tailed:
                return None
            self._tails_changed = False
            return list(self._tailed.values())

    def _at(self) -> str:
        return format_time(self._now())

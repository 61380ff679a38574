"""Watches the pods of one gang from their birth, and stores what it sees as it happens.

Three streams a gang: its pods and its Jobs by their labels, and the events of the namespace. Events
cannot be selected by a set of names, and they lie in no cache of the API server: a LIST reads all of
them, one watch a pod would be 64 a gang. So it is one watch a gang, from which the server leaves out
what nodes report and the routine of every pod's start before it is sent. A LIST of events is only
needed at the start and after a 410.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from uuid import uuid4

from kubernetes.client import ApiClient

from tracks_dagster.reasons.kube_json import mapping, text, version_order
from tracks_dagster.track.errors import StoreError
from tracks_dagster.track.ports import Clock, ObjectStore
from tracks_dagster.track.records import Json, format_time
from tracks_dagster.track.text.redact import Redact
from tracks_dagster.wings.kubernetes.effects.change_stream import (
    Backoff,
    ChangeStream,
    LastingThread,
)
from tracks_dagster.wings.kubernetes.effects.log_tails import LOG_EVERY_S, LOG_READS_PER_S, LogTails
from tracks_dagster.wings.kubernetes.effects.pod_evidence import (
    TAILS_EVERY_S,
    EvidenceWriter,
    read_lines,
)
from tracks_dagster.wings.kubernetes.effects.reads import EVENTS, JOBS, PODS, Listed, Reads, Wanted
from tracks_dagster.wings.kubernetes.gang_fold import PODS_MAX, GangFold
from tracks_dagster.wings.kubernetes.sightings import (
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

STOP_S_MAX = 10.0
LAST_LOGS_S = 3.0  # at a stop, for logs of pods that have just ended
RECALL_AGAIN_S = 2.0
WATCHER = "watcher"  # whose trouble is this process's own
STORED = "stored"  # what earlier watchers put into the store
_log = logging.getLogger(__name__)
EVENTS_WAITING_MAX = 256  # about what is not known yet: an event may come before its pod does
# What every start reports and statuses show as well.
_ROUTINE = (
    "Scheduled",
    "Pulling",
    "Pulled",
    "Created",
    "Started",
    "Killing",
    "SuccessfulCreate",
    "SuccessfulDelete",
)
EVENT_FIELDS = ",".join(("involvedObject.kind!=Node", *(f"reason!={each}" for each in _ROUTINE)))


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
        self._now, self._clean = now, clean
        self._read_stored = partial(read_lines, store, prefix)
        self._lock = threading.RLock()  # of the five that follow
        self._fold = GangFold()
        self._newest = _NewestLines()
        self._sieve = EventSieve()
        self._resources = {each: _Resource() for each in (PODS, JOBS, EVENTS)}
        self._troubles: dict[str, str] = {}
        self._tails = _Tails()
        self._answers = _Answers()
        self._writer = EvidenceWriter(
            store,
            f"{prefix.rstrip('/')}/pods/{self.uid}",
            tails=self._tails.take,
            tails_every_s=pace.tails_every_s,
        )
        self._reads = Reads(client, namespace)
        self._logs = LogTails(
            self._reads,
            self._took_log,
            self.troubled,
            clean=clean,
            reads_per_s=pace.log_reads_per_s,
            every_s=pace.log_every_s,
        )
        self._threads = _Threads(self._broke)
        self._streams = self._make_streams(selector, pace.backoff)

    def _make_streams(self, selector: str, backoff: Backoff) -> tuple[ChangeStream, ...]:
        """Return a stream for each resource; they run once the watch is started."""
        wanted = (
            Wanted(resource=PODS, labels=selector),
            Wanted(resource=JOBS, labels=selector),
            Wanted(resource=EVENTS, fields=EVENT_FIELDS),
        )
        return tuple(
            ChangeStream(
                self._reads,
                each,
                self,
                stop=self._threads.stop,
                backoff=backoff,
                has_bookmarks=each.resource != EVENTS,
            )
            for each in wanted
        )

    def start(self) -> None:
        """Start to watch, and return at once; does nothing the second time."""
        streams = (stream.run for stream in self._streams)
        self._threads.start((self._recall, self._writer.run, *streams))

    def wait_until_listed(self, timeout_s: float) -> bool:
        """Wait until `seen` holds what there is now, and what earlier watchers stored.

        False when the API server or the store has not answered by then; a refusal is an answer.
        """
        return self._answers.wait(timeout_s)

    def seen(self) -> GangSeen:
        """Return what was seen so far. Cheap when nothing changed since the last call."""
        with self._lock:
            return self._fold.seen()

    def flush(self, timeout_s: float) -> bool:
        """Wait until everything seen so far is in the store."""
        return self._writer.flush(timeout_s)

    def stop(self) -> None:
        """Stop watching; what was seen is put into the store first. Bounded, in a few seconds."""
        self._threads.stop.set()
        self._logs.close(LAST_LOGS_S)
        self._reads.cut()
        self._writer.close()
        self._threads.join(STOP_S_MAX)

    def listed(self, resource: str, listed: Listed, gap: str) -> None:
        """Take everything there is, on the stream's thread; after a gap note what went unseen."""
        uids = {text(mapping(item.get("metadata")).get("uid")) for item in listed.items}
        with self._lock:
            self._resources[resource].present = uids
            self._resources[resource].listed_at = version_order(listed.version)
            self._miss(resource, gap)
            for item in listed.items:
                self.changed(resource, "LISTED", item)
            self._answers.add(resource)

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
            self._resources[resource].changed_at = at
            if resource == EVENTS:
                event = event_line(item, at=at, clean=self._clean)
                if change != "DELETED" and self._sieve.passes(event):  # deleted: it became old
                    self._take(event)
                return
            make = pod_line if resource == PODS else job_line
            line = make(change, item, at=at, clean=self._clean)
            before = self._newest.find(line["uid"])
            if not self._newest.put(line):
                return
            self._resources[resource].add(line["uid"])
            self._take(line)
            self._know(line["uid"], line["name"] if resource == JOBS else "")
            if resource == PODS:
                self._read_logs(line, before)

    def troubled(self, resource: str, message: str) -> None:
        """Keep why something cannot be watched, until it can."""
        with self._lock:
            if message:
                self._answers.add(resource)  # a refusal is an answer, too
            if self._troubles.get(resource) == message:
                return
            self._troubles[resource] = message
            self._take(problem_line(resource, self._clean(message), at=self._at()))

    def _broke(self, words: str) -> None:
        """Keep an unexpected error: its thread continues, and a person should know."""
        self.troubled(WATCHER, f"Cannot take in what happens to the gang: {words}")

    def _recall(self) -> None:
        """Take in what earlier watchers of the attempt stored, once the store answers."""
        while not self._threads.stop.is_set():
            try:
                lines = list(self._read_stored())
            except StoreError:
                self._threads.stop.wait(RECALL_AGAIN_S)
                continue
            with self._lock:
                for line in lines:
                    self._fold.add(line)
                for job in self._fold.seen().jobs:
                    self._know(job.uid, job.name)
                for pod in self._fold.seen().pods:
                    self._know(pod.uid, "")
                for resource in (PODS, JOBS):
                    if self._resources[resource].present is not None:
                        self._miss(resource, "")  # what went between two watchers
            self._answers.add(STORED)
            return

    def _take(self, line: Line) -> None:
        self._fold.add(line)
        self._writer.add(line)

    def _miss(self, resource: str, gap: str) -> None:
        """Record the pods and Jobs that disappeared unseen.

        What another watcher saw after that LIST is not missed: the stream here has yet to send it.
        """
        seen = self._fold.seen()
        known: Sequence[PodStory | JobStory] = ()
        if resource != EVENTS:  # these only become old
            known = seen.pods if resource == PODS else seen.jobs
        newest = self._resources[resource]
        present = newest.present or set()
        left = [each for each in known if each.gone_at is None and each.uid not in present]
        missed = [e for e in left if self._fold.version_of(e.uid) <= newest.listed_at]
        at = self._at()
        if gap:
            since, names = newest.changed_at, [each.name for each in missed]
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
            self._tails.put(uid, line, is_last=whole)
            if whole or at_once:
                self._writer.add(line)

    def _at(self) -> str:
        return format_time(self._now())


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How often the watch reads. log_reads_per_s: for the whole gang; log_every_s: for each pod."""

    backoff: Backoff = field(default_factory=Backoff)
    log_reads_per_s: float = LOG_READS_PER_S
    log_every_s: float = LOG_EVERY_S
    tails_every_s: float = TAILS_EVERY_S


@dataclass(slots=True)
class _Resource:
    """What the watch knows of the pods, or of the Jobs, beside their lines.

    present: uids that the newest LIST had, and that came since; None before the first LIST. listed_at:
    of which version that LIST was. changed_at: when anything of it was seen last.
    """

    present: set[str] | None = None
    listed_at: tuple[int, str] = (0, "")
    changed_at: str = ""

    def add(self, uid: str) -> None:
        """Take in one that was seen since the LIST."""
        if self.present is not None:
            self.present.add(uid)


class _NewestLines:
    """The newest line of each pod and Job, of two gangs' worth at the most."""

    def __init__(self) -> None:
        self._lines: dict[str, Line] = {}

    def find(self, uid: str) -> Line | None:
        return self._lines.get(uid)

    def put(self, line: Line) -> bool:
        """Keep the line; False where it shows nothing new, or there is no room for another object."""
        before = self._lines.get(line["uid"])
        if before is None and len(self._lines) >= 2 * PODS_MAX:
            return False
        if same_sight(line, before):
            return False
        self._lines[line["uid"]] = line
        return True


class _Tails:
    """The newest log line of each pod that runs. Safe from several threads."""

    def __init__(self) -> None:
        self._lines: dict[str, Line] = {}
        self._has_news = False
        self._lock = threading.Lock()

    def put(self, uid: str, line: Line, *, is_last: bool) -> None:
        """Keep the pod's line; the last one of a pod is not a tail any more."""
        with self._lock:
            self._lines[uid] = line
            self._has_news = True
            if is_last:
                del self._lines[uid]

    def take(self) -> Sequence[Line] | None:
        """Return all lines if any is new since the last call."""
        with self._lock:
            if not self._has_news or not self._lines:
                return None
            self._has_news = False
            return list(self._lines.values())


class _Answers:
    """Who has answered once: the store, with what earlier watchers saw, and each resource."""

    def __init__(self) -> None:
        self._events = {each: threading.Event() for each in (STORED, PODS, JOBS, EVENTS)}

    def add(self, source: str) -> None:
        """Remember the answer; of a source that nobody waits for, nothing."""
        if source in self._events:
            self._events[source].set()

    def wait(self, timeout_s: float) -> bool:
        """Wait for all, for each so long; False when one has not answered."""
        return all(event.wait(timeout_s) for event in self._events.values())


class _Threads:
    """The threads of one watch: started once, and never after the stop."""

    def __init__(self, troubled: Callable[[str], None]) -> None:
        self.stop = threading.Event()
        self._troubled = troubled
        self._threads: list[LastingThread] = []
        self._lock = threading.Lock()

    def start(self, runs: Iterable[Callable[[], None]]) -> None:
        """Start a thread for each, at the first call."""
        with self._lock:
            if self._threads or self.stop.is_set():
                return
            self._threads = [
                LastingThread(run, "pod-watch", self.stop, self._troubled) for run in runs
            ]
        for thread in self._threads:
            thread.start()

    def join(self, seconds_max: float) -> None:
        """Wait for the threads to end, at most so long for all of them."""
        for thread in self._threads:
            thread.join(seconds_max / len(self._threads))


class EventSieve:
    """Knows the uids of a gang's pods and Jobs, and the names of its Jobs. Not safe from threads."""

    def __init__(self) -> None:
        self._uids: set[str] = set()
        self._jobs: set[str] = set()
        self._waiting: deque[Line] = deque(maxlen=EVENTS_WAITING_MAX)

    def know(self, uid: str, *, job: str = "") -> list[Line]:
        """Take in a pod or a Job (by its name too); returns the events that waited for it."""
        if uid in self._uids:
            return []
        self._uids.add(uid)
        if job:
            self._jobs.add(job)
        found = [line for line in self._waiting if self._is_ours(line)]
        rest = [line for line in self._waiting if not self._is_ours(line)]
        self._waiting = deque(rest, maxlen=EVENTS_WAITING_MAX)
        return found

    def passes(self, line: Line) -> bool:
        """Whether an event is about the gang; another waits, the oldest make room."""
        if self._is_ours(line):
            return True
        self._waiting.append(line)
        return False

    def _is_ours(self, line: Line) -> bool:
        """A pod that went before anybody saw it is known by its name, which begins with its Job's."""
        about = line["about"]
        if about["uid"] in self._uids:
            return True
        is_pod, name = about["kind"] == "Pod", about["name"]
        return is_pod and any(name.startswith(f"{job}-") for job in self._jobs)

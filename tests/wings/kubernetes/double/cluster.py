"""The double's one thread of control: it looks at what changed, at what is due, and at what ended.

Controllers and faults run on this thread only, so they never meet half a step of one another. Other
threads (the HTTP server's) change objects and leave; a fault asked for by a test is done before the
asking returns.
"""

from __future__ import annotations

import heapq
import itertools
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import TypeVar

from tests.wings.kubernetes.double import deletion
from tests.wings.kubernetes.double.answers import Json
from tests.wings.kubernetes.double.events import Events
from tests.wings.kubernetes.double.jobs import RESOURCE as JOBS
from tests.wings.kubernetes.double.jobs import JobController
from tests.wings.kubernetes.double.kinds import JOBSETS
from tests.wings.kubernetes.double.kubelet import Image, Kubelet
from tests.wings.kubernetes.double.nodes import NodeController
from tests.wings.kubernetes.double.objects import Change, Key, Objects, key_of

TICK_S = 0.02
PLACE_EVERY_S = 0.2  # pods that found no node are tried again when one has room, not more often
OWNERS = {"Job": JOBS, "JobSet": JOBSETS}
ASK_S_MAX = 60.0
ASKED_MAX = 1000
T = TypeVar("T")


class Cluster:
    """admit: raises what a quota says of a new pod. pretend: pods without processes."""

    def __init__(
        self,
        objects: Objects,
        *,
        image: Image,
        folder: Path,
        admit: Callable[[str, Json], None],
        pretend: bool,
    ) -> None:
        self.events = Events(objects)
        self.kubelet = Kubelet(
            objects,
            self.events,
            image=image,
            folder=folder,
            later=self._later,
            pretend=pretend,
        )
        self._jobs = JobController(objects, self.events, later=self._later, admit=admit)
        self.nodes = NodeController(objects, self.events, self.kubelet)
        self._objects = objects
        self._dirty: dict[tuple[str, Key], None] = {}  # in the order in which they changed
        self._gone: dict[str, None] = {}
        self._due: list[tuple[float, int, str, Key]] = []
        self._numbers = itertools.count()
        self._asked: queue.Queue[tuple[Callable[[], object], Future[object]]] = queue.Queue(
            ASKED_MAX
        )
        self._wake, self._over = threading.Event(), threading.Event()
        self.broke: BaseException | None = None
        self._controllers: dict[str, list[Callable[[Key], None]]] = {
            "pods": [self.kubelet.sync],
            JOBS: [self._jobs.sync],
            "nodes": [self.nodes.sync],
        }
        self._is_freed, self._place_at = False, 0.0
        objects.listeners.append(self._see)
        self._thread = threading.Thread(target=self._run, name="kube-double", daemon=True)
        self._thread.start()

    def ask(self, deed: Callable[[], T]) -> T:
        """Let the cluster's thread do it, and return what it returned."""
        if self.broke is not None:
            raise AssertionError("The double of the API server broke.") from self.broke
        done: Future[T] = Future()
        self._asked.put((deed, done), timeout=ASK_S_MAX)  # type: ignore[arg-type]
        self._wake.set()
        return done.result(ASK_S_MAX)

    def close(self) -> None:
        """Stop, and end every process. Raises what broke the double, should something have."""
        self._over.set()
        self._wake.set()
        self._thread.join(ASK_S_MAX)
        self.kubelet.close()
        if self.broke is not None:
            raise AssertionError("The double of the API server broke.") from self.broke

    def add_controller(self, resource: str, sync: Callable[[Key], None]) -> None:
        """Let that be called, on the cluster's thread, with each object that changed."""
        self._controllers.setdefault(resource, []).append(sync)

    def look_at(self, resource: str, key: Key) -> None:
        """Look at that object again soon."""
        with self._objects.changed:
            self._dirty[resource, key] = None
        self._wake.set()

    def later(self, seconds: float, resource: str, key: Key) -> None:
        """Look at an object again after a time; for what runs on the cluster's thread."""
        self._later(seconds, resource, key)

    def _see(self, change: Change) -> None:
        """Note what to look at; called under the lock of the objects."""
        new, resource = change.new, change.resource
        if resource in self._controllers:
            self._dirty[resource, key_of(new)] = None
        for owner in new["metadata"].get("ownerReferences") or ():
            owning = OWNERS.get(owner["kind"])
            if owning is not None:
                self._dirty[owning, (new["metadata"]["namespace"], owner["name"])] = None
            if not self._objects.is_there(owner["uid"]):
                self._gone[owner["uid"]] = None
        if change.type == "DELETED":
            self._gone[new["metadata"]["uid"]] = None
        if resource == "nodes" or (resource == "pods" and _frees(change)):
            self._is_freed = True
        self._wake.set()

    def _later(self, seconds: float, resource: str, key: Key) -> None:
        heapq.heappush(self._due, (time.monotonic() + seconds, next(self._numbers), resource, key))

    def _run(self) -> None:
        try:
            while not self._over.is_set():
                self._wake.wait(TICK_S)
                self._wake.clear()
                self._round()
        except Exception as error:  # noqa: BLE001 - raised by close, and by the next ask
            self.broke = error
            while not self._asked.empty():
                self._asked.get()[1].set_exception(error)

    def _round(self) -> None:
        while self._due and self._due[0][0] <= time.monotonic():
            _, _, resource, key = heapq.heappop(self._due)
            self.look_at(resource, key)
        self.kubelet.poll()
        for _ in range(self._asked.qsize()):
            deed, done = self._asked.get()
            try:
                done.set_result(deed())
            except Exception as error:  # noqa: BLE001 - the asker gets it
                done.set_exception(error)
        with self._objects.changed:
            gone, dirty = list(self._gone), list(self._dirty)
            self._gone.clear()
            self._dirty.clear()
        for uid in gone:
            deletion.collect(self._objects, uid)
        dirty.sort(key=lambda noted: noted[0] != "pods")  # kubelets are quicker than controllers
        for resource, key in dirty:
            for sync in self._controllers.get(resource, ()):
                sync(key)
        if self._is_freed and time.monotonic() >= self._place_at:
            self._is_freed, self._place_at = False, time.monotonic() + PLACE_EVERY_S
            self.kubelet.place_waiting()


def _frees(change: Change) -> bool:
    """Whether a pod gave its place on a node back."""
    return change.type == "DELETED" or (
        change.new["status"]["phase"] in ("Succeeded", "Failed")
        and change.old is not None
        and change.old["status"]["phase"] not in ("Succeeded", "Failed")
    )

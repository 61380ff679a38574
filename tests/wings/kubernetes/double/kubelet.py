"""The nodes' kubelets and the scheduler: they bring pods to life as local processes, and to an end.

Runs on the cluster's one thread; nothing here waits. A pod on a lost node is not looked at: its
process goes on, and its object stays as it is.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

from tests.wings.kubernetes.double import deletion, scheduler, shapes, volumes
from tests.wings.kubernetes.double.answers import Json
from tests.wings.kubernetes.double.container import Container, Pretence
from tests.wings.kubernetes.double.environment import Network, Translation, environment, expand
from tests.wings.kubernetes.double.events import KUBELET, SCHEDULER, Events
from tests.wings.kubernetes.double.images import Image, pull_error
from tests.wings.kubernetes.double.lives import Eviction, Life
from tests.wings.kubernetes.double.logs import LogPump, last_words
from tests.wings.kubernetes.double.objects import Key, Objects, key_of
from tests.wings.kubernetes.double.volumes import MissingReference, MountFailed

AGAIN_S = 0.2  # a pull or a placement that failed is tried again
NOTHING = Path(os.devnull)
PODS_RUNNING_MAX = 64  # processes; pretences have no limit of their own


class Kubelet:
    """later: asks to look at a key again after some seconds."""

    def __init__(
        self,
        objects: Objects,
        events: Events,
        *,
        image: Image,
        folder: Path,
        later: Callable[[float, str, Key], None],
        pretend: bool,
    ) -> None:
        self.image, self.lost = image, set[str]()
        self.lives: dict[str, Life] = {}
        self._objects, self._events, self._folder = objects, events, folder
        self._later, self._pretend = later, pretend
        self._network, self._pump = Network(), LogPump()
        self._logs: dict[str, Path] = {}
        self._usage = scheduler.Usage(objects)
        self._waiting: dict[Key, None] = {}  # pods that found no node
        self._processes: dict[str, Life] = {}  # of the lives, those with a process
        self._over: list[str] = []  # uids of pretences whose end was given
        self._uids: dict[Key, set[str]] = defaultdict(set)

    def sync(self, key: Key) -> None:
        """Look at one pod and do the next thing for it."""
        pod = self._objects.find("pods", *key)
        for uid in list(self._uids.get(key, ())):
            life = self.lives[uid]
            replaced = pod is None or pod["metadata"]["uid"] != uid
            if replaced and life.pod["spec"]["nodeName"] not in self.lost:
                life.container.kill()
                self._drop(life)
        if pod is None or pod["spec"].get("nodeName") in self.lost:
            return
        if shapes.is_going(pod):
            self._end(pod)
        elif shapes.is_terminal(pod):
            return
        elif not pod["spec"].get("nodeName"):
            if key not in self._waiting:
                self._place(pod)
        elif pod["metadata"]["uid"] not in self.lives:
            self._begin(pod)

    def poll(self) -> None:
        """Write down the containers that ended; kill those whose grace is over."""
        ended = [self.lives[uid] for uid in self._over if uid in self.lives]
        self._over.clear()
        for life in [*self._processes.values(), *ended]:
            if life.pod["spec"]["nodeName"] in self.lost:
                continue
            if life.kill_at is not None and time.monotonic() >= life.kill_at:
                life.container.kill()
            code = life.container.poll()
            if code is not None:
                self._drop(life)
                self._ended(life, code)

    def forget(self, pod: Json) -> None:
        """Its machine is gone, and its process with it; nobody is left to write that down."""
        life = self.lives.get(pod["metadata"]["uid"])
        if life is not None:
            self._drop(life)
            life.container.kill()

    def shut_down(self, life: Life) -> None:
        """End one pod because its machine is shut down in order."""
        words = "Pod was terminated in response to imminent node shutdown."
        life.eviction = Eviction(message=words, marked=True, reason="Terminated")
        grace_s = life.pod["spec"].get("terminationGracePeriodSeconds", deletion.GRACE_S)
        life.kill_at = time.monotonic() + grace_s
        life.container.terminate()

    def named(self, name: str) -> list[Life]:
        """Return what runs under that pod's name: a zombie has another uid than its namesake."""
        uids = [uid for key, those in self._uids.items() if key[1] == name for uid in those]
        return [self.lives[uid] for uid in uids]

    def look_again(self, node: str) -> list[Key]:
        """Return the pods that run on a node."""
        lives = self.lives.values()
        return [key_of(life.pod) for life in lives if life.pod["spec"]["nodeName"] == node]

    def place_waiting(self) -> None:
        """Try those again that found no node."""
        waiting, self._waiting = self._waiting, {}
        for key in waiting:
            self.sync(key)

    def _keep(self, pod: Json, container: Container | Pretence) -> Life:
        life, uid = Life(pod=pod, container=container), pod["metadata"]["uid"]
        self.lives[uid] = life
        self._uids[key_of(pod)].add(uid)
        if isinstance(container, Pretence):
            container.on_end = lambda: self._over.append(uid)
        else:
            self._processes[uid] = life
        return life

    def _drop(self, life: Life) -> None:
        uid, key = life.pod["metadata"]["uid"], key_of(life.pod)
        del self.lives[uid]
        self._processes.pop(uid, None)
        self._uids[key].discard(uid)
        if not self._uids[key]:
            del self._uids[key]

    def log_of(self, uid: str) -> Path | None:
        """Return the log of a pod's container, once it began; a pretence wrote nothing."""
        return NOTHING if self._pretend and uid in self.lives else self._logs.get(uid)

    def close(self) -> None:
        """Kill everything, lost nodes too."""
        for life in self.lives.values():
            life.container.kill()
        self.lives.clear()
        self._processes.clear()
        self._pump.close()

    def _place(self, pod: Json) -> None:
        nodes, _ = self._objects.all("nodes")
        why = volumes.unbound(self._objects, pod, len(nodes))
        name, why = (None, why) if why else self._usage.choose(pod, nodes)
        if name is None:
            self._objects.change("pods", pod, lambda p: shapes.unschedulable(p, why))
            self._say(pod, "FailedScheduling", why, warning=True, source=SCHEDULER)
            self._waiting[key_of(pod)] = None
            return
        self._objects.change("pods", pod, lambda p: shapes.scheduled(p, name))
        message = f"Successfully assigned {'/'.join(key_of(pod))} to {name}"
        self._say(pod, "Scheduled", message, source=SCHEDULER)

    def _say(
        self, pod: Json, reason: str, words: str, *, warning: bool = False, source: str = KUBELET
    ) -> None:
        self._events.write("Pod", pod, reason, words, warning=warning, source=source)

    def _begin(self, pod: Json) -> None:
        if "containerStatuses" not in pod["status"]:
            pod = self._objects.change("pods", pod, shapes.creating) or pod
        spec = pod["spec"]["containers"][0]
        if (refusal := self.image.refusal(spec)) is not None:
            self._refuse(pod, *refusal, event="InspectFailed")
            return
        if spec["image"] in self.image.missing:
            self._cannot_pull(pod, spec["image"])
            return
        if not self._pretend and len(self.lives) >= PODS_RUNNING_MAX:
            self._later(AGAIN_S, "pods", key_of(pod))  # the machine is full; the pod waits
            return
        try:
            container = Pretence() if self._pretend else self._start(pod)
        except MissingReference as missing:
            self._say_pulled(pod)
            self._refuse(pod, "CreateContainerConfigError", str(missing))
            return
        except MountFailed as failed:
            self._say(pod, "FailedMount", str(failed), warning=True)
            self._later(AGAIN_S, "pods", key_of(pod))
            return
        except OSError as error:
            self._cannot_start(pod, str(error))
            return
        self._keep(pod, container)
        self._objects.change("pods", pod, shapes.running)
        self._say_pulled(pod)
        if not self._pretend:
            self._say(pod, "Created", f"Created container: {spec['name']}")
        self._say(pod, "Started", f"Started container {spec['name']}")

    def _start(self, pod: Json) -> Container:
        uid = pod["metadata"]["uid"]
        folder = self._folder / uid
        folder.mkdir(parents=True, exist_ok=True)
        translate = Translation(pod, folder=folder, network=self._network)
        namespace = pod["metadata"]["namespace"]
        volumes.write(self._objects, pod, translate.folders)
        variables = environment(
            pod,
            image=self.image.variables(),
            read=lambda r, n: volumes.data_of(self._objects, r, namespace, n),
        )
        spec = pod["spec"]["containers"][0]
        first = spec.get("command") or self.image.entrypoints.get(spec["image"], ())
        command = [expand(part, variables) for part in [*first, *(spec.get("args") or ())]]
        if not command:
            raise OSError(f"image {spec['image']} has no entrypoint, and the pod names no command")
        container = Container(
            uid,
            [translate(part) for part in command],
            {name: translate(value) for name, value in variables.items()},
            folder,
        )
        container.pump_to(self._pump)
        self._logs[uid] = container.log
        return container

    def _say_pulled(self, pod: Json) -> None:
        if not self._pretend:
            image = pod["spec"]["containers"][0]["image"]
            words = f'Container image "{image}" already present on machine'
            self._say(pod, "Pulled", words)

    def _refuse(self, pod: Json, reason: str, message: str, *, event: str = "") -> None:
        """Let the container wait, and try again."""
        self._objects.change("pods", pod, lambda p: shapes.refused(p, reason, message))
        if event:
            self._say(pod, event, message, warning=True)
        words = reason if event else message
        self._say(pod, "Failed", f"Error: {words}", warning=True)
        self._later(AGAIN_S, "pods", key_of(pod))

    def _cannot_pull(self, pod: Json, image: str) -> None:
        waiting = pod["status"]["containerStatuses"][0]["state"].get("waiting", {})
        again = waiting.get("reason") in ("ErrImagePull", "ImagePullBackOff")
        self._objects.change("pods", pod, lambda p: shapes.image_missing(p, backs_off=again))
        error = pull_error(image)
        if again:
            self._say(pod, "BackOff", f'Back-off pulling image "{image}"')
            self._say(pod, "Failed", "Error: ImagePullBackOff", warning=True)
        else:
            self._say(pod, "Pulling", f'Pulling image "{image}"')
            self._say(pod, "Failed", f'Failed to pull image "{image}": {error}', warning=True)
            self._say(pod, "Failed", "Error: ErrImagePull", warning=True)
        self._later(AGAIN_S, "pods", key_of(pod))

    def _cannot_start(self, pod: Json, why: str) -> None:
        self._objects.change(
            "pods", pod, lambda p: shapes.ended(p, 128, with_phase=False, reason="StartError")
        )
        self._objects.change("pods", pod, shapes.closed)
        self._say(pod, "Failed", f"Error: {why}", warning=True)

    def _end(self, pod: Json) -> None:
        """Act on a deletion: SIGTERM once, and a time for SIGKILL."""
        life = self.lives.get(pod["metadata"]["uid"])
        if life is None:
            if pod["metadata"]["deletionGracePeriodSeconds"] > 0:
                self._objects.change("pods", pod, shapes.over)
            deletion.let_go(self._objects, pod)
            return
        until = time.monotonic() + pod["metadata"]["deletionGracePeriodSeconds"]
        if life.kill_at is not None:
            life.kill_at = min(life.kill_at, until)
            return
        self._objects.change("pods", pod, shapes.deletion_seen)
        name = pod["spec"]["containers"][0]["name"]
        self._say(pod, "Killing", f"Stopping container {name}")
        life.kill_at = until
        life.container.terminate()

    def _ended(self, life: Life, code: int) -> None:
        pod = self._objects.find("pods", *key_of(life.pod))
        if pod is None or pod["metadata"]["uid"] != life.pod["metadata"]["uid"]:
            return
        if life.eviction is not None:
            why = life.eviction
            self._objects.change(
                "pods",
                pod,
                lambda p: shapes.evicted(
                    p, why.message, disrupted_too=why.marked, reason=why.reason, code=code
                ),
            )
            return
        going, oom = shapes.is_going(pod), life.out_of_memory
        words = last_words(life.container.log) if code and _wants_words(pod) else ""
        self._objects.change(
            "pods",
            pod,
            lambda p: shapes.ended(p, code, out_of_memory=oom, with_phase=going, message=words),
        )
        self._objects.change("pods", pod, shapes.over if going else shapes.closed)
        if going:
            deletion.let_go(self._objects, pod)


def _wants_words(pod: Json) -> bool:
    policy = pod["spec"]["containers"][0].get("terminationMessagePolicy")
    return policy == "FallbackToLogsOnError"

"""A test double of the Kubernetes API server, with pods that are local processes.

    with kube_double(folder) as kube:
        client = kube.client()              # the real `kubernetes` client's ApiClient
        kube.kubeconfig                     # a file, for whatever reads one
        ...
        kube.preempt("pod-name")            # faults are done when the call returns

It has just the paths that the product and dagster-k8s call, one container a pod, no restarts, and this
machine's network (see `environment`). Status shapes are those recorded on Kubernetes 1.34.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tests.wings.kubernetes.double import deletion, extensions, furniture, shapes
from tests.wings.kubernetes.double.answers import Json
from tests.wings.kubernetes.double.api import Api
from tests.wings.kubernetes.double.cluster import Cluster
from tests.wings.kubernetes.double.container import Pretence
from tests.wings.kubernetes.double.events import SCHEDULER
from tests.wings.kubernetes.double.faults import Desk, Misbehaviour
from tests.wings.kubernetes.double.furniture import NAMESPACE, TOKEN
from tests.wings.kubernetes.double.images import Image
from tests.wings.kubernetes.double.kueue import Kueue
from tests.wings.kubernetes.double.lives import Eviction, Life
from tests.wings.kubernetes.double.objects import HISTORY_MAX, Objects
from tests.wings.kubernetes.double.quota import Quota
from tests.wings.kubernetes.double.server import Server

if TYPE_CHECKING:
    from kubernetes.client import ApiClient


class KubeDouble:
    """The running double. folder: its logs, volumes and kubeconfig.

    image_env: variables of every image, beside PATH, HOME and LANG. entrypoints: image → command of
    pods that name none. pretend: pods without processes, ended by `finish`.
    """

    def __init__(
        self,
        folder: Path,
        *,
        image_env: Mapping[str, str] | None = None,
        entrypoints: Mapping[str, Sequence[str]] | None = None,
        pretend: bool = False,
        history_max: int = HISTORY_MAX,
    ) -> None:
        self._folder, self._closed = folder, False
        self.objects = Objects(history_max=history_max)
        self._desk = Desk(user=f"system:serviceaccount:{NAMESPACE}:tests")
        image = Image(environ=image_env or {}, entrypoints=entrypoints or {})
        self._cluster = Cluster(
            self.objects,
            image=image,
            folder=folder / "pods",
            admit=lambda resource, new: self.api.admit(resource, new),
            pretend=pretend,
        )
        self.api = Api(self.objects, self._cluster, self._desk)
        self.missing_images = image.missing
        self.add_namespace(NAMESPACE)
        for name in ("node1", "node2"):
            self.add_node(name)
        self._server = Server(self.api.handle, token=TOKEN)
        self.url = f"http://127.0.0.1:{self._server.port}"
        self.kubeconfig = folder / "kubeconfig"
        self.kubeconfig.write_text(json.dumps(furniture.kubeconfig(self.url)))

    def close(self) -> None:
        """Stop: no thread, process or socket of the double is left. Again is harmless."""
        if not self._closed:
            self._closed = True
            self._server.close()
            self._cluster.close()

    # --- what a test looks at

    @property
    def requests(self) -> Counter[tuple[str, str]]:
        """How often each (verb, resource) was asked, as a role names them."""
        return self._desk.requests

    @property
    def received(self) -> list[Json]:
        """The newest manifests that were posted or put, as they came."""
        return list(self._desk.received)

    @property
    def received_count(self) -> int:
        """How many came in all."""
        return self._desk.received_count

    def client(self) -> ApiClient:
        """Return a client of the real library, without retries."""
        from kubernetes import client, config

        settings = client.Configuration()
        config.load_kube_config(str(self.kubeconfig), client_configuration=settings)
        settings.retries = False
        return client.ApiClient(settings)

    def pod(self, name: str, namespace: str = NAMESPACE) -> Json:
        """Return a pod as it is now; 404 when it is gone."""
        return self.objects.get("pods", namespace, name)

    def pids(self) -> dict[str, int]:
        """Return pod name → pid of what runs, on lost nodes and of deleted pods too."""
        lives = list(self._cluster.kubelet.lives.values())
        return {life.pod["metadata"]["name"]: life.container.pid for life in lives}

    def lives(self) -> list[str]:
        """Return the uids of the pods that run, pretences too."""
        return list(self._cluster.kubelet.lives)

    def children(self, pod: str) -> list[int]:
        """Return the pids of what the pod's main process started."""
        return self._cluster.ask(lambda: self._life(pod).container.children())

    def folder_of(self, pod: str) -> Path:
        """Return the pod's own folder, which its process runs in."""
        return self._folder / "pods" / str(self.pod(pod)["metadata"]["uid"])

    # --- the cluster's furniture

    def add_namespace(self, name: str) -> None:
        """Add a namespace."""
        self.objects.create("namespaces", {"metadata": {"name": name}, "kind": "Namespace"})

    def add_node(
        self, name: str, *, allocatable: Mapping[str, str] = furniture.NODE, **labels: str
    ) -> None:
        """Add a node that is ready."""
        node = furniture.node(name, allocatable, labels)
        self.objects.create("nodes", node)

    def set_quota(self, name: str, hard: Mapping[str, str]) -> None:
        """Set a quota, as {"pods": "1"} or {"count/jobs.batch": "1"}; an empty one is none."""
        self.api.quotas = [q for q in self.api.quotas if q.name != name]
        old = self.objects.find("resourcequotas", NAMESPACE, name)
        if old is not None:
            self.objects.remove("resourcequotas", old)
        if hard:
            self.api.quotas.append(Quota(name=name, hard=dict(hard)))
            self.objects.create("resourcequotas", furniture.quota(name, hard))

    # --- faults of pods and nodes; each is done when the call returns

    def preempt(self, pod: str) -> None:
        """Let the scheduler take the pod's place for another: condition, then deletion."""
        self._disrupt(pod, shapes.PREEMPTION, generation=1, event="Preempted")

    def evict(self, pod: str) -> None:
        """Evict through the eviction API, as a drain of the node does: no event tells of it."""
        self._disrupt(pod, shapes.EVICTION, generation=None, event="")

    def evict_by_queue(self, pod: str) -> None:
        """Take the pod as Kueue does for a workload of higher priority."""
        why = ("WorkloadEvictedDueToPreempted", "Preempted to accommodate a workload")
        self._disrupt(pod, why, generation=None, event="Stopped", kind="TerminationTarget")

    def press_memory(self, pod: str) -> None:
        """Let the kubelet evict the pod because the node is low on memory."""
        name = self.pod(pod)["spec"]["containers"][0]["name"]
        self._evict_by_kubelet(pod, furniture.low_memory(name), disrupted_too=True)

    def fill_volume(self, pod: str, volume: str, limit: str = "1Gi") -> None:
        """Let the kubelet evict the pod because an emptyDir is over its limit: no condition."""
        message = f'Usage of EmptyDir volume "{volume}" exceeds the limit "{limit}". '
        self._evict_by_kubelet(pod, message, disrupted_too=False)

    def oom(self, pod: str, *, child: bool = False) -> None:
        """Kill the container's main process for memory, or its largest child only.

        After a child's end the main process ends as it likes, with any code, and is still
        reported as OOMKilled (cgroup v1).
        """

        def deed() -> None:
            life = self._life(pod)
            life.out_of_memory = True
            if child:
                life.container.kill_child()
            else:
                life.container.kill()

        self._cluster.ask(deed)

    def kill(self, pod: str) -> None:
        """Kill the container with nobody saying why: 137 and no condition."""
        self._cluster.ask(lambda: self._life(pod).container.kill())

    def finish(self, pod: str, code: int = 0) -> None:
        """End a pretended container."""

        def deed() -> None:
            container = self._life(pod).container
            assert isinstance(container, Pretence), f"{pod} is a process: kill it, or let it end"
            container.end(code)

        self._cluster.ask(deed)

    def lose_node(self, node: str, *, evict: bool = True) -> None:
        """Cut the node off: its processes go on, its pods are marked and deleted, and stay.

        evict: False is the first minutes of it: not ready, and nobody deletes anything yet.
        """

        self._cluster.ask(lambda: self._cluster.nodes.cut_off(node, evict=evict))

    def restore_node(self, node: str) -> None:
        """Let the node answer again: its kubelet ends what was deleted meanwhile."""

        def deed() -> None:
            for key in self._cluster.nodes.answers_again(node):
                self._cluster.look_at("pods", key)

        self._cluster.ask(deed)

    def remove_node(self, node: str) -> None:
        """Take a machine away, processes and all; the cloud's controller deletes its Node."""
        self._cluster.ask(lambda: self._cluster.nodes.remove(node))

    def shut_down_node(self, node: str) -> None:
        """Shut a machine down in order: its kubelet ends every pod, with SIGTERM and the grace."""
        self._cluster.ask(lambda: self._cluster.nodes.shut_down(node))

    def taint_node(self, node: str, key: str, effect: str, value: str = "") -> None:
        """Taint a node; NoExecute evicts the pods that do not tolerate it."""
        taint = {"key": key, "effect": effect, **({"value": value} if value else {})}
        found = self.objects.get("nodes", "", node)
        self.objects.change(
            "nodes", found, lambda n: n["spec"].setdefault("taints", []).append(taint)
        )

    # --- extensions

    def install_kueue(self) -> Kueue:
        """Install Kueue; what it returns decides who is admitted."""
        return extensions.install_kueue(self.objects, self._cluster, self.api)

    def install_jobset(self) -> None:
        """Install JobSet."""
        extensions.install_jobset(self.objects, self._cluster, self.api)

    # --- faults of the API server

    def break_watches(self) -> None:
        """Cut every open watch and followed log in the middle."""
        self._server.break_streams()
        self.objects.wake()

    def expire_resource_versions(self) -> None:
        """Forget all changes so far: a watch from an earlier version gets 410."""
        self.objects.forget_history()
        self.api.pages.forget()

    def restart(self, down_s: float = 0.0) -> None:
        """Restart the API server; pods go on, connections are cut."""
        self._server.restart(down_s)

    def deny(self, verb: str, resource: str) -> None:
        """Answer 403 to it, and to reviews of access; resource as "jobs.batch", "pods/log", "*"."""
        self._desk.denied.add((verb, resource))

    def allow(self, verb: str, resource: str) -> None:
        """Take a denial back."""
        self._desk.denied.discard((verb, resource))

    @contextmanager
    def misbehaving(self, wrong: Misbehaviour) -> Iterator[Misbehaviour]:
        """Do that wrong while the block runs."""
        self._desk.wrongs.append(wrong)
        try:
            yield wrong
        finally:
            self._desk.wrongs.remove(wrong)

    # --- below

    def _disrupt(
        self,
        name: str,
        why: tuple[str, str],
        *,
        generation: int | None,
        event: str,
        kind: str = "DisruptionTarget",
    ) -> None:
        def deed() -> None:
            pod = self.pod(name)
            self.objects.change(
                "pods", pod, lambda p: shapes.disrupted(p, why, generation=generation, kind=kind)
            )
            if event:
                words, source = why[1].partition(": ")[2] or why[1], "kueue-pod-controller"
                if event == "Preempted":
                    words, source = "Preempted by pod of a higher priority", SCHEDULER
                self._cluster.events.write("Pod", pod, event, words, source=source)
            deletion.delete_pod(self.objects, self.pod(name))

        self._cluster.ask(deed)

    def _evict_by_kubelet(self, name: str, message: str, *, disrupted_too: bool) -> None:
        def deed() -> None:
            life = self._life(name)
            life.eviction = Eviction(message=message, marked=disrupted_too)
            life.container.kill()
            self._cluster.events.write("Pod", life.pod, "Evicted", message, warning=True)

        self._cluster.ask(deed)

    def _life(self, name: str) -> Life:
        lives = self._cluster.kubelet.named(name)
        if not lives:
            raise AssertionError(f"Pod {name} does not run; {sorted(self.pids())[:20]} do.")
        return lives[0]


@contextmanager
def kube_double(folder: Path, **settings: object) -> Iterator[KubeDouble]:
    """Run a double; `settings` are those of KubeDouble."""
    folder.mkdir(parents=True, exist_ok=True)
    double = KubeDouble(folder, **settings)  # type: ignore[arg-type]
    try:
        yield double
    finally:
        double.close()

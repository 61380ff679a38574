"""What the control plane does when a node changes: taints that evict, nodes that are gone.

The words are those of the node lifecycle controller, the taint manager and the collector of pods.
"""

from __future__ import annotations

from tests.wings.kubernetes.double import deletion, furniture, scheduler, shapes
from tests.wings.kubernetes.double.answers import Json
from tests.wings.kubernetes.double.events import Events
from tests.wings.kubernetes.double.kubelet import Kubelet
from tests.wings.kubernetes.double.objects import Key, Objects, key_of

TAINT_MANAGER, NODE_CONTROLLER = "taint-eviction-controller", "node-controller"


class NodeController:
    """Runs on the cluster's one thread."""

    def __init__(self, objects: Objects, events: Events, kubelet: Kubelet) -> None:
        self._objects, self._events, self._kubelet = objects, events, kubelet

    def sync(self, key: Key) -> None:
        """Act on a node's NoExecute taints, or on its absence."""
        node = self._objects.find("nodes", *key)
        if node is None:
            self._remove_pods(key[1])
            return
        taints = [t for t in node["spec"].get("taints") or () if t["effect"] == "NoExecute"]
        for pod in self.pods_on(key[1]) if taints else ():
            if not shapes.is_going(pod) and scheduler.untolerated(pod, taints):
                self.evict_by_taint(pod)

    def pods_on(self, node: str) -> list[Json]:
        """Return the pods there that have not ended."""
        pods, _ = self._objects.all("pods")
        here = [pod for pod in pods if pod["spec"].get("nodeName") == node]
        return [pod for pod in here if not shapes.is_terminal(pod)]

    def cut_off(self, name: str, *, evict: bool) -> None:
        """Let a node answer no more. evict: its pods are marked and deleted, too."""
        self._kubelet.lost.add(name)
        node = self._objects.get("nodes", "", name)
        self.not_ready(node)
        for pod in self.pods_on(name) if evict else ():
            self.evict_by_taint(pod)
        effect = "NoExecute" if evict else "NoSchedule"
        self._objects.change(
            "nodes", node, lambda n: furniture.answers(n, ready="Unknown", effect=effect)
        )

    def answers_again(self, name: str) -> list[Key]:
        """Let a node answer; return the pods that run there, to be looked at."""
        self._kubelet.lost.discard(name)
        node = self._objects.get("nodes", "", name)
        self._objects.change("nodes", node, lambda n: furniture.answers(n, ready="True"))
        return self._kubelet.look_again(name)

    def remove(self, name: str) -> None:
        """Take a machine and its processes away, and its object."""
        for pod in self.pods_on(name):
            self._kubelet.forget(pod)
        self._objects.remove("nodes", self._objects.get("nodes", "", name))

    def shut_down(self, name: str) -> None:
        """Let a node's kubelet end its pods in order."""
        for pod in self.pods_on(name):
            for life in self._kubelet.named(pod["metadata"]["name"]):
                self._kubelet.shut_down(life)

    def not_ready(self, node: Json) -> None:
        """Say of each pod that its node does not answer."""
        message = f"Node {node['metadata']['name']} status is now: NodeNotReady"
        source = NODE_CONTROLLER
        self._events.write("Node", node, "NodeNotReady", message, source=source)
        for pod in self.pods_on(node["metadata"]["name"]):
            self._objects.change("pods", pod, shapes.not_ready)
            self._events.write(
                "Pod", pod, "NodeNotReady", "Node is not ready", warning=True, source=source
            )

    def evict_by_taint(self, pod: Json) -> None:
        """Mark and delete a pod because of a taint of its node."""
        self._objects.change("pods", pod, lambda p: shapes.disrupted(p, shapes.TAINT, generation=1))
        deletion.delete_pod(self._objects, pod)
        message = f"Marking for deletion Pod {'/'.join(key_of(pod))}"
        self._events.write("Pod", pod, "TaintManagerEviction", message, source=TAINT_MANAGER)

    def _remove_pods(self, node: str) -> None:
        """The collector of pods: a pod whose node's object is gone is failed and removed."""
        for pod in self.pods_on(node):
            self._objects.change("pods", pod, shapes.orphaned)
            self._kubelet.forget(pod)
            newest = self._objects.find("pods", *key_of(pod)) or pod
            deletion.delete_pod(self._objects, newest, 0)

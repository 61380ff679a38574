"""The API of the double: which path means which deed. No sockets here.

Just the resources of `kinds`; any other is a 404 that names it.
"""

from __future__ import annotations

from collections.abc import Callable

from tests.wings.kubernetes.double import answers, deletion, discovery, edits, shapes, streams
from tests.wings.kubernetes.double.answers import ApiError, Json
from tests.wings.kubernetes.double.cluster import Cluster
from tests.wings.kubernetes.double.faults import Desk, Misbehaviour, failure
from tests.wings.kubernetes.double.kinds import KINDS, REVIEWS, Kinds, selectable
from tests.wings.kubernetes.double.manifests import prepared
from tests.wings.kubernetes.double.objects import Objects, copied, key_of
from tests.wings.kubernetes.double.pages import Pages
from tests.wings.kubernetes.double.quota import Quota, check
from tests.wings.kubernetes.double.requests import Answer, Place, Request, place_of, verb_of
from tests.wings.kubernetes.double.selectors import Chosen, chosen, exact_label, truth
from tests.wings.kubernetes.double.streams import Alive

# what a deletion returns: the object as it goes, not a Status
_RETURNED = frozenset({"pods", "services", "serviceaccounts", "persistentvolumeclaims"})


class Api:
    """kinds: the resources that are there; groups: those that are listed beside them, empty.

    mutate: webhooks, called with each new object.
    """

    def __init__(self, objects: Objects, cluster: Cluster, desk: Desk) -> None:
        self.kinds: Kinds = dict(KINDS)
        self.groups: set[str] = set()
        self.quotas: list[Quota] = []
        self.mutate: list[Callable[[str, Json], None]] = []
        self.bookmark_every_s = 1.0
        self.pages = Pages()
        self._objects, self._cluster, self._desk = objects, cluster, desk

    def handle(self, request: Request, alive: Alive) -> Answer:
        """Return the answer, or raise ApiError. alive: whether a stream may go on."""
        result = discovery.body_at(request.path, self.kinds, self.groups)
        if result is not None:
            return Answer(text=result) if isinstance(result, str) else Answer(body=result)
        place = place_of(request.path)
        verb = verb_of(request, place)
        resource = f"{place.resource}/{place.part}" if place.part else place.resource
        known = self.kinds.get(place.resource)
        if place.resource not in REVIEWS and (known is None or known[1] != place.group_version):
            raise answers.unknown_path(request.path)
        wrong = self._desk.enter(verb, resource, place.name, place.namespace)
        if wrong.status is not None:
            raise failure(wrong.status)
        if place.resource in REVIEWS:
            body = discovery.review(self._desk, place.resource, request.body)
            return Answer(code=201, body=body, wrong=wrong)
        match verb, place.part:
            case "list", "":
                return Answer(body=self._list(request, place), wrong=wrong)
            case "watch", "":
                return self._watch(request, place, wrong, alive)
            case "get", "log":
                return self._log(request, place, wrong, alive)
        code, body = self._deed(request, place, verb)
        return Answer(code=code, body=body, wrong=wrong)

    def _deed(self, request: Request, place: Place, verb: str) -> tuple[int, Json]:
        match verb, place.part:
            case "create", "":
                return 201, self._create(request, place)
            case "create", "eviction":
                return 201, self._evict(place)
            case "get", ("" | "status"):
                return 200, self._objects.get(place.resource, place.namespace, place.name)
            case (("patch" | "update"), ("" | "status")):
                if verb == "update":
                    self._desk.receive(request.body)
                return 200, edits.edit(self._objects, request, place)
            case "delete", "":
                return 200, self._delete(request, place)
            case "deletecollection", "":
                return 200, self._delete_all(request, place)
        raise ApiError(
            405, "MethodNotAllowed", "the server does not allow this method on the resource"
        )

    def admit(self, resource: str, new: Json) -> None:
        """Raise what a quota says, or an account or a priority that is not there."""
        if resource == "pods":
            _check_priority(self._objects, new)
        check(self.quotas, self._objects, resource, new)

    def _list(self, request: Request, place: Place) -> Json:
        query, limit = request.query, int(request.query.get("limit") or 0)
        kind, api, _ = self.kinds[place.resource]
        result = {"kind": f"{kind}List", "apiVersion": api}
        if token := query.get("continue"):
            return {**result, **self.pages.next(token, limit)}
        test = _test(query, place)
        items, version = self._objects.all(
            place.resource, exact_label(query.get("labelSelector", ""))
        )
        return {**result, **self.pages.first([i for i in items if test(i)], version, limit)}

    def _watch(self, request: Request, place: Place, wrong: Misbehaviour, alive: Alive) -> Answer:
        query = request.query
        events = streams.watch(
            self._objects,
            place.resource,
            _test(query, place),
            kind=self.kinds[place.resource],
            version=query.get("resourceVersion", ""),
            timeout_s=float(query.get("timeoutSeconds") or streams.WATCH_S_MAX),
            bookmark_every_s=(
                self.bookmark_every_s if truth(query, "allowWatchBookmarks") else None
            ),
            alive=alive,
            trigger=exact_label(query.get("labelSelector", "")),
            initial=truth(query, "sendInitialEvents"),
        )
        return Answer(events=events, wrong=wrong)

    def _log(self, request: Request, place: Place, wrong: Misbehaviour, alive: Alive) -> Answer:
        pod = self._objects.get("pods", place.namespace, place.name)
        uid, kubelet = pod["metadata"]["uid"], self._cluster.kubelet
        name = pod["spec"]["containers"][0]["name"]
        asked = request.query.get("container", name)
        if asked != name:
            raise ApiError(
                400, "BadRequest", f"container {asked} is not valid for pod {place.name}"
            )
        if truth(request.query, "previous"):
            why = f'previous terminated container "{name}" in pod "{place.name}" not found'
            raise ApiError(400, "BadRequest", why)
        if pod["spec"].get("nodeName") in kubelet.lost:
            why = f'Get "https://{pod["spec"]["nodeName"]}:10250/containerLogs/": i/o timeout'
            raise ApiError(500, "InternalError", why)
        path = kubelet.log_of(uid)
        if path is None:
            waiting = (pod["status"].get("containerStatuses") or [{}])[0].get("state", {})
            why = waiting.get("waiting", {}).get("reason", "ContainerCreating")
            why = f'container "{name}" in pod "{place.name}" is waiting to start: {why}'
            raise ApiError(400, "BadRequest", why)
        runs = lambda: uid in kubelet.lives  # noqa: E731
        return Answer(lines=streams.log(path, request.query, runs=runs, alive=alive), wrong=wrong)

    def _create(self, request: Request, place: Place) -> Json:
        if self.kinds[place.resource][2]:
            self._objects.get("namespaces", "", place.namespace)
        kind, api, _ = self.kinds[place.resource]
        self._desk.receive({"apiVersion": api, "kind": kind, **request.body})
        new = prepared(place.resource, copied(request.body), place.namespace, self.kinds)
        for mutate in self.mutate:
            mutate(place.resource, new)
        self.admit(place.resource, new)
        if request.query.get("dryRun"):
            if self._objects.find(place.resource, *key_of(new)):
                raise answers.already_exists(place.resource, place.name)
            return new
        return self._objects.create(place.resource, new)

    def _evict(self, place: Place) -> Json:
        pod = self._objects.get("pods", place.namespace, place.name)
        if not shapes.is_terminal(pod):
            self._objects.change("pods", pod, lambda p: shapes.disrupted(p, shapes.EVICTION))
        deletion.delete_pod(self._objects, pod)
        return answers.success("", "", "")

    def _delete(self, request: Request, place: Place) -> Json:
        found = self._objects.get(place.resource, place.namespace, place.name)
        wanted = (request.body or {}).get("preconditions") or {}
        for name, word in (("uid", "UID"), ("resourceVersion", "ResourceVersion")):
            has = found["metadata"][name]
            if wanted.get(name) not in (None, has):
                why = f"Precondition failed: {word} in precondition: {wanted[name]}, "
                why += f"{word} in object meta: {has}"
                raise answers.conflict(place.resource, place.name, why)
        return self._delete_one(request, place.resource, found)

    def _delete_one(self, request: Request, resource: str, found: Json) -> Json:
        options = {**request.query, **(request.body or {})}
        if options.get("dryRun"):
            return found
        grace = options.get("gracePeriodSeconds")
        policy = options.get("propagationPolicy")
        if resource == "pods":
            return deletion.delete_pod(self._objects, found, None if grace is None else int(grace))
        left = deletion.delete(self._objects, resource, found, policy)
        if left is not None or resource in _RETURNED:
            return left or found
        return answers.success(resource, found["metadata"]["name"], found["metadata"]["uid"])

    def _delete_all(self, request: Request, place: Place) -> Json:
        test = _test(request.query, place)
        items = [i for i in self._objects.all(place.resource)[0] if test(i)]
        for item in items:
            self._delete_one(request, place.resource, item)
        kind, api, _ = self.kinds[place.resource]
        return {"kind": f"{kind}List", "apiVersion": api, "metadata": {}, "items": items}


def _test(query: dict[str, str], place: Place) -> Chosen:
    name = f"metadata.name={place.name}" if place.name else ""
    return chosen(
        labels=query.get("labelSelector", ""),
        fields=query.get("fieldSelector") or name,
        namespace=place.namespace,
        known=selectable(place.resource),
    )


def _check_priority(objects: Objects, pod: Json) -> None:
    """A priority class has to be there; its value goes into the pod."""
    wanted = pod["spec"].get("priorityClassName")
    if not wanted or wanted.startswith("system-"):
        return
    found = objects.find("priorityclasses.scheduling.k8s.io", "", wanted)
    if found is None:
        name = pod["metadata"].get("name") or ""
        raise answers.forbidden("pods", name, f"no PriorityClass with name {wanted} was found")
    pod["spec"] = {**pod["spec"], "priority": found.get("value", 0)}

"""What was seen of a gang on Kubernetes: the stories of its pods and Jobs, and the events about them.

A value only: `gang_fold` makes it of a watcher's lines, and `report` reads ends and conditions from
it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta

from tracks_dagster.reasons.kube_json import mapping, mappings, text, time_text
from tracks_dagster.track.records import Json, format_time, parse_time
from tracks_dagster.track.text.redact import Redact

FINAL_PHASES = ("Succeeded", "Failed")
FINAL_CONDITIONS = ("Complete", "Failed")
DISRUPTIONS = frozenset({"DisruptionTarget", "TerminationTarget"})  # conditions of a pod
Line = dict[str, Json]
MESSAGE_CHARACTERS_MAX = 1024
CONTAINERS_MAX = 16  # of one pod
CONDITIONS_MAX = 32  # of one object
MISSED_NAMED_MAX = 16  # of the objects that a gap hid
INDEX = "batch.kubernetes.io/job-completion-index"
_DEFAULT_CONTAINER = "kubectl.kubernetes.io/default-container"
# True while a pod runs well: only False means something.
_PROGRESS = frozenset(
    {"PodScheduled", "PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PodStory:
    """One pod, by its uid, from its birth to its end.

    index: the Job's completion index, None for a pod without one. history: its statuses, condensed, in
    order; the first and the newest ones of a long story. leaves_at: when somebody deleted it; gone_at:
    when its object was seen gone, until then its process may live. missed: nobody saw it go.
    log: the newest lines that were read; log_is_whole: it ended, and no more of its log can be read.
    """

    uid: str
    name: str
    index: int | None = None
    node: str | None = None
    born_at: str | None = None
    leaves_at: str | None = None
    gone_at: str | None = None
    missed: bool = False
    history: tuple[Mapping[str, Json], ...] = ()
    log: str = ""
    log_is_whole: bool = False

    @property
    def status(self) -> Mapping[str, Json]:
        """The newest status; an empty one when none was seen."""
        return self.history[-1] if self.history else {}

    @property
    def phase(self) -> str:
        """Pending, Running, Succeeded, Failed or Unknown."""
        return text(self.status.get("phase")) or "Unknown"

    @property
    def is_over(self) -> bool:
        """Whether nothing of it can live: it ended, or its object is gone. A pod that was deleted on
        a lost node is not over: its process may run on beside its replacement."""
        return self.gone_at is not None or self.phase in FINAL_PHASES

    @property
    def has_run(self) -> bool:
        """Whether a container of it was ever seen running or ended."""
        for status in self.history:
            for each in mappings(status.get("containerStatuses")):
                state = mapping(each.get("state"))
                if mapping(state.get("running")) or mapping(state.get("terminated")):
                    return True
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStory:
    """One Job, by its uid. conditions: all that were ever true, the newest of each type and reason."""

    uid: str
    name: str
    born_at: str | None = None
    leaves_at: str | None = None
    gone_at: str | None = None
    suspended: bool = False
    status: Mapping[str, Json] = field(default_factory=dict)
    conditions: tuple[Mapping[str, Json], ...] = ()

    @property
    def is_finished(self) -> bool:
        """Whether it is complete or has failed; its pods may then still be ending."""
        now = mappings(self.status.get("conditions"))
        return any(c.get("type") in FINAL_CONDITIONS and c.get("status") == "True" for c in now)


@dataclass(frozen=True, slots=True, kw_only=True)
class EventSeen:
    """One event, the newest state of it. about_*: the pod or Job that it is about."""

    uid: str
    about_kind: str
    about_name: str
    about_uid: str
    level: str
    reason: str
    message: str
    count: int
    first_at: str | None
    last_at: str | None
    by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """Changes of `resource` between the two times were not seen; missed: what went meanwhile."""

    resource: str
    since: str
    until: str
    why: str
    missed: tuple[str, ...] = ()
    missed_count: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GangSeen:
    """All that is known of one attempt's gang. problems: what cannot be watched now, and why.

    pods: by index, then by birth.
    """

    pods: tuple[PodStory, ...] = ()
    jobs: tuple[JobStory, ...] = ()
    events: tuple[EventSeen, ...] = ()
    gaps: tuple[Gap, ...] = ()
    problems: tuple[str, ...] = ()


# A line of a watcher's evidence is one JSON object with `kind` ("pod", "job", "event", "log", "gone",
# "gap" or "problem") and `at`, the watcher's own time; `gang_fold` reads them. Every text in it is
# bounded and cleaned of secrets here.


def pod_line(change: str, pod: Json, *, at: str, clean: Redact) -> Line:
    """Return a pod as it is now; change: the watch event's type, or LISTED."""
    meta, spec = mapping(mapping(pod).get("metadata")), mapping(mapping(pod).get("spec"))
    return {
        **_head("pod", change, meta, at),
        "index": _index(meta),
        "node": spec.get("nodeName"),
        "container": _container(meta, spec),
        "status": _status(mapping(mapping(pod).get("status")), clean),
    }


def job_line(change: str, job: Json, *, at: str, clean: Redact) -> Line:
    """Return a Job as it is now."""
    status = mapping(mapping(job).get("status"))
    counts = ("active", "ready", "succeeded", "failed", "terminating")
    content = {name: status[name] for name in counts if status.get(name)}
    content |= {name: status[name] for name in ("startTime", "completionTime") if status.get(name)}
    content["conditions"] = _conditions(status, clean)
    spec = mapping(mapping(job).get("spec"))
    head = _head("job", change, mapping(mapping(job).get("metadata")), at)
    return {**head, "suspend": spec.get("suspend") is True, "status": content}


def event_line(event: Json, *, at: str, clean: Redact) -> Line:
    """Return an event, of the old form (counted) or the new one (a series)."""
    content = mapping(event)
    meta, about = mapping(content.get("metadata")), mapping(content.get("involvedObject"))
    series = mapping(content.get("series"))
    first = _first_time(content.get("firstTimestamp"), content.get("eventTime"), meta)
    last = time_text(content.get("lastTimestamp")) or time_text(series.get("lastObservedTime"))
    source = mapping(content.get("source"))
    return {
        **_head("event", "", meta, at),
        "about": {name: text(about.get(name)) for name in ("kind", "name", "uid")},
        "level": text(content.get("type")),
        "reason": text(content.get("reason")),
        "message": _message(content.get("message"), clean),
        "count": series.get("count") or content.get("count") or 1,
        "first": first,
        "last": last or first,
        "by": text(content.get("reportingComponent") or source.get("component")),
    }


def log_line(pod: str, log: str, *, until: str, whole: bool, at: str) -> Line:
    """Return the newest lines of a pod's log, cleaned before. until: of the last line, as the node
    wrote it; whole: the container had ended, so nothing comes after."""
    return {"kind": "log", "at": at, "uid": pod, "text": log, "until": until, "whole": whole}


def gone_line(uid: str, *, at: str) -> Line:
    """Return that an object is there no more, and that nobody saw it go."""
    return {"kind": "gone", "at": at, "uid": uid}


def gap_line(resource: str, *, since: str, at: str, why: str, missed: Iterable[str]) -> Line:
    """Return that changes between two times were not seen; missed: names of what went meanwhile."""
    names = sorted(missed)
    return {
        "kind": "gap",
        "at": at,
        "resource": resource,
        "since": since,
        "why": why[:MESSAGE_CHARACTERS_MAX],
        "missed": names[:MISSED_NAMED_MAX],
        "missed_count": len(names),
    }


def problem_line(about: str, message: str, *, at: str) -> Line:
    """Return why something cannot be watched; an empty message: it can again."""
    words = message[:MESSAGE_CHARACTERS_MAX]
    return {"kind": "problem", "at": at, "about": about, "message": words}


def has_begun(pod: Mapping[str, Json]) -> bool:
    """Whether a container of a pod's line runs or has run: before that there is no log."""
    statuses = mappings(mapping(pod.get("status")).get("containerStatuses"))
    states = [mapping(each.get("state")) for each in statuses]
    return any("running" in state or "terminated" in state for state in states)


def has_ended(pod: Mapping[str, Json]) -> bool:
    """Whether the container whose log is a pod's has ended."""
    status = mapping(pod.get("status"))
    if status.get("phase") in FINAL_PHASES:
        return True
    named = [c for c in mappings(status.get("containerStatuses")) if c["name"] == pod["container"]]
    return any("terminated" in mapping(each.get("state")) for each in named)


def is_disrupted(pod: Mapping[str, Json]) -> bool:
    """Whether a pod was deleted, or is about to be."""
    conditions = mappings(mapping(pod.get("status")).get("conditions"))
    return pod["leaves"] is not None or any(c.get("type") in DISRUPTIONS for c in conditions)


def same_sight(line: Mapping[str, Json], before: Mapping[str, Json] | None) -> bool:
    """Whether a line adds nothing to the one before of that object."""
    if before is None or line.get("change") == "DELETED":
        return False
    return _content(line) == _content(before)


def _content(line: Mapping[str, Json]) -> dict[str, Json]:
    return {k: v for k, v in line.items() if k not in ("at", "rv", "change")}


def _head(kind: str, change: str, meta: Mapping[str, Json], at: str) -> Line:
    return {
        "kind": kind,
        "at": at,
        "change": change,
        "uid": text(meta.get("uid")),
        "name": text(meta.get("name")),
        "rv": text(meta.get("resourceVersion")),
        "born": time_text(meta.get("creationTimestamp")),
        "leaves": _leaves(meta),
    }


def _leaves(meta: Mapping[str, Json]) -> str | None:
    """Return when somebody deleted the object; its deletionTimestamp lies the grace later."""
    until = time_text(meta.get("deletionTimestamp"))
    grace_s = meta.get("deletionGracePeriodSeconds")
    if until is None or not isinstance(grace_s, int):
        return until
    return format_time(parse_time(until) - timedelta(seconds=grace_s))


def _index(meta: Mapping[str, Json]) -> int | None:
    for place in ("labels", "annotations"):
        given = text(mapping(meta.get(place)).get(INDEX))
        if given.isdecimal():
            return int(given)
    return None


def _container(meta: Mapping[str, Json], spec: Mapping[str, Json]) -> str:
    """Return the container whose log is the pod's."""
    named = text(mapping(meta.get("annotations")).get(_DEFAULT_CONTAINER))
    return named or next((text(c.get("name")) for c in mappings(spec.get("containers"))), "")


def _status(status: Mapping[str, Json], clean: Redact) -> Line:
    content: Line = {name: status[name] for name in ("phase", "reason") if status.get(name)}
    if status.get("message"):
        content["message"] = _message(status["message"], clean)
    content["conditions"] = _conditions(status, clean)
    for name in ("initContainerStatuses", "containerStatuses"):
        found = [_container_status(c, clean) for c in mappings(status.get(name))[:CONTAINERS_MAX]]
        if found:
            content[name] = found
    return content


def _conditions(status: Mapping[str, Json], clean: Redact) -> list[Json]:
    wanted = ("type", "status", "reason", "lastTransitionTime")
    found: list[Json] = []
    for each in mappings(status.get("conditions")):
        if each.get("type") in _PROGRESS and each.get("status") == "True":
            continue
        content: Line = {name: each[name] for name in wanted if each.get(name)}
        if each.get("message"):
            content["message"] = _message(each["message"], clean)
        found.append(content)
    return found[:CONDITIONS_MAX]


def _container_status(container: Mapping[str, Json], clean: Redact) -> Line:
    content: Line = {"name": container.get("name"), "state": _state(container.get("state"), clean)}
    if last := _state(container.get("lastState"), clean):
        content["lastState"] = last
    if container.get("restartCount"):
        content["restartCount"] = container["restartCount"]
    return content


def _state(state: Json, clean: Redact) -> Line:
    wanted = ("exitCode", "signal", "reason", "message", "startedAt", "finishedAt")
    content: Line = {}
    for kind, each in mapping(state).items():
        values = mapping(each)
        content[kind] = {name: values[name] for name in wanted if values.get(name) is not None}
        if "message" in content[kind]:
            content[kind]["message"] = _message(values["message"], clean)
    return content


def _message(value: Json, clean: Redact) -> str:
    """Return the end of a long message as well as its begin: it is the end that gives the cause."""
    words = clean(text(value))
    if len(words) <= MESSAGE_CHARACTERS_MAX:
        return words
    half = MESSAGE_CHARACTERS_MAX // 2 - 2
    return f"{words[:half]} … {words[-half:]}"


def _first_time(first: Json, event_time: Json, meta: Mapping[str, Json]) -> str | None:
    created = meta.get("creationTimestamp")
    return time_text(first) or time_text(event_time) or time_text(created)


def tail(log: str, size: int) -> str:
    """Return the last whole lines of a log that fit into `size` bytes."""
    data = log.encode("utf-8", "replace")
    if len(data) <= size:
        return log
    cut = data[-size:]
    whole = cut.partition(b"\n")[2] or cut  # one line that is longer: its end
    return whole.decode("utf-8", "ignore")

"""Folds the lines of watchers into what was seen of a gang.

Several watchers may have seen the same: what the API server numbers (objects by uid and resource
version) is kept once, in its order, whatever the order of the lines; a line read twice changes
nothing. Bounded: of each thing the number named below is kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tracks_dagster.reasons.kube_json import mapping, mappings, text, version_order
from tracks_dagster.track.records import Json
from tracks_dagster.wings.kubernetes.sightings import (
    EventSeen,
    GangSeen,
    Gap,
    JobStory,
    Line,
    PodStory,
)

PODS_MAX = 2048  # a gang has at most 512, and each may be replaced
JOBS_MAX = 16
FIRST_STATUSES, LAST_STATUSES = 16, 48  # of one pod or Job
EVENTS_OF_ONE_MAX = 24  # about one object, warnings before the others
GAPS_MAX = 64
PROBLEMS_MAX = 16
LineFields = Mapping[str, Json]


class GangFold:
    """Takes lines in any order; `seen` is what they show together. Not safe from several threads."""

    def __init__(self, lines: Iterable[Json] = ()) -> None:
        self._pods: dict[str, _Kept] = {}
        self._jobs: dict[str, _Kept] = {}
        self._events: dict[str, dict[str, Line]] = {}
        self._logs: dict[str, LineFields] = {}
        self._whole_logs: set[str] = set()
        self._gone: dict[str, str] = {}
        self._gaps: dict[tuple[str, str, str], Gap] = {}
        self._problems: dict[str, LineFields] = {}
        self._seen: GangSeen | None = None
        for line in lines:
            self.add(line)

    def add(self, line: Json) -> None:
        """Take one line in; one of an unknown kind or shape is ignored."""
        known = mapping(line)
        self._seen = None
        match known.get("kind"), text(known.get("uid")):
            case "pod", uid if uid:
                _keep(self._pods, uid, PODS_MAX).add(known)
            case "job", uid if uid:
                _keep(self._jobs, uid, JOBS_MAX).add(known)
            case "event", uid if uid:
                self._add_event(uid, known)
            case "log", uid if uid:
                self._logs[uid] = max(self._logs.get(uid, known), known, key=_log_order)
                if known.get("whole") is True:
                    self._whole_logs.add(uid)
            case "gone", uid if uid:
                self._gone[uid] = min(self._gone.get(uid, "~"), text(known.get("at")))
            case "gap", _:
                self._add_gap(known)
            case "problem", _:
                about = text(known.get("about"))
                before = self._problems.get(about, known)
                self._problems[about] = max(before, known, key=_problem_order)

    def seen(self) -> GangSeen:
        """Return what all lines so far show."""
        if self._seen is None:
            pods = sorted((self._pod(uid, kept) for uid, kept in self._pods.items()), key=_by_index)
            jobs = sorted((self._job(uid, k) for uid, k in self._jobs.items()), key=_by_birth)
            events = [_event(uid, e) for kept in self._events.values() for uid, e in kept.items()]
            words = [text(p.get("message")) for _, p in sorted(self._problems.items())]
            self._seen = GangSeen(
                pods=tuple(pods),
                jobs=tuple(jobs),
                events=tuple(sorted(events, key=lambda e: (e.first_at or "", e.uid))),
                gaps=tuple(self._gaps[key] for key in sorted(self._gaps)),
                problems=tuple(word for word in words if word)[:PROBLEMS_MAX],
            )
        return self._seen

    def version_of(self, uid: str) -> tuple[int, str]:
        """Return the order of the newest version that was seen of a pod or a Job."""
        kept = self._pods.get(uid) or self._jobs.get(uid)
        return (0, "") if kept is None else _order(kept.newest)

    def _pod(self, uid: str, kept: _Kept) -> PodStory:
        index = kept.last("index")
        log = self._logs.get(uid, {})
        return PodStory(
            uid=uid,
            name=text(kept.last("name")),
            index=index if isinstance(index, int) else None,
            node=text(kept.last("node")) or None,
            born_at=text(kept.last("born")) or None,
            leaves_at=kept.leaves,
            gone_at=self._gone_at(uid, kept),
            missed=kept.gone is None and uid in self._gone,
            history=tuple(mapping(line.get("status")) for line in kept.lines()),
            log=text(log.get("text")),
            log_is_whole=uid in self._whole_logs,
        )

    def _job(self, uid: str, kept: _Kept) -> JobStory:
        conditions: dict[tuple[str, str], LineFields] = {}
        for line in kept.lines():
            for each in mappings(mapping(line.get("status")).get("conditions")):
                if each.get("status") == "True":
                    conditions[text(each.get("type")), text(each.get("reason"))] = each
        return JobStory(
            uid=uid,
            name=text(kept.last("name")),
            born_at=text(kept.last("born")) or None,
            leaves_at=kept.leaves,
            gone_at=self._gone_at(uid, kept),
            suspended=kept.newest.get("suspend") is True,
            status=mapping(kept.newest.get("status")),
            conditions=tuple(conditions.values()),
        )

    def _gone_at(self, uid: str, kept: _Kept) -> str | None:
        times = [at for at in (kept.gone, self._gone.get(uid)) if at]
        return min(times, default=None)

    def _add_event(self, uid: str, line: LineFields) -> None:
        about = text(mapping(line.get("about")).get("uid"))
        if about not in self._events and len(self._events) >= PODS_MAX:
            return
        of_one = self._events.setdefault(about, {})
        before = of_one.get(uid)
        if before is not None and _order(before) > _order(line):
            return
        of_one[uid] = dict(line)
        if len(of_one) > EVENTS_OF_ONE_MAX:
            del of_one[min(of_one, key=lambda each: (_event_order(of_one[each]), each))]

    def _add_gap(self, line: LineFields) -> None:
        gap = Gap(
            resource=text(line.get("resource")),
            since=text(line.get("since")),
            until=text(line.get("at")),
            why=text(line.get("why")),
            missed=tuple(map(text, line.get("missed") or ())),
            missed_count=line.get("missed_count") or 0,
        )
        self._gaps[gap.until, gap.resource, gap.since] = gap
        if len(self._gaps) > GAPS_MAX:
            del self._gaps[min(self._gaps)]


class _Kept:
    """The lines of one object by resource version: the first and the newest of many."""

    def __init__(self) -> None:
        self._lines: dict[tuple[int, str], LineFields] = {}
        self.leaves: str | None = None
        self.gone: str | None = None

    def add(self, line: LineFields) -> None:
        self._lines[_order(line)] = line
        if len(self._lines) > FIRST_STATUSES + LAST_STATUSES:
            # What is dropped is in the middle of all, in whatever order they come.
            del self._lines[sorted(self._lines)[FIRST_STATUSES]]
        self.leaves = _earlier(self.leaves, line.get("leaves"))
        if line.get("change") == "DELETED":
            self.gone = _earlier(self.gone, line.get("at"))

    def lines(self) -> list[LineFields]:
        return [self._lines[version] for version in sorted(self._lines)]

    @property
    def newest(self) -> LineFields:
        return self._lines[max(self._lines)]

    def last(self, name: str) -> Json:
        """Return the newest value of a field that is not always known."""
        return next((v for e in reversed(self.lines()) if (v := e.get(name)) is not None), None)


def _keep(kept: dict[str, _Kept], uid: str, limit: int) -> _Kept:
    """Return what is kept of an object; of more than the limit nothing is kept."""
    if uid in kept:
        return kept[uid]
    fresh = _Kept()
    if len(kept) < limit:
        kept[uid] = fresh
    return fresh


def _earlier(one: str | None, other: Json) -> str | None:
    return min((at for at in (one, text(other)) if at), default=None)


def _order(line: LineFields) -> tuple[int, str]:
    return version_order(text(line.get("rv")))


def _log_order(line: LineFields) -> tuple[str, int, str]:
    log = text(line.get("text"))
    return text(line.get("until")), len(log), log


def _problem_order(line: LineFields) -> tuple[str, str]:
    return text(line.get("at")), text(line.get("message"))


def _event_order(line: LineFields) -> tuple[bool, str]:
    return line.get("level") == "Warning", text(line.get("last"))


def _by_index(pod: PodStory) -> tuple[int, str, str]:
    return -1 if pod.index is None else pod.index, pod.born_at or "", pod.uid


def _by_birth(job: JobStory) -> tuple[str, str]:
    return job.born_at or "", job.uid


def _event(uid: str, line: LineFields) -> EventSeen:
    about, count = mapping(line.get("about")), line.get("count")
    return EventSeen(
        uid=uid,
        about_kind=text(about.get("kind")),
        about_name=text(about.get("name")),
        about_uid=text(about.get("uid")),
        level=text(line.get("level")),
        reason=text(line.get("reason")),
        message=text(line.get("message")),
        count=count if isinstance(count, int) else 1,
        first_at=text(line.get("first")) or None,
        last_at=text(line.get("last")) or None,
        by=text(line.get("by")),
    )

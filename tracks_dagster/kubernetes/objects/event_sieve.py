"""Which events of a namespace are about one gang: a server can select by one name, not by many."""

from __future__ import annotations

from collections import deque

from tracks_dagster.kubernetes.gangs.sightings import Line

WAITING_MAX = 256  # about what is not known yet: an event may come before its pod does
# What every start says and statuses tell as well.
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


class EventSieve:
    """Knows the uids of a gang's pods and Jobs, and the names of its Jobs. Not safe from threads."""

    def __init__(self) -> None:
        self._uids: set[str] = set()
        self._jobs: set[str] = set()
        self._waiting: deque[Line] = deque(maxlen=WAITING_MAX)

    def know(self, uid: str, *, job: str = "") -> list[Line]:
        """Take in a pod or a Job (by its name too); returns the events that waited for it."""
        if uid in self._uids:
            return []
        self._uids.add(uid)
        if job:
            self._jobs.add(job)
        found = [line for line in self._waiting if self._is_ours(line)]
        rest = [line for line in self._waiting if not self._is_ours(line)]
        self._waiting = deque(rest, maxlen=WAITING_MAX)
        return found

    def passes(self, line: Line) -> bool:
        """Whether an event is about the gang; another waits, the oldest make room."""
        if self._is_ours(line):
            return True
        self._waiting.append(line)
        return False

    def _is_ours(self, line: Line) -> bool:
        """A pod that went before anybody saw it is told by its name, which begins with its Job's."""
        about = line["about"]
        if about["uid"] in self._uids:
            return True
        is_pod, name = about["kind"] == "Pod", about["name"]
        return is_pod and any(name.startswith(f"{job}-") for job in self._jobs)

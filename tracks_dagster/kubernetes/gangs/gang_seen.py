"""What was seen of a gang on Kubernetes: the stories of its pods and Jobs, and the events about them.

A value only: `gang_fold` makes it of a watcher's lines, `gang_ends` reads ends and conditions from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tracks_dagster.reasons.kube_json import mapping, mappings, text
from tracks_dagster.track.records import Json

FINAL_PHASES = ("Succeeded", "Failed")
FINAL_CONDITIONS = ("Complete", "Failed")
DISRUPTIONS = frozenset({"DisruptionTarget", "TerminationTarget"})  # conditions of a pod


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
        """Whether it says that it is complete or has failed; its pods may then still be ending."""
        now = mappings(self.status.get("conditions"))
        return any(c.get("type") in FINAL_CONDITIONS and c.get("status") == "True" for c in now)


@dataclass(frozen=True, slots=True, kw_only=True)
class EventSeen:
    """One event, the newest state of it. about_*: the pod or Job that it speaks of."""

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

    @property
    def is_empty(self) -> bool:
        """Whether nothing of a gang was ever seen."""
        return not (self.pods or self.jobs)

"""What a cluster's upkeep changes: objects of gangs that are over, and taints of nodes. Pure.

Every close deletes its gang. What is left comes from a start that lost a race with a close, from a
close that was interrupted, or from a run whose track was deleted with its store. Homes may share a
namespace: nothing that may be another home's is touched, neither its objects nor its taints.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol, runtime_checkable

from tracks_dagster.track.names import attempt_key
from tracks_dagster.track.records import Json

# A close deletes first and records then; who starts and who closes at once may need minutes.
ENDED_GRACE = timedelta(minutes=5)
UNKNOWN_GRACE = timedelta(minutes=30)  # of a run that the store does not know
SERVICE = "Service"  # the kind of what only leads to a gang
KEEPS_OFF = ("NoSchedule", "NoExecute")  # effects; PreferNoSchedule keeps nobody off
TAINT_KEY = "tracks/quarantine"
TAINT_EFFECT = "NoSchedule"  # what runs there continues


@dataclass(frozen=True, slots=True, kw_only=True)
class StandingGang:
    """One object of a gang, as the cluster has it.

    kind: "Job", "JobSet" or SERVICE. uid: of that very object. store_url: where its pods write, empty
    where that is unknown.
    """

    run_id: str
    attempt_id: int
    kind: str
    name: str
    made_at: datetime
    uid: str = ""
    store_url: str = ""

    @property
    def key(self) -> str:
        """The attempt's key."""
        return attempt_key(self.run_id, self.attempt_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fate:
    """The attempt by its track. is_known: it was opened; ended_at: None while it is open."""

    is_known: bool
    ended_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Orphan:
    """What is swept, and why in words."""

    gang: StandingGang
    is_known: bool
    why: str


@runtime_checkable
class StandingGangs(Protocol):
    """Our objects on a cluster. Both may raise GangError."""

    def standing(self) -> Sequence[StandingGang]:
        """Return every Job (or JobSet) and Service that is marked as a gang's."""
        ...

    def sweep(self, gang: StandingGang) -> None:
        """Delete that very object, and what hangs on it. Idempotent; pods get their grace."""
        ...


def orphans(
    standing: Iterable[StandingGang], fates: Mapping[str, Fate], store_url: str, now: datetime
) -> list[Orphan]:
    """Return what is to be swept. fates: by attempt key; what has none here is left alone."""
    gangs = list(standing)
    with_job = {gang.key for gang in gangs if gang.kind != SERVICE}
    found = []
    for gang in gangs:
        fate = fates.get(gang.key)
        if fate is None or (gang.kind == SERVICE and gang.key in with_job):
            continue  # a Service is deleted with its Job
        why = _why(gang, fate, store_url, now)
        if why:
            found.append(Orphan(gang=gang, is_known=fate.is_known, why=why))
    return found


def _why(gang: StandingGang, fate: Fate, store_url: str, now: datetime) -> str:
    """Return why it is an orphan; empty when it is none, or not surely ours."""
    if gang.store_url not in ("", store_url):
        return ""
    if fate.ended_at is not None:
        age = now - fate.ended_at
        return f"its attempt ended {_minutes(age)} ago" if age >= ENDED_GRACE else ""
    is_ours = gang.store_url == store_url or gang.kind == SERVICE
    if fate.is_known or not is_ours or now - gang.made_at < UNKNOWN_GRACE:
        return ""
    return f"the store knows no such attempt, {_minutes(now - gang.made_at)} after it was made"


def _minutes(age: timedelta) -> str:
    return f"{age.total_seconds() / 60:.0f} minutes"


# Taints are read as the scheduler does:
# https://kubernetes.io/docs/concepts/scheduling-eviction/taint-and-toleration/
# Affinity keeps our own gangs off a node in quarantine, whatever its taints are. The taint is for
# the pods of others: `taint_quarantined_nodes` in the settings.


def repelling(
    taints: Iterable[Mapping[str, Json]], tolerations: Sequence[Mapping[str, Json]]
) -> list[str]:
    """Return the taints that keep a pod with these tolerations off, each as `key=value:effect`."""
    return [
        _format(taint)
        for taint in taints
        if taint.get("effect") in KEEPS_OFF
        and not any(_tolerates(toleration, taint) for toleration in tolerations)
    ]


def _tolerates(toleration: Mapping[str, Json], taint: Mapping[str, Json]) -> bool:
    if toleration.get("effect") not in (None, "", taint.get("effect")):
        return False
    if toleration.get("key") not in (None, "", taint.get("key")):
        return False
    if toleration.get("operator") == "Exists":
        return True
    return bool(toleration.get("key")) and (toleration.get("value") or "") == (
        taint.get("value") or ""
    )


def _format(taint: Mapping[str, Json]) -> str:
    value = f"={taint['value']}" if taint.get("value") else ""
    return f"{taint.get('key')}{value}:{taint.get('effect')}"


@runtime_checkable
class NodeTaints(Protocol):
    """The nodes of a cluster, as far as their taints go."""

    @property
    def taints_nodes(self) -> bool:
        """Whether the settings ask for taints at all."""
        ...

    def taint(self, nodes: AbstractSet[str]) -> Sequence[str]:
        """Let these nodes, and no others, have this home's taint; return what was changed, in words.

        Idempotent: what another writer changed meanwhile is seen to by the next call. Names that no
        node has are passed over. Raises GangError.
        """
        ...


def taints_instead(
    taints: Sequence[Mapping[str, Json]], *, owner: str, is_quarantined: bool
) -> list[Mapping[str, Json]] | None:
    """Return the taints that a node should have; None where they are right.

    owner: this home's mark, the taint's value. A node has one taint of a key and effect, so where
    another home's taint is there, it does for both.
    """
    ours = [taint for taint in taints if _is_quarantine(taint)]
    if is_quarantined and not ours:
        return [*taints, {"key": TAINT_KEY, "value": owner, "effect": TAINT_EFFECT}]
    if not is_quarantined and any(taint.get("value") == owner for taint in ours):
        return [t for t in taints if not (_is_quarantine(t) and t.get("value") == owner)]
    return None


def _is_quarantine(taint: Mapping[str, Json]) -> bool:
    return taint.get("key") == TAINT_KEY and taint.get("effect") == TAINT_EFFECT

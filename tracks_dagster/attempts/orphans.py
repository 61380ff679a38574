"""What of gangs outlived its attempt, where gangs run. Pure.

Every close deletes its gang. What is left comes from a start that lost a race with a close, from a
close that was interrupted, or from a run whose track was deleted with its store. Homes may share a
place: nothing that may be another home's is touched.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol, runtime_checkable

from tracks_dagster.track.names import attempt_key

# A close deletes first and records then; who starts and who closes at once may need minutes.
ENDED_GRACE = timedelta(minutes=5)
UNKNOWN_GRACE = timedelta(minutes=30)  # of a run that the store does not know
SERVICE = "Service"  # the kind of what only leads to a gang


@dataclass(frozen=True, slots=True, kw_only=True)
class StandingGang:
    """One object of a gang, as its place has it.

    kind: as that calls it, "JobSet" or "job"; SERVICE of what only leads to a gang. uid: of that very
    object. store_url: where it writes, empty where that is unknown.
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
    """Our objects in a place. Both may raise GangError."""

    def standing(self) -> Sequence[StandingGang]:
        """Return every object that is marked as a gang's."""
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
    """Return why it is an orphan; empty when it is not one, or not surely ours."""
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

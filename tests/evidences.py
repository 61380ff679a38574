"""Evidence for tests: ranks, last words and conditions with as little said as a test needs."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from tests.bodies import BEGIN
from tracks_dagster.reasons.cases import evidence_of
from tracks_dagster.reasons.evidence import Condition, Evidence, LastWord, RankEnd
from tracks_dagster.track.body_json import to_json
from tracks_dagster.track.ports import ObjectStore
from tracks_dagster.track.records import canonical_json, format_time

GANG_BEGAN: datetime = BEGIN


def at(seconds: float) -> str:
    """Return the text time `seconds` after the gang began."""
    return format_time(GANG_BEGAN + timedelta(seconds=seconds))


def word(reason: str, *, said: str = "", second: float = 100, rank: int = 0) -> LastWord:
    """Return a last word; said: "package.TypeName: message", empty for no exception."""
    exception, _, message = said.partition(": ")
    traceback_tail = f"Traceback (most recent call last):\n  …\n{said}\n" if said else ""
    return LastWord(
        rank=rank,
        reason=reason,
        exception=exception or None,
        message=message,
        traceback_tail=traceback_tail,
        step=3,
        at=at(second),
    )


def end(
    number: int = 0,
    *,
    code: int | None = None,
    by: int | None = None,
    second: float | None = 100,
    log: str = "",
    says: LastWord | None = None,
    oom_killed: bool = False,
) -> RankEnd:
    """Return how rank `number` ended: with exit code `code` or `by` a signal."""
    return RankEnd(
        rank=number,
        exit_code=code,
        signal=by,
        started_at=at(0),
        ended_at=None if second is None else at(second),
        oom_killed=oom_killed,
        log_tail=log,
        last_word=says,
    )


def leave_word(
    store: ObjectStore,
    name: str,
    reason: str,
    *,
    message: str = "",
    rank: int = 0,
    onset_step: int | None = None,
) -> None:
    """Store a last word of attempt 1 of r-1, as a rank does."""
    left = LastWord(
        rank=rank,
        reason=reason,
        exception=None,
        message=message,
        traceback_tail="",
        step=None,
        at=at(30),
        onset_step=onset_step,
    )
    store.put(f"runs/r-1/attempts/1/{name}", canonical_json(to_json(left)))


def condition(
    reason: str,
    *,
    type: str = "DisruptionTarget",  # noqa: A002 - the control plane's own word
    message: str = "",
    second: float | None = 50,
) -> Condition:
    """Return what a control plane said `second` seconds after the gang began."""
    when = None if second is None else at(second)
    return Condition(type=type, reason=reason, message=message, at=when, source="kubernetes")


def evidence(*ranks: RankEnd, **changes: Any) -> Evidence:
    """Return the evidence of a placed attempt with these ranks; `changes` replace fields."""
    fields: dict[str, Any] = {
        "run_id": "r-1",
        "attempt_id": 1,
        "launch_id": "launch-1",
        "ranks": ranks,
        "placed": True,
    }
    return Evidence(**fields | changes)


def case(log: str = "", **facts: Any) -> Evidence:
    """Return the evidence of a case as `tracks classify` reads it, with this log tail."""
    return evidence_of({"id": "a case", "evidence": {"log_tail": log or None, **facts}})

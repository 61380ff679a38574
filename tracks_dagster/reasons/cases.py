"""A case: evidence as somebody wrote it down, read into `Evidence` for `tracks classify`.

A case is an object with `id` and `evidence`, and of the evidence `log_tail`, `exit_code`, `signal`,
`pod`, `pods`, `events`, `xid`, `slurm_state`, `kernel_lines` and `ranks`, each of which may be missing
or null; or a pod's recorded history in `pod_history`. Unknown fields are ignored. A field of another
shape than expected counts as not known: half of a case is better than none.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Mapping
from dataclasses import replace

from tracks_dagster.reasons.evidence import Condition, Evidence, RankEnd
from tracks_dagster.reasons.kube_json import text, time_text
from tracks_dagster.reasons.pods import EVENTS_MAX, PodEvidence, read_pod
from tracks_dagster.track.records import Json

RANKS_MAX = 4096  # of one case that are read

# "Warning FailedScheduling default-scheduler 0/1 nodes…": the reason is the word in camel case.
_EVENT_REASON = re.compile(
    r"\b([A-Z][a-z]+(?:[A-Z][A-Za-z]*)+|Preempted|Evicted|Rebooted|Killing)\b"
)
_EVENT_HEAD_CHARACTERS = 80


def evidence_of(case: Mapping[str, Json]) -> Evidence:
    """Return the evidence of a case; empty evidence when there is none in it."""
    given = case.get("evidence")
    fields: Mapping[str, Json] = given if isinstance(given, Mapping) else {}
    pods = [_pod(pod, rank) for rank, pod in enumerate(_histories(case, fields))]
    conditions = tuple(condition for pod in pods for condition in pod.conditions)
    return Evidence(
        run_id="",
        attempt_id=0,
        launch_id=None,
        ranks=_ranks(fields, [pod.end for pod in pods if pod.end is not None]),
        conditions=(
            *conditions,
            *(_event(each) for each in _items(fields.get("events"))[:EVENTS_MAX]),
        ),
        kernel_lines=(*_xids(fields.get("xid")), *map(str, _items(fields.get("kernel_lines")))),
        slurm_state=text(fields.get("slurm_state")) or None,
    )


def _histories(case: Mapping[str, Json], fields: Mapping[str, Json]) -> list[list[Json]]:
    """Return the history of every pod that the case shows, one a rank."""
    shown = [
        case.get("pod_history"),
        fields.get("pod_history"),
        fields.get("pod"),
        *_list(fields.get("pods")),
    ]
    return [each if isinstance(each, list) else [each] for each in shown if each][:RANKS_MAX]


def _pod(history: list[Json], rank: int) -> PodEvidence:
    return read_pod(history, rank)


def _ranks(fields: Mapping[str, Json], pod_ends: list[RankEnd]) -> tuple[RankEnd, ...]:
    """Return the ranks: each of `ranks`, or one for the only process of the case."""
    several = [each for each in _list(fields.get("ranks")) if isinstance(each, Mapping)][:RANKS_MAX]
    if several:
        return tuple(_rank(each, number) for number, each in enumerate(several))
    alone = _rank(fields, 0)
    if not pod_ends:
        return (alone,) if alone.has_ended or alone.log_tail else ()
    first = pod_ends[0]
    if alone.has_ended and not first.has_ended:
        first = replace(first, exit_code=alone.exit_code, signal=alone.signal)
    return (replace(first, log_tail=alone.log_tail), *pod_ends[1:])


def _rank(fields: Mapping[str, Json], number: int) -> RankEnd:
    code, by = _number(fields.get("exit_code")), _signal(fields.get("signal"))
    if code is not None and code < 0:  # as subprocess reports a signal
        by = by or _signal(-code)
        code = None
    known = _number(fields.get("rank"))
    return RankEnd(
        rank=number if known is None else known,
        exit_code=None if by is not None and code is None else code,
        signal=by,
        ended_at=time_text(fields.get("ended_at")),
        oom_killed=fields.get("oom_killed") is True,
        log_tail=_log(fields.get("log_tail")),
    )


def _signal(value: Json) -> int | None:
    """Return the number of a signal given as 9, "9", "SIGKILL" or "KILL"; None when it is not one."""
    number = _number(value)
    if number is not None:
        return number if 0 < number < signal.NSIG else None
    name = text(value).strip().upper()
    known = {**signal.Signals.__members__}
    found = known.get(name) or known.get(f"SIG{name}")
    return None if found is None else int(found)


def _xids(value: Json) -> Iterable[str]:
    for each in _items(value):
        if isinstance(each, Mapping):
            number = each.get("xid", each.get("code", each.get("number")))
            yield f"Xid {number}: {text(each.get('message'))}"
        else:
            line = text(each)
            yield f"Xid {line}" if line[:1].isdigit() else line


def _event(fields: Json) -> Condition:
    """Return an event as a condition of type Event."""
    if isinstance(fields, Mapping):
        reason, message = (
            text(fields.get("reason")),
            text(fields.get("message") or fields.get("note")),
        )
    else:
        message = text(fields)
        found = _EVENT_REASON.search(message[:_EVENT_HEAD_CHARACTERS])
        reason = found[1] if found else ""
    return Condition(type="Event", reason=reason, message=message, at=None, source="kubernetes")


def _log(value: Json) -> str:
    return "\n".join(map(str, value)) if isinstance(value, list) else text(value)


def _items(value: Json) -> list[Json]:
    """Return a list as it is, nothing as an empty one, anything else as a list of one."""
    if value is None or value == "":
        return []
    return value if isinstance(value, list) else [value]


def _list(value: Json) -> list[Json]:
    return value if isinstance(value, list) else []


def _number(value: Json) -> int | None:
    if isinstance(value, bool) or value is None:
        return None
    try:
        return int(str(value).strip())
    except ValueError:
        return None

"""One attempt a line, as JSON: for systems that nobody has written a source for. Pure. docs/import.md
has it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from tracks_dagster.reasons.cases import evidence_of
from tracks_dagster.reasons.slurm_rows import hosts
from tracks_dagster.track.bodies import AUTOMATIC, FIRST, MANUAL
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.json_text import parse_json
from tracks_dagster.track.records import Json
from tracks_dagster.wings.history.source import BadRow, NotEnded, Read, SourceAttempt, aware

LINE_BYTES_MAX = 1024 * 1024
CAUSES = (FIRST, AUTOMATIC, MANUAL)
# Key → what it is, for docs/import.md.
KEYS: Mapping[str, str] = {
    "run": "what its attempts have in common, as text; needed",
    "ended_at": "when it ended; a line without is left out until it has ended",
    "started_at": "when its first process started; none where it never did",
    "submitted_at": "when it was asked for; else `started_at`",
    "id": "the same for the same attempt of its run at every import; else made of its times",
    "title": "what people call the run; else `run`",
    "owner": "the person",
    "team": "of the person",
    "cause": f"who started it again: {AUTOMATIC} (a program), {MANUAL} (a person)",
    "devices": "accelerators that it had, 1 or more",
    "device_class": "their model",
    "nodes": "its nodes: a list, or a text as `gpu[1,39]`",
    "excluded_nodes": "nodes that it was kept from, likewise",
    "config": "its config: keys with plain values",
    "resumed_step": "the step that it started from",
    "last_step": "the last step that it finished",
    "succeeded": "true where it ended as meant, by that system",
    "evidence": "what is known of its end, as `tracks classify` takes it: log_tail, exit_code, signal, "
    "events, xid, slurm_state, pods, ranks",
}
# What `reasons.cases.evidence_of` reads.
EVIDENCE = (
    *(
        "log_tail",
        "exit_code",
        "signal",
        "oom_killed",
        "events",
        "xid",
        "kernel_lines",
        "slurm_state",
    ),
    *("pod", "pods", "pod_history", "ranks", "rank", "ended_at"),
)


def read(lines: Iterable[str]) -> Iterator[Read]:
    """Yield what each line says; raises InvalidInput where no line is an object with `run`."""
    count, problem = 0, None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            yield _read(number, parse_json(line, bytes_max=LINE_BYTES_MAX, foreign=True))
            count += 1
        except (ValueError, TypeError) as error:
            problem = BadRow(line=number, why=str(error))
            yield problem
    if not count:
        why = "it has no line" if problem is None else f"line {problem.line}: {problem.why}"
        raise InvalidInput(f"Nothing in it can be imported: {why}. docs/import.md has the format.")


def _read(number: int, value: Json) -> SourceAttempt | NotEnded:
    if not isinstance(value, Mapping):
        raise ValueError("it is not an object")
    run = value.get("run")
    if not isinstance(run, str | int) or isinstance(run, bool) or not str(run).strip():
        raise ValueError("it has no `run`")
    unknown = sorted(set(value) - set(KEYS))
    if unknown:
        raise ValueError(f"it has the key {unknown[0]!r}; there are: {', '.join(KEYS)}")
    started_at, ended_at = _time(value, "started_at"), _time(value, "ended_at")
    if ended_at is None:
        return NotEnded(line=number)
    submitted_at = _time(value, "submitted_at") or started_at or ended_at
    if started_at is not None and ended_at < started_at:
        raise ValueError(f"it ends ({value['ended_at']}) before it starts ({value['started_at']})")
    cause = value.get("cause") or AUTOMATIC
    if cause not in CAUSES:
        raise ValueError(f"its cause is {cause!r}; write {AUTOMATIC} or {MANUAL}")
    config = value.get("config") or {}
    if not isinstance(config, Mapping):
        raise ValueError("its config is not an object")
    succeeded = value.get("succeeded")
    if succeeded not in (None, True, False) or type(succeeded) is int:
        raise ValueError(f"its succeeded is {str(succeeded)[:40]!r}; write true or false")
    _check_evidence(value.get("evidence"))
    times = f"{submitted_at}/{started_at or ''}/{ended_at}"
    last_step = _count(value, "last_step")
    return SourceAttempt(
        id=f"{run}/{times if value.get('id') in (None, '') else value['id']}",
        run=str(run).strip(),
        title=str(value.get("title") or run),
        owner=str(value.get("owner") or ""),
        team=str(value.get("team") or ""),
        cause=cause,
        submitted_at=submitted_at,
        started_at=started_at,
        ended_at=ended_at,
        evidence=evidence_of(value),
        row=dict(value),
        devices=_count(value, "devices", least=1) or 1,
        device_class=str(value.get("device_class") or "unknown"),
        nodes=_hosts(value, "nodes"),
        excluded_nodes=_hosts(value, "excluded_nodes"),
        config=dict(config),
        resumed_step=_count(value, "resumed_step"),
        last_step=last_step,
        succeeded='"succeeded": true' if succeeded is True else None,
        unknown={} if last_step is not None else {"last_step": "the line has no last_step"},
    )


def _check_evidence(evidence: Json) -> None:
    """Raise ValueError for what would be read as no evidence at all."""
    if evidence is None:
        return
    if not isinstance(evidence, Mapping):
        raise ValueError("its evidence is not an object")
    unknown = sorted(set(evidence) - set(EVIDENCE))
    if unknown:
        raise ValueError(
            f"its evidence has the key {unknown[0]!r}; there are: {', '.join(EVIDENCE)}"
        )


def _time(value: Mapping[str, Any], key: str) -> datetime | None:
    found = value.get(key)
    if found is None or found == "":
        return None
    try:
        if isinstance(found, int | float) and not isinstance(found, bool):
            at = datetime.fromtimestamp(found, UTC)
        else:
            at = datetime.fromisoformat(str(found))
    except (ValueError, OverflowError, OSError):
        raise ValueError(
            f"its {key} is {str(found)[:40]!r}, no time as 2026-01-31T02:00:00Z"
        ) from None
    if at.tzinfo is None:
        raise ValueError(f"its {key} is {found!r}, which names no time zone: add Z or +01:00")
    return aware(at)


def _count(value: Mapping[str, Any], key: str, *, least: int = 0) -> int | None:
    found = value.get(key)
    if found is None:
        return None
    if type(found) is not int or not least <= found < 2**53:
        raise ValueError(
            f"its {key} is {str(found)[:40]!r}; a whole number, {least} or more, is needed"
        )
    return found


def _hosts(value: Mapping[str, Any], key: str) -> tuple[str, ...]:
    found = value.get(key) or []
    if isinstance(found, str):
        return hosts(found)
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise ValueError(f"its {key} is not a list of names")
    return tuple(dict.fromkeys(found))

"""A person's policy file: what it names replaces the default, everything else stays.

Pure: the file comes as located values. Nothing is guessed and nothing skipped; all errors are
collected, each with its line, and a file with one error changes nothing.

    reasons:                      # one row a termination reason, as in `RetryRule`
      node_failure: {count: 8, window: 7d, backoff: 30s, backoff_max: 20min}
    limits: {fingerprint_limit: 4}
    storm: {ends: 20}
    nodes: {strikes: 3, window: 14d}
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tracks_dagster.retry.environments import EnvironmentRule
from tracks_dagster.retry.node_rule import NodeRule
from tracks_dagster.retry.policy import NEED_A_RULE, Remedy, RetryPolicy, RetryRule
from tracks_dagster.retry.storm import StormRule
from tracks_dagster.track.reasons import TerminationReason
from tracks_dagster.track.text import units
from tracks_dagster.track.text.located import Node, Problem, entries, problem
from tracks_dagster.track.text.nearest import unknown
from tracks_dagster.track.text.units import shown

Fields = Mapping[str, Any]  # fields of a dataclass, by name
Read = Callable[[object], Fields]
Held = RetryRule | RetryPolicy | StormRule | NodeRule

ANY, EXACT = "any", "exact"  # of an environment's key: a difference is only said, or refuses


def read_policy(root: Node | None, base: RetryPolicy) -> tuple[RetryPolicy, list[Problem]]:
    """Return `base` as the file changes it, and everything that is wrong with the file.

    root: None for an empty file. The policy holds only when there are no problems.
    """
    if root is None:
        return base, []
    problems: list[Problem] = []
    changes: dict[str, Any] = {}
    for key, node in entries(root, "The file", problems):
        section = _SECTIONS.get(key)
        if section is None:
            problems.append(problem(node, key, unknown("section", key, list(_SECTIONS))))
            continue
        changes |= section(key, node, base, problems)
    try:
        policy = dataclasses.replace(base, **changes)
    except ValueError as error:  # every row holds by itself, but not beside the others
        return base, problems or [Problem(line=root.line, words=str(error))]
    return policy, problems


def _reasons(key: str, node: Node, base: RetryPolicy, problems: list[Problem]) -> Fields:
    valid = sorted(reason.value for reason in NEED_A_RULE)
    rows = {rule.reason: rule for rule in base.rules}
    for reason, row in entries(node, key, problems):
        path = f"{key}.{reason}"
        if reason not in valid:
            problems.append(problem(row, path, _no_row(reason, valid)))
            continue
        found = TerminationReason(reason)
        changes = _changes(path, row, _ROW, problems)
        rows[found] = dataclasses.replace(
            rows[found], **_holding(rows[found], path, row, changes, problems)
        )
    return {"rules": tuple(rows.values())}


def _no_row(reason: str, valid: Sequence[str]) -> str:
    if reason in {each.value for each in TerminationReason}:
        return f"{reason} is never retried, and has no row."
    return unknown("termination reason", reason, valid)


def _limits(key: str, node: Node, base: RetryPolicy, problems: list[Problem]) -> Fields:
    return _holding(base, key, node, _changes(key, node, _LIMITS, problems), problems)


def _storm(key: str, node: Node, base: RetryPolicy, problems: list[Problem]) -> Fields:
    changes = _changes(key, node, _STORM, problems)
    changed = _holding(base.storm, key, node, changes, problems)
    return {"storm": dataclasses.replace(base.storm, **changed)}


def _nodes(key: str, node: Node, base: RetryPolicy, problems: list[Problem]) -> Fields:
    changes = _changes(key, node, _NODES, problems)
    changed = _holding(base.nodes, key, node, changes, problems)
    return {"nodes": dataclasses.replace(base.nodes, **changed)}


def _failures(value: object) -> tuple[TerminationReason, ...]:
    """Read a list of termination reasons."""
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise ValueError(f"{shown(value)} is no list; write for example [node_failure].")
    if any(not isinstance(each.value, str) for each in value):
        raise ValueError("each of the list is one termination reason; write for example [hang].")
    read = units.one_of("termination reason", _FAILURES)
    return tuple(dict.fromkeys(read(each.value) for each in value))


def _environment(key: str, node: Node, base: RetryPolicy, problems: list[Problem]) -> Fields:
    rules = {rule.key: rule for rule in base.environment}
    for name, given in entries(node, key, problems):
        if given.value == ANY:
            rules.pop(name, None)
        elif given.value == EXACT:
            rules[name] = EnvironmentRule(key=name)
        elif type(given.value) is int and given.value >= 1:
            rules[name] = EnvironmentRule(key=name, parts=given.value)
        else:
            words = (
                f"{shown(given.value)} says not what must be the same; write {EXACT}, {ANY}, or how "
                "many leading parts of the version, for example 2."
            )
            problems.append(problem(given, f"{key}.{name}", words))
    return {"environment": tuple(rules.values())}


def _names(key: str, node: Node, base: RetryPolicy, problems: list[Problem]) -> Fields:
    """Read a mapping of names to names, which adds to the default's."""
    found: dict[str, str] = {**getattr(base, key)}
    for name, given in entries(node, key, problems):
        try:
            found[name] = units.name(given.value)
        except ValueError as error:
            problems.append(problem(given, f"{key}.{name}", str(error)))
    return {key: found}


def _changes(
    path: str, node: Node, keys: Mapping[str, Read], problems: list[Problem]
) -> dict[str, Fields]:
    """Return the fields that each key of a mapping sets."""
    changes: dict[str, Fields] = {}
    for key, given in entries(node, path, problems):
        if key not in keys:
            problems.append(problem(given, path, unknown("key", key, list(keys))))
            continue
        try:
            changes[key] = keys[key](given.value)
        except ValueError as error:
            problems.append(problem(given, f"{path}.{key}", str(error)))
    return changes


def _holding(
    before: Held,
    path: str,
    node: Node,
    changes: Mapping[str, Fields],
    problems: list[Problem],
) -> Fields:
    """Return all the fields together if `before` holds with them, else none.

    A key that does not even hold alone is told with its own line; what only does not hold together
    with the line of them all.
    """
    together = {name: value for fields in changes.values() for name, value in fields.items()}
    broken = _objection(before, together)
    if broken is None:
        return together
    lines = node.value if isinstance(node.value, Mapping) else {}
    alone = [
        problem(lines[key], f"{path}.{key}", words)
        for key, fields in changes.items()
        if (words := _objection(before, fields)) is not None
    ]
    problems.extend(alone or [problem(node, path, broken)])
    return {}


def _objection(before: Held, fields: Fields) -> str | None:
    try:
        dataclasses.replace(before, **fields)
    except ValueError as error:
        return str(error)
    return None


def _to(field: str, read: Callable[[object], Any]) -> Read:
    return lambda value: {field: read(value)}


def _window(value: object) -> Fields:
    """A window is in time or in steps: naming one takes the other away."""
    seconds, steps = (None, None) if value == units.NONE else units.window(value)
    return {"window_s": seconds, "window_steps": steps}


_REMEDIES = {remedy.value: remedy for remedy in Remedy}
_FAILURES = {reason.value: reason for reason in sorted(NEED_A_RULE)}

_ROW: Mapping[str, Read] = {
    "count": _to("count", units.or_none(units.count)),
    "count_before_first_step": _to("count_before_first_step", units.or_none(units.count)),
    "window": _window,
    "time": _to("time_s", units.or_none(units.duration_s)),
    "refund": _to("refund", units.share),
    "refund_past_onset": _to("refund_past_onset", units.flag),
    "backoff": _to("backoff_s", units.duration_s),
    "backoff_max": _to("backoff_s_max", units.duration_s),
    "remedy": _to("remedy", units.one_of("remedy", _REMEDIES)),
    "other_node_from": _to("other_node_from", units.or_none(units.count)),
    "other_node_window": _to("other_node_window_s", units.or_none(units.duration_s)),
    "fingerprint_limited": _to("fingerprint_limited", units.flag),
    "counts_as": _to("counts_as", units.or_none(units.one_of("termination reason", _FAILURES))),
}
_LIMITS: Mapping[str, Read] = {
    "fingerprint_limit": _to("fingerprint_limit", units.count),
    "never_started_limit": _to("never_started_limit", units.count),
    "never_started_backoff": _to("never_started_backoff_s", units.duration_s),
    "never_started_backoff_max": _to("never_started_backoff_s_max", units.duration_s),
    "device_hours_factor": _to("device_hours_factor", units.number),
    "device_time_floor": _to("device_s_floor", units.duration_s),
    "memory_growth": _to("memory_growth", units.number),
    "memory_growth_max": _to("memory_growth_max", units.number),
    "checkpoints_may_be_off": _to("checkpoints_may_be_off", units.flag),
}
_STORM: Mapping[str, Read] = {
    "ends": _to("ends", units.or_none(units.count)),
    "runs": _to("runs", units.count),
    "share": _to("share", units.share),
    "window": _to("window_s", units.duration_s),
    "pause": _to("pause_s", units.duration_s),
    "pause_max": _to("pause_s_max", units.duration_s),
}
_NODES: Mapping[str, Read] = {
    "reasons": _to("reasons", _failures),
    "at_once": _to("at_once", _failures),
    "strikes": _to("strikes", units.or_none(units.count)),
    "window": _to("window_s", units.duration_s),
    "rate_factor": _to("rate_factor", units.number),
    "share": _to("share", units.share),
    "quarantine": _to("quarantine_s", units.duration_s),
    "quarantine_max": _to("quarantine_s_max", units.duration_s),
    "memory": _to("memory_s", units.duration_s),
}
_SECTIONS = {
    "reasons": _reasons,
    "limits": _limits,
    "storm": _storm,
    "nodes": _nodes,
    "environment": _environment,
    "larger_devices": _names,
    "other_pools": _names,
}

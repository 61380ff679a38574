"""What the policy asks of a declaration, checked all at once before it is recorded. Pure.

The sections of policy.yaml are in `contracts`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields

from tracks_dagster.retry.contracts import (
    ANY_CLASS,
    Contracts,
    RetentionContract,
    Submission,
    above_the_cap,
    refused,
)
from tracks_dagster.scheduling.policy import SWEEP
from tracks_dagster.track.bodies import RetentionRule, RunDeclared
from tracks_dagster.track.declared_fields import FIELDS as ROWS
from tracks_dagster.track.declared_fields import Field as Row
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.records import Json
from tracks_dagster.track.roles import BASE_CHECKPOINT, key_of, value_of
from tracks_dagster.track.text.units import counted, duration

NO_INTENT = "no intent was given"  # how the intent of a run ends whose owner said none
NOBODY = frozenset({"", "unknown", "dagster"})  # owners and teams that nobody named


@dataclass(frozen=True, slots=True, kw_only=True)
class _Field:
    """of: its value, None or "" where it is missing. advice: how it is given."""

    of: Callable[[RunDeclared], Json]
    advice: str


def _named(text: str) -> str:
    return "" if text.strip().lower() in NOBODY else text


def _of_row(row: Row) -> _Field:
    """Return a field of the declaration itself; who and why have words that say nothing."""

    def of(declared: RunDeclared) -> Json:
        value = row.of_run(declared)
        if row.name in ("owner", "team"):
            return _named(value)
        says_nothing = row.name == "intent" and value.rstrip(".").endswith(NO_INTENT)
        return "" if says_nothing else value

    return _Field(of=of, advice=row.advice)


FIELDS: Mapping[str, _Field] = {
    **{row.name: _of_row(row) for row in ROWS if row.required},
    "commit": _Field(
        of=lambda d: d.code.git_commit, advice="commit the project's folder to a git checkout"
    ),
    "snapshot": _Field(
        of=lambda d: None if d.snapshot is None else d.snapshot.snapshot_id,
        advice="dataset: NAME in its tracks.yaml, and `tracks snapshots add`",
    ),
}


def check_declaration(contracts: Contracts, declared: RunDeclared, *, class_name: str) -> None:
    """Raise InvalidInput naming every rule that the declaration violates.

    class_name: of its workload class, the policy's default included.
    """
    found = [
        *_missing_fields(contracts.submission, declared),
        *_missing_parameters(contracts.submission, declared, class_name),
        *_too_little_kept(contracts.retention, declared.retention),
        *above_the_cap(contracts, declared.max_cost, by=declared.owner, owner=declared.owner),
    ]
    if class_name == SWEEP and contracts.tuning.trials is not None and declared.experiment is None:
        words = "a trial names the experiment that it is counted in; give --experiment NAME."
        found.append(refused("tuning.trials", words))
    if found:
        raise InvalidInput("\n".join(str(each) for each in found))


def _missing_fields(submission: Submission, declared: RunDeclared) -> Iterator[InvalidInput]:
    missing = [name for name in submission.required_fields if not FIELDS[name].of(declared)]
    if missing:
        advice = "; ".join(f"{name}: {FIELDS[name].advice}" for name in missing)
        yield refused(
            "submission.required_fields", f"{_listed(missing)} missing. How it is given: {advice}."
        )


def _missing_parameters(
    submission: Submission, declared: RunDeclared, class_name: str
) -> Iterator[InvalidInput]:
    by_class = submission.required_parameters
    asked = dict.fromkeys((*by_class.get(ANY_CLASS, ()), *by_class.get(class_name, ())))
    missing = [name for name in asked if not _has_parameter(declared, name)]
    if missing:
        yield refused(
            "submission.required_parameters",
            f"{_listed(missing)} missing in its config. Give its keys these roles, under keys: in its "
            f"tracks.yaml: {', '.join(f'{name}: KEY' for name in missing)}; and each a value.",
        )


def _has_parameter(declared: RunDeclared, name: str) -> bool:
    if name == BASE_CHECKPOINT and declared.branched_from is not None:
        return True
    value = value_of(declared.config, declared.roles, name)
    return key_of(declared.config, declared.roles, name) is not None and value not in (None, "")


def _too_little_kept(least: RetentionContract, rule: RetentionRule) -> Iterator[InvalidInput]:
    for each in fields(least):
        asked, at_least = getattr(rule, each.name), getattr(least, each.name)
        if asked < at_least:
            name = each.name.removesuffix("_s")
            option = "" if name == "delete_after" else f", or give --{name.replace('_', '-')}"
            shown = [duration(v) if each.name.endswith("_s") else str(v) for v in (asked, at_least)]
            yield refused(
                f"retention.{name}",
                f"the run keeps {shown[0]}, and {shown[1]} is the least. Raise {name} under "
                f"retention: in its tracks.yaml{option}.",
            )


def check_trials(contracts: Contracts, experiment: str, trials: int) -> None:
    """Raise InvalidInput where an experiment with so many runs of the class `sweep` is full."""
    most = contracts.tuning.trials
    if most is not None and trials >= most:
        raise refused(
            "tuning.trials",
            f"the experiment {experiment} has {counted(trials, 'trial')} already, and {most} is the "
            "most. Begin another experiment, or stop here.",
        )


def _listed(names: list[str]) -> str:
    return f"{names[0]} is" if len(names) == 1 else f"{', '.join(names)} are"

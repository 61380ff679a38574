"""A user's rules of the classifier, read from a YAML file: a list of rules, or one below `rules`.

    - {name: lustre-evicted, reason: storage_io, pattern: "LustreError.{0,80}evicted"}
    - {name: banner, reason: none, pattern: "^Welcome to"}  # a veto: no rule reads such lines

`reasons.user_rules` checks patterns and applies the rules.
"""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import Field, PlainValidator

from tracks_dagster.reasons.kube_json import mapping
from tracks_dagster.reasons.rules.cause import NAMED
from tracks_dagster.reasons.user_rules import (
    UserRules,
    Where,
    make_rule,
    make_rules,
    pattern_problem,
)
from tracks_dagster.track.effects.settings_file import FileModel, SettingsFile
from tracks_dagster.track.reasons import TerminationReason
from tracks_dagster.track.text import units
from tracks_dagster.track.text.units import in_quotes, shown

RULES_MAX = 200
NAME_CHARACTERS_MAX = 60
LIST_KEY = "rules"  # a list at the root stands for it

# Ends of an attempt that only the platform itself can know.
_NOT_BY_WORDS = (
    TerminationReason.FENCED,
    TerminationReason.BUDGET_EXHAUSTED,
    TerminationReason.EVALUATOR_ERROR,
)
_REASONS: dict[str, TerminationReason | None] = {
    each.value: each for each in TerminationReason if each not in _NOT_BY_WORDS
}
VETO = "none"  # in place of a reason
_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]*")
_EXAMPLE = '{name: lustre-evicted, reason: storage_io, pattern: "LustreError.{0,80}evicted"}'


def read_rules(file: SettingsFile) -> UserRules:
    """Return the rules that the file contains; raises SettingsError with all that is wrong."""
    found = file.read(_RulesFile)
    rows = mapping(file.value).get(LIST_KEY)
    if isinstance(rows, list):
        _check_list(file, [mapping(row).get("name") for row in rows])
    if found is None or file.problems:
        raise file.error()
    return make_rules([make_rule(**dict(rule)) for rule in found.rules])


def _check_list(file: SettingsFile, names: list[object]) -> None:
    """Collect names that are taken, and more rules than there may be."""
    lines: dict[str, int] = {}
    for place, name in enumerate(names):
        if not isinstance(name, str):
            continue
        loc = (LIST_KEY, place, "name")
        if name in lines:
            file.refuse(loc, f"{name!r} is taken by line {lines[name]}.")
        lines.setdefault(name, file.line(loc))
    if len(names) > RULES_MAX:
        file.refuse((LIST_KEY, RULES_MAX), f"more than {RULES_MAX} rules; leave some out.")


def _name(value: object) -> str:
    if isinstance(value, str) and len(value) <= NAME_CHARACTERS_MAX and _NAME.fullmatch(value):
        return value
    raise ValueError(
        f"{shown(value)} is not made of a-z, 0-9, '_', '-' and '.', at most {NAME_CHARACTERS_MAX}."
    )


def _pattern(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(in_quotes(value))
    if (problem := pattern_problem(value)) is not None:
        raise ValueError(problem)
    return value


def _confidence(value: object) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= 1:
        return float(value)
    raise ValueError(f"{shown(value)} is not a number above 0, at most 1.")


class _Rule(FileModel):
    example = _EXAMPLE

    name: Annotated[str, PlainValidator(_name)] = Field(
        description="write a word of its own, for example lustre-evicted"
    )
    reason: Annotated[
        TerminationReason | None, PlainValidator(units.one_of("reason", {**_REASONS, VETO: None}))
    ] = Field(
        description="write why such an attempt ended, for example storage_io; or none: not to be read"
    )
    pattern: Annotated[str, PlainValidator(_pattern)] = Field(
        description="write a regular expression in quotes"
    )
    confidence: Annotated[float, PlainValidator(_confidence)] = NAMED
    where: Annotated[
        Where,
        PlainValidator(units.one_of("place to look in", {each.value: each for each in Where})),
    ] = Where.ANY


class _RulesFile(FileModel):
    example = f"- {_EXAMPLE}"

    rules: tuple[_Rule, ...] = ()

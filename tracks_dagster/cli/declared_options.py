"""The options of `tracks run` and `tracks retry` that are fields of a run's declaration, from its rows.

A command gets those that were given together, by the names of their fields.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import click
from click.core import ParameterSource

from tracks_dagster.attempts.run_config import check_is_on_cluster, choices_of
from tracks_dagster.cli.common import Command
from tracks_dagster.cli.terminal import RECORDED
from tracks_dagster.track.declared_fields import PLACE, Field, Kind
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.records import Json
from tracks_dagster.track.text import units

OFF = "off"
_EXISTS = "Exists"
_MANY = frozenset({Kind.NAMES, Kind.LABELS, Kind.TOLERATIONS})
_TYPES: Mapping[Kind, Any] = {Kind.TEXT: RECORDED, Kind.COUNT: int, Kind.NUMBER: float}
_METAVARS = {
    Kind.NAME: "NAME",
    Kind.STEPS: "STEPS|off",
    Kind.SIZE: "SIZE",
    Kind.LABELS: "KEY=VALUE",
    Kind.TOLERATIONS: "KEY[=VALUE]:EFFECT",
}
_WRITTEN = {Kind.SIZE: ", such as 64GiB", Kind.TOLERATIONS: "; KEY:EFFECT matches any value"}


def declared_options(
    fields: Iterable[Field], *, shows_defaults: bool = True, **own: Mapping[str, Any]
) -> Callable[[Command], Command]:
    """Add the options of these fields; the command gets `asked`, those that were given, by name.

    own: what the command says otherwise of a field's option, as arguments of `click.option`. Raises
    InvalidInput for a value that cannot be read.
    """
    offered = [each for each in fields if each.option]

    def add(command: Command) -> Command:
        @functools.wraps(command)
        def packed(*args: Any, **options: Any) -> object:
            values = {each: options.pop(each.name) for each in offered if each.name in options}
            asked = {
                each.name: _read(each, value) for each, value in values.items() if _is_given(each)
            }
            return command(*args, asked=asked, **options)

        for each in reversed(offered):
            packed = _option(each, own.get(each.name, {}), shows_defaults)(packed)
        return packed  # type: ignore[return-value]  # click keeps the type

    return add


def _option(field: Field, own: Mapping[str, Any], shows_default: bool) -> Callable[[Any], Any]:
    choices = choices_of(field)
    choice = click.Choice(choices) if choices else None
    settings = {
        "type": choice or _TYPES.get(field.kind),
        "multiple": field.kind in _MANY,
        "metavar": None if choices else _METAVARS.get(field.kind),
        "help": f"{field.words[:-1]}{_WRITTEN.get(field.kind, '')}.",
    }
    if shows_default and field.default and field.kind is not Kind.STEPS:
        settings |= {"default": field.default, "show_default": True}
    flags = filter(None, (field.option, field.also))
    return click.option(*flags, field.name, **{**settings, **own})


def _is_given(field: Field) -> bool:
    """Whether a person gave it, or the command gives it by itself, as `tracks smoke` its stage."""
    source = click.get_current_context().get_parameter_source(field.name)
    return source is not ParameterSource.DEFAULT


def _read(field: Field, value: Any) -> Any:
    """Return the value that an option's text means; raises InvalidInput."""
    match field.kind:
        case Kind.SIZE:
            return _size(value)
        case Kind.LABELS:
            return _labels(field, value)
        case Kind.TOLERATIONS:
            return tuple(map(_toleration, value))
        case Kind.STEPS:
            return _steps(value)
    return value


def check_place(launcher: str, given: Collection[str]) -> None:
    """Raise InvalidInput for a run that stays local and is given fields that only a cluster has."""
    check_is_on_cluster(launcher, [each.option for each in PLACE if each.name in given])


def _steps(text: str) -> int | None:
    if text == OFF:
        return None
    if not re.fullmatch(r"[0-9]{1,12}", text):
        raise InvalidInput(
            f"--checkpoint-every {text!r} is not a number of steps; use a number, or off."
        )
    return int(text)


def _size(text: str) -> int:
    try:
        return units.size_bytes(text)
    except ValueError as error:
        raise InvalidInput(f"--memory: {error}") from error


def _labels(field: Field, pairs: tuple[str, ...]) -> Mapping[str, str]:
    example = "; ".join(
        f"{key}={value}" for key, value in (field.example or {"gpu": "a100"}).items()
    )
    found: dict[str, str] = {}
    for pair in pairs:
        key, separator, value = pair.partition("=")
        if not separator or not key:
            raise InvalidInput(
                f"{field.option} {pair!r} is not KEY=VALUE; write for example {example}."
            )
        if found.setdefault(key, value) != value:
            raise InvalidInput(
                f"{field.option} {key} is {found[key]!r} and {value!r}; give one of them."
            )
    return found


def _toleration(text: str) -> Mapping[str, Json]:
    """Return the toleration that `text` means, as in a pod's spec."""
    taint, separator, effect = text.rpartition(":")
    key, has_value, value = taint.partition("=")
    if not separator or not key or not effect:
        raise InvalidInput(
            f"--toleration {text!r} is not KEY=VALUE:EFFECT or KEY:EFFECT; write for example "
            "gpu=yes:NoSchedule."
        )
    if has_value:
        return {"key": key, "operator": "Equal", "value": value, "effect": effect}
    return {"key": key, "operator": _EXISTS, "effect": effect}

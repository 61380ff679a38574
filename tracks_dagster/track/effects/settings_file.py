"""A person's YAML settings file, read into a pydantic model: every problem at once, with its line.

Only mappings, lists and scalars; no anchors, tags or second document. Plain words stay words (`no`
and `on` are text, `24:00` is not a number): a number is digits, a truth is true or false. What a file
may contain, its `FileModel` says; what pydantic finds wrong is put into our words here.

pydantic takes 0.1 s to import, so only who has found a file imports this module.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    ModelWrapValidatorHandler,
    ValidationError,
    model_validator,
)
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError

from tracks_dagster.track.errors import SettingsError
from tracks_dagster.track.records import Json
from tracks_dagster.track.text.nearest import unknown
from tracks_dagster.track.text.units import in_quotes, shown

FILE_BYTES_MAX = 1024 * 1024  # a settings file; the shipped policy would be 8 KiB
DEPTH_MAX = 16
LEFT_OUT: Any = None  # default of a field that a file may leave out; read only what it gives

Loc = tuple[str | int, ...]  # the way to a value: keys, and 0-based places in lists

_INT = re.compile(r"[-+]?\d+")
_FLOAT = re.compile(r"[-+]?(?:\d*\.\d+(?:[eE][-+]?\d+)?|\d+[eE][-+]?\d+)")
_DIGITS_MAX = 18  # nobody meant a longer number
_FLOAT_SIGNS_MAX = 24  # as Python writes the longest: -1.2345678901234567e-300
_WORDS: Mapping[str, Json] = {"": None, "~": None, "null": None, "true": True, "false": False}


class FileModel(BaseModel):
    """A mapping in a settings file.

    A key is its field's name without the unit, which the value has: `backoff: 30s` is `backoff_s`.
    A field's description says what to write where it is missing; example: the whole mapping.
    """

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        alias_generator=lambda name: re.sub(r"_(s|bytes)(?=_max$|$)", "", name),
    )
    example: ClassVar[str] = ""

    def given(self) -> dict[str, Any]:
        """The fields that the file gives, in the model's order."""
        names = (name for name in type(self).model_fields if name in self.model_fields_set)
        return {name: getattr(self, name) for name in names}

    @model_validator(mode="wrap")
    @classmethod
    def _in_our_words(cls, given: Any, read: ModelWrapValidatorHandler[Self]) -> Self:
        try:
            return read(given)
        except ValidationError as error:
            found = [_describe(cls, each) for each in error.errors(include_url=False)]
        raise ValidationError.from_exception_data(
            cls.__name__,
            [
                InitErrorDetails(
                    type=PydanticCustomError("ours", "{words}", {"words": words}),
                    loc=loc,
                    input=None,
                )
                for loc, words in found
            ],
        )


Model = TypeVar("Model", bound=FileModel)


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Problem:
    """One thing that is wrong with a file. line: 1-based."""

    line: int
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsFile:
    """What a file contains, and what is wrong with it so far.

    name: as a message starts, "The policy file /x/policy.yaml"; path: empty where it was not a file.
    value: plain values, {} of an empty file, None where it is not YAML that is read here. lines: where
    each value starts, by the way to it; the value of a key starts with its key.
    """

    name: str
    path: str
    value: Json
    lines: Mapping[Loc, int]
    problems: list[Problem] = field(default_factory=list)

    def read(self, model: type[Model]) -> Model | None:
        """Return what can be read of the file, and collect what cannot.

        A key with a problem is left out of the model, so that what is left can be looked at too; None
        where the rest makes no model.
        """
        if self.value is None:
            return None
        try:
            return model.model_validate(self.value)
        except ValidationError as error:
            wrong = [each["loc"] for each in error.errors()]
            for each in error.errors():
                self.refuse(each["loc"], each["msg"])
        try:
            return model.model_validate(_without(self.value, {_key_of(loc) for loc in wrong}))
        except ValidationError:
            return None

    def refuse(self, loc: Loc, words: str) -> None:
        """Collect what is wrong with the value at `loc`."""
        where = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in loc)
        text = f"{where.removeprefix('.')}: {words}" if loc else words
        self.problems.append(Problem(line=self.line(loc), words=text))

    def line(self, loc: Loc) -> int:
        """Return the line of a value, or of what it is missing from."""
        return next(
            self.lines[loc[:end]] for end in range(len(loc), -1, -1) if loc[:end] in self.lines
        )

    def error(self) -> SettingsError:
        """Return the refusal of the file: a line for each problem, in the file's order."""
        count = "1 error" if len(self.problems) == 1 else f"{len(self.problems)} errors"
        lines = [f"  line {problem.line}: {problem.words}" for problem in sorted(self.problems)]
        return SettingsError("\n".join([f"{self.name} cannot be used; it has {count}:", *lines]))


def open_settings(path: Path, what: str, *, list_key: str = "") -> SettingsFile:
    """Return a file's contents. what: as a message names it, "The policy file".

    Raises SettingsError when it cannot be read, is not a file, is too large or is not UTF-8.
    """
    if path.exists() and not path.is_file():  # a pipe: who reads it waits for ever
        raise SettingsError(f"{path} is not a file.")
    try:
        with path.open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise SettingsError(f"{path} cannot be read ({error.strerror}).") from error
    if len(data) > FILE_BYTES_MAX:
        raise SettingsError(
            f"{path} has more than {FILE_BYTES_MAX // 1024} KiB; it is not such a file."
        )
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise SettingsError(f"{path} is not UTF-8: line {line} is not text.") from error
    return parse_settings(text, f"{what} {path}", path=str(path), list_key=list_key)


def parse_settings(text: str, name: str, *, path: str = "", list_key: str = "") -> SettingsFile:
    """Return the contents of a file. list_key: the key for which a list at the root stands."""
    problems: list[Problem] = []
    lines: dict[Loc, int] = {(): 1}
    value: Json = None
    try:
        problems += _foreign(text)
        if not problems:
            value = _root(yaml.compose(text), list_key, lines, problems)
    except yaml.YAMLError as error:
        problems.append(_broken(error, text))
    return SettingsFile(name=name, path=path, value=value, lines=lines, problems=problems)


def _describe(model: type[FileModel], error: ErrorDetails) -> tuple[Loc, str]:
    """Return where in `model` something is wrong, and in our words what."""
    loc, kind, given = error["loc"], error["type"], error["input"]
    if loc[-1:] == ("[key]",) and loc[-2:-1] == (given,):  # so pydantic marks a key that is wrong
        loc = loc[:-1]
    fields = {each.alias or name: each for name, each in model.model_fields.items()}
    if kind == "missing":
        hint = fields[str(loc[-1])].description
        return loc[:-1], f"{loc[-1]} is missing{f': {hint}' if hint else ''}."
    if kind == "extra_forbidden":
        return loc, unknown("key", str(loc[-1]), list(fields))
    if kind in ("model_type", "dict_type", "mapping_type"):
        hint = f", for example {model.example}" if model.example and not loc else ""
        return loc, f"{shown(given)} is given where keys with values belong{hint}."
    if kind == "tuple_type":
        return loc, f"{shown(given)} is given where a list belongs; begin each item with `- `."
    if kind == "string_type":
        return loc, in_quotes(given)
    if kind == "value_error":
        return loc, str(error["ctx"]["error"])
    return loc, error["msg"]


def _key_of(loc: Loc) -> Loc:
    """Return the way to the key at which a value lies, in a list or not."""
    place = next((at for at, key in enumerate(loc) if isinstance(key, int)), len(loc))
    return loc[:place]


def _without(value: Json, wrong: AbstractSet[Loc], loc: Loc = ()) -> Json:
    """Return a mapping without the keys that are wrong."""
    if not isinstance(value, Mapping):
        return value
    return {
        key: _without(below, wrong, (*loc, key))
        for key, below in value.items()
        if (*loc, key) not in wrong
    }


def _foreign(text: str) -> list[Problem]:
    """Return where a file uses what is not read here; nothing after too deep a nesting is looked at."""
    problems: list[Problem] = []
    depth = 0
    for event in yaml.parse(text):
        line = event.start_mark.line + 1 if event.start_mark else 1
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > DEPTH_MAX:
            words = f"it is nested more than {DEPTH_MAX} deep."
            return [*problems, Problem(line=line, words=words)]
        named = event.anchor if isinstance(event, yaml.NodeEvent) else None
        if named is not None or getattr(event, "tag", None) is not None:
            words = "an anchor (&), alias (*) or tag (!) is not read here; write the value out."
            problems.append(Problem(line=line, words=words))
    return problems


def _root(
    found: yaml.Node | None, list_key: str, lines: dict[Loc, int], problems: list[Problem]
) -> Json:
    if list_key and isinstance(found, yaml.SequenceNode):
        return {list_key: _plain(found, (list_key,), _line(found), lines, problems)}
    value = None if found is None else _plain(found, (), _line(found), lines, problems)
    return {} if value is None else value


def _plain(
    found: yaml.Node, loc: Loc, line: int, lines: dict[Loc, int], problems: list[Problem]
) -> Json:
    """Return a node's value; adds the line of each value in it."""
    lines[loc] = line
    if isinstance(found, yaml.SequenceNode):
        return [
            _plain(item, (*loc, place), _line(item), lines, problems)
            for place, item in enumerate(found.value)
        ]
    if not isinstance(found, yaml.MappingNode):
        return _scalar(found)
    value: dict[str, Json] = {}
    for key, below in found.value:
        if not isinstance(key, yaml.ScalarNode):
            words = "a key is a word, no mapping or list."
            problems.append(Problem(line=_line(key), words=words))
        elif key.value in value:
            first = lines[(*loc, key.value)]
            words = f"{key.value} was given before, in line {first}; give it once."
            problems.append(Problem(line=_line(key), words=words))
        else:
            value[key.value] = _plain(below, (*loc, key.value), _line(key), lines, problems)
    return value


def _line(node: yaml.Node) -> int:
    line: int = node.start_mark.line
    return line + 1


def _scalar(found: yaml.Node) -> Json:
    text = str(found.value)
    if not isinstance(found, yaml.ScalarNode) or found.style is not None:
        return text  # quoted: text, whatever it looks like
    if text in _WORDS:
        return _WORDS[text]
    if len(text) <= _DIGITS_MAX and _INT.fullmatch(text):
        return int(text)
    return float(text) if len(text) <= _FLOAT_SIGNS_MAX and _FLOAT.fullmatch(text) else text


def _broken(error: yaml.YAMLError, text: str) -> Problem:
    if isinstance(error, yaml.MarkedYAMLError):
        mark = error.problem_mark or error.context_mark
        words = " ".join(filter(None, (error.context, error.problem)))
        return Problem(line=mark.line + 1 if mark else 1, words=f"it is not YAML: {words}.")
    position = getattr(error, "position", 0)
    words = f"it is not YAML: {getattr(error, 'reason', error)}."
    return Problem(line=text[:position].count("\n") + 1, words=words)

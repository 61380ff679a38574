"""What a training script says of its own config, where that is certain. Pure: nothing is run.

Two forms are read: the literal dict that `join(config=…)` gets, and the arguments of one argparse
parser that have a literal default. Whatever else a script does is for a person to write down.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from tracks_dagster.projects.project import check_value
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.records import Json

_FLAG = re.compile(r"--([A-Za-z][A-Za-z0-9_-]*)")
_KINDS = {"int": int, "float": float, "str": str}
# What else an argument may say without its value being read in another way.
_HARMLESS = frozenset({"default", "type", "help", "metavar", "choices"})
_MAY_REQUIRE = ("add_subparsers", "add_mutually_exclusive_group")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptConfig:
    """keys: with their defaults. arguments: of an entry, by which the script gets their values."""

    keys: Mapping[str, Json] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()


def read_script_config(source: str) -> ScriptConfig:
    """Return the config of a script with that source; empty where nothing is certain."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ScriptConfig()  # the attempt will say where it is not Python
    found = _joined_with(tree)
    return ScriptConfig(keys=found) if found else _argparse(tree)


def _joined_with(tree: ast.Module) -> dict[str, Json]:
    """Return the dict of `join(config={…})`, written there or in a name of the module."""
    literals = {
        target.id: statement.value
        for statement in tree.body
        if isinstance(statement, ast.Assign)
        for target in statement.targets
        if isinstance(target, ast.Name)
    }
    given = [
        keyword.value
        for call in _calls(tree)
        if _name_of(call.func) in ("join", "joined")
        for keyword in call.keywords
        if keyword.arg == "config"
    ]
    if len(given) != 1:
        return {}
    value = literals.get(given[0].id) if isinstance(given[0], ast.Name) else given[0]
    found = _literal(value)
    if not isinstance(found, dict) or not all(isinstance(key, str) for key in found):
        return {}
    try:
        return {key: check_value(key, each) for key, each in found.items()}
    except InvalidInput:
        return {}


def _argparse(tree: ast.Module) -> ScriptConfig:
    """Return the arguments of the one parser; nothing where a command line needs more than them."""
    parsers = [
        statement
        for statement in ast.walk(tree)
        if isinstance(statement, ast.Assign)
        and isinstance(statement.value, ast.Call)
        and _name_of(statement.value.func) == "ArgumentParser"
    ]
    if len(parsers) != 1 or any(_name_of(call.func) in _MAY_REQUIRE for call in _calls(tree)):
        return ScriptConfig()
    names = {each.id for each in parsers[0].targets if isinstance(each, ast.Name)}
    keys: dict[str, Json] = {}
    arguments = []
    for call in _calls(tree):
        if _name_of(call.func) != "add_argument":
            continue
        keywords = {keyword.arg: keyword.value for keyword in call.keywords}
        if _needs_a_value(call, keywords):
            return ScriptConfig()
        flag = _flag(call)
        owner = call.func.value if isinstance(call.func, ast.Attribute) else None
        is_of_parser = isinstance(owner, ast.Name) and owner.id in names
        value = _default(keywords) if is_of_parser and keywords.keys() <= _HARMLESS else None
        if flag is None or value is None:
            continue
        key = flag.replace("-", "_")
        if key in keys:
            return ScriptConfig()
        keys[key] = value
        arguments.append(f"--{flag}={{{key}}}")
    return ScriptConfig(keys=keys, arguments=tuple(arguments))


def _needs_a_value(call: ast.Call, keywords: Mapping[str | None, ast.expr]) -> bool:
    """Whether the script cannot be started without this argument, or nobody can tell."""
    first = _literal(call.args[0]) if call.args else None
    is_option = isinstance(first, str) and first.startswith("-")
    is_required = "required" in keywords and _literal(keywords["required"]) is not False
    return None in keywords or not is_option or is_required


def _flag(call: ast.Call) -> str | None:
    """Return the long name of an argument, without its dashes."""
    for each in call.args:
        text = _literal(each)
        match = _FLAG.fullmatch(text) if isinstance(text, str) else None
        if match is not None:
            return match[1]
    return None


def _default(keywords: Mapping[str | None, ast.expr]) -> Json:
    """Return an argument's default in its own type; None where it is not a plain value."""
    value = _literal(keywords.get("default"))
    kind = _name_of(keywords["type"]) if "type" in keywords else "str"
    if kind == "float" and type(value) is int:
        value = float(value)
    if type(value) is not _KINDS.get(kind):
        return None
    try:
        return check_value("default", value)
    except InvalidInput:
        return None


def _calls(tree: ast.Module) -> Iterator[ast.Call]:
    """Yield every call, in the order of the source."""
    found = [each for each in ast.walk(tree) if isinstance(each, ast.Call)]
    yield from sorted(found, key=lambda call: (call.lineno, call.col_offset))


def _name_of(expression: ast.expr) -> str:
    """Return the last word of a dotted name, empty for anything else."""
    match expression:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


def _literal(expression: ast.expr | None) -> Json:
    """Return the value that is written there, None where it is not a literal."""
    try:
        return None if expression is None else ast.literal_eval(expression)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return None

"""The space of a study: how each key of a config is drawn, when, and what every config meets. Pure.

Randomness comes in as a generator that the caller seeds, so that the same fold proposes the same.
"""

from __future__ import annotations

import ast
import itertools
import math
import operator
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.records import Json
from tracks_dagster.track.text.nearest import unknown
from tracks_dagster.track.text.units import shown

UNIFORM, LOGUNIFORM, INT, CHOICE = "uniform", "loguniform", "int", "choice"
KINDS = (UNIFORM, LOGUNIFORM, INT, CHOICE)
DRAWS_MAX = 1000  # of one config, until one meets the constraints
MET_MIN = 20  # of DRAWS_MAX: with fewer, none of so many is met now and then
GRID_MAX = 100_000  # configs of a grid, before constraints
Config = Mapping[str, Json]


@dataclass(frozen=True, slots=True, kw_only=True)
class Param:
    """How one key is drawn. low, high: both ends are valid; of a CHOICE its `values` instead.

    points: of a grid, where not every value is one. when: key → values, of all of which the key is
    drawn; elsewhere the config keeps the project's own value.
    """

    kind: str
    low: float = 0.0
    high: float = 0.0
    values: tuple[Json, ...] = ()
    points: int | None = None
    when: Mapping[str, tuple[Json, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raise InvalidInput for what draws nothing."""
        if self.kind not in KINDS:
            raise InvalidInput(f"{self.kind!r} is not a way to draw; use {', '.join(KINDS)}.")
        if self.kind == CHOICE and not self.values:
            raise InvalidInput("a choice of nothing; write at least one value.")
        if self.kind != CHOICE and not (
            math.isfinite(self.low) and self.low <= self.high < math.inf
        ):
            raise InvalidInput(
                f"{self.kind} from {self.low:g} to {self.high:g} is empty; write [low, high]."
            )
        if self.kind == LOGUNIFORM and self.low <= 0:
            raise InvalidInput(f"loguniform from {self.low:g}: a logarithm needs a low above 0.")
        if self.points is not None and self.points < 1:
            raise InvalidInput(f"{self.points} points; write 1 or more.")

    def is_drawn(self, config: Config) -> bool:
        """Whether the key is drawn beside these values of the keys before it."""
        return all(config.get(key) in values for key, values in self.when.items())

    def takes(self, value: Json) -> bool:
        """Whether the value is one that could be drawn; of an int a float without a fraction too."""
        if self.kind == CHOICE:
            return value in self.values
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return is_number and self.low <= value <= self.high and not (self.kind == INT and value % 1)

    @property
    def words(self) -> str:
        """What is valid, as the end of a sentence: `a number from 0.1 to 1`, `one of 'adam', 'sgd'`."""
        if self.kind == CHOICE:
            return f"one of {', '.join(map(repr, self.values))}"
        number = "a whole number" if self.kind == INT else "a number"
        return f"{number} from {self.low:g} to {self.high:g}"

    def draw(self, rng: random.Random) -> Json:
        """Return a random value."""
        match self.kind:
            case "choice":
                return self.values[rng.randrange(len(self.values))]
            case "int":
                return rng.randint(int(self.low), int(self.high))
            case "loguniform":
                return self.within(math.exp(rng.uniform(math.log(self.low), math.log(self.high))))
        return rng.uniform(self.low, self.high)

    def scaled(self, value: Json, factor: float) -> Json:
        """Return the value times a factor, inside the bounds; a choice stays. An int moves by 1 at
        least."""
        if self.kind == CHOICE or factor == 1:
            return value
        if self.kind == INT:
            moved = round(value * factor)
            return int(self.within(moved if moved != value else value + (1 if factor > 1 else -1)))
        return self.within(value * factor)

    def moved(self, value: Json, rng: random.Random) -> Json:
        """Return another value of a choice, of numbers the next one below or above; the same where
        there is no other."""
        others = [each for each in self.values if each != value]
        if others and all(type(each) in (int, float) for each in self.values):
            below, above = [n for n in others if n < value], [n for n in others if n > value]
            others = [*([max(below)] if below else []), *([min(above)] if above else [])]
        return rng.choice(others) if others else value

    def within(self, value: float) -> float:
        """Return the value inside the bounds that is nearest."""
        return min(max(value, self.low), self.high)

    def grid_count(self) -> int:
        """Return how many values a grid has; raises InvalidInput where nobody says how many."""
        if self.kind == CHOICE:
            return len(self.values)
        whole = int(self.high) - int(self.low) + 1 if self.kind == INT else None
        if whole is None and self.points is None:
            raise InvalidInput("a grid over numbers needs points: N, or a list of the values.")
        return min(each for each in (whole, self.points) if each is not None)

    def grid(self) -> tuple[Json, ...]:
        """Return the `grid_count` values of a grid."""
        if self.kind == CHOICE:
            return self.values
        count = self.grid_count()
        if self.kind == INT and count == int(self.high) - int(self.low) + 1:
            return tuple(range(int(self.low), int(self.high) + 1))
        shares = [0.5] if count == 1 else [i / (count - 1) for i in range(count)]
        values = [self._at(share) for share in shares]
        return tuple(dict.fromkeys(map(round, values))) if self.kind == INT else tuple(values)

    def _at(self, share: float) -> float:
        if self.kind == LOGUNIFORM:
            low, high = math.log(self.low), math.log(self.high)
            return self.within(math.exp(low + share * (high - low)))
        return self.low + share * (self.high - self.low)


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """All keys that are drawn, each after those that it depends on. fixed: the rest of the config,
    which constraints may name."""

    params: Mapping[str, Param]
    constraints: tuple[str, ...] = ()
    fixed: Config = field(default_factory=dict)

    def allows(self, config: Config) -> bool:
        """Whether the config meets every constraint; one that names a key which is not there is met."""
        values = {**self.fixed, **config}
        return all(is_met(each, values) for each in self.constraints)

    def not_numbers(self, constraint: str) -> Iterator[str]:
        """Yield the keys that a constraint computes with and that may have a text as their value."""
        for name in sorted(_computed_names(constraint)):
            param = self.params.get(name)
            values = (self.fixed[name],) if param is None else param.values
            if not all(map(_is_number, values)):
                yield name

    def misfits(self, config: Config) -> Iterator[str]:
        """Yield each reason, a sentence, why the config is not one that the space could have drawn."""
        drawn: dict[str, Json] = {}
        for name, param in self.params.items():
            is_drawn = param.is_drawn({**self.fixed, **drawn})
            if not is_drawn and name in config:
                when = " and ".join(
                    f"{key} is {' or '.join(map(repr, values))}"
                    for key, values in param.when.items()
                )
                yield f"{name} is drawn only where {when}; leave it out."
            elif is_drawn and name not in config:
                yield f"{name} is missing; write {param.words}."
            elif is_drawn and not param.takes(config[name]):
                yield f"{name} = {shown(config[name])} is not in the space; write {param.words}."
            elif is_drawn:
                drawn[name] = config[name]
        for name in config:
            if name not in self.params:
                yield unknown("key of the space", str(name), list(self.params))
        for each in self.constraints:
            if not is_met(each, {**self.fixed, **drawn}):
                yield f"It does not meet the constraint {each}; change it or loosen that."

    def draw(self, rng: random.Random) -> dict[str, Json]:
        """Return a random config; raises InvalidInput where `DRAWS_MAX` in a row meet no constraint."""
        for _ in range(DRAWS_MAX):
            config = self._drawn(rng)
            if self.allows(config):
                return config
        raise InvalidInput(
            f"None of {DRAWS_MAX} configs that were drawn meets the constraints "
            f"({'; '.join(self.constraints)}); widen the space or loosen them."
        )

    def check_share(self, rng: random.Random) -> None:
        """Raise InvalidInput where so few configs meet the constraints that a search ends early."""
        count = sum(
            self.allows(self._drawn(rng)) for _ in range(DRAWS_MAX if self.constraints else 0)
        )
        if self.constraints and count < MET_MIN:
            raise InvalidInput(
                f"Only {count} of {DRAWS_MAX} configs that were drawn meet the constraints "
                f"({'; '.join(self.constraints)}), fewer than {MET_MIN}: the search would soon find no "
                "further one. Draw what they allow (a list of the values), or loosen them."
            )

    def _drawn(self, rng: random.Random) -> dict[str, Json]:
        config: dict[str, Json] = {}
        for name, param in self.params.items():
            if param.is_drawn({**self.fixed, **config}):
                config[name] = param.draw(rng)
        return config

    def grid(self) -> tuple[dict[str, Json], ...]:
        """Return every config of the grid that meets the constraints, the last key moving fastest."""
        names = list(self.params)
        count = math.prod(map(self._grid_count, names))
        if count > GRID_MAX:
            raise InvalidInput(
                f"The grid has {count} configs; at most {GRID_MAX}. Write points: N, or "
                "lists of values."
            )
        values = [self.params[name].grid() for name in names]
        found: dict[tuple[tuple[str, str], ...], dict[str, Json]] = {}
        for combination in itertools.product(*values):
            config: dict[str, Json] = {}
            for name, value in zip(names, combination, strict=True):
                if self.params[name].is_drawn({**self.fixed, **config}):
                    config[name] = value
            if self.allows(config):
                found.setdefault(tuple((k, repr(v)) for k, v in config.items()), config)
        if not found:
            raise InvalidInput("The grid is empty: no config of it meets the constraints.")
        return tuple(found.values())

    def _grid_count(self, name: str) -> int:
        try:
            return self.params[name].grid_count()
        except InvalidInput as error:
            raise InvalidInput(f"{name}: {error}") from error

    def scaled(
        self, config: Config, factor_of: Callable[[str], float], rng: random.Random
    ) -> dict[str, Json] | None:
        """Return the config with each number times its factor; None where a constraint forbids it. A
        key that is drawn beside the changed ones alone is drawn, one that is not any more left out."""
        found: dict[str, Json] = {}
        for name, param in self.params.items():
            if param.is_drawn({**self.fixed, **found}):
                is_there = name in config
                found[name] = (
                    param.scaled(config[name], factor_of(name)) if is_there else param.draw(rng)
                )
        return found if self.allows(found) else None

    def with_choice_moved(self, config: Config, rng: random.Random) -> Config:
        """Return the config with another value of one of its choices; as it is where it has none."""
        names = [name for name in config if len(self.params[name].values) > 1]
        if not names:
            return config
        name = rng.choice(names)
        return {**config, name: self.params[name].moved(config[name], rng)}


def make_space(
    params: Mapping[str, Param], constraints: tuple[str, ...] = (), fixed: Config | None = None
) -> Space:
    """Return the space with its keys in the order of what depends on what.

    Raises InvalidInput for an empty one, a circle of conditions, and a constraint that cannot be read.
    """
    if not params:
        raise InvalidInput(
            "The space is empty: name at least one key of the config to search over."
        )
    known = {**(fixed or {}), **params}
    ordered: dict[str, Param] = {}
    left = dict(params)
    while left:
        ready = [name for name, each in left.items() if not each.when.keys() & left.keys()]
        if not ready:
            raise InvalidInput(f"{', '.join(left)} depend on each other in a circle of when:.")
        ordered |= {name: left.pop(name) for name in ready}
    for name, param in params.items():
        for key in param.when.keys() - known.keys():
            raise InvalidInput(f"{name} depends on {key}, which is not a key of the config.")
    for each in constraints:
        for key in names_of(each) - known.keys():
            raise InvalidInput(f"The constraint {each!r} names {key}, which is not a key.")
    return Space(params=ordered, constraints=constraints, fixed=fixed or {})


def parse_space(recorded: Mapping[str, Json], constraints: tuple[str, ...], fixed: Config) -> Space:
    """Return the space that a record holds, as `body_json.to_json` of its params wrote it."""
    params = {
        name: Param(
            **{
                **each,
                "values": tuple(each["values"]),
                "when": {key: tuple(values) for key, values in each["when"].items()},
            }
        )
        for name, each in recorded.items()
    }
    return make_space(params, constraints, fixed)


# --- constraints: comparisons of sums and products, nothing that could run -------------------------

_OPERATORS: Mapping[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.USub: operator.neg,
    ast.Not: operator.not_,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
CONSTRAINT_CHARACTERS_MAX = 200


def names_of(constraint: str) -> set[str]:
    """Return the keys that a constraint names; raises InvalidInput for what is not one."""
    return {each.id for each in ast.walk(_parsed(constraint)) if isinstance(each, ast.Name)}


def _computed_names(constraint: str) -> set[str]:
    """Return the keys that are part of a sum or a product."""
    sums = (each for each in ast.walk(_parsed(constraint)) if isinstance(each, ast.BinOp))
    return {each.id for one in sums for each in ast.walk(one) if isinstance(each, ast.Name)}


def is_met(constraint: str, config: Config) -> bool:
    """Whether a config meets a constraint; one that names a key which is not there is met."""
    if names_of(constraint) - config.keys():
        return True
    try:
        return bool(_value(_parsed(constraint).body, config))
    except (ArithmeticError, TypeError):  # a division by zero, a text times a number: not met
        return False


def _parsed(constraint: str) -> ast.Expression:
    try:
        if len(constraint) > CONSTRAINT_CHARACTERS_MAX:
            raise ValueError("too long")
        tree = ast.parse(constraint, mode="eval")
        bad = [each for each in ast.walk(tree) if not _is_allowed(each)]
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        bad = [ast.Pass()]
    if bad or not isinstance(tree.body, ast.Compare | ast.BoolOp | ast.UnaryOp):
        raise InvalidInput(
            f"{constraint!r} is not a constraint; compare keys and numbers with < <= > >= == != and "
            "+ - * / // %, for example layers * hidden <= 256."
        )
    return tree


def _is_number(value: object) -> bool:
    return isinstance(value, int | float)


def _is_allowed(node: ast.AST) -> bool:
    plain = (ast.Expression, ast.Compare, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.And, ast.Or)
    is_value = isinstance(node, ast.Constant) and isinstance(node.value, int | float | str)
    return is_value or isinstance(node, (*plain, ast.Name, ast.Load)) or type(node) in _OPERATORS


def _value(node: ast.expr, config: Config) -> Any:
    match node:
        case ast.Constant(value=value):
            return value
        case ast.Name(id=name):
            return config[name]
        case ast.UnaryOp(op=op, operand=operand):
            return _OPERATORS[type(op)](_value(operand, config))
        case ast.BinOp(left=left, op=op, right=right):
            both = _value(left, config), _value(right, config)
            if not all(map(_is_number, both)):  # a text times a large number takes all memory
                raise TypeError("a text in a sum or a product")
            return _OPERATORS[type(op)](*both)
        case ast.BoolOp(op=op, values=values):
            found = (_value(each, config) for each in values)
            return all(found) if isinstance(op, ast.And) else any(found)
        case ast.Compare(left=left, ops=ops, comparators=rest):
            return all(_compared(left, ops, rest, config))
    raise TypeError(type(node).__name__)


def _compared(
    left: ast.expr, ops: list[ast.cmpop], rest: list[ast.expr], config: Config
) -> Iterator[bool]:
    values = [_value(each, config) for each in (left, *rest)]
    for op, (a, b) in zip(ops, itertools.pairwise(values), strict=True):
        yield bool(_OPERATORS[type(op)](a, b))

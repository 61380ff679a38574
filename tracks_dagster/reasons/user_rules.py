"""A user's own rules of the classifier: rows of words, checked before any of them is believed.

A row is plain data (`name`, `reason`, `pattern`, and if need be `confidence` and `where`), as an
adapter read it from a file. They are asked after recorded intent, control planes, hardware, containers
and the trainer's typed last word, and before the words that ship; the first row that is met decides.

A pattern is a regular expression of Python without regard to case. It may not run for ever: a search
tries, for each of the `LINE_CHARACTERS` places of a line, every way to share it out among the parts
that repeat, so their number and size are bounded by `STEPS_MAX` steps a line, and a repeat or a choice
inside a repeat is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from re import _parser  # type: ignore[attr-defined]  # the only parser of Python's own patterns
from typing import Any

from tracks_dagster.reasons.evidence import Condition, Evidence, RankEnd
from tracks_dagster.reasons.finding import NAMED
from tracks_dagster.reasons.logs import LINE_CHARACTERS
from tracks_dagster.reasons.words.cause import Cause, Tier, required_words
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.reasons import TerminationReason
from tracks_dagster.track.records import Json, canonical_json, sha256_hex

RULES_MAX = 200
PATTERN_CHARACTERS_MAX = 500
NAME_CHARACTERS_MAX = 60
STEPS_MAX = 10_000_000  # of one pattern on one line, at worst: about a second
DIGEST_DIGITS = 8

# Ends of an attempt that only the platform itself can know.
_NOT_BY_WORDS = frozenset(
    {
        TerminationReason.FENCED,
        TerminationReason.BUDGET_EXHAUSTED,
        TerminationReason.EVALUATOR_ERROR,
    }
)
_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]*")
_REQUIRED = ("name", "reason", "pattern")
_KNOWN = (*_REQUIRED, "confidence", "where")
_REPEATS = ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT")


class Where(StrEnum):
    """In which texts of the evidence a rule looks."""

    ANY = "any"
    LOG = "log"
    LAST_WORD = "last_word"
    KERNEL = "kernel"
    CONDITION = "condition"


@dataclass(frozen=True, slots=True, kw_only=True)
class UserRule:
    """One row that was found to hold."""

    cause: Cause
    where: Where


@dataclass(frozen=True, slots=True, kw_only=True)
class UserRules:
    """The rows of one file in order. digest: of what they say, "" when there are none."""

    rules: tuple[UserRule, ...] = ()
    digest: str = ""


NO_RULES = UserRules()


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row as it was read. line: 1-based, of the file; lines: of each of its fields."""

    line: int
    fields: Mapping[str, Json]
    lines: Mapping[str, int] = field(default_factory=dict)

    def line_of(self, name: str) -> int:
        """Return the line of a field, or of the row where it has none."""
        return self.lines.get(name, self.line)


def check_rules(
    rows: Sequence[Row], source: str, errors: Sequence[tuple[int, str]] = ()
) -> UserRules:
    """Return the rules that `rows` make; raises InvalidInput with every error and its line.

    errors: (line, what is wrong) of what was no row at all.
    """
    errors = [*errors, *(error for row in rows for error in _errors(row))]
    errors += _repeated(rows)
    if len(rows) > RULES_MAX:
        errors.append((rows[RULES_MAX].line, f"more than {RULES_MAX} rules; leave some out"))
    if errors:
        raise bad_rules(source, errors)
    rules = tuple(_rule(row) for row in rows)
    said = [[r.cause.name, r.cause.reason, r.cause.words.pattern, r.cause.confidence, r.where]
            for r in rules]  # fmt: skip
    digest = sha256_hex(canonical_json({"rules": said}))[:DIGEST_DIGITS] if rules else ""
    return UserRules(rules=rules, digest=digest)


def bad_rules(source: str, errors: Sequence[tuple[int, str]]) -> InvalidInput:
    """Return the refusal of a file: every (line, what is wrong), in the order of the lines."""
    told = "\n".join(f"  line {line}: {what}" for line, what in sorted(errors))
    return InvalidInput(
        f"The rules of {source} are refused, none of them is used: {len(errors)} error(s).\n{told}"
    )


def seen_by(rule: UserRule, evidence: Evidence) -> Evidence:
    """Return the evidence with only those texts in which `rule` looks, all of them as logs of ranks."""
    ranks = tuple(_rank_seen(rank, rule.where) for rank in evidence.ranks)
    told: list[str] = []
    if rule.where in (Where.ANY, Where.KERNEL):
        told += evidence.kernel_lines
    if rule.where in (Where.ANY, Where.CONDITION):
        told += (_condition_text(each) for each in evidence.conditions)
    if told:
        number = evidence.ranks[0].rank if evidence.ranks else 0
        ranks = (*ranks, RankEnd(rank=number, log_tail="\n".join(told)))
    return replace(evidence, ranks=ranks)


def _rank_seen(rank: RankEnd, where: Where) -> RankEnd:
    return replace(
        rank,
        log_tail=rank.log_tail if where in (Where.ANY, Where.LOG) else "",
        last_word=rank.last_word if where in (Where.ANY, Where.LAST_WORD) else None,
    )


def _condition_text(told: Condition) -> str:
    return f"{told.type}/{told.reason}: {told.message}"


def _rule(row: Row) -> UserRule:
    told = row.fields
    cause = Cause(
        name=str(told["name"]),
        reason=TerminationReason(str(told["reason"])),
        words=re.compile(str(told["pattern"]), re.IGNORECASE),
        tier=Tier.ROOT,
        confidence=float(told.get("confidence", NAMED)),
        required=required_words(str(told["pattern"])),
    )
    return UserRule(cause=cause, where=Where(str(told.get("where", Where.ANY))))


def _errors(row: Row) -> Iterator[tuple[int, str]]:
    """Yield (line, what is wrong) for every field of a row."""
    told = row.fields
    for name in _REQUIRED:
        if told.get(name) in (None, ""):
            yield row.line, f"{name} is missing; a rule has {', '.join(_REQUIRED)}"
    for name in told:
        if name not in _KNOWN:
            yield row.line_of(name), f"unknown field {name!r}; a rule has {', '.join(_KNOWN)}"
    checks = {"name": _name, "reason": _reason, "pattern": _pattern,
              "confidence": _confidence, "where": _where}  # fmt: skip
    for name, check in checks.items():
        if told.get(name) not in (None, "") and (wrong := check(told[name])) is not None:
            yield row.line_of(name), wrong


def _repeated(rows: Sequence[Row]) -> list[tuple[int, str]]:
    seen: dict[Json, int] = {}
    errors = []
    for row in rows:
        name = row.fields.get("name")
        if isinstance(name, str) and name in seen:
            errors.append((row.line_of("name"), f"name {name!r} is taken by line {seen[name]}"))
        elif isinstance(name, str):
            seen[name] = row.line_of("name")
    return errors


def _name(value: Json) -> str | None:
    if isinstance(value, str) and len(value) <= NAME_CHARACTERS_MAX and _NAME.fullmatch(value):
        return None
    return (
        f"name {value!r} is not made of a-z, 0-9, '_', '-' and '.', at most {NAME_CHARACTERS_MAX}"
    )


def _reason(value: Json) -> str | None:
    valid = [reason.value for reason in TerminationReason if reason not in _NOT_BY_WORDS]
    if value in valid:
        return None
    return f"unknown reason {value!r}; valid: {', '.join(valid)}"


def _confidence(value: Json) -> str | None:
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= 1:
        return None
    return f"confidence {value!r} is not a number above 0, at most 1"


def _where(value: Json) -> str | None:
    if value in list(Where):
        return None
    return f"unknown where {value!r}; valid: {', '.join(Where)}"


def _pattern(value: Json) -> str | None:
    """Return what is wrong with a pattern, or None."""
    if not isinstance(value, str):
        return f"pattern {value!r} is no text; put it in quotes"
    if len(value) > PATTERN_CHARACTERS_MAX:
        return f"pattern of {len(value)} characters; at most {PATTERN_CHARACTERS_MAX}"
    try:
        tree = _parser.parse(value, re.IGNORECASE)
        compiled = re.compile(value, re.IGNORECASE)
    except (re.error, OverflowError, RecursionError) as error:
        return f"pattern {value!r} is no regular expression: {error}"
    if compiled.search("") is not None:
        return f"pattern {value!r} fits every line"
    try:
        steps = LINE_CHARACTERS * _ways(tree, inside=False)
    except _RepeatInRepeatError:
        return f"pattern {value!r} could run for ever: it has a repeat or a choice inside a repeat"
    if steps > STEPS_MAX:
        return (
            f"pattern {value!r} could run for very long ({steps:.0e} steps a line, at most "
            f"{STEPS_MAX:.0e}): write .{{0,80}} for .* and \\d{{1,9}} for \\d+"
        )
    return None


class _RepeatInRepeatError(Exception):
    """A pattern's time grows exponentially with the line."""


def _ways(tree: Any, *, inside: bool) -> int:
    """Return how many ways a pattern can share out one line from one place: the product over its
    repeats of how often each may, at most the length of a line.

    "a.*b" → 1000; "a.{0,80}b\\d+" → 81 × 1000. Raises _RepeatInRepeatError.
    """
    ways = 1
    for operation, argument in tree:
        name = str(operation)
        if name in _REPEATS:
            least, most, part = argument
            varies = most != least
            if varies and inside:
                raise _RepeatInRepeatError
            inner = _ways(part, inside=inside or most > 1)
            ways *= inner * (min(int(most) - int(least), LINE_CHARACTERS) + 1 if varies else 1)
        elif name == "BRANCH":
            if inside:
                raise _RepeatInRepeatError
            ways *= sum(_ways(each, inside=inside) for each in argument[1])
        elif name == "SUBPATTERN":
            ways *= _ways(argument[-1], inside=inside)
        elif name in ("ASSERT", "ASSERT_NOT"):
            ways *= _ways(argument[1], inside=inside)
        elif name == "ATOMIC_GROUP":
            ways *= _ways(argument, inside=inside)
        elif name in ("GROUPREF", "GROUPREF_EXISTS"):
            raise _RepeatInRepeatError
    return ways

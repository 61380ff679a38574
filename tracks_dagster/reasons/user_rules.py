"""A user's own rules of the classifier: rows of words, checked before any of them is believed.

`effects.rules_file` reads them. They come after recorded intent, control planes, hardware,
containers and the trainer's typed last word, and before the words that ship. The first row that matches
decides. A veto comes before them all: a line that it fits is not read by any rule.

A pattern is a regular expression of Python without regard to case. It may not run for ever. A search
tries, for each of the `LINE_CHARACTERS` places of a line, every way to share it out among the parts
that repeat. So their number and size are bounded by `STEPS_MAX` steps a line, and a repeat or a choice
inside a repeat is refused.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from re import _parser  # type: ignore[attr-defined]  # the only parser of Python's own patterns
from typing import Any

from tracks_dagster.reasons.evidence import Evidence, RankEnd
from tracks_dagster.reasons.logs import LINE_CHARACTERS
from tracks_dagster.reasons.rules.cause import Cause, Tier, Words
from tracks_dagster.track.reasons import TerminationReason
from tracks_dagster.track.records import Json, canonical_json, sha256_hex

PATTERN_CHARACTERS_MAX = 500
STEPS_MAX = 10_000_000  # of one pattern on one line, at worst: about a second
DIGEST_DIGITS = 8

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
    """One row, checked."""

    cause: Cause
    where: Where


@dataclass(frozen=True, slots=True, kw_only=True)
class Veto:
    """One row that takes lines away, checked."""

    name: str
    words: Words
    where: Where

    def strikes(self, line: str, where: Where) -> bool:
        """Whether a line of the texts of `where` is not to be read."""
        return self.where in (Where.ANY, where) and self.words.search(line) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class UserRules:
    """The rows of one file in order. digest: of their content, "" when there are none."""

    rules: tuple[UserRule, ...] = ()
    vetoes: tuple[Veto, ...] = ()
    digest: str = ""


NO_RULES = UserRules()


def make_rules(rows: Sequence[UserRule | Veto]) -> UserRules:
    """Return the rules with the digest that the classifier's version names."""
    content = {"rules": [_content(row) for row in rows]}
    digest = sha256_hex(canonical_json(content))[:DIGEST_DIGITS] if rows else ""
    return UserRules(
        rules=tuple(row for row in rows if isinstance(row, UserRule)),
        vetoes=tuple(row for row in rows if isinstance(row, Veto)),
        digest=digest,
    )


def _content(row: UserRule | Veto) -> list[Json]:
    if isinstance(row, Veto):
        return [row.name, None, row.words.pattern, None, row.where]
    each = row.cause
    return [each.name, each.reason, each.words.pattern, each.confidence, row.where]


def make_rule(
    *, name: str, reason: TerminationReason | None, pattern: str, confidence: float, where: Where
) -> UserRule | Veto:
    """Return one row of values that were checked. reason: None for a veto."""
    if reason is None:
        return Veto(name=name, words=Words(pattern), where=where)
    cause = Cause(
        name=name,
        reason=reason,
        words=Words(pattern),
        tier=Tier.ROOT,
        confidence=confidence,
    )
    return UserRule(cause=cause, where=where)


def evidence_for(rule: UserRule, evidence: Evidence) -> Evidence:
    """Return the evidence with only those texts in which `rule` looks, all of them as logs of ranks."""
    ranks = tuple(_rank_for(rank, rule.where) for rank in evidence.ranks)
    texts: list[str] = []
    if rule.where in (Where.ANY, Where.KERNEL):
        texts += evidence.kernel_lines
    if rule.where in (Where.ANY, Where.CONDITION):
        texts += (each.text for each in evidence.conditions)
    if texts:
        number = evidence.ranks[0].rank if evidence.ranks else 0
        ranks = (*ranks, RankEnd(rank=number, log_tail="\n".join(texts)))
    return replace(evidence, ranks=ranks)


def without_vetoed(evidence: Evidence, rules: UserRules) -> Evidence:
    """Return readable evidence without the lines that a veto fits."""
    if not rules.vetoes:
        return evidence

    def kept(text: str, where: Where) -> str:
        lines = (each for each in text.splitlines() if not is_struck(each, where))
        return "\n".join(lines)

    def is_struck(line: str, where: Where) -> bool:
        return any(veto.strikes(line, where) for veto in rules.vetoes)

    def rank(each: RankEnd) -> RankEnd:
        word = each.last_word
        if word is not None:
            word = replace(
                word,
                message=kept(word.message, Where.LAST_WORD),
                traceback_tail=kept(word.traceback_tail, Where.LAST_WORD),
            )
        return replace(each, log_tail=kept(each.log_tail, Where.LOG), last_word=word)

    return replace(
        evidence,
        ranks=tuple(map(rank, evidence.ranks)),
        kernel_lines=tuple(x for x in evidence.kernel_lines if not is_struck(x, Where.KERNEL)),
        conditions=tuple(c for c in evidence.conditions if not is_struck(c.text, Where.CONDITION)),
    )


def _rank_for(rank: RankEnd, where: Where) -> RankEnd:
    return replace(
        rank,
        log_tail=rank.log_tail if where in (Where.ANY, Where.LOG) else "",
        last_word=rank.last_word if where in (Where.ANY, Where.LAST_WORD) else None,
    )


def pattern_problem(pattern: str) -> str | None:
    """Return why a pattern cannot be used, or None."""
    if len(pattern) > PATTERN_CHARACTERS_MAX:
        return f"it has {len(pattern)} characters; at most {PATTERN_CHARACTERS_MAX}."
    try:
        tree = _parser.parse(pattern, re.IGNORECASE)
        compiled = re.compile(pattern, re.IGNORECASE)
    except (re.error, OverflowError, RecursionError) as error:
        return f"{pattern!r} is not a regular expression: {error}."
    if compiled.search("") is not None:
        return f"{pattern!r} fits every line."
    try:
        steps = LINE_CHARACTERS * _ways(tree, inside=False)
    except _RepeatInRepeatError:
        return f"{pattern!r} could run for ever: it has a repeat or a choice inside a repeat."
    if steps > STEPS_MAX:
        return (
            f"{pattern!r} could run for very long ({steps:.0e} steps a line, at most "
            f"{STEPS_MAX:.0e}): write .{{0,80}} for .* and \\d{{1,9}} for \\d+."
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

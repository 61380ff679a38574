"""Evidence with its texts made readable: what every rule is given."""

from __future__ import annotations

from dataclasses import replace

from tracks_dagster.reasons import hangs
from tracks_dagster.reasons.evidence import Condition, Evidence, LastWord, RankEnd
from tracks_dagster.reasons.log_lines import clean, lines_of


def readable(evidence: Evidence) -> Evidence:
    """Return `evidence` with every text as its last lines, cleaned and bounded; nothing is judged."""
    return replace(
        evidence,
        ranks=tuple(_rank(rank) for rank in evidence.ranks),
        conditions=tuple(_condition(each) for each in evidence.conditions),
        kernel_lines=tuple(line for text in evidence.kernel_lines for line in lines_of(text)),
    )


def _rank(rank: RankEnd) -> RankEnd:
    word = None if rank.last_word is None else _word(rank.last_word)
    return replace(rank, log_tail=_text(rank.log_tail), last_word=word)


def _word(word: LastWord) -> LastWord:
    return replace(word, message=_text(word.message), traceback_tail=_text(word.traceback_tail))


def _condition(told: Condition) -> Condition:
    if told.type == hangs.CONDITION:  # our own: a line for every rank, the first is the finding
        return replace(told, message=_text(told.message))
    return replace(told, message=clean(told.message.replace("\n", " ")))


def _text(text: str) -> str:
    return "\n".join(lines_of(text))

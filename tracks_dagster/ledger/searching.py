"""What a search asks for, and how text becomes words: the same on every database. Pure.

A word is a run of letters and digits, in lower case; everything between two words is a gap, so
`CUDA_ERROR` is the words `cuda error`. The databases index these words and split nothing themselves.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass

from tracks_dagster.track.errors import InvalidInput

WORD_CHARACTERS_MAX = 64  # longer words are cut, in texts and in questions: indexes bound an entry
PHRASES_MAX = 32  # of one question
EXCERPT_CHARACTERS = 240  # of a text, around the first word that was asked for

_GAPS = re.compile(r"[\W_]+")
_TERMS = re.compile(r'"([^"]*)"?|(\S+)')


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """All phrases must occur in a text. A phrase: words that stand side by side, one space between."""

    phrases: tuple[str, ...]

    @property
    def words(self) -> tuple[str, ...]:
        """Every word that must occur, once each, in the order asked."""
        return tuple(dict.fromkeys(word for phrase in self.phrases for word in phrase.split(" ")))

    def is_met_by(self, text: str) -> bool:
        """Tell whether every phrase occurs in `text`: what the ledger's indexes answer."""
        padded = f" {' '.join(words_of(text))} "
        return all(f" {phrase} " in padded for phrase in self.phrases)


def words_of(text: str) -> tuple[str, ...]:
    """Return the words of `text` in order, as they are indexed."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    return tuple(word[:WORD_CHARACTERS_MAX] for word in _GAPS.split(folded) if word)


def parse_question(text: str) -> Question:
    """Return what `text` asks for: words that must all occur, "words in quotes" side by side.

    `a_b` and `a-b` are phrases too. Raises InvalidInput where there is no word in it, or too many.
    """
    terms = (quoted or bare for quoted, bare in _TERMS.findall(text))
    phrases = tuple(dict.fromkeys(" ".join(words) for term in terms if (words := words_of(term))))
    if not phrases:
        raise InvalidInput(
            f'{text!r} holds no word to search for; write words, which must all occur, or a "phrase '
            'in quotes", for example: tracks search \'nccl "timed out"\'.'
        )
    if len(phrases) > PHRASES_MAX:
        raise InvalidInput(
            f"{len(phrases)} words are too many; at most {PHRASES_MAX} are searched."
        )
    return Question(phrases=phrases)


def excerpt(text: str, question: Question, *, characters: int = EXCERPT_CHARACTERS) -> str:
    """Return `text` on one line, cut to about `characters` around the first word of the question."""
    line = " ".join(text.split())
    if len(line) <= characters:
        return line
    folded = line.casefold()
    found = [at for word in question.words if (at := folded.find(word)) >= 0]
    first = min(found, default=0)
    begin = max(0, min(first - characters // 4, len(line) - characters))
    cut = line[begin : begin + characters]
    return f"{'…' if begin else ''}{cut}{'…' if begin + characters < len(line) else ''}"

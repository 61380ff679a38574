"""What a question asks for, and how a text becomes words."""

from __future__ import annotations

import pytest

from tracks_dagster.ledger.texts import (
    PHRASES_MAX,
    WORD_CHARACTERS_MAX,
    Question,
    excerpt,
    parse_question,
    words_of,
)
from tracks_dagster.track.errors import InvalidInput

WORDS = {
    "CUDA_ERROR: out-of memory": ("cuda", "error", "out", "of", "memory"),
    "NCCL timed out (1800000 ms)": ("nccl", "timed", "out", "1800000", "ms"),
    "gpt-story/a02": ("gpt", "story", "a02"),
    "Straße, ÉTÉ, ﬁne": ("strasse", "été", "fine"),
    "学習が止まった。再開": ("学習が止まった", "再開"),
    "'; drop table texts; --": ("drop", "table", "texts"),
    "": (),
    "— …": (),
}


@pytest.mark.parametrize("text", WORDS)
def test_words_are_runs_of_letters_and_digits_in_lower_case(text: str) -> None:
    assert words_of(text) == WORDS[text]


def test_a_word_without_an_end_is_cut() -> None:
    assert words_of("a" * 5000) == ("a" * WORD_CHARACTERS_MAX,)


QUESTIONS = {
    "nccl timeout": ("nccl", "timeout"),
    '"timed out" nccl': ("timed out", "nccl"),
    "CUDA_ERROR": ("cuda error",),
    '"never closed': ("never closed",),
    "again AGAIN again": ("again",),
    '"" word': ("word",),
}


@pytest.mark.parametrize("text", QUESTIONS)
def test_all_words_must_occur_and_words_in_quotes_side_by_side(text: str) -> None:
    assert parse_question(text).phrases == QUESTIONS[text]


@pytest.mark.parametrize("text", ["", "  ", '""', "— !"])
def test_a_question_without_a_word_is_wrong_use(text: str) -> None:
    with pytest.raises(InvalidInput, match="no word to search for"):
        parse_question(text)


def test_a_question_has_a_bound() -> None:
    with pytest.raises(InvalidInput, match="at most 32"):
        parse_question(" ".join(f"w{n}" for n in range(PHRASES_MAX + 1)))


@pytest.mark.parametrize(
    ("question", "is_met"),
    [
        ("nccl watchdog", True),
        ("watchdog nccl", True),
        ('"watchdog nccl"', False),
        ('"nccl watchdog"', True),
        ("nccl gloo", False),
        ("watch", False),  # a part of a word is not a word
    ],
)
def test_a_question_is_met_by_words_and_phrases(question: str, is_met: bool) -> None:
    assert parse_question(question).is_met_by("[rank 3] NCCL watchdog gave up") == is_met


def test_an_excerpt_shows_the_first_word_of_the_question_on_one_line() -> None:
    text = f"{'before ' * 100}\nthe needle\n{'after ' * 100}"
    result = excerpt(text, Question(phrases=("needle",)), characters=60)
    assert "the needle after" in result
    assert result.startswith("…")
    assert result.endswith("…")
    assert len(result) == 62
    assert excerpt("a\n short  text", Question(phrases=("text",))) == "a short text"

"""The smell test as a sheet: six questions to a reader of an explanation, the record's answers, a time.

The reader answers from the explanation alone and judges each answer against the record; what the
record itself does not hold is nobody's fault but its own, and scores for nobody.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tracks_dagster.review.explain.explanation import AttemptExplanation
from tracks_dagster.review.explain.sections import sections

TIME_S_MAX = 15 * 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One line of the sheet. recorded: the answer, as `tracks explain --full` has it."""

    name: str
    asks: str
    recorded: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """A filled one. answers: of the reader, by question; right: as the reader judged them."""

    attempt: str
    answers: Mapping[str, str]
    right: Mapping[str, bool]
    took_s: float

    @property
    def score(self) -> int:
        """How many answers were right."""
        return sum(self.right.values())

    @property
    def passed(self) -> bool:
        """Whether all were, within TIME_S_MAX."""
        return self.score == len(QUESTIONS) and self.took_s <= TIME_S_MAX


QUESTIONS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "config": ("Which config did it run with, and what had changed?", ("what it tried", "changed")),
    "data": ("Which data did it train on, and which samples of it?", ("data",)),
    "placement": ("On which machines and devices did it run?", ("where",)),
    "checkpoint": ("From which checkpoint does the run go on?", ("checkpoints",)),
    "retries": ("What came before and after it, and why?", ("what follows", "history")),
    "evals": ("What was evaluated, and what is still to be?", ("evals",)),
}


def questions(attempt: AttemptExplanation) -> list[Question]:
    """Return the questions about an attempt, each with what the record answers."""
    found = {section.label: section.lines for section in sections(attempt)}
    return [
        Question(
            name=name,
            asks=asks,
            recorded=tuple(line for label in labels for line in found.get(label, ())),
        )
        for name, (asks, labels) in QUESTIONS.items()
    ]

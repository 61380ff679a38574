"""A whole explanation as plain text, and how its lines are labelled and wrapped. Pure.

The same on a terminal, in a pipe and in a mail: no colours. With a width, lines are wrapped below
themselves; a command in backticks is never broken, so that it can be copied. The parts are in
`sections`, the short answer in `summary`, the meaning of terms in `glossary`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tracks_dagster.review.explain.explanation import (
    AttemptExplanation,
    Break,
    RunExplanation,
)
from tracks_dagster.review.explain.glossary import used_topics
from tracks_dagster.review.explain.sections import (
    Section,
    cost_lines,
    history_lines,
    open_word,
    sections,
)
from tracks_dagster.track.text.units import cost_text
from tracks_dagster.track.text.wrapping import wrap_line

LABEL_WIDTH = 15  # with the gap behind the longest label
MARGIN, GAP = "  ", "  "  # before a label, and behind it
HANGING = "  "  # how far the rest of a line is indented
WIDTH_MIN = 60  # a narrower terminal breaks lines by itself


def run_text(run: RunExplanation, *, width: int | None = None) -> str:
    """Return the run in a few lines, its history and cost, then each of its newest attempts.

    width: characters of a line, where it can be; None: lines as long as they are.
    """
    head = [f"{run.run_id}: {run.state}. {run.why}".rstrip(), *run.promotions]
    head += broken_lines(run.broken)
    if missing := run.facts.get("invalid_why"):
        head.append(f"Not valid: {missing}.")
    head += filter(None, [run.waits_for])
    sections = [
        Section("what it cost", (*cost_lines(run.cost), *_cap(run.cap))),
        Section("history", tuple(_history(run))),
    ]
    if run.expectation:
        sections.insert(0, Section("expectation", run.expectation))
    if run.gates:
        sections.insert(0, Section("gates", run.gates))
    head += labelled_lines(sections)
    parts = ["\n".join(head), *(_attempt(attempt, is_alone=False) for attempt in run.attempts)]
    return wrapped("\n\n".join(parts), width)


def _cap(max_cost: float | None) -> Iterator[str]:
    if max_cost is not None:
        yield f"at most {cost_text(max_cost)} by its max cost, in the price table's currency"


def attempt_text(attempt: AttemptExplanation, *, width: int | None = None) -> str:
    """Return one attempt as labelled lines: why it ended, what to do, then everything else.

    width: as of `run_text`.
    """
    return wrapped(_attempt(attempt, is_alone=True), width)


def glossary_text(text: str, *, width: int | None = None) -> str:
    """Return the meaning of the glossary's words in `text`, a line a topic."""
    return wrapped("\n".join(labelled_lines([Section("words", tuple(used_topics(text)))])), width)


def wrapped(text: str, width: int | None) -> str:
    """Return `text` with lines of at most `width`; words and commands that are longer stay whole."""
    if width is None:
        return text
    return "\n".join(_wrapped(line, max(width, WIDTH_MIN)) for line in text.splitlines())


def _wrapped(line: str, width: int) -> str:
    is_labelled = line.startswith(MARGIN)
    # Of a head further to the right than a label, so that its rest does not look like one.
    hanging = (MARGIN + " " * LABEL_WIDTH if is_labelled else MARGIN) + HANGING
    # The label and the space after it, or the indentation of a traceback's line, are kept as they are.
    kept = len(MARGIN) + LABEL_WIDTH if is_labelled else 0
    return wrap_line(line, width, indent=hanging, kept=kept)


def headline(attempt: AttemptExplanation) -> str:
    """Return the attempt and its end in a word."""
    return f"{attempt.key}: {end_word(attempt)}"


def end_word(attempt: AttemptExplanation) -> str:
    """Return why it ended; where the record breaks before its end, it may not be open."""
    if attempt.ended is not None:
        return attempt.ended.reason
    return open_word(attempt.broken)


def broken_lines(broken: Break | None, *, with_to_do: bool = True) -> list[str]:
    """Yield where the track breaks; nothing where it does not."""
    if broken is None:
        return []
    what = "A NEWER VERSION WROTE" if broken.is_newer else "THE RECORD BREAKS at"
    to_do = f" To do: {broken.to_do}" if with_to_do else ""
    return [
        f"{what} record {broken.seq}: {broken.meaning} What follows holds up to the record before "
        f"it, and is as things stood then.{to_do}"
    ]


def _attempt(attempt: AttemptExplanation, *, is_alone: bool) -> str:
    lines = [headline(attempt)]
    if is_alone:  # of a run both are said once, at its head
        lines += broken_lines(attempt.broken)
        lines += filter(None, [attempt.waits_for])
    parts = sections(attempt)
    shown = parts if is_alone else [each for each in parts if each.label != "history"]
    return "\n".join([*lines, *labelled_lines(shown)])


def _history(run: RunExplanation) -> Iterator[str]:
    yield from history_lines(run.history, run.broken)
    if run.left_out:
        yield (
            f"the oldest {run.left_out} are listed here only; "
            f"`tracks explain {run.run_id}/a01 --full` has the first in full, and so on"
        )


def labelled_lines(parts: Iterable[Section]) -> list[str]:
    """Return the lines of the sections, each section's label before its first."""
    return [
        f"{label_column(section.label if index == 0 else '')}{line}"
        for section in parts
        for index, line in enumerate(section.lines)
    ]


def label_column(label: str) -> str:
    """Return the prefix of a line: its label, or as much room."""
    return f"{MARGIN}{label:<{LABEL_WIDTH - len(GAP)}}{GAP}"

"""Tell an explanation in plain text: what a tired person reads at night, the end before the details.

Pure: text in, nothing out. Colours are not its business, so it reads the same in a mail. With a width
lines are wrapped below themselves; a command in backticks is never broken, so that it can be copied.
What each part says is `sections`'s, the words that it uses are `glossary`'s.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator

from tracks_dagster.review.effects.explain.explanation import AttemptExplanation, RunExplanation
from tracks_dagster.review.effects.explain.glossary import used_topics
from tracks_dagster.review.effects.explain.reading import Break
from tracks_dagster.review.effects.explain.sections import Section, history_lines, sections

LABEL_WIDTH = 14
MARGIN = "  "  # before a label
HANGING = "  "  # what is left of a line stands that far to the right of its beginning
WIDTH_MIN = 60  # a narrower terminal breaks lines by itself
_COMMAND = re.compile(r"`[^`]*`")
_JOINT = "\N{NO-BREAK SPACE}"  # stands for a space that must not end a line, while it is wrapped


def run_text(run: RunExplanation, *, width: int | None = None) -> str:
    """Return the run in a few lines, its history, then each of its newest attempts, then the words.

    width: characters of a line, where it can be; None: lines as long as they are.
    """
    head = [f"{run.run_id}: {run.state}. {run.why}".rstrip(), *run.promotions]
    head += broken_lines(run.broken)
    head += filter(None, [run.waits_for])
    head += _labelled([Section("history", tuple(_history(run)))])
    parts = ["\n".join(head), *(_attempt(attempt, is_alone=False) for attempt in run.attempts)]
    return wrapped(_with_words("\n\n".join(parts)), width)


def attempt_text(attempt: AttemptExplanation, *, width: int | None = None) -> str:
    """Return one attempt as labelled lines: why it ended, what to do, then everything else.

    width: as of `run_text`.
    """
    return wrapped(_with_words(_attempt(attempt, is_alone=True)), width)


def wrapped(text: str, width: int | None) -> str:
    """Return `text` with lines of at most `width`; words and commands that are longer stay whole."""
    if width is None:
        return text
    return "\n".join(_wrapped(line, max(width, WIDTH_MIN)) for line in text.splitlines())


def _wrapped(line: str, width: int) -> str:
    if len(line) <= width:
        return line
    is_labelled = line.startswith(MARGIN)
    hanging = (MARGIN + " " * LABEL_WIDTH if is_labelled else "") + HANGING
    joined = _COMMAND.sub(lambda match: match.group().replace(" ", _JOINT), line)
    # The label and the space after it, or the indentation of a traceback's line, are kept as they are.
    kept = len(MARGIN) + LABEL_WIDTH if is_labelled else 0
    kept += len(joined[kept:]) - len(joined[kept:].lstrip(" "))
    wrapper = textwrap.TextWrapper(
        width=width,
        initial_indent=joined[:kept],
        subsequent_indent=hanging,
        break_long_words=False,
        break_on_hyphens=False,
        expand_tabs=False,
        replace_whitespace=False,
    )
    return wrapper.fill(joined[kept:]).replace(_JOINT, " ")


def headline(attempt: AttemptExplanation) -> str:
    """Return the attempt and its end in a word."""
    return f"{attempt.key}: {end_word(attempt)}"


def end_word(attempt: AttemptExplanation) -> str:
    """Return why it ended; where the record breaks before its end, nobody knows that it is open."""
    if attempt.ended is not None:
        return attempt.ended.reason
    return "open" if attempt.broken is None else "end not known"


def broken_lines(broken: Break | None) -> list[str]:
    """Say where the track stops holding; nothing where it holds."""
    if broken is None:
        return []
    what = "A NEWER VERSION WROTE" if broken.is_newer else "THE RECORD BREAKS at"
    return [
        f"{what} record {broken.seq}: {broken.meaning} What is told here holds up to the record before "
        f"it, and is as things stood then. To do: {broken.to_do}"
    ]


def _attempt(attempt: AttemptExplanation, *, is_alone: bool) -> str:
    lines = [headline(attempt)]
    if is_alone:  # of a run both are told once, at its head
        lines += broken_lines(attempt.broken)
        lines += filter(None, [attempt.waits_for])
    told = sections(attempt)
    kept = told if is_alone else [each for each in told if each.label != "history"]
    return "\n".join([*lines, *_labelled(kept)])


def _history(run: RunExplanation) -> Iterator[str]:
    yield from history_lines(run.history)
    if run.left_out:
        yield (
            f"the oldest {run.left_out} are told here only; `tracks explain {run.run_id}/a01` tells "
            "the first in full, and so on"
        )


def _labelled(told: Iterable[Section]) -> list[str]:
    return [
        f"{MARGIN}{section.label if index == 0 else '':<{LABEL_WIDTH}}{line}"
        for section in told
        for index, line in enumerate(section.lines)
    ]


def _with_words(text: str) -> str:
    return "\n".join([text, "", *_labelled([Section("words", tuple(used_topics(text)))])])

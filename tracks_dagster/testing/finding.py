"""What a check raises, and which checks ran: `pytest --tracks` counts them. Standard library only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import wraps
from textwrap import wrap
from typing import ParamSpec

from tracks_dagster.track.errors import InvalidInput

LISTED_MAX = 4  # parameters, positions or places in one message
WIDTH = 74  # of its cause: pytest puts six characters before each line of a terminal's 80

P = ParamSpec("P")

RAN: Counter[str] = Counter()  # name of a check → how often it ran in this process


class Finding(AssertionError):
    """What a check found wrong: where, with numbers, and the usual cause."""


class CannotCheck(InvalidInput):
    """The check was given something that it cannot judge, so neither "right" nor "wrong" is true."""


def check(function: Callable[P, None]) -> Callable[P, None]:
    """Count the calls of a check; a finding's traceback ends at the line that called it."""

    @wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> None:
        __tracebackhide__ = True
        RAN[function.__name__] += 1
        try:
            function(*args, **kwargs)
        except (Finding, CannotCheck) as error:
            raise error.with_traceback(None) from error.__cause__

    return called


def describe(heading: str, problems: Sequence[str], cause: str) -> str:
    """Return a finding's words: the first few problems, a line each, and the usual cause."""
    more = [f"… and {len(problems) - LISTED_MAX} more"] if len(problems) > LISTED_MAX else []
    lines = [f"  {each}" for each in (*problems[:LISTED_MAX], *more)]
    return "\n".join((heading, *lines, *wrap(f"Usual cause: {cause}", WIDTH)))

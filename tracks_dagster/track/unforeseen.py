"""What goes wrong with one of many: its own problem, whatever it is, and never that of the others.

What works on many tracks catches `Exception` around the work on each, and says by `problem_of` what
came of it. What nobody foresaw is a defect: the sentence names where it lies. Its traceback is not
logged, because it may show what no log is to hold.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import PurePath

from tracks_dagster.track.errors import TrackBroken, TracksError

CHARACTERS_MAX = 300  # of a foreign error's own words


def problem_of(error: Exception) -> str:
    """Return what went wrong with one of many, in a sentence without its name."""
    if isinstance(error, TracksError):
        return str(error)
    words = " ".join(str(error).split())[:CHARACTERS_MAX]
    return (
        f"An error that nobody foresaw ({type(error).__name__}{f': {words}' if words else ''}) at "
        f"{_place(error)}; tell its authors."
    )


@contextmanager
def as_broken(what: str) -> Iterator[None]:
    """Raise what nobody foresaw as a TrackBroken. what: what was attempted, as "x cannot be read"."""
    try:
        yield
    except TracksError:
        raise
    except Exception as error:
        raise TrackBroken(f"{what}. {problem_of(error)}") from error


def _place(error: Exception) -> str:
    """Return the innermost line of our own code on the way to where it was raised: FILE:LINE."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [each for each in frames if "tracks_dagster" in PurePath(each.filename).parts]
    last = (own or frames)[-1:]
    return "".join(f"{PurePath(each.filename).name}:{each.lineno}" for each in last)

"""`--as-of`: a time that a person gives, for commands that tell what was known then."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import TypeVar

import click

from tracks_dagster.track.errors import InvalidInput

Command = TypeVar("Command", bound=Callable[..., object])


def as_of_option(command: Command) -> Command:
    """Add `--as-of` to a reading command."""
    return click.option(
        "--as-of",
        metavar="TIME",
        help="Count only what was recorded by then, e.g. 2026-01-31T02:00; UTC without a zone.",
    )(command)


def parse_as_of(text: str | None) -> datetime | None:
    """Return the time in UTC, or None where none is given; raises InvalidInput."""
    if text is None:
        return None
    try:
        at = datetime.fromisoformat(text)
        return at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
    except (ValueError, OverflowError) as error:  # in UTC it may lie outside of the years 1 to 9999
        raise InvalidInput(
            f"--as-of {text!r} is no time; write it as 2026-01-31T02:00 or 2026-01-31."
        ) from error

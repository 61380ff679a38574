"""The words of a person: every argument of a command but the name of a file is made valid text.

Bytes that are no UTF-8 (a latin-1 terminal, a paste) would stay in a record for ever, and so would a
password. They are replaced, and the person sees a warning; a file's name stays as it is, or the file
would not be found.
"""

from __future__ import annotations

import click

from tracks_dagster.settings import Settings
from tracks_dagster.track.text.redact import HIDDEN, redact
from tracks_dagster.track.text.safe_text import REPLACEMENT, valid_text


class _Words(click.types.StringParamType):
    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> str:
        """Return the argument as valid text; says on stderr when that is not what was given."""
        given: str = super().convert(value, param, ctx)
        valid = valid_text(given)
        if valid != given:
            message = (
                f"{_name(param)} is no UTF-8: what cannot be read is replaced by {REPLACEMENT}."
            )
            click.echo(f"tracks: {message}", err=True)
        return valid


class _RecordedWords(_Words):
    def __init__(self, *, is_one_line: bool) -> None:
        self._is_one_line = is_one_line

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> str:
        """Return the words as they may be recorded; says on stderr what was hidden."""
        given = super().convert(value, param, ctx)
        if self._is_one_line:  # or a second line of it would look like one of ours
            given = " ".join(given.split())
        cleaned = redact(given, Settings.from_environment().secrets)
        if cleaned != given:
            message = f"{_name(param)} holds what looks like a secret: {HIDDEN} is recorded for it."
            click.echo(f"tracks: {message}", err=True)
        return cleaned


RECORDED = _RecordedWords(is_one_line=True)  # the type of an option whose words go into a record
RECORDED_TEXT = _RecordedWords(is_one_line=False)
_WORDS = _Words()


def take_words(command: click.Command) -> click.Command:
    """Return the command, its subcommands included, with every argument of plain text as words."""
    for param in command.params:
        if param.type is click.STRING:
            param.type = _WORDS
    if isinstance(command, click.Group):
        for subcommand in command.commands.values():
            take_words(subcommand)
    return command


def _name(param: click.Parameter | None) -> str:
    if param is None:
        return "An argument"
    return param.opts[0] if isinstance(param, click.Option) else param.human_readable_name

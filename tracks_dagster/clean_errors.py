"""Keeps secrets out of the errors that Dagster stores: those that leave an asset, an op or a sensor.

Dagster serialises an error as it is, with all that it was raised from, into its event log and the
tick's record; a driver's own words may be among them. An error without a secret is left alone.
"""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Iterator
from functools import wraps
from typing import ParamSpec, TypeVar, cast

from tracks_dagster.settings import own_secrets
from tracks_dagster.track.errors import TracksError
from tracks_dagster.track.text.redact import Redact, redact

CHAIN_MAX = 20  # errors of one chain that are kept; Dagster itself keeps fewer

P = ParamSpec("P")
R = TypeVar("R")


class CleanedError(TracksError):
    """An error's words, its type first, without the secrets in it."""


def without_secrets(body: Callable[P, R]) -> Callable[P, R]:
    """Let no error leave `body` with a secret in it. Below Dagster's own decorator."""
    if inspect.isgeneratorfunction(body):

        @wraps(body)
        def events(*args: P.args, **kwargs: P.kwargs) -> Iterator[object]:
            try:
                yield from cast(Iterator[object], body(*args, **kwargs))
            except Exception as error:
                cleaned = clean_error(error, clean_text)
                if cleaned is error:
                    raise
            else:
                return
            raise cleaned

        return cast(Callable[P, R], events)

    @wraps(body)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return body(*args, **kwargs)
        except Exception as error:
            cleaned = clean_error(error, clean_text)
            if cleaned is error:
                raise
        raise cleaned  # here, for what is raised while another is handled takes that one with it

    return call


def clean_text(text: str) -> str:
    """Return the text without the secrets of this process' environment, and what looks like one."""
    return redact(text, own_secrets())


def clean_error(error: BaseException, clean: Redact) -> BaseException:
    """Return the error, or a cleaned copy where it, or an error behind it, contains a secret.

    The copy keeps the tracebacks and the cleaned words of the chain.
    """
    chain = _chain(error)
    texts = ["".join(traceback.format_exception_only(each)).rstrip("\n") for each in chain]
    if all(clean(text) == text for text in texts):
        return error
    cleaned: BaseException | None = None
    for each, text in zip(reversed(chain), reversed(texts), strict=True):
        outer = CleanedError(clean(text)).with_traceback(each.__traceback__)
        outer.__cause__, cleaned = cleaned, outer
    return cleaned or error


def _chain(error: BaseException) -> list[BaseException]:
    """Return the error and those that are shown with it: what it was raised from, and so on."""
    chain: list[BaseException] = []
    behind: BaseException | None = error
    while behind is not None and behind not in chain and len(chain) < CHAIN_MAX:
        chain.append(behind)
        handled = None if behind.__suppress_context__ else behind.__context__
        behind = behind.__cause__ or handled
    return chain

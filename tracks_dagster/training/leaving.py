"""How a loop over steps was left before its last one: by the script's will, or by what ended it.

A generator is closed with its loop and never learns why. Its frame shows it: `break` and `return`
drop the iterator by an instruction of their own, an exception (`sys.exit` is one) at the instruction
that raised. That is CPython's; a loop that is found nowhere counts as left by the script's will.
"""

from __future__ import annotations

import inspect
import opcode
import sys
from dataclasses import dataclass
from types import FrameType

from tracks_dagster.track.errors import TrainingError

# What drops an iterator without raising: break and return, the end of a loop around it (`islice`,
# `zip`), and a name that is given another value.
_DROPS = frozenset(
    {
        *("POP_TOP", "POP_ITER", "END_FOR", "FOR_ITER"),
        *("STORE_FAST", "STORE_NAME", "STORE_GLOBAL", "STORE_DEREF"),
        *("DELETE_FAST", "DELETE_NAME", "DELETE_GLOBAL", "DELETE_DEREF"),
    }
)
# Where a generator waits that passes our steps on.
_WAITS = frozenset({"YIELD_VALUE", "SEND", "RESUME", "YIELD_FROM"})


class LeftEarly(TrainingError):
    """A script ended before its last step and never said that it meant to stop early."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """A script that ended as it meant to. is_complete: its last step was reached and saved."""

    is_complete: bool
    words: str


def left_by_exception() -> bool:
    """Whether an exception left the loop over the generator that calls this while it is closed."""
    frame = sys._getframe(1).f_back
    while frame is not None and _is_waiting(frame):
        frame = frame.f_back
    return frame is not None and _instruction(frame) not in _DROPS


def _is_waiting(frame: FrameType) -> bool:
    is_generator = frame.f_code.co_flags & inspect.CO_GENERATOR
    return bool(is_generator) and _instruction(frame) in _WAITS


def _instruction(frame: FrameType) -> str:
    code, at = frame.f_code.co_code, frame.f_lasti
    while at > 0 and opcode.opname[code[at]] == "CACHE":  # belongs to the instruction before it
        at -= 2
    return opcode.opname[code[at]]

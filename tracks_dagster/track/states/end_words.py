"""How an attempt ended, in a sentence: the reason's own, or what is known where the reason is not.

A kill and an exit code are named as such, no matter who caused them. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from tracks_dagster.track.bodies import AttemptEnded, AttemptReclassified
from tracks_dagster.track.reasons import TerminationReason
from tracks_dagster.track.states.run_state import AttemptState

# The words of the trainer for a script that ended itself: they say more than the reason does.
_ITSELF = re.compile(
    r"(?:^|: )((?:The (?:script|command) ended|The loop was left|rank \d+ ended) .*)"
)
_EXIT_CODE = re.compile(r"^exit code \d+")
_SIGNAL = re.compile(r"^(SIG[A-Z]+\b(?! of)|signal \d+)")
_SENTENCES = {
    "SIGTERM of unknown sender": "It ended on SIGTERM; who sent it is not known.",
    "an exit code that is not known": "It ended, and its exit code is not known.",
    "never started": "No rank ever started.",
    "vanished": "The gang is gone, and left neither exit codes nor words.",
}


def end_sentence(attempt: AttemptState) -> str:
    """Return how an attempt ended, by the newest reading; "" while it is open."""
    if attempt.ended is None:
        return ""
    return sentence_of(attempt.reclassified or attempt.ended, attempt.ended.root_message)


def sentence_of(reading: AttemptEnded | AttemptReclassified, root_message: str) -> str:
    """Return how an attempt ended, by one reading of its end."""
    reason = TerminationReason(reading.reason)
    if reason is TerminationReason.UNKNOWN:
        return _unknown(root_message) or reason.sentence
    if reason is TerminationReason.EARLY_STOPPED:
        return _newest(reading.lines, "stopped after step", "left its loop") or reason.sentence
    if reason is TerminationReason.CODE_ERROR and (found := _ITSELF.search(root_message)):
        return found[1] if found[1].endswith(".") else f"{found[1]}."
    return reason.sentence


def end_label(attempt: AttemptState) -> str:
    """Return the reason in a few words: "unknown, exit code 3", "gpu_oom"."""
    reason = "" if attempt.reason is None else attempt.reason.value
    if attempt.reason is not TerminationReason.UNKNOWN or attempt.ended is None:
        return reason
    root = attempt.ended.root_message
    found = _EXIT_CODE.match(root) or _SIGNAL.match(root)
    known = found[0] if found else root if root in _SENTENCES else ""
    return f"{reason}, {known}" if known else reason


def _unknown(root_message: str) -> str | None:
    if (found := _SENTENCES.get(root_message)) is not None:
        return found
    if (code := _EXIT_CODE.match(root_message)) is not None:
        return f"It ended with {code[0]}, and left no word of why."
    if (name := _SIGNAL.match(root_message)) is not None:
        return f"It was killed by {name[0]}; by whom is not known."
    return None


def _newest(lines: Sequence[str], *words: str) -> str | None:
    return next((line for line in reversed(lines) if any(each in line for each in words)), None)

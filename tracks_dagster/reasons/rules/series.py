"""What the lines of a log tell together and none of them alone: a loss that left its range, a step that
stands still while the clock goes on. Weight 7, and never more than a guess.

A trainer that reports its losses has its own watch (`divergence`), a placed gang its beats (`hangs`).
These rules are for logs of others, and read nothing into an end by a signal.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Sequence
from datetime import datetime

from tracks_dagster.reasons.evidence import Evidence, RankEnd
from tracks_dagster.reasons.initiator import exit_code, own, signal_of
from tracks_dagster.reasons.kube_json import time_of
from tracks_dagster.reasons.logs import RAW_LINES, clean, step_of
from tracks_dagster.reasons.rules.cause import LEANING, Finding
from tracks_dagster.track.reasons import TerminationReason

LOSSES_MIN = 5  # of one series that anything is read into
TAIL = 3  # losses at its end, all of which have to be out of range: one is a spike
DIVERGED_FACTOR = 2.0  # times the median of those before
LOSS_MIN = 0.1  # a smaller median doubles by noise
STUCK_S = 1800.0  # without a new step, as a gang's first step may take (`roles.START_S_MAX`)
STUCK_LINES_MIN = 3  # of a clock that goes on

_R = TerminationReason

# "loss 2.31", "loss=2.31", "'loss': 2.31", "train/loss 2.31", "lm loss: 2.3E+00"; none of validation.
_LOSS = re.compile(
    r"(?<!val )(?<!valid )(?<!eval )(?<!test )(?<!best )(?<!aux )(?<![\w-])"
    r"((?:(?:train|training|lm)[/_ ])?loss)['\"]?\s{0,3}[=:|]?\s{0,8}(\d+(?:\.\d*)?(?:e[+-]?\d+)?)\b",
    re.IGNORECASE,
)
_TIME = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d")


def diverged(evidence: Evidence) -> Finding | None:
    """The last losses of a rank are all twice what they were before."""
    ranks = own(evidence.ranks)
    if not _ended_in_silence(ranks):
        return None
    series = ((rank, *each) for rank in ranks for each in _series(rank.log_tail).items())
    for rank, key, losses in series:
        before, tail = losses[:-TAIL], losses[-TAIL:]
        if len(losses) < LOSSES_MIN or statistics.median(before) < LOSS_MIN:
            continue
        usual = statistics.median(before)
        if min(tail) >= DIVERGED_FACTOR * usual:
            line = f"rank {rank.rank}: {key} {', '.join(f'{x:g}' for x in tail)} after {usual:g}"
            return _finding(_R.LOSS_DIVERGENCE, line, f"{key} left its range")
    return None


def no_new_step(evidence: Evidence) -> Finding | None:
    """The clock went on for half an hour after the last new step, and nothing else was reported.

    evidence: with the times before its lines, as it was gathered.
    """
    ranks = own(evidence.ranks)
    if not _ended_in_silence(ranks):
        return None
    for rank in ranks:
        after = _times_after_last_step(rank.log_tail.rsplit("\n", RAW_LINES)[-RAW_LINES:])
        if len(after) < STUCK_LINES_MIN or (after[-1] - after[0]).total_seconds() < STUCK_S:
            continue
        stuck_s = (after[-1] - after[0]).total_seconds()
        line = f"rank {rank.rank}: no new step for {stuck_s:.0f} s while its log went on"
        return _finding(_R.HANG, line, "no new step while the log went on")
    return None


def _ended_in_silence(ranks: Iterable[RankEnd]) -> bool:
    """Whether no rank ended by a signal, which somebody else sent, or well."""
    return not any(signal_of(rank) is not None or exit_code(rank) == 0 for rank in ranks)


def _series(log: str) -> dict[str, list[float]]:
    """Return the losses of a log by the name under which they are shown."""
    found: dict[str, list[float]] = {}
    for line in log.splitlines():
        for match in _LOSS.finditer(line):
            found.setdefault(match[1].lower(), []).append(float(match[2]))
    return found


def _times_after_last_step(lines: Sequence[str]) -> list[datetime]:
    """Return the times of the lines from the last new step on; none where there is no step."""
    seen: set[str] = set()
    times: list[datetime] = []
    for line in lines:
        step = step_of(clean(line))
        if step is not None and step not in seen:
            seen.add(step)
            times = []
        match = _TIME.search(line)
        at = time_of(match[0]) if match is not None else None
        if at is not None and seen:
            times.append(at)
    return times


def _finding(reason: TerminationReason, line: str, root: str) -> Finding:
    return Finding(reason=reason, confidence=LEANING, lines=(line,), root_message=root)

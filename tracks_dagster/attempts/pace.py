"""How fast a run trains by its measured steps, how long the rest takes, when it fell silent. Pure.

A step's length is the wall time between the ends of two steps, so that data, saves and evals inside the
loop count as they fall. Neighbouring steps are alike and a save makes every tenth one longer, so steps
are not taken for independent: they are cut into at most ten windows in a row, and the spread is that of
the windows' means ("batch means"; Law and Kelton, Simulation Modeling and Analysis, section 9.5.3).

The interval is where 95 % of such remainders end, if the run continues as it did:

    left ± t(k - 1) · s · sqrt(m · w + m² / k)

with m steps left, k windows of w steps, s the standard deviation of their means and t Student's
quantile. The first term is the scatter of the steps to come, the second that of the mean itself, which
is why few steps give a wide interval. 8 steps of 10, 12, 10, 12, 10, 12, 10, 12 s: k = 8, w = 1,
mean 11, s = 1.069; for m = 4 the interval is 44 ± 2.365 · 1.069 · sqrt(4 + 2) = 44 ± 6.2 s.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise

from tracks_dagster.track.records import format_time
from tracks_dagster.track.states.run_state import AttemptState

STEPS_MAX = 100  # the newest ones: old ones predict little
WINDOWS_MAX = 10
SILENT_S_MIN = 600  # from which on a person should look whether the attempt still lives

# Student's t, 0.975, by degrees of freedom 1 to 9 (NIST/SEMATECH e-Handbook, section 1.3.6.7.2).
_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How long a step takes. step_s: mean seconds; attempt_id: whose steps were measured.

    steps: how many lengths were measured; windows: into how many they were cut, `window_steps` each;
    spread_s: standard deviation of the windows' means, None where there is only one.
    """

    attempt_id: int
    step_s: float
    steps: int
    windows: int
    window_steps: int
    spread_s: float | None

    @property
    def how(self) -> str:
        """Say in words what it rests on."""
        return (
            f"mean of the newest {self.steps} steps of attempt {self.attempt_id}, spread over "
            f"{self.windows} windows of {self.window_steps}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A duration that is not known exactly, in seconds. low_s, high_s: of 95 %; None: no interval."""

    seconds: float
    low_s: float | None = None
    high_s: float | None = None


def measure(attempt_id: int, ends_s: Sequence[float]) -> Pace | None:
    """Return the pace by the times at which steps in a row ended, oldest first; None below two.

    ends_s: seconds on any clock. A clock that was set back is not a length: such a pair is left out.
    """
    pairs = pairwise(ends_s)
    lengths = [later - earlier for earlier, later in pairs if later >= earlier][-STEPS_MAX:]
    if not lengths:
        return None
    windows = min(WINDOWS_MAX, len(lengths))
    size = len(lengths) // windows
    used = lengths[-windows * size :]
    means = [statistics.fmean(used[i : i + size]) for i in range(0, len(used), size)]
    return Pace(
        attempt_id=attempt_id,
        step_s=statistics.fmean(used),
        steps=len(used),
        windows=windows,
        window_steps=size,
        spread_s=statistics.stdev(means) if windows > 1 else None,
    )


DIGITS_MAX = 6  # after the point, of a span with a narrow interval


def format_span(span: Span) -> str:
    """Return a span with its interval: "40.2 ± 0.3 min"; without one "40.2 min"."""
    larger = ((86_400.0, "d"), (3600.0, "h"), (60.0, "min"))
    smaller = (1.0, "s") if span.seconds >= 0.1 or span.seconds == 0.0 else (0.001, "ms")
    size, unit = next((each for each in larger if span.seconds >= 1.5 * each[0]), smaller)
    if span.high_s is None:
        return f"{span.seconds / size:.1f} {unit}"
    half = (span.high_s - span.seconds) / size
    if half <= 0.0:
        return f"{span.seconds / size:.1f} {unit}" if span.seconds else "0 s"
    digits = 1 if half >= 0.1 else min(DIGITS_MAX, max(2, -math.floor(math.log10(half))))
    return f"{span.seconds / size:.{digits}f} ± {half:.{digits}f} {unit}"


def mean_step(pace: Pace) -> Span:
    """Return how long a step takes in the mean, with the interval that the mean lies in."""
    if pace.spread_s is None:
        return Span(seconds=pace.step_s)
    half = _T[pace.windows - 2] * pace.spread_s / math.sqrt(pace.windows)
    return Span(seconds=pace.step_s, low_s=max(0.0, pace.step_s - half), high_s=pace.step_s + half)


def time_for(pace: Pace, steps: int) -> Span:
    """Return how long `steps` more steps take (0 or more)."""
    seconds = pace.step_s * steps
    if steps <= 0:
        return Span(seconds=0.0, low_s=0.0, high_s=0.0)
    if pace.spread_s is None:
        return Span(seconds=seconds)
    scatter = math.sqrt(steps * pace.window_steps + steps**2 / pace.windows)
    half = _T[pace.windows - 2] * pace.spread_s * scatter
    return Span(seconds=seconds, low_s=max(0.0, seconds - half), high_s=seconds + half)


def last_sign_at(attempt: AttemptState, last_line_at: datetime | None) -> datetime | None:
    """Return when an attempt gave its last sign of life; None before its ranks have come together.

    last_line_at: of its journal's newest line, None where it has none.
    """
    return last_line_at or attempt.restored_at or attempt.placed_at


def describe_silence(run_id: str, last_sign: datetime | None, now: datetime) -> str | None:
    """Return a warning that the run's attempt has long been silent, for people only; None if it is not.

    What is done about a gang is decided by who looks at its processes.
    """
    silent_s = (now - last_sign).total_seconds() if last_sign is not None else 0.0
    if last_sign is None or silent_s < SILENT_S_MIN:
        return None
    return (
        f"But it has been silent for {silent_s / 60:.0f} min, since "
        f"{format_time(last_sign)[:19]}Z: `tracks triage {run_id}` checks whether it lives."
    )

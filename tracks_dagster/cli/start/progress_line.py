"""How a followed run is shown on stderr: one line that is redrawn on a terminal, else lines.

Events scroll above it. Stdout stays free for the outcome.
"""

from __future__ import annotations

import sys
from collections import deque
from dataclasses import dataclass, field
from datetime import datetime
from types import TracebackType
from typing import Protocol, Self

import click
from rich.progress import Progress, ProgressColumn, Task
from rich.text import Text

from tracks_dagster.cli.terminal import console
from tracks_dagster.retry.caps import Cost
from tracks_dagster.track.text.safe_text import visible
from tracks_dagster.track.text.units import about, cost_text
from tracks_dagster.track.text.wrapping import wrap_line
from tracks_dagster.wiring import utc_now

REDRAWN_PER_S = 2  # of the age of a checkpoint no eye sees more
PACE_LOOKS = 100  # the newest ones: old steps tell little of those to come
BAR_MIN, BAR_MAX = 8, 30  # characters; a narrower one shows nothing
# Without a terminal: a line for each of these, not for each step; of a long run so many lines.
LINE_EVERY_STEPS = 10
LINES_MAX = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """The newest step. steps: how many it is to run; saved, saved_at: the newest checkpoint; step_s:
    how long a step takes; cost: of the run so far. None where that is not known."""

    attempt_id: int
    step: int
    steps: int | None
    loss: float
    saved: int | None
    saved_at: datetime | None = None
    step_s: float | None = None
    cost: Cost | None = None

    @property
    def of_steps(self) -> str:
        """Return "step 25/40"."""
        return f"step {self.step}" if self.steps is None else f"step {self.step}/{self.steps}"

    @property
    def pace(self) -> str:
        """Return "12.4 steps/s", or of slow steps "3.2 s/step"; "" where it is not known."""
        if not self.step_s:
            return ""
        return f"{1 / self.step_s:.3g} steps/s" if self.step_s < 1 else f"{self.step_s:.3g} s/step"

    @property
    def left(self) -> str:
        """Return about how long the other steps take; "" where it is not known."""
        if not self.step_s or self.steps is None or self.step >= self.steps:
            return ""
        return f"{about(self.step_s * (self.steps - self.step))} left"

    def checkpoint(self, now: datetime) -> str:
        """Return which step is saved, and since when; "" before the first."""
        if self.saved is None:
            return ""
        age = (
            "" if self.saved_at is None else f", {about((now - self.saved_at).total_seconds())} ago"
        )
        return f"saved {self.saved}{age}"

    @property
    def money(self) -> str:
        """Return what the run cost so far; "" where no price is known."""
        if self.cost is None or (self.cost.amount == 0 and self.cost.unpriced_s > 0):
            return ""
        return f"{cost_text(self.cost.amount)} {self.cost.currency}"


@dataclass(slots=True)
class StepTimes:
    """How long a step takes, by when the newest steps of one attempt ended; not each one is seen."""

    _attempt_id: int = 0
    _ends: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=PACE_LOOKS))

    def take(self, attempt_id: int, step: int, at_s: float) -> None:
        """Take in that a step ended then; another attempt, and one that is set back, begin again."""
        if attempt_id != self._attempt_id or (self._ends and step <= self._ends[-1][0]):
            self._attempt_id = attempt_id
            self._ends.clear()
        self._ends.append((step, at_s))

    @property
    def step_s(self) -> float | None:
        """Seconds a step in the mean; None before two were seen, or by a clock that was set back."""
        if len(self._ends) < 2:
            return None
        (first, began_s), (last, ended_s) = self._ends[0], self._ends[-1]
        return (ended_s - began_s) / (last - first) if ended_s > began_s else None


def describe(reached: Reached, now: datetime, width: int) -> str:
    """Return the line in at most `width` characters: without room money is left out first, then the
    pace, the attempt and the checkpoint."""
    parts = {
        "attempt": f"attempt {reached.attempt_id}",
        "step": reached.of_steps,
        "loss": f"loss {reached.loss:.4f}",
        "pace": reached.pace,
        "left": reached.left,
        "checkpoint": reached.checkpoint(now),
        "money": reached.money,
    }
    line = _joined(parts)
    for name in ("money", "pace", "attempt", "checkpoint"):
        if len(line) > width:
            del parts[name]
            line = _joined(parts)
    return line


def _joined(parts: dict[str, str]) -> str:
    return " · ".join(filter(None, parts.values()))


class View(Protocol):
    """How a followed run is shown."""

    def __enter__(self) -> Self:
        """Start to show."""
        ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Leave the terminal as it was."""
        ...

    def event(self, text: str) -> None:
        """Show something that happened, once."""
        ...

    def progress(self, reached: Reached) -> None:
        """Show the newest step."""
        ...


def open_view() -> View:
    """Return a line that is redrawn when stderr is a terminal that can, lines otherwise."""
    can_redraw = sys.stderr.isatty() and not console(sys.stderr).is_dumb_terminal
    return BarView() if can_redraw else LineView()


class BarView:
    """One line at the bottom with a bar where it has room, events above it."""

    def __init__(self) -> None:
        self._console = console(sys.stderr)
        self._progress = Progress(
            _Line(), console=self._console, refresh_per_second=REDRAWN_PER_S, expand=True
        )
        self._task = self._progress.add_task("waiting for the first step", total=None, reached=None)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def event(self, text: str) -> None:
        line = wrap_line(visible(text), self._console.width)
        self._console.print(Text(line), soft_wrap=True)

    def progress(self, reached: Reached) -> None:
        self._progress.update(self._task, reached=reached, width=self._console.width)


class _Line(ProgressColumn):
    """The whole line, with a bar in the room that is left."""

    def render(self, task: Task) -> Text:
        """Return it as of now, so that the age of the checkpoint grows between two steps."""
        reached: Reached | None = task.fields["reached"]
        if reached is None:
            return Text(task.description)
        width = task.fields["width"]
        line = Text(describe(reached, utc_now(), width), no_wrap=True)
        size = min(BAR_MAX, width - len(line) - 2)
        if reached.steps and size >= BAR_MIN:
            done = min(size, size * reached.step // reached.steps)
            line = Text.assemble(("━" * done, "cyan"), ("━" * (size - done), "dim"), "  ", line)
        return line


class LineView:
    """A line for each event and for every tenth step; of many steps about LINES_MAX lines."""

    def __init__(self) -> None:
        self._shown: tuple[int, int] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        pass

    def event(self, text: str) -> None:
        click.echo(text, err=True)

    def progress(self, reached: Reached) -> None:
        line = reached.step // max(LINE_EVERY_STEPS, (reached.steps or 0) // LINES_MAX)
        if (reached.attempt_id, line) != self._shown:
            self._shown = (reached.attempt_id, line)
            saved = "" if reached.saved is None else f", saved {reached.saved}"
            begin = f"attempt {reached.attempt_id}: {reached.of_steps}"
            click.echo(f"{begin}, training loss {reached.loss:.4f}{saved}", err=True)

"""How a run that is being followed shows on stderr: a progress bar, or plain lines without a terminal.

Shows what it is given and knows nothing of tracks; stdout stays free for the outcome.
"""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Protocol, Self

import click
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tracks_dagster.cli.printing import console
from tracks_dagster.track.text.safe_text import visible

LINE_EVERY_STEPS = 10  # without a terminal: a line for each of these, not for each step


class View(Protocol):
    """Where a followed run is shown."""

    def __enter__(self) -> Self:
        """Begin to show."""
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

    def progress(self, *, attempt_id: int, step: int, steps: int, loss: float) -> None:
        """Show the newest step of `steps` and its loss."""
        ...


def open_view() -> View:
    """Return a bar when stderr is a terminal, lines otherwise."""
    return BarView() if sys.stderr.isatty() else LineView()


class BarView:
    """One bar at the bottom, events above it."""

    def __init__(self) -> None:
        self._console = console(sys.stderr)
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[loss]}"),
            TimeElapsedColumn(),
            console=self._console,
        )
        self._task = self._progress.add_task("waiting for the first step", total=None, loss="")

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
        self._console.print(visible(text))

    def progress(self, *, attempt_id: int, step: int, steps: int, loss: float) -> None:
        self._progress.update(
            self._task,
            description=f"attempt {attempt_id}",
            completed=step,
            total=steps,
            loss=f"loss {loss:.4f}",
        )


class LineView:
    """A line for each event and for every tenth step."""

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

    def progress(self, *, attempt_id: int, step: int, steps: int, loss: float) -> None:
        reached = (attempt_id, step // LINE_EVERY_STEPS)
        if reached != self._shown:
            self._shown = reached
            click.echo(f"attempt {attempt_id}: step {step}/{steps}, loss {loss:.4f}", err=True)

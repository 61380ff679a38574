"""`tracks curves --tensorboard | --mlflow | --wandb`: a run's curves sent to trackers."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import click

from tracks_dagster.cli.common import print_json_line
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.review.effects.status import reads_what_waits
from tracks_dagster.settings import Settings, eval_tries
from tracks_dagster.track.body_json import to_json
from tracks_dagster.track.errors import InvalidInput, StoreUnavailable, TrackerError
from tracks_dagster.track.states.lifecycle import RunLifecycle, run_status
from tracks_dagster.track.states.run_state import RunState
from tracks_dagster.wings.watch.effects.trackers.exporting import Exported, Tracker, export_run

POLL_S = 5.0
AWAY_S_MAX = 300.0  # so long --follow waits for a store or a tracker that does not answer
_NUMBERS = re.compile(r"[0-9]+")  # ages, which grow

Command = TypeVar("Command", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenTrackers:
    """The trackers that a command line names."""

    tensorboard: Path | None = None
    mlflow: str | None = None
    wandb: Path | None = None
    experiment: str | None = None

    def __post_init__(self) -> None:
        """Raise InvalidInput for an experiment of nothing."""
        if self.experiment is not None and self.mlflow is None:
            raise InvalidInput("--experiment is of MLflow: give --mlflow URI with it.")

    def open(self) -> list[Tracker]:
        """Return them; nothing is asked of them yet."""
        from tracks_dagster.wings.watch.effects.trackers.mlflow import Mlflow
        from tracks_dagster.wings.watch.effects.trackers.tensorboard import TensorBoard
        from tracks_dagster.wings.watch.effects.trackers.wandb import WandbFolder

        found: list[Tracker] = []
        if self.tensorboard is not None:
            found.append(TensorBoard(self.tensorboard.absolute()))
        if self.mlflow is not None:
            found.append(Mlflow(self.mlflow, self.experiment))
        if self.wandb is not None:
            found.append(WandbFolder(self.wandb.absolute()))
        return found


def tracker_options(command: Command) -> Command:
    """Add the options that name trackers."""
    folder = click.Path(file_okay=False, path_type=Path)
    for option in (
        click.option("--experiment", help="MLflow's experiment; default: the run's project."),
        click.option("--wandb", type=folder, help="Write an offline run for `wandb sync` there."),
        click.option("--mlflow", metavar="URI", help="Send kept steps to MLflow there."),
        click.option("--tensorboard", type=folder, help="Write TensorBoard's files there."),
    ):
        command = option(command)
    return command


class WaitsShown:
    """Says on stderr what a followed run waits for: once, and again when that is another thing."""

    def __init__(self, tracks: Tracks, settings: Settings) -> None:
        self._tracks = tracks
        self._tries = partial(eval_tries, settings)
        self._shown = ""

    def show(self, state: RunState) -> None:
        """Look, and say it; raises StoreUnavailable."""
        words = reads_what_waits(self._tracks, self._tries)(state) or ""
        without_ages = _NUMBERS.sub("", words)
        if words and without_ages != self._shown:
            click.echo(f"{state.run_id}: {words}", err=True)
        self._shown = without_ages


def send(
    tracks: Tracks,
    run_id: str,
    trackers: Sequence[Tracker],
    cache: Path | None,
    *,
    waits: WaitsShown | None,
    as_json: bool,
) -> None:
    """Bring the trackers up to date; with `waits` again and again, until the run is over.

    Raises what `export_run` raises, with `waits` only after AWAY_S_MAX of it.
    """
    answered_at = time.monotonic()
    while True:
        state = tracks.run(run_id)
        is_over = run_status(state).state not in (RunLifecycle.RUNNING, RunLifecycle.WAITING)
        try:
            for done in _export(tracks, run_id, trackers, cache):
                if waits is None or done.is_news:
                    _print(done, as_json=as_json)
            if waits is not None:
                waits.show(state)
            answered_at = time.monotonic()
        except (StoreUnavailable, TrackerError):
            if waits is None or is_over or time.monotonic() - answered_at > AWAY_S_MAX:
                raise
        if is_over or waits is None:
            return
        time.sleep(POLL_S)


def _export(
    tracks: Tracks, run_id: str, trackers: Sequence[Tracker], cache: Path | None
) -> Iterator[Exported]:
    """Export to each tracker; one that is away keeps none of the others waiting, and raises at last."""
    problem: TrackerError | None = None
    for tracker in trackers:
        try:
            yield export_run(tracks, run_id, tracker, cache=cache)
        except TrackerError as error:
            problem = problem or error
    if problem is not None:
        raise problem


def _print(done: Exported, *, as_json: bool) -> None:
    if as_json:
        print_json_line(to_json(done))
        return
    if done.rolled_back is not None:
        click.echo(f"{done.run_id}: {done.rolled_back}")
    click.echo(
        f"{done.run_id}: {done.words} to {done.tracker}, which has it up to step {done.to_step}"
        f"{done.without}"
    )

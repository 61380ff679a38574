"""`tracks curves`: a run's metrics as a table, as points, or step by step."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import click

from tracks_dagster.cli import BAD_NEWS
from tracks_dagster.cli.common import (
    archive_option,
    as_json,
    print_json_line,
    print_table,
    run_argument,
    settings_for,
    text_width,
)
from tracks_dagster.cli.terminal import echo_whole
from tracks_dagster.curves.curve import (
    AXES,
    STEP,
    Curve,
    Curves,
    Point,
    curves_json,
    number_json,
    time_json,
)
from tracks_dagster.curves.effects.reading import read_curves
from tracks_dagster.curves.effects.rows import Row, Rows, committed_step, kept_rows
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.reading import open_tracks_to_read
from tracks_dagster.settings import Settings
from tracks_dagster.track.errors import InvalidInput, StoreUnavailable
from tracks_dagster.track.names import IMPORTED
from tracks_dagster.track.records import Json
from tracks_dagster.track.states.lifecycle import RunLifecycle, run_status
from tracks_dagster.track.text.safe_text import csv_text
from tracks_dagster.wings.watch.edge.trackers import (
    GivenTrackers,
    WaitsShown,
    send,
    tracker_options,
)

POLL_S = 2.0
STORE_AWAY_S_MAX = 300.0  # so long --follow waits for a store that does not answer
ROWS_AT_ONCE = 1000
BARS, WIDTH = "▁▂▃▄▅▆▇█", 30
NARROW, WIDTH_FROM = 14, 96  # bars where the terminal has fewer columns than that
NO_NUMBER = "×"
_UNFINISHED = (RunLifecycle.RUNNING, RunLifecycle.WAITING)


@click.command("curves")
@run_argument
@click.argument("metrics", metavar="[METRIC]...", nargs=-1)
@click.option("--csv", "as_csv", is_flag=True, help="Print a row for each step that was kept.")
@as_json
@click.option("-f", "--follow", is_flag=True, help="Until the run is over, as steps come.")
@click.option(
    "--by", type=click.Choice(AXES), default=STEP, show_default=True, help="What points lie by."
)
@tracker_options
@archive_option
@click.pass_context
def curves_command(
    context: click.Context,
    /,
    run_id: str,
    metrics: tuple[str, ...],
    as_csv: bool,
    as_json: bool,
    follow: bool,
    by: str,
    archive: Path | None,
    **named: Any,
) -> None:
    """Show the metrics of RUN, or those named, stitched over its attempts.

    --csv prints each kept step once, whatever its attempts lost. --json has what was lost too, each
    curve in at most 1000 points that keep every spike. With -f both print a line a step, up to the
    newest checkpoint, so that only a rollback takes one back: that is said.

    --tensorboard, --mlflow and --wandb send the same steps to a tracker instead, once or with -f as
    they come. Again sends only what is new.
    """
    trackers = GivenTrackers(**named).open()
    _check(
        as_csv=as_csv,
        as_json=as_json,
        follow=follow,
        by=by,
        archive=archive,
        has_trackers=bool(trackers),
    )
    settings = settings_for(archive)
    tracks, cache = open_tracks_to_read(settings), _cache(settings)
    asked = metrics or None
    waits = WaitsShown(tracks, settings) if follow else None
    if trackers:
        if asked is not None:
            raise InvalidInput("A tracker gets every metric that is not by rank; leave METRIC out.")
        send(tracks, run_id, trackers, cache, waits=waits, as_json=as_json)
    elif waits is not None:
        _Follower(tracks, run_id, asked, cache, waits, as_csv=as_csv).to_the_end()
    elif as_csv:
        state = tracks.run(run_id)
        found = kept_rows(tracks, state, asked, cache=cache)
        count = _print_csv(found.columns, found.rows, with_head=True)
        if state.declared.compute.launcher != IMPORTED:  # others need not report each step
            _complain_of_missing(run_id, found.count - count)
    else:
        state = tracks.run(run_id)
        sizes = [each.placed.world_size for each in state.attempts if each.placed is not None]
        ranks = range(max(sizes, default=1))
        curves = read_curves(tracks, state, asked, cache=cache, by=by, ranks=ranks)
        if as_json:
            print_json_line(curves_json(curves))
        else:
            _print_table(curves)
        if not any(curve.points_read for curve in curves.curves):
            click.echo(f"No step of {run_id} is in the journals yet.", err=True)
            context.exit(BAD_NEWS)


def _check(
    *,
    as_csv: bool,
    as_json: bool,
    follow: bool,
    by: str,
    archive: Path | None,
    has_trackers: bool,
) -> None:
    """Raise InvalidInput for options that do not go together."""
    if as_csv and as_json:
        raise InvalidInput("Choose --csv or --json.")
    if as_csv and has_trackers:
        raise InvalidInput("--csv prints, and a tracker is sent to: choose one of them.")
    if follow and not (as_csv or as_json or has_trackers):
        raise InvalidInput(
            "-f prints a line for each step, or sends it: choose --csv, --json or a tracker with it."
        )
    if follow and archive is not None:
        raise InvalidInput("An archive does not grow; leave -f out.")
    if by != STEP and (as_csv or follow or has_trackers):
        raise InvalidInput("A row is a step; --by is for the table and for --json without -f.")


def _cache(settings: Settings) -> Path | None:
    """Return where parsed journals are kept; None where there is no cache, for a reader makes none."""
    return settings.cache if settings.cache.is_dir() and not settings.is_archive else None


# --- the table --------------------------------------------------------------------------------------


def _print_table(curves: Curves) -> None:
    titles = ("metric", "newest", "smallest", "largest", "kept", "lost", curves.x_label)
    bars = WIDTH if text_width() >= WIDTH_FROM else NARROW
    rows = [_table_row(curve, bars) for curve in curves.curves]
    if rows:
        print_table(titles, rows, right=titles[1:6])
    for words in curves.lost:
        click.echo(words, err=True)
    if curves.names_left_out:
        click.echo(
            f"The script reports more names than are read: at least {curves.names_left_out} are "
            "left out, those with the fewest values.",
            err=True,
        )


def _table_row(curve: Curve, bars: int) -> tuple[str, ...]:
    kept = [point for series in curve.kept for point in series.points]
    values = [point.value for point in kept if math.isfinite(point.value)]
    numbers = (curve.last.value, min(values), max(values)) if curve.last else ()
    shown = [f"{number:.5g}" for number in numbers] or ["–"] * 3
    unit = f" ({curve.unit})" if curve.unit else ""
    return (
        f"{curve.name}{unit}",
        *shown,
        str(curve.kept_count),
        str(curve.points_read - curve.kept_count),
        _bars(kept, bars),
    )


def _bars(points: Sequence[Point], bars: int) -> str:
    """Return the points as a row of so many bars: the mean of each part of the axis."""
    places = [point.x for point in points]
    if not places:
        return ""
    low, width = min(places), (max(places) - min(places)) / bars or 1.0
    parts: list[list[float]] = [[] for _ in range(bars)]
    for point in points:
        parts[min(bars - 1, int((point.x - low) / width))].append(point.value)
    means = [sum(part) / len(part) if part else math.nan for part in parts]
    finite = [mean for mean in means if math.isfinite(mean)]
    if not finite:
        return NO_NUMBER
    floor, span = min(finite), max(finite) - min(finite) or 1.0
    highest = len(BARS) - 1
    return "".join(
        BARS[round((mean - floor) / span * highest)]
        if math.isfinite(mean)
        else (NO_NUMBER if part else " ")
        for mean, part in zip(means, parts, strict=True)
    ).rstrip()


# --- points and rows --------------------------------------------------------------------------------


def _print_csv(columns: Sequence[str], rows: Iterator[Row], *, with_head: bool) -> int:
    """Print rows, after their head where that is asked for; return how many."""
    count = 0
    if with_head:
        echo_whole(csv_text([("step", "attempt", "at", *columns)]), nl=False)
    while some := list(islice(rows, ROWS_AT_ONCE)):
        lines = (
            (row.step, row.attempt_id, time_json(row.at), *(row.values.get(c, "") for c in columns))
            for row in some
        )
        echo_whole(csv_text(lines), nl=False)
        count += len(some)
    return count


def _complain_of_missing(run_id: str, count: int) -> None:
    if count > 0:
        click.echo(
            f"{count} kept steps of {run_id} have no line in its journals: they were never shipped.",
            err=True,
        )


@dataclass(slots=True)
class _Printed:
    """What has been printed. columns: None before the head."""

    step: int = 0
    columns: tuple[str, ...] | None = None


class _Follower:
    """Prints steps that are safe in a checkpoint, as they come, until the run is over."""

    def __init__(
        self,
        tracks: Tracks,
        run_id: str,
        metrics: Sequence[str] | None,
        cache: Path | None,
        waits: WaitsShown,
        *,
        as_csv: bool,
    ) -> None:
        self._waits = waits
        self._tracks = tracks
        self._run_id = run_id
        self._metrics = metrics
        self._cache = cache
        self._as_csv = as_csv
        self._printed = _Printed()

    def to_the_end(self) -> None:
        """Return when the run is over, or refused.

        Raises StoreUnavailable where the store does not answer for STORE_AWAY_S_MAX.
        """
        answered_at = time.monotonic()
        while True:
            try:
                is_over, answered_at = self._print_new(), time.monotonic()
            except StoreUnavailable:
                if time.monotonic() - answered_at > STORE_AWAY_S_MAX:
                    raise
                is_over = False
            if is_over:
                return
            time.sleep(POLL_S)

    def _print_new(self) -> bool:
        """Print what is new; return whether the run is over."""
        state = self._tracks.run(self._run_id)
        is_over = run_status(state).state not in _UNFINISHED
        committed = committed_step(state)
        if committed < self._printed.step:
            self._take_back(committed)
        if committed > self._printed.step:
            self._print_rows(
                kept_rows(
                    self._tracks,
                    state,
                    self._metrics,
                    cache=self._cache,
                    after=self._printed.step,
                    committed_only=True,
                )
            )
        self._waits.show(state)
        return is_over

    def _take_back(self, step: int) -> None:
        """Say that the run was rolled back: its steps past `step` come again."""
        self._printed.step = step
        if self._as_csv:
            click.echo(f"Rolled back to step {step}: the steps after it come again.", err=True)
        else:
            print_json_line({"rolled_back_to": step})

    def _print_rows(self, found: Rows) -> None:
        if self._as_csv:
            is_first = self._printed.columns is None
            columns = self._printed.columns or found.columns
            _print_csv(columns, found.rows, with_head=is_first)
            self._printed.columns = columns
        else:
            for row in found.rows:
                print_json_line(_row_json(row))
        self._printed.step = found.end


def _row_json(row: Row) -> dict[str, Json]:
    values = {name: number_json(value) for name, value in row.values.items()}
    return {
        "step": row.step,
        "attempt_id": row.attempt_id,
        "at": time_json(row.at),
        "values": values,
    }

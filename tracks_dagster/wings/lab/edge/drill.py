"""`tracks drill`: play every fault on the embedded default and score what came of each."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from textwrap import fill

import click

from tracks_dagster.attempts.drills import BY as DRILLS
from tracks_dagster.attempts.drills import parse_drill
from tracks_dagster.attempts.effects.local.project_code import read_project_code
from tracks_dagster.attempts.ports import FoundCode
from tracks_dagster.cli import BAD_NEWS
from tracks_dagster.cli.common import as_json, print_json_line, print_table, text_width
from tracks_dagster.cli.start.driving import play_daemon_death
from tracks_dagster.cli.start.snapshots import (
    check_source,
    datasets_of,
    ensure_snapshot_of,
    ensure_snapshots,
)
from tracks_dagster.data.effects.snapshots import find_snapshot
from tracks_dagster.holds.effects.stops import request_stop
from tracks_dagster.home.dagster_home import DagsterHome
from tracks_dagster.projects.effects.registered import DEFAULT_PROJECT
from tracks_dagster.review.effects.receipts import read_receipts
from tracks_dagster.settings import Settings, person
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.names import AttemptRef
from tracks_dagster.track.states.lifecycle import RunLifecycle, run_status
from tracks_dagster.track.states.run_state import RunState
from tracks_dagster.wings.lab.effects.drill_score import DrillRow, alerted_at, has_fired, score
from tracks_dagster.wings.lab.effects.rehearsals import (
    REHEARSALS,
    Rehearsal,
    declare_rehearsal,
    rehearsal_id,
)
from tracks_dagster.wiring import App, build, open_dagster_home

AT_ONCE = 3  # runs under way: two cores are enough for them
POLL_S = 0.5
RUN_S_MAX = 900.0  # without a change of its track: then the row has how far it came
ALL_S_MAX = 3600.0
# For the watch to find what ends nothing: a rule may ask for ten minutes. Then the run is stopped.
ALERT_S_MAX = 780.0
PAGE_LINES = 2000
WHAT_THE_COLUMNS_MEAN = (
    "Lost: steps. In seconds, found: from the fault to the record of the end, the eval's end or the "
    "alert; decided: from there to the record that opens the next one, the policy's backoff included; "
    "back: from the end to the first new step, or to the next supervisor's claim."
)
DATASET = "aws-docs"  # of the example that is trained


@click.command("drill")
@click.option("--all", "plays_all", is_flag=True, help="Play every kind.")
@click.option("--only", "only", multiple=True, metavar="KIND", help="Play this kind; repeatable.")
@click.option(
    "--home",
    type=click.Path(path_type=Path),
    help="Play in this TRACKS_HOME and keep it; default: a temporary one.",
)
@as_json
@click.pass_context
def drill_command(
    ctx: click.Context, plays_all: bool, only: tuple[str, ...], home: Path | None, as_json: bool
) -> None:
    """Play faults on this machine, and score reason, action, lost steps and times.

    Takes minutes. Exit code 1 when a row is wrong; the row names what is missing. A temporary home is
    removed afterwards, unless a row is wrong.
    """
    rehearsals = _chosen(plays_all, only)
    folder = (home or Path(tempfile.mkdtemp(prefix="tracks-drill-"))).absolute()
    click.echo(f"Playing in TRACKS_HOME={folder}", err=True)  # an interrupted command leaves it
    rows = _play(_embedded(folder), rehearsals)
    is_right = all(row.is_right for row in rows)
    if as_json:
        found = [{**asdict(row), "right": row.is_right} for row in rows]
        print_json_line(found)
    else:
        _print_table(rows)
        right = sum(row.is_right for row in rows)
        summary = f"{right} of {len(rows)} right. {WHAT_THE_COLUMNS_MEAN}"
        click.echo(fill(summary, width=text_width()))
    if home is None and is_right:
        shutil.rmtree(folder)
    else:
        click.echo(f"To look at the runs: TRACKS_HOME={folder} tracks status", err=True)
    ctx.exit(0 if is_right else BAD_NEWS)


def _chosen(plays_all: bool, only: Sequence[str]) -> list[Rehearsal]:
    """Return what is played, those that need the home for themselves last; raises InvalidInput."""
    unknown = sorted(set(only) - set(REHEARSALS))
    if unknown or plays_all == bool(only):
        problem = f"There is no drill {unknown[0]!r}." if unknown else "Choose the drills to play."
        raise InvalidInput(f"{problem} Give --all, or --only KIND of: {', '.join(REHEARSALS)}.")
    chosen = [each for kind, each in REHEARSALS.items() if plays_all or kind in only]
    return sorted(chosen, key=lambda each: each.alone)


def _embedded(folder: Path) -> Settings:
    """Return the settings of a home with everything in `folder`, whatever the environment has."""
    return Settings.from_environment({"TRACKS_HOME": str(folder)})


def _play(settings: Settings, rehearsals: Sequence[Rehearsal]) -> list[DrillRow]:
    """Play all, a few at once, each in a run of its own; return their rows in that order."""
    app, home = build(settings), open_dagster_home(settings)
    found = read_project_code(
        settings.examples / DEFAULT_PROJECT, store_url=app.store.url, clean=app.redact
    )
    ensure_snapshots(app, home, datasets_of(found.project))
    # Chosen once: what a drill makes for itself alone is newer, and may be quarantined.
    shared = find_snapshot(app.tracks, DATASET, None).snapshot_id
    started: list[UnderWay] = []
    try:
        with home.daemon():
            rows = _play_all(app, home, found, rehearsals, shared, started)
    finally:  # with the daemon gone, nobody starts another gang
        for each in started:
            each.end_gang()
    return [rows[each.drill] for each in rehearsals]


def _play_all(
    app: App,
    home: DagsterHome,
    found: FoundCode,
    rehearsals: Sequence[Rehearsal],
    shared: str,
    started: list[UnderWay],
) -> dict[str, DrillRow]:
    """Return the row of each drill; `started` gets every run before it begins."""
    waiting = list(rehearsals)
    under_way: list[UnderWay] = []
    rows: dict[str, DrillRow] = {}
    give_up_at = time.monotonic() + ALL_S_MAX
    while waiting or under_way:
        while waiting and _has_room(waiting[0], under_way):
            under_way.append(UnderWay(app, home, found, waiting.pop(0), shared))
            started.append(under_way[-1])
        for each in list(under_way):
            if each.is_over() or time.monotonic() > give_up_at:
                under_way.remove(each)
                rows[each.rehearsal.drill] = row = each.row()
                click.echo(f"{row.drill}: {_verdict(row)}", err=True)
        home.ensure_daemon()
        time.sleep(POLL_S)
    return rows


def _has_room(next_one: Rehearsal, under_way: Sequence[UnderWay]) -> bool:
    if next_one.alone or any(each.rehearsal.alone for each in under_way):
        return not under_way
    return len(under_way) < AT_ONCE


class UnderWay:
    """One run that plays one drill, from its declaration on."""

    def __init__(
        self, app: App, home: DagsterHome, found: FoundCode, rehearsal: Rehearsal, shared: str
    ) -> None:
        """Declare a run of `found`; shared: the snapshot of all that need none of their own."""
        self.rehearsal = rehearsal
        self._app = app
        self._home = home
        self._drill = parse_drill(rehearsal.drill)
        self._run_id = rehearsal_id(self._drill.kind, app.new_uid())
        self._seen_seq = -1
        self._changed_at = self._fired_at = time.monotonic()
        own = _own_snapshot(app, home, self._run_id) if rehearsal.own_data else None
        declare_rehearsal(
            app.tracks,
            found,
            rehearsal,
            run_id=self._run_id,
            snapshot_id=own or shared,
            owner=person(),
        )

    def is_over(self) -> bool:
        """Whether nothing more will come: the run is over, or its track has not grown for long."""
        play_daemon_death(self._app, self._home, self._run_id)
        state = self._app.tracks.run(self._run_id)
        if state.head.seq != self._seen_seq:
            self._seen_seq, self._changed_at = state.head.seq, time.monotonic()
        if self.rehearsal.is_watched:
            self._stop_once_alerted(state)
        is_still = time.monotonic() - self._changed_at > RUN_S_MAX
        return is_still or run_status(state).state != RunLifecycle.RUNNING

    def _stop_once_alerted(self, state: RunState) -> None:
        """Stop a run that its drill does not end, once that has its alert, or waited for it long."""
        if state.stops or state.finished is not None:
            return
        if not has_fired(state):
            self._fired_at = time.monotonic()
            return
        is_late = time.monotonic() - self._fired_at > ALERT_S_MAX
        if alerted_at(state, self._drill) is not None or is_late:
            why = "The drill is over: nothing else ends this run."
            request_stop(self._app.tracks, self._run_id, mode="stop", by=DRILLS, why=why)

    def end_gang(self) -> None:
        """Kill what still lives of it, after a drill was given up or the command interrupted."""
        attempt = self._app.tracks.run(self._run_id).open_attempt
        if attempt is not None:
            ref = AttemptRef(self._run_id, attempt.attempt_id)
            self._app.launcher_of(attempt.opened.compute.launcher).kill(ref)

    def row(self) -> DrillRow:
        """Return its score, as far as it came."""
        return score(read_receipts(self._app.tracks, self._run_id), self._drill)


def _own_snapshot(app: App, home: DagsterHome, run_id: str) -> str:
    """Make a snapshot that no other run uses, of a page of text; return its id."""
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "page.txt"
        lines = (
            f"{run_id}: sentence {number} of a page of text.\n" for number in range(PAGE_LINES)
        )
        page.write_text("".join(lines), encoding="utf-8")
        snapshot_id = check_source(DATASET, page)
        ensure_snapshot_of(app, home, DATASET, page, snapshot_id)
    return snapshot_id


def _print_table(rows: Sequence[DrillRow]) -> None:
    numbers = ("lost", "found", "decided", "back")
    print_table(("drill", "reason", "action", *numbers), map(_cells, rows), right=numbers)
    for row in rows:
        if row.skipped or not row.is_right:
            click.echo(f"{row.drill}: {_verdict(row)}")


def _cells(row: DrillRow) -> tuple[str, ...]:
    return (
        row.drill.partition("@")[0],
        _expected(row.expected_reason, row.found_reason),
        _expected(row.expected_action, row.found_action),
        str(row.lost_steps),
        _or_dash(row.detection_s),
        _or_dash(row.decision_s),
        _or_dash(row.recovery_s),
    )


def _expected(expected: str, found: str) -> str:
    return found if expected == found else f"{found} (expected {expected})"


def _verdict(row: DrillRow) -> str:
    if row.skipped:
        return f"skipped: {row.skipped}"
    return f"missing: {row.missing}" if row.missing else "right"


def _or_dash(seconds: float | None) -> str:
    return "–" if seconds is None else f"{seconds:.1f}"

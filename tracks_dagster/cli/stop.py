"""`tracks stop` and `tracks drain`: end an attempt in order, for good or for a retry, or empty a node.

Both answer within a bound and print meanwhile what they wait for. Each wait below has its own bound; on
a machine under load many of them follow one another. What they wait for is read from the stack when
the alarm comes, so no code below knows of this.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import click

from tracks_dagster.attempts.effects.draining import NodeDrain, drain_node, pools_of_node
from tracks_dagster.cli import BAD_NEWS
from tracks_dagster.cli.common import (
    as_json,
    by_option,
    deciding_options,
    open_app,
    print_answer,
    run_argument,
    seq_of,
    why_option,
)
from tracks_dagster.cli.upkeep.pool import parse_length
from tracks_dagster.holds.effects.stops import request_stop
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.studies.effects.stopping import stop_study
from tracks_dagster.track.body_json import to_json
from tracks_dagster.track.errors import InvalidInput, TracksError, UnknownRun
from tracks_dagster.track.names import RUN_ID_PATTERN, check_run_id
from tracks_dagster.wing import launchers
from tracks_dagster.wiring import App

NAMED_MAX = 10  # runs that the answer names
NOTICE_S = 15.0  # between two notices on what it waits for
ANSWER_S_MAX = 120.0
# The innermost of these on the stack is what the process waits for.
_WAITS_FOR = {
    "tracks_dagster.stores": "the object store (TRACKS_STORE)",
    "tracks_dagster.ledger.effects.database": "the ledger's database",
    **{package: place.asks for package, place in launchers().values() if place.asks},
}
_ITSELF = "this machine: the process itself gets little time to run"


@click.command("stop")
@run_argument
@deciding_options
def stop_command(run_id: str, why: str, by: str, as_json: bool) -> None:
    """Save and end the open attempt of RUN, then finish the run as cancelled.

    The name of a study, where no run has it, stops the study: its open trials save and wait, and
    `tracks tune` continues it.
    """
    with answer_in_time(f"stop {run_id}", to_know=f"tracks explain {run_id}"):
        tracks = open_app().tracks
        if tracks.find_run(check_run_id(run_id)) is None and tracks.find_study(run_id) is not None:
            _stop_study(tracks, run_id, why=why, by=by, as_json=as_json)
            return
        record = request_stop(tracks, run_id, mode="stop", by=by, why=why)
    print_answer(
        f"Stopping {run_id}: its gang saves and ends, and the run is finished as cancelled.",
        {"run_id": run_id, "mode": "stop", "seq": seq_of(record)},
        as_json=as_json,
    )


def _stop_study(tracks: Tracks, name: str, *, why: str, by: str, as_json: bool) -> None:
    record = stop_study(tracks, name, by=by, why=why)
    print_answer(
        f"Stopping the study {name}: its open trials save and wait; `tracks tune` continues it.",
        {"study": name, "mode": "stop", "seq": seq_of(record)},
        as_json=as_json,
    )


@click.command("drain")
@click.argument("target", metavar="RUN|NODE")
@why_option
@by_option
@click.option(
    "--node",
    "kind",
    flag_value="node",
    help="The name is a node, also where a run has the same name.",
)
@click.option(
    "--run",
    "kind",
    flag_value="run",
    help="The name is a run, also where a node has the same name.",
)
@click.option(
    "--pool", help="For a node: only in this pool; default: every pool that it works for."
)
@click.option(
    "--for",
    "length",
    default="24h",
    show_default=True,
    help="For a node: how long to quarantine it.",
)
@as_json
@click.pass_context
def drain_command(
    ctx: click.Context,
    target: str,
    why: str,
    by: str,
    kind: str | None,
    pool: str | None,
    length: str,
    as_json: bool,
) -> None:
    """Save and end the open attempt of a run, or empty a node.

    RUN: its open attempt ends, and the run waits for `tracks retry`. NODE: the node is quarantined, the
    open attempts on it save and end as node_drained, and their runs resume elsewhere automatically.
    """
    for_s = parse_length(length)
    with answer_in_time(f"drain {target}", to_know=f"tracks status` or `tracks explain {target}"):
        app = open_app()
        is_node = _is_node(app, target, kind, pool)
        if not is_node:
            record = request_stop(app.tracks, check_run_id(target), mode="drain", by=by, why=why)
    if is_node:
        drained = drain_node(app.tracks, app.ledger, target, by=by, why=why, pool=pool, for_s=for_s)
        print_answer(_describe_drain(drained), to_json(drained), as_json=as_json)
        for problem in drained.problems:
            click.echo(f"Not asked: {problem}", err=True)
        ctx.exit(BAD_NEWS if drained.problems else 0)
    print_answer(
        f"Draining {target}: its gang saves and ends; the run then waits for `tracks retry`.",
        {"run_id": target, "mode": "drain", "seq": seq_of(record)},
        as_json=as_json,
    )


def _is_node(app: App, target: str, kind: str | None, pool: str | None) -> bool:
    """Whether a node is meant; raises InvalidInput where a run and a node are named so, or neither."""
    if kind is not None or pool is not None:
        if kind == "run" and pool is not None:
            raise InvalidInput("--pool is of a node; a run is drained without it.")
        return kind != "run"
    is_run_id = RUN_ID_PATTERN.fullmatch(target) is not None
    is_run = is_run_id and app.tracks.find_run(target) is not None
    pools = pools_of_node(app.tracks, app.ledger, target)
    if is_run and pools:
        raise InvalidInput(
            f"{target!r} is a training run, and a node of pool {', '.join(pools)}; choose with "
            "--run or --node. Nothing was drained."
        )
    if not is_run and not pools:
        raise UnknownRun(
            f"{target!r} is neither a training run nor a node on which one has run of late; "
            "`tracks status` lists the runs, `tracks pool` the nodes."
        )
    return not is_run


def _describe_drain(drained: NodeDrain) -> str:
    lines = [
        f"Node {drained.node} is in quarantine in {', '.join(drained.pools)} until "
        f"{drained.until_at}; no attempt is opened onto it."
    ]
    if drained.asked:
        lines.append(f"Asked to save and resume elsewhere: {_name_runs(drained.asked)}.")
    if drained.before:
        lines.append(f"Ending already: {_name_runs(drained.before)}.")
    if not drained.asked and not drained.before:
        lines.append("No open attempt is placed on it.")
    if drained.unplaced:
        lines.append(
            "Opened before and not placed yet, so one may still come here: "
            f"{_name_runs(drained.unplaced)}; give the command again in a minute, or cordon the node."
        )
    return "\n".join(lines)


def _name_runs(run_ids: tuple[str, ...]) -> str:
    more = len(run_ids) - NAMED_MAX
    return ", ".join(run_ids[:NAMED_MAX]) + (f" and {more} more" if more > 0 else "")


@contextmanager
def answer_in_time(doing: str, *, to_know: str) -> Iterator[None]:
    """Report on stderr what the block waits for; raise TracksError once it has taken ANSWER_S_MAX.

    doing: for the words, "drain r-1"; to_know: the command that shows whether it was done. Does nothing
    outside of the main thread, which alone gets signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    began = time.monotonic()

    def ring(_number: int, frame: FrameType | None) -> None:
        waited_s, what = time.monotonic() - began, _waits_for(frame)
        if waited_s < ANSWER_S_MAX:
            notice = f"Still waiting for {what}: {waited_s:.0f} s of at most {ANSWER_S_MAX:g} s."
            click.echo(notice, file=sys.stderr)
            return
        raise TracksError(
            f"Cannot {doing} within {ANSWER_S_MAX:g} s: waited for {what}. It may have been recorded: "
            f"`{to_know}` shows it. To give the command again does no harm."
        )

    before = signal.signal(signal.SIGALRM, ring)
    notice_s = min(NOTICE_S, ANSWER_S_MAX)
    signal.setitimer(signal.ITIMER_REAL, notice_s, notice_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def _waits_for(frame: FrameType | None) -> str:
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        for room, what in _WAITS_FOR.items():
            if module.startswith(room):
                return what
        frame = frame.f_back
    return _ITSELF

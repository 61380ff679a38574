"""`tracks drain`: end an attempt and keep the run, or empty a node of a compute pool."""

from __future__ import annotations

import click

from tracks_dagster.attempts.effects.draining import Drained, drain_node, pools_of_node
from tracks_dagster.cli import BAD_NEWS
from tracks_dagster.cli.common import as_json, by_option, open_app, print_answer, seq_of, why_option
from tracks_dagster.cli.in_time import answer_in_time
from tracks_dagster.cli.machines.pool import parse_length
from tracks_dagster.holds.effects.stops import request_stop
from tracks_dagster.track.body_json import to_json
from tracks_dagster.track.errors import InvalidInput, UnknownRun
from tracks_dagster.track.names import RUN_ID_PATTERN, check_run_id
from tracks_dagster.wiring import App

NAMED_MAX = 10  # runs that the answer names


@click.command("drain")
@click.argument("target", metavar="RUN|NODE")
@why_option
@by_option
@click.option(
    "--node", "kind", flag_value="node", help="It is a node, also where a run is named so."
)
@click.option("--run", "kind", flag_value="run", help="It is a run, also where a node is named so.")
@click.option("--pool", help="Of a node: only in this pool; by default in each that it works for.")
@click.option("--for", "length", default="24h", show_default=True, help="Of a node: how long.")
@as_json
@click.pass_context
def command(
    ctx: click.Context,
    target: str,
    why: str,
    by: str,
    kind: str | None,
    pool: str | None,
    length: str,
    as_json: bool,
) -> None:
    """Save and end attempts, as planned.

    RUN: its open attempt ends, and the run waits until `tracks retry`. NODE: it is put in quarantine,
    the open attempts on it save and end as node_drained, and their runs go on elsewhere by themselves.
    """
    for_s = parse_length(length)
    with answer_in_time(f"drain {target}", to_know=f"tracks status` or `tracks explain {target}"):
        app = open_app()
        is_node = _is_node(app, target, kind, pool)
        if not is_node:
            record = request_stop(app.tracks, check_run_id(target), mode="drain", by=by, why=why)
    if is_node:
        drained = drain_node(app.tracks, app.ledger, target, by=by, why=why, pool=pool, for_s=for_s)
        print_answer(_told(drained), to_json(drained), as_json=as_json)
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
            f"{target!r} is a training run, and a node of pool {', '.join(pools)}; say which one with "
            "--run or --node. Nothing was drained."
        )
    if not is_run and not pools:
        raise UnknownRun(
            f"{target!r} is neither a training run nor a node on which one has run of late; "
            "`tracks status` lists the runs, `tracks pool` the nodes."
        )
    return not is_run


def _told(drained: Drained) -> str:
    lines = [
        f"Node {drained.node} is in quarantine in {', '.join(drained.pools)} until "
        f"{drained.until_at}; no attempt is opened onto it."
    ]
    if drained.asked:
        lines.append(f"Asked to save and go on elsewhere: {_named(drained.asked)}.")
    if drained.before:
        lines.append(f"Ending already: {_named(drained.before)}.")
    if not drained.asked and not drained.before:
        lines.append("No open attempt is placed on it.")
    if drained.unplaced:
        lines.append(
            f"Opened before and not placed yet, so one may still come here: {_named(drained.unplaced)}"
            "; give the command again in a minute, or cordon the node."
        )
    return "\n".join(lines)


def _named(run_ids: tuple[str, ...]) -> str:
    more = len(run_ids) - NAMED_MAX
    return ", ".join(run_ids[:NAMED_MAX]) + (f" and {more} more" if more > 0 else "")

"""`tracks policy`: the policy of retries, of the queue and of what runs must say; is a file right?"""

from __future__ import annotations

from pathlib import Path

import click

from tracks_dagster.cli import BAD_NEWS
from tracks_dagster.cli.common import as_json, print_json, print_table
from tracks_dagster.retry.contracts import contract_lines
from tracks_dagster.retry.default_policy import DEFAULT_POLICY
from tracks_dagster.retry.policy import RetryPolicy
from tracks_dagster.retry.policy_words import RuleLine, limit_lines, rule_lines
from tracks_dagster.retry.stages import stage_lines
from tracks_dagster.scheduling.policy import ClassLine, class_lines, queue_lines
from tracks_dagster.scheduling.policy_check import find_impossible
from tracks_dagster.settings import (
    POLICY_FILE,
    Settings,
    find_policy_file,
    load_policy,
    places_set_up,
    read_policy_file,
)
from tracks_dagster.track.body_json import to_json
from tracks_dagster.wiring import devices_here

_TITLES = ("", "reason", "retries", "refund by progress", "backoff", "remedy", "sensor")
_CLASS_TITLES = ("", "class", "priority", "queue", "end", "recovery", "promise", "may lose")


@click.command("policy")
@click.option(
    "--check",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Show the policy with FILE. Exit code 2, and every error with its line, where FILE is wrong; "
    "1 where something could never start by it.",
)
@as_json
@click.pass_context
def policy_command(ctx: click.Context, check: Path | None, as_json: bool) -> None:
    """Show what is retried, how often and with which change; who gets devices first; what is asked."""
    settings = Settings.from_environment()
    path = check or find_policy_file(settings)
    policy = read_policy_file(check) if check is not None else load_policy(settings)
    lines = rule_lines(policy, DEFAULT_POLICY)
    classes = class_lines(policy.scheduling, DEFAULT_POLICY.scheduling)
    # What runs on a cluster is given its devices there.
    devices = () if places_set_up(settings) else devices_here(settings).devices
    impossible = list(find_impossible(policy.scheduling, devices))
    if as_json:
        changed = [line.reason for line in lines if line.is_changed]
        head = {"version": policy.version, "file": str(path) if path else None}
        more = {"changed_reasons": changed, "impossible": impossible}
        print_json({**head, **more, **to_json(policy)})
        ctx.exit(BAD_NEWS if check is not None and impossible else 0)
    print_table(_TITLES, map(_cells, lines))
    click.echo()
    for line in limit_lines(policy):
        click.echo(line)
    click.echo()
    print_table(_CLASS_TITLES, map(_class_cells, classes), right=("priority",))
    click.echo()
    for line in queue_lines(policy.scheduling):
        click.echo(line)
    if contracts := list(contract_lines(policy.contracts)):
        click.echo("\nAsked of runs; what violates a rule is refused, or marked, by its name:")
        for line in contracts:
            click.echo(f"  {line}")
    for line in impossible:
        click.echo(f"IMPOSSIBLE {line}")
    click.echo()
    for line in stage_lines(policy.stages):
        click.echo(line)
    click.echo()
    click.echo(_source(policy, path, settings))
    ctx.exit(BAD_NEWS if check is not None and impossible else 0)


def _cells(line: RuleLine) -> tuple[str, ...]:
    mark = "*" if line.is_changed else ""
    return mark, line.reason, line.budget, line.refund, line.backoff, line.remedy, line.sensor


def _class_cells(line: ClassLine) -> tuple[str, ...]:
    objectives = (line.queue, line.completion, line.recovery)
    mark = "*" if line.is_changed else ""
    return mark, line.name, line.priority, *objectives, line.promise, line.loss


def _source(policy: RetryPolicy, path: Path | None, settings: Settings) -> str:
    if path is None:
        own = settings.home / POLICY_FILE
        return f"version {policy.version}, as shipped; {own} or TRACKS_POLICY changes it"
    return f"version {policy.version}; {path} changes what is marked *"

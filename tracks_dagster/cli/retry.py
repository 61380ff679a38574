"""`tracks retry`: a person opens the next attempt, outside of the automatic budget."""

from __future__ import annotations

import click

from tracks_dagster.cli.common import by_option, open_app, parse_settings, why_option
from tracks_dagster.core.names import check_run_id
from tracks_dagster.services.manual_retry import retry_by_person
from tracks_dagster.services.node_health import NodeHealth
from tracks_dagster.services.runs import check_words


@click.command("retry")
@click.argument("run_id")
@why_option
@by_option
@click.option("--set", "changes", multiple=True, metavar="KEY=VALUE", help="Change the config.")
@click.option(
    "--allow-environment-change",
    is_flag=True,
    help="Resume even with other libraries than those that wrote the checkpoint.",
)
def command(
    run_id: str, why: str, by: str, changes: tuple[str, ...], allow_environment_change: bool
) -> None:
    """Open another attempt of RUN_ID, which must not be finished or running."""
    check_words({"why": why, "by": by})
    overrides = parse_settings(changes)
    app = open_app()
    policy = app.policy
    record = retry_by_person(
        app.tracks,
        check_run_id(run_id),
        by=by,
        why=why,
        changes=overrides,
        policy=policy,
        allows_environment_change=allow_environment_change,
        nodes=NodeHealth(app.tracks, app.ledger, policy.nodes),
    )
    click.echo(
        f"Opened attempt {record.attempt_id} of {run_id} (record {record.seq}); the daemon launches "
        f"it. `tracks status {run_id}` shows how it goes."
    )

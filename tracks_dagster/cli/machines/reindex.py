"""`tracks reindex`: rebuild the ledger from the tracks."""

from __future__ import annotations

import click

from tracks_dagster.cli import BAD_NEWS
from tracks_dagster.cli.common import as_json, print_answer
from tracks_dagster.settings import Settings
from tracks_dagster.wiring import reindex

PROBLEMS_NAMED_MAX = 100


@click.command("reindex")
@click.option(
    "--forget-lost",
    "forgets_lost",
    is_flag=True,
    help="Let go of what the ledger remembers of records that the store does not hold any more.",
)
@as_json
@click.pass_context
def command(ctx: click.Context, forgets_lost: bool, as_json: bool) -> None:
    """Rebuild the ledger from the tracks; safe at any time, also while runs go on.

    Readers find the old ledger until the new one is whole. A track that cannot be taken in whole is
    named, all others are rebuilt, and the exit code is 1.
    """
    done = reindex(Settings.from_environment(), forgets_lost=forgets_lost)
    print_answer(
        f"Rebuilt the ledger from {done.track_count} tracks.",
        {"track_count": done.track_count, "problems": list(done.problems)},
        as_json=as_json,
    )
    for problem in done.problems[:PROBLEMS_NAMED_MAX]:
        click.echo(problem, err=True)
    if len(done.problems) > PROBLEMS_NAMED_MAX:
        click.echo(
            f"And {len(done.problems) - PROBLEMS_NAMED_MAX} more; `tracks fsck` tells all.",
            err=True,
        )
    ctx.exit(BAD_NEWS if done.problems else 0)

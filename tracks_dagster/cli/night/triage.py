"""`tracks triage`: how everything really stands after a reboot, and in which order it starts again."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from tracks_dagster.cli import BAD_NEWS
from tracks_dagster.cli.common import as_json, by_option, open_app, print_json
from tracks_dagster.cli.night.triage_text import print_acts, print_steps, print_triage
from tracks_dagster.cli.words import RECORDED
from tracks_dagster.home.dagster_home import ATTEMPTS_MAX
from tracks_dagster.reading import open_triage
from tracks_dagster.recovery.effects.triage.judge import Triage, triage
from tracks_dagster.recovery.effects.triage.room import Asked
from tracks_dagster.recovery.triage import BAD_NEWS as BAD_VERDICTS
from tracks_dagster.recovery.triage import CLOSABLE
from tracks_dagster.settings import Settings
from tracks_dagster.track.body_json import to_json
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.names import check_run_id
from tracks_dagster.track.text.safe_text import check_words
from tracks_dagster.track.text.units import size_bytes

if TYPE_CHECKING:
    from tracks_dagster.recovery.effects.triage.apply import Act

DEVICES_MAX = 100_000
WHY = "after an incident"


@click.command("triage")
@click.argument("run_ids", metavar="[RUN…]", nargs=-1)
@click.option("--family", help="All runs of this model family, those that are over too.")
@click.option(
    "--devices",
    type=click.IntRange(0, DEVICES_MAX),
    help="Plan for so many accelerators of this machine.",
)
@click.option("--device-memory", metavar="SIZE", help="Of each of them, for example 24GiB.")
@click.option("--apply", "applies", is_flag=True, help="Record ends, and open what fits now.")
@click.option(
    "--why",
    type=RECORDED,
    default=WHY,
    show_default=True,
    help="Of --apply; it stands in the records.",
)
@by_option
@as_json
@click.pass_context
def triage_command(
    ctx: click.Context,
    run_ids: tuple[str, ...],
    family: str | None,
    devices: int | None,
    device_memory: str | None,
    applies: bool,
    why: str,
    by: str,
    as_json: bool,
) -> None:
    """Tell of each RUN, or of all that are not over, whether it lives, and what to start first.

    Needs no daemon, and without --apply changes nothing. Exit with 1 when a gang is dead, orphaned, not
    seen from here, or ended without a record; with --apply, when one is left so, or an act failed.
    """
    check_words({"why": why, "by": by})
    if run_ids and family is not None:
        raise InvalidInput("Name runs or a --family, not both.")
    asked = Asked(devices=devices, memory_bytes=_memory(device_memory), slots=ATTEMPTS_MAX)
    sources = open_triage(Settings.from_environment())
    names = tuple(check_run_id(run_id) for run_id in run_ids)
    found = triage(sources, asked, run_ids=names, family=family)
    acts = _apply(found, by=by, why=why) if applies else ()
    if as_json:
        print_json({**to_json(found), "acts": [to_json(act) for act in acts]})
    else:
        print_triage(found)
        if applies:
            print_acts(found, acts)
        else:
            print_steps(found, options=_options(run_ids, family, devices, device_memory))
    ctx.exit(_code(found, acts, applies=applies))


def _apply(found: Triage, *, by: str, why: str) -> tuple[Act, ...]:
    from tracks_dagster.recovery.effects.triage.apply import Acting, apply

    app = open_app()
    rules, problem = app.usable_rules()
    if problem is not None:
        click.echo(problem, err=True)
    world = replace(app.world(app.policy), rules=rules)
    return apply(found, Acting(world=world, by=by, why=why))


def _code(found: Triage, acts: tuple[Act, ...], *, applies: bool) -> int:
    """Return 1 for bad news: what was found, or after --apply what is left of it or failed."""
    if any(act.is_bad for act in acts):
        return BAD_NEWS
    bad = {verdict.word for verdict in (BAD_VERDICTS - CLOSABLE if applies else BAD_VERDICTS)}
    return BAD_NEWS if any(line.verdict in bad for line in found.lines) else 0


def _options(
    run_ids: tuple[str, ...], family: str | None, devices: int | None, device_memory: str | None
) -> str:
    """Return what this answer was asked with, for the command that acts on it."""
    given = {"--family": family, "--devices": devices, "--device-memory": device_memory}
    named = [word for name, value in given.items() if value is not None for word in (name, value)]
    return shlex.join([str(word) for word in (*run_ids, *named)])


def _memory(text: str | None) -> int | None:
    if text is None:
        return None
    try:
        return size_bytes(text)
    except ValueError as error:
        raise InvalidInput(f"--device-memory {error}") from error

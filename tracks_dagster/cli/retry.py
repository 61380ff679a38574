"""`tracks retry`: a person opens the next attempt, outside of the automatic budget."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import click

from tracks_dagster.attempts.effects.local.project_code import (
    read_project_code,
    read_script_code,
)
from tracks_dagster.attempts.effects.manual_retry import (
    AttemptChanges,
    ManualRetry,
    retry_by_person,
)
from tracks_dagster.cli.common import (
    as_json,
    by_option,
    code_option,
    parse_settings,
    print_answer,
    project_of_code,
    run_argument,
    why_option,
)
from tracks_dagster.cli.declared_options import check_place, declared_options
from tracks_dagster.retry.caps import check_cap
from tracks_dagster.settings import Settings, load_prices
from tracks_dagster.track.declared_fields import COMPUTE
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.names import LOCAL, check_run_id
from tracks_dagster.track.text.redact import redact
from tracks_dagster.track.text.safe_text import check_words
from tracks_dagster.wiring import build, gang_check


@click.command("retry")
@run_argument
@why_option
@by_option
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Change the config.")
@click.option(
    "--checkpoint-every", "every_steps", type=int, metavar="N", help="Save every so many steps."
)
@click.option(
    "--checkpoint-every-s", "every_s", type=float, metavar="S", help="Save every so many seconds."
)
@click.option("--snapshot", "snapshot_id", help="Another snapshot of the dataset, by its id.")
@code_option
@click.option(
    "--trainer", type=click.Path(path_type=Path), help="Another script, in place of all its code."
)
@click.option(
    "--allow-environment-change",
    is_flag=True,
    help="Resume even with other libraries than those that wrote the checkpoint.",
)
@click.option(
    "--force", is_flag=True, help="Retry even with nothing changed that could change the result."
)
@click.option(
    "--max-cost",
    type=float,
    metavar="AMOUNT",
    help="What the run may cost from now on, all of it, in the price table's currency.",
)
@declared_options(
    COMPUTE,
    shows_defaults=False,
    ranks={"help": "Processes, one device each; the global batch stays."},
)
@as_json
def retry_command(
    run_id: str,
    why: str,
    by: str,
    settings: tuple[str, ...],
    every_steps: int | None,
    every_s: float | None,
    snapshot_id: str | None,
    folder: Path | None,
    trainer: Path | None,
    allow_environment_change: bool,
    force: bool,
    max_cost: float | None,
    asked: dict[str, Any],
    as_json: bool,
) -> None:
    """Open another attempt of RUN, which must not be finished or running.

    What you give replaces the setting of the attempt before, and is recorded; everything else stays,
    the code that the run stored too: --code or --trainer gives it other code. With other ranks it
    trains the same samples in the same order. On another device, data or code it resumes from the
    same weights. In all these cases losses are not compared with those before.
    """
    check_words({"why": why, "by": by})
    given = Settings.from_environment()
    app = build(given)
    if max_cost is not None:  # a broken price table hinders no other retry
        check_cap(max_cost, load_prices(given), None)
    policy = app.policy  # a wrong file is refused before anything is looked at
    state = app.tracks.run(check_run_id(run_id))
    last = state.last_attempt
    launcher = asked.get("launcher", LOCAL if last is None else last.opened.compute.launcher)
    changes = AttemptChanges(
        config=parse_settings(settings),
        compute=asked,
        every_steps=every_steps,
        every_s=every_s,
        snapshot_id=snapshot_id,
        **_code(given, folder, trainer, launcher),
    )
    if last is not None:
        check_place(launcher, asked)
    wanted = ManualRetry(
        name=by,
        why=why,
        changes=changes,
        allows_environment_change=allow_environment_change,
        is_forced=force,
        check_gang=gang_check(given),
        max_cost=max_cost,
    )
    record = retry_by_person(app.world(policy), run_id, wanted)
    print_answer(
        f"Opened attempt {record.attempt_id} of {run_id} (record {record.seq}); the daemon launches "
        f"it. `tracks status {run_id}` shows its state.",
        {"run_id": run_id, "attempt_id": record.attempt_id, "seq": record.seq},
        as_json=as_json,
    )


def _code(
    given: Settings, folder: Path | None, trainer: Path | None, launcher: str
) -> dict[str, Any]:
    """Return the fields of `AttemptChanges` for other code; {} where none is given."""
    if folder is not None and trainer is not None:
        raise InvalidInput("--code and --trainer both name the code; give one of them.")
    clean = partial(redact, secrets=given.secrets)
    if trainer is not None:
        found = read_script_code(trainer, clean=clean)
    elif folder is not None:
        home = project_of_code(folder)
        found = read_project_code(home, store_url=given.store_url, clean=clean, launcher=launcher)
    else:
        return {}
    for remark in found.remarks:
        click.echo(remark, err=True)
    taken = ("project", "archive", "code", "code_diff")
    return {name: getattr(found, name) for name in taken}

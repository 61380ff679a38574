"""`tracks health`: three lights over a run that trains, or over all of them."""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import fill

import click

from tracks_dagster.cli import BAD_NEWS
from tracks_dagster.cli.common import as_json, print_json, print_table, text_width
from tracks_dagster.cli.terminal import echo_state
from tracks_dagster.reading import open_ledger_to_read, open_tracks_to_read
from tracks_dagster.review.lights import Colour, Lights
from tracks_dagster.settings import Settings, usable_policy, usable_prices
from tracks_dagster.track.body_json import to_json
from tracks_dagster.track.errors import LedgerError, StoreError
from tracks_dagster.track.names import attempt_key
from tracks_dagster.track.records import Json, format_time
from tracks_dagster.track.states.run_state import RunState
from tracks_dagster.track.unforeseen import problem_of
from tracks_dagster.wings.watch.health.effects.looking import Looks, runs_that_go_on
from tracks_dagster.wings.watch.health.rules import command_of, runbook_of, severity_of

RUNS_MAX = 200  # in one table


@click.command("health")
@click.argument("run_id", metavar="[RUN]", required=False)
@as_json
@click.pass_context
def health_command(ctx: click.Context, run_id: str | None, as_json: bool) -> None:
    """Show whether RUN, or every run that goes on, is healthy, improving and uses its resources well.

    By the tail of its journal and its record, as of now. Exit code 1 where a light is red.
    """
    problems: list[str] = []
    seen = list(_seen(run_id, problems))
    if as_json:
        found = [_json(state, lights) for state, lights in seen]
        print_json(found if run_id is None else found[0])
    elif run_id is not None:
        _print(*seen[0])
    elif not seen and not problems:
        click.echo("No run goes on.")
    else:
        titles = ("run", "attempt", "step", "healthy?", "improving?", "resources?", "what is wrong")
        print_table(titles, (_cells(lights) for _, lights in seen))
    for problem in problems:
        click.echo(problem, err=True)
    is_red = any(lights.worst is Colour.RED for _, lights in seen)
    ctx.exit(BAD_NEWS if is_red or problems else 0)


def _seen(run_id: str | None, problems: list[str]) -> Iterator[tuple[RunState, Lights]]:
    """Yield one run, whose error is raised, or every run; of those an error is a problem of its own."""
    settings = Settings.from_environment()
    tracks, ledger = open_tracks_to_read(settings), open_ledger_to_read(settings)
    looks = Looks(tracks, ledger)
    scheduling, prices = usable_policy(settings)[0].scheduling, usable_prices(settings)[0]
    chosen = [run_id] if run_id is not None else list(runs_that_go_on(ledger))[:RUNS_MAX]
    for each in chosen:
        try:
            state = tracks.run(each)
            lights = looks.look(state, scheduling=scheduling, prices=prices).lights
        except Exception as error:
            if run_id is not None or isinstance(error, StoreError | LedgerError):
                raise
            problems.append(f"{each}: {problem_of(error)}")
        else:
            yield state, lights


def _cells(lights: Lights) -> tuple[str, ...]:
    colours = tuple(light.colour.value for light in lights.all)
    wrong = lights.findings[0].sentence if lights.findings else ""
    return (
        lights.run_id,
        str(lights.attempt_id or "–"),
        str(lights.step if lights.step is not None else "–"),
        *colours,
        wrong,
    )


def _print(state: RunState, lights: Lights) -> None:
    name = lights.run_id
    if lights.attempt_id is not None:
        name = attempt_key(lights.run_id, lights.attempt_id)
    at = "" if lights.step is None else f", step {lights.step}"
    click.echo(f"{name}{at}, as of {format_time(lights.as_of)[:19]}Z")
    for light in lights.all:
        colour = light.colour.value
        question, rest = f"{light.question.words:<22}", f"{colour:<8}{light.sentence}"
        line = _filled(question + rest, indent=30)
        echo_state(question, colour, line[len(question + colour) :])
    if lights.advice is not None:
        _echo(f"advice: {lights.advice.sentence}", indent=8)
    for alert in state.open_alerts:
        page = runbook_of(alert.body.rule)
        runbook = f"; {page}" if page is not None else ""
        what = f"alert {alert.seq}: {severity_of(alert.body)} {alert.body.rule}"
        since = f"since {format_time(alert.at)[:19]}Z"
        command = command_of(alert.body.rule, lights.run_id)
        _echo(f"{what} {since}; `{command}`{runbook}", indent=8)


def _echo(text: str, *, indent: int) -> None:
    """Print a sentence in the width of the terminal, its further lines indented."""
    click.echo(_filled(text, indent=indent))


def _filled(text: str, *, indent: int) -> str:
    return fill(text, width=text_width(), subsequent_indent=" " * indent)


def _json(state: RunState, lights: Lights) -> Json:
    found = to_json(lights)
    del found["clear"]
    return {
        **found,
        "worst": lights.worst.value,
        "open_alerts": [
            {
                "seq": alert.seq,
                "rule": alert.body.rule,
                "severity": severity_of(alert.body),
                "since": format_time(alert.at),
                "text": alert.body.text,
                "runbook": runbook_of(alert.body.rule),
                "command": command_of(alert.body.rule, lights.run_id),
            }
            for alert in state.open_alerts
        ],
    }

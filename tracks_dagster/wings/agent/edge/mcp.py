"""`tracks mcp`: a door for an agent, over the Model Context Protocol, on stdin and stdout."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout

import click

from tracks_dagster.cli.terminal import raw
from tracks_dagster.reading import open_tracks_to_read
from tracks_dagster.settings import Settings, load_policy
from tracks_dagster.track.names import parse_attempt_key, run_track
from tracks_dagster.wings.agent.acts import actor, check_act
from tracks_dagster.wiring import utc_now


@click.command("mcp")
@click.option(
    "--write",
    is_flag=True,
    help="Also offer note, drain, retry and stop, as far as governance.agents_may of the policy lets "
    "agents; each is recorded as by agent:NAME. Else nothing can be changed.",
)
@click.option(
    "--name", metavar="NAME", help="The agent's name; default: as its program names itself."
)
@click.option("--skill", "prints_skill", is_flag=True, help="Print the skill file, and end.")
def mcp_command(write: bool, name: str | None, prints_skill: bool) -> None:
    """Answer an agent's questions about runs, over the Model Context Protocol.

    \b
    claude mcp add tracks -- tracks mcp
    tracks mcp --skill > .claude/skills/tracks/SKILL.md

    The agent's program starts it and speaks to it through stdin and stdout. Its tools are the commands
    with --json. docs/agents.md has the rest.
    """
    from tracks_dagster.wings.agent.edge.tools import acts_of, server, skill

    if prints_skill:
        click.echo(skill(), nl=False)
        return
    if name is not None:
        actor(name)  # a bad one is refused before anything listens
    settings = Settings.from_environment()

    def check(act: str, target: str) -> None:
        run_id = parse_attempt_key(target)[0] if "/" in target else target
        tracks = open_tracks_to_read(settings)
        tracks.run(run_id)  # raises for an unknown run, with the nearest id
        policy = load_policy(settings)
        check_act(policy.contracts.governance, act, tracks.records(run_track(run_id)), utc_now())

    with redirect_stdout(raw(sys.stdout)):  # what goes through there is the protocol, as it is
        server(acts_of(name, check) if write else ()).run("stdio")

"""The tools of `tracks mcp`: each is a command with --json, called as a person would call it.

So an agent reads what the command prints, is refused what the command refuses, and learns no second
language. A command is a process of its own: what it costs and how long it takes has a bound.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Annotated

import anyio
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ToolAnnotations
from pydantic import Field

from tracks_dagster.cli import BAD_NEWS
from tracks_dagster.retry.contracts import DRAIN, NOTE, RETRY, STOP
from tracks_dagster.track.errors import TracksError
from tracks_dagster.wings.agent.acts import actor

ANSWER_S_MAX = 120.0
ANSWER_CHARACTERS_MAX = 100_000
AT_ONCE_MAX = 4
ROWS_MAX = 500

Check = Callable[[str, str], None]  # of an act and a run
Tool = Callable[..., Awaitable[str]]

RunId = Annotated[str, Field(description="The id of a run.")]
Target = Annotated[str, Field(description="A run, RUN, or one attempt of it, RUN/aNN.")]
Why = Annotated[
    str, Field(description="Why, in words: what you read, and what you expect. It is recorded.")
]
Changes = Annotated[
    dict[str, str | int | float | bool], Field(description="Keys of the config that change.")
]


def skill() -> str:
    """Return the page that teaches an agent to use the tools, in the form of a skill file."""
    return files("tracks_dagster.wings.agent").joinpath("SKILL.md").read_text(encoding="utf-8")


def command_line(
    command: Sequence[str], things: Sequence[str] = (), options: Mapping[str, object] | None = None
) -> list[str]:
    """Return the arguments of a command that prints JSON; nothing in a value is taken for an option.

    options: by name with underscores; None, False and "" are left out, a list is given several times.
    """
    line = [*command, "--json"]
    for name, value in (options or {}).items():
        flag = f"--{name.replace('_', '-')}"
        for each in value if isinstance(value, list | tuple) else (value,):
            if each is True:
                line.append(flag)
            elif each is not None and each is not False and each != "":
                line.append(f"{flag}={each}")
    return [*line, "--", *things]


async def ask(command: Sequence[str], things: Sequence[str] = (), **options: object) -> str:
    """Return what a command prints: JSON, or its beginning where it is too long.

    Raises ToolError with the command's own words where it refuses, or takes longer than ANSWER_S_MAX.
    """
    # With -P: the folder that the agent works in may have a json.py, and that is not to be run.
    program = [sys.executable, "-P", "-m", "tracks_dagster"]
    line = [*program, *command_line(command, things, options)]
    named = f"`tracks {' '.join(command)}`"
    try:
        done = await anyio.to_thread.run_sync(_call, line, limiter=_limiter())
    except subprocess.TimeoutExpired:
        raise ToolError(
            f"{named} had no answer after {ANSWER_S_MAX:g} s, and was ended. Ask for less: one run, "
            "fewer rows, a filter. Where it was to change something, read `records` first."
        ) from None
    except (OSError, ValueError) as error:  # a NUL, half a character, more than a line can carry
        raise ToolError(f"{named} could not be called so: {error}.") from None
    text = _words(done.stdout)
    if done.returncode != 0 and not (done.returncode == BAD_NEWS and text):
        raise ToolError(_words(done.stderr) or f"{named} ended with {done.returncode}.")
    text = text or _words(done.stderr)
    if len(text) > ANSWER_CHARACTERS_MAX:
        text = (
            f"{text[:ANSWER_CHARACTERS_MAX]}\n… cut: {len(text)} characters, of which these are the "
            f"first {ANSWER_CHARACTERS_MAX}. Ask for less."
        )
    return text


def _call(line: Sequence[str]) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        line,
        stdin=subprocess.DEVNULL,  # ours carries the protocol
        capture_output=True,
        check=False,
        timeout=ANSWER_S_MAX,
        env={**os.environ, "NO_COLOR": "1", "COLUMNS": "100"},
    )


@cache
def _limiter() -> anyio.CapacityLimiter:
    return anyio.CapacityLimiter(AT_ONCE_MAX)


def _words(output: bytes) -> str:
    return output.decode(errors="replace").strip()


# --- what reads -----------------------------------------------------------------------------------


async def runs(
    where: Annotated[
        str, Field(description='A filter, such as: lr<0.01 state=succeeded owner:ann. "" is all.')
    ] = "",
    sort: Annotated[str, Field(description="Names with commas; -NAME is the largest first.")] = "",
    columns: Annotated[str, Field(description="Which columns, with commas.")] = "",
    group: Annotated[str, Field(description="Mean and spread of runs alike in this name.")] = "",
    limit: Annotated[int, Field(ge=1, le=ROWS_MAX)] = 50,
) -> str:
    """All runs in one table, finished ones too: state, config, metrics, evals, device hours."""
    return await ask(["runs"], where=where, sort=sort, columns=columns, group=group, limit=limit)


async def status(run: Annotated[str, Field(description='A run; "": the newest runs.')] = "") -> str:
    """State, attempt and step of a run or of the newest runs, and what each waits for."""
    return await ask(["status"], [run] if run else [])


async def explain(target: Target, full: bool = False) -> str:
    """Why an attempt ended, by which evidence, what follows by itself, what to do, what it cost."""
    return await ask(["explain"], [target], full=full)


async def records(run: RunId) -> str:
    """Every record of a run's track, a sentence each: the whole story."""
    return await ask(["explain"], [run], records=True)


async def logs(
    target: Target,
    rank: Annotated[int | None, Field(description="Only this rank.", ge=0)] = None,
    tail: Annotated[int, Field(ge=1, le=ROWS_MAX, description="The last lines of each.")] = 100,
) -> str:
    """What the ranks of an attempt printed; passwords are hidden."""
    return await ask(["logs"], [target], rank=rank, tail=tail)


async def curves(
    run: RunId,
    metrics: Annotated[Sequence[str], Field(description="Which; none: all.")] = (),
) -> str:
    """Metrics over steps, stitched over the attempts, at most 1000 points each, spikes included."""
    return await ask(["curves"], [run, *metrics])


async def diff(a: str, b: str) -> str:
    """Two attempts (RUN/aNN) or checkpoints (RUN@STEP) side by side: config, code, data, results."""
    return await ask(["diff"], [a, b])


async def experiment(name: str, baseline: str = "") -> str:
    """The runs of an experiment: what each changed from the baseline, and what came of it."""
    return await ask(["diff"], experiment=name, baseline=baseline)


async def lineage(
    thing: Annotated[
        str,
        Field(description="RUN@STEP, RUN/aNN, RUN, DATASET@ID, node:NAME, code:COMMIT and others."),
    ],
) -> str:
    """What a thing rests on, and what came of it."""
    return await ask(["lineage"], [thing])


async def health(
    run: Annotated[str, Field(description='A run; "": all that train.')] = "",
) -> str:
    """Healthy? Improving? Resources well used? Of runs that train now."""
    return await ask(["health"], [run] if run else [])


async def alerts() -> str:
    """The open alerts, newest first, with what to do."""
    return await ask(["alerts", "list"])


async def goodput(
    by: Annotated[str, Field(description="reason, family, team, week or run.")] = "reason",
    last: Annotated[str, Field(description='How far back, such as 7d; "": all.')] = "",
) -> str:
    """Where the device hours went, the worst waste first."""
    return await ask(["goodput"], by=by, last=last)


async def search(
    text: str, last: Annotated[str, Field(description="How far back, such as 30d.")] = ""
) -> str:
    """Search names, declarations, notes, alerts, decisions and messages of failures."""
    return await ask(["search"], [text], last=last)


async def sql(query: Annotated[str, Field(description="One SELECT.")]) -> str:
    """One SELECT over the ledger, for what no other tool answers."""
    return await ask(["sql"], [query])


READING: Sequence[Tool] = (
    *(runs, status, explain, records, logs, curves, diff, experiment),
    *(lineage, health, alerts, goodput, search, sql),
)


# --- what acts ------------------------------------------------------------------------------------


def acts_of(name: str | None, check: Check) -> Sequence[Tool]:
    """Return the tools that act, each recorded in the agent's name.

    name: of the agent; None: as its program names itself. check: raises where the policy refuses. One
    at a time: the next is checked once the one before is in the record.
    """
    one_at_a_time = anyio.Lock()

    async def act(kind: str, context: Context, run: str, *more: str, **options: object) -> str:
        async with one_at_a_time:
            try:
                by = actor(name or _client(context))
                await anyio.to_thread.run_sync(check, kind, run)
            except TracksError as error:
                raise ToolError(str(error)) from None
            return await ask([kind], [run, *more], by=by, **options)

    async def note(run: Target, text: str, context: Context) -> str:
        """Add a sentence to the track of a run or an attempt, for the next reader."""
        return await act(NOTE, context, run, text)

    async def drain(run: RunId, why: Why, context: Context) -> str:
        """Save and end the open attempt; the run then waits for a retry."""
        return await act(DRAIN, context, run, why=why)

    async def retry(
        run: RunId,
        why: Why,
        context: Context,
        config: Changes | None = None,
        ranks: Annotated[
            int | None, Field(ge=1, description="Processes, where they change.")
        ] = None,
    ) -> str:
        """Open the next attempt of a run that is not finished and trains nothing now."""
        changes = [f"{key}={json.dumps(value)}" for key, value in (config or {}).items()]
        return await act(RETRY, context, run, why=why, set=changes, ranks=ranks)

    async def stop(run: RunId, why: Why, context: Context) -> str:
        """Save and end the open attempt, then finish the run as cancelled. It cannot be undone."""
        return await act(STOP, context, run, why=why)

    return note, drain, retry, stop


def _client(context: Context) -> str:
    params = context.request_context.session.client_params
    return params.client_info.name if params is not None else ""


# --- the server -----------------------------------------------------------------------------------


def server(acts: Sequence[Tool]) -> MCPServer:
    """Return the server with the tools that read, and those that act where some are given."""
    words = skill().partition("---\n")[2].partition("---\n")[2]  # without the head of a skill file
    made = MCPServer("tracks", instructions=words, log_level="ERROR")
    reads = ToolAnnotations(read_only_hint=True, open_world_hint=False)
    for tool in READING:
        made.add_tool(tool, annotations=reads, structured_output=False)
    for tool in acts:
        ends = tool.__name__ in (DRAIN, STOP)
        changes = ToolAnnotations(
            read_only_hint=False, destructive_hint=ends, open_world_hint=False
        )
        made.add_tool(tool, annotations=changes, structured_output=False)
    return made

"""What an agent may do, by the policy and by the record."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import anyio
import pytest
from mcp.server.mcpserver.exceptions import ToolError

from tracks_dagster.cli.common import parse_settings
from tracks_dagster.retry.contracts import STRICT, Governance
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.records import Json, Kind, Record
from tracks_dagster.wings.agent.acts import actor, check_act
from tracks_dagster.wings.agent.edge import tools

NOW = datetime(2026, 11, 28, tzinfo=UTC)


def record(hours_ago: float, **body: Json) -> Record:
    at = NOW - timedelta(hours=hours_ago)
    return Record(
        seq=1,
        uid="u",
        at=at,
        kind=Kind.NOTE,
        attempt_id=None,
        prev_sha256=None,
        body=body,
        sha256="",
    )


@pytest.mark.parametrize(
    ("name", "recorded"),
    [
        ("claude-code", "agent:claude-code"),
        ("My Agent/2", "agent:my-agent-2"),
        ("agent:x\nby ann", "agent:agent-x-by-ann"),
        ("a" * 99, "agent:" + "a" * 40),
    ],
)
def test_an_agent_is_recorded_by_a_name_that_no_person_has(name: str, recorded: str) -> None:
    assert actor(name) == recorded


@pytest.mark.parametrize("name", ["", "…", "--"])
def test_an_agent_without_a_name_is_refused(name: str) -> None:
    with pytest.raises(InvalidInput, match="give --name"):
        actor(name)


def test_the_policy_says_what_an_agent_may_do() -> None:
    check_act(Governance(), "retry", [], NOW)
    with pytest.raises(InvalidInput, match=r"governance\.agents_may: stop: an agent may note only"):
        check_act(STRICT.governance, "stop", [], NOW)
    with pytest.raises(InvalidInput, match="an agent may only read"):
        check_act(Governance(agents_may=()), "note", [], NOW)


def test_what_is_asked_at_once_is_done_one_by_one_within_the_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done: list[str] = []

    def check(act: str, run_id: str) -> None:
        if len(done) >= 3:
            raise InvalidInput("so many are done already")

    async def ask(command: object, things: list[str], **options: object) -> str:
        await anyio.lowlevel.checkpoint()  # others come while it is being written
        done.append(things[1])
        return "{}"

    monkeypatch.setattr(tools, "ask", ask)
    note = tools.acts_of("claude", check)[0]

    async def many() -> None:
        async def one(number: int) -> None:
            with suppress(ToolError):
                await note("r", f"note {number}", None)

        async with anyio.create_task_group() as group:
            for number in range(30):
                group.start_soon(one, number)

    anyio.run(many)
    assert len(done) == 3


def test_a_value_that_an_agent_gives_has_its_type_when_the_command_reads_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given: list[Sequence[str]] = []

    async def ask(_: object, __: object, **options: Any) -> str:
        given.append(options["set"])
        return "{}"

    monkeypatch.setattr(tools, "ask", ask)
    retry = {each.__name__: each for each in tools.acts_of("claude", lambda *_: None)}["retry"]
    config = {
        "a": "1.10",
        "b": "true",
        "c": True,
        "d": 1.5,
        "e": 3,
        "f": "",
        "g": "[1]",
        "h": 'ü"=',
    }
    anyio.run(retry, "r", "Why.", None, config)
    assert repr(parse_settings(given[0])) == repr(config)


def test_all_agents_together_do_so_much_to_a_run_within_a_day() -> None:
    few = Governance(agent_acts=2)
    by_a, by_b = record(1, by="agent:a"), record(23, decided_by="agent:b")
    others = [record(1, by="ann"), record(25, by="agent:a"), record(1, text="agent:a"), by_a]
    check_act(few, "retry", others, NOW)
    with pytest.raises(InvalidInput, match=r"governance\.agent_acts: retry: agents did 2 things"):
        check_act(few, "retry", [*others, by_b], NOW)

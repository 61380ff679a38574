"""`tracks mcp`, as the SDK's own client sees it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client, StdioServerParameters
from mcp_types import Implementation, TextContent

from tests.cli.conftest import Call, call, home, story, story_home
from tests.stories import RUN_ID, Story
from tracks_dagster.settings import Settings
from tracks_dagster.track.names import run_track
from tracks_dagster.wings.agent.edge import tools
from tracks_dagster.wings.agent.edge.tools import READING, command_line, server
from tracks_dagster.wiring import build

__all__ = ["call", "home", "story", "story_home"]

MAY_NOT_RETRY = "governance: {agents_may: [note]}\n"


@pytest.fixture
def refused(home: Path) -> Story:
    """A run whose trainer raised before its first step, and that was refused a retry."""
    app = build(Settings.from_environment())
    made = Story(app.store).refused()
    app.projector.scan()
    return made


def asked(*calls: tuple[str, Mapping[str, Any]]) -> list[str]:
    """Call tools of a real `tracks mcp`, one after another; what is an error begins with ✗."""

    async def talk() -> list[str]:
        arguments = ["-m", "tracks_dagster", "mcp", "--write"]
        program = StdioServerParameters(
            command=sys.executable, args=arguments, env=dict(os.environ)
        )
        info = Implementation(name="Night Watch", version="1")
        async with Client(program, client_info=info, read_timeout_seconds=120) as client:
            answers = [await client.call_tool(name, dict(given)) for name, given in calls]
        return [f"{'✗' if each.is_error else ''}{_text(each.content)}" for each in answers]

    return anyio.run(talk)


def _text(content: list[Any]) -> str:
    [block] = content
    assert isinstance(block, TextContent)
    return block.text


def test_an_agent_asks_why_a_run_ended_and_retries_it_with_a_reason(
    refused: Story,
) -> None:
    why = "It read a key that the config lacks."
    explained, retried, answer = asked(
        ("explain", {"target": f"{RUN_ID}/a01"}),
        ("retry", {"run": RUN_ID, "why": why, "config": {"micro_batch": 1}}),
        ("records", {"run": RUN_ID}),
    )
    assert json.loads(explained)["ended"]["reason"] == "code_error"
    assert not retried.startswith("✗"), retried
    opened = build(Settings.from_environment()).tracks.run(RUN_ID).attempts[-1].opened
    assert (opened.decided_by, opened.config["micro_batch"]) == ("agent:night-watch", 1)
    assert why in opened.decision
    assert "agent:night-watch" in answer


def test_what_the_policy_refuses_is_refused_in_its_words(refused: Story, home: Path) -> None:
    (home / "policy.yaml").write_text(MAY_NOT_RETRY)
    noted, retried, unknown = asked(
        ("note", {"run": f"{RUN_ID}/a01", "text": "The key is spelled otherwise."}),
        ("retry", {"run": RUN_ID, "why": "Again."}),
        ("note", {"run": "nothing", "text": "…"}),
    )
    assert not noted.startswith("✗"), noted
    assert retried.startswith("✗")
    assert "Refused by policy governance.agents_may: retry: an agent may note only" in retried
    assert unknown.startswith("✗")
    records = build(Settings.from_environment()).tracks.records(run_track(RUN_ID))
    assert records[-1].body["by"] == "agent:night-watch"


def test_without_write_nothing_can_be_changed(home: Path) -> None:
    async def names() -> dict[str, bool]:
        async with Client(server(())) as client:
            listed = await client.list_tools()
        return {
            tool.name: bool(tool.annotations and tool.annotations.read_only_hint)
            for tool in listed.tools
        }

    assert anyio.run(names) == {tool.__name__: True for tool in READING}


READS: Mapping[str, Mapping[str, Any]] = {
    "runs": {"where": "state=succeeded", "sort": "-steps", "limit": 5},
    "status": {"run": RUN_ID},
    "explain": {"target": f"{RUN_ID}/a02", "full": True},
    "records": {"run": RUN_ID},
    "logs": {"target": f"{RUN_ID}/a01", "tail": 5},
    "curves": {"run": RUN_ID, "metrics": ["loss"]},
    "diff": {"a": f"{RUN_ID}/a01", "b": f"{RUN_ID}/a03"},
    "experiment": {"name": "none"},
    "lineage": {"thing": f"{RUN_ID}@40"},
    "health": {},
    "alerts": {},
    "goodput": {"by": "reason", "last": ""},
    "search": {"text": "batch"},
    "sql": {"query": "select run_id from training_runs"},
}


def test_each_tool_answers_as_its_command_does(
    story: Story, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its command runs in this process here: the door is the same, and a dozen starts are saved."""

    async def talk() -> dict[str, str]:
        async with Client(server(())) as client:
            answers = {name: await client.call_tool(name, dict(READS[name])) for name in READS}
        return {name: _text(each.content) for name, each in answers.items()}

    def run_here(line: list[str]) -> subprocess.CompletedProcess[bytes]:
        result = call(*line[line.index("tracks_dagster") + 1 :])
        return subprocess.CompletedProcess(
            line, result.exit_code, result.stdout_bytes, result.stderr_bytes
        )

    monkeypatch.setattr(tools, "_call", run_here)
    answers = anyio.run(talk)
    assert set(READS) == {tool.__name__ for tool in READING}
    for name in set(READS) - {"experiment"}:
        assert json.loads(answers[name]) is not None, name
    assert json.loads(answers["sql"]) == [{"run_id": RUN_ID}]
    assert "none" in answers["experiment"]  # no run is of it: said in words


@pytest.mark.parametrize("hostile", ["--help", "-h", "--json", "x --by=ann", "$(id)", "; id"])
def test_no_value_is_taken_for_an_option(hostile: str) -> None:
    line = command_line(["retry"], [hostile], {"why": hostile, "set": [f"lr={hostile}"]})
    assert line == ["retry", "--json", f"--why={hostile}", f"--set=lr={hostile}", "--", hostile]


@pytest.mark.parametrize("text", ["a\0b", "\ud800", "x" * 3_000_000])
def test_what_no_command_line_can_carry_is_refused_in_words(text: str, home: Path) -> None:
    with pytest.raises(tools.ToolError, match="could not be called so"):
        anyio.run(tools.ask, ["search"], [text])


def test_no_code_of_the_folder_that_an_agent_works_in_is_run(
    story: Story, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "somebody's code"
    folder.mkdir()
    for module in ("json", "tracks_dagster"):
        (folder / f"{module}.py").write_text("raise SystemExit('run')")
    monkeypatch.chdir(folder)
    assert json.loads(anyio.run(tools.ask, ["explain"], [RUN_ID]))


@pytest.mark.parametrize("said", ["Traceback …\nValueError: odd", ""])
def test_a_command_that_crashed_has_not_answered(
    said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    crashed = subprocess.CompletedProcess([], 1, b"", said.encode())
    monkeypatch.setattr(tools, "_call", lambda _line: crashed)
    with pytest.raises(tools.ToolError, match="odd" if said else "`tracks runs` ended with 1"):
        anyio.run(tools.ask, ["runs"])


def test_an_answer_has_bounds_in_time_and_length(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tools, "ANSWER_CHARACTERS_MAX", 100)
    text = anyio.run(tools.ask, ["explain"], [RUN_ID])
    assert "cut:" in text
    assert len(text) < 300
    monkeypatch.setattr(tools, "ANSWER_S_MAX", 0.01)
    with pytest.raises(tools.ToolError, match="had no answer after"):
        anyio.run(tools.ask, ["explain"], [RUN_ID])


def test_the_skill_file_names_every_tool_that_it_speaks_of(call: Call) -> None:
    page = call("mcp", "--skill").stdout
    known = {tool.__name__ for tool in READING}
    spoken = {word for word in page.split("`")[1::2] if word.isalpha() and word.islower()}
    assert spoken - {"why", "full"} <= known
    assert page.startswith("---\nname: tracks\n")

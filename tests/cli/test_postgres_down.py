"""Postgres is down: every command says so in words, with the address and without the password."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Call
from tests.cli.reading_commands import (
    FROM_LEDGER,
    FROM_TRACK,
    WITHOUT_RECORDS,
    Arguments,
    with_out,
)
from tests.ports import free_port
from tests.stories import RUN_ID, Story
from tracks_dagster.cli.start import follow
from tracks_dagster.cli.start.follow import RESTART_S_MAX, Keeper
from tracks_dagster.home.dagster_home import DagsterHome
from tracks_dagster.track.errors import OrchestratorError

PASSWORD = "hunter2pw"
DECIDING: tuple[Arguments, ...] = (
    *(("up",), ("reindex",), ("note", RUN_ID, "x")),
    *(("run", "--intent", "x"), ("run", "--run-id", RUN_ID)),
    *((each, RUN_ID, "--why", "x") for each in ("stop", "drain", "retry", "promote")),
    *(("checkpoints", each, RUN_ID) for each in ("gc", "verify")),
)


@pytest.fixture
def url(monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of a server that does not listen."""
    url = f"postgresql://ann:{PASSWORD}@127.0.0.1:{free_port()}/tracks"
    monkeypatch.setenv("TRACKS_POSTGRES_URL", url)
    return url


@pytest.mark.parametrize("arguments", [*FROM_LEDGER, *DECIDING], ids=" ".join)
def test_a_command_says_what_where_and_what_next(
    arguments: Arguments, story: Story, call: Call, url: str
) -> None:
    result = call(*arguments)
    assert result.exit_code != 0
    [line] = result.stderr.splitlines()
    assert line.startswith(
        f"tracks: Cannot open the ledger at postgresql://{url.partition('@')[2]}: connection"
    )
    assert line.endswith(
        "Connection refused; see that the server is up and TRACKS_POSTGRES_URL right."
    )


@pytest.mark.parametrize("arguments", [*FROM_TRACK, *WITHOUT_RECORDS], ids=" ".join)
def test_what_needs_the_track_alone_is_answered(
    arguments: Arguments, story: Story, call: Call, url: str, tmp_path: Path
) -> None:
    result = call(*with_out(arguments, tmp_path))
    assert result.exit_code == (1 if arguments == ("fsck",) else 0)  # the ledger is a finding
    assert result.stdout.strip()
    assert PASSWORD not in result.output


def home_with(url: str, tmp_path: Path) -> DagsterHome:
    return DagsterHome(tmp_path, root=tmp_path, environment={}, postgres_url=url)


def test_a_web_server_that_ends_without_postgres_is_reported_without_its_traceback(
    url: str, tmp_path: Path
) -> None:
    (tmp_path / "webserver.log").write_text("Traceback (most recent call last):\n  File x\nE: no\n")
    home = home_with(url, tmp_path)
    with pytest.raises(OrchestratorError) as error, home.daemon():
        pass
    result = f"{error.value} {home.why_daemon_ended()} {home._why_ended('webserver')}"
    assert result.count("Connection refused; see that the server is up") == 3
    assert "needs the right to create schemas" not in result
    assert PASSWORD not in result
    assert "Traceback" not in result


def test_a_web_server_that_ends_for_another_reason_is_explained_by_its_last_line(
    tmp_path: Path,
) -> None:
    (tmp_path / "webserver.log").write_text(
        "Traceback (most recent call last):\n  File x\nE: no\n\n"
    )
    home = DagsterHome(tmp_path, root=tmp_path, environment={}, postgres_url=None)
    assert (
        home._why_ended("webserver") == f"the last line of {tmp_path / 'webserver.log'} is: E: no"
    )


class DyingHome:
    """A home whose daemon is dead at every look."""

    def __init__(self) -> None:
        self.starts = 0

    def ensure_daemon(self) -> bool:
        self.starts += 1
        return True

    def why_daemon_ended(self) -> str:
        return "it died"


def test_a_daemon_that_dies_again_and_again_is_started_less_and_less_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s = 0.0
    monkeypatch.setattr(follow.time, "monotonic", lambda: now_s)
    home, result = DyingHome(), list[str]()
    keeper = Keeper(home.ensure_daemon, home.why_daemon_ended, result.append)
    while now_s < 600.0:
        keeper.keep()
        now_s += 0.5
    assert home.starts == len(result) == 5 + round((600 - 62) / RESTART_S_MAX)

"""`tracks import slurm` without a file: what this machine's own programs print, and how they fail."""

from __future__ import annotations

import shlex
from datetime import UTC
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.wings.history.worlds import BEGIN, HEADER, ImportWorld, import_world, row
from tracks_dagster.reasons.user_rules import NO_RULES
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.wings.history.edge import imports
from tracks_dagster.wings.history.effects.files import LinesOfSlurm
from tracks_dagster.wings.history.effects.importing import Imported, import_history
from tracks_dagster.wings.history.slurm_lines import SlurmLines

ROWS = "\n".join([HEADER, row(7), row(8, State="NODE_FAIL"), ""])
NODES = "NodeName=n1 State=IDLE BootTime=2025-12-31T00:00:00 AllocTRES=\n"


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, where programs are looked for first."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    return tmp_path


@pytest.fixture
def world(tmp_path: Path) -> ImportWorld:
    """An empty home."""
    return import_world(tmp_path)


def program(folder: Path, name: str, *lines: str) -> None:
    """Write a program of the shell."""
    path = folder / name
    path.write_text("\n".join(("#!/bin/sh", *lines, "")))
    path.chmod(0o755)


def prints(text: str) -> str:
    """Return the line that prints this."""
    return f"printf '%s' {shlex.quote(text)}"


def live(world: ImportWorld, **bounds: float) -> Imported:
    """Import what the programs print."""
    source = LinesOfSlurm(since=BEGIN, parse=SlurmLines(zone=UTC, seen_at=BEGIN).read, **bounds)
    return import_history(world.tracks, source, "slurm", rules=NO_RULES, by="tests")


def test_jobs_and_then_nodes_are_asked_for_in_utc(programs: Path, world: ImportWorld) -> None:
    asked = programs / "asked"
    program(programs, "sacct", f'echo "$TZ $*" >{asked}', prints(ROWS))
    program(programs, "scontrol", prints(NODES))
    done = live(world)
    assert (done.new, list(done.nodes), done.bad) == (2, ["n1"], [])
    assert asked.read_text().startswith("UTC -D -P -a ")
    assert "-S 2026-01-01T00:00:00" in asked.read_text()


def test_a_program_that_warns_without_end_is_imported_and_its_words_are_named(
    programs: Path, world: ImportWorld
) -> None:
    """More than a pipe holds: anyone who reads one pipe to its end first would wait for ever."""
    program(programs, "sacct", "yes 'sacct: a warning' | head -c 300000 >&2", prints(ROWS))
    program(programs, "scontrol", prints(NODES))
    done = live(world)
    assert (done.new, len(done.nodes)) == (2, 1)
    (bad,) = done.bad
    assert bad.file.startswith("sacct ")
    assert bad.why.startswith("sacct: a warning")
    assert len(bad.why) <= 500


def test_what_was_printed_before_a_failure_is_imported(programs: Path, world: ImportWorld) -> None:
    program(
        programs, "sacct", prints(ROWS), "echo 'sacct: error: the daemon is away' >&2", "exit 1"
    )
    program(programs, "scontrol", "echo 'Unable to contact slurm controller' >&2", "exit 1")
    done = live(world)
    assert done.new == 2
    assert [(each.file.split()[0], each.why) for each in done.bad] == [
        ("sacct", "sacct: error: the daemon is away"),
        ("scontrol", "Unable to contact slurm controller"),
    ]


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (["echo 'Slurm accounting storage is disabled' >&2", "exit 1"], "storage is disabled"),
        (["exit 3"], "it ended with exit code 3"),
        (["kill -9 $$"], "it was ended by signal 9"),
    ],
    ids=["off", "silent", "killed"],
)
def test_a_failure_before_the_first_row_is_said(
    programs: Path, world: ImportWorld, lines: list[str], words: str
) -> None:
    program(programs, "sacct", *lines)
    with pytest.raises(InvalidInput, match=f"sacct failed: .*{words}.*why, where and how long"):
        live(world)


def test_other_columns_are_named_however_much_follows(programs: Path, world: ImportWorld) -> None:
    program(programs, "sacct", "echo 'Color|Size'; yes 'red|1' | head -c 300000")
    with pytest.raises(InvalidInput, match=r"Color\|Size"):
        live(world)


def test_a_machine_without_slurm_is_answered_with_what_to_do(
    tmp_path: Path, world: ImportWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InvalidInput, match=r"no `sacct` on this machine.*print a file there"):
        live(world)


def test_a_program_that_hangs_is_ended_in_its_time(programs: Path, world: ImportWorld) -> None:
    program(programs, "sacct", prints(ROWS), "exec sleep 600")
    program(programs, "scontrol", prints(NODES))
    done = live(world, limit_s=2.0)
    assert (done.new, len(done.nodes)) == (2, 1)
    assert [each.why for each in done.bad] == ["it was not done after 2 s, and was ended"]


def test_follow_asks_again_for_what_a_sacct_that_failed_did_not_print(
    programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACKS_HOME", str(programs / "home"))
    asked, looks = programs / "asked", 3
    program(
        programs,
        "sacct",
        f'echo "$*" >>{asked}',
        prints(ROWS),
        f"if [ $(wc -l <{asked}) = 1 ]; then echo 'sacct: error: lost' >&2; exit 1; fi",
    )
    program(programs, "scontrol", "exit 1")  # which says nothing of jobs

    def sleep(seconds: float) -> None:
        if len(asked.read_text().splitlines()) == looks:
            raise KeyboardInterrupt

    monkeypatch.setattr(imports.time, "sleep", sleep)
    CliRunner().invoke(imports.import_command, ["slurm", "--follow"])
    first, again, later = (line.split()[-1] for line in asked.read_text().splitlines())
    assert first == again < later

"""Who is asked for a stack dump, and that asking ends nobody."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tracks_dagster.processes import stack_dumps
from tracks_dagster.processes.process import Process, find_process
from tracks_dagster.processes.stack_dumps import DUMP_SIGNAL, stack_file
from tracks_dagster.track.text.redact import redact

DUMPS = """
import pathlib, sys, time
from tracks_dagster.processes.stack_dumps import enable_dumps
enable_dumps(pathlib.Path(sys.argv[1]), 0)
print("ready", flush=True)
time.sleep(600)
"""
# A script of a user's that takes the signal back, or starts another program in its place.
TAKES_NO_DUMP = DUMPS.replace(
    'print("ready"', 'import signal; signal.signal(signal.SIGUSR2, signal.SIG_DFL); print("ready"'
)


@pytest.fixture
def rank(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Process]:
    """A living rank 0 that runs the script it is given."""
    with subprocess.Popen(
        [sys.executable, "-c", request.param, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        process = find_process(child.pid)
        assert process is not None
        yield process
        child.kill()


@pytest.mark.parametrize("rank", [DUMPS], indirect=True)
def test_a_dump_can_be_asked_for_again_and_again(rank: Process, tmp_path: Path) -> None:
    for _ in range(2):
        (dump,) = stack_dumps.dump_stacks(tmp_path, {0: rank}, clean=redact)
        assert "in <module>" in dump.text
    assert rank.lives


@pytest.mark.parametrize("rank", [TAKES_NO_DUMP], indirect=True)
def test_a_rank_that_the_signal_would_end_is_not_asked(rank: Process, tmp_path: Path) -> None:
    (dump,) = stack_dumps.dump_stacks(tmp_path, {0: rank}, clean=redact)
    assert (dump.text, "would end it" in dump.problem) == ("", True)
    time.sleep(0.2)
    assert rank.lives


@pytest.mark.parametrize("rank", [DUMPS], indirect=True)
def test_a_rank_that_goes_while_it_is_asked_costs_no_other_ranks_dump(
    rank: Process, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack_file(tmp_path, 1).write_text("")
    kill, asked = os.kill, []

    def one_is_gone(pid: int, number: int) -> None:
        asked.append(number)
        if len(asked) == 1:
            raise ProcessLookupError
        kill(pid, number)

    monkeypatch.setattr(stack_dumps.os, "kill", one_is_gone)
    gone, other = stack_dumps.dump_stacks(tmp_path, {1: rank, 0: rank}, clean=redact)
    assert asked == [DUMP_SIGNAL] * 2
    assert (gone.rank, gone.problem) == (1, stack_dumps.GONE)
    assert "in <module>" in other.text

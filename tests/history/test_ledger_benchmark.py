"""The benchmark of the ledger runs, in small, on both databases, and measures what it has bars for."""

from __future__ import annotations

import pytest

from benchmarks import ledger_history
from benchmarks.__main__ import AT_LEAST, AT_MOST
from benchmarks.commands import time_command


@pytest.mark.full
def test_every_bar_has_a_figure_on_both_databases() -> None:
    figures = ledger_history.run(200, rounds=1)
    for name in (*ledger_history.AT_MOST, *ledger_history.AT_LEAST):
        for database in ("sqlite", "postgres"):
            found = [label for label in figures if label.startswith(f"{name} @")]
            assert any(label.endswith(database) for label in found), (name, database)
    assert all(value > 0 for value in figures.values())


def test_every_bar_of_the_history_is_one_of_the_benchmarks_and_says_what_else_stands_in_it() -> (
    None
):
    for name in ledger_history.AT_MOST.keys() | ledger_history.AT_LEAST.keys():
        assert name in AT_MOST or name in AT_LEAST
        assert ledger_history.WHY[name]


def test_a_command_is_timed_in_a_process_of_its_own_and_its_memory_is_its_own() -> None:
    took = time_command(("classify", "--help"), {}, rounds=1)
    assert 0 < took.inside_s < took.wall_s
    assert 5 < took.peak_mb < 300
    assert took.cpu_s > 0


def test_a_command_that_was_used_in_a_wrong_way_is_not_a_measurement() -> None:
    with pytest.raises(
        RuntimeError, match=r"(?s)tracks explain --no-such ended with .*No such option"
    ):
        time_command(("explain", "--no-such"), {}, rounds=1)

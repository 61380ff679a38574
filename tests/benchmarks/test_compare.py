"""What got slower is found, noise is called noise, and a comparison leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest

from benchmarks import compare
from benchmarks.compare import PAIRS, PAIRS_MAX, Row
from tracks_dagster.track.errors import InvalidInput

NOW = datetime(2026, 1, 31, 2, tzinfo=UTC)
BEFORE = Path("before")
WAIT_S_MAX = 120.0


def _rows(before: list[float], now: list[float], figure: str = "report_us") -> tuple[Row, int]:
    """Return the row of one figure whose sides measure these values in turn, and how often."""
    values: dict[Path, Iterator[float]] = {BEFORE: iter(before), compare.ROOT: iter(now)}
    measured = []

    def measure(checkout: Path, name: str) -> dict[str, float]:
        measured.append(checkout)
        return {figure: next(values[checkout])}

    (row,) = compare.compare(["step"], BEFORE, measure)
    assert measured.count(BEFORE) == measured.count(compare.ROOT)
    return row, measured.count(BEFORE)


@pytest.mark.parametrize(
    ("before", "now", "verdict", "pairs"),
    [
        ([10, 10, 10], [12, 12, 12], "worse", PAIRS),
        ([10, 20, 40], [12, 24, 48], "worse", PAIRS),  # the machine slows, the pairs agree
        ([10, 10, 10], [10.9, 10.9, 10.9], "", PAIRS),  # less than a tenth
        ([10, 10, 10], [5, 5, 5], "better", PAIRS),
        # Two pairs are out: more are run, and 5 of 7 are too few to call it fine.
        ([10] * 7, [20, 20, 10, 10, 10, 10, 10], "too noisy", PAIRS_MAX),
        # 6 of 7 ≥ ¾ call it worse.
        ([10] * 7, [12, 10, 12, 12, 12, 12, 12], "worse", 4),
        ([10] * 7, [12, 8, 12, 8, 12, 8, 12], "too noisy", PAIRS_MAX),
    ],
)
def test_a_figure_is_worse_when_three_quarters_of_its_pairs_say_so(
    before: list[float], now: list[float], verdict: str, pairs: int
) -> None:
    row, count = _rows(before, now)
    assert (row.verdict, count) == (verdict, pairs)


def test_after_some_minutes_a_noisy_figure_gets_no_more_pairs() -> None:
    now = iter([0.0, *[compare.MORE_PAIRS_S_MAX] * 9])
    values = {BEFORE: iter([10.0] * 7), compare.ROOT: iter([20.0, 20, 10, 10, 10, 10, 10])}
    (row,) = compare.compare(
        ["step"],
        BEFORE,
        lambda checkout, name: {"report_us": next(values[checkout])},
        monotonic=lambda: next(now),
    )
    assert (row.verdict, len(row.ratios)) == ("too noisy", PAIRS)


def test_more_of_a_rate_is_better() -> None:
    assert _rows([1000] * 3, [800] * 3, "reindexed_records_per_s")[0].verdict == "worse"
    assert _rows([1000] * 3, [1300] * 3, "reindexed_records_per_s")[0].verdict == "better"


def test_what_is_not_ours_is_a_control_and_never_worse() -> None:
    assert _rows([1] * 3, [2] * 3, "torch_save_to_raw_write_fsync @100 MB")[0].verdict == "control"


def test_the_order_of_the_two_sides_is_swapped_from_pair_to_pair() -> None:
    order = []

    def measure(checkout: Path, name: str) -> dict[str, float]:
        order.append(checkout == BEFORE)
        return {"report_us": 1.0}

    compare.compare(["step"], BEFORE, measure)
    assert order == [False, True, True, False, False, True]


def test_a_benchmark_that_only_one_side_has_is_left_out() -> None:
    rows = compare.compare(
        ["new"], BEFORE, lambda checkout, name: {} if checkout == BEFORE else {"figure": 1.0}
    )
    assert rows == []


def test_the_table_says_what_got_worse_and_what_is_unknown() -> None:
    rows = [_rows([10] * 7, now)[0] for now in ([12.0] * 3, [12, 8, 12, 8, 12, 8, 12])]
    result = compare.format_table(rows)
    assert "| step report_us | 10 | 12 | 1.20 | 3 | worse |" in result
    assert "Worse by more than a tenth: step report_us." in result
    assert f"too noisy to tell, after up to {PAIRS_MAX} pairs: step report_us." in result


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with one commit, in place of ours."""
    root = tmp_path / "repository"
    root.mkdir()
    monkeypatch.setattr(compare, "ROOT", root)
    monkeypatch.setattr(compare, "FOLDER", root / "docs" / "benchmarks")
    compare.git("init", "--quiet")
    compare.git("config", "user.name", "somebody")
    compare.git("config", "user.email", "somebody@example.com")
    (root / "code.py").write_text("then\n")
    _commit()
    return root


def _commit() -> None:
    compare.git("add", "--all")
    compare.git("commit", "--quiet", "--message", "a step")


def test_a_checkout_of_the_saved_commit_is_gone_after_an_error(repository: Path) -> None:
    commit = compare.clean_commit()
    (repository / "code.py").write_text("now\n")
    with suppress(KeyboardInterrupt), compare.checkout_of(commit) as before:
        assert (before / "code.py").read_text() == "then\n"
        raise KeyboardInterrupt
    assert not before.exists()
    assert len(compare.git("worktree", "list").splitlines()) == 1


def test_the_newest_save_is_found_with_its_commit_and_machine(repository: Path) -> None:
    commit = compare.clean_commit()
    figures = {"step": {"report_us": 20.5}}
    compare.save({}, commit="0" * 40, load_average=0.0, now=NOW.replace(day=1))
    path = compare.save(figures, commit=commit, load_average=64.0, now=NOW)
    found = compare.newest(compare.FOLDER)
    assert found is not None
    assert path.name == f"2026-01-31-{commit[:12]}.json"
    assert (found[0], found[1].figures, found[1].commit) == (path, figures, commit)
    assert found[1].machine == compare.this_machine()
    assert found[1].was_busy or compare.this_machine().cpu_count >= 128
    assert compare.commit_of(*found) == commit


def test_a_save_whose_commit_a_rebase_took_away_is_of_the_commit_that_brought_it(
    repository: Path,
) -> None:
    path = compare.save({}, commit="0" * 40, load_average=0.0, now=NOW)
    found = compare.newest(compare.FOLDER)
    assert found is not None
    with pytest.raises(InvalidInput, match="this clone does not have"):
        compare.commit_of(*found)
    _commit()
    assert compare.commit_of(path, found[1]) == compare.clean_commit()


def test_figures_of_code_that_is_in_no_commit_are_not_saved(repository: Path) -> None:
    (repository / "code.py").write_text("now\n")
    with pytest.raises(InvalidInput, match=r"Commit first[\s\S]*code\.py"):
        compare.clean_commit()


def test_a_comparison_that_gets_sigterm_ends_the_benchmark_that_it_runs(tmp_path: Path) -> None:
    """The benchmark ends in its own time: what it started is its own to end."""
    package = tmp_path / "benchmarks"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(
        "import os, pathlib, signal, sys, time\n"
        "def end(*_):\n"
        "    pathlib.Path('ended').touch()\n"
        "    sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, end)\n"
        "pathlib.Path('pid').write_text(str(os.getpid()))\n"
        "time.sleep(600)\n"
    )
    script = (
        "import pathlib, signal, sys\n"
        "from benchmarks.compare import end_through_finally, run_benchmark\n"
        "end_through_finally()\n"
        "run_benchmark(pathlib.Path(sys.argv[1]), 'step')\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)],
        cwd=compare.ROOT,
        env={**os.environ, "PYTHONPATH": str(compare.ROOT)},
    )
    try:
        give_up_at = time.monotonic() + WAIT_S_MAX
        pid_file = tmp_path / "pid"
        while not (pid_file.exists() and pid_file.read_text()):
            assert parent.poll() is None
            assert time.monotonic() < give_up_at
            time.sleep(0.05)
        parent.send_signal(signal.SIGTERM)
        assert parent.wait(WAIT_S_MAX) == 128 + signal.SIGTERM
    finally:
        parent.kill()
        parent.wait()
    assert (tmp_path / "ended").exists()
    assert not Path(f"/proc/{pid_file.read_text()}").exists()

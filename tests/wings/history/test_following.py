"""A source that grows is completed, whatever was there of it at each look, and nothing comes twice."""

from __future__ import annotations

import gzip
import os
import random
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.wings.history.test_places import ALL, AS_IT_RUNS, GOLDEN, add, curve, needs
from tests.wings.history.worlds import HEADER, ImportWorld, import_world, row
from tracks_dagster.track.errors import InvalidInput, LedgerError, StoreUnavailable
from tracks_dagster.wings.history.edge import imports
from tracks_dagster.wings.history.effects.importing import Imported

# `--full` draws other cuts each time.
SEED = int(os.environ.get("FOLLOW_SEED") or os.environ.get("TRACKS_DRAW_SEED") or 1)
# Orders in which a cut file had more characters than the whole one: half a heading of Ray's error.txt,
# and a meta.yaml of an experiment of MLflow that ends before its name. In the last two an error.txt of
# Ray is there before any report.
FOUND = [("ray", 36), ("ray", 43), ("mlflow", 47), ("mlflow", 49)]
FOUND += [("ray", 1795997611), ("ray-tune", 1795997611)]
LOOKS = 6
WRITER = """
import sqlite3, sys
opened = sqlite3.connect(sys.argv[1], isolation_level=None)
opened.execute("begin immediate")
opened.execute("update runs set status='FINISHED', end_time=start_time+9 where status='RUNNING'")
print("changed", flush=True)
sys.stdin.readline()
opened.execute("commit")
print("committed", flush=True)
"""


def of_runs(world: ImportWorld) -> object:
    """Return what the ledger has of runs, whichever imports it came by."""
    dump = world.ledger.dump()
    return {table: rows for table, rows in dump.items() if table not in ("track_cursors", "texts")}


def looks(source: Path, copy: Path, drawn: random.Random) -> Iterator[None]:
    """Copy a file or folder in pieces that end anywhere, and stop after each; the last is the end."""
    files = [source] if source.is_file() else [p for p in source.rglob("*") if p.is_file()]
    missing = {path: path.read_bytes() for path in sorted(files)}
    while missing:
        for path in drawn.sample(sorted(missing), min(len(missing), 1 + len(files) // LOOKS)):
            data = missing[path]
            size = drawn.choice([len(data), drawn.randrange(len(data) + 1)])
            to = copy if source.is_file() else copy / path.relative_to(source)
            to.parent.mkdir(parents=True, exist_ok=True)
            to.write_bytes(data[:size])
            if size == len(data):
                del missing[path]
        yield


@pytest.mark.parametrize(("system", "seed"), [*((each, SEED) for each in ALL), *FOUND])
def test_a_source_that_grows_ends_as_one_that_was_whole(
    tmp_path: Path, system: str, seed: int
) -> None:
    """Each look finds files cut anywhere, or not there yet. SEED is FOLLOW_SEED."""
    needs(system)
    drawn = random.Random(f"{seed} {system}")
    whole, grown = import_world(tmp_path, "whole"), import_world(tmp_path, "grown")
    source, copy = GOLDEN / ALL[system], tmp_path / "growing" / Path(ALL[system]).name
    for _ in looks(source, copy, drawn):
        try:
            add(grown, system, copy)
        except InvalidInput:
            continue  # as a database that is not whole; `--follow` looks again
    done = add(grown, system, copy)
    assert (done.new, done.grown, done.bad) == (0, 0, []), f"FOLLOW_SEED={seed}"
    add(whole, system, copy)
    assert of_runs(grown) == of_runs(whole), f"FOLLOW_SEED={seed}"


def test_a_run_that_goes_on_shows_its_new_points(tmp_path: Path) -> None:
    world, copy = import_world(tmp_path), tmp_path / "mlruns"
    shutil.copytree(GOLDEN / ALL["mlflow"], copy)
    add(world, "mlflow", copy)
    run_id = world.ledger.query(
        "select run_id from training_runs where model_family = 'gpt / finished'"
    )[0]["run_id"]
    before = curve(world, run_id, "val/accuracy")
    (path,) = (p for p in copy.rglob("metrics/val/accuracy") if "0.4" in p.read_text())
    newest_ms = int(path.read_text().split()[-3])
    with path.open("a") as file:
        file.write(f"{newest_ms + 1000} 0.5 5\n{newest_ms + 2000} 0.62")
    done = add(world, "mlflow", copy)
    assert ([each.why for each in done.bad], done.new) == (
        ["its line has no end: it is cut, or still being written"],
        0,
    )
    assert curve(world, run_id, "val/accuracy") == {**before, 2: [*before[2], (5, 0.5)]}
    with path.open("a") as file:
        file.write("5 6\n")
    assert add(world, "mlflow", copy).grown > 0
    assert curve(world, run_id, "val/accuracy") == {**before, 2: [*before[2], (5, 0.5), (6, 0.625)]}
    assert add(world, "mlflow", copy).grown == 0


def test_a_job_whose_steps_were_cut_off_is_judged_again_once_they_are_there(tmp_path: Path) -> None:
    world = import_world(tmp_path)
    job = row(7, State="FAILED", ExitCode="1:0")
    step = row(7, JobIDRaw="7.0", JobID="7.0", State="OUT_OF_MEMORY", ExitCode="0:125")
    for lines, reason, grown in (
        ([HEADER, job], "unknown", 0),
        ([HEADER, job, step], "host_oom", 1),
        ([HEADER, job], "host_oom", 0),
        ([HEADER, job, step], "host_oom", 0),
    ):
        assert world.add(lines).grown == grown
        assert world.runs() == {"slurm.7": [reason]}


def test_a_database_that_another_process_writes_is_read_as_it_was_committed(tmp_path: Path) -> None:
    world, copy = import_world(tmp_path), tmp_path / "mlflow.db"
    shutil.copy(GOLDEN / ALL["mlflow-db"], copy)
    with sqlite3.connect(copy) as opened:
        opened.execute("pragma journal_mode=wal")
    command = [sys.executable, "-c", WRITER, str(copy)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdout is not None
        assert writer.stdin is not None
        assert writer.stdout.readline() == "changed\n"
        done = add(world, "mlflow-db", copy, now=AS_IT_RUNS)
        assert (done.new, done.not_ended) == (4, 1)
        writer.stdin.write("\n")
        writer.stdin.flush()
        assert writer.stdout.readline() == "committed\n"
        done = add(world, "mlflow-db", copy, now=AS_IT_RUNS)
        assert (done.new, done.grown, done.not_ended) == (1, 0, 0)


def test_follow_waits_for_a_source_that_comes_later_or_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACKS_HOME", str(tmp_path / "home"))
    copy, away = tmp_path / "mlruns", tmp_path / "away"
    steps = iter(
        (
            lambda: shutil.copytree(GOLDEN / ALL["mlflow"], copy),
            lambda: copy.rename(away),
            lambda: away.rename(copy),
        )
    )

    def sleep(seconds: float) -> None:
        step = next(steps, None)
        if step is None:
            raise KeyboardInterrupt
        step()

    monkeypatch.setattr(imports.time, "sleep", sleep)
    found = CliRunner().invoke(
        imports.import_command, ["mlflow", str(copy), "--follow", "--every", "10s"]
    )
    lines = [line.split(" from ")[0] for line in found.output.splitlines()]
    looked = [each for each in lines if each.startswith(("Imported", "Not read"))]
    away_words = f"Not read: There is no file {copy}. It is read again in 10 s."
    assert looked == [
        away_words,
        "Imported 5 attempts of 4 runs",
        away_words,
        "Imported 0 attempts of 0 runs",
    ]


def test_a_packed_file_that_was_copied_half_is_completed_by_the_next_import(tmp_path: Path) -> None:
    world, path = import_world(tmp_path), tmp_path / "jobs.txt.gz"
    lines = "\n".join([HEADER, *(row(n, hour=n) for n in range(3000)), ""])
    whole = gzip.compress(lines.encode(), mtime=0)
    path.write_bytes(whole[: len(whole) // 2])
    done = world.add_file(path)
    (bad,) = done.bad
    assert 0 < done.new < 3000
    assert "is cut or damaged" in bad.why
    path.write_bytes(whole)
    assert done.new + world.add_file(path).new == 3000


@pytest.mark.parametrize("spoilt", [b"", b"\xff" * 40], ids=["cut", "damaged"])
def test_a_packed_file_without_a_whole_line_is_named(tmp_path: Path, spoilt: bytes) -> None:
    path = tmp_path / "jobs.txt.gz"
    path.write_bytes(gzip.compress(HEADER.encode(), mtime=0)[:20] + spoilt)
    with pytest.raises(InvalidInput, match=r"jobs\.txt\.gz is cut or damaged"):
        import_world(tmp_path).add_file(path)


@pytest.mark.parametrize("error", [StoreUnavailable, LedgerError])
def test_follow_goes_on_after_a_moment_without_the_store_or_the_ledger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    monkeypatch.setenv("TRACKS_HOME", str(tmp_path / "home"))
    real, sleeps = imports.import_history, iter((lambda: None,))

    def import_history(*args: Any, **how: Any) -> Imported:
        monkeypatch.setattr(imports, "import_history", real)
        raise error("It is away.")

    def sleep(seconds: float) -> None:
        if next(sleeps, None) is None:
            raise KeyboardInterrupt

    monkeypatch.setattr(imports, "import_history", import_history)
    monkeypatch.setattr(imports.time, "sleep", sleep)
    path = tmp_path / "jobs.txt"
    path.write_text("\n".join([HEADER, row(7), ""]))
    found = CliRunner().invoke(imports.import_command, ["slurm", str(path), "--follow"])
    assert "Not read: It is away. It is read again in 60 s." in found.output
    assert "Imported 1 attempt of 1 run" in found.output


def test_a_database_that_nobody_writes_is_read_without_a_file_beside_it(tmp_path: Path) -> None:
    copy = tmp_path / "mlflow.db"
    shutil.copy(GOLDEN / ALL["mlflow-db"], copy)
    with closing(sqlite3.connect(copy)) as opened:
        opened.execute("pragma journal_mode=wal")
    assert add(import_world(tmp_path), "mlflow-db", copy).new > 0
    assert sorted(each.name for each in tmp_path.glob("mlflow.db*")) == ["mlflow.db"]

"""Histories are imported once, whole, in whatever order; and nothing acts on what was imported."""

from __future__ import annotations

import random
from datetime import timedelta
from functools import partial
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from tests.wings.history.worlds import BEGIN, HEADER, ImportWorld, import_world, row
from tracks_dagster.ledger import track_states
from tracks_dagster.ledger.effects.projector import Projector
from tracks_dagster.retry.effects import due
from tracks_dagster.review.effects.daily import review_day
from tracks_dagster.scheduling.effects.usage import read_usage
from tracks_dagster.track import imported
from tracks_dagster.track.bodies import Note
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.names import RETRY_PREEMPTED
from tracks_dagster.track.records import Kind, parse
from tracks_dagster.track.states import run_fold
from tracks_dagster.track.states.lifecycle import RunLifecycle
from tracks_dagster.track.text.redact import HIDDEN, redact, secrets_of
from tracks_dagster.wings.history.slurm_lines import SlurmLines

ROWS = [
    row(7, hour=0, State="PREEMPTED"),
    row(7, hour=2, State="NODE_FAIL", NodeList="n[3-4]"),
    row(7, hour=4),
    row(8, hour=1, State="CANCELLED by 1001"),
    row(9, hour=3, State="TIMEOUT"),
]
REASONS = {
    "slurm.7": ["preempted", "node_failure", "completed"],
    "slurm.8": ["user_cancelled"],
    "slurm.9": ["walltime_timeout"],
}


@pytest.fixture
def world(tmp_path: Path) -> ImportWorld:
    """An empty home."""
    return import_world(tmp_path)


def test_each_time_that_a_job_ran_is_an_attempt_of_its_run(world: ImportWorld) -> None:
    done = world.add([HEADER, *ROWS])
    assert (done.new, len(done.runs)) == (5, 3)
    assert world.runs() == REASONS
    state = world.tracks.run("slurm.7")
    assert [a.opened.cause for a in state.attempts] == ["first", "retry", "retry"]
    assert [a.ended and a.ended.device_seconds for a in state.attempts] == [16 * 3600.0] * 3


def test_importing_again_appends_nothing(world: ImportWorld) -> None:
    world.add([HEADER, *ROWS])
    before = world.ledger.dump()
    done = world.add([HEADER, *ROWS])
    assert (done.new, done.known) == (0, 5)
    assert world.ledger.dump() == before


def test_what_is_new_is_added(world: ImportWorld) -> None:
    world.add([HEADER, *ROWS[:2], row(7, hour=4, State="RUNNING", End="Unknown")])
    assert world.runs() == {"slurm.7": REASONS["slurm.7"][:2]}
    assert (world.add([HEADER, *ROWS]).new, world.runs()) == (3, REASONS)


def test_a_job_that_is_printed_with_other_columns_is_the_same(world: ImportWorld) -> None:
    world.add([HEADER, row(7, Cluster="")])
    assert (world.add([HEADER, row(7, Cluster="c")]).new, world.runs()) == (
        0,
        {"slurm.7": ["completed"]},
    )


@pytest.mark.parametrize("hours", [0.1, 10.0])
def test_a_job_whose_times_are_read_in_another_zone_is_named_and_left_out(
    world: ImportWorld, hours: float
) -> None:
    line = row(7, hours=hours)
    in_paris = SlurmLines(zone=ZoneInfo("Europe/Paris"), seen_at=BEGIN).read
    world.add([HEADER, line])
    done = world.add([HEADER, line], parse=in_paris)
    assert (done.new, len(done.bad), world.runs()) == (0, 1, {"slurm.7": ["completed"]})
    assert "give the same --timezone" in done.bad[0].why
    world.add([HEADER, row(8), row(7, hour=20.05)])  # another one, in the right zone
    assert world.runs() == {"slurm.7": ["completed"] * 2, "slurm.8": ["completed"]}


@pytest.mark.parametrize("seed", range(6))
def test_pieces_in_any_order_give_the_same_runs(tmp_path: Path, seed: int) -> None:
    whole, pieces = import_world(tmp_path, "whole"), import_world(tmp_path, "pieces")
    whole.add([HEADER, *ROWS])
    drawn = random.Random(seed)
    shuffled = drawn.sample(ROWS, len(ROWS))
    at = drawn.randrange(1, len(ROWS))
    for part in (shuffled[:at], shuffled[at:], shuffled):
        pieces.add([HEADER, *part])
    assert _of_runs(pieces) == _of_runs(whole)
    before = pieces.ledger.dump()
    Projector(pieces.store, pieces.ledger).reindex(forgets_lost=False)
    assert pieces.ledger.dump() == before


def _of_runs(world: ImportWorld) -> object:
    dump = world.ledger.dump()
    return {table: rows for table, rows in dump.items() if table not in ("track_cursors", "texts")}


def test_the_records_of_an_imported_run_say_what_its_rows_say(world: ImportWorld) -> None:
    world.add([HEADER, *ROWS])
    records = world.tracks.records("runs/slurm.7")
    assert [each.kind for each in records][-1] is Kind.RUN_FINISHED
    folded = run_fold.fold(records)
    assert folded is not None
    attempts = world.store._histories.run("slurm.7")
    assert track_states.run_rows(folded) == track_states.run_rows(imported.state_of(attempts))
    stored = imported.records_of(attempts)
    assert [parse(data, seq=seq) for seq, data in enumerate(stored)] == records


def test_an_imported_run_has_the_name_that_it_had_there(world: ImportWorld) -> None:
    world.add([HEADER, row(7, JobName="gpt-wide")])
    called = world.ledger.query("select run_id, called from training_runs")
    assert called == [{"run_id": "slurm.7", "called": "gpt-wide"}]


def test_the_row_that_was_read_is_the_evidence(world: ImportWorld) -> None:
    world.add([HEADER, ROWS[0]])
    ended = world.tracks.run("slurm.7").attempts[0].ended
    assert ended is not None
    evidence = world.store.get(ended.evidence_key)
    assert b'"JobName":"train"' in (evidence or b"")
    assert b"PREEMPTED" in (evidence or b"")


def test_a_secret_on_a_command_line_is_not_stored(world: ImportWorld) -> None:
    secret = "sk-abcdefghijklmnopqrstuvwxyz0123456789ABCDEFGH"
    world.add([HEADER, row(1, SubmitLine=f"sbatch --export=OPENAI_API_KEY={secret} run.sh")])
    ended = world.tracks.run("slurm.1").attempts[0].ended
    assert ended is not None
    evidence = world.store.get(ended.evidence_key)
    assert evidence is not None
    assert secret.encode() not in evidence


@pytest.mark.parametrize(
    "column",
    [
        {"SubmitLine": "sbatch --pw=Xk29fLq8Tz7"},
        {"JobName": "Xk29fLq8Tz7"},
        {"WorkDir": "/data/Xk29fLq8Tz7"},
        {"JobName": "hf_Ab3dEf6hIj9lMn2p"},
    ],
)
def test_a_short_secret_in_any_column_is_not_stored(
    world: ImportWorld, monkeypatch: pytest.MonkeyPatch, column: dict[str, str]
) -> None:
    clean = partial(redact, secrets=secrets_of({"DB_PASSWORD": "Xk29fLq8Tz7"}))
    monkeypatch.setattr(world.tracks, "clean", clean)
    world.add([HEADER, row(1, **column)])
    ended = world.tracks.run("slurm.1").attempts[0].ended
    assert ended is not None
    evidence = world.store.get(ended.evidence_key) or b""
    assert HIDDEN.encode() in evidence
    assert b"Xk29fLq8Tz7" not in evidence
    assert b"hf_Ab3d" not in evidence


def test_a_dry_run_writes_nothing(world: ImportWorld) -> None:
    done = world.add([HEADER, *ROWS], dry_run=True)
    assert (done.new, world.runs(), list(world.store.list(""))) == (5, {}, [])


def test_a_history_may_not_be_called_as_runs_of_ones_own_begin(world: ImportWorld) -> None:
    world.store.below.create("runs/slurm.x/log/000000000000.json", b"{}")
    with pytest.raises(InvalidInput, match="Give another --name"):
        world.add([HEADER, *ROWS])


# --- nothing of ours acts on it -------------------------------------------------------------------


def test_who_writes_to_an_imported_run_is_refused(world: ImportWorld) -> None:
    world.add([HEADER, *ROWS])
    draft = world.tracks.draft(Kind.NOTE, Note(by="me", text="x"))
    with pytest.raises(InvalidInput, match=r"slurm\.7 was imported from slurm"):
        world.tracks.note_run("slurm.7", draft)
    for write in (world.store.create, world.store.put):
        with pytest.raises(InvalidInput):
            write("runs/slurm.7/attempts/1/evidence/x.json", b"{}")
    with pytest.raises(InvalidInput):
        world.store.delete("runs/slurm.7/log/000000000000.json")


def test_no_imported_run_is_due_for_anybody(world: ImportWorld) -> None:
    world.add([HEADER, *ROWS])
    ledger = world.ledger
    assert world.tracks.run("slurm.7").finished is not None
    states = {each["state"] for each in ledger.query("select state from training_runs")}
    assert states == {RunLifecycle.IMPORTED.value}
    assert due.runs_between_attempts(ledger, None) == []
    assert due.runs_with_open_attempts(ledger) == due.runs_without_attempts(ledger) == []
    assert due.runs_with_evals(ledger) == due.runs_with_open_evals(ledger) == []
    assert due.runs_of_a_person(ledger) == []
    assert RETRY_PREEMPTED  # its decider asks `runs_between_attempts`


def test_an_imported_end_that_nobody_knows_asks_for_no_person(world: ImportWorld) -> None:
    world.add([HEADER, row(1, State="FAILED", ExitCode="3:0")])
    assert world.runs() == {"slurm.1": ["unknown"]}
    day = review_day(world.ledger, BEGIN.date(), now=BEGIN + timedelta(days=2))
    assert (len(list(day.reasons)), day.unexplained_count) == (1, 0)


def test_imported_time_counts_against_no_quota(world: ImportWorld) -> None:
    world.add([HEADER, *ROWS])
    assert world.ledger.query("select count(*) as n from attempt_facts")[0]["n"] == 5
    usage = Path(read_usage.__code__.co_filename).parent / "sql"
    for name in ("usage_today.sql", "usage_shares.sql"):
        sql = (usage / name).read_text(encoding="utf-8")
        assert world.ledger.query(sql, {"since_us": 0, "now_us": 2**60}) == []

"""One suite over both ledgers: full-text search gives the same hits in the same order."""

from __future__ import annotations

import os
from datetime import timedelta
from random import Random

import pytest

from tests.bodies import BEGIN
from tests.fakes import FakeClock, FakeObjectStore, SequentialUids
from tests.histories import DatasetHistory, History
from tests.stories import RUN_ID, Story
from tracks_dagster.ledger.effects.database.sql_ledger import SqlLedger
from tracks_dagster.ledger.effects.projector import Projector
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.ledger.texts import parse_question, text_rows
from tracks_dagster.recovery.effects.fsck import fsck
from tracks_dagster.review.effects.comparing import compare_named
from tracks_dagster.review.effects.search import Scope, search_deep
from tracks_dagster.training.saves.manifest import verify_checkpoint

SEED = int(os.environ.get("SEARCH_SEED", "7"))
VOCABULARY = (
    "NCCL",
    "timed",
    "out",
    "Über",
    "été",
    "学習",
    "rank_3",
    "e5",
    "0x1f",
    "%",
    "a-b",
    "'",
)


def found(ledger: SqlLedger, text: str, **scope: object) -> list[tuple[str, int]]:
    rows = ledger.search(parse_question(text).phrases, **{"limit": 100, **scope})
    return [(row["track"], row["seq"]) for row in rows]


@pytest.fixture
def filled(ledger: SqlLedger, store: FakeObjectStore) -> SqlLedger:
    """Two runs and a dataset, which say a few things; r-2 an hour later."""
    first = History("r-1").declare(intent="Does a wider model learn faster?").open()
    first.note("NCCL timed out on rank_3.", attempt_id=1).note("It timed, then it went out.")
    second = History("r-2", begin=BEGIN + timedelta(hours=1)).declare(intent="Too wide?")
    second.note("Der Überlauf war's: 100% voll — 学習が止まった")
    data = DatasetHistory().declare().note("A wider net of sources.")
    for history in (first, second, data):
        history.write_to(store)
    Projector(store, ledger).scan()
    return ledger


QUESTIONS = {
    "wider": [("runs/r-1", 0), ("datasets/aws-docs", 1)],
    "WIDER model": [("runs/r-1", 0)],
    "timed out": [("runs/r-1", 3), ("runs/r-1", 2)],
    '"timed out"': [("runs/r-1", 2)],
    "rank_3": [("runs/r-1", 2)],
    "rank 3": [("runs/r-1", 2)],
    "überlauf": [("runs/r-2", 1)],
    "uberlauf": [],
    "学習が止まった": [("runs/r-2", 1)],
    "100%": [("runs/r-2", 1)],
    "wide": [("runs/r-2", 0)],  # whole words only
    "nothing of this": [],
    "' or 1=1 --": [],
    'a" OR "wider': [],
    "wider NOT model": [],
    "wid*": [],
}


@pytest.mark.parametrize("text", QUESTIONS)
def test_a_question_finds_the_records_that_meet_it_the_newest_first(
    filled: SqlLedger, text: str
) -> None:
    assert sorted(found(filled, text)) == sorted(QUESTIONS[text])
    times = [row["said_at"] for row in filled.search(parse_question(text).phrases, limit=100)]
    assert times == sorted(times, reverse=True)


def test_a_search_is_narrowed_by_run_attempt_time_and_count(filled: SqlLedger) -> None:
    assert found(filled, "timed", run_id="r-1", attempt_id=1) == [("runs/r-1", 2)]
    assert found(filled, "timed", run_id="r-2") == []
    assert found(filled, "wide", since=BEGIN + timedelta(minutes=30)) == [("runs/r-2", 0)]
    assert found(filled, "wider", since=BEGIN + timedelta(minutes=30)) == []
    assert found(filled, "timed", limit=1) == [("runs/r-1", 3)]


def test_a_ledger_that_is_cleared_and_filled_again_finds_the_same_once(
    filled: SqlLedger, store: FakeObjectStore
) -> None:
    before = {text: found(filled, text) for text in QUESTIONS}
    for track in {track for hits in before.values() for track, _ in hits}:
        filled.forget(track)
    assert all(found(filled, text) == [] for text in QUESTIONS)
    Projector(store, filled).scan()
    Projector(store, filled).reindex()
    assert {text: found(filled, text) for text in QUESTIONS} == before


def test_rows_that_are_projected_again_are_found_once(filled: SqlLedger) -> None:
    history = History("r-1").declare(intent="Does a wider model learn faster?")
    rows = text_rows(history.name, history.records)
    cursor = filled.cursor("runs/r-1")
    assert cursor is not None
    assert filled.apply("runs/r-1", expected=cursor, advanced=cursor, rows={"texts": rows})
    assert found(filled, "wider model") == [("runs/r-1", 0)]


def test_evidence_and_manifests_are_found_on_both_databases(
    ledger: SqlLedger, store: FakeObjectStore
) -> None:
    story = Story(store).whole()
    Projector(store, ledger).scan()
    question, since = parse_question("traceback"), story.history.state.attempts[1].opened_at
    for scope, attempts in (
        (Scope(), [2, 1]),
        (Scope(run_id=RUN_ID, attempt_id=1), [1]),
        (Scope(since=since), [2]),
    ):
        found = search_deep(ledger, store, question, scope)
        assert [hit.attempt_id for hit in found.hits] == attempts
    assert fsck(store, ledger, verify_checkpoint).findings == ()
    sha256 = story.history.state.checkpoints[0].ref.manifest_sha256
    tracks = Tracks(store, now=FakeClock(), new_uid=SequentialUids(), project=lambda name: None)
    result = compare_named(tracks, lambda: ledger, sha256[:12], f"{RUN_ID}@20")
    assert result.a == f"{RUN_ID}@10 (attempt 1)"


def test_both_databases_answer_as_the_words_themselves_do(
    ledger: SqlLedger, store: FakeObjectStore
) -> None:
    print(f"SEARCH_SEED={SEED}")
    random = Random(SEED)
    history = History().declare(intent="begin")
    for _ in range(60):
        history.note(" ".join(random.choices(VOCABULARY, k=random.randint(1, 6))) + " .")
    history.write_to(store)
    Projector(store, ledger).scan()
    texts = {row["seq"]: row["text"] for row in text_rows(history.name, history.records)}
    for _ in range(60):
        words = " ".join(random.choices(VOCABULARY, k=random.randint(1, 3))) + " out"
        text = f'"{words}"' if random.random() < 0.5 else words
        question = parse_question(text.replace("'", ""))
        expected = [seq for seq in sorted(texts, reverse=True) if question.is_met_by(texts[seq])]
        rows = ledger.search(question.phrases, limit=100)
        assert [row["seq"] for row in rows] == expected, text

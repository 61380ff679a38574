"""Any record that a store may hold, forged ones too: what cannot be taken in is named, and stops
nothing else. The seed of a failure stands in the test's name.
"""

from __future__ import annotations

import json
import logging
from contextlib import nullcontext, suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.fakes import FakeClock, FakeObjectStore, SequentialUids
from tests.histories import History
from tests.pools import PoolHistory
from tests.random_histories import random_dataset, random_run
from tests.reports import render_report
from tests.seeds import fresh_seeds
from tracks_dagster.attempts.effects.notes import note
from tracks_dagster.ledger.effects.database import open_ledger
from tracks_dagster.ledger.effects.database.sql_ledger import SqlLedger
from tracks_dagster.ledger.effects.projector import Projector
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.recovery.effects.fsck import fsck
from tracks_dagster.review.effects.explain.run import explain_run
from tracks_dagster.review.effects.status import read_status
from tracks_dagster.review.explain.text import run_text
from tracks_dagster.track.errors import TrackBroken, TracksError
from tracks_dagster.track.records import Json, sha256_hex
from tracks_dagster.track.track import log_key

SEEDS, FRESH = 15, 300  # of one test
FORGED_MAX = 3  # records in a row
WHOLE = "a-whole-run"  # the run that a forged one must not touch

TEXTS = (
    "",
    " ",
    "\ud800",
    "caf\udce9",
    "a\0b",
    "\x1b[2J\u202e\x9b\r\n",
    "x" * 9000,
    "🚀" * 700,
    "=",
    "..",
)
NUMBERS = (0, -1, 2**31, 2**53 + 1, 2**63 - 1, -(2**63), 0.0, -0.5, 1e308, -1e308, 5e-324)
WRONG = (2**63, 10**30, -(2**63) - 1, 1e309, True, None, [], {}, [[]], {"a": {"b": []}}, "text", 7)
TIMES = (
    "0001-01-01T00:00:00.000000Z",
    "0001-01-01T00:00:00+14:00",  # in UTC it is before the first year
    "9999-12-31T23:59:59.999999Z",
    "9999-12-31T23:59:59-14:00",
    "2026-06-30T23:59:60.000000Z",  # a leap second
    "yesterday",
    "",
)


def forged(rng: Random, value: Json) -> Json:
    """Return another JSON value, most often of the same type."""
    if rng.random() < 0.15:
        return rng.choice(WRONG)
    if isinstance(value, dict) and value:
        key = rng.choice(sorted(value))
        if rng.random() < 0.1:
            return {name: each for name, each in value.items() if name != key}
        return {**value, key: forged(rng, value[key])}
    if isinstance(value, list) and value:
        at = rng.randrange(len(value))
        return [*value[:at], forged(rng, value[at]), *value[at + 1 :]] * rng.choice((1, 1, 2))
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return rng.choice(NUMBERS)
    if isinstance(value, str):
        return rng.choice(TIMES if value.endswith("Z") else TEXTS)
    return rng.choice((*TEXTS, *NUMBERS, *TIMES))


def forge(rng: Random, store: FakeObjectStore) -> tuple[str, int]:
    """Write a legal track and some forged records at its end; return its name and their first seq."""
    history: Any = rng.choice(
        (
            lambda: random_run(rng, records_max=25),
            lambda: random_run(rng, records_max=25),
            lambda: random_dataset(rng, "text"),
            lambda: PoolHistory().strike("n-1").quarantine("n-1").release("n-1"),
        )
    )()
    known = [json.loads(data) for data in history.stored]
    first = rng.randrange(len(known))
    history.write_to(store, count=first)
    prev_sha256 = history.records[first - 1].sha256 if first else None
    for seq in range(first, first + rng.randrange(1, FORGED_MAX + 1)):
        model = known[seq] if seq < len(known) and rng.random() < 0.7 else rng.choice(known)
        stored = {**model, "seq": seq, "prev_sha256": prev_sha256, "uid": f"{seq:032x}"}
        for _ in range(rng.randrange(1, 4)):
            stored["body"] = forged(rng, stored["body"])
        if rng.random() < 0.05:
            stored["at"] = rng.choice(TIMES)
        if rng.random() < 0.05:
            stored["attempt_id"] = rng.choice((*NUMBERS, *WRONG))
        data = json.dumps(stored, allow_nan=True).replace("1e+309", "1e309").encode()
        store.put(log_key(history.name, seq), data)
        prev_sha256 = sha256_hex(data)
    return history.name, first


def check(seed: int, ledger: SqlLedger, caplog: pytest.LogCaptureFixture) -> None:
    """Forge a track beside a whole one, and ask everything that looks at tracks about both."""
    rng, store = Random(seed), FakeObjectStore()
    whole = History(WHOLE).declare().open().place().restore().commit(10)
    whole.write_to(store)
    track, first = forge(rng, store)
    projector = Projector(store, ledger)
    clock = FakeClock()
    tracks = Tracks(store, now=clock, new_uid=SequentialUids(), project=projector.project)
    result: list[str] = []
    try:
        projector.scan()
    except TrackBroken as error:
        result.append(str(error))
    taken_in = {row["track"] for row in ledger.query("select track from track_cursors")}
    assert whole.name in taken_in
    assert first == 0 or track in taken_in
    run_id = track.removeprefix("runs/")
    for each in (WHOLE, *((run_id,) if run_id != track else ())):
        with suppress(TrackBroken) if (each, first) == (run_id, 0) else nullcontext():
            text, page = run_text(explain_run(tracks, each)), render_report(tracks, each)
            assert (text + page).encode()
        caplog.clear()
        with nullcontext() if each == WHOLE else suppress(TracksError):
            note(tracks, each, attempt_id=None, by="ann", text="It was looked at.")
        assert each == run_id or not caplog.records
    read_status(tracks, ledger)
    found = fsck(store, ledger, lambda *_: None).findings
    result += [f"{finding.meaning} {finding.to_do}" for finding in found]
    result += projector.reindex().problems
    assert {row["track"] for row in ledger.query("select track from track_cursors")} == taken_in
    assert not [each for each in result if "nobody foresaw" in each]
    assert "\n".join(result).encode()


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_forged_record_is_named_and_stops_nothing_else(
    seed: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    check(seed, open_ledger(f"sqlite:///{tmp_path / 'ledger.db'}"), caplog)


@pytest.mark.parametrize("seed", range(0, SEEDS, 5))
def test_a_forged_record_is_named_and_stops_nothing_else_on_postgres(
    seed: int, postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    check(seed, open_ledger(postgres_url), caplog)


@pytest.mark.full
@pytest.mark.drawn(1)
@pytest.mark.timeout(1800)  # a minute each of an idle core
@pytest.mark.parametrize("part", range(4))
def test_thousands_of_forged_records_stop_nothing_else(
    part: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ledger = open_ledger(f"sqlite:///{tmp_path / 'ledger.db'}")
    for seed in fresh_seeds(FRESH):
        logging.getLogger(__name__).info("seed %d", seed)
        check(seed, ledger, caplog)
        for row in ledger.query("select track from track_cursors"):
            ledger.forget(row["track"])

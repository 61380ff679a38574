"""Rounds of eight writers at one place: `python -m tests.real.races URL SEED ROUNDS`.

A process of its own, warm and with one thread, that forks the writers once; all of them begin each
round at a barrier. Every round is a run of its own in one store, and one of `RACES`, in turn. Prints
what happened as JSON.
"""

from __future__ import annotations

import json
import multiprocessing
import random
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from multiprocessing.synchronize import Barrier
from typing import Any

from tests.bodies import ended, placed
from tests.histories import History
from tracks_dagster.stores import open_store
from tracks_dagster.track.append import Authority
from tracks_dagster.track.bodies import Note
from tracks_dagster.track.body_json import to_json
from tracks_dagster.track.errors import Fenced, InvalidDecision
from tracks_dagster.track.names import run_track
from tracks_dagster.track.ports import ObjectStore
from tracks_dagster.track.records import Draft, Kind, Record, seal
from tracks_dagster.track.states import run_fold
from tracks_dagster.track.track import Track, log_key, read_records
from tracks_dagster.track.trainer_track import TrainerTrack
from tracks_dagster.wiring import utc_now

PROCESSES = multiprocessing.get_context("fork")
WRITERS = 8
ROUND_S_MAX = 60.0
OPENED_SEQ = 1
FREE_SEQ = 2  # the first place after `run_declared` and `attempt_opened`

Race = Callable[[ObjectStore, str, str], bool]


def create(store: ObjectStore, run_id: str, who: str) -> bool:
    """All create the same record: one learns that it did."""
    [opened] = list(read_records(store, run_track(run_id)))[-1:]
    data = seal(_note(who), seq=FREE_SEQ, at=utc_now(), prev_sha256=opened.sha256)
    return store.create(log_key(run_track(run_id), FREE_SEQ), data)


def decide(store: ObjectStore, run_id: str, who: str) -> bool:
    """All decide to end the attempt: one does, the others find that nothing is left to do."""

    def end(records: list[Record]) -> Draft | None:
        body = to_json(ended("hang", closed_by=who))
        draft = Draft(uid=who, kind=Kind.ATTEMPT_ENDED, body=body, attempt_id=1)
        try:
            return run_fold.check(run_fold.fold(records), draft)
        except InvalidDecision:
            return None

    return Track(store, run_track(run_id), now=utc_now).decide(end) is not None


def place(store: ObjectStore, run_id: str, who: str) -> bool:
    """All are launches of one attempt: one is placed, the others are fenced."""
    authority = Authority(attempt_id=1, launch_id=who)
    track = TrainerTrack(
        store, run_track(run_id), opened_seq=OPENED_SEQ, authority=authority, now=utc_now
    )
    body = to_json(placed(who))
    try:
        track.append(Draft(uid=who, kind=Kind.ATTEMPT_PLACED, body=body, attempt_id=1))
    except Fenced:
        return False
    return True


def note(store: ObjectStore, run_id: str, who: str) -> bool:
    """All leave a note: every one lands, at a place of its own; the winner has the first."""
    return Track(store, run_track(run_id), now=utc_now).note(_note(who)).seq == FREE_SEQ


def _note(who: str) -> Draft:
    return Draft(uid=who, kind=Kind.NOTE, body=to_json(Note(by=who, text="")))


RACES: tuple[Race, ...] = (create, decide, place, note)
RECORDS: dict[Race, int] = {create: 1, decide: 1, place: 1, note: WRITERS}


def write(url: str, who: str, seed: int, rounds: int, barrier: Barrier, answers: Any) -> None:
    """Be one writer in every round; answer with the rounds won, or with what went wrong."""
    try:
        store = open_store(url, probe=False)
        rng = random.Random(f"{seed} {who}")
        won = []
        for number in range(rounds):
            barrier.wait(ROUND_S_MAX)
            time.sleep(rng.random() * 0.002)  # so that not always the same one is first
            if RACES[number % len(RACES)](store, f"r-{number}", who):
                won.append(number)
        answers.put((who, won))
    except Exception:  # noqa: BLE001 the parent says it
        barrier.abort()
        answers.put((who, traceback.format_exc()))


def main(url: str, seed: int, rounds: int) -> None:
    """Play the rounds, and check each of them."""
    began = time.monotonic()
    store = open_store(url)
    for number in range(rounds):
        History(f"r-{number}").declare().open().write_to(store)
    barrier, answers = PROCESSES.Barrier(WRITERS), PROCESSES.SimpleQueue()
    names = [f"writer-{number}" for number in range(WRITERS)]
    writers = [
        PROCESSES.Process(target=write, args=(url, name, seed, rounds, barrier, answers))
        for name in names
    ]
    for writer in writers:
        writer.start()
    won = dict(answers.get() for _ in writers)
    for writer in writers:
        writer.join()
    failed = [text for text in won.values() if isinstance(text, str)]
    assert not failed, "\n".join(failed)
    winners: Counter[str] = Counter()
    for number in range(rounds):
        winners[check(store, number, [name for name in names if number in won[name]])] += 1
    print(json.dumps({"winners": winners, "seconds": round(time.monotonic() - began, 1)}))


def check(store: ObjectStore, number: int, winners: list[str]) -> str:
    """Return who won; AssertionError unless it was one, and the track says the same."""
    race = RACES[number % len(RACES)]
    records = list(read_records(store, run_track(f"r-{number}")))  # checks the chain, too
    run_fold.fold(records)
    written = [record.uid for record in records[FREE_SEQ:]]
    shown = f"round {number} ({race.__name__}): {winners} won, {written} stand in the track"
    assert len(winners) == 1, shown
    assert written[0] == winners[0], shown
    assert len(set(written)) == len(written) == RECORDS[race], shown
    return winners[0]


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))

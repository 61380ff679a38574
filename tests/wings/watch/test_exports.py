"""What a tracker is sent of a run, and what is taken back: by a track alone."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import pytest

from tests.histories import History
from tracks_dagster.track.bodies import ConfigChange
from tracks_dagster.track.media import Logged
from tracks_dagster.track.records import Kind
from tracks_dagster.wings.watch.exports import (
    NOTHING_SENT,
    ROLLBACKS_MAX,
    Place,
    Rollback,
    Sent,
    after_rollback,
    as_table,
    describe_run,
    find_logged,
    find_rollback,
    without_last,
)


def history() -> History:
    """Attempt 1 committed 10 and 20 and was preempted after step 23."""
    grown = History("r-1").declare().open().place().restore().commit(10).commit(20)
    return grown.end("preempted", last_step=23)


def rolled_back() -> History:
    """Attempt 2 went on from 20 and committed 30; its loss diverged, and attempt 3 resumed from 10."""
    grown = history().open().place().restore().commit(30).end("loss_divergence", last_step=34)
    first, *bad = (each.ref for each in grown.state.checkpoints)
    for ref in bad:
        grown.decide_checkpoint(Kind.CHECKPOINT_QUARANTINED, ref, is_passed_over=True)
    return grown.open().place().restore(first)


@pytest.mark.parametrize(
    ("grown", "sent", "taken_back_to"),
    [
        (history(), NOTHING_SENT, None),
        (history(), Sent(step=20, attempt_id=1), None),
        (history().open().place().restore(), Sent(step=20, attempt_id=1), None),
        (rolled_back(), Sent(step=30, attempt_id=2), 10),
        (rolled_back(), Sent(step=20, attempt_id=1), 10),  # attempt 2 sent nothing
        (rolled_back(), Sent(step=10, attempt_id=1), None),
        # the new attempt has come further than what was sent, and has run all of it again
        (rolled_back().commit(40), Sent(step=30, attempt_id=2), 10),
        (rolled_back().commit(40), Sent(step=40, attempt_id=3), None),
        (history(), Sent(step=20, attempt_id=7), None),  # of another track of that name
    ],
)
def test_what_was_sent_is_taken_back_by_an_attempt_that_resumes_before_it_and_by_nothing_else(
    grown: History, sent: Sent, taken_back_to: int | None
) -> None:
    found = find_rollback(grown.state, sent)
    assert (None if found is None else found.to_step) == taken_back_to


def test_a_checkpoint_withdrawn_while_its_attempt_goes_on_takes_back_nothing() -> None:
    grown = History("r-1").declare().open().place().restore().commit(10).commit(20)
    grown.decide_checkpoint(Kind.CHECKPOINT_QUARANTINED, grown.state.checkpoints[-1].ref)
    assert find_rollback(grown.state, Sent(step=20, attempt_id=1)) is None


def test_a_rollback_moves_the_cursor_and_is_listed_in_words_the_newest_last() -> None:
    sent = Sent(step=30, attempt_id=2, rollbacks=("an older one",) * ROLLBACKS_MAX)
    moved = after_rollback(sent, find_rollback(rolled_back().state, sent))
    assert (moved.step, len(moved.rollbacks)) == (10, ROLLBACKS_MAX)
    assert moved.rollbacks[-1].startswith("steps 11 to 30 of attempt 2 and before were taken back;")
    assert after_rollback(sent, None) is sent


def item(step: int) -> Logged:
    return Logged(
        step=step, name="x", kind="text", sha256="0" * 64, size_bytes=1, media_type="text/plain"
    )


@pytest.mark.parametrize(
    ("before", "now", "steps", "end"),
    [
        ((0, None, (0, 0)), (0, None), [], (0, 0)),  # nothing before the first row
        ((0, None, (0, 0)), (10, 1), [0, 10], (2, 1)),
        ((10, 1, (1, 1)), (20, 1), [10, 20], (2, 1)),  # that of step 10 was stored late
        ((10, 1, (1, 2)), (20, 1), [20], (2, 1)),
        ((20, 1, (1, 3)), (40, 2), [35], (2, 1)),
        ((40, 2, (2, 0)), (40, 2), [35], (2, 1)),  # no row is new
        ((40, 2, (2, 1)), (40, 2), [], (2, 1)),
        # after a rollback to 10 what the run still rests on is there, what follows comes
        ((10, 1, (2, 1)), (40, 2), [20, 35], (2, 1)),
    ],
)
def test_what_was_logged_is_sent_once_however_late_it_is_stored(
    before: tuple[int, int | None, Place],
    now: tuple[int, int | None],
    steps: list[int],
    end: Place,
) -> None:
    """Attempt 1 logged at steps 0, 10 and 20, in this order, attempt 2 at step 35."""
    logged = [((1, 0), item(0)), ((1, 1), item(10)), ((1, 2), item(20)), ((2, 0), item(35))]
    was = Sent(step=before[0], attempt_id=before[1], logged=before[2])
    sent = was if now[1] is None else was.with_rows(now[0], now[1])
    due, done = find_logged(logged, sent)
    assert [each.step for each, _ in due] == steps
    assert (done.logged, done.lacks_from) == (end, None)


@pytest.mark.parametrize("seed", range(200))
def test_an_export_that_is_cut_after_any_thing_sends_the_others_next_time_and_none_twice(
    seed: int,
) -> None:
    """Things come at steps that were sent and at others, exports are cut, the run is rolled back."""
    rng = random.Random(seed)
    sent, step, attempt_id = NOTHING_SENT, 0, 1
    logged, has = list[tuple[Place, Logged]](), list[tuple[Place, Logged]]()
    for _ in range(12):
        for _ in range(rng.randrange(4)):
            index = sum(place[0] == attempt_id for place, _ in logged)
            logged.append(((attempt_id, index), item(rng.randint(max(0, step - 3), step + 6))))
        if sent.step > 3 and rng.random() < 0.2:
            to_step = sent.step - rng.randint(1, 3)
            sent = after_rollback(sent, Rollback(from_step=sent.step, to_step=to_step, words="…"))
            logged = [each for each in logged if each[1].step <= to_step]
            has = [each for each in has if each[1].step <= to_step]
            step, attempt_id = to_step, attempt_id + 1
        step += rng.randrange(6)
        if step > sent.step:
            sent = sent.with_rows(step, attempt_id)
        by_place = {id(each): (place, each) for place, each in logged}
        due, end = find_logged(logged, Sent.from_json(sent.to_json()))
        count = rng.randint(1, max(1, len(due)))
        has += [by_place[id(each)] for each, _ in due[:count]]
        sent = end if count >= len(due) else due[count - 1][1]
    due, _ = find_logged(logged, sent)
    has += [by_place[id(each)] for each, _ in due]
    if sent.attempt_id is not None:
        expected = sorted(place for place, each in logged if each.step <= sent.step)
        assert sorted(place for place, _ in has) == expected


def test_how_far_a_tracker_has_come_is_read_back_and_anything_else_is_refused() -> None:
    sent = Sent(step=30, attempt_id=2, rollbacks=("one",), logged=(2, 5), lacks_from=(20, 1, 3))
    assert Sent.from_json(json.loads(json.dumps(sent.to_json()))) == sent
    of_before = {"step": 30, "attempt_id": 2, "rollbacks": ["one"]}
    assert Sent.from_json(of_before) == Sent(step=30, attempt_id=2, rollbacks=("one",))
    for broken in (
        {},
        {"step": "30"},
        {"step": 3, "attempt_id": "1", "rollbacks": []},
        {**of_before, "logged": [1]},
        {**of_before, "logged": [1, "2"]},
        {**of_before, "lacks_from": [1, 2]},
        {**of_before, "lacks_from": 7},
    ):
        with pytest.raises(ValueError, match="it is not what an export leaves"):
            Sent.from_json(broken)


@pytest.mark.parametrize(("rows", "yielded"), [([], []), ([1], []), ([1, 2, 3], [1, 2])])
def test_the_newest_step_waits_for_its_evaluation(rows: list[int], yielded: list[int]) -> None:
    assert list(without_last(rows)) == yielded


def test_a_run_is_described_by_its_attempts_and_what_each_changed() -> None:
    halved = ConfigChange(key="micro_batch", before=4, after=2, why="half")
    grown = history().open(remediation=(halved,)).place().restore().commit(40)
    run = describe_run(grown.state)
    assert (run.is_open, run.ended_at) == (True, None)
    assert run.tags["tracks.a01"] == "from step 0: preempted"
    assert run.tags["tracks.a02"] == "from step 20: open; micro_batch 4 → 2"
    done = describe_run(grown.end("completed", last_step=40).finish().state)
    assert (done.status, done.is_open) == ("succeeded", False)
    assert done.ended_at == grown.state.finished_at.timestamp()  # type: ignore[union-attr]
    assert describe_run(History("r-2").declare().state).tags["tracks.attempts"] == "0"


def test_a_table_of_more_than_a_mib_is_read_as_it_was_logged() -> None:
    rows = [["a" * 2000] for _ in range(1000)]
    data = json.dumps({"columns": ["a"], "rows": rows}).encode()
    table = replace(item(1), kind="table", media_type="application/json", size_bytes=len(data))
    assert as_table(table, data) == (["a"], rows)

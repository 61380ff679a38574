"""Decisions become records: once, no matter who asks, however many ask at the same time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest

from tests.deciders import retried, settled_run
from tests.fakes import FakeClock, FakeObjectStore, Fault, SequentialUids
from tests.histories import History
from tracks_dagster.attempts.effects.manual_retry import AttemptChanges
from tracks_dagster.checkpoints.effects.verification import READ_BYTES_MAX
from tracks_dagster.holds.effects.holds import Holds
from tracks_dagster.holds.hold import Hold
from tracks_dagster.holds.storm import PoolEnd, PoolView, find_storm
from tracks_dagster.ledger.effects.deciding import Settled
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.retry.default_policy import DEFAULT_POLICY
from tracks_dagster.retry.next_sensor import reasons_of
from tracks_dagster.track.bodies import Debit, EvalWaived, Note
from tracks_dagster.track.errors import CheckpointCorrupt, InvalidInput, UnknownRun
from tracks_dagster.track.names import ALERT_POOL_STORM, RETRY_OOM, RETRY_PREEMPTED, WATCH_ATTEMPTS
from tracks_dagster.track.records import Kind
from tracks_dagster.track.states.checkpoints import CheckpointRef

CONFIG = {
    "steps": 40,
    "seed": 7,
    "global_batch": 48,
    "micro_batch": 4,
    "accumulation": 6,
    "heads": 4,
    "d_model": 64,
}


def settled(tracks: Tracks, *, sensor: str | None = None, **changes: Any) -> Settled:
    """Settle run r-1 in the name of a sensor, or of nobody in particular."""
    reasons = None if sensor is None else reasons_of(sensor)
    return settled_run(
        tracks,
        "r-1",
        reasons=reasons,
        decided_by=sensor or "tests",
        policy=DEFAULT_POLICY,
        **changes,
    )


@pytest.fixture
def tracks(store: FakeObjectStore, clock: FakeClock, new_uid: SequentialUids) -> Tracks:
    """Tracks that nothing projects: no decision reads the ledger."""
    return Tracks(store, now=clock, new_uid=new_uid, project=lambda name: None)


@pytest.fixture
def ended_with(store: FakeObjectStore, clock: FakeClock, tracks: Tracks) -> Callable[..., Tracks]:
    """Return a function that stores a run whose first attempt ended so, and its tracks."""

    def tell(reason: str, **changes: Any) -> Tracks:
        history = History().declare(config=CONFIG).open().place().restore().commit(20)
        history.end(reason, **{"last_step": 23} | changes)
        history.write_to(store)
        clock.at = history.at
        clock.advance(60)  # past the backoff of a first retry
        return tracks

    return tell


def test_a_preemption_opens_the_next_attempt_with_its_debit(
    ended_with: Callable[..., Tracks],
) -> None:
    tracks = ended_with("preempted")
    result = settled(tracks, sensor=RETRY_PREEMPTED)
    assert result.what == "opened"
    opened = tracks.run("r-1").attempts[-1].opened
    assert (opened.cause, opened.decided_by) == ("retry", RETRY_PREEMPTED)
    assert opened.config == CONFIG
    assert opened.resume == tracks.run("r-1").checkpoints[0].ref
    assert opened.debit is not None
    assert opened.debit.amount == 0
    assert opened.policy_version == DEFAULT_POLICY.version
    assert opened.decision == result.why


def test_an_oom_opens_it_with_half_the_micro_batch(ended_with: Callable[..., Tracks]) -> None:
    tracks = ended_with("gpu_oom")
    assert settled(tracks, sensor=RETRY_OOM).what == "opened"
    opened = tracks.run("r-1").attempts[-1].opened
    assert (opened.config["micro_batch"], opened.config["accumulation"]) == (2, 12)
    assert [change.key for change in opened.remediation] == ["micro_batch", "accumulation"]


def test_a_code_error_is_refused_in_a_record(ended_with: Callable[..., Tracks]) -> None:
    tracks = ended_with("code_error", last_step=None, root_message="ValueError: no")
    result = settled(tracks, sensor=WATCH_ATTEMPTS)
    assert result.what == "refused"
    refusal = tracks.run("r-1").refusal
    assert refusal is not None
    assert refusal.attempt_id == 1
    assert "ValueError: no" in refusal.body.what_to_do
    assert settled(tracks, sensor=WATCH_ATTEMPTS).what == "waiting"


@pytest.mark.parametrize("sensor", [RETRY_OOM, WATCH_ATTEMPTS])
def test_a_sensor_leaves_the_reasons_of_others_alone(
    ended_with: Callable[..., Tracks], sensor: str
) -> None:
    tracks = ended_with("preempted")
    result = settled(tracks, sensor=sensor)
    assert (result.what, result.record) == ("nothing", None)
    assert sensor in result.why
    assert len(tracks.run("r-1").attempts) == 1


def test_a_stop_is_obeyed_by_any_sensor(
    ended_with: Callable[..., Tracks], store: FakeObjectStore
) -> None:
    history = History("r-2").declare(config=CONFIG).open().stop().end("preempted")
    history.write_to(store)
    tracks = ended_with("preempted")
    result = settled_run(
        tracks,
        "r-2",
        reasons=reasons_of(WATCH_ATTEMPTS),
        decided_by=WATCH_ATTEMPTS,
        policy=DEFAULT_POLICY,
    )
    assert result.what == "finished"
    finished = tracks.run("r-2").finished
    assert finished is not None
    assert finished.stop_cause == "user"


def test_settling_again_finds_nothing_left_to_do(ended_with: Callable[..., Tracks]) -> None:
    tracks = ended_with("preempted")
    assert settled(tracks).what == "opened"
    assert settled(tracks) == Settled(what="waiting", why="Attempt 2 is open.")


def test_a_backoff_writes_nothing(ended_with: Callable[..., Tracks], clock: FakeClock) -> None:
    tracks = ended_with("unknown")
    clock.at = tracks.run("r-1").head.at
    result = settled(tracks)
    assert (result.what, result.record) == ("waiting", None)
    assert "backoff" in result.why
    clock.advance(60)
    assert settled(tracks).what == "opened"


def test_a_lost_reply_does_not_open_two_attempts(
    ended_with: Callable[..., Tracks], store: FakeObjectStore
) -> None:
    tracks = ended_with("preempted")
    store.fail("create", 1, Fault.LOST_AFTER)
    assert settled(tracks).what == "opened"
    assert len(tracks.run("r-1").attempts) == 2


def test_a_place_that_is_lost_is_decided_again(
    ended_with: Callable[..., Tracks], store: FakeObjectStore, clock: FakeClock
) -> None:
    tracks = ended_with("preempted")
    tracks.run("r-1")
    other = Tracks(store, now=clock, new_uid=lambda: "f" * 32, project=lambda name: None)
    create = store.create

    def after_a_note(key: str, data: bytes) -> bool:
        store.create = create  # type: ignore[method-assign]
        other.note_run("r-1", other.draft(Kind.NOTE, Note(by="ann", text="Look at this.")))
        return create(key, data)

    store.create = after_a_note  # type: ignore[method-assign]
    result = settled(tracks)
    assert result.record is not None
    assert [r.kind for r in tracks.records("runs/r-1")][-2:] == [Kind.NOTE, Kind.ATTEMPT_OPENED]


def test_two_settlers_at_once_open_exactly_one_attempt(
    ended_with: Callable[..., Tracks], store: FakeObjectStore, clock: FakeClock
) -> None:
    for _ in range(20):
        store.objects.clear()
        ended_with("preempted")
        results = race(store, clock, count=4)
        assert sorted(result.what for result in results) == [
            "opened",
            "waiting",
            "waiting",
            "waiting",
        ]
        assert len([key for key in store.objects if "/log/" in key]) == 7  # 6 stored, 1 opened


def race(store: FakeObjectStore, clock: FakeClock, *, count: int) -> list[Settled]:
    """Let `count` processes, each with tracks of its own, settle the run at once."""
    barrier = threading.Barrier(count)
    results: list[Settled] = []

    def work(number: int) -> None:
        uids = iter(f"{number:016x}{n:016x}" for n in range(1000))
        tracks = Tracks(store, now=clock, new_uid=lambda: next(uids), project=lambda name: None)
        tracks.run("r-1")
        barrier.wait()
        results.append(settled(tracks))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


# --- progress that nobody has read yet, and storms --------------------------------------------------


class Bytes:
    """A checkpoint reader of bytes that are right, or not."""

    def __init__(self, *, are_right: bool = True) -> None:
        self.read: list[int] = []
        self._are_right = are_right

    def verify(self, ref: CheckpointRef) -> int:
        self.read.append(ref.step)
        if not self._are_right:
            raise CheckpointCorrupt(f"chunk 1 of step {ref.step} is another one.")
        return 1000

    def chunk_sizes(self, ref: CheckpointRef) -> dict[str, int]:
        return {}


def spent_and_progressed(store: FakeObjectStore, clock: FakeClock, **commit: Any) -> History:
    """Store a run whose budget for `unknown` is used up, and which went on to step 30 meanwhile."""
    history = History().declare(config=CONFIG).open().place().restore()
    for _ in range(2):
        history.end("unknown", last_step=3)
        debit = Debit(reason="unknown", amount=1.0, fingerprint="other", why="tests")
        history.open(debit=debit).place().restore()
    history.commit(30, **commit).end("unknown", last_step=31)
    history.write_to(store)
    clock.at = history.at
    clock.advance(600)
    return history


def test_progress_that_a_limit_depends_on_is_read_and_then_counts(
    store: FakeObjectStore, clock: FakeClock, tracks: Tracks
) -> None:
    spent_and_progressed(store, clock)
    reader = Bytes()
    assert settled(tracks).what == "waiting"  # nobody can read it here
    assert settled(tracks, checkpoints=reader).what == "opened"
    assert reader.read == [30]
    kinds = [record.kind for record in tracks.records("runs/r-1")][-2:]
    assert kinds == [Kind.CHECKPOINT_VERIFIED, Kind.ATTEMPT_OPENED]


def test_progress_that_turns_out_corrupt_is_quarantined_and_the_retry_refused(
    store: FakeObjectStore, clock: FakeClock, tracks: Tracks
) -> None:
    spent_and_progressed(store, clock)
    result = settled(tracks, checkpoints=Bytes(are_right=False))
    assert result.what == "refused"
    assert "2 of 2 retries for unknown used in 24 hours (records 5 and 9)" in result.why
    assert tracks.run("r-1").checkpoints[0].quarantined


def test_a_large_checkpoint_is_left_to_the_collector(
    store: FakeObjectStore, clock: FakeClock, tracks: Tracks
) -> None:
    history = spent_and_progressed(store, clock, total_bytes=READ_BYTES_MAX + 1)
    reader = Bytes()
    assert settled(tracks, checkpoints=reader).what == "waiting"
    assert reader.read == []
    history.verify().write_to(store)  # as the collector does
    assert settled(tracks, checkpoints=reader).what == "opened"


class OneStorm:
    """Twelve attempts of four runs that ended in every pool just now."""

    def __init__(self, clock: FakeClock) -> None:
        self._at = clock.at

    def storm(self, pool: str, now: datetime) -> Hold | None:
        ends = [PoolEnd(run_id=f"x-{n % 4}", attempt_id=n, ended_at=self._at) for n in range(12)]
        view = PoolView(pool=pool, ends=ends, run_count=5)
        return find_storm(view, DEFAULT_POLICY.storm, now)


def test_a_storm_pauses_a_retry_with_one_alert_and_then_lets_it_go(
    ended_with: Callable[..., Tracks], clock: FakeClock
) -> None:
    tracks = ended_with("preempted")
    storm: Any = OneStorm(clock)
    first = settled(tracks, holds=Holds(tracks, pools=storm))
    assert first.what == "paused"
    assert "12 attempts of 4 runs ended in pool local/cpu" in first.why
    assert settled(tracks, holds=Holds(tracks, pools=storm)).what == "waiting"
    [alert] = tracks.run("r-1").alerts
    assert alert.body.rule == ALERT_POOL_STORM
    clock.advance(DEFAULT_POLICY.storm.pause_s)
    assert settled(tracks, holds=Holds(tracks, pools=storm)).what == "opened"


# --- a person's retry ------------------------------------------------------------------------------


def by_ann(tracks: Tracks, **changes: Any) -> Any:
    retried(
        tracks,
        "r-1",
        by="ann",
        why="The node is fine again.",
        changes=AttemptChanges(config=changes),
    )
    return tracks.run("r-1").attempts[-1].opened


def test_a_person_goes_on_after_a_refusal_and_spends_no_budget(
    ended_with: Callable[..., Tracks],
) -> None:
    tracks = ended_with("code_error", last_step=None)
    settled(tracks)
    opened = by_ann(tracks)  # nobody can tell whether the training code is the same
    assert (opened.cause, opened.decided_by) == ("manual_retry", "ann")
    assert opened.decision == "The node is fine again."
    assert opened.debit is None
    assert opened.resume == tracks.run("r-1").checkpoints[0].ref


def test_a_persons_retry_neither_spends_nor_gives_back(
    store: FakeObjectStore, clock: FakeClock, tracks: Tracks
) -> None:
    history = History().declare(config=CONFIG).open().place().restore()
    for _ in range(2):  # both automatic retries for unknown
        history.end("unknown", last_step=3)
        debit = Debit(reason="unknown", amount=1.0, fingerprint="other", why="tests")
        history.open(debit=debit).place().restore()
    history.end("unknown", last_step=3).write_to(store)
    clock.at = history.at
    assert settled(tracks).what == "refused"
    history.refuse().open(cause="manual_retry").place().restore()
    history.end("unknown", last_step=3)
    store.objects.clear()
    history.write_to(store)
    clock.at = history.at
    clock.advance(600)
    tracks = Tracks(store, now=clock, new_uid=lambda: "e" * 32, project=lambda name: None)
    result = settled(tracks)
    assert result.what == "refused"
    assert "2 of 2 retries for unknown" in result.why


def test_a_person_may_change_the_config_and_the_accumulation_follows(
    ended_with: Callable[..., Tracks],
) -> None:
    opened = by_ann(ended_with("user_cancelled"), micro_batch=6)
    assert opened.config["accumulation"] == 4  # 6 × 4 × 2 ranks = 48
    changed = {c.key: (c.before, c.after) for c in opened.remediation}
    assert changed["micro_batch"] == (4, 6)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"micro_bach": 2}, "'micro_bach' is not a config key"),
        ({"accumulation": 2}, "follows from"),
        ({"micro_batch": 7}, "cannot be divided"),
        ({"micro_batch": "2"}, "is not a whole number"),
    ],
)
def test_a_change_that_cannot_be_used_writes_nothing(
    ended_with: Callable[..., Tracks], changes: dict[str, Any], words: str
) -> None:
    tracks = ended_with("user_cancelled")
    with pytest.raises(InvalidInput, match=words):
        by_ann(tracks, **changes)
    assert len(tracks.run("r-1").attempts) == 1


def test_an_open_attempt_cannot_be_retried(ended_with: Callable[..., Tracks]) -> None:
    tracks = ended_with("preempted")
    settled(tracks)
    with pytest.raises(InvalidInput, match=r"Attempt 2 .* has not ended"):
        by_ann(tracks)


def test_a_finished_run_cannot_be_retried(ended_with: Callable[..., Tracks]) -> None:
    tracks = ended_with("completed", last_step=40)
    waived = EvalWaived(suite="heldout-loss", by="ann", why="not needed")
    tracks.note_run("r-1", tracks.draft(Kind.EVAL_WAIVED, waived))
    assert settled(tracks).what == "finished"
    with pytest.raises(InvalidInput, match="is finished") as refused:
        by_ann(tracks, steps=80, name="a b")
    again = "`tracks run --from r-1@20 --set steps=80 --set 'name=a b'`"
    assert again in str(refused.value)
    with pytest.raises(InvalidInput, match="is finished") as refused:
        by_ann(tracks)
    assert "`tracks run --from r-1@20`" in str(refused.value)


def test_a_run_that_has_all_its_steps_is_only_retried_for_more(
    ended_with: Callable[..., Tracks],
) -> None:
    tracks = ended_with("completed", last_step=40)
    with pytest.raises(InvalidInput, match="has all its steps"):
        by_ann(tracks)
    assert by_ann(tracks, steps=80).config["steps"] == 80


def test_a_run_that_is_being_stopped_cannot_be_retried(
    store: FakeObjectStore, tracks: Tracks
) -> None:
    History().declare(config=CONFIG).open().end("user_cancelled").stop().write_to(store)
    with pytest.raises(InvalidInput, match="was stopped"):
        by_ann(tracks)


def test_a_run_that_does_not_exist_can_be_neither_settled_nor_retried(tracks: Tracks) -> None:
    with pytest.raises(UnknownRun):
        settled(tracks)
    with pytest.raises(UnknownRun):
        by_ann(tracks)

"""Before a gang starts: other libraries than those that wrote the checkpoint, or a withdrawn source."""

from __future__ import annotations

from typing import Any

import pytest

from tests.attempts.test_supervise import TRAINER, Days, append, ends, supervisor
from tests.deciders import retried, settled_run
from tests.fakes import FakeClock, FakeGangs, FakeObjectStore
from tests.histories import History
from tracks_dagster.attempts.effects.resuming import NOTE_BY, check_resume
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.retry.default_policy import DEFAULT_POLICY
from tracks_dagster.review.effects.explain.run import explain_attempt
from tracks_dagster.review.explain.text import attempt_text
from tracks_dagster.track.bodies import RankPlace
from tracks_dagster.track.reasons import TerminationReason
from tracks_dagster.track.records import Json, Kind
from tracks_dagster.track.states.run_state import AttemptState

HERE = {
    "python": "3.11.7",
    "torch": "2.13.0+cpu",
    "numpy": "2.4.6",
    "threads": 1,
    "code_sha256": "a",
}
OLDER = {**HERE, "torch": "2.12.0+cpu", "numpy": "2.3.0"}
EDITED = {**HERE, "code_sha256": "b"}


@pytest.fixture
def gangs() -> FakeGangs:
    return FakeGangs()


def resumed(environment: dict[str, Json], **opened: Any) -> History:
    """Return a run whose attempt 1 committed step 20 in that environment; attempt 2 is open."""
    history = History("r-1").declare(trainer=TRAINER).open()
    history.place(environment=environment).restore()
    return history.commit(20).end("preempted", last_step=23).open(**opened)


def supervised(
    tracks: Tracks, gangs: FakeGangs, clock: FakeClock, *, attempt_id: int = 2
) -> AttemptState:
    """Supervise the attempt in the environment HERE, its gang ending as soon as it was started."""
    days = Days(clock, ends(gangs, attempt_id=attempt_id))
    tracks.store.put(TRAINER, b"print('mine')")
    attempt = supervisor(tracks, gangs, days, environment=HERE).supervise("r-1", attempt_id)
    assert attempt is not None
    return attempt


def test_other_libraries_end_the_attempt_before_a_gang_starts_and_say_which(
    tracks: Tracks, store: FakeObjectStore, gangs: FakeGangs, clock: FakeClock
) -> None:
    resumed(OLDER).write_to(store)
    attempt = supervised(tracks, gangs, clock)
    assert gangs.specs == []
    assert attempt.reason is TerminationReason.DEPENDENCY_MISMATCH
    assert attempt.ended is not None
    assert (attempt.ended.rule, attempt.ended.first_line_ran) == ("start_refused", False)
    for said in (
        "numpy 2.3.0 → 2.4.6, torch 2.12.0+cpu → 2.13.0+cpu",
        "step 20 of r-1 (attempt 1)",
        "--allow-environment-change",
    ):
        assert said in attempt.ended.root_message
        assert said in (store.get(attempt.ended.evidence_key) or b"").decode()


def test_it_is_not_retried_by_itself_and_the_refusal_says_what_to_do(
    tracks: Tracks, store: FakeObjectStore, gangs: FakeGangs, clock: FakeClock
) -> None:
    resumed(OLDER).write_to(store)
    supervised(tracks, gangs, clock)
    settled = settled_run(tracks, "r-1")
    assert settled.what == "refused"
    refusal = tracks.run("r-1").refusal
    assert refusal is not None
    assert "torch 2.12.0+cpu → 2.13.0+cpu" in refusal.body.what_to_do
    assert "--allow-environment-change" in refusal.body.what_to_do


def test_a_person_lets_it_go_on_and_the_track_says_with_what(
    tracks: Tracks, store: FakeObjectStore, gangs: FakeGangs, clock: FakeClock
) -> None:
    resumed(OLDER).write_to(store)
    supervised(tracks, gangs, clock)
    retried(
        tracks,
        "r-1",
        by="ann",
        why="upgraded",
        allows_environment_change=True,
    )
    supervised(tracks, gangs, clock, attempt_id=3)
    assert [spec.attempt_id for spec in gangs.specs] == [3]
    [note] = tracks.run("r-1").notes
    assert (note.attempt_id, note.body.by) == (3, NOTE_BY)
    assert "allowed by ann: numpy 2.3.0 → 2.4.6, torch" in note.body.text
    text = attempt_text(explain_attempt(tracks, "r-1", 3))
    assert "allowed to resume with other libraries" in text
    assert note.body.text in text


def test_without_that_word_the_next_attempt_is_refused_again(
    tracks: Tracks, store: FakeObjectStore, gangs: FakeGangs, clock: FakeClock
) -> None:
    resumed(OLDER).write_to(store)
    supervised(tracks, gangs, clock)
    retried(tracks, "r-1", by="ann", why="once more")
    attempt = supervised(tracks, gangs, clock, attempt_id=3)
    assert attempt.reason is TerminationReason.DEPENDENCY_MISMATCH
    assert gangs.specs == []


def test_other_training_code_is_said_once_and_starts(
    tracks: Tracks, store: FakeObjectStore, gangs: FakeGangs, clock: FakeClock
) -> None:
    resumed(EDITED).write_to(store)
    state = tracks.run("r-1")
    check = check_resume(
        tracks,
        state,
        state.attempts[1],
        foresee=lambda *_: HERE,
        rules=DEFAULT_POLICY.environment,
    )
    assert check.note is not None  # what a supervisor left that died before it started the gang
    append(tracks, tracks.draft(Kind.NOTE, check.note, attempt_id=2))
    supervised(tracks, gangs, clock)
    assert [spec.attempt_id for spec in gangs.specs] == [2]
    [note] = tracks.run("r-1").notes
    assert (
        "Resumes step 20 of r-1 (attempt 1) with other code: code_sha256 b → a." in note.body.text
    )
    assert note.body.data["differences"] == [{"key": "code_sha256", "saved": "b", "found": "a"}]


def test_the_same_environment_is_not_worth_a_word(
    tracks: Tracks, store: FakeObjectStore, gangs: FakeGangs, clock: FakeClock
) -> None:
    resumed(HERE).write_to(store)
    supervised(tracks, gangs, clock)
    assert len(gangs.specs) == 1
    assert tracks.run("r-1").notes == ()


def test_an_attempt_without_a_checkpoint_is_never_refused(
    tracks: Tracks, store: FakeObjectStore, gangs: FakeGangs, clock: FakeClock
) -> None:
    history = History("r-1").declare(trainer=TRAINER).open()
    history.place(environment=OLDER).restore()
    history.end("preempted", last_step=3).open().write_to(store)
    supervised(tracks, gangs, clock)
    assert len(gangs.specs) == 1


def mixed(*, allowed: bool) -> History:
    """Attempt 1 committed step 20 with older libraries, attempt 2 step 30 HERE; attempt 3 is open."""
    history = resumed(OLDER, allows_environment_change=allowed).place(environment=HERE).restore()
    return history.commit(30).end("preempted", last_step=33).open()


def test_a_checkpoint_that_a_fallback_may_reach_is_compared_before_the_gang_starts(
    tracks: Tracks, store: FakeObjectStore, gangs: FakeGangs, clock: FakeClock
) -> None:
    mixed(allowed=False).write_to(store)
    attempt = supervised(tracks, gangs, clock, attempt_id=3)
    assert gangs.specs == []
    assert attempt.reason is TerminationReason.DEPENDENCY_MISMATCH
    assert attempt.ended is not None
    for said in (
        "torch 2.12.0+cpu → 2.13.0+cpu",
        "step 20 of r-1 (attempt 1), which it would fall",
    ):
        assert said in attempt.ended.root_message


def test_a_fallback_over_a_change_that_a_person_allowed_before_is_said_and_starts(
    tracks: Tracks, store: FakeObjectStore, gangs: FakeGangs, clock: FakeClock
) -> None:
    mixed(allowed=True).write_to(store)
    supervised(tracks, gangs, clock, attempt_id=3)
    assert [spec.attempt_id for spec in gangs.specs] == [3]
    [note] = tracks.run("r-1").notes
    assert note.body.text.startswith("From a corrupt one it may fall back to step 20 of r-1")
    assert "torch 2.12.0+cpu → 2.13.0+cpu" in note.body.text


def test_what_a_person_allowed_for_other_libraries_is_not_a_word_about_these(
    tracks: Tracks, store: FakeObjectStore, gangs: FakeGangs, clock: FakeClock
) -> None:
    newest = {**HERE, "torch": "2.14.0+cpu"}
    history = resumed(OLDER, allows_environment_change=True).place(environment=newest).restore()
    history.commit(30).end("preempted", last_step=33).open().write_to(store)
    attempt = supervised(tracks, gangs, clock, attempt_id=3)
    assert attempt.reason is TerminationReason.DEPENDENCY_MISMATCH
    assert gangs.specs == []


def test_what_nobody_can_fall_back_to_is_not_compared(
    tracks: Tracks, store: FakeObjectStore, gangs: FakeGangs, clock: FakeClock
) -> None:
    history = mixed(allowed=False)
    history.decide_checkpoint(Kind.CHECKPOINT_QUARANTINED, history.state.checkpoints[0].ref)
    history.write_to(store)
    supervised(tracks, gangs, clock, attempt_id=3)
    assert len(gangs.specs) == 1
    assert tracks.run("r-1").notes == ()


def test_the_thread_count_is_compared_only_where_the_cpu_did_the_sums(
    tracks: Tracks, store: FakeObjectStore
) -> None:
    gpu = RankPlace(
        rank=0, node="n", pid=1, pid_started=0.0, boot_id="b", device="GPU-1", accelerator="H100"
    )
    history = History("r-1").declare().open().place(environment={**HERE, "threads": 64})
    history.restore().commit(20).end("preempted").open().write_to(store)
    other = History("r-2").declare().open().place(environment={**HERE, "threads": 64}, ranks=(gpu,))
    other.restore().commit(20).end("preempted").open().write_to(store)
    said = []
    for run_id in ("r-1", "r-2"):
        state = tracks.run(run_id)
        check = check_resume(tracks, state, state.attempts[1], foresee=lambda *_: HERE, rules=())
        said.append(None if check.note is None else check.note.data["differences"])
    assert said == [[{"key": "threads", "saved": 64, "found": 1}], None]


def test_a_branch_is_compared_with_the_launch_of_its_source(
    tracks: Tracks, store: FakeObjectStore, gangs: FakeGangs, clock: FakeClock
) -> None:
    source = History("r-0").declare().open().place(environment=OLDER).restore().commit(20)
    source.write_to(store)
    History("r-1").declare(branched_from=source.state.checkpoints[0].ref).open().write_to(store)
    attempt = supervised(tracks, gangs, clock, attempt_id=1)
    assert attempt.ended is not None
    assert "step 20 of r-0 (attempt 1)" in attempt.ended.root_message


@pytest.mark.parametrize("what", ["quarantined", "lost"])
def test_a_branch_whose_source_does_not_hold_any_more_starts_no_gang(
    what: str, tracks: Tracks, store: FakeObjectStore, gangs: FakeGangs, clock: FakeClock
) -> None:
    source = History("r-0").declare().open().place(environment=HERE).restore().commit(20)
    ref = source.state.checkpoints[0].ref
    if what == "quarantined":
        source.decide_checkpoint(Kind.CHECKPOINT_QUARANTINED, ref).write_to(store)
    History("r-1").declare(branched_from=ref).open().write_to(store)
    attempt = supervised(tracks, gangs, clock, attempt_id=1)
    assert attempt.reason is TerminationReason.CHECKPOINT_CORRUPT
    assert attempt.ended is not None
    assert "r-0@20 (attempt 1)" in attempt.ended.root_message
    assert gangs.specs == []
    settled = settled_run(tracks, "r-1")
    assert settled.what == "refused"

"""A supervisor claims, starts or adopts, watches and closes; a newer claim ends its work."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from itertools import pairwise
from types import MappingProxyType

import pytest

from tests.fakes import FakeClock, FakeGangs, FakeObjectStore, FakeOrchestrator
from tests.histories import History
from tracks_dagster.attempts.effects.gang_watch import DRAIN_KILL_S
from tracks_dagster.attempts.effects.supervise import DRAIN_GRACE_S, START_S_MAX, Supervisor
from tracks_dagster.attempts.machine import ProcessId
from tracks_dagster.attempts.ports import GangPhase, GangReport, GangSpec
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.reasons.evidence import RankEnd
from tracks_dagster.retry.default_policy import DEFAULT_POLICY
from tracks_dagster.scheduling.effects.leases import DevicePool
from tracks_dagster.scheduling.leases import Found, Here
from tracks_dagster.scheduling.model import Demand, Plan, Start
from tracks_dagster.track.bodies import BUDGET, ComputeRequest, HeldDevices, StopRequested
from tracks_dagster.track.errors import InvalidInput, LedgerError, NoDevices
from tracks_dagster.track.names import AttemptRef
from tracks_dagster.track.reasons import TerminationReason
from tracks_dagster.track.records import Draft, Json, Kind, sha256_hex
from tracks_dagster.track.states.run_state import RunState

ROUNDS_MAX = 100  # of a supervisor in these tests; more means that it would never end


@pytest.fixture
def gangs() -> FakeGangs:
    return FakeGangs()


CODE = b"print('mine')"
TRAINER = f"runs/r-1/trainer/{sha256_hex(CODE)}.py"


@pytest.fixture
def history(store: FakeObjectStore) -> History:
    store.put(TRAINER, CODE)
    return History("r-1").declare(trainer=TRAINER).open()


class Days:
    """What happens between two looks of a supervisor, one entry a look."""

    def __init__(self, clock: FakeClock, *events: Callable[[], object]) -> None:
        self.states: list[RunState] = []
        self._clock = clock
        self._events = list(events)
        self._rounds = 0

    def sleep(self, seconds: float) -> None:
        self._rounds += 1
        assert self._rounds < ROUNDS_MAX, "the supervisor does not end"
        self._clock.advance(seconds)
        if self._events:
            self._events.pop(0)()


def supervisor(
    tracks: Tracks,
    gangs: FakeGangs,
    days: Days,
    *,
    dagster_run_id: str = "mine",
    environment: Mapping[str, Json] = MappingProxyType({}),
    lets_go: bool = False,
) -> Supervisor:
    return Supervisor(
        tracks=tracks,
        gangs=gangs,
        orchestrator=FakeOrchestrator(),
        foresee=lambda *_: environment,
        policy=DEFAULT_POLICY,
        dagster_run_id=dagster_run_id,
        host="node-1",
        sleep=days.sleep,
        on_growth=days.states.append,
        monotonic=lambda: tracks.now().timestamp(),
        lets_go=lets_go,
    )


POOL = Here(node="node-1")


def leased(tracks: Tracks, *keys: str) -> DevicePool:
    """Return a pool in which each of these was given a device of its own, one after the other."""
    pool = DevicePool(
        here=POOL,
        tracks=tracks,
        runs=lambda url: tracks,
        store=tracks.store.url,
        look=lambda leased: Found(),
        hides_gpus=True,
    )
    for number, key in enumerate(keys):
        start = Start(key=key, devices=(f"pretended:{number}",), why="it is first")
        given = Plan(starts=(start,))
        demand = Demand(key=key, count=1)
        pool.share((demand,), lambda *_, plan=given: plan, lambda _, running: running, by="tests")
    return pool


def test_a_gang_starts_on_the_devices_that_its_lease_names_and_they_stay_its(
    tracks: Tracks, store: FakeObjectStore, gangs: FakeGangs, clock: FakeClock, history: History
) -> None:
    history.write_to(store)
    pool = leased(tracks, "r-2/a01", "r-1/a01")
    days = Days(clock, ends(gangs))
    ended = replace(supervisor(tracks, gangs, days), devices=pool).supervise("r-1", 1)
    assert ended is not None
    (spec,) = gangs.specs
    assert spec.environment["TRACKS_LEASED_DEVICES"] == "pretended:1"
    assert spec.environment["CUDA_VISIBLE_DEVICES"] == ""
    held = ended.claims[-1].body.held
    assert held == HeldDevices(
        pool="local/node-1", seq=1, devices=("pretended:1",), why="it is first"
    )
    lease = pool.find("r-1/a01")
    assert lease is not None
    assert lease.confirmed_by == "mine"


def test_a_supervisor_without_a_lease_starts_and_claims_nothing(
    tracks: Tracks, store: FakeObjectStore, gangs: FakeGangs, clock: FakeClock, history: History
) -> None:
    history.write_to(store)
    alone = replace(supervisor(tracks, gangs, Days(clock)), devices=leased(tracks))
    with pytest.raises(NoDevices, match="It waits its turn"):
        alone.supervise("r-1", 1)
    assert gangs.calls == []
    (attempt,) = tracks.run("r-1").attempts
    assert (attempt.is_open, attempt.claims) == (True, ())


def test_a_claim_names_no_devices_that_were_given_to_somebody_else_or_are_gone(
    tracks: Tracks, store: FakeObjectStore, gangs: FakeGangs, clock: FakeClock, history: History
) -> None:
    history.write_to(store)
    lost = replace(leased(tracks, "r-1/a01"), gone=tuple)
    with pytest.raises(NoDevices, match="It waits its turn"):
        replace(supervisor(tracks, gangs, Days(clock)), devices=lost).supervise("r-1", 1)
    (attempt,) = tracks.run("r-1").attempts
    assert (gangs.specs, attempt.claims) == ([], ())


@pytest.mark.parametrize("is_confirmed", [False, True])
def test_a_gang_that_is_adopted_has_the_devices_of_a_confirmed_lease_alone(
    tracks: Tracks,
    store: FakeObjectStore,
    gangs: FakeGangs,
    clock: FakeClock,
    history: History,
    is_confirmed: bool,
) -> None:
    history.supervise("dead").place().write_to(store)
    gangs.reports["r-1", 1] = GangReport(phase=GangPhase.ALIVE)
    pool = leased(tracks, "r-1/a01")
    if is_confirmed:
        pool.confirm("r-1/a01", "dead")
    adopts = replace(supervisor(tracks, gangs, Days(clock, ends(gangs))), devices=pool)
    ended = adopts.supervise("r-1", 1)
    assert ended is not None
    assert (ended.held is not None) is is_confirmed


def test_a_gang_that_lives_is_adopted_whatever_the_pool_says(
    tracks: Tracks, store: FakeObjectStore, gangs: FakeGangs, clock: FakeClock, history: History
) -> None:
    """It was started before devices were given out, or its lease was freed by a mistake of a person."""
    history.write_to(store)
    gangs.reports["r-1", 1] = GangReport(
        phase=GangPhase.ALIVE, ranks=(RankEnd(rank=0), RankEnd(rank=1))
    )
    adopts = replace(supervisor(tracks, gangs, Days(clock, ends(gangs))), devices=leased(tracks))
    ended = adopts.supervise("r-1", 1)
    assert ended is not None
    assert ended.claims[-1].body.held is None


def ends(gangs: FakeGangs, *, exit_code: int = 0, attempt_id: int = 1) -> Callable[[], None]:
    return lambda: gangs.end(
        "r-1",
        attempt_id,
        RankEnd(rank=0, exit_code=exit_code),
        RankEnd(rank=1, exit_code=exit_code),
    )


def test_a_claim_names_the_process_that_makes_it(
    tracks: Tracks, store: FakeObjectStore, gangs: FakeGangs, history: History, clock: FakeClock
) -> None:
    history.write_to(store)
    days = Days(clock, lambda: None, ends(gangs))
    own = ProcessId(pid=7, started=3.5, boot_id="boot-1")
    attempt = replace(supervisor(tracks, gangs, days), process=own).supervise("r-1", 1)
    assert attempt is not None
    claim = attempt.claims[0].body
    assert (claim.host, claim.pid, claim.pid_started, claim.boot_id) == ("node-1", 7, 3.5, "boot-1")


def test_an_attempt_is_claimed_started_watched_and_closed(
    tracks: Tracks, store: FakeObjectStore, gangs: FakeGangs, history: History, clock: FakeClock
) -> None:
    history.write_to(store)
    days = Days(clock, lambda: None, ends(gangs, exit_code=1))
    attempt = supervisor(tracks, gangs, days).supervise("r-1", 1)
    assert attempt is not None
    assert not attempt.is_open
    kinds = [record.kind for record in tracks.records("runs/r-1")]
    assert kinds[-2:] == [Kind.ATTEMPT_SUPERVISED, Kind.ATTEMPT_ENDED]
    (spec,) = gangs.specs
    assert (spec.ranks, spec.opened_seq, spec.code_key) == (2, 1, TRAINER)


@pytest.mark.parametrize("code", [None, b"print('other')"])
def test_code_that_is_missing_or_was_changed_is_not_started(
    code: bytes | None,
    tracks: Tracks,
    store: FakeObjectStore,
    gangs: FakeGangs,
    history: History,
    clock: FakeClock,
) -> None:
    history.write_to(store)
    store.delete(TRAINER)
    if code is not None:
        store.put(TRAINER, code)
    attempt = supervisor(tracks, gangs, Days(clock)).supervise("r-1", 1)
    assert gangs.specs == []
    assert attempt is not None
    assert attempt.ended is not None
    words = "is missing" if code is None else f"has sha256 {sha256_hex(code)}; expected"
    assert f"Cannot start r-1/a01: its code {TRAINER} {words}" in attempt.ended.root_message


def test_a_gang_that_lives_is_adopted_and_no_second_one_is_started(
    tracks: Tracks, store: FakeObjectStore, gangs: FakeGangs, history: History, clock: FakeClock
) -> None:
    history.supervise("dead").place().write_to(store)
    gangs.reports["r-1", 1] = GangReport(phase=GangPhase.ALIVE)
    supervisor(tracks, gangs, Days(clock, ends(gangs))).supervise("r-1", 1)
    assert gangs.specs == []
    assert tracks.run("r-1").attempts[0].claims[-1].body.dagster_run_id == "mine"


def test_a_placed_launch_that_does_not_live_is_closed_as_vanished(
    tracks: Tracks, store: FakeObjectStore, gangs: FakeGangs, history: History, clock: FakeClock
) -> None:
    history.supervise("dead").place().write_to(store)
    attempt = supervisor(tracks, gangs, Days(clock)).supervise("r-1", 1)
    assert attempt is not None
    assert attempt.ended is not None
    assert attempt.ended.rule == "vanished"
    assert gangs.specs == []


def test_a_gang_that_ended_while_nobody_looked_is_closed_with_its_exit_codes(
    tracks: Tracks, store: FakeObjectStore, gangs: FakeGangs, history: History, clock: FakeClock
) -> None:
    history.supervise("dead").place().write_to(store)
    gangs.reports["r-1", 1] = GangReport(
        phase=GangPhase.GONE, ranks=(RankEnd(rank=0, signal=11), RankEnd(rank=1, signal=15))
    )
    attempt = supervisor(tracks, gangs, Days(clock)).supervise("r-1", 1)
    assert attempt is not None
    assert attempt.reason is TerminationReason.NATIVE_CRASH


def test_a_gang_that_cannot_be_started_ends_the_attempt_with_the_words_of_the_problem(
    tracks: Tracks, store: FakeObjectStore, gangs: FakeGangs, history: History, clock: FakeClock
) -> None:
    history.write_to(store)
    gangs.start_problem = "the disk is full of old snapshots"
    attempt = supervisor(tracks, gangs, Days(clock)).supervise("r-1", 1)
    assert attempt is not None
    assert attempt.ended is not None
    assert "full of old snapshots" in attempt.ended.root_message
    assert not attempt.ended.first_line_ran


def test_a_start_that_nobody_answers_is_tried_again(
    tracks: Tracks, store: FakeObjectStore, gangs: FakeGangs, history: History, clock: FakeClock
) -> None:
    history.write_to(store)
    gangs.starts_unanswered = 3
    days = Days(clock, *3 * [lambda: None], ends(gangs))
    attempt = supervisor(tracks, gangs, days).supervise("r-1", 1)
    assert attempt is not None
    assert [call[0] for call in gangs.calls].count("start") == 4
    assert len(gangs.specs) == 1
    (note,) = tracks.run("r-1").notes
    assert "cannot be reached. It is asked again every 10 s, for 900 s." in note.body.text


def test_a_start_that_is_never_answered_ends_the_attempt_in_bounded_time(
    tracks: Tracks, store: FakeObjectStore, gangs: FakeGangs, history: History, clock: FakeClock
) -> None:
    history.write_to(store)
    gangs.starts_unanswered = ROUNDS_MAX
    began = clock()
    attempt = supervisor(tracks, gangs, Days(clock)).supervise("r-1", 1)
    assert attempt is not None
    assert attempt.ended is not None
    assert "cannot be reached" in attempt.ended.root_message
    assert START_S_MAX <= (clock() - began).total_seconds() < START_S_MAX + 60


def test_a_place_that_answers_no_start_is_not_a_fault_of_the_run(
    tracks: Tracks, store: FakeObjectStore, gangs: FakeGangs, clock: FakeClock
) -> None:
    store.put(TRAINER, CODE)
    compute = ComputeRequest(launcher="slurm")
    History("r-1").declare(trainer=TRAINER).open(compute=compute).write_to(store)
    gangs.starts_unanswered = ROUNDS_MAX
    attempt = supervisor(tracks, gangs, Days(clock)).supervise("r-1", 1)
    assert attempt is not None
    assert attempt.reason is TerminationReason.SCHEDULING_TIMEOUT  # asked again for a day


def test_a_start_that_waits_for_an_answer_obeys_a_stop(
    tracks: Tracks, store: FakeObjectStore, gangs: FakeGangs, history: History, clock: FakeClock
) -> None:
    history.write_to(store)
    gangs.starts_unanswered = ROUNDS_MAX
    days = Days(clock, lambda: request_stop(tracks))
    attempt = supervisor(tracks, gangs, days).supervise("r-1", 1)
    assert attempt is not None
    assert attempt.reason is TerminationReason.USER_CANCELLED
    assert [call[0] for call in gangs.calls].count("start") == 1


def test_a_start_that_waits_for_an_answer_starts_nothing_for_an_attempt_that_was_closed(
    tracks: Tracks, store: FakeObjectStore, gangs: FakeGangs, history: History, clock: FakeClock
) -> None:
    history.write_to(store)
    gangs.starts_unanswered = 1

    def closed() -> None:
        supervised = supervisor(tracks, gangs, Days(clock))
        supervised._close(AttemptRef("r-1", 1))

    attempt = supervisor(tracks, gangs, Days(clock, closed)).supervise("r-1", 1)
    assert attempt is not None
    assert not attempt.is_open
    assert gangs.specs == []


def test_a_start_that_waits_for_an_answer_lets_go_at_a_newer_claim(
    tracks: Tracks, store: FakeObjectStore, gangs: FakeGangs, history: History, clock: FakeClock
) -> None:
    history.write_to(store)
    gangs.starts_unanswered = ROUNDS_MAX
    days = Days(clock, lambda: append(tracks, history.supervise("newer").drafts[-1]))
    assert supervisor(tracks, gangs, days).supervise("r-1", 1) is None
    assert tracks.run("r-1").attempts[0].is_open
    assert [call[0] for call in gangs.calls] == ["start"]


def test_a_newer_claim_lets_go_of_the_gang_at_once(
    tracks: Tracks, store: FakeObjectStore, gangs: FakeGangs, history: History, clock: FakeClock
) -> None:
    history.write_to(store)

    def taken_over() -> None:
        append(tracks, history.supervise("newer").drafts[-1])
        ends(gangs)()

    attempt = supervisor(tracks, gangs, Days(clock, taken_over)).supervise("r-1", 1)
    assert attempt is None
    assert {call[0] for call in gangs.calls} == {"start"}
    assert tracks.run("r-1").attempts[0].is_open


def test_where_slots_are_few_a_supervisor_starts_the_gang_and_leaves_it_running(
    tracks: Tracks, store: FakeObjectStore, gangs: FakeGangs, history: History, clock: FakeClock
) -> None:
    history.write_to(store)
    days = Days(clock)
    attempt = supervisor(tracks, gangs, days, lets_go=True).supervise("r-1", 1)
    assert attempt is not None
    assert attempt.is_open
    assert attempt.claims[-1].body.lets_go
    assert [call[0] for call in gangs.calls] == ["start"]
    assert len(days.states) == 1  # what there is by then is shown


def test_where_slots_are_few_a_gang_that_cannot_start_ends_its_attempt_at_once(
    tracks: Tracks, store: FakeObjectStore, gangs: FakeGangs, history: History, clock: FakeClock
) -> None:
    history.write_to(store)
    gangs.start_problem = "no such image"
    attempt = supervisor(tracks, gangs, Days(clock), lets_go=True).supervise("r-1", 1)
    assert attempt is not None
    assert attempt.ended is not None
    assert attempt.ended.closed_by == "mine"


def test_a_start_that_fails_after_a_newer_claim_ends_nothing(
    tracks: Tracks, store: FakeObjectStore, history: History, clock: FakeClock
) -> None:
    class TakenOver(FakeGangs):
        def start(self, spec: GangSpec) -> bool:
            append(tracks, history.supervise("newer").drafts[-1])
            return super().start(spec)

    history.write_to(store)
    gangs = TakenOver()
    gangs.start_problem = "another one starts it"
    assert supervisor(tracks, gangs, Days(clock)).supervise("r-1", 1) is None
    assert {call[0] for call in gangs.calls} == {"start"}
    assert tracks.run("r-1").attempts[0].is_open


def test_an_attempt_that_has_ended_is_refused_with_what_to_do_instead(
    tracks: Tracks, store: FakeObjectStore, gangs: FakeGangs, history: History, clock: FakeClock
) -> None:
    history.supervise().place().end("preempted").write_to(store)
    with pytest.raises(InvalidInput, match=r"r-1/a01 has ended \(preempted\).*tracks retry r-1"):
        supervisor(tracks, gangs, Days(clock)).supervise("r-1", 1)
    assert gangs.calls == []


def test_claiming_again_after_an_interruption_writes_nothing_twice(
    tracks: Tracks, store: FakeObjectStore, gangs: FakeGangs, history: History, clock: FakeClock
) -> None:
    history.write_to(store)

    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        supervisor(tracks, gangs, Days(clock, interrupted)).supervise("r-1", 1)
    supervisor(tracks, gangs, Days(clock, ends(gangs))).supervise("r-1", 1)
    kinds = [record.kind for record in tracks.records("runs/r-1")]
    assert kinds.count(Kind.ATTEMPT_SUPERVISED) == 1


@pytest.mark.parametrize(
    ("mode", "reason"),
    [
        ("drain", TerminationReason.USER_CANCELLED),
        (BUDGET, TerminationReason.BUDGET_EXHAUSTED),
    ],
)
def test_a_requested_stop_drains_the_gang_and_ends_the_attempt_as_what_asked_for_it(
    tracks: Tracks,
    store: FakeObjectStore,
    gangs: FakeGangs,
    history: History,
    clock: FakeClock,
    mode: str,
    reason: TerminationReason,
) -> None:
    history.write_to(store)
    attempt = supervisor(
        tracks, gangs, Days(clock, lambda: request_stop(tracks, mode), ends(gangs, exit_code=75))
    ).supervise("r-1", 1)
    assert attempt is not None
    assert attempt.reason is reason
    assert "drain" in {call[0] for call in gangs.calls}


def test_a_gang_that_does_not_drain_is_killed_in_bounded_time(
    tracks: Tracks, store: FakeObjectStore, gangs: FakeGangs, history: History, clock: FakeClock
) -> None:
    history.write_to(store)
    began = clock()
    days = Days(clock, lambda: request_stop(tracks))
    attempt = supervisor(tracks, gangs, days).supervise("r-1", 1)
    assert attempt is not None
    assert "kill" in {call[0] for call in gangs.calls}
    assert (clock() - began).total_seconds() < DRAIN_GRACE_S + DRAIN_KILL_S + 5


def test_the_state_is_shown_whenever_the_track_has_grown_and_only_then(
    tracks: Tracks, store: FakeObjectStore, gangs: FakeGangs, history: History, clock: FakeClock
) -> None:
    history.write_to(store)

    def train() -> None:
        append(tracks, *history.place().restore().commit(10).drafts[-3:])

    days = Days(clock, lambda: None, train, ends(gangs))
    supervisor(tracks, gangs, days).supervise("r-1", 1)
    assert [len(state.checkpoints) for state in days.states] == [0, 1, 1]


def test_a_gang_is_seen_and_drained_before_anything_is_shown_of_it(
    tracks: Tracks, store: FakeObjectStore, gangs: FakeGangs, history: History, clock: FakeClock
) -> None:
    """Its adopter has 300 commits to show, a second each."""
    history.supervise("dead").place().restore()
    for step in range(1, 31):
        history.commit(step)
    history.stop("drain").write_to(store)
    gangs.reports["r-1", 1] = GangReport(phase=GangPhase.ALIVE, where="node-1")
    at_show: list[list[str]] = []

    def show(state: RunState) -> bool:
        at_show.append([call[0] for call in gangs.calls])
        clock.advance(1.0)
        return len(at_show) > 5

    days = Days(clock, lambda: None, ends(gangs))
    ended = replace(supervisor(tracks, gangs, days), on_growth=show).supervise("r-1", 1)
    assert ended is not None
    assert "drain" in at_show[0]
    assert len(at_show) == 6  # what was left, once the attempt had ended


def test_what_cannot_be_shown_ends_no_supervisor_and_is_tried_again_later(
    tracks: Tracks, store: FakeObjectStore, gangs: FakeGangs, history: History, clock: FakeClock
) -> None:
    history.write_to(store)
    tries: list[float] = []

    def locked(state: RunState) -> bool:
        tries.append(clock().timestamp())
        if len(tries) < 3:
            raise OSError("database is locked")
        return True

    days = Days(clock, *[lambda: None] * 25, ends(gangs))
    ended = replace(supervisor(tracks, gangs, days), on_growth=locked).supervise("r-1", 1)
    assert ended is not None
    assert [later - before for before, later in pairwise(tries)][:2] == [10, 10]


def test_a_ledger_that_is_away_ends_no_supervisor(
    tracks: Tracks,
    store: FakeObjectStore,
    gangs: FakeGangs,
    history: History,
    clock: FakeClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    history.write_to(store)

    def away(name: str) -> None:
        raise LedgerError("the ledger cannot be reached")

    monkeypatch.setattr(tracks, "project", away)
    ended = supervisor(tracks, gangs, Days(clock, ends(gangs))).supervise("r-1", 1)
    assert ended is not None


def test_the_stored_code_reaches_the_gang(
    tracks: Tracks, store: FakeObjectStore, gangs: FakeGangs, history: History, clock: FakeClock
) -> None:
    history.write_to(store)
    supervisor(tracks, gangs, Days(clock, ends(gangs))).supervise("r-1", 1)
    assert gangs.specs[0].code == b"print('mine')"


def test_an_attempt_of_an_older_versions_family_does_not_start_and_says_what_follows(
    tracks: Tracks, store: FakeObjectStore, gangs: FakeGangs, clock: FakeClock
) -> None:
    History("r-1").declare().open().write_to(store)
    attempt = supervisor(tracks, gangs, Days(clock)).supervise("r-1", 1)
    assert attempt is not None
    assert attempt.ended is not None
    assert gangs.specs == []
    assert "The next attempt gets the code of the example" in attempt.ended.root_message


def request_stop(tracks: Tracks, mode: str = "drain") -> None:
    draft = tracks.draft(Kind.STOP_REQUESTED, StopRequested(by="ann", why="enough", mode=mode))
    append(tracks, draft)


def append(tracks: Tracks, *drafts: Draft) -> None:
    """Append records that others write, after what stands in the track."""
    for draft in drafts:
        tracks.decide_run("r-1", partial(_always, draft))


def _always(draft: Draft, state: RunState | None) -> Draft:
    return draft


def test_an_attempt_that_was_stopped_before_its_gang_started_never_starts_one(
    tracks: Tracks, store: FakeObjectStore, gangs: FakeGangs, history: History, clock: FakeClock
) -> None:
    history.write_to(store)
    request_stop(tracks)
    attempt = supervisor(tracks, gangs, Days(clock)).supervise("r-1", 1)
    assert attempt is not None
    assert attempt.reason is TerminationReason.USER_CANCELLED
    assert gangs.specs == []

"""Waits by class beside the objectives: hand-made runs, and the alert of a class that misses."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from tests.bodies import BEGIN, placed
from tests.fakes import FakeClock, FakeObjectStore
from tests.histories import History
from tracks_dagster.ledger.effects.projector import Projector
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.review import slo
from tracks_dagster.review.effects.slo import SloReport, read_slo, tell_of_misses
from tracks_dagster.review.slo import Judged, Wait, Waits, judge, missed
from tracks_dagster.scheduling.policy import SHIPPED_CLASSES, SchedulingPolicy, WorkloadClass
from tracks_dagster.track.records import format_time

MIN = 60.0
LONG = timedelta(days=30)
NONE = WorkloadClass()
POLICY = SchedulingPolicy(
    classes={
        "eval": WorkloadClass(queue_s=MIN, completion_s=10 * MIN),
        "single": WorkloadClass(queue_s=10 * MIN, completion_s=3600.0, recovery_s=2 * MIN),
        "urgent": WorkloadClass(queue_s=MIN),
    }
)


def waits(**changes: object) -> Waits:
    fields = {"count": 20, "still": 0, "late": 2, "p50_s": 5.0, "p95_s": 61.0, "longest_s": 90.0}
    return Waits(
        **{"workload_class": "urgent", "wait": Wait.QUEUE, "longest_run_id": "r-1"}
        | fields
        | changes
    )


@pytest.mark.parametrize(
    ("p95_s", "is_missed"), [(60.0, False), (60.1, True)], ids=["as promised", "above it"]
)
def test_an_objective_is_missed_when_the_95th_percentile_is_above_it(
    p95_s: float, is_missed: bool
) -> None:
    judged = judge(POLICY.classes, [waits(p95_s=p95_s)])
    [urgent] = [each for each in judged if each.workload_class == "urgent"]
    assert urgent.is_missed is is_missed
    assert missed(judged) == ((urgent,) if is_missed else ())


def test_of_fewer_than_twenty_waits_no_objective_is_missed() -> None:
    """A first run that took long was an alert: "95 of 100 times", of one."""
    found = waits(count=19, late=19, p95_s=90.0)
    [urgent] = [each for each in judge(POLICY.classes, [found]) if each.waits is not None]
    assert not urgent.is_missed
    assert "19 of 19 took longer" in urgent.doubt
    assert missed([urgent]) == ()


def test_what_is_missed_names_the_numbers_and_the_run() -> None:
    judged = Judged(
        workload_class="urgent", wait=Wait.QUEUE, objective_s=MIN, waits=waits(p95_s=130.0)
    )
    assert judged.sentence == (
        "class urgent: 95 of 100 times it started within 2 min, and the objective is 1 min; "
        "2 of 20 took longer, r-1 the longest, 90 s"
    )


def test_what_has_no_objective_or_no_work_is_not_judged() -> None:
    judged = judge({"a": NONE, "b": WorkloadClass(queue_s=1.0)}, [waits(workload_class="a")])
    assert [(each.workload_class, each.waits is None) for each in judged] == [
        ("a", False),
        ("b", True),
    ]
    assert missed(judged) == ()


class Timed:
    """A run whose records stand at the minutes that a test names."""

    def __init__(self, run_id: str, **declared: object) -> None:
        self.history = History(run_id).declare(**declared)

    def at(self, minutes: float) -> History:
        self.history.at = BEGIN + timedelta(minutes=minutes)
        return self.history

    def attempt(
        self, opened: float, started: float, ended: float | None = None, reason: str = "preempted"
    ) -> Timed:
        """An attempt that is placed and restored at once when its ranks have started."""
        self.at(opened).open()
        self.at(started).place(ranks=placed("x").ranks[:1])
        self.at(started).restore()
        if ended is not None:
            self.at(ended).end(
                reason,
                last_step=10,
                started_at=format_time(BEGIN + timedelta(minutes=started)),
                finished_at=format_time(BEGIN + timedelta(minutes=ended)),
            )
        return self


def read(ledger: Ledger, minutes: float, *runs: Timed, last: timedelta = LONG) -> SloReport:
    store = FakeObjectStore()
    for run in runs:
        run.history.write_to(store)
    Projector(store, ledger).scan()
    return read_slo(ledger, POLICY, as_of=BEGIN + timedelta(minutes=minutes), last=last)


def of(report: SloReport, workload_class: str, wait: Wait) -> Waits | None:
    [found] = [
        each for each in report.judged if (each.workload_class, each.wait) == (workload_class, wait)
    ]
    return found.waits


def test_queue_waits_are_from_the_decision_to_the_first_rank(ledger: Ledger) -> None:
    runs = [Timed(f"r-{n:02d}").attempt(0, n, 60, "completed") for n in range(1, 21)]
    report = read(ledger, 100, *runs)
    found = of(report, "single", Wait.QUEUE)
    assert found is not None
    # 1, 2 … 20 min: the 10th of 20 and the 19th; 11 to 20 are later than 10 min
    assert (found.count, found.late, found.longest_run_id) == (20, 10, "r-20")
    assert (found.p50_s, found.p95_s) == pytest.approx((10 * MIN, 19 * MIN))
    assert of(report, "urgent", Wait.QUEUE) is None


def test_who_still_waits_counts_once_it_is_late(ledger: Ledger) -> None:
    waiting = Timed("w", workload_class="urgent")
    waiting.at(0).open()
    soon = of(read(ledger, 0.5, waiting), "urgent", Wait.QUEUE)
    assert soon is None
    later = of(read(ledger, 5, waiting), "urgent", Wait.QUEUE)
    assert later is not None
    assert (later.count, later.still, later.late) == (1, 1, 1)
    assert later.p95_s == pytest.approx(5 * MIN)


def test_recovery_is_from_the_end_that_nobody_meant_to_the_next_restore(ledger: Ledger) -> None:
    back = Timed("back").attempt(0, 1, 10).attempt(11, 13, 20, "completed")  # 3 min
    still = Timed("still").attempt(0, 1, 10)
    given_up = Timed("refused").attempt(0, 1, 10, "code_error")
    given_up.at(11).refuse("reason")
    stopped = Timed("stopped").attempt(0, 1, 10, "user_cancelled")
    report = read(ledger, 30, back, still, given_up, stopped)
    found = of(report, "single", Wait.RECOVERY)
    assert found is not None
    assert (found.count, found.still, found.late) == (2, 1, 2)
    assert found.p50_s == pytest.approx(3 * MIN)
    assert (found.longest_run_id, found.longest_s) == ("still", pytest.approx(20 * MIN, abs=15))


def test_completion_is_from_the_declaration_to_success(ledger: Ledger) -> None:
    done = Timed("done").attempt(0, 1, 30, "completed")
    done.at(40).finish()
    running = Timed("runs").attempt(0, 1)
    early = of(read(ledger, 45, done, running), "single", Wait.COMPLETION)
    assert early is not None
    assert (early.count, early.still, early.p95_s) == (1, 0, pytest.approx(40 * MIN, abs=15))
    late = of(read(ledger, 90, done, running), "single", Wait.COMPLETION)
    assert late is not None
    assert (late.count, late.still, late.longest_run_id) == (2, 1, "runs")


def test_evals_are_a_class_of_their_own(ledger: Ledger) -> None:
    run = Timed("r", workload_class="urgent").attempt(0, 0.5)
    run.at(2).commit(10)
    ref = run.history.state.checkpoints[0].ref
    for number, (opened, started, ended, reason) in enumerate(
        [(3, 4, 6, "host_oom"), (7, 10, 12, "completed")]
    ):
        run.at(opened).open_eval(ref)
        run.at(ended).end_eval(
            run.history.state.evals[number].opened,
            reason,
            started_at=format_time(BEGIN + timedelta(minutes=started)),
        )
    report = read(ledger, 30, run)
    queue, completion, recovery = (of(report, "eval", wait) for wait in Wait)
    assert queue is not None
    assert completion is not None
    assert recovery is not None
    assert (queue.count, queue.longest_s) == (2, pytest.approx(3 * MIN))
    assert (completion.count, completion.longest_s) == (1, pytest.approx(9 * MIN))
    assert (recovery.count, recovery.longest_s) == (1, pytest.approx(4 * MIN))


def test_only_what_was_over_in_that_time_counts(ledger: Ledger) -> None:
    old = Timed("old").attempt(0, 1, 10, "completed")
    new = Timed("new").attempt(60, 64, 70, "completed")
    found = of(read(ledger, 100, old, new, last=timedelta(hours=1)), "single", Wait.QUEUE)
    assert found is not None
    assert (found.count, found.longest_run_id) == (1, "new")


def test_a_class_that_is_gone_counts_as_the_default_one(ledger: Ledger) -> None:
    found = of(
        read(ledger, 30, Timed("r", workload_class="gone").attempt(0, 1)), "single", Wait.QUEUE
    )
    assert found is not None
    assert found.count == 1


def test_a_class_that_misses_is_reported_once_a_day_in_the_track_of_the_longest(
    ledger: Ledger,
    tracks: Tracks,
    store: FakeObjectStore,
    clock: FakeClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(slo, "COUNT_MIN", 1)
    slow = Timed("slow", workload_class="urgent").attempt(0, 5, 10, "completed")
    slow.history.write_to(store)
    tracks.project("runs/slow")

    def tell(now: datetime) -> int:
        return len(tell_of_misses(tracks, ledger, POLICY, now=now).decided)

    clock.at = BEGIN + timedelta(minutes=30)
    assert (tell(clock.at), tell(clock.at)) == (1, 0)
    [alert] = tracks.run("slow").alerts
    assert alert.body.rule == "objective_missed"
    assert alert.body.text.startswith("On the last day, class urgent: 95 of 100 times")
    assert alert.body.data == {"workload_class": "urgent", "wait": "queue", "day": "2026-01-31"}
    assert tell(BEGIN + timedelta(days=10)) == 0  # the day has no waits
    met = replace(POLICY, classes={**SHIPPED_CLASSES, "urgent": WorkloadClass(queue_s=3600.0)})
    assert tell_of_misses(tracks, ledger, met, now=clock.at).decided == ()

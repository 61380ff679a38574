"""The ledger's last days under other policies."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from datetime import UTC, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.bodies import BEGIN, CONFIG
from tests.histories import History
from tests.wings.history.worlds import BEGIN as IMPORTED_AT
from tests.wings.history.worlds import HEADER, import_world, row
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.retry.default_policy import DEFAULT_POLICY
from tracks_dagster.track.bodies import Debit
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.names import run_track
from tracks_dagster.track.records import Json, format_time
from tracks_dagster.wings.history import jsonl
from tracks_dagster.wings.history.slurm import Sacct
from tracks_dagster.wings.lab.simulation.compare import OURS
from tracks_dagster.wings.lab.simulation.effects.own_queue import (
    own_queue,
    own_workload,
    peak_devices,
)
from tracks_dagster.wings.lab.simulation.effects.simulate import (
    AS_IT_WAS,
    ITS_OWN,
    Replayed,
    Saving,
    replay,
)
from tracks_dagster.wings.lab.simulation.workloads import Submission

DEBIT = Debit(reason="code_error", amount=1.0, fingerprint="code_error:root", why="it ended so")
SINCE = BEGIN - timedelta(hours=1)


def lived(history: History, seconds: float, reason: str, *, step: int, **opened: Any) -> None:
    """Add an attempt on two ranks that holds its devices so long and ends after `step`."""
    history.open(**opened).place().restore()
    placed_at = history.state.attempts[-1].placed_at
    assert placed_at is not None
    history.at = placed_at + timedelta(seconds=seconds)
    history.end(
        reason,
        last_step=step,
        device_seconds=2 * seconds,
        started_at=format_time(placed_at),
        finished_at=format_time(history.at),
    )


def replayed(tracks: Tracks, ledger: Ledger, *histories: History) -> Replayed:
    """Store the histories and replay them."""
    for history in histories:
        history.write_to(tracks.store)
        tracks.project(run_track(history.run_id))
    return replay(ledger, DEFAULT_POLICY, since=SINCE, every_s=[100.0])


def broken_run(retries: int) -> History:
    """Return a run that met one and the same code error again and again, an hour each time."""
    history = History("broken").declare(estimated_device_s=1e6)
    lived(history, 3600.0, "code_error", step=100)
    for _ in range(retries):
        lived(history, 3600.0, "code_error", step=100, debit=DEBIT)
    return history


def saving(found: Replayed, policy: str) -> Saving:
    """Return what a policy would have saved, with the run's own checkpoints."""
    return next(s for s in found.savings if (s.policy, s.cadence) == (policy, ITS_OWN))


def test_what_was_paid_for_the_same_failure_again_is_what_ours_would_have_saved(
    tracks: Tracks, ledger: Ledger
) -> None:
    found = replayed(tracks, ledger, broken_run(retries=4))
    was = found.rows[0]
    assert (was.policy, was.outcome.attempts) == (AS_IT_WAS, 5)
    assert was.outcome.kept_s == 0.0  # nothing was saved
    assert was.outcome.wasted_device_s / 3600 == pytest.approx(10.0, rel=0.02)  # 5 h on 2 devices
    # one confirmation: two attempts instead of five, three hours of two devices less
    assert saving(found, "ours").attempts_less == 3
    assert saving(found, "ours").wasted_less_h == pytest.approx(6.0, rel=0.02)
    assert saving(found, "3 retries").attempts_less == 1
    assert saving(found, "unlimited retries").attempts_less == 0
    assert saving(found, "unlimited retries").wasted_less_h == pytest.approx(0.0, abs=0.1)


def test_retries_that_met_the_same_failure_and_kept_nothing_are_counted_as_dead(
    tracks: Tracks, ledger: Ledger
) -> None:
    found = replayed(tracks, ledger, broken_run(retries=2))
    assert found.dead_count == 2
    assert found.dead == {"code_error": pytest.approx(4.0)}


def test_a_person_who_took_the_run_up_does_so_again(tracks: Tracks, ledger: Ledger) -> None:
    history = broken_run(retries=2)
    lived(history, 600.0, "completed", step=110, cause="manual_retry")
    found = replayed(tracks, ledger, history)
    ours = next(row for row in found.rows if (row.policy, row.cadence) == ("ours", ITS_OWN))
    assert ours.outcome.ends == {"code_error": 2, "completed": 1}
    assert ours.outcome.complete == 1


def test_closer_checkpoints_would_have_kept_what_was_lost(tracks: Tracks, ledger: Ledger) -> None:
    history = History("lost").declare(estimated_device_s=1e6)
    lived(history, 1007.0, "preempted", step=1000)
    lived(history, 1007.0, "completed", step=1000)
    found = replayed(tracks, ledger, history)
    by_cadence = {row.cadence: row.outcome for row in found.rows if row.policy == "ours"}
    # 1000 s of steps in each attempt, and neither saved anything: not even the last one's are kept
    assert by_cadence[ITS_OWN].lost_s == pytest.approx(2000.0, rel=0.01)
    assert by_cadence["100 s"].lost_s < 110.0
    for outcome in by_cadence.values():
        assert outcome.kept_s + outcome.lost_s + outcome.saving_s + outcome.restart_s + (
            outcome.waiting_s + outcome.down_s
        ) == pytest.approx(outcome.wall_s)


def test_the_account_of_what_was_adds_up(tracks: Tracks, ledger: Ledger) -> None:
    whole = History("whole").declare(config=CONFIG).open().place().restore().commit(10).commit(20)
    whole.end("preempted", last_step=23)
    lived(whole, 100.0, "completed", step=40)
    was = replayed(tracks, ledger, whole).rows[0].outcome
    parts = (was.kept_s, was.lost_s, was.saving_s, was.restart_s, was.waiting_s, was.down_s)
    assert sum(parts) == pytest.approx(was.wall_s)
    assert min(parts) >= 0.0


def test_a_window_without_an_end_is_reported(tracks: Tracks, ledger: Ledger) -> None:
    with pytest.raises(InvalidInput, match=r"No attempt has ended since .*--last"):
        replayed(tracks, ledger, History("open").declare().open())


def test_only_attempts_that_ended_inside_the_window_are_replayed(
    tracks: Tracks, ledger: Ledger
) -> None:
    history = broken_run(retries=1)
    replayed(tracks, ledger, history)
    first_ended_at = history.state.attempts[0].ended_at
    assert first_ended_at is not None
    found = replay(
        ledger, DEFAULT_POLICY, since=first_ended_at + timedelta(seconds=60), every_s=[100.0]
    )
    assert found.rows[0].outcome.attempts == 1


def test_the_ledgers_runs_and_evals_are_submissions_with_the_time_that_they_took(
    tracks: Tracks, ledger: Ledger
) -> None:
    history = History("lost").declare(estimated_device_s=1e6, workload_class="sweep")
    lived(history, 1007.0, "preempted", step=1000)
    lived(history, 507.0, "completed", step=1500)
    history.write_to(tracks.store)
    tracks.project(run_track("lost"))
    declared = history.state.declared
    (found,) = own_queue(ledger, since=SINCE)
    assert (found.name, found.at_s, found.devices) == ("lost", 0.0, 2)
    assert found.work_s == pytest.approx(1500.0, rel=0.01)  # without its two starts
    assert (found.workload_class, found.team, found.owner) == (
        "sweep",
        declared.team,
        declared.owner,
    )
    assert found.task == f"{declared.team}/{declared.model_family}, 2 ranks, steps 0 to 40"
    # The live queue asks nobody for an estimate: it goes by what runs of the task took.
    assert (found.estimate_s, found.saves_every_s) == (None, None)
    with pytest.raises(InvalidInput, match="no queue to play; look further back"):
        own_queue(ledger, since=history.at + timedelta(days=1))
    played_on = own_workload(ledger, since=SINCE, nodes=None, devices_per_node=None)
    assert len(played_on.devices) == 2
    with pytest.raises(InvalidInput, match="The largest run has 2 ranks, and 1 × 1 devices are"):
        own_workload(ledger, since=SINCE, nodes=1, devices_per_node=1)


def test_the_most_devices_at_once_are_counted_as_if_nothing_waited() -> None:
    def one(name: str, at_s: float, devices: int, work_s: float) -> Submission:
        return Submission(name=name, at_s=at_s, devices=devices, work_s=work_s)

    # 2 from 0 to 100 s and 1 from 50 s on; then 4 more, as the 2 end
    assert peak_devices([one("a", 0.0, 2, 100.0), one("b", 50.0, 1, 80.0)]) == 3
    assert peak_devices([one("a", 0.0, 2, 100.0), one("b", 100.0, 4, 1.0)]) == 4


def test_of_a_month_of_slurm_what_completed_is_worth_its_time(tmp_path: Path) -> None:
    world = import_world(tmp_path)
    jobs = [row(7, hour=0), row(8, hour=2, State="NODE_FAIL"), row(9, hour=4), row(10, hour=6)]
    world.add([HEADER, *jobs], parse=Sacct(zone=UTC, by_name=True).read)
    since = IMPORTED_AT - timedelta(hours=1)
    found = replay(world.ledger, DEFAULT_POLICY, since=since, every_s=[100.0])
    rows = {(row.policy, row.cadence): row.outcome for row in found.rows}
    was, again, saving = (
        rows[key] for key in ((AS_IT_WAS, ITS_OWN), (OURS, ITS_OWN), (OURS, "100 s"))
    )
    assert (found.run_count, was.attempts, again.attempts, saving.attempts) == (1, 4, 4, 4)
    hour = 16 * 3600.0
    assert (was.kept_device_s, was.wasted["node_failure"]) == (3 * hour, hour)
    assert (again.kept_device_s, again.wasted_device_s) == pytest.approx((3 * hour, hour), rel=1e-3)
    assert saving.wasted_device_s <= 16 * 100.0
    assert "What imported attempts saved is not known (4)" in found.assumptions[-1]
    queue = own_queue(world.ledger, since=since)
    hours = [(each.name, each.work_s / 3600.0) for each in queue]
    (run_id,) = world.runs()
    assert hours == [(run_id, 1.0), (f"{run_id}, part 2", 2.0), (f"{run_id}, part 3", 1.0)]


Lines = list[dict[str, Json]]
UNLIMITED = "unlimited retries"


def lines(run: str, spans: Sequence[tuple[float, int | None, int | None, bool]]) -> Lines:
    """Return attempts as lines to import; spans: seconds, first and last step, whether it completed."""
    found: Lines = []
    at = IMPORTED_AT
    for seconds, resumed, last, is_done in spans:
        line: dict[str, Json] = {"run": run, "started_at": format_time(at), "devices": 4}
        at += timedelta(seconds=seconds)
        line |= {"ended_at": format_time(at), "succeeded": is_done}
        steps = {"resumed_step": resumed, "last_step": last}
        found.append(line | {key: step for key, step in steps.items() if step is not None})
        at += timedelta(seconds=60)
    return found


def replayed_lines(folder: Path, given: Lines) -> Replayed:
    """Import the lines and replay them."""
    world = import_world(folder)
    world.add([json.dumps(each) for each in given], name="own", parse=jsonl.read)
    since = IMPORTED_AT - timedelta(hours=1)
    return replay(world.ledger, DEFAULT_POLICY, since=since, every_s=[100.0])


def assert_its_own_is_as_it_was(found: Replayed) -> None:
    """A second an attempt may be counted otherwise: they are played in steps of one."""
    rows = {(row.policy, row.cadence): row.outcome for row in found.rows}
    was, again = rows[AS_IT_WAS, ITS_OWN], rows[UNLIMITED, ITS_OWN]
    assert (again.attempts, again.complete, again.ends) == (was.attempts, was.complete, was.ends)
    near = pytest.approx(was.kept_device_s, abs=4.0 * was.attempts)
    assert again.kept_device_s == near
    assert again.wasted_device_s == pytest.approx(was.wasted_device_s, abs=4.0 * was.attempts)
    closer = rows[OURS, "100 s"]
    assert closer.kept_device_s >= rows[OURS, ITS_OWN].kept_device_s - 4.0 * closer.attempts


def test_of_an_imported_run_with_steps_its_own_saves_make_what_was(tmp_path: Path) -> None:
    # 1000 steps, of which the next attempt began with 800, and 1200 more, of 10 s each
    spans = [(10_000.0, None, 1000, False), (12_000.0, 800, 2000, True)]
    found = replayed_lines(tmp_path, lines("a", spans))
    was = found.rows[0].outcome
    assert (was.kept_s, was.lost_s, was.complete) == (20_000.0, 2000.0, 1)
    assert_its_own_is_as_it_was(found)
    assert "What imported attempts saved is not known (2)" in found.assumptions[-1]
    by_cadence = {row.cadence: row.outcome for row in found.rows if row.policy == OURS}
    assert by_cadence["100 s"].lost_s <= 100.0  # which would have saved until the first one's end


def test_the_last_imported_attempt_keeps_what_the_ledger_says(tmp_path: Path) -> None:
    spans = [(1000.0, None, 100, False), (500.0, 50, 90, False)]
    found = replayed_lines(tmp_path, lines("a", spans))
    assert found.rows[0].outcome.kept_s == 1000.0  # half of the first, and all of the last
    assert_its_own_is_as_it_was(found)


@pytest.mark.parametrize("seed", range(8))
def test_of_imported_runs_their_own_saves_make_what_was(tmp_path: Path, seed: int) -> None:
    drawn = random.Random(seed)
    given: Lines = []
    for number in range(drawn.randint(1, 4)):
        spans: list[tuple[float, int | None, int | None, bool]] = []
        last = 0
        for _ in range(drawn.randint(1, 6)):
            resumed = drawn.choice([None, 0, last, drawn.randint(0, last)])
            last = (resumed or 0) + drawn.choice([0, 1, drawn.randint(1, 10_000)])
            seconds = drawn.choice([0.5, drawn.uniform(1, 50), drawn.uniform(1000, 90_000)])
            known = None if drawn.random() < 0.2 else last
            spans.append((seconds, resumed, known, drawn.random() < 0.3))
        given += lines(f"r{number}", spans)
    assert_its_own_is_as_it_was(replayed_lines(tmp_path, given))

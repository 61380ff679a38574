"""The watch over runs: alerts are recorded once, no matter who looks and wherever he is killed."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from datetime import timedelta

import pytest

from tests.deciders import world_of
from tests.fakes import FakeClock, FakeObjectStore, Fault, SequentialUids
from tests.histories import History
from tracks_dagster.attempts.effects.world import World
from tracks_dagster.ledger.effects.deciding import Settled, decide_due
from tracks_dagster.ledger.effects.projector import Projector
from tracks_dagster.ledger.effects.ticks import ONE_BY_ONE, Tick
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.review.lights import Colour
from tracks_dagster.stores.journals import journal_prefix
from tracks_dagster.track.bodies import CheckpointCadence, TimeSpent
from tracks_dagster.track.errors import InvalidInput, UnknownRun
from tracks_dagster.track.names import AttemptRef
from tracks_dagster.track.records import Kind, format_time
from tracks_dagster.wings.watch.health.effects.listing import read_alerts
from tracks_dagster.wings.watch.health.effects.looking import look_back
from tracks_dagster.wings.watch.health.effects.muting import mute, unmute
from tracks_dagster.wings.watch.health.effects.watch import WatchHealth

RANKS = 8


class Gang:
    """A gang whose rank 5 is as slow as the test wants; every step takes a second of its clock."""

    def __init__(self, store: FakeObjectStore, run_id: str = "r-1") -> None:
        self.store = store
        self.history = History(run_id).declare(cadence=CheckpointCadence())
        self.history.open().supervise().place(world_size=RANKS).restore()
        self.history.write_to(store)
        self.at = self.history.at
        self._lines: list[str] = []
        self._step = 0
        self._prefix = journal_prefix(AttemptRef(run_id, 1), self.history.launch_id, 0)

    def train(self, steps: int, *, factor: float = 1.0) -> None:
        """Run so many steps, rank 5 with `factor` times the compute of the others; ship them."""
        for _ in range(steps):
            self._step += 1
            self.at += timedelta(seconds=1)
            self._write(
                "step",
                step=self._step,
                loss=5.0 / self._step,
                metrics={},
                data_s=0.1,
                step_s=0.2 + 0.2 * factor,
                own_s=0.2,
            )
            if self._step % 5 == 0:
                own_s = [0.2 * factor if rank == 5 else 0.2 for rank in range(RANKS)]
                self._write(
                    "ranks",
                    step=self._step,
                    over=5,
                    own_s=own_s,
                    data_s=[0.1] * RANKS,
                    step_s=[0.2 + 0.2 * factor] * RANKS,
                )
        data = "".join(f"{line}\n" for line in self._lines).encode()
        self.store.put(f"{self._prefix}{0:012d}.jsonl", data)

    def _write(self, kind: str, **fields: object) -> None:
        self._lines.append(json.dumps({"kind": kind, "t": format_time(self.at), **fields}))


Look = Callable[[Gang], Tick[Settled]]


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> WatchHealth:
    monkeypatch.setattr("tracks_dagster.wings.watch.health.effects.tails.READ_S_MIN", 0.0)
    return WatchHealth()


@pytest.fixture
def look(watch: WatchHealth, tracks: Tracks, ledger: Ledger, clock: FakeClock) -> Look:
    """A tick of the watch, at the time of the gang's last line."""

    def looked(gang: Gang) -> Tick[Settled]:
        clock.at = gang.at
        return decide_due(world(tracks, ledger), [watch], ONE_BY_ONE)

    return looked


def world(tracks: Tracks, ledger: Ledger) -> World:
    return world_of(tracks, ledger)


@pytest.fixture
def gang(store: FakeObjectStore, ledger: Ledger) -> Gang:
    made = Gang(store)
    Projector(store, ledger).scan()
    return made


def test_a_slow_rank_is_one_alert_within_thirty_steps_and_ends_when_it_keeps_up(
    gang: Gang, look: Look, tracks: Tracks, ledger: Ledger
) -> None:
    gang.train(20)
    assert look(gang).decided == ()
    gang.train(30, factor=2.0)
    [said] = look(gang).decided
    assert said.startswith("r-1: alerted: Local: rank 5 on node-1 (cpu), compute. Over 20 steps")
    gang.train(10, factor=2.0)
    assert look(gang).decided == ()
    [alert] = tracks.run("r-1").open_alerts
    assert (alert.body.rule, alert.body.severity, alert.attempt_id) == ("slow_rank", "yellow", 1)
    assert str(alert.body.data["advice"]).startswith("continue; the slope of the loss is not")
    [line] = read_alerts(tracks, ledger).lines
    assert (line.rule, line.runbook, line.muted) == (
        "slow_rank",
        "docs/runbooks/slow_rank.md",
        None,
    )
    gang.train(60)
    [said] = look(gang).decided
    assert said == "r-1: cleared: slow_rank is over: The rule no longer holds."
    assert read_alerts(tracks, ledger).lines == ()
    [line] = read_alerts(tracks, ledger, ended=True).lines
    assert line.cleared_why == "The rule no longer holds."


def test_two_watchers_and_a_lost_reply_leave_one_alert(
    gang: Gang,
    look: Look,
    tracks: Tracks,
    ledger: Ledger,
    store: FakeObjectStore,
    clock: FakeClock,
    new_uid: SequentialUids,
) -> None:
    gang.train(60, factor=2.0)
    store.fail("create", 1, Fault.LOST_AFTER)
    look(gang)
    other = Tracks(store, now=clock, new_uid=new_uid, project=lambda track: None)
    assert decide_due(world(other, ledger), [WatchHealth()], ONE_BY_ONE).decided == ()
    assert look(gang).decided == ()
    kinds = [record.kind for record in tracks.records("runs/r-1")]
    assert kinds.count(Kind.ALERT) == 1


def test_a_watcher_that_begins_again_raises_nothing_twice_and_ends_what_another_began(
    gang: Gang, look: Look, tracks: Tracks, ledger: Ledger
) -> None:
    gang.train(60, factor=2.0)
    look(gang)
    again = WatchHealth()
    assert decide_due(world(tracks, ledger), [again], ONE_BY_ONE).decided == ()
    gang.train(90)
    look(gang)
    assert tracks.run("r-1").open_alerts == ()


def test_a_run_that_is_over_is_no_longer_looked_at(
    gang: Gang, look: Look, tracks: Tracks, ledger: Ledger, store: FakeObjectStore
) -> None:
    gang.train(60, factor=2.0)
    gang.history.end("completed", last_step=60).finish().write_to(store)
    tracks.project("runs/r-1")
    assert look(gang).decided == ()
    assert list(WatchHealth().due(world(tracks, ledger))) == []


def test_a_tick_over_many_runs_costs_a_few_reads_each(
    watch: WatchHealth, tracks: Tracks, ledger: Ledger, store: FakeObjectStore, clock: FakeClock
) -> None:
    gangs = [Gang(store, f"r-{number}") for number in range(20)]
    Projector(store, ledger).scan()
    for gang in gangs:
        gang.train(100)
    clock.at = max(gang.at for gang in gangs)
    decide_due(world(tracks, ledger), [watch], ONE_BY_ONE)
    for gang in gangs:
        gang.train(30)
    clock.at = max(gang.at for gang in gangs)
    store.calls.clear()
    decide_due(world(tracks, ledger), [watch], ONE_BY_ONE)
    count = Counter(method for method, _ in store.calls)
    assert count["list"] == 0
    assert count["get"] <= 20 * 4, (
        count
    )  # the track's next record, twice; the segment; the next one


def test_after_its_end_an_attempt_is_judged_by_its_last_line_and_an_open_one_now(
    gang: Gang, tracks: Tracks, store: FakeObjectStore
) -> None:
    gang.train(60, factor=2.0)
    history, last_at = gang.history, gang.at
    history.at = last_at + timedelta(hours=1)
    history.end("hang", last_step=60).open().supervise().place().restore().write_to(store)
    records, now = tracks.records("runs/r-1"), history.at
    ended, current = (look_back(store, records, {1, 2, 9}, now)[number] for number in (1, 2))
    assert (ended.as_of, current.as_of) == (last_at, now)
    assert (ended.attempt_id, ended.step, ended.healthy.rules) == (1, 60, ("slow_rank",))
    assert ended.resources.colour is Colour.GREEN
    assert {light.colour for light in current.all} == {Colour.GREY}
    assert look_back(store, records, set(), now) == {}


def test_a_look_back_reads_the_end_of_a_long_journal_alone(
    gang: Gang, tracks: Tracks, store: FakeObjectStore
) -> None:
    gang.train(5)
    prefix = journal_prefix(AttemptRef("r-1", 1), gang.history.launch_id, 0)
    line = store.objects[f"{prefix}{0:012d}.jsonl"]
    for segment in range(50):
        store.put(f"{prefix}{segment * len(line):012d}.jsonl", line)
    gang.history.end("hang", last_step=5).write_to(store)
    records = tracks.records("runs/r-1")
    store.calls.clear()
    assert look_back(store, records, {1}, gang.at)[1].step == 5
    assert Counter(method for method, _ in store.calls) == {"list": 1, "get": 10}


def test_a_muted_rule_is_recorded_and_marked(
    gang: Gang, look: Look, tracks: Tracks, ledger: Ledger, clock: FakeClock
) -> None:
    mute(tracks, "slow_rank", run_id="r-1", for_s=7200, by="ann", why="being replaced")
    gang.train(60, factor=2.0)
    look(gang)
    [line] = read_alerts(tracks, ledger).lines
    assert line.muted is not None
    assert line.muted.startswith("slow_rank of r-1 is muted until 2026-01-31T0")
    assert line.muted.endswith("by ann: being replaced")
    [row] = ledger.query("select rule, run_id, muted_by, unmuted_at from mutes")
    assert (row["rule"], row["run_id"], row["muted_by"], row["unmuted_at"]) == (
        "slow_rank",
        "r-1",
        "ann",
        None,
    )
    assert unmute(tracks, "slow_rank", run_id=None, by="ann", why="back") is None  # another mute
    assert unmute(tracks, "slow_rank", run_id="r-1", by="ann", why="back") is not None
    assert read_alerts(tracks, ledger).mutes == ()
    assert read_alerts(tracks, ledger).lines[0].muted is None


@pytest.mark.parametrize(
    ("muted", "rule", "run_id", "after_s", "is_muted"),
    [
        (("slow_rank", None), "slow_rank", "r-1", 60, True),
        (("slow_rank", None), "loss_flat", "r-1", 60, False),
        (("*", None), "loss_flat", "r-2", 60, True),
        (("*", "r-1"), "loss_flat", "r-1", 60, True),
        (("*", "r-1"), "loss_flat", "r-2", 60, False),
        (("*", "r-1"), "device_unheld", None, 60, False),
        (("slow_rank", None), "slow_rank", "r-1", 7200, False),  # it ends by itself
    ],
)
def test_a_mute_covers_its_rule_its_run_and_its_time(
    muted: tuple[str, str | None],
    rule: str,
    run_id: str | None,
    after_s: float,
    is_muted: bool,
    tracks: Tracks,
    gang: Gang,
    clock: FakeClock,
) -> None:
    mute(tracks, muted[0], run_id=muted[1], for_s=7200, by="ann", why="noise")
    clock.advance(after_s)
    mutes = tracks.find_mutes()
    assert mutes is not None
    assert (mutes.mute_of(rule, run_id, clock.at) is not None) is is_muted


def test_a_mute_of_what_there_is_not_is_refused_in_words(tracks: Tracks, gang: Gang) -> None:
    with pytest.raises(
        InvalidInput, match=r"'slow_ranks' is not a rule of alerts; did you mean slow_rank"
    ):
        mute(tracks, "slow_ranks", run_id=None, for_s=60, by="ann", why="noise")
    with pytest.raises(UnknownRun):
        mute(tracks, "slow_rank", run_id="r-9", for_s=60, by="ann", why="noise")
    with pytest.raises(InvalidInput, match="write 1s to 30d"):
        mute(tracks, "slow_rank", run_id=None, for_s=31 * 86400, by="ann", why="noise")
    assert tracks.find_mutes() is None


def test_a_fresh_run_is_compared_with_what_its_config_took_before(
    store: FakeObjectStore, ledger: Ledger, look: Look, tracks: Tracks
) -> None:
    earlier = History("earlier").declare().open().place(world_size=RANKS).restore()
    spent = TimeSpent(steps_s=10.0, data_s=2.0)  # 100 steps in 12 s
    earlier.end("completed", last_step=100, spent=spent).write_to(store)
    gang = Gang(store)
    Projector(store, ledger).scan()
    gang.train(120)
    [said] = look(gang).decided
    assert "A step takes 0.5 s, and with this config it took 0.12 s before: 24%" in said

"""From a record to a person: at least once, whatever is killed or down, and nothing unasked."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

import pytest

from tests.fakes import FakeClock, FakeObjectStore, Fault
from tests.histories import History
from tests.receivers import Hook, hook_server
from tracks_dagster.ledger.effects.following import StoredCursors
from tracks_dagster.ledger.effects.ticks import ONE_BY_ONE, Tick
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.track.bodies import MuteDecision
from tracks_dagster.track.errors import StoreUnavailable, TrackBroken
from tracks_dagster.track.records import Kind, format_time
from tracks_dagster.track.states.mute_state import MuteState
from tracks_dagster.track.text.redact import redact
from tracks_dagster.wings.watch.notifying.delivery import TRIES_MAX, Channel, Delivery, Letter
from tracks_dagster.wings.watch.notifying.effects import notify
from tracks_dagster.wings.watch.notifying.effects.notify import (
    CHANNEL_LETTERS_MAX,
    DEAD,
    LOOK_BACK,
    RESTING_MAX,
    WAITING,
    Notify,
    Outbox,
    begin,
    forget,
    leave_letters,
    read_letters,
    remember,
    revive,
)
from tracks_dagster.wings.watch.notifying.effects.senders import Senders
from tracks_dagster.wings.watch.notifying.messages import RED


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server is on this machine, whatever proxy it is behind."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")


@pytest.fixture
def hook() -> Iterator[Hook]:
    """A webhook that the channel `all` sends to."""
    with hook_server() as served:
        yield served


@dataclass
class Post:
    """What the sensor does at a tick, with a clock of the test. seen: its cursor."""

    tracks: Tracks
    ledger: Ledger
    clock: FakeClock
    channels: Sequence[Channel]
    seconds_max: float = 15.0
    seen: dict[str, int] = field(default_factory=dict)
    file_at: datetime | None = None

    def tick(self) -> Tick[str]:
        """Look for news, then send."""
        self.look()
        return self.send()

    def look(self) -> Tick[tuple[str, int]]:
        now, store = self.clock(), self.tracks.store
        begun = begin(store, now, file_at=self.file_at or now)
        follower = Notify(
            store=store,
            channels=self.channels,
            since=begun.at,
            now=now,
            links_of=lambda state, attempt_id: (),
            clean=redact,
        )
        looked = leave_letters(
            self.tracks,
            self.ledger,
            follower,
            since=begun.since,
            seen=self.seen,
            time_slice=ONE_BY_ONE,
        )
        self.seen = dict(looked.done)
        return looked

    def send(self) -> Tick[str]:
        delivery = Delivery(channels=tuple(self.channels))
        outbox = Outbox(
            store=self.tracks.store,
            delivery=delivery,
            senders=Senders(delivery, (), seconds_max=self.seconds_max),
            find_mutes=self.tracks.find_mutes,
        )
        return outbox.send_due(self.clock())

    def grow(self, history: History) -> None:
        """Store a run's records as of now."""
        history.write_to(self.tracks.store)
        self.tracks.project(history.name)


@pytest.fixture
def post(tracks: Tracks, ledger: Ledger, clock: FakeClock, hook: Hook) -> Post:
    """One channel, which gets everything; it has looked once, at two in the morning."""
    made = Post(tracks, ledger, clock, [Channel(name="all", to=hook.url)])
    assert made.tick() == Tick()
    return made


def history(run_id: str = "r-1") -> History:
    return History(run_id).declare().open().supervise().place().restore()


def keys(store: FakeObjectStore, folder: str) -> list[str]:
    return [key for key in store.objects if key.startswith(folder)]


def test_each_alert_is_sent_once_in_its_order_and_nothing_is_left_behind(
    post: Post, hook: Hook, store: FakeObjectStore
) -> None:
    run = history().alert("first").alert("second")
    post.grow(run)
    assert post.tick().decided == ("all: runs/r-1/5 is sent", "all: runs/r-1/6 is sent")
    assert [each["sentence"] for each in hook.got] == ["first", "second"]
    post.grow(run.commit(20))
    assert post.tick() == Tick()
    post.grow(run.alert("third"))
    post.tick()
    assert hook.keys == ["runs/r-1/5", "runs/r-1/6", "runs/r-1/8"]
    assert keys(store, WAITING) == keys(store, DEAD) == []


def test_a_home_that_gets_a_notify_file_begins_then_and_not_with_its_past(
    tracks: Tracks, ledger: Ledger, hook: Hook
) -> None:
    run = history().alert("of the past")
    clock = FakeClock(run.at)
    post = Post(tracks, ledger, clock, [Channel(name="all", to=hook.url)])
    post.grow(run)
    post.tick()
    post.grow(run.alert("of today"))
    post.tick()
    assert [each["sentence"] for each in hook.got] == ["of today"]
    forget(tracks.store)  # the file is taken away, and comes back later
    post.grow(run.alert("of the time without"))
    clock.at = run.at
    post.tick()
    post.grow(run.alert("of now"))
    post.tick()
    assert [each["sentence"] for each in hook.got] == ["of today", "of now"]


@pytest.mark.parametrize(
    ("written_s_ago", "is_sent"), [(20.0, True), (5.0, False), (86_400.0, False), (-60.0, False)]
)
def test_what_comes_between_a_new_file_and_the_next_tick_is_sent(
    written_s_ago: float, is_sent: bool, tracks: Tracks, ledger: Ledger, hook: Hook
) -> None:
    run = history().alert("just now")  # 7 s before its next record would be
    post = Post(tracks, ledger, FakeClock(run.at), [Channel(name="all", to=hook.url)])
    post.file_at = run.at - timedelta(seconds=written_s_ago)
    post.grow(run)
    post.tick()
    assert bool(hook.got) is is_sent


def test_an_idle_home_costs_two_requests_a_tick_and_a_run_that_only_commits_none_more(
    post: Post, store: FakeObjectStore
) -> None:
    run = history()
    post.grow(run)
    store.calls.clear()
    post.tick()
    assert store.calls == [("get", notify.BEGUN), ("list", WAITING)]
    post.grow(run.commit(20))
    store.calls.clear()
    post.tick()
    assert store.calls == [("get", notify.BEGUN), ("list", WAITING)]


class Killed(BaseException):
    """The process ends here."""


@pytest.mark.parametrize("place", ["letter", "cursor", "sent"])
def test_a_process_that_is_killed_anywhere_loses_no_message_and_its_key_is_the_same(
    place: str, post: Post, hook: Hook, store: FakeObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    post.grow(history().alert("first").alert("second"))

    def dies(*args: object, **kwargs: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        if place == "letter":  # one letter is there, the other is not
            create, calls = store.create, iter([False, True])
            patch.setattr(store, "create", lambda *given: dies() if next(calls) else create(*given))
        if place == "cursor":
            patch.setattr(StoredCursors, "move", dies)
        if place == "sent":  # it was taken, and nobody remembers
            patch.setattr(store, "delete", dies)
        with pytest.raises(Killed):
            post.tick()
    came_up = Post(post.tracks, post.ledger, post.clock, post.channels)
    came_up.tick()
    assert sorted(set(hook.keys)) == ["runs/r-1/5", "runs/r-1/6"]
    assert len(hook.got) == (3 if place == "sent" else 2)
    assert came_up.tick() == Tick()


def test_what_is_not_taken_is_tried_again_later_each_time_and_then_laid_aside_until_asked_for(
    post: Post, hook: Hook, clock: FakeClock, store: FakeObjectStore
) -> None:
    hook.status = 500
    post.grow(history().alert("an alert"))
    post.look()
    for _ in range(TRIES_MAX):
        assert post.send().problems[0].startswith("all: It answers HTTP 500")
        assert post.send() == Tick()
        waiting = read_letters(store).failing
        clock.at = waiting[0].next_at if waiting else clock.at
    clock.advance(24 * 3600)
    assert post.tick() == Tick()
    letters = read_letters(store)
    assert (letters.dead_count, letters.waiting_count) == (1, 0)
    assert letters.dead[0].problem.startswith("It answers HTTP 500")
    hook.status = 200
    assert revive(store, clock(), channel="other") == 0
    assert revive(store, clock()) == 1
    post.tick()
    assert hook.keys == ["runs/r-1/5"]
    assert keys(store, DEAD) == []


def test_when_a_channel_answers_again_all_that_waits_goes_at_once(
    post: Post, hook: Hook, clock: FakeClock
) -> None:
    hook.status = 503
    post.grow(history().alert("a").alert("b").alert("c"))
    for _ in range(8):
        assert len(post.tick().problems) == 1  # one try a tick, whatever waits
        clock.advance(30)
    assert len(read_letters(post.tracks.store).failing) == 3
    hook.status = 200
    clock.advance(600)
    post.tick()
    assert [each["sentence"] for each in hook.got] == ["a", "b", "c"]


def test_one_channel_that_hangs_or_is_not_there_holds_up_no_other(
    post: Post, hook: Hook, store: FakeObjectStore
) -> None:
    with hook_server() as slow:
        slow.hangs = True
        gone = Channel(name="gone", to="command:/no/such/pager")
        post.channels = [Channel(name="slow", to=slow.url), gone, *post.channels]
        post.seconds_max = 3.0  # enough for the others on a busy machine
        post.grow(history().alert("an alert"))
        tick = post.tick()
    assert hook.keys == ["runs/r-1/5"]
    assert tick.problems == (
        "gone: The command cannot be started: No such file or directory.",
        "slow: There was no answer within 3 s.",
    )
    assert len(keys(store, WAITING)) == 2


def mute(tracks: Tracks, rule: str, run_id: str | None, until: datetime) -> None:
    body = MuteDecision(
        rule=rule, run_id=run_id, by="ann", why="known", until_at=format_time(until)
    )
    tracks.decide_mutes(lambda state: tracks.draft(Kind.ALERTS_MUTED, body))


@pytest.mark.parametrize(
    ("rule", "run_id", "is_sent"),
    [("slow-saves", None, False), ("*", "r-1", False), ("slow-saves", "r-2", True)],
)
def test_a_muted_rule_sends_nothing_while_it_is_muted_and_the_record_stays(
    rule: str, run_id: str | None, is_sent: bool, post: Post, hook: Hook, clock: FakeClock
) -> None:
    mute(post.tracks, rule, run_id, clock() + timedelta(hours=2))
    run = history().alert("while it is muted")
    post.grow(run)
    post.tick()
    assert bool(hook.got) is is_sent
    assert [each.body.text for each in post.tracks.run("r-1").alerts] == ["while it is muted"]
    clock.advance(3 * 3600)
    post.grow(run.alert("later"))
    post.tick()
    assert [each["sentence"] for each in hook.got][int(is_sent) :] == ["later"]


def test_a_letter_that_failed_is_dropped_when_its_rule_is_muted_meanwhile(
    post: Post, hook: Hook, clock: FakeClock, store: FakeObjectStore
) -> None:
    hook.status = 500
    post.grow(history().alert("an alert"))
    post.tick()
    mute(post.tracks, "*", None, clock() + timedelta(hours=2))
    hook.status = 200
    clock.advance(60)
    assert post.tick().decided == ("all: runs/r-1/5 is muted",)
    assert (hook.got, keys(store, WAITING)) == ([], [])


def test_where_mutes_cannot_be_read_alerts_are_sent(
    post: Post, hook: Hook, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> MuteState | None:
        raise TrackBroken("record 0 does not parse")

    monkeypatch.setattr(post.tracks, "find_mutes", broken)
    post.grow(history().alert("an alert"))
    tick = post.tick()
    assert hook.keys == ["runs/r-1/5"]
    assert tick.problems == ("mutes are not known, and nothing is muted: record 0 does not parse",)


def test_a_channel_gets_only_what_it_asks_for(post: Post, hook: Hook) -> None:
    post.channels = [replace(post.channels[0], severity=RED), replace(post.channels[0], name="b")]
    post.grow(history().alert("yellow"))
    assert post.tick().decided == ("b: runs/r-1/5 is sent",)


def test_letters_of_an_entry_that_was_taken_out_are_laid_aside_and_go_to_it_when_it_is_back(
    post: Post, hook: Hook, clock: FakeClock
) -> None:
    post.grow(history().alert("an alert"))
    post.look()
    channels, post.channels = post.channels, []
    assert post.tick().decided == ("all: runs/r-1/5 is dead: no such entry in the notify file",)
    post.channels = channels
    revive(post.tracks.store, clock())
    post.tick()
    assert hook.keys == ["runs/r-1/5"]


def test_a_record_that_reaches_the_ledger_late_is_sent_and_what_was_looked_at_long_ago_is_not_asked(
    post: Post, hook: Hook, clock: FakeClock, store: FakeObjectStore
) -> None:
    run = history().alert("late")
    run.write_to(store)  # and nobody projects it
    for _ in range(10):
        post.tick()
        clock.advance(2 * 3600)
        remember(store, begin(store, clock(), file_at=clock()), clock())
    post.tracks.project(run.name)
    post.tick()
    assert [each["sentence"] for each in hook.got] == ["late"]
    clock.advance(LOOK_BACK.total_seconds() + 4 * 3600)
    remember(store, begin(store, clock(), file_at=clock()), clock())
    clock.advance(2 * 3600)
    remember(store, begin(store, clock(), file_at=clock()), clock())
    assert begin(store, clock(), file_at=clock()).since > run.at
    store.calls.clear()
    post.tick()
    assert store.calls == [("get", notify.BEGUN), ("list", WAITING)]


def test_after_a_clock_that_was_years_ahead_was_set_right_alerts_are_sent(
    tracks: Tracks, ledger: Ledger, hook: Hook
) -> None:
    run = history()
    clock = FakeClock(run.at + timedelta(days=1000))
    post = Post(tracks, ledger, clock, [Channel(name="all", to=hook.url)])
    post.tick()
    clock.at = run.at
    post.tick()
    post.grow(run.alert("of today"))
    post.tick()
    assert [each["sentence"] for each in hook.got] == ["of today"]


def test_a_store_that_does_not_answer_is_a_problem_and_the_news_come_again(
    post: Post, hook: Hook, store: FakeObjectStore
) -> None:
    post.grow(history().alert("an alert"))
    store.fail("create", 1, Fault.LOST_AFTER)
    assert len(post.look().problems) == 1
    assert post.tick().decided == ("all: runs/r-1/5 is sent",)
    assert hook.keys == ["runs/r-1/5"]
    store.fail("list", 1, Fault.FAILS)
    with pytest.raises(StoreUnavailable):
        post.send()


def test_of_too_many_letters_the_oldest_are_laid_aside(
    post: Post, hook: Hook, clock: FakeClock, store: FakeObjectStore
) -> None:
    post.grow(history().alert("an alert"))
    post.look()
    [first] = [json.loads(store.objects[key]) for key in keys(store, WAITING)]
    for number in range(CHANNEL_LETTERS_MAX):
        letter = {**first, "message": {**first["message"], "key": f"runs/r-2/{number}"}}
        at = format_time(clock() + timedelta(days=1, seconds=number))
        letter["message"]["at"] = at
        made = Letter.from_json(letter)
        store.put(f"{WAITING}all/{made.name}.json", json.dumps(letter).encode())
    hook.status = 500
    assert post.tick().decided == ("all: runs/r-1/5 is dead: too many wait",)
    assert len(keys(store, WAITING)) == CHANNEL_LETTERS_MAX


def test_of_letters_that_rest_only_a_few_are_read_at_a_tick(
    post: Post, hook: Hook, clock: FakeClock, store: FakeObjectStore
) -> None:
    run = history()
    for number in range(RESTING_MAX + 5):
        run.alert(f"alert {number}")
    post.grow(run)
    hook.status = 500
    for _ in range(RESTING_MAX):
        post.tick()  # the next letter is tried, those before it rest
    store.calls.clear()
    assert post.send() == Tick()
    assert sum(method == "get" for method, _ in store.calls) == RESTING_MAX + 1  # and the mutes


def test_what_another_version_left_is_skipped_and_stays(post: Post, store: FakeObjectStore) -> None:
    for folder in (WAITING, DEAD):
        store.put(f"{folder}all/20990101T000000=x.json", b'{"channel": "all"}')
    store.put(notify.BEGUN, b"[]")
    assert post.tick() == Tick()
    assert revive(store, post.clock()) == 0
    assert len(keys(store, WAITING)) == len(keys(store, DEAD)) == 1
    assert read_letters(store).dead == ()

"""Following a run: what is shown, when it ends, what Ctrl-C does. Pure: the story grows by itself."""

from __future__ import annotations

import io
import signal
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.bodies import BEGIN
from tests.fakes import FakeClock, FakeObjectStore, Fault, SequentialUids
from tests.stories import RUN_ID, Story
from tracks_dagster.attempts.effects.heartbeat import write_heartbeat, write_launches
from tracks_dagster.attempts.effects.sharing import waiting_launches
from tracks_dagster.attempts.launch import PendingLaunch
from tracks_dagster.cli import fail
from tracks_dagster.cli.start import follow
from tracks_dagster.cli.start.driving import continue_hint, drive
from tracks_dagster.cli.start.follow import Followed, Interrupts, RunFollower
from tracks_dagster.cli.start.progress_line import (
    BarView,
    LineView,
    Reached,
    StepTimes,
    describe,
    open_view,
)
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.retry.caps import Cost
from tracks_dagster.scheduling.effects.leases import Shared
from tracks_dagster.scheduling.model import NEVER, Waits
from tracks_dagster.settings import Settings
from tracks_dagster.track.errors import InvalidInput, StoreUnavailable
from tracks_dagster.track.names import LAUNCH_ATTEMPTS, AttemptRef
from tracks_dagster.track.records import Kind, format_time

REACHED = Reached(
    attempt_id=1,
    step=25,
    steps=40,
    loss=2.1034,
    saved=20,
    saved_at=BEGIN,
    step_s=0.25,
    cost=Cost(amount=0.12, currency="USD"),
)


class Scene:
    """A follower whose every look lets one more thing happen; waiting takes no time."""

    def __init__(self, store: FakeObjectStore, clock: FakeClock, monkeypatch: pytest.MonkeyPatch):
        self.story = Story(store)
        self.tracks = Tracks(store, now=clock, new_uid=SequentialUids(), project=lambda track: None)
        self.interrupts = Interrupts()
        self.view = LineView()
        self.now_s = 0.0
        monkeypatch.setattr(follow.time, "monotonic", lambda: self.now_s)
        monkeypatch.setattr(follow.time, "sleep", self._pass)
        self._happenings: Iterator[Callable[[], object]] = iter(())

    def follow(self, *happenings: Callable[[], object], wait_s: float = 600.0) -> Followed:
        """Follow the run while these happen, one after each look."""
        self._happenings = iter(happenings)
        self.story.write_tracks()
        return RunFollower(
            self.tracks, RUN_ID, self.view, self.interrupts, wait_s=wait_s, by="ann"
        ).to_the_end()

    def interrupt(self) -> None:
        """Ctrl-C."""
        self.interrupts.count += 1

    def _pass(self, seconds: float) -> None:
        self.now_s += seconds
        happening = next(self._happenings, None)
        if happening is not None:
            happening()
            self.story.write_tracks()


@pytest.fixture
def scene(store: FakeObjectStore, clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> Scene:
    """A declared run, followed."""
    return Scene(store, clock, monkeypatch)


def test_a_run_is_followed_to_its_promotion_and_every_record_is_reported_once(
    scene: Scene, capsys: pytest.CaptureFixture[str]
) -> None:
    history = scene.story.history
    followed = scene.follow(
        lambda: scene.story.attempt("completed", last_step=40, commits=(40,)),
        lambda: history.open_eval(history.state.checkpoints[-1].ref),
        lambda: history.end_eval(history.state.evals[-1].opened).finish(),
        lambda: None,  # finished, and the promotion is due
        lambda: history.promote(history.state.evals[-1].opened),
    )
    assert followed == Followed(state="succeeded", is_drained=False, waited_for=None)
    result = capsys.readouterr().err.splitlines()
    assert sum(line.startswith("step 40 promoted to best") for line in result) == 1
    assert "attempt 1: step 40/40, training loss 0.1250, saved 40" in result


def test_a_run_that_does_not_change_is_waited_for_no_longer_than_asked(scene: Scene) -> None:
    followed = scene.follow(lambda: scene.story.attempt("gpu_oom", last_step=3, commits=()))
    assert followed.state == "waiting"
    assert followed.waited_for is not None
    assert 600.0 < scene.now_s < 602.0


def test_a_run_in_the_queue_of_devices_is_followed_until_its_turn(
    scene: Scene, clock: FakeClock, capsys: pytest.CaptureFixture[str]
) -> None:
    """As long as a daemon keeps the queue: without one nobody's turn comes."""
    why = "0 of 2 devices free; after r-9/a01, about 14 min"
    queued = PendingLaunch(key=f"{RUN_ID}/a01", failed_count=0, why=why, waits=True)

    def queue() -> None:
        scene.story.history.open()
        write_heartbeat(scene.tracks.store, clock(), {})
        write_launches(scene.tracks.store, LAUNCH_ATTEMPTS, [queued])

    followed = scene.follow(
        queue, *([lambda: None] * 100), lambda: clock.advance(1000.0), wait_s=20.0
    )
    assert followed.state == "waiting"
    assert 50.0 < scene.now_s < 50.0 + 2 * 20.0
    assert capsys.readouterr().err.count(f"waiting: {why}") == 1


def test_what_a_run_waits_for_is_said_after_30_s_and_when_that_changes(
    scene: Scene, clock: FakeClock, capsys: pytest.CaptureFixture[str]
) -> None:
    def launch(minutes: int, why: str = "") -> Callable[[], None]:
        def happen() -> None:
            clock.advance(60.0 * minutes)
            pending = PendingLaunch(key=f"{RUN_ID}/a01", failed_count=0, why=why, asked_at=asked_at)
            write_heartbeat(scene.tracks.store, clock(), {})
            write_launches(scene.tracks.store, LAUNCH_ATTEMPTS, [pending])

        return happen

    asked_at = format_time(clock())
    pause = [lambda: None] * 70  # 35 s
    scene.follow(
        scene.story.history.open,
        *pause,
        launch(2),
        *pause,
        launch(1),
        launch(1, "it failed"),
        *pause,
    )
    waiting = [
        line for line in capsys.readouterr().err.splitlines() if "wait" in line or "30 s" in line
    ]
    assert len(waiting) == 3
    assert waiting[0].startswith("waiting: no daemon has looked")
    assert "its launch was asked for 2 min ago" in waiting[1]
    assert "it failed" in waiting[2]


def test_a_long_run_has_few_lines_of_its_checkpoints(
    scene: Scene, capsys: pytest.CaptureFixture[str]
) -> None:
    commits = tuple(range(10, 41, 10))
    scene.follow(
        lambda: scene.story.attempt("completed", last_step=40, commits=commits), wait_s=5.0
    )
    result = capsys.readouterr().err.splitlines()
    assert [line for line in result if "committed" in line] == [
        next(line for line in result if "step 10" in line and "committed" in line)
    ]
    assert "attempt 1: step 40/40, training loss 0.1250, saved 40" in result
    view = LineView()
    for step in range(1, 3001):
        view.progress(replace(REACHED, step=step, steps=3000))
    assert len(capsys.readouterr().err.splitlines()) == 51


@pytest.mark.parametrize(
    ("width", "shown"),
    [
        (
            120,
            "attempt 1 · step 25/40 · loss 2.1034 · 4 steps/s · 3.8 s left · saved 20, 40 s ago"
            " · 0.12 USD",
        ),
        (90, "attempt 1 · step 25/40 · loss 2.1034 · 4 steps/s · 3.8 s left · saved 20, 40 s ago"),
        (80, "attempt 1 · step 25/40 · loss 2.1034 · 3.8 s left · saved 20, 40 s ago"),
        (60, "step 25/40 · loss 2.1034 · 3.8 s left · saved 20, 40 s ago"),
        (40, "step 25/40 · loss 2.1034 · 3.8 s left"),
    ],
)
def test_the_line_of_a_followed_run_has_what_fits(width: int, shown: str) -> None:
    line = describe(REACHED, BEGIN + timedelta(seconds=40), width)
    assert line == shown
    assert len(line) <= width


def test_of_a_followed_run_nothing_is_shown_that_is_not_known() -> None:
    begun = Reached(attempt_id=2, step=1, steps=None, loss=float("nan"), saved=None)
    assert describe(begun, BEGIN, 120) == "attempt 2 · step 1 · loss nan"
    assert replace(REACHED, step_s=3.2).pace == "3.2 s/step"
    free = replace(REACHED, cost=Cost(amount=0.0, currency="USD", unpriced_s=9.0))
    assert free.money == ""


def test_the_pace_is_that_of_the_newest_steps_of_one_attempt() -> None:
    times = StepTimes()
    for attempt_id, step, at_s, step_s in (
        (1, 10, 100.0, None),
        (1, 14, 102.0, 0.5),  # four steps, not each one seen
        (2, 12, 200.0, None),  # another attempt
        (2, 13, 190.0, None),  # a clock that was set back
        (2, 12, 300.0, None),  # steps that are run again
        (2, 22, 310.0, 1.0),
    ):
        times.take(attempt_id, step, at_s)
        assert times.step_s == step_s


class Screen(io.StringIO):
    """A terminal."""

    def isatty(self) -> bool:
        return True


def test_on_a_terminal_one_line_is_redrawn_below_what_happened(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in {"TERM": "xterm", "COLUMNS": "100"}.items():
        monkeypatch.setenv(name, value)
    screen = Screen()
    monkeypatch.setattr("sys.stderr", screen)
    with open_view() as view:
        view.progress(REACHED)
        view.event("attempt 1 is [bold]drained\x1b[2J")
        view.progress(replace(REACHED, step=26))
    shown = screen.getvalue()
    assert "attempt 1 is [bold]drained\\x1b[2J" in shown
    assert shown.index("drained") < shown.rindex("step 26/40 · loss 2.1034")
    assert "\x1b[2K" in shown  # the line is cleared before it is drawn again
    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(open_view(), LineView)
    assert not isinstance(open_view(), BarView)


def test_a_new_step_is_a_change(scene: Scene) -> None:
    followed = scene.follow(
        scene.story.begin,
        *([lambda: None] * 18),  # nine seconds of ten
        lambda: scene.story.ship(range(1, 2)),
        wait_s=10.0,
    )
    assert followed.state == "waiting"
    assert scene.now_s > 19.0


def test_a_refused_run_is_over_at_once(scene: Scene) -> None:
    assert scene.follow(scene.story.refused).state == "refused"


def test_ctrl_c_drains_and_waits_for_the_end_of_the_attempt(scene: Scene) -> None:
    def drained() -> None:
        # The follower appended its stop request itself; the story goes on from there.
        records = scene.tracks.records(f"runs/{RUN_ID}")
        assert records[-1].kind is Kind.STOP_REQUESTED
        assert records[-1].body["mode"] == "drain"

    followed = scene.follow(scene.story.begin, scene.interrupt, drained)
    assert followed.is_drained
    assert scene.now_s > 120.0  # nobody ended it: the wait is bounded


def test_ctrl_c_between_two_attempts_has_nothing_to_save(scene: Scene) -> None:
    followed = scene.follow(
        lambda: scene.story.attempt("gpu_oom", last_step=3, commits=()), scene.interrupt
    )
    assert followed.is_drained
    assert scene.now_s < 3.0


def test_a_second_ctrl_c_is_not_caught_here() -> None:
    with Interrupts() as interrupts:
        interrupts._on_interrupt(2, None)
        with pytest.raises(KeyboardInterrupt):
            interrupts._on_interrupt(2, None)


def test_two_ctrl_c_at_once_are_recorded_before_the_gang_is_killed(
    scene: Scene, tmp_path: Path
) -> None:
    last_at_kill: list[Kind] = []

    def kill(ref: AttemptRef) -> None:
        last_at_kill.append(scene.tracks.records(f"runs/{ref.run_id}")[-1].kind)

    def both() -> None:
        raise KeyboardInterrupt

    scene.story.begin()
    scene.story.write_tracks()
    scene._happenings = iter([both])
    app: Any = SimpleNamespace(
        tracks=scene.tracks,
        launcher_of=lambda name: SimpleNamespace(kill=kill),
        settings=Settings(home=tmp_path, store_url=""),
    )
    home: Any = SimpleNamespace(
        daemon=nullcontext, ensure_daemon=lambda: False, why_daemon_ended=lambda: ""
    )
    followed = drive(app, home, RUN_ID, wait_s=600.0, by="ann")
    assert followed.is_drained
    assert last_at_kill == [Kind.STOP_REQUESTED]


def away(scene: Scene, looks: int) -> None:
    """Let the next reads of the store fail."""
    for number in range(1, looks + 1):
        scene.story.store.fail("get", number, Fault.FAILS)  # type: ignore[attr-defined]


def test_a_store_that_is_away_is_reported_once_and_when_it_is_back(
    scene: Scene, capsys: pytest.CaptureFixture[str]
) -> None:
    followed = scene.follow(lambda: away(scene, 40), *([lambda: None] * 60), scene.story.refused)
    assert followed.state == "refused"
    result = capsys.readouterr().err.splitlines()
    assert [line for line in result if "The gang trains on" in line] == [
        next(line for line in result if "as the test wants it. The gang trains on" in line)
    ]
    assert sum("it answers again, after 20 s" in line for line in result) == 1


def test_a_store_that_stays_away_ends_following_within_its_limit(scene: Scene) -> None:
    looks = int(follow.AWAY_S_MAX / follow.POLL_S) + 10
    with pytest.raises(StoreUnavailable, match="as the test wants it") as error:
        scene.follow(lambda: away(scene, looks), wait_s=10.0)
    assert "Nothing answered for 90" in error.value.__notes__[0]
    assert follow.AWAY_S_MAX < scene.now_s < follow.AWAY_S_MAX + 3.0


def test_the_time_for_which_nobody_could_look_is_not_time_without_a_change(scene: Scene) -> None:
    scene.follow(lambda: away(scene, 100), wait_s=10.0)
    assert 60.0 < scene.now_s < 63.0


def test_ctrl_c_while_the_store_is_away_drains_when_it_is_back(
    scene: Scene, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt() -> None:
        away(scene, 10)
        scene.interrupt()

    followed = scene.follow(scene.story.begin, interrupt)
    assert followed.is_drained
    assert scene.tracks.records(f"runs/{RUN_ID}")[-1].kind is Kind.STOP_REQUESTED
    assert "the drain is requested as soon as it answers" in capsys.readouterr().err


def test_whatever_ends_the_command_prints_how_to_continue(
    capsys: pytest.CaptureFixture[str],
) -> None:
    hint = "To continue: tracks run --run-id r-1"
    with pytest.raises(StoreUnavailable) as error, continue_hint("r-1"), continue_hint("r-1"):
        raise StoreUnavailable("It does not answer.")
    fail(error.value)
    assert capsys.readouterr().err.splitlines() == ["tracks: It does not answer.", hint]
    with pytest.raises(KeyboardInterrupt), continue_hint("r-1"):
        raise KeyboardInterrupt
    assert capsys.readouterr().err.splitlines() == [hint]
    with pytest.raises(InvalidInput) as refused, continue_hint("r-1"):  # nothing was written
        raise InvalidInput("No.")
    assert not hasattr(refused.value, "__notes__")


@pytest.mark.parametrize(
    ("number", "why"),
    [
        (signal.SIGINT, "Ctrl-C on tracks run"),
        (signal.SIGTERM, "SIGTERM to tracks run, whose sender is not known"),
    ],
)
def test_what_asked_for_the_drain_is_recorded_as_the_signal_that_it_was(
    scene: Scene, number: signal.Signals, why: str
) -> None:
    scene.story.begin()
    scene.story.write_tracks()
    with scene.interrupts:
        signal.raise_signal(number)
    scene.follow(lambda: None, wait_s=1.0)
    (stop,) = scene.tracks.run(RUN_ID).stops
    assert (stop.body.mode, stop.body.why) == ("drain", why)


def test_the_end_of_a_failed_attempt_shows_the_error_and_the_line_that_raised_it(
    scene: Scene, capsys: pytest.CaptureFixture[str]
) -> None:
    scene.follow(lambda: scene.story.attempt("code_error", last_step=5, commits=()), wait_s=1.0)
    shown = capsys.readouterr().err
    assert "code_error. The training code raised an error" in shown
    assert "code_error as the story wants it" in shown
    assert '> File "/home/ann/train.py", line 12, in step' in shown


def test_a_run_whose_eval_failed_as_often_as_it_is_tried_is_followed_no_longer(
    scene: Scene,
) -> None:
    history = scene.story.history

    def fail() -> None:
        final, [required] = history.state.checkpoints[-1].ref, history.state.declared.evals
        history.open_eval(final, snapshot=required.snapshot)
        history.end_eval(history.state.evals[-1].opened, "evaluator_error")

    ended = lambda: scene.story.attempt("completed", last_step=40, commits=(40,))  # noqa: E731
    followed = scene.follow(ended, *[fail] * 3)
    assert followed.state == "waiting"
    assert str(followed.waited_for).startswith("waiting for a person: heldout-loss@40: failed 3")


def test_a_run_whose_devices_can_never_be_given_is_followed_no_longer_than_asked(
    scene: Scene, clock: FakeClock, capsys: pytest.CaptureFixture[str]
) -> None:
    key = f"{RUN_ID}/a01"
    never = Waits(key=key, starts=NEVER, why="needs 4 devices; there are 2 here")
    shared = Shared(wanted=frozenset([key]), waits=(never,))

    def queue() -> None:
        scene.story.history.open()
        write_heartbeat(scene.tracks.store, clock(), {})
        write_launches(scene.tracks.store, LAUNCH_ATTEMPTS, waiting_launches(shared))

    followed = scene.follow(queue, *([lambda: None] * 200), wait_s=20.0)
    words = "waiting: can never start here: needs 4 devices; there are 2 here"
    assert followed == Followed(state="waiting", is_drained=False, waited_for=words)
    assert scene.now_s < 60
    assert words in capsys.readouterr().err.splitlines()

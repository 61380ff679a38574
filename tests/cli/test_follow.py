"""Following a run: what is shown, when it ends, what Ctrl-C does. Pure: the story grows by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.fakes import FakeClock, FakeObjectStore, SequentialUids
from tests.stories import RUN_ID, Story
from tracks_dagster.cli import follow
from tracks_dagster.cli.follow import Followed, Follower
from tracks_dagster.cli.interrupts import Interrupts
from tracks_dagster.cli.views import LineView
from tracks_dagster.core.records import Kind
from tracks_dagster.services.tracks import Tracks


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
        return Follower(
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


def test_a_run_is_followed_to_its_promotion_and_every_record_is_told_once(
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
    told = capsys.readouterr().err.splitlines()
    assert sum(line.startswith("step 40 promoted to best") for line in told) == 1
    assert "attempt 1: step 40/40, loss 0.1250" in told


def test_a_run_that_does_not_change_is_waited_for_no_longer_than_asked(scene: Scene) -> None:
    followed = scene.follow(lambda: scene.story.attempt("gpu_oom", last_step=3, commits=()))
    assert followed.state == "waiting"
    assert followed.waited_for is not None
    assert 600.0 < scene.now_s < 602.0


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

"""The walk of an eval, from where it is asked for to its promotion, enters no room twice.

A room is entered where one of its functions is called out of another room. It is entered twice where it
is on the way there already: something below it calls back up. What a function hands down itself (a
closure, the deciders that `tick_evals` gives to their driver) goes on where it was handed down.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import groupby
from types import FrameType
from typing import Any

from tests.bodies import EVAL_RESULT
from tests.deciders import world_of
from tests.fakes import FakeEvaluator, FakeObjectStore, FakeOrchestrator
from tests.histories import History
from tracks_dagster.evals.effects.promoting import Promotions
from tracks_dagster.evals.effects.running import Evals, ask_for_evals, run_eval
from tracks_dagster.evals.effects.tick import tick_evals
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.track.states.run_state import find_at

HOUSE = "tracks_dagster."
KEY = "r-1/heldout-loss@40/1"
# Asked by the driver of all deciders (`ledger/effects/deciding.py`), as each decider is.
ASKED = {each.__code__ for one in (Evals, Promotions) for each in (one.due, one.decide)}
ENTRIES_MIN = 20  # below which nothing was watched


def room_of(frame: FrameType) -> str | None:
    """Return the room of the house whose function this is; None outside of it."""
    module = str(frame.f_globals.get("__name__", ""))
    return module.removeprefix(HOUSE).split(".")[0] if module.startswith(HOUSE) else None


def walk_to(frame: FrameType | None) -> list[FrameType]:
    """Return the frames of the house that lead here, the newest first.

    What was handed down is continued where it was made, not where it is called.
    """
    frames: list[FrameType] = []
    while frame is not None:
        if room_of(frame) is not None:
            frames.append(frame)
            maker = maker_of(frame)
            if maker is not None:
                frame = maker
                continue
        frame = frame.f_back
    return frames


def maker_of(frame: FrameType) -> FrameType | None:
    """Return the frame, still under way, that made this function, or gave it to the driver."""
    code, above = frame.f_code, frame.f_back
    maker = code.co_qualname.rpartition(".<locals>.")[0]
    while above is not None:
        if code in ASKED and above.f_code is tick_evals.__code__:
            return above
        if above.f_globals is frame.f_globals and above.f_code.co_qualname == maker:
            return above
        above = above.f_back
    return None


@contextmanager
def entries() -> Iterator[dict[str, bool]]:
    """Yield what is entered meanwhile: `caller → function`, and whether for the second time."""
    found: dict[str, bool] = {}

    def on_event(frame: FrameType, event: str, _: object) -> None:
        if event != "call" or room_of(frame) is None:
            return
        walk = walk_to(frame)
        rooms = [room for room, _ in groupby(walk, room_of)]
        if len(walk) > 1 and room_of(walk[1]) != rooms[0]:
            found[" → ".join(map(name_of, reversed(walk)))] = rooms[0] in rooms[1:]

    sys.setprofile(on_event)
    try:
        yield found
    finally:
        sys.setprofile(None)


def name_of(frame: FrameType) -> str:
    return f"{frame.f_globals['__name__'].removeprefix(HOUSE)}.{frame.f_code.co_name}"


def test_no_room_is_entered_twice(tracks: Tracks, ledger: Ledger, store: FakeObjectStore) -> None:
    history = History("r-1").declare().open().place().restore().commit(40)
    history.end("completed", last_step=40).write_to(store)
    tracks.project(history.name)
    dagster, evaluator = FakeOrchestrator(), FakeEvaluator(store, EVAL_RESULT)
    world = world_of(tracks, ledger, orchestrator=dagster)
    checkpoint = find_at(tracks.run("r-1"), 40)
    assert checkpoint is not None
    with entries() as entered:
        ask_for_evals(tracks, checkpoint.ref, by="ann", why="to compare", seed=7)
        tick_evals(world, evaluator=evaluator)
        run_eval(tracks, evaluator, "r-1", "heldout-loss@40", 1)
        tick_evals(world, evaluator=evaluator)
    assert tracks.run("r-1").promotions
    assert len(entered) > ENTRIES_MIN
    assert [walk for walk, is_twice in entered.items() if is_twice] == []


def planted(room: str, text: str, **names: object) -> Any:
    """Return the function `walk` of a module of that room."""
    module = {"__name__": f"{HOUSE}{room}.planted", **names}
    exec(text, module)
    return module["walk"]


def test_a_call_back_up_is_an_entry_and_a_closure_is_not() -> None:
    back = planted("evals", "def walk(): pass")
    below = planted("retry", "def walk(then): then()")
    calls_back = planted("evals", "def walk(): below(back)", below=below, back=back)
    with entries() as entered:
        calls_back()
    assert entered == {
        "evals.planted.walk → retry.planted.walk": False,
        "evals.planted.walk → retry.planted.walk → evals.planted.walk": True,
    }
    with entries() as entered:
        planted("evals", "def walk(): below(lambda: back())", below=below, back=back)()
    assert not any(entered.values())

"""Runs in the same buckets of one axis: no spike is lost, only what was kept counts, whatever comes."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.curves.test_curves import STEP, begun, encoded, ship
from tests.fakes import FakeObjectStore
from tests.stories import RUN_ID, Story
from tracks_dagster.curves.effects import blocks, buckets
from tracks_dagster.curves.effects.buckets import (
    Buckets,
    SoFar,
    extent,
    newest_values,
    read_buckets,
)
from tracks_dagster.curves.effects.journals import Journals
from tracks_dagster.curves.effects.pixels import Pixels
from tracks_dagster.curves.effects.reading import axis_of
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.stores.journal_tables import Table


def test_values_in_parts_and_in_any_order_make_the_same_buckets() -> None:
    numbers = random.Random(7)
    x = np.sort(np.array([numbers.uniform(-1, 11) for _ in range(500)]))
    value = np.array([numbers.choice([numbers.gauss(0, 1), math.nan, math.inf]) for _ in x])
    pixels = Pixels(0.0, 10.0, 8)
    whole, parts = Buckets.empty(8), Buckets.empty(8)
    whole.add(x, value, pixels)
    for begin in (400, 0, 200):
        parts.add(x[begin : begin + 200], value[begin : begin + 200], pixels)
    for name in ("low", "high", "low_x", "high_x", "count", "x0", "x1", "odd"):
        assert (getattr(whole, name) == getattr(parts, name)).all(), name
    assert whole.means() == pytest.approx(parts.means())
    inside = (x >= 0) & (x <= 10) & np.isfinite(value)
    assert whole.count.sum() == inside.sum()
    assert whole.low.min() == value[inside].min()  # the spike is still there
    assert whole.high.max() == value[inside].max()
    assert whole.odd.all()


def test_a_mean_of_the_largest_numbers_is_a_number() -> None:
    found = Buckets.empty(1)
    found.add(np.array([0.0, 1.0]), np.array([1.7e308, 1.6e308]), Pixels(0.0, 1.0, 1))
    assert found.means().tolist() == [pytest.approx(1.65e308)]


def test_a_run_is_read_as_far_as_it_was_kept_on_every_axis(story: Story, tracks: Tracks) -> None:
    story.whole()
    journals = Journals(tracks, tracks.run(RUN_ID), None)
    (loss,) = journals.choose(["loss"])
    for by in ("step", "samples", "hours", "wall"):
        axis = axis_of(journals, by)
        begin, end = extent(journals, axis) or (math.nan, math.nan)
        assert begin < end, by
        found = read_buckets(journals, axis, [loss], Pixels(begin, end, 40))["loss"]
        assert found.count.sum() == 40, by  # 3 more were lost
        assert found.low.min() == 5.0 / 40
    zoomed = read_buckets(journals, axis_of(journals, "step"), [loss], Pixels(11.0, 20.0, 4))
    assert zoomed["loss"].count.sum() == 10
    assert newest_values(journals, journals.metrics)["loss"][:3] == (40, 40.0, 5.0 / 40)


def test_wall_time_counts_the_wait_between_two_attempts(
    store: FakeObjectStore, tracks: Tracks
) -> None:
    run = begun()
    began = run.state.attempts[0].opened_at.timestamp()

    def lines(first: int, last: int, hour: float) -> bytes:
        stamps = (began + 3600 * (hour + 0.1 * (n - first)) for n in range(first, last + 1))
        texts = (np.datetime64(int(at * 1000), "ms") for at in stamps)
        return encoded({**STEP, "step": first + n, "t": f"{text}Z"} for n, text in enumerate(texts))

    ship(store, run, lines(1, 3, 1.0))
    run.commit(2).end("preempted", last_step=3).open().supervise().place().restore()
    ship(store, run, lines(3, 4, 9.0) + lines(5, 5, 2.0))  # the clock is set back
    run.write_to(store)
    journals = Journals(tracks, tracks.run("r-1"), None)
    axis = axis_of(journals, "wall")
    assert axis.label == "hours since it began"
    assert axis.of(1, np.array([1, 2])).tolist() == pytest.approx([1.0, 1.1])
    assert axis.of(2, np.array([2, 3, 4, 5])).tolist() == pytest.approx([1.1, 9.0, 9.1, 9.1])


def test_the_newest_value_is_the_last_finite_one_that_was_kept(
    store: FakeObjectStore, tracks: Tracks
) -> None:
    run = begun()
    lines = [{**STEP, "step": n, "loss": 1.0 / n, "metrics": {"early": n}} for n in (1, 2)]
    odd = {"kind": "non_finite_loss", "t": STEP["t"], "step": 4, "loss": "nan"}
    ship(store, run, encoded([*lines, {**STEP, "step": 3, "loss": 0.25}, odd]))
    run.write_to(store)
    journals = Journals(tracks, tracks.run("r-1"), None)
    newest = newest_values(journals, journals.metrics)
    assert {name: (each.step, each.value) for name, each in newest.items()} == {
        "loss": (3, 0.25),
        "early": (2, 2.0),
        "step_s": (3, 0.4),
    }


def test_of_a_run_that_trains_only_its_newest_steps_are_read_again(
    store: FakeObjectStore, tracks: Tracks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And all of them where steps were lost since."""
    for module in (blocks, buckets):
        monkeypatch.setattr(module, "BLOCK_BYTES", 4096)
    read: list[Path] = []
    whole = blocks.read_table

    def read_table(path: Path, *given: Any) -> Table:
        read.append(path)
        return whole(path, *given)

    monkeypatch.setattr(blocks, "read_table", read_table)
    lines = [{**STEP, "step": n, "loss": 1.0 / n} for n in range(1, 1001)]
    run, so_far, pixels = begun(), SoFar(), Pixels(0.0, 1000.0, 50)

    def look() -> tuple[Journals, int]:
        """Return the journals, and how many files were read; what was found is as read afresh."""
        journals = Journals(tracks, tracks.run("r-1"), tmp_path)
        (loss,) = journals.choose(["loss"])
        read.clear()
        found = read_buckets(journals, axis_of(journals, "step"), [loss], pixels, so_far)["loss"]
        count = len(read)
        afresh = read_buckets(journals, axis_of(journals, "step"), [loss], pixels)["loss"]
        assert (found.low == afresh.low).all()
        assert (found.count == afresh.count).all()
        return journals, count

    ship(store, run, encoded(lines[:900]), size=2000)
    run.write_to(store)
    journals, first = look()
    assert first >= 10
    assert first >= len(journals.blocks[1]) - 2
    ship(store, run, encoded(lines), size=2000)
    grown, again = look()
    assert len(grown.blocks[1]) > len(journals.blocks[1])
    assert 0 < again <= 5
    run.commit(200).end("preempted", last_step=1000).open().supervise().place().restore()
    ship(store, run, encoded(lines[200:300]), size=2000)
    run.write_to(store)
    assert sum(account.end - account.resume for account in look()[0].accounts) == 300

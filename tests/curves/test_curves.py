"""A run's curves: which points, of which attempt, kept or lost; from damaged journals; and fewer."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from tests.bodies import BEGIN, CONFIG
from tests.fakes import FakeClock, FakeObjectStore
from tests.histories import History
from tests.stories import RUN_ID, Story
from tracks_dagster.curves.curve import Curve, Series
from tracks_dagster.curves.effects import blocks
from tracks_dagster.curves.effects.pixels import Pixels, Points, fewer
from tracks_dagster.curves.effects.reading import read_curves
from tracks_dagster.curves.effects.rows import committed_step, kept_rows
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.stores import journal_columns
from tracks_dagster.stores import journal_tables as tables
from tracks_dagster.stores.journal_columns import ColumnsWriter
from tracks_dagster.stores.journals import journal_prefix
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.journal_lines import METRICS_MAX
from tracks_dagster.track.names import AttemptRef
from tracks_dagster.track.records import Json, format_time

T0 = BEGIN.timestamp()
STEP = {"kind": "step", "t": format_time(BEGIN), "loss": 1.0, "metrics": {}, "step_s": 0.4}


def encoded(lines: Iterable[Mapping[str, Json]]) -> bytes:
    """Return lines as the trainer writes them."""
    return b"".join(json.dumps(line, separators=(",", ":")).encode() + b"\n" for line in lines)


def ship(
    store: FakeObjectStore, run: History, data: bytes, *, rank: int = 0, size: int = 0
) -> None:
    """Store the newest attempt's journal, in segments of about that many bytes if any."""
    number = len(run.state.attempts)
    prefix = journal_prefix(AttemptRef(run.run_id, number), run.launch_id, rank)
    at = 0
    while at < len(data):
        end = len(data) if not size else data.find(b"\n", at + size) + 1 or len(data)
        store.put(f"{prefix}{at:012d}.jsonl", data[at:end])
        at = end


def begun(**config: Json) -> History:
    """Return a run whose first attempt trains."""
    run = History("r-1").declare(config={**CONFIG, **config})
    return run.open().supervise().place(world_size=2).restore()


def only(series: Iterable[Series]) -> Series:
    (found,) = series
    return found


def values(curve: Curve | None) -> dict[int, float]:
    """Return the kept values by step."""
    assert curve is not None
    return {point.step: point.value for series in curve.kept for point in series.points}


# --- attempts ---------------------------------------------------------------------------------------


def test_each_step_is_kept_once_and_what_ran_in_vain_is_lost(story: Story, tracks: Tracks) -> None:
    story.whole()
    curves = read_curves(tracks, RUN_ID, cache=None)
    loss = curves.find("loss")
    assert loss is not None
    spans = [(s.attempt_id, s.is_kept, s.points[0].step, s.points[-1].step) for s in loss.series]
    assert spans == [(1, True, 1, 20), (1, False, 21, 23), (2, True, 21, 30), (3, True, 31, 40)]
    assert values(loss) == {step: 5.0 / step for step in range(1, 41)}
    assert (loss.kept_count, loss.points_read) == (40, 43)
    assert loss.last == loss.kept[-1].points[-1]


def test_the_axis_has_the_ends_the_remedies_and_the_commits(story: Story, tracks: Tracks) -> None:
    story.whole()
    marks = read_curves(tracks, RUN_ID, cache=None).marks
    by_kind = {kind: [m for m in marks if m.kind == kind] for kind in ("end", "remedy", "commit")}
    assert [(m.step, m.label) for m in by_kind["end"]] == [
        (23, "a01 preempted"),
        (30, "a02 gpu_oom"),
        (40, "a03 completed"),
    ]
    (remedy,) = by_kind["remedy"]
    assert (remedy.step, remedy.label) == (30, "micro_batch 4 → 2, accumulation 6 → 12")
    assert [mark.step for mark in by_kind["commit"]] == [10, 20, 30, 40]


def test_rows_are_the_kept_steps_and_go_on_where_one_stopped(story: Story, tracks: Tracks) -> None:
    story.whole()
    found = kept_rows(tracks, RUN_ID, ["loss"], cache=None)
    rows = list(found.rows)
    assert (found.columns, found.end, found.count) == (("loss",), 40, 40)
    assert [(row.step, row.values) for row in rows] == [
        (step, {"loss": 5.0 / step}) for step in range(1, 41)
    ]
    assert [row.attempt_id for row in rows] == [1] * 20 + [2] * 10 + [3] * 10
    assert [row.step for row in kept_rows(tracks, RUN_ID, cache=None, after=37).rows] == [
        38,
        39,
        40,
    ]


def test_steps_after_the_newest_checkpoint_wait_for_the_next_one(
    story: Story, tracks: Tracks
) -> None:
    story.begin()
    story.ship(range(1, 18))
    story.commit(10)
    story.write_tracks()
    state = tracks.run(RUN_ID)
    safe = kept_rows(tracks, state, cache=None, committed_only=True)
    assert committed_step(state) == 10
    assert [row.step for row in safe.rows] == list(range(1, 11))
    assert [row.step for row in kept_rows(tracks, state, cache=None).rows] == list(range(1, 18))


def test_by_hours_and_by_samples_a_curve_goes_on_where_the_checkpoint_was(
    store: FakeObjectStore, tracks: Tracks
) -> None:
    run = begun()
    lines = [
        {**STEP, "step": n, "spent": {"steps_s": 36.0 * n}, "cursor_to": 24 * n}
        for n in range(1, 24)
    ]
    ship(store, run, encoded(lines))
    run.commit(20).end("preempted", last_step=23).open().supervise().place().restore()
    again = [
        {**STEP, "step": 20 + n, "spent": {"steps_s": 72.0 * n}, "cursor_to": 24 * (20 + n)}
        for n in range(1, 6)
    ]
    ship(store, run, encoded(again))
    run.write_to(store)
    hours = read_curves(tracks, "r-1", ["loss"], cache=None, by="hours")
    assert hours.x_label == "hours of training"
    kept = [point for series in hours.curves[0].kept for point in series.points]
    # 20 steps of 36 s are 0.2 h; five of 72 s after them end at 0.3 h.
    assert [kept[n].x for n in (19, 20, 24)] == pytest.approx([0.20, 0.22, 0.30])
    samples = read_curves(tracks, "r-1", ["loss"], cache=None, by="tokens")
    assert samples.x_label == "samples"
    assert only(samples.curves[0].kept[1:]).points[-1].x == 24 * 25


def test_tokens_that_the_script_reports_are_the_axis(
    store: FakeObjectStore, tracks: Tracks
) -> None:
    run = begun()
    lines = [{**STEP, "step": n, "metrics": {"tokens": 100}} for n in (1, 2, 3)]
    ship(store, run, encoded(lines))
    run.write_to(store)
    curves = read_curves(tracks, "r-1", cache=None, by="tokens")
    assert curves.x_label == "tokens"
    assert [point.x for point in only(curves.curves[0].series).points] == [100, 200, 300]
    per_s = curves.find("tokens_per_s")
    assert per_s is not None
    assert values(per_s) == dict.fromkeys((1, 2, 3), 250.0)  # 100 in 0.4 s


def test_an_axis_that_nothing_is_known_of_is_refused(
    store: FakeObjectStore, tracks: Tracks
) -> None:
    run = begun()
    ship(store, run, encoded([{**STEP, "step": 1}]))
    run.write_to(store)
    with pytest.raises(InvalidInput, match="choose of: step, tokens, samples, hours, wall"):
        read_curves(tracks, "r-1", cache=None, by="days")
    with pytest.raises(InvalidInput, match="Choose by step, hours or wall"):
        read_curves(tracks, "r-1", cache=None, by="tokens")


def test_a_script_that_reports_no_loss_has_the_curves_of_its_steps(
    store: FakeObjectStore, tracks: Tracks
) -> None:
    run = begun()
    line = {"kind": "step", "t": STEP["t"], "step_s": 0.4}
    lines = [{**line, "step": n, "spent": {"steps_s": 0.4 * n}} for n in (1, 2)]
    ship(store, run, encoded([*lines, {**line, "step": 3}]))  # the last as other ranks write it
    run.write_to(store)
    curves = read_curves(tracks, "r-1", cache=None)
    assert [curve.name for curve in curves.curves] == ["step_s"]
    rows = kept_rows(tracks, "r-1", cache=None).rows
    assert [(row.step, row.values) for row in rows] == [(1, {"step_s": 0.4}), (2, {"step_s": 0.4})]


# --- names ------------------------------------------------------------------------------------------


def test_the_scripts_metrics_keep_their_names_and_what_is_measured_gives_way(
    store: FakeObjectStore, tracks: Tracks
) -> None:
    run = begun(global_batch=8)
    step = {**STEP, "step": 1, "lr": 0.5, "own_s": 0.1, "metrics": {"step_s": 7, "grad_norm": 2.0}}
    device = {"kind": "device", "t": STEP["t"], "step": 1, "power_w": 300.0, "name": "H100"}
    ranks = {"kind": "ranks", "t": STEP["t"], "step": 1, "over": 5, "step_s": [0.4, None]}
    evaluated = {
        "kind": "evaluated",
        "t": STEP["t"],
        "step": 1,
        "metrics": {"loss": 3.0, "bleu": 1},
    }
    ship(store, run, encoded([step, device, ranks, evaluated]))
    run.write_to(store)
    curves = read_curves(tracks, "r-1", cache=None)
    assert [(c.name, c.group, c.unit) for c in curves.curves] == [
        ("loss", "training", ""),
        ("grad_norm", "training", ""),
        ("step_s", "training", ""),
        ("bleu", "evaluated", ""),
        ("evaluated/loss", "evaluated", ""),
        ("lr", "training", ""),
        ("tracks/step_s", "speed", "s"),
        ("own_s", "speed", "s"),
        ("samples_per_s", "speed", "samples/s"),
    ]
    assert values(curves.find("step_s")) == {1: 7.0}
    assert values(curves.find("tracks/step_s")) == {1: 0.4}
    assert values(curves.find("evaluated/loss")) == {1: 3.0}
    assert values(curves.find("samples_per_s")) == {1: 20.0}
    by_rank = read_curves(tracks, "r-1", ["ranks/step_s", "device/power_w"], cache=None)
    assert [(c.name, c.is_by_rank, only(c.series).rank) for c in by_rank.curves] == [
        ("ranks/step_s", True, 0),
        ("device/power_w", True, 0),
    ]
    of_groups = read_curves(tracks, "r-1", ["loss", "ranks/*", "device/*"], cache=None)
    assert [c.name for c in of_groups.curves] == ["ranks/step_s", "device/power_w", "loss"]
    with pytest.raises(InvalidInput, match="choose --json"):
        kept_rows(tracks, "r-1", ["ranks/step_s"], cache=None)


def test_the_devices_of_other_ranks_are_read_where_they_are_asked_for(
    store: FakeObjectStore, tracks: Tracks
) -> None:
    run = begun()
    ship(store, run, encoded([{**STEP, "step": 1}]))
    line = {"kind": "device", "t": STEP["t"], "step": 1, "util_percent": 40}
    ship(store, run, encoded([line, {**line, "util_percent": 60}]), rank=1)
    run.write_to(store)
    with pytest.raises(InvalidInput, match="no metric 'device/util_percent' so far"):
        read_curves(tracks, "r-1", ["device/util_percent"], cache=None)
    assert read_curves(tracks, "r-1", ["device/*", "ranks/*"], cache=None).curves == ()
    curves = read_curves(tracks, "r-1", ["device/util_percent"], cache=None, ranks=(1, 7))
    (series,) = curves.curves[0].series
    assert (series.rank, [point.value for point in series.points]) == (1, [40.0, 60.0])


def test_an_unknown_metric_names_the_near_ones(story: Story, tracks: Tracks) -> None:
    story.whole()
    with pytest.raises(InvalidInput, match=r"no metric 'los' so far; did you mean loss\? it has:"):
        read_curves(tracks, RUN_ID, ["los"], cache=None)


def test_of_ten_thousand_names_those_with_the_most_values_are_read(
    store: FakeObjectStore, tracks: Tracks
) -> None:
    run = begun()
    lines = [
        {**STEP, "step": n, "metrics": {"often": n, **{f"m{n}-{k}": k for k in range(1000)}}}
        for n in range(1, 11)
    ]
    ship(store, run, encoded(lines))
    run.write_to(store)
    curves = read_curves(tracks, "r-1", cache=None)
    own = [curve for curve in curves.curves if curve.group == "training" and curve.name != "loss"]
    assert len(own) == METRICS_MAX
    assert values(curves.find("often")) == {n: float(n) for n in range(1, 11)}
    assert curves.names_left_out == 10_001 - METRICS_MAX


# --- damage -----------------------------------------------------------------------------------------


def test_a_journal_that_was_cut_or_is_damaged_shows_the_lines_that_are_whole(
    store: FakeObjectStore, tracks: Tracks
) -> None:
    run = begun()
    whole = [encoded([{**STEP, "step": step}]) for step in range(1, 9)]
    wrong = [
        {"kind": "step", "t": 5, "step": 90, "loss": 1.0},
        {**STEP, "step": "91"},
        {**STEP, "step": -1},
        {**STEP, "step": 10**30},
        {**STEP, "step": 92, "loss": "low"},
        {**STEP, "step": 93, "metrics": {"x": [1]}},
        {**STEP, "step": 94, "metrics": [1]},
        {**STEP, "step": True},
        {"kind": "device", "t": "yesterday", "step": 1, "power_w": 1.0},
        {"kind": "ranks", "t": STEP["t"], "step": 5, "step_s": ["fast"]},
    ]
    prefix = journal_prefix(AttemptRef("r-1", 1), run.launch_id, 0)
    first = b"".join(whole[:3]) + encoded(wrong) + b'[]\n"x"\n\xff\n' + whole[3][:-9]
    store.put(f"{prefix}{0:012d}.jsonl", first)
    second = whole[3][-9:] + whole[4] + whole[5][:20]  # goes on with the line, and tears another
    store.put(f"{prefix}{len(first):012d}.jsonl", second)
    # A segment never came; the next begins within a line, and was shipped again, longer.
    later = len(first) + len(second) + 1000
    store.put(f"{prefix}{later:012d}.jsonl", whole[6][30:] + whole[7])
    run.write_to(store)
    assert list(values(read_curves(tracks, "r-1", cache=None).find("loss"))) == [1, 2, 3, 4, 5, 8]


def test_what_is_not_a_finite_number_stays_a_point_and_steps_may_jump(
    store: FakeObjectStore, tracks: Tracks
) -> None:
    run = begun()
    lines = [
        {**STEP, "step": 1, "metrics": {"a": 1.0}},
        {**STEP, "step": 2, "metrics": {}, "non_finite": {"a": "inf"}},
        {**STEP, "step": 10**9, "metrics": {"a": 2.0}},
        {"kind": "evaluated", "t": STEP["t"], "step": 2, "metrics": {}, "non_finite": {"e": "nan"}},
        {"kind": "non_finite_loss", "t": STEP["t"], "step": 10**9 + 1, "loss": "nan"},
    ]
    ship(store, run, encoded(lines))
    run.write_to(store)
    curves = read_curves(tracks, "r-1", cache=None)
    assert values(curves.find("a")) == {1: 1.0, 2: math.inf, 10**9: 2.0}
    assert math.isnan(values(curves.find("e"))[2])
    assert math.isnan(values(curves.find("loss"))[10**9 + 1])
    assert curves.find("loss").last.step == 10**9  # type: ignore[union-attr]


def test_a_clock_that_jumps_moves_no_point(store: FakeObjectStore, tracks: Tracks) -> None:
    run = begun()
    times = ["2026-01-31T02:00:00.000000Z", "2035-01-01T00:00:00.000000Z", "1999-01-01T00:00:00Z"]
    lines = [{**STEP, "step": n, "t": at} for n, at in enumerate(times, 1)]
    ship(store, run, encoded(lines))
    run.write_to(store)
    for by in ("step", "hours"):
        curves = read_curves(tracks, "r-1", ["loss"], cache=None, by=by)
        points = only(curves.curves[0].series).points
        assert [point.step for point in points] == [1, 2, 3]
        assert [point.x for point in points] == sorted(point.x for point in points)


# --- both ways of parsing ---------------------------------------------------------------------------


def random_line(rng: random.Random, step: int) -> bytes:
    """Return a line as a trainer of some version, or a damaged disk, may leave it."""
    line: dict[str, Json] = {**STEP, "step": step, "loss": rng.choice([rng.gauss(2, 1), 3, 1e308])}
    names = rng.sample(["a", "b", "c d", "é", "loss", "step"], rng.randrange(4))
    line["metrics"] = {name: rng.choice([rng.random(), 7, -0.0, 2**60]) for name in names}
    for name in ("data_s", "own_s", "lr", "grad_norm", "samples", "cursor_to"):
        if rng.random() < 0.5:
            line[name] = rng.choice([rng.random(), 3, None])
    if rng.random() < 0.5:
        line["spent"] = {"steps_s": rng.random(), "data_s": rng.random()}
    if rng.random() < 0.01:
        line |= rng.choice(
            [
                {"step": None},
                {"loss": math.nan},
                {"loss": True},
                {"t": "?"},
                {"metrics": {"a": "1"}},
            ]
        )
    data = encoded([line])
    return data[: rng.randrange(len(data))] + b"\n" if rng.random() < 0.005 else data


@pytest.mark.parametrize("seed", range(6))
def test_lines_parsed_together_are_as_if_parsed_one_by_one(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(seed)
    rate = 1.0 if seed % 2 else 0.0  # of them the damaged ones
    lines = [random_line(rng, step) for step in range(300)]
    if not rate:
        lines = [line for line in lines if sane(line)]
    found = []
    for smallest in (0, 10**9):
        monkeypatch.setattr(tables, "BULK_BYTES_MIN", smallest)
        into: dict[str, tables.Gathered] = {}
        tables.parse(b"".join(lines), into)
        found.append(into["step"].table()[0])
    together, alone = found
    order = [np.argsort(table.step, kind="stable") for table in found]
    assert together.columns.keys() == alone.columns.keys()
    for name in alone.columns:
        for one, other in zip(together.points(name), alone.points(name), strict=True):
            assert np.array_equal(one, other, equal_nan=True), name
    assert all(len(each) == len(alone.step) for each in order)


def sane(line: bytes) -> bool:
    """Whether nothing about a line is unusual."""
    try:
        value = json.loads(line)
    except ValueError:
        return False
    numbers = [value.get("loss"), *value.get("metrics", {}).values()]
    is_plain = all(type(n) in (int, float) and math.isfinite(n) for n in numbers)
    return is_plain and type(value.get("step")) is int and value["t"] == STEP["t"]


def test_alike_lines_are_parsed_together(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [{**STEP, "step": n, "metrics": {"a": n, "b": 0.5}} for n in range(1000)]
    monkeypatch.setattr(tables, "BULK_BYTES_MIN", 0)
    monkeypatch.setattr(tables, "parse_lines", lambda data: iter(()))  # one by one: nothing
    into: dict[str, tables.Gathered] = {}
    tables.parse(encoded(lines), into)
    table, _ = into["step"].table()
    assert table.points("metrics.a")[2].tolist() == list(range(1000))


# --- stored blocks ----------------------------------------------------------------------------------


@pytest.fixture
def long(store: FakeObjectStore, monkeypatch: pytest.MonkeyPatch) -> History:
    """A run with a journal of many segments, stored in several blocks."""
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 20_000)
    monkeypatch.setattr(journal_columns, "BLOCK_BYTES", 20_000)
    run = begun()
    lines = [{**STEP, "step": n, "metrics": {"a": n % 7}} for n in range(1, 1001)]
    ship(store, run, encoded(lines), size=4000)
    run.write_to(store)
    return run


def asked(store: FakeObjectStore) -> list[str]:
    """Return which calls the store saw of journals, and forget them."""
    found = [method for method, key in store.calls if "/journal/" in key]
    store.calls.clear()
    return found


def test_a_second_look_asks_for_what_may_have_grown_alone(
    store: FakeObjectStore, tracks: Tracks, long: History, tmp_path: Path
) -> None:
    first = read_curves(tracks, "r-1", cache=tmp_path)
    segments = asked(store).count("get")
    assert segments > 20
    assert len(list(tmp_path.rglob("*.npz"))) > 3
    assert read_curves(tracks, "r-1", cache=tmp_path) == first
    assert asked(store) == ["list", "get"]
    assert first == read_curves(tracks, "r-1", cache=None)


def test_of_an_attempt_that_ended_long_ago_nothing_is_asked(
    store: FakeObjectStore, tracks: Tracks, long: History, clock: FakeClock, tmp_path: Path
) -> None:
    long.commit(900).end("preempted", last_step=1000).write_to(store)
    clock.advance((long.at - clock()).total_seconds() + 3600)
    first = read_curves(tracks, "r-1", cache=tmp_path)
    asked(store)
    assert read_curves(tracks, "r-1", cache=tmp_path) == first
    assert asked(store) == []


def test_a_journal_that_grows_segment_by_segment_comes_to_the_same(
    store: FakeObjectStore, tracks: Tracks, long: History, tmp_path: Path
) -> None:
    whole = read_curves(tracks, "r-1", cache=None)
    later = dict(sorted((k, v) for k, v in store.objects.items() if "/journal/" in k))
    for key in later:
        del store.objects[key]
    for key, data in later.items():
        half = data.find(b"\n", len(data) // 2) + 1
        for part in (data[:half], data):  # the newest is put again, longer
            store.objects[key] = part
            read_curves(tracks, "r-1", cache=tmp_path)
    assert read_curves(tracks, "r-1", cache=tmp_path) == whole
    sizes = [path.stem.split("-") for path in tmp_path.rglob("*.npz")]
    ends = sorted((int(begin), int(end)) for begin, end in sizes)
    assert [begin for begin, _ in ends[1:]] == [end for _, end in ends[:-1]]  # none twice


@pytest.mark.parametrize("damage", ["truncate", "remove", "garbage"])
def test_stored_blocks_may_be_damaged_or_removed_at_any_time(
    damage: str, tracks: Tracks, long: History, tmp_path: Path
) -> None:
    first = read_curves(tracks, "r-1", cache=tmp_path)
    path = sorted(tmp_path.rglob("*.npz"))[1]
    if damage == "truncate":
        path.write_bytes(path.read_bytes()[:-100])
    elif damage == "garbage":
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 0xFF
        path.write_bytes(bytes(data))
    else:
        path.unlink()
    assert read_curves(tracks, "r-1", cache=tmp_path) == first
    assert read_curves(tracks, "r-1", cache=tmp_path) == first


# --- blocks that lie beside the journal -------------------------------------------------------------


def columns_beside(store: FakeObjectStore) -> None:
    """Store the columns of each full segment, as the rank that wrote the journal does."""
    segments = sorted(key for key in store.objects if "/rank-0/" in key and "/journal/" in key)
    writers: dict[str, ColumnsWriter] = {}
    for key in segments[:-1]:
        prefix, _, name = key.rpartition("/")
        writer = writers.setdefault(prefix, ColumnsWriter(store, journal=f"{prefix}/"))
        writer.add(int(name.removesuffix(".jsonl")), store.objects[key])
        writer.store()


@pytest.fixture
def beside(store: FakeObjectStore, long: History) -> History:
    """The long run, with columns beside its journal."""
    columns_beside(store)
    return long


def test_a_first_look_copies_the_blocks_beside_the_journal(
    store: FakeObjectStore, tracks: Tracks, beside: History, tmp_path: Path
) -> None:
    store.calls.clear()
    first = read_curves(tracks, "r-1", cache=tmp_path)
    got = [key for method, key in store.calls if method == "get"]
    blocks_got = [key for key in got if "/columns-1/" in key]
    segments = [key for key in got if "/journal/" in key]
    assert len(blocks_got) > 3
    assert len(segments) <= 6  # those past the last block
    assert read_curves(tracks, "r-1", cache=None) == first
    asked(store)
    assert read_curves(tracks, "r-1", cache=tmp_path) == first
    assert asked(store) == ["list", "get"]
    for key in blocks_got:  # they may be deleted at any time
        del store.objects[key]
    assert read_curves(tracks, "r-1", cache=tmp_path / "another") == first


def test_who_looked_before_goes_on_with_the_blocks_beside_the_journal(
    store: FakeObjectStore, tracks: Tracks, long: History, tmp_path: Path
) -> None:
    """Blocks of one's own end elsewhere; those that are not in the chain any more are removed."""
    later = sorted(key for key in store.objects if "/journal/" in key)[3:]
    grown = {key: store.objects.pop(key) for key in later}
    read_curves(tracks, "r-1", cache=tmp_path)
    store.objects |= grown
    columns_beside(store)
    whole = read_curves(tracks, "r-1", cache=None)
    store.calls.clear()
    assert read_curves(tracks, "r-1", cache=tmp_path) == whole
    assert any("/columns-1/" in key for method, key in store.calls if method == "get")
    stretches = [journal_columns.stretch_of(path.name) for path in tmp_path.rglob("*.npz")]
    found = sorted(each for each in stretches if each)
    assert [begin for begin, _ in found[1:]] == [end for _, end in found[:-1]]  # none twice


@pytest.mark.parametrize("seed", range(24))
def test_columns_beside_the_journal_may_be_damaged_anywhere(
    seed: int, store: FakeObjectStore, tracks: Tracks, beside: History, tmp_path: Path
) -> None:
    rng = random.Random(seed)
    right = read_curves(tracks, "r-1", cache=tmp_path / "before")
    keys = sorted(key for key in store.objects if "/columns-1/" in key)
    key = rng.choice(keys)
    data = bytearray(store.objects[key])
    match rng.choice(("flip", "cut", "gone", "empty")):
        case "flip":
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        case "cut":
            del data[rng.randrange(len(data)) :]
        case "gone":
            del store.objects[key]
        case "empty":
            data.clear()
    if key in store.objects:
        store.objects[key] = bytes(data)
    for cache in (tmp_path, None, tmp_path):
        assert read_curves(tracks, "r-1", cache=cache) == right


def test_a_folder_that_cannot_be_written_costs_time_only(
    tracks: Tracks, long: History, tmp_path: Path
) -> None:
    taken = tmp_path / "cache"
    taken.write_text("no folder")
    assert read_curves(tracks, "r-1", cache=taken) == read_curves(tracks, "r-1", cache=None)


def test_readers_at_once_share_the_blocks(tracks: Tracks, long: History, tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda _: read_curves(tracks, "r-1", cache=tmp_path), range(16)))
    assert all(each == found[0] for each in found)
    assert found[0].curves[0].points_read == 1000
    assert not list(tmp_path.rglob(".*"))  # nothing is left half-written


def test_what_was_not_used_for_longest_goes_first(
    store: FakeObjectStore,
    tracks: Tracks,
    long: History,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    other = tmp_path / "curves" / "another-run"
    other.mkdir(parents=True)
    (other / "x.npz").write_bytes(b"x" * 10_000)
    monkeypatch.setattr(blocks, "CACHE_BYTES_MAX", 5000)
    read_curves(tracks, "r-1", cache=tmp_path)
    assert not other.exists()
    assert len(list((tmp_path / "curves").iterdir())) == 1


# --- fewer points -----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_no_spike_is_lost_whatever_the_number_of_pixels(seed: int) -> None:
    rng = np.random.default_rng(seed)
    count = int(rng.integers(2000, 5000))
    x = np.cumsum(rng.exponential(1.0, count))
    value = rng.normal(size=count)
    spikes = rng.choice(count, 5, replace=False)
    value[spikes] = [100.0, -100.0, np.nan, np.inf, -np.inf]
    pixels = Pixels(float(x[0]), float(x[-1]), 50)
    points = fewer(Points(np.arange(count), x, value, x), pixels)
    assert len(points.step) <= 3 * 50 + 2
    assert {100.0, -100.0} <= set(points.value.tolist())
    assert (points.step[0], points.step[-1]) == (0, count - 1)
    of_all, of_kept = pixels.of(x), pixels.of(points.x)
    for pixel in range(50):
        inside = value[(of_all == pixel) & np.isfinite(value)]
        shown = points.value[(of_kept == pixel) & np.isfinite(points.value)]
        if len(inside):
            assert (shown.min(), shown.max()) == (inside.min(), inside.max())
        assert (
            np.isfinite(value[of_all == pixel]).all()
            == np.isfinite(points.value[of_kept == pixel]).all()
        )


def test_a_part_of_the_steps_has_all_the_pixels(tracks: Tracks, long: History) -> None:
    whole = read_curves(tracks, "r-1", ["a"], cache=None, points_max=100)
    assert len(only(whole.curves[0].series).points) <= 102
    assert whole.curves[0].points_read == 1000
    part = read_curves(tracks, "r-1", ["a"], cache=None, points_max=100, steps=(400, 440))
    assert [point.step for point in only(part.curves[0].series).points] == list(range(400, 441))


def test_attempts_that_lie_over_each_other_share_the_points(
    store: FakeObjectStore, tracks: Tracks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tracks_dagster.curves.effects.reading.POINTS_ALL_MAX", 400)
    run = History("r-1").declare()
    for _ in range(10):
        run.open().supervise().place().restore()
        ship(store, run, encoded({**STEP, "step": n} for n in range(1, 501)))
        run.end("code_error", last_step=500)
    run.write_to(store)
    (loss,) = read_curves(tracks, "r-1", ["loss"], cache=None).curves
    assert loss.points_read == 5000
    assert sum(len(series.points) for series in loss.series) <= 10 * (2 * 20 + 2)

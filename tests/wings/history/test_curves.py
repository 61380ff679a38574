"""Points of other systems become curves where ours do, and a step that falls a new attempt."""

from __future__ import annotations

import gzip
import math
import random
from dataclasses import fields, replace
from datetime import date, datetime, timedelta
from pathlib import Path

import pytest

from tests.wings.history.worlds import BEGIN, ImportWorld, import_world
from tracks_dagster.curves.effects.reading import read_curves
from tracks_dagster.curves.effects.rows import kept_rows
from tracks_dagster.reasons.evidence import Condition, Evidence, RankEnd
from tracks_dagster.reasons.user_rules import NO_RULES
from tracks_dagster.wings.history.curves import PIECES_MAX, parted, point, segments
from tracks_dagster.wings.history.effects.importing import Imported, import_history
from tracks_dagster.wings.history.source import Point, Read, SourceAttempt, SourceNode

AT = BEGIN.timestamp()
WHOLE = SourceAttempt(
    id="one",
    run="one",
    title="one",
    submitted_at=BEGIN,
    started_at=BEGIN,
    ended_at=datetime.fromtimestamp(AT + 1000, BEGIN.tzinfo),
    evidence=Evidence(run_id="", attempt_id=0, launch_id=None, ranks=()),
    row={},
    succeeded="it said so",
)


class Given:
    """A source that has these attempts."""

    system = origin = "given"

    def __init__(self, *attempts: Read) -> None:
        self._attempts = attempts

    def read(self) -> list[Read]:
        return list(self._attempts)


def add(world: ImportWorld, *attempts: Read) -> Imported:
    return import_history(world.tracks, Given(*attempts), "own", rules=NO_RULES, by="tests")


def points(*steps: int, name: str = "loss") -> list[Point]:
    return [point(name, step, 2.0 / (step + 1), AT + 10 * at) for at, step in enumerate(steps)]


def test_the_points_of_an_imported_run_are_curves_as_ours_are(tmp_path: Path) -> None:
    world = import_world(tmp_path)
    given = [*points(0, 1, 2, 3, 2, 3, 4), point("val", 4, math.nan, AT + 65)]
    add(world, *parted(WHOLE, given))
    assert world.runs() == {"own.one": ["unknown", "completed"]}
    curves = read_curves(world.tracks, "own.one", cache=tmp_path / "cache")
    loss = curves.find("loss")
    assert loss is not None
    found = {
        (each.attempt_id, each.is_kept): [round(2.0 / p.value - 1) for p in each.points]
        for each in loss.series
    }
    assert found == {(1, True): [0, 1], (1, False): [2, 3], (2, True): [2, 3, 4]}
    assert loss.last is not None
    assert loss.last.at == AT + 65  # of a step the newest
    rows = list(kept_rows(world.tracks, "own.one", cache=None).rows)
    assert [each.step for each in rows] == [0, 1, 2, 3, 4]
    assert math.isnan(rows[-1].values["val"])
    newest = world.ledger.query("select newest_metrics_json as m from training_runs")
    assert newest == [{"m": '{"loss":0.4}'}]


@pytest.mark.parametrize("by", ["hours", "wall"])
def test_a_run_without_a_loss_lies_on_the_axes_of_time(tmp_path: Path, by: str) -> None:
    world = import_world(tmp_path)
    add(world, *parted(WHOLE, points(1, 2, 3, name="mAP")))
    curves = read_curves(world.tracks, "own.one", cache=None, by=by)
    assert [round(p.x * 3600) for c in curves.curves for s in c.series for p in s.points] == [
        0,
        10,
        20,
    ]


def test_metrics_with_steps_of_their_own_do_not_part_a_run() -> None:
    epochs = [point("epoch_loss", n, 1.0, AT + 25 * n) for n in (0, 1, 2)]
    found = list(parted(WHOLE, [*points(0, 10, 20, 30), *epochs]))
    assert [(each.id, each.last_step, each.succeeded) for each in found] == [
        ("one/1", 30, "it said so")
    ]


def test_several_writers_of_one_metric_are_one_attempt() -> None:
    found = list(parted(WHOLE, points(*[5, 1] * (PIECES_MAX + 1))))
    assert len(found) == 1
    assert "several wrote at once" in found[0].unknown["attempts"]


def test_a_long_curve_is_several_segments_of_one_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tracks_dagster.wings.history.curves.SEGMENT_BYTES", 500)
    assert len(list(segments(points(*range(50))))) > 5
    world = import_world(tmp_path)
    add(world, *parted(WHOLE, points(*range(50))))
    curves = read_curves(world.tracks, "own.one", cache=tmp_path / "cache")
    assert [len(s.points) for c in curves.curves for s in c.series] == [50]


def test_what_is_secret_in_a_config_is_not_stored(tmp_path: Path) -> None:
    world = import_world(tmp_path)
    config = {"api_token": "hunter2hunter2", "optimizer": {"lr": 1e-3, "b": (1, 2)}}
    add(world, replace(WHOLE, config=config, row={"config": config}))
    stored = world.ledger.query("select newest_config_json as c from training_runs")
    assert stored == [{"c": '{"api_token":"[hidden]","optimizer.b":"(1, 2)","optimizer.lr":0.001}'}]
    assert b"hunter2" not in b"".join(world.store.get(k) or b"" for k in world.store.list(""))


def test_a_config_of_any_size_is_imported_as_far_as_a_record_has_room(tmp_path: Path) -> None:
    world = import_world(tmp_path)
    config = {f"key{n}": "x" * 1000 for n in range(1000)}
    metrics = {f"metric{n}": n / 7 for n in range(1000)}
    add(world, replace(WHOLE, config=config, metrics=metrics))
    assert "for 981 of 1000" in str(
        world.store._histories.run("own.one")[0].unknown  # what is named as not known
    )
    assert world.runs() == {"own.one": ["completed"]}


@pytest.mark.parametrize(
    ("step", "value", "at"),
    [
        *((-1, 1.0, AT), (1.5, 1.0, AT), ("1", 1.0, AT), (1, "x", AT), (1, 10**400, AT)),
        *((1, 1.0, -5.0), (1, 1.0, 1e30), (1, 1.0, math.nan), (1, 1.0, math.inf)),
    ],
)
def test_what_is_not_a_point_is_named(step: object, value: object, at: float) -> None:
    with pytest.raises(ValueError, match=r"^its (step|value|time) is"):
        point("loss", step, value, at)


def test_points_before_the_start_of_a_run_are_of_its_first_attempt(tmp_path: Path) -> None:
    world = import_world(tmp_path)
    given = [
        point("loss", step, 1.0, AT - 5000 + 10 * at) for at, step in enumerate((0, 1, 2, 1, 2))
    ]
    add(world, *parted(WHOLE, given))
    assert world.runs() == {"own.one": ["unknown", "completed"]}
    spent = world.ledger.query("select gpu_seconds as s from training_attempts order by attempt_id")
    assert [each["s"] for each in spent] == [20.0, 5970.0]


# --- what a source says can be anything -----------------------------------------------------------


def test_secrets_in_what_ranks_and_places_said_are_not_stored(tmp_path: Path) -> None:
    world = import_world(tmp_path)
    words = "cannot connect to postgresql://admin:S3cretPassw0rd99@db/x?api_key=S3cretPassw0rd99"
    evidence = replace(
        WHOLE.evidence,
        ranks=(
            RankEnd(
                rank=0, exit_code=1, log_tail=f"Traceback (most recent call last)\nOSError: {words}"
            ),
        ),
        conditions=(Condition(type="Failed", reason="x", message=words, at=None, source="slurm"),),
        stop={"by": "ana", "why": words, "mode": "kill"},
        kernel_lines=(words,),
    )
    long = {"of": "x" * 290 + " " + words}  # the cut of a value falls into the secret
    add(
        world,
        replace(WHOLE, evidence=evidence, failed=words, succeeded=None, config=long, row=[words]),
    )
    stored = [world.store.get(key) or b"" for key in world.store.list("")]
    rows = str(world.ledger.dump())
    assert "own.one" in rows
    assert "S3cret" not in rows
    for data in (*stored, *(gzip.decompress(each) for each in stored if each[:2] == b"\x1f\x8b")):
        assert b"S3cret" not in data
    for key in world.store.list("runs/own.one/"):
        assert b"S3cret" not in (world.store.get(key) or b"")


def test_no_text_of_a_source_brings_a_secret_into_what_is_stored(tmp_path: Path) -> None:
    """By kind of field, so that one which comes later is in it."""
    secret = "sk-abcdefghijklmnopqrstuvwxyz0123456789ABCDEFGH"
    by_type: dict[object, object] = {
        "str": f"by {secret}",
        "str | None": f"by {secret}",
        "tuple[str, ...]": (f"node-{secret}", "n1"),
        "Mapping[str, Json]": {f"of {secret}": f"is {secret}"},
        "Mapping[str, float]": {f"loss of {secret}": 1.0},
        "Sequence[Point]": points(0, 1, name=f"loss of {secret}"),
        "Json": {f"of {secret}": [f"is {secret}"]},
    }
    ours = {"cause", "unknown", "program"}  # words of the source's module
    world = import_world(tmp_path)
    for whole in (WHOLE, SourceNode(node="", program="scontrol", row="", seen_at=BEGIN)):
        given = {
            each.name: by_type[each.type]
            for each in fields(whole)
            if each.type in by_type and each.name not in ours
        }
        assert len(given) >= 6
        assert add(world, replace(whole, **given)).bad == []  # type: ignore[arg-type]
    stored = [world.store.get(key) or b"" for key in world.store.list("")]
    rows = str(world.ledger.dump())
    assert "n1" in rows
    assert secret[:20] not in rows
    assert secret[:20].lower() not in rows
    for data in (*stored, *(gzip.decompress(each) for each in stored if each[:2] == b"\x1f\x8b")):
        assert secret[:20].encode() not in data


def test_an_attempt_that_ends_before_it_starts_is_named_and_stops_no_other(tmp_path: Path) -> None:
    world = import_world(tmp_path)
    early = replace(WHOLE, id="early", run="early", ended_at=BEGIN - timedelta(hours=1))
    done = add(world, early, WHOLE)
    assert (done.new, done.bad_count, done.bad[0].file) == (1, 1, "early")
    assert "before it starts" in done.bad[0].why


def test_another_run_of_the_same_name_is_not_taken_for_the_one_that_is_known(
    tmp_path: Path,
) -> None:
    world = import_world(tmp_path)
    add(world, *parted(WHOLE, points(0, 1, 2, 1, 2)))
    later = replace(
        WHOLE,
        submitted_at=BEGIN + timedelta(hours=1),
        started_at=BEGIN + timedelta(hours=1),
        ended_at=BEGIN + timedelta(hours=2),
    )
    given = [each._replace(at=each.at + 3600) for each in points(*range(9), *range(5, 9), 7)]
    done = add(world, *parted(later, given), replace(later, id="new", run="new"))
    assert (done.new, done.grown, done.bad_count) == (1, 0, 1)
    assert "import this with another --name" in done.bad[0].why
    assert world.runs() == {"own.new": ["completed"], "own.one": ["unknown", "completed"]}


def test_values_beyond_the_bound_are_counted_once() -> None:
    (only,) = parted(WHOLE, points(0, 1), beyond=7)
    assert only.unknown["values"].startswith("of its values 7 are left out")


@pytest.mark.parametrize("seed", range(20))
def test_whatever_a_source_says_the_run_can_be_read(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    world = import_world(tmp_path)

    def text() -> str:
        letters = rng.choice(["a", "名", "\x00", "\ud800", '\\"', "é ", "node"])
        return letters * rng.choice([0, 1, 40, 500, 30_000])

    def value(depth: int = 0) -> object:
        odd = (
            10**401,
            -(2**64),
            math.nan,
            math.inf,
            date(2026, 1, 1),
            b"\x00\xff",
            {1, 2},
            None,
            True,
        )
        if depth < 3 and rng.random() < 0.3:
            return {text()[:50]: value(depth + 1) for _ in range(3)} or [value(depth + 1)]
        return rng.choice([*odd, 0.5, 3, text()])

    config = {f"{n}{text()[:20]}": value() for n in range(rng.choice([3, 200]))}
    nodes = tuple(f"{n}{text()[:60]}" for n in range(rng.choice([0, 3, 2000])))
    attempt = replace(
        WHOLE,
        title=text(),
        owner=text(),
        team=text(),
        device_class=text(),
        nodes=nodes,
        excluded_nodes=nodes,
        config=config,
        metrics={f"{n}m": value() for n in range(rng.choice([3, 400]))},  # type: ignore[misc]
        row=config,  # type: ignore[arg-type]
        evidence=replace(WHOLE.evidence, ranks=(RankEnd(rank=0, exit_code=1, log_tail=text()),)),
        failed=text(),
        succeeded=None,
    )
    done = add(world, attempt, replace(attempt, id="two", failed=None, succeeded=text()))
    assert (done.new, done.bad) == (2, [])
    assert len(world.tracks.run("own.one").attempts) == 2
    for key in world.store.list("runs/own.one/"):
        assert world.store.get(key)
    assert world.ledger.query("select count(*) as n from training_attempts") == [{"n": 2}]

"""What `a.log` stores: every kind, once for equal bytes, up to its caps; and it never ends a run."""

from __future__ import annotations

import io
import json
import time
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.fakes import FakeObjectStore
from tracks_dagster.track.bodies import LOGGED_BYTES_MAX, LOGGED_MAX
from tracks_dagster.track.errors import StoreUnavailable
from tracks_dagster.track.media import (
    ITEM_BYTES_MAX,
    WORDS_MAX,
    Logged,
    index_bytes,
    index_of,
    part_key,
)
from tracks_dagster.training import media
from tracks_dagster.training.media import (
    Audio,
    ConfusionMatrix,
    Histogram,
    Image,
    Media,
    MediaLog,
    Table,
    Text,
)

INDEX = "runs/r-1/attempts/1/launch/media.json"
PNG = media.png(np.zeros((2, 3, 3), np.uint8))


def log_of(
    store: FakeObjectStore, items: int = LOGGED_MAX, bytes_max: int = LOGGED_BYTES_MAX
) -> MediaLog:
    """Return the log of a launch that may store so many things and bytes."""
    return MediaLog(
        store,
        run_id="r-1",
        index=INDEX,
        items_max=items,
        bytes_max=bytes_max,
        clean=lambda text: text.replace("hunter2", "***"),
    )


def stored(store: FakeObjectStore) -> tuple[tuple[Logged, ...], tuple[str, ...]]:
    """Return what the store says was logged."""
    return index_of(json.loads(store.get(INDEX) or b"null"))


def logged(store: FakeObjectStore, *things: Media, **caps: int) -> list[bytes]:
    """Log these at the steps 1, 2, … and return what is stored of each that was taken."""
    log = log_of(store, **caps)
    for step, each in enumerate(things, 1):
        log.take(step, "x", each)
    log.close()
    found = (store.get(part_key("r-1", item.sha256)) for item in stored(store)[0])
    return [data for data in found if data is not None]


@pytest.mark.parametrize(
    ("thing", "expected"),
    [
        (Text("the password is hunter2"), b"the password is ***"),
        (
            Table(["a", "b"], [[1, 0.5], [None, float("nan")]]),
            b'{"columns":["a","b"],"rows":[[1,0.5],[null,"nan"]]}',
        ),
        (
            Table(["acc", "loss"], [{"loss": 2, "acc": 0.5}]),
            b'{"columns":["acc","loss"],"rows":[[0.5,2]]}',
        ),
        (
            Histogram(np.full(3, 1e17)),
            b'{"counts":[3],"edges":[1e+17,1e+17],"not_finite":0}',
        ),
        (
            Histogram([-1.7e308, 1.7e308]),
            b'{"counts":[2],"edges":[-1.7e+308,1.7e+308],"not_finite":0}',
        ),
        *((Audio(data), data) for data in (b"\xff\xf3\x40", b"\xff\xfa\x90", b"\xff\xe3\x90")),
        (
            ConfusionMatrix(torch.tensor([[2, 0], [1, 3]]), ["cat", "dog"]),
            b'{"labels":["cat","dog"],"counts":[[2,0],[1,3]]}',
        ),
        (Image(PNG), PNG),
        (Image(torch.zeros(2, 3, 3)), PNG),
        (Image(np.ones((2, 2), bool)), media.png(np.full((2, 2, 1), 255, np.uint8))),
    ],
)
def test_each_kind_is_stored_as_it_is_read(
    thing: Media, expected: bytes, store: FakeObjectStore
) -> None:
    assert logged(store, thing) == [expected]


def test_a_histogram_counts_what_is_not_finite_apart(store: FakeObjectStore) -> None:
    values = np.array([0.0, 1.0, 1.0, np.nan, np.inf])
    found = json.loads(logged(store, Histogram(values))[0])
    assert (sum(found["counts"]), found["not_finite"]) == (3, 2)
    assert (found["edges"][0], found["edges"][-1]) == (0.0, 1.0)


def test_samples_are_a_wav_of_their_rate(store: FakeObjectStore) -> None:
    (data,) = logged(store, Audio(np.array([0.0, 1.0, -2.0]), rate=8000))
    with wave.open(io.BytesIO(data)) as file:
        assert (file.getframerate(), file.getnframes(), file.getnchannels()) == (8000, 3, 1)
        assert np.frombuffer(file.readframes(3), "<i2").tolist() == [0, 32767, -32767]


def test_a_pictures_array_is_copied_at_once(store: FakeObjectStore) -> None:
    pixels = np.zeros((2, 3, 3), np.uint8)
    log = log_of(store)
    log.take(1, "x", Image(pixels))
    pixels[:] = 255
    log.close()
    assert store.get(part_key("r-1", stored(store)[0][0].sha256)) == PNG


def test_equal_bytes_are_stored_once(store: FakeObjectStore) -> None:
    assert logged(store, Text("same"), Text("same")) == [b"same", b"same"]
    assert len(list(store.list("runs/r-1/media/"))) == 1


def test_an_image_of_a_gigabyte_is_refused_by_its_size(
    store: FakeObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "large.png"
    with path.open("wb") as file:
        file.truncate(1024**3)
    monkeypatch.setattr(Path, "read_bytes", lambda _: pytest.fail("it was read"))
    assert logged(store, Image(path)) == []
    (words,) = stored(store)[1]
    assert words.startswith("x of step 1: A file of 1073741824 bytes was not logged")
    assert str(ITEM_BYTES_MAX) in words


@pytest.mark.parametrize(
    ("thing", "words"),
    [
        (Image(b"<svg onload='alert(1)'/>"), "the bytes of the image are not png"),
        (Image("/no/such.png"), "No such file"),
        (Image(np.zeros((2, 2, 2))), "An image of shape (2, 2, 2) was not logged"),
        (Audio(np.zeros(3)), "give samples (N,)"),
        (Audio(torch.randn(2, 16_000), rate=16_000), "of (channels, N) give the transpose"),
        (Audio(np.zeros(3, np.int16), rate=8000), "bits give samples / 32768"),
        (Audio(b"\xff\xe0\x90"), "the bytes of the sound are not "),
        (Table(["a"], [[1, 2]]), "each row has 1 values"),
        (Table(["a", "b"], ["xy"]), "a mapping with these keys: a, b"),
        (Table(["a", "b"], [{"a": 1}]), "a mapping with these keys: a, b"),
        (ConfusionMatrix([[1, 2]]), "A confusion matrix of shape (1, 2)"),
        (3.5, "A float was not logged"),
    ],
)
def test_what_cannot_be_logged_says_why_and_ends_nothing(
    thing: Any, words: str, store: FakeObjectStore, capsys: pytest.CaptureFixture[str]
) -> None:
    assert logged(store, thing) == []
    assert words in stored(store)[1][0]
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("step", [-1, 10**12 + 1, 10**5000, float("nan"), "one"], ids=range(5))
def test_a_step_that_no_run_has_is_refused_in_words_and_costs_itself_alone(
    step: Any, store: FakeObjectStore
) -> None:
    log = log_of(store)
    assert not log.take(step, "x", Text("a"))
    assert log.take(0, "x", Text("b"))
    log.close()
    items, (words,) = stored(store)
    assert [item.step for item in items] == [0]
    assert words.startswith("x of step ")
    assert "It was not logged: a step is a whole number from 0 to 1000000000000." in words
    assert len(words) < 200


def test_a_cap_of_the_policy_ends_logging_and_is_named_once(store: FakeObjectStore) -> None:
    assert logged(store, *map(Text, "abcd"), items=2) == [b"a", b"b"]
    assert stored(store)[1] == (
        "x of step 3: It was not stored: the policy allows this launch 2 things "
        "(tracking.media_items, docs/policy.md). More are left out without a further word; numbers and "
        "checkpoints go on.",
    )


def test_what_fits_into_the_bytes_of_the_policy_is_stored_after_what_does_not(
    store: FakeObjectStore,
) -> None:
    things = [
        Text("12345"),
        *(Text("123456") for _ in range(30)),
        Text("123"),
        Image(b"no picture"),
    ]
    assert logged(store, *things, bytes_max=10) == [b"12345", b"123"]
    of_bytes, other = stored(store)[1]
    assert of_bytes == (
        "x of step 2: 6 bytes were not stored: 5 are left of the 10 that the policy allows this "
        "launch (tracking.media_size, docs/policy.md). What is smaller is still stored; others that do "
        "not fit are left out without a further word."
    )
    assert other.startswith("x of step 33: It was not logged: the bytes of the image")


def until_stored(log: MediaLog) -> None:
    """Wait until nothing of a log waits for the store."""
    until = time.monotonic() + 10.0
    while log._waiting and time.monotonic() < until:
        time.sleep(0.005)
    assert not log._waiting


@pytest.mark.parametrize(
    "thing",
    [Image(np.zeros((400, 400, 3), np.uint8)), Audio(np.zeros(60_000), rate=8000)],
    ids=["image", "audio"],
)
def test_the_bytes_of_the_policy_are_those_that_are_stored(
    thing: Media, store: FakeObjectStore
) -> None:
    """Each is 480 000 bytes in memory; as a picture 600, as a sound 120 044."""
    log = log_of(store, bytes_max=900_000)
    for step in range(4):
        assert log.take(step, "x", thing)
        until_stored(log)
    log.close()
    items, words = stored(store)
    assert (len(items), words) == (4, ())
    assert log._bytes_left == 900_000 - sum(item.size_bytes for item in items)


def test_what_becomes_larger_than_it_was_in_memory_passes_no_cap(store: FakeObjectStore) -> None:
    noise = np.random.default_rng(1).integers(0, 256, (50, 50, 3), np.uint8)  # 7500 bytes
    assert len(media.png(noise)) > 7550
    log = log_of(store, bytes_max=7550)
    log.take(1, "x", Image(noise))
    until_stored(log)
    assert log.take(2, "x", Text("a" * 7550))
    log.close()
    (item,), (words,) = stored(store)
    assert item.step == 2
    assert words.startswith("x of step 1: ")
    assert "(tracking.media_size, docs/policy.md)" in words


def test_what_was_not_stored_takes_nothing_of_the_caps(
    store: FakeObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise StoreUnavailable("it is away")

    log = log_of(store, items=2, bytes_max=10)
    with monkeypatch.context() as patch:
        patch.setattr(store, "create", refuse)
        for step in range(6):
            assert log.take(step, "x", Text("12345"))
            until_stored(log)
    assert [log.take(step, "x", Text("12345")) for step in (6, 7, 8)] == [True, True, False]
    log.close()
    items, words = stored(store)
    assert [item.step for item in items] == [6, 7]
    assert len(words) == 7


@pytest.mark.parametrize("caps", [{"items": 3}, {"bytes_max": 3}], ids=repr)
def test_that_a_cap_is_reached_comes_after_any_number_of_other_words(
    caps: dict[str, int], store: FakeObjectStore, capsys: pytest.CaptureFixture[str]
) -> None:
    log = log_of(store, **caps)
    for step in range(2 * WORDS_MAX):
        log.take(step, "x", Image(b"no picture"))
    for step in range(5):
        log.take(step, "x", Text("a"))
    log.close()
    words = stored(store)[1]
    assert len(words) == WORDS_MAX + 1
    assert "(tracking.media_" in words[-1]
    assert "(tracking.media_" in capsys.readouterr().err


def test_a_store_that_is_slow_holds_up_nothing(
    store: FakeObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(media, "WAITING_MAX", 3)
    monkeypatch.setattr(media, "CLOSE_S_MAX", 0.0)
    monkeypatch.setattr(store, "create", lambda *_: time.sleep(0.5))
    log = log_of(store)
    taken = [log.take(step, "x", Text("x")) for step in range(10)]
    assert taken.count(True) <= 4
    log.close()


def test_a_store_that_is_down_costs_what_was_logged_alone(
    store: FakeObjectStore, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object) -> None:
        raise StoreUnavailable("it is away")

    monkeypatch.setattr(store, "create", refuse)
    log = log_of(store)
    assert log.take(1, "x", Text("x"))
    log.close()
    assert "x of step 1: it is away" in capsys.readouterr().err


def test_what_is_too_large_at_once_is_refused_by_its_size(store: FakeObjectStore) -> None:
    assert logged(store, Text("a" * (media.WAITING_BYTES_MAX + 1))) == []
    assert "bytes were not logged: at most" in stored(store)[1][0]


def test_a_complaint_that_comes_while_the_list_is_written_is_in_the_next_one(
    store: FakeObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, put = log_of(store), store.put
    late = iter([ValueError("late")])

    def slow_put(*given: Any) -> Any:
        for error in late:
            log._say(2, "x", error)
        return put(*given)

    monkeypatch.setattr(store, "put", slow_put)
    log.take(1, "x", Text("a"))
    log.close()
    assert stored(store)[1] == ("x of step 2: late",)


@pytest.mark.parametrize(
    "found", [{"items": 5}, {"items": {}, "words": 7}, [], {"words": "text"}], ids=repr
)
def test_a_list_that_is_not_one_is_empty(found: Any) -> None:
    assert index_of(found) == ((), ())


def test_a_damaged_list_is_read_as_far_as_it_can_be() -> None:
    good = Logged(
        step=1, name="x", kind="text", sha256="a" * 64, size_bytes=1, media_type="text/plain"
    )
    rows = json.loads(index_bytes([good], ["why"]))
    rows["items"] += [
        {},
        7,
        {**rows["items"][0], "media_type": "text/html"},
        {**rows["items"][0], "sha256": "../../x"},
        {**rows["items"][0], "kind": []},
        {**rows["items"][0], "name": 5},
        {**rows["items"][0], "name": "\ud800"},
        {**rows["items"][0], "size_bytes": "x"},
        {**rows["items"][0], "size_bytes": -1},
        {**rows["items"][0], "step": True},
    ]
    assert index_of(rows) == ((good,), ("why",))
    assert index_of(None) == ((), ())

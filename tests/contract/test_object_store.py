"""What every object store promises: one suite over the fake, a local folder and an S3 server."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.fakes import FakeObjectStore
from tracks_dagster.stores import open_store
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.ports import ObjectStore

THREADS = 8


@pytest.fixture(params=["fake", "local", "s3"])
def any_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ObjectStore]:
    if request.param == "fake":
        yield FakeObjectStore()
    elif request.param == "local":
        yield open_store(str(tmp_path / "store"))
    else:
        yield open_store(request.getfixturevalue("s3_url"))


def keys(store: ObjectStore, prefix: str = "") -> list[str]:
    return [key for key in store.list(prefix) if key != "format.json"]


def test_an_object_is_read_back_as_it_was_written(any_store: ObjectStore) -> None:
    data = bytes(range(256))
    any_store.put("a/put", data)
    any_store.create("a/created", data)
    any_store.put("a/empty", b"")
    assert any_store.get("a/put") == data
    assert any_store.get("a/created") == data
    assert any_store.get("a/empty") == b""


def test_a_view_of_a_buffer_is_written_as_its_bytes(any_store: ObjectStore) -> None:
    buffer = bytearray(b"--written--")
    any_store.put("a/put", memoryview(buffer)[2:-2])
    any_store.create("a/created", memoryview(buffer)[2:-2])
    buffer[:] = b"-" * len(buffer)  # the buffer is the caller's again
    assert any_store.get("a/put") == b"written"
    assert any_store.get("a/created") == b"written"


def test_an_object_is_read_into_a_buffer_as_far_as_there_is_room(any_store: ObjectStore) -> None:
    any_store.put("a/key", b"0123456789")
    for room in (0, 3, 10, 12):
        whole = bytearray(b"-" * 14)
        assert any_store.read_into("a/key", memoryview(whole)[1 : 1 + room]) == 10
        assert whole == b"-" + b"0123456789"[:room] + b"-" * (13 - min(room, 10))


def test_what_is_not_there_is_not_read_into_a_buffer(any_store: ObjectStore) -> None:
    any_store.put("a/b/c", b"1")
    buffer = bytearray(b"----")
    assert any_store.read_into("a/b", memoryview(buffer)) is None
    assert any_store.read_into("a/b/c/d", memoryview(buffer)) is None
    assert any_store.read_into("other/key", memoryview(buffer)) is None
    assert buffer == b"----"
    any_store.put("a/empty", b"")
    assert any_store.read_into("a/empty", memoryview(buffer)) == 0


def test_there_is_nothing_where_nothing_was_written(any_store: ObjectStore) -> None:
    any_store.put("a/b/c", b"1")
    assert any_store.get("a/b/d") is None
    assert any_store.get("a/b") is None
    assert any_store.get("other/folder/key") is None


def test_a_key_is_created_once_and_keeps_its_first_bytes(any_store: ObjectStore) -> None:
    assert any_store.create("a/key", b"first") is True
    assert any_store.create("a/key", b"second") is False
    assert any_store.create("a/key", b"first") is False
    assert any_store.get("a/key") == b"first"


def test_a_key_that_was_put_or_deleted_counts_for_create(any_store: ObjectStore) -> None:
    any_store.put("key", b"put")
    assert any_store.create("key", b"created") is False
    any_store.delete("key")
    assert any_store.create("key", b"created") is True
    assert any_store.get("key") == b"created"


def test_of_eight_threads_that_create_one_key_one_wins_and_all_read_its_bytes(
    any_store: ObjectStore,
) -> None:
    barrier = threading.Barrier(THREADS)

    def race(thread: int, key: str) -> tuple[bool, bytes | None]:
        barrier.wait(timeout=60)
        won = any_store.create(key, f"thread {thread}".encode())
        return won, any_store.get(key)

    with ThreadPoolExecutor(THREADS) as pool:
        for number in range(10):
            races = [pool.submit(race, t, f"race/{number}") for t in range(THREADS)]
            results = [r.result(timeout=60) for r in races]
            winners = [thread for thread, (won, _) in enumerate(results) if won]
            assert len(winners) == 1
            assert {found for _, found in results} == {f"thread {winners[0]}".encode()}


def test_put_replaces_and_readers_never_see_a_mixture(any_store: ObjectStore) -> None:
    values = {bytes([fill]) * 300_000 for fill in range(5)}
    any_store.put("key", next(iter(values)))
    seen: set[bytes | None] = set()
    written = threading.Event()

    def read_on() -> None:
        while not written.is_set():
            seen.add(any_store.get("key"))

    reader = threading.Thread(target=read_on)
    reader.start()
    try:
        for _ in range(4):
            for value in values:
                any_store.put("key", value)
                assert any_store.get("key") == value
    finally:
        written.set()
        reader.join()
    assert seen <= values


def test_keys_are_listed_in_ascending_order_by_prefix(any_store: ObjectStore) -> None:
    # "-" and "." sort before "/", digits and letters after it: a folder-wise order would differ.
    expected = ["a-b/x", "a.json", "a/b-c/x", "a/b.json", "a/b/x", "a/b0", "ab/x", "b@1/=x_"]
    for key in reversed(expected):
        any_store.put(key, b"")
    assert expected == sorted(expected)
    assert keys(any_store) == expected
    assert keys(any_store, "a/") == ["a/b-c/x", "a/b.json", "a/b/x", "a/b0"]
    assert keys(any_store, "a/b") == ["a/b-c/x", "a/b.json", "a/b/x", "a/b0"]
    assert keys(any_store, "a/b/") == ["a/b/x"]
    assert keys(any_store, "a/b/x") == ["a/b/x"]
    assert keys(any_store, "c") == []
    assert keys(any_store, "../") == []


def test_a_deleted_object_is_gone_and_deleting_it_again_does_nothing(
    any_store: ObjectStore,
) -> None:
    any_store.put("a/key", b"1")
    any_store.put("a/other", b"2")
    any_store.delete("a/key")
    any_store.delete("a/key")
    any_store.delete("a/other/below")
    any_store.delete("never/there")
    assert any_store.get("a/key") is None
    assert keys(any_store) == ["a/other"]


def test_a_key_that_some_store_could_not_hold_is_refused_and_nothing_is_there(
    any_store: ObjectStore,
) -> None:
    for key in (
        *("", "/a", "a/", "a//b", ".", "..", "a/../b", "a/./b", "a b", "ä", "a\\b", "a\n"),
        *("~partial/x", "x/" * 450 + "x", "x" * 201),
    ):
        with pytest.raises(InvalidInput, match="cannot name an object"):
            any_store.put(key, b"")
        with pytest.raises(InvalidInput, match="cannot name an object"):
            any_store.create(key, b"")
        assert any_store.get(key) is None
        assert any_store.read_into(key, memoryview(bytearray(1))) is None
        any_store.delete(key)
        assert list(any_store.folders(f"{key}/")) == []
        assert keys(any_store) == []


def test_folders_are_named_once_each_and_in_the_order_of_keys(any_store: ObjectStore) -> None:
    for key in ("runs/b/log/0", "runs/a/log/0", "runs/a/log/1", "runs/a-b/log/0", "runs/file", "x"):
        any_store.put(key, b"")
    assert list(any_store.folders("runs/")) == ["a-b", "a", "b"]
    assert list(any_store.folders("runs/a/")) == ["log"]
    assert [name for name in any_store.folders("") if name != "probe"] == ["runs"]
    assert list(any_store.folders("nothing/")) == []
    assert list(any_store.folders("runs/file/")) == []


def test_the_longest_key_can_be_written_and_listed(any_store: ObjectStore) -> None:
    key = "/".join(["x" * 199] * 4 + ["y" * 100])
    assert len(key) == 900
    any_store.put(key, b"1")
    assert any_store.get(key) == b"1"
    assert keys(any_store) == [key]


def test_a_value_of_many_megabytes_is_read_back_whole(any_store: ObjectStore) -> None:
    data = bytes(range(256)) * 4 * 1024 * 12  # 12 MiB
    any_store.put("big", data)
    assert any_store.get("big") == data
    assert any_store.create("big-too", data) is True
    assert any_store.get("big-too") == data
    buffer = bytearray(len(data))
    assert any_store.read_into("big", memoryview(buffer)) == len(data)
    assert buffer == data


def test_more_keys_than_one_page_are_all_listed(any_store: ObjectStore) -> None:
    expected = [f"many/{number:04d}" for number in range(1005)]  # S3 gives 1000 a page
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(lambda key: any_store.put(key, b""), expected))
    assert keys(any_store, "many/") == expected


@pytest.mark.parametrize("any_store", ["local", "s3"], indirect=True)
def test_the_url_opens_the_same_store_again(any_store: ObjectStore) -> None:
    any_store.put("key", b"1")
    assert open_store(any_store.url, probe=False).get("key") == b"1"

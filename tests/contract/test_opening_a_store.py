"""Opening: the probe of conditional writes, and the format file."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.fakes import FakeObjectStore, Fault
from tracks_dagster.stores import open_store, try_store
from tracks_dagster.stores.checks import (
    PROBE_TRIES_MAX,
    check_format,
    make_format,
    probe_conditions,
)
from tracks_dagster.track.errors import StoreUnavailable, StoreUnsuitable


class StoreThatIgnoresConditions(FakeObjectStore):
    def create(self, key: str, data: bytes) -> bool:
        self.put(key, data)
        return True


class StoreThatRefusesAndOverwrites(FakeObjectStore):
    def create(self, key: str, data: bytes) -> bool:
        created = super().create(key, data)
        self.put(key, data)
        return created


class StoreThatCreatesNothing(FakeObjectStore):
    def create(self, key: str, data: bytes) -> bool:
        return False


@pytest.mark.parametrize(
    ("store", "found"),
    [
        (StoreThatIgnoresConditions(), "won 2 times and then held b'second'"),
        (StoreThatRefusesAndOverwrites(), "won 1 times and then held b'second'"),
        (StoreThatCreatesNothing(), "won 0 times and then held None"),
    ],
)
def test_a_store_that_ignores_conditional_writes_is_refused_and_left_clean(
    store: FakeObjectStore, found: str
) -> None:
    with pytest.raises(StoreUnsuitable, match=f"does not honour conditional writes.*{found}"):
        probe_conditions(store)
    assert store.objects == {}


def test_a_probe_whose_reply_is_lost_is_made_again_with_another_key() -> None:
    store = FakeObjectStore()
    store.fail("create", 1, Fault.LOST_AFTER)
    store.fail("create", 3, Fault.LOST_BEFORE)
    probe_conditions(store)
    assert len({key for _, key in store.calls}) == 3
    assert store.objects == {}


def test_a_store_whose_replies_are_always_lost_is_unavailable() -> None:
    store = FakeObjectStore()
    for number in range(1, PROBE_TRIES_MAX + 1):
        store.fail("create", number, Fault.LOST_AFTER)
    with pytest.raises(StoreUnavailable, match="lost 3 times"):
        probe_conditions(store)


def test_a_store_gets_its_format_and_id_once(tmp_path: Path) -> None:
    url = str(tmp_path / "new" / "store")
    first = open_store(url).get("format.json")
    assert first is not None
    made = json.loads(first)
    assert made == {"format": 1, "store_id": made["store_id"]}
    assert len(made["store_id"]) == 32
    assert open_store(url).get("format.json") == first


def test_ranks_that_open_a_store_write_nothing(tmp_path: Path) -> None:
    url = str(tmp_path / "store")
    open_store(url)
    before = sorted(p.stat().st_mtime_ns for p in tmp_path.rglob("*"))
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: open_store(url, probe=False), range(8)))
    assert sorted(p.stat().st_mtime_ns for p in tmp_path.rglob("*")) == before


def test_without_the_probe_nothing_is_made_where_no_store_is(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="moved, removed or unmounted"):
        open_store(str(tmp_path / "none"), probe=False)
    with pytest.raises(StoreUnsuitable, match="holds no store"):
        open_store(str(tmp_path), probe=False)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("stored", [b'{"format":2,"store_id":"x"}', b"[]", b"{}", b"\xff\x00"])
def test_another_format_is_refused_before_anything_is_written(
    tmp_path: Path, stored: bytes
) -> None:
    (tmp_path / "format.json").write_bytes(stored)
    for probe in (True, False):
        with pytest.raises(StoreUnsuitable, match="writes format 1; install a version"):
            open_store(str(tmp_path), probe=probe)
    assert [p.name for p in tmp_path.iterdir()] == ["format.json"]


@pytest.mark.parametrize("fault", [Fault.LOST_BEFORE, Fault.LOST_AFTER, Fault.LOST_UNTIL_LATER])
def test_a_lost_reply_to_the_format_is_settled_by_reading_back(fault: Fault) -> None:
    store = FakeObjectStore()
    store.fail("create", 1, fault)
    make_format(store)
    assert check_format(store, must_exist=True)


def test_of_many_who_make_one_store_all_agree_on_its_id(tmp_path: Path) -> None:
    url = str(tmp_path / "store")
    with ThreadPoolExecutor(8) as pool:
        ids = set(pool.map(lambda _: open_store(url).get("format.json"), range(8)))
    assert len(ids) == 1


def test_trying_a_folder_proves_it_and_makes_no_store_of_it(tmp_path: Path) -> None:
    try_store(str(tmp_path))
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    (tmp_path / "format.json").write_text('{"format":99}')
    with pytest.raises(StoreUnsuitable, match="has format 99"):
        try_store(str(tmp_path))

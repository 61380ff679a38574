"""What is named by its sha256 is read with those bytes or not at all."""

from __future__ import annotations

import pytest

from tests.fakes import FakeObjectStore
from tracks_dagster.track.addressed import read_addressed, sha256_in, write_addressed
from tracks_dagster.track.errors import ObjectLost
from tracks_dagster.track.records import sha256_hex

KEY = f"runs/r-1/trainer/{sha256_hex(b'mine')}.tar"


def test_an_object_is_read_when_its_bytes_have_the_sha256_of_its_name() -> None:
    store = FakeObjectStore()
    store.put(KEY, b"mine")
    assert read_addressed(store, KEY) == b"mine"
    store.put("any/name", b"mine")
    assert read_addressed(store, "any/name", sha256_in(KEY)) == b"mine"


@pytest.mark.parametrize("data", [None, b"", b"mine ", b"other"])
def test_a_missing_or_changed_object_is_not_an_object(data: bytes | None) -> None:
    store = FakeObjectStore()
    if data is not None:
        store.put(KEY, data)
    with pytest.raises(
        ObjectLost, match=r"\.tar (is missing|has sha256 \w{64}; expected sha256 \w+)"
    ):
        read_addressed(store, KEY)


def test_the_right_bytes_take_the_place_of_changed_ones() -> None:
    store = FakeObjectStore()
    store.put(KEY, b"other")
    write_addressed(store, KEY, b"mine")
    assert read_addressed(store, KEY) == b"mine"

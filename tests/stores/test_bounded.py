"""An object of a gigabyte, where a small one belongs, hides nothing else and fills no memory."""

from __future__ import annotations

import json
import logging
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.histories import History
from tracks_dagster.attempts import pod_files
from tracks_dagster.attempts.effects.evidence import read_journal_end, read_log_tails, read_places
from tracks_dagster.attempts.pod_files import PodEnd, end_key
from tracks_dagster.curves.effects.blocks import read_blocks
from tracks_dagster.processes.logs import ship_journals
from tracks_dagster.reasons.evidence import RankEnd
from tracks_dagster.recovery.effects.fsck_objects import check_journals
from tracks_dagster.recovery.effects.fsck_tracks import FindingKind
from tracks_dagster.stores.journals import (
    first_steps,
    journal_prefix,
    newest_steps,
    read_steps,
    read_tail,
    segment_key,
)
from tracks_dagster.stores.local import LocalStore
from tracks_dagster.track.addressed import read_addressed
from tracks_dagster.track.errors import ObjectLost
from tracks_dagster.track.journal_lines import STEPS
from tracks_dagster.track.names import AttemptRef
from tracks_dagster.track.placement import places_key
from tracks_dagster.track.ports import ObjectStore
from tracks_dagster.wings.kubernetes.effects.pod_evidence import read_lines
from tracks_dagster.wings.watch.health.effects.tails import RELIST_S, Tails

MEMORY_BYTES_MAX = 200 * 1024**2
RUN = History("r-1").declare().open().supervise().place().restore()
REF, LAUNCH = AttemptRef("r-1", 1), RUN.launch_id
PREFIX = journal_prefix(REF, LAUNCH, 0)


def line(step: int) -> bytes:
    found = {"kind": "step", "t": "2026-01-31T02:00:00.000000Z", "step": step, "loss": 1.0}
    return json.dumps({**found, "metrics": {}, "step_s": 0.5, "data_s": 0.1}).encode() + b"\n"


BEFORE, AFTER = b"".join(map(line, (1, 2, 3))), b"".join(map(line, (5, 6)))
HUGE_AT = len(BEFORE)


@pytest.fixture(name="disk")
def store_on_disk(tmp_path: Path) -> LocalStore:
    (tmp_path / "store").mkdir()
    return LocalStore(tmp_path / "store")


@pytest.fixture(autouse=True)
def little_memory() -> Iterator[None]:
    """Fail a test that takes nearly as much memory as the object has bytes."""
    tracemalloc.start()
    yield
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < MEMORY_BYTES_MAX


def write_huge(store: LocalStore, key: str) -> None:
    """Store a gigabyte of zeros that takes no room on the disk."""
    store.put(key, b"")
    with Path(store.url, key).open("r+b") as file:
        file.truncate(1024**3)


@pytest.fixture(name="journal")
def journal_with_a_huge_segment(disk: LocalStore) -> LocalStore:
    disk.put(segment_key(PREFIX, 0), BEFORE)
    write_huge(disk, segment_key(PREFIX, HUGE_AT))
    disk.put(segment_key(PREFIX, 2 * HUGE_AT), AFTER)
    return disk


def in_blocks(store: ObjectStore) -> list[int]:
    blocks = read_blocks(store, PREFIX, None, is_over=True)
    return [int(step) for block in blocks for step in block.tables[STEPS].step]


def in_tails(store: ObjectStore) -> list[int]:
    now_s = 0.0
    tails = Tails(store, seconds=lambda: now_s)
    for _ in range(3):
        found = tails.read(RUN.state)
        now_s += RELIST_S + 1
    return [step.step for step in found.steps]


READERS: dict[str, Callable[[ObjectStore], list[int]]] = {
    "all": lambda store: [s.step for s in read_steps(store, REF, LAUNCH)],
    "first": lambda store: [s.step for s in first_steps(store, REF, LAUNCH, until=9)],
    "newest": lambda store: [s.step for s in newest_steps(store, REF, LAUNCH)],
    "tail": lambda store: [s.step for s in read_tail(store, REF, LAUNCH, steps_max=9).steps],
    "blocks": in_blocks,
    "tails": in_tails,
}


@pytest.mark.parametrize("reader", READERS)
def test_of_a_journal_with_a_huge_segment_all_others_are_read(
    reader: str, journal: LocalStore
) -> None:
    assert READERS[reader](journal) == [1, 2, 3, 5, 6]


def test_the_end_of_a_journal_is_found_before_a_huge_segment(disk: LocalStore) -> None:
    disk.put(segment_key(PREFIX, 0), BEFORE)
    write_huge(disk, segment_key(PREFIX, HUGE_AT))
    assert read_journal_end(disk, PREFIX).last_step == 3


def test_what_is_too_large_is_named_once_and_fsck_finds_it(
    disk: LocalStore, caplog: pytest.LogCaptureFixture
) -> None:
    run = History("r-1").declare().open().supervise().place().restore()
    run.end("completed", last_step=3)
    disk.put(segment_key(PREFIX, 0), BEFORE)
    key = segment_key(PREFIX, HUGE_AT)
    write_huge(disk, key)
    [finding] = check_journals(disk, run.state)
    assert (finding.kind, finding.where) == (FindingKind.JOURNAL_EDITED, key)
    key = key.replace("r-1", "r-2")  # of which nothing was said yet in this process
    write_huge(disk, key)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            read_tail(disk, AttemptRef("r-2", 1), LAUNCH, steps_max=9)
    assert [each.startswith(f"{key} is passed over") for each in caplog.messages] == [True]


def test_a_huge_segment_is_replaced_by_what_the_gang_wrote(
    disk: LocalStore, tmp_path: Path
) -> None:
    path = tmp_path / "work" / "journal" / LAUNCH / "rank-0.jsonl"
    path.parent.mkdir(parents=True)
    path.write_bytes(BEFORE + AFTER)
    disk.put(segment_key(PREFIX, 0), BEFORE)
    disk.put(f"{PREFIX}zzz", b"a stranger's")
    write_huge(disk, segment_key(PREFIX, HUGE_AT))
    ship_journals(disk, tmp_path / "work", prefix=REF.folder)
    assert [each.step for each in read_steps(disk, REF, LAUNCH)] == [1, 2, 3, 5, 6]


def test_of_the_pods_of_a_gang_one_with_a_huge_end_hides_no_other(disk: LocalStore) -> None:
    ranks = tuple(RankEnd(rank=rank, log_tail="x" * 64 * 1024) for rank in range(32))
    end = PodEnd(pod="b", node="n", boot_id="boot", index=1, ranks=ranks)
    write_huge(disk, end_key(REF, "a"))
    disk.put(end_key(REF, "b"), pod_files.encode_end(end))
    attempt = RUN.state.attempts[0]
    assert sorted(read_log_tails(disk, "r-1", attempt)) == list(range(32))
    folder = f"{REF.folder}pods/watcher"
    disk.put(f"{folder}/000000.jsonl", b'{"a": 1}\n')
    write_huge(disk, f"{folder}/000001.jsonl")
    disk.put(f"{folder}/000002.jsonl", b'{"b": 2}\n')
    assert list(read_lines(disk, REF.folder)) == [{"a": 1}, {"b": 2}]


def test_huge_places_leave_what_the_record_has_of_them(disk: LocalStore) -> None:
    run = History("r-1").declare().open().supervise().place(places_sha256="0" * 64)
    placed = run.state.attempts[0].placed
    assert placed is not None
    write_huge(disk, places_key(REF, placed.launch_id, "0" * 64))
    assert read_places(disk, REF, placed) == placed.ranks


def test_what_is_named_by_its_hash_is_refused_unread(disk: LocalStore) -> None:
    key = f"runs/r-1/code/{'0' * 64}.tar"
    write_huge(disk, key)
    with pytest.raises(ObjectLost, match="has sha256"):
        read_addressed(disk, key, bytes_max=1024)

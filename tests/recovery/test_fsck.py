"""fsck finds what was changed behind the records' back, and only that."""

from __future__ import annotations

from pathlib import Path

import pytest
import sqlalchemy as sa

from tests.fakes import FakeObjectStore
from tests.stories import RUN_ID, Story
from tracks_dagster.ledger.effects.database import open_ledger
from tracks_dagster.ledger.effects.projector import Projector
from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.recovery.effects.fsck import fsck
from tracks_dagster.recovery.effects.fsck_tracks import Finding
from tracks_dagster.track.bodies import CheckpointDecision
from tracks_dagster.track.records import Kind, sha256_hex
from tracks_dagster.track.states.checkpoints import manifest_key
from tracks_dagster.track.track import log_key
from tracks_dagster.training.saves.manifest import verify_checkpoint


@pytest.fixture
def whole(story: Story, ledger: Ledger) -> Story:
    """The whole story, taken in by the ledger."""
    story.whole()
    Projector(story.store, ledger).scan()
    return story


def findings(store: FakeObjectStore, ledger: Ledger) -> list[Finding]:
    return list(fsck(store, ledger, verify_checkpoint).findings)


def one(store: FakeObjectStore, ledger: Ledger) -> Finding:
    [finding] = findings(store, ledger)
    assert finding.meaning.endswith(".")
    assert finding.to_do.endswith(".")
    return finding


def only_key(store: FakeObjectStore, *parts: str) -> str:
    return next(key for key in sorted(store.objects) if all(part in key for part in parts))


def test_a_sound_store_has_no_findings(
    whole: Story, store: FakeObjectStore, ledger: Ledger
) -> None:
    checked = fsck(store, ledger, verify_checkpoint)
    assert checked.findings == ()
    assert (checked.track_count, checked.checkpoint_count, checked.snapshot_count) == (3, 4, 2)
    assert checked.record_count == len(whole.history.records) + 2 + 2


def test_an_edited_record_breaks_the_chain_after_it(
    whole: Story, store: FakeObjectStore, ledger: Ledger
) -> None:
    key = log_key(whole.history.name, 1)
    store.put(key, store.objects[key].replace(b"tests", b"TESTS"))
    found = findings(store, ledger)
    assert found[0].where == log_key(whole.history.name, 2)
    assert "edited after it was written" in found[0].meaning


def test_an_edited_last_record_is_found_by_the_ledgers_memory(
    whole: Story, store: FakeObjectStore, ledger: Ledger
) -> None:
    last = log_key(whole.history.name, len(whole.history.records) - 1)
    store.put(last, store.objects[last].replace(b"low enough", b"low ENOUGH"))
    found = findings(store, ledger)
    assert found[0].where == last
    assert "edited after it was written" in found[0].meaning


def test_a_record_that_is_not_json_is_found(
    whole: Story, store: FakeObjectStore, ledger: Ledger
) -> None:
    key = log_key(whole.history.name, 3)
    store.put(key, store.objects[key][:-5])
    assert findings(store, ledger)[0].where == key


def test_a_missing_record_is_found(whole: Story, store: FakeObjectStore, ledger: Ledger) -> None:
    store.delete(log_key(whole.history.name, 4))
    found = findings(store, ledger)
    assert "Record 4 of runs/gpt-story is gone" in found[0].meaning


def test_records_missing_at_the_end_are_found_by_the_ledgers_memory(
    whole: Story, store: FakeObjectStore, ledger: Ledger
) -> None:
    last_seq = len(whole.history.records) - 1
    store.delete(log_key(whole.history.name, last_seq))
    found = findings(store, ledger)
    assert f"The ledger has seen record {last_seq}" in found[0].meaning


def test_a_flipped_bit_in_a_chunk_is_found(
    whole: Story, store: FakeObjectStore, ledger: Ledger
) -> None:
    key = only_key(store, "attempts/2/", "/chunks/")
    store.put(key, bytes([store.objects[key][0] ^ 1]) + store.objects[key][1:])
    assert "The checkpoint of step 30, attempt 2" in one(store, ledger).meaning


def test_the_chunks_of_a_deleted_checkpoint_are_not_missed(
    whole: Story, store: FakeObjectStore, ledger: Ledger
) -> None:
    first = whole.history.state.checkpoints[0].ref
    whole.history.decide_checkpoint(Kind.CHECKPOINT_DELETED, first)
    whole.write_tracks()
    Projector(store, ledger).scan()
    store.delete(only_key(store, "attempts/1/", "step-10", "/chunks/"))
    assert findings(store, ledger) == []


def test_a_lost_list_of_chunks_is_found_while_the_deletion_is_not_finished(
    whole: Story, store: FakeObjectStore, ledger: Ledger
) -> None:
    first = whole.history.state.checkpoints[0].ref
    key = f"runs/{RUN_ID}/deletions/20260131T020000Z/{sha256_hex(b'[]')}.json"
    body = CheckpointDecision(
        manifest_sha256=first.manifest_sha256, by="tests", why="old", chunks_key=key
    )
    whole.history.add(Kind.CHECKPOINT_DELETED, body)
    whole.write_tracks()
    Projector(store, ledger).scan()
    missing = one(store, ledger)
    assert missing.where == key
    assert "step 10, attempt 1, of run gpt-story is missing" in missing.meaning
    store.put(key, b"[1]")
    assert "expected sha256" in one(store, ledger).meaning
    store.put(key, b"[]")
    assert findings(store, ledger) == []
    store.delete(key)
    store.delete(manifest_key(first))
    assert findings(store, ledger) == []


def test_a_missing_manifest_is_found(whole: Story, store: FakeObjectStore, ledger: Ledger) -> None:
    store.delete(only_key(store, "attempts/3/", "manifest-"))
    assert "is missing" in one(store, ledger).meaning


def test_changed_evidence_is_found(whole: Story, store: FakeObjectStore, ledger: Ledger) -> None:
    key = only_key(store, "attempts/1/evidence/")
    store.put(key, store.objects[key] + b" ")
    assert one(store, ledger).where == key


def test_a_changed_shard_is_found(whole: Story, store: FakeObjectStore, ledger: Ledger) -> None:
    key = only_key(store, "datasets/aws-docs/shards/")
    store.put(key, b"other rows")
    assert one(store, ledger).where == key


def test_a_changed_row_of_the_ledger_is_found(
    whole: Story, store: FakeObjectStore, ledger: Ledger, tmp_path: Path
) -> None:
    engine = sa.create_engine(f"sqlite:///{tmp_path}/ledger.db")
    with engine.begin() as connection:
        connection.execute(
            sa.text("update training_attempts set gpu_seconds = 1e6 where attempt_id = 2")
        )
        connection.execute(sa.text("delete from checkpoints where step = 10"))
    engine.dispose()
    meanings = [finding.meaning for finding in findings(store, ledger)]
    assert any("attempt_id 2 has gpu_seconds 1000000.0" in meaning for meaning in meanings)
    assert any("is missing" in meaning for meaning in meanings)
    Projector(store, ledger).reindex()
    assert findings(store, ledger) == []


def test_a_ledger_that_lags_behind_the_ranks_is_not_a_finding(
    story: Story, store: FakeObjectStore, ledger: Ledger
) -> None:
    story.begin()
    story.write_tracks()
    Projector(store, ledger).scan()
    story.commit(10)  # rank 0 appends to its track and knows no ledger
    story.write_tracks()
    assert findings(store, ledger) == []


def test_a_lost_ledger_is_reported_for_every_track(
    whole: Story, store: FakeObjectStore, tmp_path: Path
) -> None:
    found = findings(store, open_ledger(f"sqlite:///{tmp_path}/another.db"))
    assert {finding.where for finding in found} == {
        f"ledger, {name}"
        for name in (f"runs/{RUN_ID}", "datasets/aws-docs", "datasets/aws-docs-heldout")
    }


def test_a_lost_store_is_found_by_the_ledger(whole: Story, ledger: Ledger) -> None:
    found = findings(FakeObjectStore(), ledger)
    assert len(found) == 3
    assert "the store has no such track" in found[0].meaning

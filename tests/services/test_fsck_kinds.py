"""Whatever is flipped, edited or removed behind the records' back: fsck has a sentence for it.

One way to tamper for each kind of finding, and what fsck must then say: what it means, what to do.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa

from tests.bodies import BEGIN
from tests.fakes import FakeObjectStore
from tests.histories import History
from tests.pools import PoolHistory
from tests.stories import RUN_ID, Story, step_line
from tracks_dagster.adapters.ledger import open_ledger
from tracks_dagster.adapters.ledger.tables import metadata
from tracks_dagster.core.archives import ARCHIVE_FORMAT, ArchiveManifest
from tracks_dagster.core.bodies import CheckpointDecision, SourceDecision
from tracks_dagster.core.body_json import to_json
from tracks_dagster.core.checkpoints import CheckpointRef
from tracks_dagster.core.errors import StoreUnsuitable
from tracks_dagster.core.evals import result_key
from tracks_dagster.core.placement import places_key
from tracks_dagster.core.ports import Ledger
from tracks_dagster.core.records import Draft, Kind, format_time, seal, sha256_hex
from tracks_dagster.core.track import QUARANTINES_TRACK, log_key, run_track
from tracks_dagster.services.fsck import ledger as fsck_ledger
from tracks_dagster.services.fsck.archive import check_archive
from tracks_dagster.services.fsck.check import fsck
from tracks_dagster.services.fsck.findings import Finding, FindingKind
from tracks_dagster.services.journals import journal_prefix
from tracks_dagster.services.projector import Projector
from tracks_dagster.training.verifying import verify_checkpoint

LARGE = "large"  # the run whose gang's places lie in an object of their own
BRANCH = "b-1"
PLACES = b"[]"
JOURNAL = journal_prefix(RUN_ID, 2, "launch-2", 0)


@dataclass
class World:
    """A store with one of everything, and its ledger."""

    story: Story
    store: FakeObjectStore
    ledger: Ledger
    ledger_file: Path

    def findings(self) -> list[Finding]:
        """Return what fsck says now."""
        return list(fsck(self.store, self.ledger, verify_checkpoint).findings)

    def key(self, *parts: str) -> str:
        """Return the first key that holds all `parts`."""
        return next(k for k in sorted(self.store.objects) if all(part in k for part in parts))

    def edit(self, key: str, old: bytes, new: bytes) -> None:
        """Replace bytes of an object, which must be there."""
        assert old in self.store.objects[key]
        self.store.put(key, self.store.objects[key].replace(old, new))

    def sql(self, text: str) -> None:
        """Change the ledger behind the projector's back."""
        engine = sa.create_engine(f"sqlite:///{self.ledger_file}")
        with engine.begin() as connection:
            assert connection.execute(sa.text(text)).rowcount > 0
        engine.dispose()


@pytest.fixture
def world(story: Story, store: FakeObjectStore, tmp_path: Path) -> World:
    """A run with evals, a branch of it, a large gang, a deletion, a pool, a quarantine."""
    story.whole()
    history = story.history
    first, last = (history.state.checkpoints[i].ref for i in (0, -1))
    listed = f"runs/{RUN_ID}/deletions/20260131T020000Z/{sha256_hex(b'[]')}.json"
    store.put(listed, b"[]")
    gone = CheckpointDecision(
        manifest_sha256=first.manifest_sha256, by="tests", why="old", chunks_key=listed
    )
    history.add(Kind.CHECKPOINT_DELETED, gone)
    evaluation = history.state.evals[0]
    key = result_key(RUN_ID, evaluation.opened.eval_id, evaluation.opened.number)
    store.put(key, b'{"metrics": {"loss": 3.25}}')
    data = {"snapshot": story.snapshot}
    branch = History(BRANCH).declare(branched_from=last, trainer=_script(store), **data)
    large = History(LARGE).declare(**data).open().place(places_sha256=sha256_hex(PLACES))
    store.put(places_key(LARGE, 1, "launch-1", sha256_hex(PLACES)), PLACES)
    pool = PoolHistory().strike("node-1")
    for each in (history, branch, large, pool):
        each.write_to(store)
    _quarantine(store)
    ledger_file = tmp_path / "ledger.db"
    ledger = open_ledger(f"sqlite:///{ledger_file}")
    Projector(store, ledger).scan()
    return World(story=story, store=store, ledger=ledger, ledger_file=ledger_file)


def _script(store: FakeObjectStore) -> str:
    key = f"runs/{BRANCH}/trainer/{sha256_hex(b'pass')}.py"
    store.put(key, b"pass")
    return key


def _quarantine(store: FakeObjectStore) -> None:
    body = SourceDecision(source="node:node-9", called="node:node-9", by="ann", why="It lies.")
    draft = Draft(uid="9" * 32, kind=Kind.SOURCE_QUARANTINED, body=to_json(body))
    store.put(log_key(QUARANTINES_TRACK, 0), seal(draft, seq=0, at=BEGIN, prev_sha256=None))


def _last(history: History) -> str:
    return log_key(history.name, len(history.records) - 1)


def _rewrite_story(world: World, *, without: int) -> None:
    """Write a track anew that chains, without its last records, as somebody would who hides them."""
    history = world.story.history
    for seq in range(len(history.records) - without, len(history.records)):
        world.store.delete(log_key(history.name, seq))


def _break_a_rule(world: World) -> None:
    """Append a record that chains and that the state forbids: the end of an attempt that is over."""
    history = world.story.history
    ended = next(r for r in history.records if r.kind is Kind.ATTEMPT_ENDED)
    draft = Draft(uid="8" * 32, kind=ended.kind, body=ended.body, attempt_id=1)
    at = history.at + timedelta(seconds=1)
    data = seal(draft, seq=len(history.records), at=at, prev_sha256=history.records[-1].sha256)
    world.store.put(log_key(history.name, len(history.records)), data)


def _drop_a_segment(world: World) -> None:
    later = json.dumps(step_line(31, at=format_time(BEGIN))).encode() + b"\n"
    data = world.store.objects[f"{JOURNAL}{0:012d}.jsonl"]
    world.store.put(f"{JOURNAL}{len(data) + 100:012d}.jsonl", later)


def _drop_the_branch_point(world: World) -> None:
    source = world.story.history.name
    for key in [key for key in world.store.objects if key.startswith(f"{source}/log/")]:
        world.store.delete(key)


def _drop_a_snapshot(world: World) -> None:
    world.store.delete(log_key("datasets/aws-docs", 1))


Tamper = Callable[[World], None]
K = FindingKind

# kind → how somebody tampers, words of what it means, words of what to do
TAMPERED: dict[FindingKind, tuple[Tamper, str, str]] = {
    K.RECORD_MISSING: (
        lambda w: w.store.delete(log_key(run_track(RUN_ID), 4)),
        "Record 4 of runs/gpt-story is gone",
        "do not retry the run",
    ),
    K.RECORD_BROKEN: (
        lambda w: w.edit(log_key(run_track(RUN_ID), 1), b"tests", b"TESTS"),
        "Records are never edited, so this is damage or tampering",
        "the records before it still hold",
    ),
    K.RECORD_EDITED: (
        lambda w: w.edit(_last(w.story.history), b"old", b"new"),
        "is not the one that the ledger took in",
        "find out who wrote there",
    ),
    K.TRACK_CUT: (
        lambda w: _rewrite_story(w, without=2),
        "records at its end were deleted or damaged",
        "`tracks reindex` makes the ledger agree",
    ),
    K.RULES_BROKEN: (_break_a_rule, "a writer broke the rules", "do not retry the run"),
    K.CHECKPOINT_CORRUPT: (
        lambda w: w.store.put(w.key("attempts/2/", "/chunks/"), b"other weights"),
        "The checkpoint of step 30, attempt 2, of run gpt-story cannot be trusted",
        "Do not promote it",
    ),
    K.DELETION_LIST_WRONG: (
        lambda w: w.store.put(w.key("/deletions/"), b"[1]"),
        "The list of chunks that go with step 10",
        "tracks checkpoints gc gpt-story",
    ),
    K.EVIDENCE_WRONG: (
        lambda w: w.edit(w.key("attempts/2/evidence/"), b"gpu_oom", b"preempt"),
        "The evidence for the end of attempt 2 of run gpt-story has sha256",
        "Restore the object from a backup",
    ),
    K.PLACES_WRONG: (
        lambda w: w.store.put(w.key("/places/"), b"[[]]"),
        "The list of where each rank of attempt 1 of run large ran",
        "if the devices or processes matter",
    ),
    K.TRAINER_WRONG: (
        lambda w: w.store.put(w.key("/trainer/"), b"import os"),
        "The trainer's script of run b-1 has sha256",
        "declare a new run with the script of your own checkout",
    ),
    K.SNAPSHOT_WRONG: (
        lambda w: w.store.put(w.key("datasets/aws-docs/shards/"), b"other rows"),
        "runs on that snapshot cannot load it",
        "make the snapshot again from the same source",
    ),
    K.EVAL_RESULT_WRONG: (
        lambda w: w.edit(w.key("/evals/", "result.json"), b"3.25", b"1.25"),
        "has other metrics than the record",
        "promotion go by the record",
    ),
    K.JOURNAL_GAP: (_drop_a_segment, "The 100 bytes of this journal before it are gone", "backup"),
    K.JOURNAL_EDITED: (
        lambda w: w.edit(f"{JOURNAL}{0:012d}.jsonl", b'"step": 25', b'"step": <5'),
        "it was edited or damaged after it was written",
        "find out who wrote there",
    ),
    K.JOURNAL_SHORT: (
        lambda w: w.store.delete(f"{JOURNAL}{0:012d}.jsonl"),
        "holds no step, and its record tells step 30",
        "Nothing, where the machine is gone",
    ),
    K.SOURCE_UNKNOWN: (
        _drop_the_branch_point,
        "Run b-1 branched from gpt-story@40, attempt 3, and runs/gpt-story has no record",
        "nothing shows what the branch began with",
    ),
    K.SNAPSHOT_UNKNOWN: (
        _drop_a_snapshot,
        "datasets/aws-docs has no record of it",
        "what the run saw cannot be told without it",
    ),
    K.LEDGER_LACKS_TRACK: (
        lambda w: w.sql("delete from track_cursors where track = 'runs/b-1'"),
        "The ledger does not know runs/b-1",
        "tracks reindex",
    ),
    K.LEDGER_ROW_WRONG: (
        lambda w: w.sql("update texts set author = 'nobody' where seq = 0"),
        "has author 'nobody'",
        "tracks reindex",
    ),
    K.LEDGER_TRACK_LOST: (
        _drop_the_branch_point,
        "The ledger knows runs/gpt-story, and the store has no such track",
        "Check TRACKS_STORE",
    ),
}
IN_ARCHIVES = {K.ARCHIVE_UNREADABLE, K.MEMBER_MISSING, K.MEMBER_CHANGED, K.MEMBER_ADDED}


def test_every_kind_of_finding_has_its_way_to_tamper() -> None:
    assert TAMPERED.keys() | IN_ARCHIVES == set(FindingKind)


def test_a_world_with_one_of_everything_is_sound(world: World) -> None:
    assert world.findings() == []


@pytest.mark.parametrize("kind", TAMPERED)
def test_what_was_tampered_with_is_named_with_its_meaning_and_what_to_do(
    kind: FindingKind, world: World
) -> None:
    tamper, meaning, to_do = TAMPERED[kind]
    tamper(world)
    found = world.findings()
    told = [finding for finding in found if finding.kind is kind]
    assert told, [finding.kind for finding in found]
    assert any(meaning in finding.meaning and to_do in finding.to_do for finding in told), told
    for finding in found:
        assert finding.where
        assert finding.meaning.endswith(".")
        assert finding.to_do.endswith(".")


ALONE = sorted(
    TAMPERED.keys()
    - {K.RECORD_MISSING, K.RECORD_BROKEN, K.TRACK_CUT, K.RULES_BROKEN}  # what follows is lost too
    - {K.SOURCE_UNKNOWN, K.SNAPSHOT_UNKNOWN, K.LEDGER_TRACK_LOST}
)


@pytest.mark.parametrize("kind", ALONE)
def test_what_harms_nothing_else_is_one_finding(kind: FindingKind, world: World) -> None:
    TAMPERED[kind][0](world)
    assert {finding.kind for finding in world.findings()} == {kind}


@pytest.mark.parametrize(
    ("track", "table"),
    [("pools", "node_strikes"), (QUARANTINES_TRACK, "source_quarantines")],
)
def test_the_tracks_of_pools_and_quarantines_are_checked_as_runs_are(
    track: str, table: str, world: World
) -> None:
    key = log_key(track, 0) if track == QUARANTINES_TRACK else world.key("pools/", "/log/")
    world.sql(f"delete from {table}")
    assert [(f.kind, f.where) for f in world.findings()] == [
        (K.LEDGER_ROW_WRONG, f"ledger, {table}")
    ]
    Projector(world.store, world.ledger).reindex()
    world.edit(key, b'"why":"', b'"why":"not ')
    assert K.RECORD_EDITED in {f.kind for f in world.findings()}


def test_every_table_of_the_ledger_is_compared_with_the_tracks() -> None:
    tables = (
        fsck_ledger.RUN_TABLES
        | fsck_ledger.DATASET_TABLES
        | fsck_ledger.POOL_TABLES
        | fsck_ledger.QUARANTINE_TABLES
        | fsck_ledger.TEXT_TABLES
    )
    keys = {
        table.name: tuple(column.name for column in table.primary_key)
        for table in metadata.tables.values()
    }
    del keys["track_cursors"]  # compared with the records themselves
    assert tables == keys


# --- archives -------------------------------------------------------------------------------------


class FakeArchive:
    """An archive in memory; `manifest` None: it cannot be read."""

    def __init__(self, members: dict[str, bytes]) -> None:
        self.members = dict(members)
        self.told: dict[str, str] | None = {n: sha256_hex(d) for n, d in members.items()}

    def names(self) -> list[str]:
        return sorted((*self.members, "MANIFEST.json"))

    def member(self, name: str) -> bytes | None:
        return self.members.get(name)

    def manifest(self) -> ArchiveManifest:
        if self.told is None:
            raise StoreUnsuitable("It has no MANIFEST.json.")
        return ArchiveManifest(
            format=ARCHIVE_FORMAT,
            run_ids=("r-1",),
            head_seqs={},
            chunks_of=(),
            policy_versions=(),
            package_version="0",
            left_out=(),
            members=self.told,
        )


def _no_manifest(archive: FakeArchive) -> None:
    archive.told = None


CHANGED: dict[FindingKind, tuple[Callable[[FakeArchive], object], str]] = {
    K.MEMBER_CHANGED: (lambda a: a.members.update(two=b"other"), "was changed after the export"),
    K.MEMBER_MISSING: (lambda a: a.members.pop("two"), "was taken out after the export"),
    K.MEMBER_ADDED: (lambda a: a.members.update(three=b"3"), "was put in after the export"),
    K.ARCHIVE_UNREADABLE: (_no_manifest, "What the archive should hold cannot be told"),
}


@pytest.mark.parametrize("kind", CHANGED)
def test_an_archive_that_was_changed_is_told_member_by_member(kind: FindingKind) -> None:
    archive = FakeArchive({"one": b"1", "two": b"2"})
    assert list(check_archive(archive)) == []
    change, meaning = CHANGED[kind]
    change(archive)
    [finding] = check_archive(archive)
    assert finding.kind is kind
    assert meaning in finding.meaning
    assert "Ask for the archive again" in finding.to_do


def test_the_ref_of_a_branch_is_looked_up_by_its_manifest(world: World) -> None:
    forged = CheckpointRef(RUN_ID, 3, 40, "elsewhere/", "0" * 64)
    History("b-2").declare(branched_from=forged, snapshot=world.story.snapshot).write_to(
        world.store
    )
    Projector(world.store, world.ledger).scan()
    assert [f.kind for f in world.findings()] == [K.SOURCE_UNKNOWN]

"""A store with one of everything that `tracks fsck` checks, to be tampered with."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

import sqlalchemy as sa
from blake3 import blake3

from tests.bodies import BEGIN, PACKAGES, declared
from tests.fakes import FakeObjectStore
from tests.histories import DatasetHistory, History
from tests.pools import PoolHistory
from tests.stories import RUN_ID, Story
from tests.studies.played import make_study
from tracks_dagster.ledger.effects.database import open_ledger
from tracks_dagster.ledger.effects.projector import Projector
from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.recovery.effects.fsck import fsck
from tracks_dagster.recovery.effects.fsck_tracks import Finding
from tracks_dagster.track import media
from tracks_dagster.track.artifacts import ArtifactFile, list_key, list_of, note_of, part_key
from tracks_dagster.track.bodies import (
    Artifact,
    CheckpointDecision,
    CodeCertified,
    CodeVersion,
    MuteDecision,
    ProjectStored,
    SourceDecision,
    ViewSaved,
)
from tracks_dagster.track.body_json import to_json
from tracks_dagster.track.media import AS_TEXT, TEXT, Logged, index_bytes, index_key
from tracks_dagster.track.names import (
    MUTES_TRACK,
    QUARANTINES_TRACK,
    VIEWS_TRACK,
    AttemptRef,
    code_track,
    project_track,
    study_track,
)
from tracks_dagster.track.placement import places_key
from tracks_dagster.track.records import Draft, Kind, format_time, seal, sha256_hex
from tracks_dagster.track.states.dataset_state import checks_key, manifest_key
from tracks_dagster.track.states.evals import artifact_key, result_key
from tracks_dagster.track.states.files_manifest import (
    FrozenFile,
    Part,
    encode_files,
    files_shard_key,
    join_files,
    shard_name,
)
from tracks_dagster.track.track import (
    code_diff_key,
    log_key,
    packages_key,
    project_code_key,
    study_code_key,
)
from tracks_dagster.training.saves.manifest import verify_checkpoint

LARGE = "large"  # the run whose gang's places lie in an object of their own
BRANCH = "b-1"
CODE = "c" * 64  # that was certified
PLACES = b"[]"
DIFF = b"-a\n+b\n"
OWN = "own"  # the dataset of files
SHA_OF_1 = sha256_hex(b"1")
_projected: list[bytes] = []  # the ledger of that store, made once


@dataclass
class World:
    """A store with one of everything, its ledger, and hands that change them."""

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

    def drop(self, table: str) -> None:
        """Take a table from the ledger."""
        engine = sa.create_engine(f"sqlite:///{self.ledger_file}")
        with engine.begin() as connection:
            connection.execute(sa.text(f"drop table {table}"))
        engine.dispose()


def make_world(story: Story, store: FakeObjectStore, ledger_file: Path) -> World:
    """Return a run with evals, a branch of it, a large gang, a deletion, a pool, a quarantine."""
    story.whole()
    history = story.history
    first, last = (history.state.checkpoints[i].ref for i in (0, -1))
    history.open_eval(last)
    again = history.state.evals[-1].opened
    history.end_eval(again, artifacts=(Artifact(name="a.csv", size_bytes=1, sha256=SHA_OF_1),))
    store.put(artifact_key(result_key(RUN_ID, again.eval_id, again.number), "a.csv"), b"1")
    plot = ArtifactFile(path="plot.png", size_bytes=1, parts=(SHA_OF_1,))
    history.add(Kind.NOTE, note_of("best", [plot], step=40, by="attempt 2"))
    store.put(list_key(RUN_ID, sha256_hex(list_of([plot]))), list_of([plot]))
    store.put(part_key(RUN_ID, SHA_OF_1), b"1")
    logged = Logged(
        step=40,
        name="sample",
        kind=TEXT,
        sha256=SHA_OF_1,
        size_bytes=1,
        media_type=AS_TEXT,
    )
    opened = history.state.attempts[0]
    assert opened.placed is not None
    beside = index_key(history.state.ref(opened), opened.placed.launch_id)
    store.put(beside, index_bytes([logged], []))
    store.put(media.part_key(RUN_ID, SHA_OF_1), b"1")
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
    code = replace(story.history.state.declared.code, diff_sha256=sha256_hex(DIFF))
    store.put(code_diff_key(LARGE, sha256_hex(DIFF)), DIFF)
    large = History(LARGE).declare(code=code, **data).open()
    large.place(places_sha256=sha256_hex(PLACES))
    store.put(places_key(AttemptRef(LARGE, 1), "launch-1", sha256_hex(PLACES)), PLACES)
    store.put(packages_key(LARGE, sha256_hex(PACKAGES)), PACKAGES)
    pool = PoolHistory().strike("node-1")
    for each in (history, branch, large, pool, _own_files(store)):
        each.write_to(store)
    _quarantine(store)
    _mute(store)
    _save_view(store)
    _certify(store)
    _store_project(store)
    _tune(store)
    if not _projected:
        Projector(store, open_ledger(f"sqlite:///{ledger_file}")).scan()
        with sqlite3.connect(ledger_file) as connection:
            connection.execute("pragma wal_checkpoint(truncate)")
        connection.close()
        _projected.append(ledger_file.read_bytes())
    ledger_file.write_bytes(_projected[0])
    ledger = open_ledger(f"sqlite:///{ledger_file}")
    return World(story=story, store=store, ledger=ledger, ledger_file=ledger_file)


def _script(store: FakeObjectStore) -> str:
    key = f"runs/{BRANCH}/trainer/{sha256_hex(b'pass')}.py"
    store.put(key, b"pass")
    return key


def _own_files(store: FakeObjectStore) -> DatasetHistory:
    """Return a dataset with a snapshot of files: one in a shard of its own, two in a pack."""
    contents = {"large.bin": b"large", "small/a": b"a", "small/b": b"b"}
    digests = {path: blake3(data).hexdigest() for path, data in contents.items()}
    alone, pack = shard_name([digests["large.bin"]]), shard_name([digests["small/a"]])
    places = {"large.bin": (alone, 0), "small/a": (pack, 0), "small/b": (pack, 1)}
    files = tuple(
        FrozenFile(path, (Part(*places[path], len(data), digests[path]),))
        for path, data in contents.items()
    )
    manifest = join_files(OWN, None, [encode_files(files)]).data
    store.put(files_shard_key(OWN, alone), b"large")
    store.put(files_shard_key(OWN, pack), b"ab")
    store.put(manifest_key(OWN, sha256_hex(manifest)), manifest)
    store.put(checks_key(OWN, sha256_hex(b"pass")), b"pass")
    return (
        DatasetHistory(OWN)
        .declare()
        .commit(sha256_hex(manifest), checks_sha256=sha256_hex(b"pass"), row_count=None)
    )


def _quarantine(store: FakeObjectStore) -> None:
    body = SourceDecision(source="node:node-9", called="node:node-9", by="ann", why="It lies.")
    draft = Draft(uid="9" * 32, kind=Kind.SOURCE_QUARANTINED, body=to_json(body))
    store.put(log_key(QUARANTINES_TRACK, 0), seal(draft, seq=0, at=BEGIN, prev_sha256=None))


def _mute(store: FakeObjectStore) -> None:
    until = format_time(BEGIN + timedelta(hours=2))
    body = MuteDecision(rule="*", run_id=None, by="ann", why="It is noisy.", until_at=until)
    draft = Draft(uid="8" * 32, kind=Kind.ALERTS_MUTED, body=to_json(body))
    store.put(log_key(MUTES_TRACK, 0), seal(draft, seq=0, at=BEGIN, prev_sha256=None))


def _save_view(store: FakeObjectStore) -> None:
    body = ViewSaved(name="small", by="ann", filter="lr<0.1")
    draft = Draft(uid="7" * 32, kind=Kind.VIEW_SAVED, body=to_json(body))
    store.put(log_key(VIEWS_TRACK, 0), seal(draft, seq=0, at=BEGIN, prev_sha256=None))


def _store_project(store: FakeObjectStore) -> None:
    archive = b"the files of a project"
    store.put(project_code_key("gpt", sha256_hex(archive)), archive)
    body = ProjectStored(
        project="gpt",
        code_sha256=sha256_hex(archive),
        code=CodeVersion(git_commit="c" * 40, branch="trunk", dirty=False, package_version="1"),
        by="ann",
        where="node-9",
        place="/home/ann/gpt",
        why="It is new.",
    )
    draft = Draft(uid="6" * 32, kind=Kind.PROJECT_STORED, body=to_json(body))
    store.put(log_key(project_track("gpt"), 0), seal(draft, seq=0, at=BEGIN, prev_sha256=None))


def _tune(store: FakeObjectStore) -> None:
    key = study_code_key("lr", sha256_hex(b"pass"))
    store.put(key, b"pass")
    study = make_study(study="lr", run=declared("lr-t000-r0", trainer=key))
    draft = Draft(uid="5" * 32, kind=Kind.STUDY_DECLARED, body=to_json(study))
    store.put(log_key(study_track("lr"), 0), seal(draft, seq=0, at=BEGIN, prev_sha256=None))


def _certify(store: FakeObjectStore) -> None:
    body = CodeCertified(
        what="tests", code_sha256=CODE, project="gpt", passed=3, failed=0, by="ann", where="node-9"
    )
    draft = Draft(uid="7" * 32, kind=Kind.CODE_CERTIFIED, body=to_json(body))
    store.put(log_key(code_track(CODE), 0), seal(draft, seq=0, at=BEGIN, prev_sha256=None))

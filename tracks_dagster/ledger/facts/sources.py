"""Facts of what runs are made from: data, nodes, earlier attempts, and what is in quarantine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from tracks_dagster.ledger.facts.fact import Absence, Fact, Type
from tracks_dagster.track.imported import ImportedNode
from tracks_dagster.track.placement import nodes_of
from tracks_dagster.track.records import parse_time
from tracks_dagster.track.states.checkpoints import CheckpointRef
from tracks_dagster.track.states.code_state import Certificate
from tracks_dagster.track.states.dataset_state import DatasetState, SnapshotState
from tracks_dagster.track.states.pool_state import Quarantine, Strike
from tracks_dagster.track.states.project_state import ProjectState, StoredVersion
from tracks_dagster.track.states.quarantine_state import SourceQuarantine
from tracks_dagster.track.states.run_state import AttemptState

ASKED, RESTORED = "asked", "restored"  # how it is known what an attempt resumes from


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
    """A node that an attempt was placed on."""

    run_id: str
    attempt_id: int
    node: str
    placed_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSeen:
    """A node as a history has it. history: its name."""

    history: str
    node: ImportedNode


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeView:
    """What an attempt resumes from, as known from `since` until `until`."""

    run_id: str
    attempt_id: int
    known_as: str
    source: CheckpointRef
    since: datetime
    until: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionView:
    """A stored version of a project. is_current: it is what is trained by the project's name."""

    version: StoredVersion
    is_current: bool


def version_views(state: ProjectState) -> list[VersionView]:
    """Return the versions of a project, oldest first."""
    return [VersionView(version=each, is_current=each == state.newest) for each in state.versions]


def node_views(run_id: str, attempt: AttemptState) -> Iterator[NodeView]:
    """Yield each node that the attempt was placed on."""
    if attempt.placed is not None:
        for node in nodes_of(attempt.placed):
            yield NodeView(
                run_id=run_id,
                attempt_id=attempt.attempt_id,
                node=node,
                placed_at=attempt.placed_at,
            )


def resume_views(run_id: str, attempt: AttemptState) -> Iterator[ResumeView]:
    """Yield what the attempt was opened to resume from, and what it restored, each with its time.

    The first holds until the second is known, which may be another (a fallback), or nothing.
    """
    asked, restored = attempt.opened.resume, attempt.restored
    if asked is not None:
        yield ResumeView(
            run_id=run_id,
            attempt_id=attempt.attempt_id,
            known_as=ASKED,
            source=asked,
            since=attempt.opened_at,
            until=attempt.restored_at,
        )
    if restored is not None and restored.checkpoint is not None and attempt.restored_at is not None:
        yield ResumeView(
            run_id=run_id,
            attempt_id=attempt.attempt_id,
            known_as=RESTORED,
            source=restored.checkpoint,
            since=attempt.restored_at,
            until=None,
        )


def _at(text: str | None) -> datetime | None:
    return None if text is None else parse_time(text)


def _released(read: Callable[[Any], Any]) -> Callable[[Quarantine | SourceQuarantine], Any]:
    return lambda q: read(q.release) if q.release else None


STILL_HOLDS: Absence[ResumeView] = Absence(
    "still_holds", "nothing else is known", lambda v: v.until is None
)
NONE_USABLE: Absence[DatasetState] = Absence(
    "none_usable", "it has no usable snapshot", lambda d: d.newest_usable is None
)
USABLE: Absence[SnapshotState] = Absence("usable", "it may be used", lambda s: s.quarantine is None)
NO_DAGSTER_RUN: Absence[SnapshotState] = Absence(
    "no_dagster_run", "no Dagster run made it", lambda s: s.body.dagster_run_id is None
)
NO_ROWS: Absence[SnapshotState] = Absence(
    "no_rows", "it is of files, whose rows nobody counted", lambda s: s.body.row_count is None
)
NO_FILES: Absence[SnapshotState] = Absence(
    "no_files", "it is of rows, not of files", lambda s: s.body.file_count is None
)
IN_STORE: Absence[SnapshotState] = Absence(
    "in_store", "the store holds its bytes", lambda s: s.body.in_place is None
)
NO_OWN_CHECKS: Absence[SnapshotState] = Absence(
    "no_own_checks", "it was added without --checks", lambda s: s.body.checks_sha256 is None
)
NODE_AS_A_WHOLE: Absence[Strike | Quarantine] = Absence(
    "node_as_a_whole", "it is of the node as a whole", lambda each: each.body.device is None
)
NO_REPORT: Absence[Certificate] = Absence(
    "no_report", "the one who certified it left none", lambda c: c.body.report_sha256 is None
)
NOT_RELEASED: Absence[Quarantine | SourceQuarantine] = Absence(
    "not_released", "nobody has released it", lambda q: q.release is None
)

NO_REASON_TIME: Absence[NodeSeen] = Absence(
    "no_reason_time", "it has no reason with a time", lambda s: s.node.since_at is None
)
NO_BOOT: Absence[NodeSeen] = Absence(
    "no_boot", "the list does not say when it started", lambda s: s.node.booted_at is None
)

TEXT, INTEGER, REAL, TIME = Type.TEXT, Type.INTEGER, Type.REAL, Type.TIME

# Tables, to be read by the line:
NO_COMMIT: Absence[VersionView] = Absence(
    "no_checkout",
    "it was stored from outside of a git checkout",
    lambda v: v.version.body.code.git_commit is None,
)
NO_BRANCH_OF_VERSION: Absence[VersionView] = Absence(
    "no_branch", "HEAD was detached", lambda v: v.version.body.code.branch is None
)

# fmt: off
ATTEMPT_NODE: tuple[Fact[NodeView], ...] = (
    Fact("run_id", TEXT, lambda v: v.run_id, "the training run", is_key=True),
    Fact("attempt_id", INTEGER, lambda v: v.attempt_id, "the attempt", is_key=True),
    Fact("node", TEXT, lambda v: v.node, "a node that it was placed on", is_key=True),
    Fact("placed_at", TIME, lambda v: v.placed_at, "recorded"),
)

ATTEMPT_RESUME: tuple[Fact[ResumeView], ...] = (
    Fact("run_id", TEXT, lambda v: v.run_id, "the training run", is_key=True),
    Fact("attempt_id", INTEGER, lambda v: v.attempt_id, "the attempt", is_key=True),
    Fact("known_as", TEXT, lambda v: v.known_as,
         "asked: what it was opened with; restored: what it really took", is_key=True),
    Fact("source_run_id", TEXT, lambda v: v.source.run_id, "the run of the checkpoint"),
    Fact("source_attempt_id", INTEGER, lambda v: v.source.attempt_id, "the attempt that made it"),
    Fact("source_step", INTEGER, lambda v: v.source.step, "its step"),
    Fact("source_manifest_sha256", TEXT, lambda v: v.source.manifest_sha256, "its manifest"),
    Fact("since_at", TIME, lambda v: v.since, "known from then on"),
    Fact("until_at", TIME, lambda v: v.until, "until it was known what was restored",
         absent=(STILL_HOLDS,)),
)

DATASET: tuple[Fact[DatasetState], ...] = (
    Fact("dataset", TEXT, lambda d: d.declared.dataset, "its name", is_key=True),
    Fact("kind", TEXT, lambda d: d.declared.kind, "what kind of data it is"),
    Fact("description", TEXT, lambda d: d.declared.description, "what it holds"),
    Fact("declared_at", TIME, lambda d: d.declared_at, "recorded"),
    Fact("snapshot_count", INTEGER, lambda d: len(d.snapshots),
         "snapshots, quarantined ones included"),
    Fact("newest_usable_snapshot_id", TEXT,
         lambda d: d.newest_usable.body.snapshot_id if d.newest_usable else None,
         "the newest snapshot that is not in quarantine", absent=(NONE_USABLE,)),
)

SNAPSHOT: tuple[Fact[SnapshotState], ...] = (
    Fact("dataset", TEXT, lambda s: s.body.dataset, "its dataset", is_key=True),
    Fact("snapshot_id", TEXT, lambda s: s.body.snapshot_id, "the sha256 of its manifest",
         is_key=True),
    Fact("status", TEXT, lambda s: "usable" if s.quarantined_why is None else "quarantined",
         "usable or quarantined"),
    Fact("quarantined_why", TEXT, lambda s: s.quarantined_why, "in words", absent=(USABLE,)),
    Fact("manifest_key", TEXT, lambda s: s.body.manifest_key,
         "where its manifest lies in the store"),
    Fact("logical_sha256", TEXT, lambda s: s.body.logical_sha256,
         "of the rows' values in order, or of the files' paths and bytes"),
    Fact("row_count", INTEGER, lambda s: s.body.row_count, "rows", absent=(NO_ROWS,)),
    Fact("file_count", INTEGER, lambda s: s.body.file_count, "files that were frozen",
         absent=(NO_FILES,)),
    Fact("in_place", TEXT, lambda s: s.body.in_place,
         "the folder or s3:// prefix that holds the files, by reference", absent=(IN_STORE,)),
    Fact("shard_count", INTEGER, lambda s: s.body.shard_count,
         "objects of the store that hold it; 0 in place"),
    Fact("total_bytes", INTEGER, lambda s: s.body.total_bytes, "of its rows or files"),
    Fact("source", TEXT, lambda s: s.body.source, "where the data came from"),
    Fact("checks", Type.NAMES, lambda s: s.body.checks, "the checks that it passed"),
    Fact("checks_sha256", TEXT, lambda s: s.body.checks_sha256,
         "the file of checks of one's own, in the store", absent=(NO_OWN_CHECKS,)),
    Fact("dagster_run_id", TEXT, lambda s: s.body.dagster_run_id, "the Dagster run that made it",
         absent=(NO_DAGSTER_RUN,)),
    Fact("committed_at", TIME, lambda s: s.at, "recorded"),
    Fact("quarantined_at", TIME, lambda s: s.quarantine.at if s.quarantine else None,
         "in quarantine from then on", absent=(USABLE,)),
)

NODE_STRIKE: tuple[Fact[Strike], ...] = (
    Fact("pool", TEXT, lambda s: s.body.pool, "the compute pool", is_key=True),
    Fact("seq", INTEGER, lambda s: s.seq, "of the record", is_key=True),
    Fact("node", TEXT, lambda s: s.body.node, "the node"),
    Fact("device", TEXT, lambda s: s.body.device, "the device of it that the evidence names",
         absent=(NODE_AS_A_WHOLE,), since=10),
    Fact("run_id", TEXT, lambda s: s.body.run_id, "whose attempt failed there"),
    Fact("attempt_id", INTEGER, lambda s: s.body.attempt_id, "the attempt that failed there"),
    Fact("reason", TEXT, lambda s: s.body.reason, "why it ended"),
    Fact("why", TEXT, lambda s: s.body.why, "in words"),
    Fact("decided_by", TEXT, lambda s: s.body.by, "the sensor"),
    Fact("exposure_s", REAL, lambda s: s.body.exposure_s,
         "attempts had run on the node, inside the policy's window"),
    Fact("pool_exposure_s", REAL, lambda s: s.body.pool_exposure_s, "the same over all its nodes"),
    Fact("pool_node_count", INTEGER, lambda s: s.body.pool_node_count, "how many nodes these were"),
    Fact("struck_at", TIME, lambda s: s.struck_at, "the attempt ended"),
)

# Of a node the newest row counts: it replaces one that holds.
NODE_QUARANTINE: tuple[Fact[Quarantine], ...] = (
    Fact("pool", TEXT, lambda q: q.body.pool, "the compute pool", is_key=True),
    Fact("seq", INTEGER, lambda q: q.seq, "of the record", is_key=True),
    Fact("node", TEXT, lambda q: q.body.node, "the node"),
    Fact("device", TEXT, lambda q: q.body.device, "the device of it that is given to nobody",
         absent=(NODE_AS_A_WHOLE,), since=10),
    Fact("decided_by", TEXT, lambda q: q.body.by, "the sensor or person"),
    Fact("why", TEXT, lambda q: q.body.why, "in words"),
    Fact("strike_count", INTEGER, lambda q: len(q.body.counted_seqs),
         "strikes that a rule counted; 0: a person decided"),
    Fact("quarantined_at", TIME, lambda q: q.at, "recorded"),
    Fact("until_at", TIME, lambda q: q.until_at, "it ends then by itself"),
    Fact("released_at", TIME, _released(lambda r: r.at), "recorded", absent=(NOT_RELEASED,)),
    Fact("released_by", TEXT, _released(lambda r: r.body.by), "the person", absent=(NOT_RELEASED,)),
    Fact("released_why", TEXT, _released(lambda r: r.body.why), "in words", absent=(NOT_RELEASED,)),
)

# Of a node the row seen last counts.
IMPORTED_NODE: tuple[Fact[NodeSeen], ...] = (
    Fact("history", TEXT, lambda s: s.history, "as it was imported", is_key=True, since=10),
    Fact("uid", TEXT, lambda s: s.node.uid, "of this state of the node", is_key=True, since=10),
    Fact("pool", TEXT, lambda s: s.node.pool, "as of the attempts of that history", since=10),
    Fact("node", TEXT, lambda s: s.node.node, "its name there", since=10),
    Fact("program", TEXT, lambda s: s.node.program, "what printed it", since=10),
    Fact("state", TEXT, lambda s: s.node.state, "as printed; empty where the list has none",
         since=10),
    Fact("is_out", Type.TRUTH, lambda s: bool(s.node.out), "it takes no job", since=10),
    Fact("reason", TEXT, lambda s: s.node.reason, "in words; empty where none is given", since=10),
    Fact("set_by", TEXT, lambda s: s.node.set_by, "who gave the reason; empty where that is not known",
         since=10),
    Fact("since_at", TIME, lambda s: _at(s.node.since_at), "the reason was given",
         absent=(NO_REASON_TIME,), since=10),
    Fact("seen_at", TIME, lambda s: _at(s.node.seen_at), "the list was printed", since=10),
    Fact("booted_at", TIME, lambda s: _at(s.node.booted_at), "the machine started",
         absent=(NO_BOOT,), since=10),
    Fact("gres", TEXT, lambda s: s.node.gres, "its devices; empty where the list has none", since=10),
    Fact("line", TEXT, lambda s: s.node.row, "the line that was read", since=10),
)

SOURCE_QUARANTINE: tuple[Fact[SourceQuarantine], ...] = (
    Fact("seq", INTEGER, lambda q: q.seq, "of the record", is_key=True),
    Fact("source", TEXT, lambda q: q.body.source,
         "checkpoint:SHA256, attempt:RUN/aNN, node:NAME or code:COMMIT"),
    Fact("called", TEXT, lambda q: q.body.called, "the same as people name it"),
    Fact("decided_by", TEXT, lambda q: q.body.by, "the person"),
    Fact("why", TEXT, lambda q: q.body.why, "in words"),
    Fact("quarantined_at", TIME, lambda q: q.at, "recorded"),
    Fact("released_at", TIME, _released(lambda r: r.at), "recorded", absent=(NOT_RELEASED,)),
    Fact("released_by", TEXT, _released(lambda r: r.body.by), "the person", absent=(NOT_RELEASED,)),
    Fact("released_why", TEXT, _released(lambda r: r.body.why), "in words", absent=(NOT_RELEASED,)),
)

# Of a code, the newest row of each `what` counts.
CERTIFICATE: tuple[Fact[Certificate], ...] = (
    Fact("code_sha256", TEXT, lambda c: c.body.code_sha256, "of the code, as stored with a run",
         is_key=True, since=10),
    Fact("seq", INTEGER, lambda c: c.seq, "of the record", is_key=True, since=10),
    Fact("what", TEXT, lambda c: c.body.what, "tests or conform", since=10),
    Fact("is_green", Type.TRUTH, lambda c: c.body.is_green, "everything ran and passed", since=10),
    Fact("project", TEXT, lambda c: c.body.project, "whose code it is", since=10),
    Fact("passed_count", INTEGER, lambda c: c.body.passed, "tests or trials that passed", since=10),
    Fact("failed_count", INTEGER, lambda c: c.body.failed, "tests or trials that did not",
         since=10),
    Fact("left_out_count", INTEGER, lambda c: c.body.left_out,
         "tests that the caller did not let run", since=10),
    Fact("findings", Type.LINES, lambda c: c.body.findings, "what was found, by name", since=10),
    Fact("scope", TEXT, lambda c: c.body.scope, "what was run, in words", since=10),
    Fact("report_sha256", TEXT, lambda c: c.body.report_sha256, "of the stored report",
         absent=(NO_REPORT,), since=10),
    Fact("certified_by", TEXT, lambda c: c.body.by, "the person", since=10),
    Fact("certified_where", TEXT, lambda c: c.body.where, "the machine", since=10),
    Fact("certified_at", TIME, lambda c: c.at, "recorded", since=10),
)

PROJECT_VERSION: tuple[Fact[VersionView], ...] = (
    Fact("project", TEXT, lambda v: v.version.body.project, "its name", is_key=True, since=10),
    Fact("number", INTEGER, lambda v: v.version.number, "of the version, from 1 on", is_key=True,
         since=10),
    Fact("is_current", Type.TRUTH, lambda v: v.is_current,
         "it is what is trained by the project's name", since=10),
    Fact("seq", INTEGER, lambda v: v.version.seq, "of the record", since=10),
    Fact("code_sha256", TEXT, lambda v: v.version.body.code_sha256, "of its files", since=10),
    Fact("git_commit", TEXT, lambda v: v.version.body.code.git_commit, "the commit of them",
         absent=(NO_COMMIT,), since=10),
    Fact("git_branch", TEXT, lambda v: v.version.body.code.branch, "of the checkout",
         absent=(NO_COMMIT, NO_BRANCH_OF_VERSION), since=10),
    Fact("git_dirty", Type.TRUTH, lambda v: v.version.body.code.dirty,
         "whether the checkout had local changes", absent=(NO_COMMIT,), since=10),
    Fact("place", TEXT, lambda v: v.version.body.place, "the folder or the repository", since=10),
    Fact("stored_by", TEXT, lambda v: v.version.body.by, "the person or service", since=10),
    Fact("stored_where", TEXT, lambda v: v.version.body.where, "the machine", since=10),
    Fact("why", TEXT, lambda v: v.version.body.why, "in words; empty where nothing was said",
         since=10),
    Fact("stored_at", TIME, lambda v: v.version.at, "recorded", since=10),
)
# fmt: on

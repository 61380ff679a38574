"""Runs that another system ran: what a history says of them, and the track that this makes. Pure.

A history is a track of its own, `histories/<name>`, whose records name chunks: objects with some
thousand attempts each, or what it says of its nodes. The track of an imported run is not stored. It
follows from all attempts of it that the history has, in the order of their starts, so that a history
imported twice, in another order or in pieces gives the same runs. Nothing is ever appended to such a
track (`stores.histories`), so nothing of ours can act on it.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any, TypeVar

from tracks_dagster.track.bodies import (
    AUTOMATIC,
    FIRST,
    AttemptEnded,
    AttemptOpened,
    AttemptPlaced,
    AttemptRestored,
    CheckpointCadence,
    CodeVersion,
    ComputeRequest,
    Debit,
    RunDeclared,
    RunFinished,
    RunLabelled,
)
from tracks_dagster.track.body_json import from_json, to_json
from tracks_dagster.track.errors import TrackBroken
from tracks_dagster.track.json_text import parse_json
from tracks_dagster.track.names import IMPORTED, AttemptRef
from tracks_dagster.track.records import (
    Draft,
    Json,
    Kind,
    Record,
    canonical_json,
    parse_time,
    seal,
    sha256_hex,
)
from tracks_dagster.track.states.run_state import AttemptState, Labels, RunState

T = TypeVar("T")

CHUNK_ATTEMPTS_MAX = 4000
CHUNK_BYTES_MAX = 256 * 1024 * 1024  # of one chunk, unpacked
UID_CHARACTERS = 32
ATTEMPTS_MAX = 10_000  # of one run, the earliest: its track is made again for each look


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedAttempt:
    """One attempt as another system tells it, with our verdict on its end.

    uid: the same for the same thing at every import. run_id: `<history>.<the run's id there>`. title:
    what people call the run there. cause: FIRST, AUTOMATIC (that system started it again) or MANUAL (a
    person did); of the first attempt of a run it is not used. submitted_at, started_at, ended_at: as
    records have times; started_at is None of one that never started. devices: that it had, or asked
    for; device_seconds: of all. excluded_nodes: that it was kept from. resumed_step, last_step, spent
    on steps: None where the source does not say. fingerprint: of its failure. evidence: what was
    judged, with the raw row under "source" and what the source cannot say, and why, under "unknown".
    unknown: the same. metrics: the newest value of each. curves: a journal as a launch of ours ships
    it, the byte at which each of its segments begins → the sha256 of its stored bytes
    (`history_curves_key`).
    amount: how much the source had of its run: values of curves, and characters of rows and logs.
    """

    uid: str
    run_id: str
    title: str
    owner: str
    team: str
    pool: str
    cause: str
    submitted_at: str
    started_at: str | None
    ended_at: str
    reason: str
    confidence: float
    rule: str
    lines: tuple[str, ...]
    root_message: str
    classifier_version: str
    fingerprint: str
    devices: int
    device_class: str
    device_seconds: float
    evidence: Mapping[str, Json]
    nodes: tuple[str, ...] = ()
    excluded_nodes: tuple[str, ...] = ()
    config: Mapping[str, Json] = field(default_factory=dict)
    resumed_step: int | None = None
    last_step: int | None = None
    unknown: Mapping[str, str] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    curves: Mapping[str, str] = field(default_factory=dict)
    amount: tuple[int, int] = (0, 0)

    @property
    def launch_id(self) -> str:
        """The id of its only launch: another one where its journal is longer, since caches know it."""
        return f"imported-{self.uid}-{self.amount[0]}" if self.curves else f"imported-{self.uid}"

    @property
    def extent(self) -> tuple[int, str, int, int]:
        """How much is known of it. Of two that are one attempt, the one with more counts."""
        values, size = self.amount
        return (values, self.ended_at, size, -1 if self.resumed_step is None else self.resumed_step)

    @property
    def order(self) -> tuple[str, str]:
        """Its place among the attempts of its run."""
        return (self.started_at or self.submitted_at, self.uid)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedNode:
    """A node as another system listed it at one time, where that differs from what it said before.

    uid: the same for the same thing at every import. program: what printed it. state: as printed; out:
    its words that keep jobs off, none where it takes some. reason, set_by: empty where none is given.
    since_at: since when the reason holds; seen_at: when the list was printed; booted_at: the machine.
    row: the line as it was read.
    """

    uid: str
    pool: str
    node: str
    program: str
    state: str
    out: tuple[str, ...]
    reason: str
    set_by: str
    since_at: str | None
    seen_at: str
    booted_at: str | None
    gres: str
    row: str

    @property
    def out_since(self) -> str:
        """Since when it is known to take no job, where it takes none."""
        return self.since_at or self.seen_at


def changed_nodes(
    known: Iterable[ImportedNode], listed: Iterable[ImportedNode]
) -> list[ImportedNode]:
    """Return those of a list whose state is not that which the same program printed before it.

    So what is listed again adds nothing, and a node that was out between two times that it was not is
    seen to be back.
    """
    states: dict[tuple[str, str], dict[str, object]] = {}
    for each in known:
        states.setdefault((each.program, each.node), {})[each.seen_at] = _state_of(each)
    new: list[ImportedNode] = []
    for each in listed:
        seen = states.setdefault((each.program, each.node), {})
        before = max((at for at in seen if at <= each.seen_at), default=None)
        if before is None or seen[before] != _state_of(each):
            new.append(each)
            seen[each.seen_at] = _state_of(each)
    return new


def _state_of(node: ImportedNode) -> object:
    """Return what of a node does not pass, as whether a job runs on it just now."""
    return (node.out, node.reason, node.set_by, node.since_at, node.booted_at, node.gres)


def newest_nodes(nodes: Iterable[ImportedNode]) -> dict[str, ImportedNode]:
    """Return what is known last of each node, by its name.

    Of two programs that printed the same state, the one that cut less of the reason counts.
    """
    newest: dict[str, ImportedNode] = {}
    for each in sorted(nodes, key=lambda each: each.seen_at):
        before = newest.get(each.node)
        is_same = before is not None and before.out and each.since_at == before.since_at
        if before is None or not is_same or len(each.reason) >= len(before.reason):
            newest[each.node] = each
    return newest


def out_during(
    nodes: Iterable[ImportedNode], names: Iterable[str], began_at: str, ended_at: str
) -> list[ImportedNode]:
    """Return what kept jobs off these nodes at some time from `began_at` to `ended_at`, in order."""
    wanted, found = frozenset(names), dict[tuple[str, str], ImportedNode]()
    for each in nodes:
        is_then = each.out_since <= ended_at and began_at <= max(each.seen_at, each.out_since)
        if each.node not in wanted or not each.out or not is_then:
            continue
        key = (each.out_since, each.node)
        if key not in found or len(found[key].reason) < len(each.reason):
            found[key] = each
    return [found[key] for key in sorted(found)]


def out_words(node: ImportedNode) -> str:
    """Say why a node takes no job: "IDLE+DRAIN since …, by root: GPU 1 is gone (seen …)"."""
    since = f" since {node.since_at[:19]}Z" if node.since_at else ""
    by = f", by {node.set_by}" if node.set_by else ""
    why = node.reason or "no reason is given"
    return f"{node.state or 'drained or down'}{since}{by}: {why} (seen {node.seen_at[:19]}Z)"


_FIELDS = tuple(each.name for each in fields(ImportedAttempt))
_NODE_FIELDS = tuple(each.name for each in fields(ImportedNode))


def history_of(run_id: str) -> str | None:
    """Return the history that a run of this id would be of; None where it can be of none."""
    name, dot, _ = run_id.partition(".")
    return name if dot else None


# --- chunks ---------------------------------------------------------------------------------------


def pack(attempts: Sequence[ImportedAttempt]) -> bytes:
    """Return the chunk that holds `attempts`: the same bytes for the same attempts."""
    return _packed(attempts, _FIELDS)


def pack_nodes(nodes: Sequence[ImportedNode]) -> bytes:
    """Return the object that holds `nodes`: the same bytes for the same nodes."""
    return _packed(nodes, _NODE_FIELDS)


def _packed(rows: Sequence[ImportedAttempt | ImportedNode], names: Sequence[str]) -> bytes:
    # Not by `to_json`: all of it is JSON, and walking through raw rows took a quarter of the time.
    lines = (canonical_json({name: getattr(each, name) for name in names}) for each in rows)
    return gzip.compress(b"\n".join(lines), compresslevel=3, mtime=0)


def unpack(data: bytes) -> list[ImportedAttempt]:
    """Return the attempts of a chunk; raises TrackBroken for bytes that are not valid."""
    return _unpacked(ImportedAttempt, data)


def unpack_nodes(data: bytes) -> list[ImportedNode]:
    """Return the nodes that `pack_nodes` packed; raises TrackBroken for bytes that are not valid."""
    return _unpacked(ImportedNode, data)


def _unpacked(kind: type[T], data: bytes) -> list[T]:
    try:
        lines = gzip.decompress(data).split(b"\n")
        return [from_json(kind, parse_json(line, bytes_max=CHUNK_BYTES_MAX)) for line in lines]
    except (OSError, EOFError, ValueError) as error:
        raise TrackBroken(f"A chunk of a history cannot be read: {error}.") from error


def version_of(attempt: ImportedAttempt) -> str:
    """Return what only an attempt of which so much is known has, in the form of a uid."""
    return sha256_hex(f"{attempt.uid} {attempt.extent}".encode())[:UID_CHARACTERS]


def pack_uids(uids: Iterable[str]) -> bytes:
    """Return what a chunk's attempts and their versions are known by, 16 bytes each."""
    return b"".join(bytes.fromhex(uid) for uid in uids)


def unpack_uids(data: bytes) -> Iterator[bytes]:
    """Yield the identities that `pack_uids` packed, as bytes."""
    return (data[at : at + 16] for at in range(0, len(data), 16))


# --- the track of a run ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """One record to be: its body, and when it was so."""

    kind: Kind
    at: str
    body: object
    attempt_id: int | None = None


def in_order(attempts: Iterable[ImportedAttempt]) -> list[ImportedAttempt]:
    """Return the attempts of one run in their order, each once, whatever order they came in.

    One that was imported several times, as more of it was there, is as it was with the most.
    """
    most: dict[str, ImportedAttempt] = {}
    for each in attempts:
        if each.uid not in most or each.extent > most[each.uid].extent:
            most[each.uid] = each
    return sorted(most.values(), key=lambda each: each.order)[:ATTEMPTS_MAX]


def state_of(attempts: Sequence[ImportedAttempt]) -> RunState:
    """Return the state that the records of a run give, without making their bytes: for very many runs.

    attempts: as of `in_order`. Only the sha256 of its head differs from that of `records_of`.
    """
    seen: dict[int, AttemptState] = {}
    given: dict[str, Any] = {}
    entries = list(_entries(attempts))
    for seq, entry in enumerate(entries):
        number, at = entry.attempt_id or 0, parse_time(entry.at)
        match entry.body:
            case RunDeclared() as declared:
                declared_at = at
            case RunLabelled() as labelled:
                labels = Labels(name=labelled.called or "")
            case AttemptOpened() as body:
                given = {"opened": body, "opened_seq": seq, "opened_at": at}
            case AttemptPlaced() as body:
                given |= {"placed": body, "placed_seq": seq, "placed_at": at}
            case AttemptRestored() as body:
                given |= {"restored": body, "restored_at": at}
            case AttemptEnded() as body:
                given |= {"ended": body, "ended_seq": seq, "ended_at": at}
                seen[number] = AttemptState(attempt_id=number, **given)
            case RunFinished() as finished:
                finished_at = at
    return RunState(
        head=_head(attempts, len(entries) - 1, finished_at),
        declared=declared,
        declared_at=declared_at,
        labels=labels,
        attempts=tuple(seen.values()),
        finished=finished,
        finished_at=finished_at,
    )


def records_of(attempts: Sequence[ImportedAttempt]) -> list[bytes]:
    """Return the stored bytes of every record of a run; attempts: as of `in_order`."""
    stored: list[bytes] = []
    for seq, entry in enumerate(_entries(attempts)):
        draft = Draft(
            uid=_uid(attempts, seq),
            kind=entry.kind,
            body=to_json(entry.body),
            attempt_id=entry.attempt_id,
        )
        before = sha256_hex(stored[-1]) if stored else None
        stored.append(seal(draft, seq=seq, at=parse_time(entry.at), prev_sha256=before))
    return stored


def evidence_of(attempts: Sequence[ImportedAttempt]) -> dict[str, bytes]:
    """Return the evidence of each attempt by its key."""
    return {
        _evidence_key(number, each): canonical_json(each.evidence)
        for number, each in enumerate(attempts, 1)
    }


def _head(attempts: Sequence[ImportedAttempt], seq: int, at: datetime) -> Record:
    return Record(
        seq=seq,
        uid=_uid(attempts, seq),
        at=at,
        kind=Kind.RUN_FINISHED,
        attempt_id=None,
        prev_sha256=None,
        body={},
        sha256="",
    )


def _uid(attempts: Sequence[ImportedAttempt], seq: int) -> str:
    return sha256_hex(f"{attempts[0].uid} {seq}".encode())[:UID_CHARACTERS]


def _evidence_key(number: int, attempt: ImportedAttempt) -> str:
    sha256 = sha256_hex(canonical_json(attempt.evidence))
    return f"{AttemptRef(attempt.run_id, number).folder}evidence/{sha256}.json"


def _entries(attempts: Sequence[ImportedAttempt]) -> Iterator[_Entry]:
    """Yield what the records say, in their order. Times never go back."""
    first, last = attempts[0], attempts[-1]
    at = first.submitted_at
    yield _Entry(kind=Kind.RUN_DECLARED, at=at, body=_declared(first))
    yield _Entry(kind=Kind.RUN_LABELLED, at=at, body=RunLabelled(by=first.pool, called=first.title))
    for number, each in enumerate(attempts, 1):
        at = max(at, each.submitted_at)
        yield _Entry(
            kind=Kind.ATTEMPT_OPENED, at=at, body=_opened(number, attempts), attempt_id=number
        )
        launch_id = each.launch_id
        if each.started_at is not None:
            at = max(at, each.started_at)
            yield _Entry(
                kind=Kind.ATTEMPT_PLACED,
                at=at,
                body=AttemptPlaced(
                    launch_id=launch_id,
                    world_size=each.devices,
                    ranks=(),
                    image=None,
                    environment={},
                    environment_sha256="",
                    pod_nodes=each.nodes,
                ),
                attempt_id=number,
            )
            restored = AttemptRestored(
                launch_id=launch_id, step=each.resumed_step or 0, checkpoint=None, cursor=None
            )
            yield _Entry(kind=Kind.ATTEMPT_RESTORED, at=at, body=restored, attempt_id=number)
        at = max(at, each.ended_at)
        yield _Entry(kind=Kind.ATTEMPT_ENDED, at=at, body=_ended(number, each), attempt_id=number)
    why = f"It ran elsewhere and was imported; its last attempt ended there as {last.reason}."
    yield _Entry(
        kind=Kind.RUN_FINISHED,
        at=at,
        body=RunFinished(stop_cause=IMPORTED, why=why, decided_by=last.pool, final=None),
    )


def _declared(first: ImportedAttempt) -> RunDeclared:
    return RunDeclared(
        run_id=first.run_id,
        model_family=first.title,
        config=first.config,
        snapshot=None,
        code=CodeVersion(git_commit=None, branch=None, dirty=None, package_version=""),
        owner=first.owner,
        team=first.team,
        stage="full",
        intent=f"imported from {history_of(first.run_id)}",
        compute=_compute(first),
        cadence=CheckpointCadence(),
        estimated_device_s=None,
    )


def _compute(attempt: ImportedAttempt) -> ComputeRequest:
    return ComputeRequest(
        launcher=IMPORTED,
        ranks=max(1, attempt.devices),
        device_class=attempt.device_class,
        excluded_nodes=attempt.excluded_nodes,
        pool=attempt.pool,
    )


def _opened(number: int, attempts: Sequence[ImportedAttempt]) -> AttemptOpened:
    this = attempts[number - 1]
    before = attempts[number - 2] if number > 1 else None
    cause = FIRST if before is None else this.cause
    debit = None
    if cause == AUTOMATIC and before is not None:
        debit = Debit(
            reason=before.reason,
            amount=0.0,
            fingerprint=before.fingerprint,
            why=f"{this.pool} started it again, not a policy of ours",
        )
    return AttemptOpened(
        cause=cause,
        decided_by=this.pool if cause == AUTOMATIC else this.owner,
        decision=f"It was started in {this.pool}.",
        config=this.config,
        compute=_compute(this),
        snapshot=None,
        resume=None,
        debit=debit,
    )


def _ended(number: int, attempt: ImportedAttempt) -> AttemptEnded:
    key = _evidence_key(number, attempt)
    return AttemptEnded(
        reason=attempt.reason,
        confidence=attempt.confidence,
        rule=attempt.rule,
        lines=attempt.lines,
        classifier_version=attempt.classifier_version,
        evidence_key=key,
        evidence_sha256=key[-69:-5],
        device_seconds=attempt.device_seconds,
        accelerator=attempt.device_class,
        started_at=attempt.started_at,
        finished_at=attempt.ended_at if attempt.started_at is not None else None,
        last_step=attempt.last_step,
        first_line_ran=attempt.started_at is not None,
        root_message=attempt.root_message,
        fingerprint=attempt.fingerprint,
        closed_by=attempt.pool,
        # What it did in its time nobody measured; without a last step the account would call all of it
        # a hang.
        last_stepped_at=attempt.ended_at if attempt.started_at is not None else None,
        logs={},
        metrics=attempt.metrics or None,
    )

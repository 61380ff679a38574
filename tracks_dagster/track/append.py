"""The rules of append, as two small state machines without any input or output.

`Walk` is a trainer's fact or a note: it goes forward from a record it knows, reads every record on
its way and takes the first free seq, unless a record on the way fences it. `Claim` is a decision: it
holds only for the state it was made on, so it is tried at exactly one seq.

Each machine names its next request (`Read` or `Create`) and takes the reply to `advance`, which
returns the machine's next state or `Done`. `track.Track` drives them over an object store; the
exhaustive model in the tests drives the same code through every interleaving, lost reply and kill.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from enum import Enum

from tracks_dagster.track.records import Draft, Kind, Record, parse, seal


@dataclass(frozen=True, slots=True)
class Read:
    """Read the record at `seq`; the reply is its bytes, or None when there is none yet."""

    seq: int


@dataclass(frozen=True, slots=True)
class Create:
    """Create the record at `seq` if there is none; the reply is a `Created`."""

    seq: int
    data: bytes


class Created(Enum):
    """What came back from a create-if-absent."""

    YES = "this call created it"
    TAKEN = "there was one already, perhaps one's own from an earlier try"
    UNKNOWN = "the reply was lost; it may or may not have been created, now or later"


class Outcome(Enum):
    """How an append ended."""

    APPENDED = "the record is in the track"
    FENCED = "the writer has lost its authority and must exit"
    ABANDONED = "a commit names chunks of a checkpoint that was quarantined or deleted meanwhile"
    TAKEN = "another record has this decision's place: read, fold and decide again"


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """The end of an append. `record` is the one appended, or the one that decided otherwise."""

    outcome: Outcome
    record: Record


Request = Read | Create
Reply = bytes | None | Created


@dataclass(frozen=True, slots=True, kw_only=True)
class Authority:
    """In whose name a trainer writes: the attempt its launcher named, and its own launch."""

    attempt_id: int
    launch_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Walk:
    """A fact or note on its way to the first free seq.

    seq, prev_sha256: the first seq not yet read, and the sha256 of the record before it.
    authority: None for a note or an eval, which nothing fences.
    sources: manifest sha256 of every checkpoint whose chunks a commit names (its own apart).
    """

    draft: Draft
    at: datetime
    seq: int
    prev_sha256: str | None
    authority: Authority | None = None
    sources: frozenset[str] = frozenset()
    creating: bool = False

    @property
    def request(self) -> Request:
        """What to do next."""
        if self.creating:
            data = seal(self.draft, seq=self.seq, at=self.at, prev_sha256=self.prev_sha256)
            return Create(self.seq, data)
        return Read(self.seq)

    def advance(self, reply: Reply) -> Walk | Done:
        """Take the reply to `request`."""
        if isinstance(reply, Created):
            if reply is Created.YES:
                return Done(outcome=Outcome.APPENDED, record=self._own_record())
            return replace(self, creating=False)  # taken, or unknown: only reading back shows
        if reply is None:
            return replace(self, creating=True)
        record = parse(reply, seq=self.seq)
        if record.uid == self.draft.uid:
            return Done(outcome=Outcome.APPENDED, record=record)
        if self.authority is not None and fences(record, self.authority):
            return Done(outcome=Outcome.FENCED, record=record)
        if withdraws(record, self.sources):
            return Done(outcome=Outcome.ABANDONED, record=record)
        return replace(self, seq=self.seq + 1, prev_sha256=record.sha256)

    def _own_record(self) -> Record:
        data = seal(self.draft, seq=self.seq, at=self.at, prev_sha256=self.prev_sha256)
        return parse(data, seq=self.seq)


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A decision at exactly the seq after the last record that it was folded from."""

    draft: Draft
    at: datetime
    seq: int
    prev_sha256: str | None
    creating: bool = True

    @property
    def request(self) -> Request:
        """What to do next."""
        if self.creating:
            data = seal(self.draft, seq=self.seq, at=self.at, prev_sha256=self.prev_sha256)
            return Create(self.seq, data)
        return Read(self.seq)

    def advance(self, reply: Reply) -> Claim | Done:
        """Take the reply to `request`."""
        if isinstance(reply, Created):
            if reply is Created.YES:
                data = seal(self.draft, seq=self.seq, at=self.at, prev_sha256=self.prev_sha256)
                return Done(outcome=Outcome.APPENDED, record=parse(data, seq=self.seq))
            return replace(self, creating=False)
        if reply is None:
            return replace(self, creating=True)  # same state, same decision, same uid
        record = parse(reply, seq=self.seq)
        mine = record.uid == self.draft.uid
        return Done(outcome=Outcome.APPENDED if mine else Outcome.TAKEN, record=record)


def fences(record: Record, authority: Authority) -> bool:
    """Whether `record` takes a trainer's authority away.

    Its attempt has ended, a later one was opened, the run is finished, or another launch of the
    same attempt was placed.
    """
    if record.kind is Kind.RUN_FINISHED:
        return True
    if record.attempt_id is None:
        return False
    if record.kind is Kind.ATTEMPT_ENDED:
        return record.attempt_id == authority.attempt_id
    if record.kind is Kind.ATTEMPT_OPENED:
        return record.attempt_id > authority.attempt_id
    if record.kind is Kind.ATTEMPT_PLACED:
        same_attempt = record.attempt_id == authority.attempt_id
        return same_attempt and record.body["launch_id"] != authority.launch_id
    return False


def withdraws(record: Record, sources: frozenset[str]) -> bool:
    """Whether `record` takes a checkpoint in `sources` (manifest sha256) from its users.

    A quarantine does, because its bytes are not to be trusted, and a deletion, because chunks that
    only it named go with it: a collector may delete an older commit of a launch whose next save
    leans on it at that moment.
    """
    return record.kind in _WITHDRAWING and record.body["manifest_sha256"] in sources


_WITHDRAWING = frozenset({Kind.CHECKPOINT_QUARANTINED, Kind.CHECKPOINT_DELETED})

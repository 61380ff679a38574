"""The rules of append, each with one taken out: what the model has to catch.

A mutant is a variant of a product machine or of one of its predicates. A newer attempt and the end
of the run are a second line of defence: the end of the own attempt always stands before them in the
log, so each is taken out together with it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from tests.model.actors import Config, Last, Rules
from tests.model.world import AT, Log, Machine, chunks_of
from tracks_dagster.track import append
from tracks_dagster.track.append import Authority, Created, Done, Outcome, Walk, fences, withdraws
from tracks_dagster.track.records import Draft, Kind, Record, parse
from tracks_dagster.track.states import run_fold
from tracks_dagster.track.states.run_state import CheckpointState, RunState

SMALL = Config(gangs=(1, 1), losses=0, reduced=False)
LOSSY = Config(gangs=(1,), reduced=False)
COLLECTED = Config(gangs=(1,), commits=3, losses=0, deletes=True)
RESTORED = Config(gangs=(1, 1), losses=0, deletes=True)
THE_RULES = Rules()


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One rule taken out. fences, withdraws: stand in for the product's predicates."""

    name: str
    breaks: str
    config: Config = SMALL
    rules: Rules = THE_RULES
    fences: Callable[[Record, Authority], bool] = fences
    withdraws: Callable[[Record, frozenset[str]], bool] = withdraws


def fences_but_by(*kinds: Kind) -> Callable[[Record, Authority], bool]:
    """The product's fences, without those of some kinds of record."""
    return lambda record, authority: record.kind not in kinds and fences(record, authority)


def _walking_decision(draft: Draft, log: Log) -> Machine:
    """A decision that goes forward like a note when its place is taken."""
    seq = len(log.data)
    return Walk(draft=draft, at=AT, seq=seq, prev_sha256=log.sha256_before(seq))


def _check_without_end(state: RunState | None, draft: Draft) -> Draft:
    """The product's check, but an attempt may be opened while another is open."""
    return draft if draft.kind is Kind.ATTEMPT_OPENED else run_fold.check(state, draft)


def _check_but_delete(
    may_go: Callable[[CheckpointState], bool],
) -> Callable[[RunState | None, Draft], Draft]:
    """The product's check, but what `may_go` says may be deleted, once."""

    def check(state: RunState | None, draft: Draft) -> Draft:
        if state is not None and draft.kind is Kind.CHECKPOINT_DELETED:
            checkpoint = state.checkpoint(draft.body["manifest_sha256"])
            if checkpoint is not None and not checkpoint.deleted and may_go(checkpoint):
                return draft
        return run_fold.check(state, draft)

    return check


def _only_quarantines_withdraw(record: Record, sources: frozenset[str]) -> bool:
    """The product's predicate, without deletions."""
    return record.kind is Kind.CHECKPOINT_QUARANTINED and withdraws(record, sources)


class WalkWithoutUid(Walk):
    """Does not know its own record when it meets it."""

    def advance(self, reply: append.Reply) -> Walk | Done:
        if isinstance(reply, bytes) and parse(reply, seq=self.seq).uid == self.draft.uid:
            return replace(self, seq=self.seq + 1, prev_sha256=parse(reply, seq=self.seq).sha256)
        return super().advance(reply)


class WalkWithNewUidEachTry(Walk):
    """Takes a lost reply for a failure and starts over with another uid."""

    def advance(self, reply: append.Reply) -> Walk | Done:
        if reply is Created.UNKNOWN:
            again = replace(self.draft, uid=self.draft.uid + " again")
            return replace(self, draft=again, creating=False)
        return super().advance(reply)


class WalkThatTrustsSilence(Walk):
    """Takes a lost reply for success."""

    def advance(self, reply: append.Reply) -> Walk | Done:
        return super().advance(Created.YES if reply is Created.UNKNOWN else reply)


class WalkThatGivesUp(Walk):
    """Takes a lost reply for the loss of its place and reports failure without reading back."""

    def advance(self, reply: append.Reply) -> Walk | Done:
        if reply is Created.UNKNOWN:
            return Done(outcome=Outcome.TAKEN, record=self._own_record())
        return super().advance(reply)


class WalkByListing(Walk):
    """Lists the track, looks at its last record only, and takes the seq after it."""

    @property
    def request(self) -> append.Request | Last:  # type: ignore[override]
        return super().request if self.creating else Last()

    def advance(self, reply: append.Reply | Record) -> Walk | Done:
        if isinstance(reply, Record):
            if reply.uid == self.draft.uid:
                return Done(outcome=Outcome.APPENDED, record=reply)
            if self.authority is not None and append.fences(reply, self.authority):
                return Done(outcome=Outcome.FENCED, record=reply)
            return replace(self, creating=True, seq=reply.seq + 1, prev_sha256=reply.sha256)
        return super().advance(reply)


MUTANTS = [
    Mutant(
        name="a walk starts at the tail",
        breaks="a launch wrote after the end of its attempt",
        rules=Rules(first_seq=lambda log, seq: len(log.data)),
        config=replace(SMALL, sensors=1),
    ),
    Mutant(
        name="a walk lists and picks",
        breaks="a launch wrote after a newer attempt was opened",
        rules=Rules(walk=WalkByListing),
    ),
    Mutant(
        name="a decision is appended by walking",
        breaks="an attempt was opened twice, or before the end of the one before",
        rules=Rules(decision=_walking_decision),
    ),
    Mutant(
        name="an attempt may be opened before the end of the one before",
        breaks="an attempt was opened twice, or before the end of the one before",
        rules=Rules(check=_check_without_end),
    ),
    Mutant(
        name="an end does not fence",
        breaks="a launch wrote after the end of its attempt",
        fences=fences_but_by(Kind.ATTEMPT_ENDED),
    ),
    Mutant(
        name="two launches of one attempt are allowed",
        breaks="two launches of one attempt were placed",
        config=replace(SMALL, gangs=(2,)),
        fences=fences_but_by(Kind.ATTEMPT_PLACED),
    ),
    Mutant(
        name="a launch commits without being placed first",
        breaks="the fold refuses the record",
        rules=Rules(places_first=False),
    ),
    Mutant(
        name="a walk does not know its own uid",
        breaks="a record landed twice",
        config=LOSSY,
        rules=Rules(walk=WalkWithoutUid),
    ),
    Mutant(
        name="a repeated append draws a new uid",
        breaks="a record landed twice",
        config=LOSSY,
        rules=Rules(walk=WalkWithNewUidEachTry),
    ),
    Mutant(
        name="a lost reply counts as success",
        breaks="an actor learned that its record stands, and it does not",
        config=LOSSY,
        rules=Rules(walk=WalkThatTrustsSilence),
    ),
    Mutant(
        name="a lost reply counts as failure",
        breaks="an actor learned that its record does not stand, and it does",
        config=LOSSY,
        rules=Rules(walk=WalkThatGivesUp),
    ),
    Mutant(
        name="a quarantine does not stop a commit that takes its chunks",
        breaks="a commit names chunks of a checkpoint in quarantine",
        config=replace(SMALL, quarantines=True),
        withdraws=lambda record, sources: False,
    ),
    Mutant(
        name="a deletion does not stop a commit that takes its chunks",
        breaks="a commit names chunks of a deleted checkpoint",
        config=COLLECTED,
        withdraws=_only_quarantines_withdraw,
    ),
    Mutant(
        name="a deletion takes every chunk of its checkpoint",
        breaks="a deletion takes a chunk that another checkpoint names",
        config=COLLECTED,
        rules=Rules(chunks_to_delete=lambda log, manifest: chunks_of(log, frozenset({manifest}))),
    ),
    Mutant(
        name="any checkpoint may be deleted",
        breaks="the checkpoint to resume from was deleted",
        config=RESTORED,
        rules=Rules(check=_check_but_delete(lambda checkpoint: True)),
    ),
    Mutant(
        name="a checkpoint may be deleted before the open attempt has restored",
        breaks="a launch restored a checkpoint that was deleted",
        config=replace(RESTORED, quarantines=True),
        rules=Rules(check=_check_but_delete(lambda checkpoint: checkpoint.quarantined)),
    ),
    Mutant(
        name="neither an end nor a newer attempt fences",
        breaks="a launch wrote after a newer attempt was opened",
        fences=fences_but_by(Kind.ATTEMPT_ENDED, Kind.ATTEMPT_OPENED),
    ),
    Mutant(
        name="neither an end nor the end of the run fences",
        breaks="the run went on after it was finished",
        fences=fences_but_by(Kind.ATTEMPT_ENDED, Kind.RUN_FINISHED),
    ),
    Mutant(
        name="a note fences",
        breaks="the launch of the open attempt was fenced",
        config=replace(SMALL, note=True),
        fences=lambda record, authority: record.kind is Kind.NOTE or fences(record, authority),
    ),
]

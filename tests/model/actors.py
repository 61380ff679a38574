"""What the actors of the append model do: gangs, notes and sensors around the product's machines.

`Config` says how many there are and how much may go wrong, `Rules` by which rules they append.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

from tests.model import drafts
from tests.model.world import AT, Actor, Log, Machine, Sensor, Writer, chunks_of
from tracks_dagster.track import append
from tracks_dagster.track.append import Authority, Claim, Done, Outcome, Walk
from tracks_dagster.track.errors import InvalidDecision
from tracks_dagster.track.records import Draft, Kind
from tracks_dagster.track.states import protection, run_fold
from tracks_dagster.track.states.checkpoints import resume_target
from tracks_dagster.track.states.run_state import AttemptState, RunState


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """How large a world to search.

    gangs: how many gangs each attempt may get, by attempt; commits: of each gang.
    quarantines: a sensor may quarantine the newest checkpoint; so does each attempt's second gang,
    of the one that it was to restore. deletes: a sensor may verify the newest checkpoint, and
    supersede and delete any.
    """

    gangs: tuple[int, ...]
    commits: int = 1
    sensors: int = 2
    losses: int = 1
    note: bool = False
    quarantines: bool = False
    deletes: bool = False
    reduced: bool = True


@dataclass(frozen=True, slots=True)
class Last:
    """Read the last record that a listing shows: only a mutant asks for this."""


def claim_at_tail(draft: Draft, log: Log) -> Machine:
    """Make a decision as it is made: at exactly the seq after what it was folded from."""
    seq = len(log.data)
    return Claim(draft=draft, at=AT, seq=seq, prev_sha256=log.sha256_before(seq))


def chunks_to_delete(log: Log, manifest: str) -> frozenset[str]:
    """Return the chunks of a checkpoint that no other committed, undeleted manifest names."""
    assert log.state is not None
    kept = {c.ref.manifest_sha256 for c in log.state.checkpoints if not c.deleted} - {manifest}
    return chunks_of(log, frozenset({manifest})) - chunks_of(log, frozenset(kept))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The rules of append as they are; a mutant replaces one."""

    walk: type[Walk] = Walk
    decision: Callable[[Draft, Log], Machine] = claim_at_tail
    first_seq: Callable[[Log, int], int] = lambda log, seq: seq
    check: Callable[[RunState | None, Draft], Draft] = run_fold.check
    chunks_to_delete: Callable[[Log, str], frozenset[str]] = chunks_to_delete
    places_first: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Cast:
    """The actors of one search."""

    config: Config
    rules: Rules

    def actors(self) -> tuple[Actor, ...]:
        """Return all of them, before anything happened."""
        gangs = [
            Writer(f"{attempt_id}{'ab'[number]}", attempt_id)
            for attempt_id, count in enumerate(self.config.gangs, start=1)
            for number in range(count)
        ]
        notes = [Writer("note", None)] if self.config.note else []
        sensors = [Sensor(f"sensor{number}") for number in range(self.config.sensors)]
        return (*gangs, *notes, *sensors)

    def starts(self, log: Log, actor: Actor) -> Iterator[Actor]:
        """Yield every way in which an idle actor may set out."""
        if isinstance(actor, Sensor):
            for draft in self.decisions(log, actor.name):
                yield replace(actor, machine=self.rules.decision(draft, log))
        elif actor.attempt_id is None:
            yield self._walk(actor, log, 0, drafts.note())
        else:
            opened = log.find(Kind.ATTEMPT_OPENED, actor.attempt_id)
            if opened is not None:
                yield self._next_fact(actor, actor.attempt_id, log, opened.seq)

    def decisions(self, log: Log, by: str) -> Iterator[Draft]:
        """Yield every decision that the state allows, as the product's own check sees it."""
        state = log.state
        assert state is not None
        attempt_id, uid = len(state.attempts), f"{by} at {len(log.data)}"
        wanted = list(self._checkpoint_decisions(log, uid))
        if attempt_id < len(self.config.gangs):
            target = resume_target(state.resumable) if state.resumable else None
            wanted.append(drafts.opened(uid + " opens", attempt_id + 1, target))
        if attempt_id:
            wanted += [drafts.ended(uid + " ends", attempt_id), drafts.finished(uid + " finishes")]
        for draft in wanted:
            with suppress(InvalidDecision):
                yield self.rules.check(state, draft)

    def _checkpoint_decisions(self, log: Log, uid: str) -> Iterator[Draft]:
        """Yield what may be decided about checkpoints; a decision is made once."""
        assert log.state is not None
        target = protection.newest(log.state)
        if self.config.quarantines and target:
            newest = target.ref.manifest_sha256
            yield drafts.decided(uid + " quarantines", Kind.CHECKPOINT_QUARANTINED, newest)
        if not self.config.deletes:
            return
        if target and target.verified_at is None:
            yield drafts.verified(f"{uid} verifies", target.ref.manifest_sha256)
        for checkpoint in log.state.checkpoints:
            manifest = checkpoint.ref.manifest_sha256
            uid_of_it = f"{uid} supersedes {manifest}"
            yield drafts.decided(uid_of_it, Kind.CHECKPOINT_SUPERSEDED, manifest)
            gone = tuple(sorted(self.rules.chunks_to_delete(log, manifest)))
            uid_of_it = f"{uid} deletes {manifest}"
            yield drafts.decided(uid_of_it, Kind.CHECKPOINT_DELETED, manifest, chunks=gone)

    def advance(self, actor: Actor, reply: append.Reply, log: Log) -> tuple[Actor, str | None]:
        """Give the actor's machine its reply; `log` is what stands once the reply is there.

        Returns the actor as it goes on, and what is wrong with what it learned, if anything.
        """
        assert actor.machine is not None
        state = actor.machine.advance(reply)
        if not isinstance(state, Done):
            return replace(actor, machine=state), None
        lie = _lie(actor, state, log)
        if isinstance(actor, Sensor):
            return Sensor(actor.name), lie
        over = Writer(actor.name, actor.attempt_id, over=True)
        if lie is not None or actor.attempt_id is None or state.outcome is Outcome.FENCED:
            return over, lie
        fact = actor.fact + (state.outcome is Outcome.APPENDED)
        if fact == len(self._program(actor, _attempt(log, actor.attempt_id))):
            return over, None
        # A claim that was taken reads the record there again, to see whether it fences.
        seq = state.record.seq + (state.outcome is not Outcome.TAKEN)
        return self._next_fact(replace(actor, fact=fact), actor.attempt_id, log, seq), None

    def _program(self, writer: Writer, attempt: AttemptState) -> tuple[str, ...]:
        """Return what a gang appends, in order."""
        is_second = writer.name.endswith("b")
        restores_badly = self.config.quarantines and is_second and attempt.opened.resume
        return (
            *(("place",) if self.rules.places_first else ()),
            *(("quarantine",) if restores_badly else ()),
            *(("restore",) if self.config.deletes or self.config.quarantines else ()),
            *("commit",) * self.config.commits,
        )

    def _next_fact(self, writer: Writer, attempt_id: int, log: Log, seq: int) -> Writer:
        """Set out with the gang's next fact from `seq`, where its last one ended."""
        seq = self.rules.first_seq(log, seq)
        attempt = _attempt(log, attempt_id)
        authority = Authority(attempt_id=attempt_id, launch_id=writer.name)
        match self._program(writer, attempt)[writer.fact]:
            case "place":
                placed = drafts.placed(writer.name, attempt_id)
                return self._walk(writer, log, seq, placed, authority)
            case "quarantine":
                return self._decide(writer, log, seq, authority)
            case "restore":
                known = log.until(seq).state
                assert known is not None
                found = resume_target(known.resumable) if known.resumable else None
                restored = drafts.restored(writer.name, attempt_id, found)
                return self._walk(writer, log, seq, restored, authority)
            case _:
                sources = _sources(log, attempt, seq)
                chunks = chunks_of(log, sources)
                commit = drafts.committed(writer.name, attempt_id, writer.fact, sources, chunks)
                return self._walk(writer, log, seq, commit, authority, sources)

    def _walk(
        self,
        writer: Writer,
        log: Log,
        seq: int,
        draft: Draft,
        authority: Authority | None = None,
        sources: frozenset[str] = frozenset(),
    ) -> Writer:
        walk = self.rules.walk(
            draft=draft,
            at=AT,
            seq=seq,
            prev_sha256=log.sha256_before(seq),
            authority=authority,
            sources=sources,
        )
        return replace(writer, machine=walk)

    def _decide(self, writer: Writer, log: Log, seq: int, authority: Authority) -> Writer:
        """A trainer's own decision: read on to the tail, give way to a fence, else claim there."""
        if any(append.fences(record, authority) for record in log.records[seq:]):
            return Writer(writer.name, writer.attempt_id, over=True)
        resume = _attempt(log, authority.attempt_id).opened.resume
        assert resume is not None
        uid = f"{drafts.LAUNCH}{writer.name} quarantines at {len(log.data)}"
        draft = drafts.decided(
            uid, Kind.CHECKPOINT_QUARANTINED, resume.manifest_sha256, authority.attempt_id
        )
        return replace(writer, machine=self.rules.decision(draft, log))


def _attempt(log: Log, attempt_id: int) -> AttemptState:
    attempt = log.state.attempt(attempt_id) if log.state else None
    assert attempt is not None
    return attempt


def _sources(log: Log, attempt: AttemptState, seq: int) -> frozenset[str]:
    """Return the manifests that a gang takes chunks from when it has read up to `seq`.

    All that it may: the checkpoint that it restored and its own commits. A quarantine of one of them
    makes it write everything again; a deletion, leave that one out.
    """
    seen = log.records[attempt.opened_seq : seq]
    sources = set[str]()
    for record in seen:
        if record.kind is Kind.ATTEMPT_RESTORED and record.body["checkpoint"] is not None:
            sources.add(record.body["checkpoint"]["manifest_sha256"])
        elif record.kind is Kind.CHECKPOINT_COMMITTED:  # one's own: no other launch gets there
            sources.add(record.body["ref"]["manifest_sha256"])
        elif record.kind is Kind.CHECKPOINT_QUARANTINED and append.withdraws(
            record, frozenset(sources)
        ):
            sources.clear()
    # What is withdrawn between a restore and the record of it stands before that record.
    return frozenset(
        s for s in sources if not any(append.withdraws(r, frozenset({s})) for r in seen)
    )


def _lie(actor: Actor, done: Done, log: Log) -> str | None:
    """Say what is wrong with what an actor learned of its record, or None."""
    assert actor.machine is not None
    if done.outcome is Outcome.APPENDED:
        stands = done.record in log.records
        return None if stands else "an actor learned that its record stands, and it does not"
    if any(record.uid == actor.machine.draft.uid for record in log.records):
        return "an actor learned that its record does not stand, and it does"
    if done.outcome is not Outcome.FENCED or not isinstance(actor, Writer):
        return None
    placed = log.find(Kind.ATTEMPT_PLACED, actor.attempt_id)
    ended = log.find(Kind.ATTEMPT_ENDED, actor.attempt_id)
    if placed is not None and drafts.author(placed) == actor.name and ended is None:
        return "the launch of the open attempt was fenced"
    return None

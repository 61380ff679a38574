"""A trainer's end of its run's track: what rank 0 appends in the name of one launch of one attempt.

It never continues after it met a record that fences it. The other ranks have no track of their own:
they do what rank 0 passes on.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from tracks_dagster.track.append import Authority, Claim, Outcome, Walk, fences, withdraws
from tracks_dagster.track.errors import Contended, Fenced, TrackBroken
from tracks_dagster.track.json_text import RECORD_BYTES_MAX
from tracks_dagster.track.ports import Clock, ObjectStore
from tracks_dagster.track.records import Draft, Kind, Record, parse
from tracks_dagster.track.track import (
    DECISIONS_MAX,
    RECORDS_MAX,
    Sleep,
    check_chain,
    drive,
    last_seq,
    log_key,
    lost_record,
)


class TrainerTrack:
    """A trainer's end of its run's track: facts in the name of one launch of one attempt.

    It starts at the `attempt_opened` record whose seq the launcher handed over, and reads every
    record from there: what fences it cannot be missed. Once fenced, it stays fenced.

    Safe for the threads of one process: one call at a time, the others wait for it. So a save may
    be committed in the background while the training thread reads on.
    """

    def __init__(
        self,
        store: ObjectStore,
        name: str,
        *,
        opened_seq: int,
        authority: Authority,
        now: Clock,
        sleep: Sleep = time.sleep,
    ) -> None:
        self.name = name
        self.authority = authority
        self._store = store
        self._now = now
        self._sleep = sleep
        self._seq = opened_seq
        self._prev_sha256: str | None = None
        self.seen: list[Record] = []
        self._fenced_by: Record | None = None
        self._is_whole = False  # nothing lies behind a gap: asked before the first append
        self._one_at_a_time = threading.RLock()  # `choose` of a decision may read on
        self._read_opened(opened_seq)

    def append(self, draft: Draft, *, sources: frozenset[str] = frozenset()) -> Record | None:
        """Append a fact; None when it was abandoned: a checkpoint in `sources` is
        quarantined or deleted.

        Idempotent for one draft. Raises Fenced when this launch has lost its authority.
        """
        with self._one_at_a_time:
            return self._append(draft, sources)

    def decide(self, choose: Callable[[list[Record]], Draft | None]) -> Record | None:
        """Append a trainer's decision: fenced like a fact, and at exactly the seq after the last.

        `choose` sees the records from its own `attempt_opened` on. Raises Fenced or Contended.
        """
        with self._one_at_a_time:
            return self._decide(choose)

    def refresh(self) -> list[Record]:
        """Read on to the end of the track; raises Fenced when a record on the way fences."""
        with self._one_at_a_time:
            return list(self._refresh())

    def _append(self, draft: Draft, sources: frozenset[str]) -> Record | None:
        self._check_fence()
        self._check_whole()
        for record in self.seen:
            if record.uid == draft.uid:
                return record
            if withdraws(record, sources):
                return None
        walk = Walk(
            draft=draft,
            at=self._now(),
            seq=self._seq,
            prev_sha256=self._prev_sha256,
            authority=self.authority,
            sources=sources,
        )
        done = drive(self._store, self.name, walk, met=self._meet, sleep=self._sleep)
        self._check_fence()
        if done.outcome is Outcome.ABANDONED:
            return None
        return done.record

    def _decide(self, choose: Callable[[list[Record]], Draft | None]) -> Record | None:
        self._check_fence()
        self._check_whole()
        for _ in range(DECISIONS_MAX):
            draft = choose(self._refresh())
            if draft is None:
                return None
            claim = Claim(draft=draft, at=self._now(), seq=self._seq, prev_sha256=self._prev_sha256)
            done = drive(self._store, self.name, claim, sleep=self._sleep)
            if done.outcome is Outcome.APPENDED:
                self._meet(done.record)
                return done.record
        raise Contended(
            f"A trainer's decision for {self.name} lost its place {DECISIONS_MAX} times in a row; "
            "nothing was written."
        )

    def _refresh(self) -> list[Record]:
        self._check_fence()
        for _ in range(RECORDS_MAX):
            data = self._store.get(log_key(self.name, self._seq), RECORD_BYTES_MAX)
            if data is None:
                return self.seen
            self._meet(parse(data, seq=self._seq))
            self._check_fence()
        raise TrackBroken(f"{self.name} has more than {RECORDS_MAX} records.")

    def _check_whole(self) -> None:
        """Raise TrackBroken when records lie behind a gap, as of `Track`: one may fence this launch."""
        if self._is_whole:
            return
        last = last_seq(self._store, self.name)
        if last >= self._seq:
            self._refresh()
        if last >= self._seq:
            raise lost_record(self.name, self._seq, last)
        self._is_whole = True

    def _read_opened(self, opened_seq: int) -> None:
        """Read the own `attempt_opened`: from any later record, what fences could be missed."""
        data = self._store.get(log_key(self.name, opened_seq), RECORD_BYTES_MAX)
        record = None if data is None else parse(data, seq=opened_seq)
        expected = (Kind.ATTEMPT_OPENED, self.authority.attempt_id)
        if record is None or (record.kind, record.attempt_id) != expected:
            raise TrackBroken(
                f"{self.name} has {record.kind if record else 'nothing'} at record {opened_seq}, "
                f"where attempt {self.authority.attempt_id} should have been opened; nothing is "
                "written."
            )
        self._meet(record)

    def _meet(self, record: Record) -> None:
        """Take in a record of the track, in order; remember it when it fences."""
        if self.seen:
            check_chain(self.name, self.seen[-1], record)
        self.seen.append(record)
        self._seq = record.seq + 1
        self._prev_sha256 = record.sha256
        if self._fenced_by is None and fences(record, self.authority):
            self._fenced_by = record

    def _check_fence(self) -> None:
        if self._fenced_by is None:
            return
        record = self._fenced_by
        raise Fenced(
            f"Attempt {self.authority.attempt_id}, launch {self.authority.launch_id}, is fenced by "
            f"record {record.seq} ({record.kind}) of {self.name}; it exits and writes nothing more."
        )

"""A track in an object store: read it, and append to it by the rules of `append`.

The effects are thin: every step is one get or one create of `<track>/log/<seq:012d>.json`. Records
never change, so what was read once is kept; a reader asks only for what comes after, and of a store
that is not local for many records of a long track at once. How a gang appends, which can be fenced, is
`trainer_track`.
"""

from __future__ import annotations

import re
import time
import zlib
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

from tracks_dagster.track.append import Claim, Create, Created, Done, Outcome, Reply, Request, Walk
from tracks_dagster.track.errors import (
    Contended,
    OutcomeUnknown,
    RecordNewer,
    StoreUnavailable,
    TrackBroken,
)
from tracks_dagster.track.json_text import RECORD_BYTES_MAX
from tracks_dagster.track.map_in_order import map_in_order
from tracks_dagster.track.names import CODES, HISTORIES, PROJECTS, RUNS, STUDIES
from tracks_dagster.track.ports import Clock, ObjectStore, local_path
from tracks_dagster.track.records import Draft, Record, parse
from tracks_dagster.track.unforeseen import as_broken

# --- track gaps -----------------------------------------------------------------------------------
#
# Whether a track has lost a record: what lies behind the gap can be listed, and is not read.
#
# Who appends asks it once, before the first append: a record in the gap would be another past than the
# one that lies behind it, and what was lost could not be put back.


def last_seq(store: ObjectStore, name: str) -> int:
    """Return the greatest seq that a list of the track shows, -1 without one: what lies behind a gap
    too. A list may lag, so nothing is appended by it."""
    prefix = f"{name}/log/"
    found = (_LOG_NAME.fullmatch(key.removeprefix(prefix)) for key in store.list(prefix))
    return max((int(match[1]) for match in found if match), default=-1)


def lost_record(name: str, seq: int, last: int) -> TrackBroken:
    """Return what is raised instead of an append into the gap, where records up to `last` are there."""
    return TrackBroken(
        f"{name} has lost its record {seq}: records up to {last} lie in the store, so it was there. "
        "Nothing was written. Put the lost record back from a backup or the bucket's versions; `tracks "
        "fsck` shows what else is missing, `tracks explain` what is known without it."
    )


_LOG_NAME = re.compile(r"([0-9]{12})\.json")


TRIES_AT_ONE_SEQ_MAX = 8  # creations whose outcome stays open before the store counts as down
BACKOFF_S_MIN = 0.1  # before the second creation at one seq, doubled before each one after it
BACKOFF_S_MAX = 2.0  # so that 8 tries last at most 7.1 s: a burst of 503s ends, a grace does not
DECISIONS_MAX = 64  # places lost in a row before a decision gives up; each is another's success
RECORDS_MAX = 1_000_000  # no track is ever that long; a bound for the reading loop
AHEAD = 8  # records of a long track that a reader asks a far store for at once
AHEAD_AFTER = 64  # read one by one first: an eighth as many may then be asked for in vain


Sleep = Callable[[float], None]  # seconds


def log_key(track: str, seq: int) -> str:
    """Return the key of the record `seq` of `track`."""
    return f"{track}/log/{seq:012d}.json"


def code_diff_key(run_id: str, sha256: str) -> str:
    """Return the key of the diff of the code that a run was declared with."""
    return f"{RUNS}{run_id}/code/{sha256}.diff"


LOG_OBJECTS = "logs/"  # below the folder of an attempt
_LOG = re.compile(r"rank-(?P<rank>\d+)\.(?P<sha256>[0-9a-f]{64})\.log")


def log_object(folder: str, rank: int, sha256: str) -> str:
    """Return the key of what a rank printed. folder: of its attempt."""
    return f"{folder}{LOG_OBJECTS}rank-{rank}.{sha256}.log"


def rank_of_log(key: str) -> tuple[int, str] | None:
    """Return the rank and the sha256 of a key of `log_object`; None for any other key."""
    found = _LOG.fullmatch(key.rpartition("/")[2])
    return None if found is None else (int(found["rank"]), found["sha256"])


def packages_key(run_id: str, sha256: str) -> str:
    """Return the key of the list of packages that an attempt ran with: name==version lines."""
    return f"{RUNS}{run_id}/packages/{sha256}.txt"


def code_key(run_id: str, sha256: str) -> str:
    """Return the key of stored code that a run trains: a tar."""
    return f"{RUNS}{run_id}/trainer/{sha256}.tar"


def certificate_report_key(code_sha256: str, sha256: str) -> str:
    """Return the key of the report that a certificate names."""
    return f"{CODES}{code_sha256}/reports/{sha256}"


def project_code_key(name: str, sha256: str) -> str:
    """Return the key of the files of a stored version of a project: a tar."""
    return f"{PROJECTS}{name}/code/{sha256}.tar"


def project_diff_key(name: str, sha256: str) -> str:
    """Return the key of what a stored version has beside its commit."""
    return f"{PROJECTS}{name}/code/{sha256}.diff"


def history_chunk_key(name: str, sha256: str) -> str:
    """Return the key of attempts that a record of the history names."""
    return f"{HISTORIES}{name}/chunks/{sha256}.jsonl.gz"


def history_curves_key(name: str, sha256: str) -> str:
    """Return the key of a segment of the journal of one of these attempts."""
    return f"{HISTORIES}{name}/curves/{sha256}.jsonl.gz"


def history_uids_key(name: str, sha256: str) -> str:
    """Return the key of the identities of these attempts."""
    return f"{HISTORIES}{name}/uids/{sha256}"


def history_nodes_key(name: str, sha256: str) -> str:
    """Return the key of what a record of the history says of nodes."""
    return f"{HISTORIES}{name}/nodes/{sha256}.jsonl.gz"


def study_code_key(name: str, sha256: str) -> str:
    """Return the key of the stored code that every trial of a study trains: a tar."""
    return f"{STUDIES}{name}/code/{sha256}.tar"


class Track:
    """One track. Made for several processes, and safe for several threads of one: what was read is
    replaced by a longer list, never changed, and no thread waits for another's store.

    first: the seq of the first record that is read. It has to be there, and "all records" are those
    from it on.
    """

    def __init__(
        self,
        store: ObjectStore,
        name: str,
        *,
        now: Clock,
        sleep: Sleep = time.sleep,
        first: int = 0,
    ) -> None:
        self.name = name
        self._first = first
        self._store = store
        self._now = now
        self._sleep = sleep
        self._records: list[Record] = []
        self._is_whole = False  # nothing lies behind a gap: asked before the first append

    @property
    def known(self) -> list[Record]:
        """The records read so far, in order."""
        return self._records

    def refresh(self) -> list[Record]:
        """Read what was appended since, and return all records.

        Raises TrackBroken when a record does not parse or does not chain to the one before.
        """
        records = self._records
        found: list[Record] = []
        try:
            after = records[-1] if records else None
            for record in read_records(self._store, self.name, after=after, first=self._first):
                found.append(record)
        finally:  # what comes before a broken record holds
            records = self._keep([*records, *found]) if found else records
        return records

    def note(self, draft: Draft) -> Record:
        """Append a note, alert or eval's end: it carries no attempt's authority and always lands.

        Safe to repeat with the same draft: its uid is found again. Raises TrackBroken, as all that
        appends, when records lie behind a gap.
        """
        self.refresh()
        self._check_whole()
        records = self._records
        if (landed := next((r for r in records if r.uid == draft.uid), None)) is not None:
            return landed
        done = self._drive(
            Walk(
                draft=draft,
                at=self._now(),
                seq=self._first + len(records),
                prev_sha256=records[-1].sha256 if records else None,
            )
        )
        return done.record

    def decide(self, choose: Callable[[list[Record]], Draft | None]) -> Record | None:
        """Append what `choose` makes of all records, at exactly the seq after the last of them.

        `choose` is asked again after every lost place; None means that nothing is left to do.
        Raises Contended when the place was lost 64 times in a row.
        """
        for _ in range(DECISIONS_MAX):
            records = self.refresh()
            draft = choose(records)
            if draft is None:
                return None
            self._check_whole()
            claim = Claim(
                draft=draft,
                at=self._now(),
                seq=self._first + len(records),
                prev_sha256=records[-1].sha256 if records else None,
            )
            done = self._drive(claim)
            if done.outcome is Outcome.APPENDED:
                return done.record
        raise Contended(
            f"A decision for {self.name} lost its place {DECISIONS_MAX} times in a row; "
            "nothing was written, the next tick decides again."
        )

    def append_after(self, head: Record, draft: Draft) -> Record | None:
        """Append a decision right after `head`, the newest record that it was made on.

        None when another record came first: then nothing was written. Reads nothing that is known.
        """
        self._check_whole()
        known = self._records
        claim = Claim(draft=draft, at=self._now(), seq=head.seq + 1, prev_sha256=head.sha256)
        done = self._drive(claim)
        if done.outcome is not Outcome.APPENDED:
            return None
        if self._first + len(known) == done.record.seq:
            self._keep([*known, done.record])
        return done.record

    def _check_whole(self) -> None:
        """Raise TrackBroken when records lie behind a gap: an append would fill it with another past.

        Once in a process and track; a list decides nothing but this refusal.
        """
        if self._is_whole:
            return
        last = last_seq(self._store, self.name)
        if last >= self._first + len(self._records):
            self.refresh()
        following = self._first + len(self._records)
        if last >= following or following == self._first > 0:
            raise lost_record(self.name, following, last)
        self._is_whole = True

    def _keep(self, records: list[Record]) -> list[Record]:
        """Remember what was read, unless another thread read more meanwhile; return it."""
        if len(records) > len(self._records):
            self._records = records
        return records

    def _drive(self, machine: Walk | Claim) -> Done:
        return drive(self._store, self.name, machine, sleep=self._sleep)


def read_records(
    store: ObjectStore, name: str, *, after: Record | None = None, first: int = 0
) -> Iterator[Record]:
    """Yield the records of a track from `first` on, or those that follow `after`, checking the chain
    as they come."""
    previous = after
    seqs = range(after.seq + 1 if after else first, RECORDS_MAX)
    with closing(_stored(store, name, seqs)) as stored:
        for seq in seqs:
            with as_broken(f"Record {seq} of {name} cannot be read"):
                data = next(stored)
                if data is None:
                    return
                before = previous.sha256 if previous is not None else None
                if previous is None and seq > 0:  # what it follows was not read
                    before = parse(data, seq=seq).prev_sha256
                previous = _read(name, before, data, seq)
            yield previous


def _stored(
    store: ObjectStore, name: str, seqs: Sequence[int]
) -> Generator[bytes | None, None, None]:
    """Yield what is stored of each record, in order, None where nothing is; ask for some ahead of
    their turn where the store is far and the reading has become a long one."""

    def get(seq: int) -> bytes | None:
        return store.get(log_key(name, seq), RECORD_BYTES_MAX)

    if local_path(store.url) is not None:
        yield from map(get, seqs)
        return
    yield from map(get, seqs[:AHEAD_AFTER])
    with ThreadPoolExecutor(AHEAD, thread_name_prefix="records") as threads:
        yield from map_in_order(threads, get, seqs[AHEAD_AFTER:], at_once=AHEAD)


def check_chain(name: str, previous: Record | None, record: Record) -> None:
    """Raise TrackBroken unless `record` names the sha256 of the record before it."""
    expected = previous.sha256 if previous is not None else None
    _check_follows(name, record.seq, expected, record.prev_sha256)


def read_record(name: str, prev_sha256: str | None, data: bytes, seq: int) -> Record:
    """Return the record that `data` stores after one of that sha256.

    Raises RecordNewer where only the chain could be checked, and holds; else TrackBroken.
    """
    try:
        record = parse(data, seq=seq)
    except RecordNewer as error:
        _check_follows(name, seq, prev_sha256, error.prev_sha256)
        raise
    _check_follows(name, seq, prev_sha256, record.prev_sha256)
    return record


def _read(name: str, prev_sha256: str | None, data: bytes, seq: int) -> Record:
    """Return the record; TrackBroken and RecordNewer name the track and what to ask next."""
    try:
        return read_record(name, prev_sha256, data, seq)
    except TrackBroken as error:
        run_id = name.removeprefix(RUNS)
        shown = f": `tracks explain {run_id}` shows them" if name != run_id else ""
        before = f"{error} The records of {name} before it still hold{shown}"
        if isinstance(error, RecordNewer):
            raise RecordNewer(f"{before}.") from error
        raise TrackBroken(
            f"{before}; `tracks fsck` shows what is wrong and what to restore."
        ) from error


def _check_follows(name: str, seq: int, expected: str | None, found: str | None) -> None:
    if found != expected:
        raise TrackBroken(
            f"The chain of {name} breaks at record {seq}: it follows {found}, the record before it "
            f"is {expected}. One of the two was edited after it was written."
        )


def drive(
    store: ObjectStore,
    name: str,
    machine: Walk | Claim,
    *,
    met: Callable[[Record], None] = lambda record: None,
    sleep: Sleep = time.sleep,
) -> Done:
    """Run an append to its end; `met` gets every record on the way, its own included.

    A creation is read back at once, and repeated after a pause when it left nothing. No pause
    stands elsewhere: a store repeats by itself what may be repeated without asking.
    Raises StoreUnavailable when the outcome at one seq is still open after 8 tries, TrackBroken at
    a record that does not follow the one before it.
    """
    tries, tried_seq = 0, machine.seq
    for _ in range(RECORDS_MAX):
        request = machine.request
        if request.seq != tried_seq:
            tries, tried_seq = 0, request.seq
        tries += isinstance(request, Create)
        if tries > TRIES_AT_ONE_SEQ_MAX:
            break
        if isinstance(request, Create) and tries > 1:
            sleep(backoff_s(machine.draft.uid, tries - 1))
        reply = _perform(store, name, request)
        record = None
        if isinstance(reply, bytes):
            record = _read(name, machine.prev_sha256, reply, request.seq)
        state = machine.advance(reply)
        if isinstance(state, Done):
            if state.outcome is not Outcome.TAKEN:
                met(state.record)
            return state
        if record is not None:
            met(record)
        machine = state
    raise StoreUnavailable(
        f"Cannot append to {name}: after {TRIES_AT_ONE_SEQ_MAX} tries the store has not said "
        f"whether record {tried_seq} was created. It may be in the track; the same append, "
        "repeated, finds it."
    )


def backoff_s(uid: str, tries: int) -> float:
    """Return the seconds between creation `tries` (1-based) at one seq and the one after it.

    0.1, 0.2, 0.4 … up to 2 s, less up to a half by a hash of `uid`: two writers whose conditional
    writes got in each other's way (a 409 for both) do not meet again.
    """
    full_s = min(BACKOFF_S_MIN * 2.0 ** (tries - 1), BACKOFF_S_MAX)
    return full_s * (1 - zlib.crc32(f"{uid}/{tries}".encode()) / 2**33)


def _perform(store: ObjectStore, name: str, request: Request) -> Reply:
    key = log_key(name, request.seq)
    if isinstance(request, Create):
        try:
            return Created.YES if store.create(key, request.data) else Created.TAKEN
        except OutcomeUnknown:
            return Created.UNKNOWN
    return store.get(key, RECORD_BYTES_MAX)

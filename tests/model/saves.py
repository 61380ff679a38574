"""The life of some checkpoints as several processes that share a folder lead it, and what must hold of
whatever a power loss leaves: the scenario of the power-loss proof.

The order of the store's calls is the product's: chunks, manifest, commit record; supersede record;
deletion record, then the deletions. The processes are real `LocalStore`s and real `Track`s. Their
calls overlap: one is stopped between two calls to the system while another runs to its end.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

from tests.fakes import FakeClock, FakeObjectStore
from tests.model.recording import Made, Named, Op, Opened, Promised, Synced, Trace
from tracks_dagster.stores import open_store
from tracks_dagster.stores.local import PARTIAL_FOLDER
from tracks_dagster.track.errors import TrackBroken
from tracks_dagster.track.names import AttemptRef, run_track
from tracks_dagster.track.ports import ObjectStore
from tracks_dagster.track.records import Draft, Json, Kind, Record, sha256_hex
from tracks_dagster.track.states.checkpoints import CheckpointRef, manifest_key, object_prefix
from tracks_dagster.track.track import Track, log_key, read_records

STORE = "store"  # the store's folder under the recorded one
UNREAD = f"{STORE}/{PARTIAL_FOLDER}"
RUN_ID = "r"
NAME = run_track(RUN_ID)
SAVES = 5
KEPT = 2  # commits that are not superseded
CHUNK_BYTES_MAX = 10_000  # a few pages

Values = frozenset[bytes | None]
_MISSING: Values = frozenset([None])


class Promises:
    """What all processes together were promised, as it is written down in the trace."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._values: dict[str, Values] = {}

    def may(self, key: str, value: bytes | None) -> None:
        """From now on `key` may also hold `value`."""
        self._tell(key, self._values.get(key, _MISSING) | {value})

    def does(self, key: str, value: bytes) -> None:
        """From now on `key` holds `value`."""
        self._tell(key, frozenset([value]))

    def _tell(self, key: str, values: Values) -> None:
        self._values[key] = values
        self._trace.add(Promised(key, values))


class TellingStore:
    """A store that writes down what its caller may rely on, at every call's begin and end."""

    def __init__(self, store: ObjectStore, promises: Promises) -> None:
        self._store = store
        self._promises = promises
        self.url, self.get, self.read_into = store.url, store.get, store.read_into
        self.list, self.folders = store.list, store.folders

    def create(self, key: str, data: bytes | memoryview) -> bool:
        """Create; also a refusal is a promise: what stands there is durable."""
        self._promises.may(key, bytes(data))
        created = self._store.create(key, data)
        found = self._store.get(key)
        assert found is not None
        self._promises.does(key, found)
        return created

    def put(self, key: str, data: bytes | memoryview) -> None:
        """Write."""
        self._promises.may(key, bytes(data))
        self._store.put(key, data)
        self._promises.does(key, bytes(data))

    def delete(self, key: str) -> None:
        """Remove; it may be gone from the first moment, and may come back for ever."""
        self._promises.may(key, None)
        self._store.delete(key)


class Process:
    """One process: a store and a track of its own."""

    def __init__(self, store: TellingStore, uids: Iterator[int]) -> None:
        self.store = store
        self._uids = uids
        self._track = Track(store, NAME, now=FakeClock(), sleep=lambda seconds: None)

    def note(self) -> None:
        """Append a note."""
        self._track.note(self._draft(Kind.NOTE, by="test", text="a note"))

    def beat(self, number: int) -> None:
        """Overwrite the one object that is overwritten."""
        self.store.put("daemon/heartbeat.json", b"%d" % number * 1000)

    def put_beside(self, step: int, data: bytes) -> None:
        """Write what another rank writes for the same checkpoint; nobody commits it here."""
        self.store.put(f"{_prefix(step)}chunks/{sha256_hex(data)}", data)

    def save(self, step: int, pieces: list[bytes], *, shared: bool) -> None:
        """Write chunks and manifest, then commit; shared: name a chunk of the newest commit too."""
        self._track.refresh()
        older = [c for c in _commits(self._track.known) if shared][-1:]
        keys = [key for commit in older for key in self._chunks(commit)[:1]]
        for piece in pieces:
            keys.append(f"{_prefix(step)}chunks/{sha256_hex(piece)}")
            self.store.put(keys[-1], piece)
        manifest = json.dumps({"chunks": keys}).encode()
        ref = CheckpointRef(RUN_ID, 1, step, _prefix(step), sha256_hex(manifest))
        self.store.put(manifest_key(ref), manifest)
        body = {"object_prefix": ref.object_prefix, "manifest_sha256": ref.manifest_sha256}
        self._track.note(self._draft(Kind.CHECKPOINT_COMMITTED, **body))

    def collect(self) -> None:
        """Supersede, then delete, the oldest commit beyond those kept; then remove what any deletion
        names, no matter who decided it."""
        for _ in range(2):
            self._track.decide(self._next_decision)
        for record in self._track.refresh():
            if record.kind is Kind.CHECKPOINT_DELETED:
                for key in _keys(record.body, "chunks"):
                    self.store.delete(key)

    def _next_decision(self, records: list[Record]) -> Draft | None:
        live = [c for c in _commits(records) if c not in _named(records, Kind.CHECKPOINT_DELETED)]
        if len(live) <= KEPT:
            return None
        if live[0] not in _named(records, Kind.CHECKPOINT_SUPERSEDED):
            body: dict[str, Json] = {"manifest_sha256": live[0].manifest_sha256}
            return self._draft(Kind.CHECKPOINT_SUPERSEDED, **body)
        kept = {key for commit in live[1:] for key in self._chunks(commit)}
        gone: list[Json] = [key for key in self._chunks(live[0]) if key not in kept]
        body = {
            "manifest_sha256": live[0].manifest_sha256,
            "chunks": [*gone, manifest_key(live[0])],
        }
        return self._draft(Kind.CHECKPOINT_DELETED, **body)

    def _chunks(self, commit: CheckpointRef) -> list[str]:
        manifest = self.store.get(manifest_key(commit))
        assert manifest is not None
        return _keys(json.loads(manifest), "chunks")

    def _draft(self, kind: Kind, **body: Json) -> Draft:
        return Draft(uid=f"{next(self._uids):032x}", kind=kind, body=body, attempt_id=1)


def live(root: Path, trace: Trace, seed: int) -> None:
    """Let one process save and one supersede and delete, others doing the same, writing beside them
    and appending notes in the middle of their calls: `seed` says which, and where."""
    chance, promises, uids = random.Random(seed), Promises(trace), iter(range(1_000_000))
    opened = open_store(str(root / STORE))
    promises.does("format.json", opened.get("format.json") or b"")

    def process() -> Process:
        store = open_store(str(root / STORE), probe=False)
        return Process(TellingStore(store, promises), uids)

    rank, collector = process(), process()
    for step in range(1, SAVES + 1):
        pieces = [chance.randbytes(chance.randint(1, CHUNK_BYTES_MAX)) for _ in range(2)]
        beside = chance.randbytes(100)
        meanwhile: list[Callable[[], None]] = [  # by others: the one who is stopped does nothing
            lambda: process().note(),
            lambda: process().collect(),
            partial(process().put_beside, step, beside),
            partial(process().beat, step),
        ]
        whens = [_of_record, _of_record, _of_folder, _of_partial, _of_sync]
        for act in chance.sample(meanwhile, k=3):
            trace.meanwhile(chance.choice(whens), act, skip=chance.randrange(3))
        rank.save(step, pieces, shared=step > 1 and chance.random() < 0.7)
        trace.meanwhile(_of_record, chance.choice(meanwhile[:2]), skip=chance.randrange(2))
        collector.collect()
        collector.beat(step)


def problem(files: Mapping[str, bytes], values: Mapping[str, Values]) -> str | None:
    """Return what is wrong with the store after a power loss, None when nothing is.

    values: what each key must hold one of.
    """
    objects = {
        path.removeprefix(f"{STORE}/"): data
        for path, data in files.items()
        if path.startswith(f"{STORE}/") and not path.startswith(UNREAD)
    }
    for key, allowed in values.items():
        if objects.get(key) not in allowed:
            found = objects.get(key)
            return f"{key} is {'missing' if found is None else 'not what was written'}"
    store = FakeObjectStore()
    store.objects = {key: data for key, data in objects.items() if not key.startswith("probe/")}
    try:
        records = list(read_records(store, NAME))
    except TrackBroken as error:
        return str(error)
    numbered = sorted(key for key in objects if key.startswith(f"{NAME}/log/"))
    if numbered != [log_key(NAME, seq) for seq in range(len(records))]:
        return f"{numbered[-1]} stands and one before it does not"
    return next(_damages(objects, records), None)


def _damages(objects: Mapping[str, bytes], records: list[Record]) -> Iterator[str]:
    """Yield what is wrong with the commits that no deletion stands for."""
    deleted = _named(records, Kind.CHECKPOINT_DELETED)
    for commit in _commits(records):
        if commit in deleted:
            continue
        manifest = objects.get(manifest_key(commit), b"")
        if sha256_hex(manifest) != commit.manifest_sha256:
            yield f"step {commit.step} is committed and its manifest is damaged or missing"
            return
        for key in _keys(json.loads(manifest), "chunks"):
            if sha256_hex(objects.get(key, b"")) != key.rpartition("/")[2]:
                yield f"step {commit.step} is committed and its chunk {key} is damaged or missing"


def _commits(records: list[Record]) -> list[CheckpointRef]:
    found = [r.body for r in records if r.kind is Kind.CHECKPOINT_COMMITTED]
    return [
        CheckpointRef(
            RUN_ID,
            1,
            int(str(body["object_prefix"]).rstrip("/").rpartition("-")[2]),
            str(body["object_prefix"]),
            str(body["manifest_sha256"]),
        )
        for body in found
    ]


def _named(records: list[Record], kind: Kind) -> list[CheckpointRef]:
    hashes = {record.body["manifest_sha256"] for record in records if record.kind is kind}
    return [commit for commit in _commits(records) if commit.manifest_sha256 in hashes]


def _keys(body: Mapping[str, Json], name: str) -> list[str]:
    keys = body[name]
    assert isinstance(keys, list)
    return [str(key) for key in keys]


def _prefix(step: int) -> str:
    return object_prefix(AttemptRef(RUN_ID, 1), "0" * 32, step)


def _of_record(op: Op) -> bool:
    return isinstance(op, Named) and "/log/" in op.path


def _of_folder(op: Op) -> bool:
    return isinstance(op, Made)


def _of_partial(op: Op) -> bool:
    return isinstance(op, Opened)


def _of_sync(op: Op) -> bool:
    return isinstance(op, Synced)

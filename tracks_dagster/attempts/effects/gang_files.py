"""What the pods of one gang put into the store: read, and kept. A pod is a node's part of a gang.

A gang's pods ask no control plane and nobody enters them, so the store is where both sides meet
 (`attempts.pod_files`). Beats are read at most every `BEAT_READ_S`, one small object a
pod; an end is read once its pod is ending, until all its ranks have theirs.
"""

from __future__ import annotations

import math
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor

from tracks_dagster.attempts.pod_files import (
    ASK_EVERY_S,
    POD_BYTES_MAX,
    SAVE,
    STACKS,
    Ask,
    PodBeat,
    PodEnd,
    SaveAnswer,
    ask_key,
    beat_key,
    decode_beat,
    decode_end,
    decode_save,
    decode_stacks,
    encode_ask,
    end_key,
    gang_prefix,
    save_key,
    stacks_key,
)
from tracks_dagster.reasons.hangs import Phase, StackDump
from tracks_dagster.stores.bounded import read_bounded
from tracks_dagster.track.errors import StoreError
from tracks_dagster.track.json_text import SMALL_BYTES_MAX
from tracks_dagster.track.names import AttemptRef
from tracks_dagster.track.ports import ObjectStore
from tracks_dagster.track.text.redact import Redact

BEAT_READ_S = 5.0  # as often as pods write them
FRESH_S = 45.0  # beyond that a pod, which puts a beat every ALIVE_EVERY_S, may not reach the store
SILENT_S_MAX = 300.0  # and beyond that it counts as one that makes no progress
READERS_MAX = 8  # objects read at once
# Pods look every ASK_EVERY_S, dump within 5 s, and put what they have.
STACKS_S_MAX = ASK_EVERY_S + 10.0
SAVE_S_MAX = ASK_EVERY_S + 10.0  # for the pod's word that rank 0 was asked; not for the save
POLL_S = 0.5


class GangFiles:
    """The files of one gang. seconds: a steady clock. Safe for several threads."""

    def __init__(
        self,
        store: ObjectStore,
        ref: AttemptRef,
        *,
        seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store, self._seconds = store, seconds
        self.ref = ref
        self._lock = threading.Lock()
        self._beats: dict[str, PodBeat] = {}
        self._newest_beat: dict[
            str, tuple[str, float]
        ] = {}  # by uid: its newest `at`, and when that was new
        self._ends: dict[str, PodEnd] = {}
        self._read_at_s = -math.inf

    def any_evidence(self) -> bool:
        """Whether anything of a gang was ever written; one request, for what is in no cache."""
        return not {"gang", "pods"}.isdisjoint(self._store.folders(self.ref.folder))

    def pods(self) -> set[str]:
        """Return the uids of the pods that wrote anything."""
        return set(self._store.folders(gang_prefix(self.ref)))

    def read(self, living: Iterable[str], ending: Iterable[str], *, at_once: bool = False) -> None:
        """Read the beats of the living pods and the ends of the others, where that is due.

        A store that fails now leaves what was read before: the next call is not far.
        """
        with self._lock:
            now_s = self._seconds()
            if not at_once and now_s - self._read_at_s < BEAT_READ_S:
                return
            self._read_at_s = now_s
            beats = {uid: beat_key(self.ref, uid) for uid in living}
            unread = [uid for uid in ending if not _is_whole(self._ends.get(uid))]
            ends = {uid: end_key(self.ref, uid) for uid in unread}
            found = _read_all(self._store, {*beats.values(), *ends.values()})
            for uid, key in beats.items():
                if (beat := decode_beat(found.get(key))) is not None:
                    self._beats[uid] = beat
                    if beat.at and self._newest_beat.get(uid, ("", 0.0))[0] != beat.at:
                        self._newest_beat[uid] = (beat.at, now_s)
            for uid, key in ends.items():
                if (end := decode_end(found.get(key))) is not None:
                    self._ends[uid] = end

    def read_soon(self) -> None:
        """Read at the next call, however soon it comes."""
        with self._lock:
            self._read_at_s = -math.inf

    @property
    def beats(self) -> dict[str, PodBeat]:
        """Pod uid → its newest beat read."""
        with self._lock:
            return dict(self._beats)

    @property
    def silent(self) -> frozenset[str]:
        """The uids of pods whose beats have stopped arriving."""
        with self._lock:
            now_s = self._seconds()
            silent_s = {uid: now_s - new_s for uid, (_, new_s) in self._newest_beat.items()}
        return frozenset(uid for uid, s in silent_s.items() if FRESH_S < s <= SILENT_S_MAX)

    @property
    def quiet(self) -> frozenset[str]:
        """The uids of pods whose newest beat is old, or says that a rank ends."""
        with self._lock:
            now_s = self._seconds()
            return frozenset(
                uid
                for uid, (_, new_s) in self._newest_beat.items()
                if now_s - new_s > FRESH_S
                or any(r.phase is Phase.ENDING for r in self._beats[uid].ranks)
            )

    @property
    def ends(self) -> dict[str, PodEnd]:
        """Pod uid → how its ranks ended, as far as the pod stored it."""
        with self._lock:
            return dict(self._ends)


def _is_whole(end: PodEnd | None) -> bool:
    return end is not None and all(rank.has_ended for rank in end.ranks)


def _read_all(store: ObjectStore, keys: Collection[str]) -> dict[str, bytes | None]:
    """Return the objects that could be read, several at once."""

    def read(key: str) -> tuple[str, bytes | None]:
        try:
            return key, read_bounded(store, key, POD_BYTES_MAX)
        except StoreError:
            return key, None

    if len(keys) < 2:
        return dict(map(read, keys))
    with ThreadPoolExecutor(max_workers=min(READERS_MAX, len(keys))) as readers:
        return dict(readers.map(read, keys))


def ask_to_save(
    store: ObjectStore,
    ref: AttemptRef,
    pod_uid: str,
    *,
    sleep: Callable[[float], None] = time.sleep,
    seconds: Callable[[], float] = time.monotonic,
) -> SaveAnswer | None:
    """Ask for a save, and return the answer of the pod of rank 0; None when there was none
    within SAVE_S_MAX: it may still find the wish."""
    ask = Ask(uid=uuid.uuid4().hex, what=SAVE)
    store.put(ask_key(ref), encode_ask(ask))
    answer_at = save_key(ref, pod_uid, ask.uid)
    give_up_at = seconds() + SAVE_S_MAX
    while True:
        answer = decode_save(store.get(answer_at, SMALL_BYTES_MAX))
        if answer is not None or seconds() >= give_up_at:
            return answer
        sleep(POLL_S)


def ask_for_stacks(
    store: ObjectStore,
    ref: AttemptRef,
    pods: Mapping[str, tuple[int, str]],
    ranks_per_node: int,
    *,
    clean: Redact,
    sleep: Callable[[float], None] = time.sleep,
    seconds: Callable[[], float] = time.monotonic,
) -> tuple[StackDump, ...]:
    """Return the dump of every rank, or why there is none; waits at most STACKS_S_MAX.

    pods: those that live, uid → (index, name).
    """
    ask = Ask(uid=uuid.uuid4().hex, what=STACKS)
    store.put(ask_key(ref), encode_ask(ask))
    answers: dict[str, tuple[StackDump, ...]] = {}
    give_up_at = seconds() + STACKS_S_MAX
    while True:
        for uid in pods.keys() - answers.keys():
            dumps = decode_stacks(store.get(stacks_key(ref, uid, ask.uid), POD_BYTES_MAX))
            if dumps is not None:
                answers[uid] = dumps
        if len(answers) == len(pods) or seconds() >= give_up_at:
            break
        sleep(POLL_S)
    found = [dump for dumps in answers.values() for dump in dumps]
    known = {dump.rank for dump in found}
    for uid, (index, name) in pods.items():
        if uid not in answers:
            ranks = range(index * ranks_per_node, (index + 1) * ranks_per_node)
            found += [_silent(rank, name) for rank in ranks if rank not in known]
    cleaned = [StackDump(rank=d.rank, text=clean(d.text), problem=d.problem) for d in found]
    return tuple(sorted(cleaned, key=lambda dump: dump.rank))


def _silent(rank: int, pod: str) -> StackDump:
    problem = f"its pod {pod} did not answer through the store within {STACKS_S_MAX:g} s"
    return StackDump(rank=rank, text="", problem=problem)

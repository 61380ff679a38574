"""What the pods of one gang put into the store, and what its launcher put there: read, and kept.

A gang's pods hold no credentials of the cluster and nobody enters them, so the store is where both
sides meet (`attempts.pod_files`). Beats are read at most every `BEAT_READ_S`, one small object a
pod; an end is read once its pod is ending, until all its ranks have theirs.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from tracks_dagster.attempts.pod_files import (
    PodBeat,
    PodEnd,
    beat_key,
    decode_beat,
    decode_end,
    end_key,
    gang_prefix,
)
from tracks_dagster.track.body_json import from_json, to_json
from tracks_dagster.track.errors import StoreError, TrackBroken
from tracks_dagster.track.ports import ObjectStore
from tracks_dagster.track.records import canonical_json

BEAT_READ_S = 5.0  # as often as pods write them
HEARD_S = 45.0  # beyond that a pod, which puts a beat every ALIVE_EVERY_S, may not reach the store
UNHEARD_S_MAX = 300.0  # and beyond that it counts as one that stands still
READERS_MAX = 8  # objects read at once
_STARTED = "started.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """What a launcher leaves of a start. kind: of the object that was made; at: text time; server: the
    API server's address.

    It outlives the Job: while it stands there, the attempt has had its gang.
    """

    kind: str
    nodes: int
    ranks_per_node: int
    at: str
    namespace: str = ""
    server: str = ""

    @property
    def ranks(self) -> int:
        """How many ranks the gang has."""
        return self.nodes * self.ranks_per_node


class GangFiles:
    """The files of one gang. seconds: a steady clock. Safe for several threads."""

    def __init__(
        self,
        store: ObjectStore,
        run_id: str,
        attempt_id: int,
        *,
        seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store, self._seconds = store, seconds
        self._run_id, self._attempt_id = run_id, attempt_id
        self._lock = threading.Lock()
        self._beats: dict[str, PodBeat] = {}
        self._heard: dict[
            str, tuple[str, float]
        ] = {}  # by uid: its newest `at`, and when that was new
        self._ends: dict[str, PodEnd] = {}
        self._read_at_s = -math.inf

    @property
    def prefix(self) -> str:
        """The folder of the whole attempt."""
        return f"runs/{self._run_id}/attempts/{self._attempt_id}"

    @property
    def started_key(self) -> str:
        """Where the start left its mark."""
        return gang_prefix(self._run_id, self._attempt_id) + _STARTED

    def started(self) -> Started | None:
        """Return what the start left; None where there was none, or nobody lived to write it."""
        data = self._store.get(self.started_key)
        try:
            return None if data is None else from_json(Started, json.loads(data))
        except (ValueError, TrackBroken):
            return None

    def put_started(self, started: Started) -> None:
        """Remember the start, as long as the attempt is remembered."""
        self._store.create(self.started_key, canonical_json(to_json(started)))

    def any_evidence(self) -> bool:
        """Whether anything of a gang was ever written; one request, for what is in no cache."""
        return not {"gang", "pods"}.isdisjoint(self._store.folders(f"{self.prefix}/"))

    def pods(self) -> set[str]:
        """Return the uids of the pods that wrote anything."""
        return set(self._store.folders(gang_prefix(self._run_id, self._attempt_id)))

    def read(self, living: Iterable[str], ending: Iterable[str], *, at_once: bool = False) -> None:
        """Read the beats of the living pods and the ends of the others, where that is due.

        A store that fails now leaves what was read before: the next call is not far.
        """
        with self._lock:
            now_s = self._seconds()
            if not at_once and now_s - self._read_at_s < BEAT_READ_S:
                return
            self._read_at_s = now_s
            beats = {uid: beat_key(self._run_id, self._attempt_id, uid) for uid in living}
            unread = [uid for uid in ending if not _is_whole(self._ends.get(uid))]
            ends = {uid: end_key(self._run_id, self._attempt_id, uid) for uid in unread}
            found = _read_all(self._store, {*beats.values(), *ends.values()})
            for uid, key in beats.items():
                if (beat := decode_beat(found.get(key))) is not None:
                    self._beats[uid] = beat
                    if beat.at and self._heard.get(uid, ("", 0.0))[0] != beat.at:
                        self._heard[uid] = (beat.at, now_s)
            for uid, key in ends.items():
                if (end := decode_end(found.get(key))) is not None:
                    self._ends[uid] = end

    def read_soon(self) -> None:
        """Read at the next call, however soon it comes."""
        with self._lock:
            self._read_at_s = -math.inf

    @property
    def beats(self) -> dict[str, PodBeat]:
        """Pod uid → where its ranks stood at the last reading."""
        with self._lock:
            return dict(self._beats)

    @property
    def unheard(self) -> frozenset[str]:
        """The uids of pods of which it is not known where their ranks stand now."""
        with self._lock:
            now_s = self._seconds()
            silent_s = {uid: now_s - heard_s for uid, (_, heard_s) in self._heard.items()}
        return frozenset(uid for uid, s in silent_s.items() if HEARD_S < s <= UNHEARD_S_MAX)

    @property
    def ends(self) -> dict[str, PodEnd]:
        """Pod uid → how its ranks ended, as far as it told."""
        with self._lock:
            return dict(self._ends)


def _is_whole(end: PodEnd | None) -> bool:
    return end is not None and all(rank.has_ended for rank in end.ranks)


def _read_all(store: ObjectStore, keys: Collection[str]) -> dict[str, bytes | None]:
    """Return the objects that could be read, several at once."""

    def read(key: str) -> tuple[str, bytes | None]:
        try:
            return key, store.get(key)
        except StoreError:
            return key, None

    if len(keys) < 2:
        return dict(map(read, keys))
    with ThreadPoolExecutor(max_workers=min(READERS_MAX, len(keys))) as readers:
        return dict(readers.map(read, keys))

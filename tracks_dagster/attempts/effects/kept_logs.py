"""What the store keeps of the logs of an attempt's ranks: their ends, cleaned when they were stored.

The whole log stays in the work folder of the machine that ran the gang
(`attempts.effects.local.rank_logs`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from tracks_dagster.attempts.pod_files import decode_end, end_key, gang_prefix
from tracks_dagster.reasons.evidence import Evidence, RankEnd
from tracks_dagster.track.bodies import AttemptPlaced, RankPlace
from tracks_dagster.track.body_json import from_json
from tracks_dagster.track.errors import TrackBroken
from tracks_dagster.track.placement import decode_places, places_key
from tracks_dagster.track.ports import ObjectStore
from tracks_dagster.track.records import sha256_hex
from tracks_dagster.track.states.run_state import AttemptState

CHANGED = "The stored evidence was changed after the verdict: run `tracks fsck`."


def kept_logs(store: ObjectStore, run_id: str, attempt: AttemptState) -> Mapping[int, str]:
    """Return the end of each rank's log, or the traceback of its last word, by rank.

    Of an attempt that has ended from its evidence. Of an open one on a cluster from the pods that
    have ended: what runs there is in the store only then. Ranks that left nothing are missing.
    """
    evidence, _ = read_evidence(store, attempt)
    ends = evidence.ranks if evidence is not None else _pod_ends(store, run_id, attempt.attempt_id)
    texts = {end.rank: end.log_tail or _traceback(end) for end in ends}
    return {rank: text for rank, text in sorted(texts.items()) if text}


def _pod_ends(store: ObjectStore, run_id: str, attempt_id: int) -> list[RankEnd]:
    pods = store.folders(gang_prefix(run_id, attempt_id))
    ends = [decode_end(store.get(end_key(run_id, attempt_id, uid))) for uid in pods]
    return [rank for end in ends if end is not None for rank in end.ranks]


def _traceback(end: RankEnd) -> str:
    return end.last_word.traceback_tail if end.last_word is not None else ""


def read_evidence(store: ObjectStore, attempt: AttemptState) -> tuple[Evidence | None, str | None]:
    """Return the stored evidence, or None and what is wrong with it."""
    if attempt.ended is None:
        return None, None
    data = store.get(attempt.ended.evidence_key)
    if data is None:
        return None, f"The evidence ({attempt.ended.evidence_key}) is not in the store."
    if sha256_hex(data) != attempt.ended.evidence_sha256:
        return None, CHANGED
    return from_json(Evidence, json.loads(data)), None


# --- placements -----------------------------------------------------------------------------------
#
# Reads where all ranks of an attempt's gang ran, from its record or from the object that it names.


def read_places(
    store: ObjectStore, run_id: str, attempt_id: int, placed: AttemptPlaced | None
) -> tuple[RankPlace, ...]:
    """Return the place of each rank; what the record holds where the object is lost."""
    if placed is None:
        return ()
    sha256 = placed.places_sha256
    if sha256 is None:
        return placed.ranks
    data = store.get(places_key(run_id, attempt_id, placed.launch_id, sha256))
    try:
        return placed.ranks if data is None else decode_places(data, sha256)
    except TrackBroken:
        return placed.ranks

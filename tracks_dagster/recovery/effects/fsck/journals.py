"""Check the journals of every attempt. No record names them by hash: they are too frequent for that.

What can be held against them: their segments follow one another to the byte, every line but the last
is whole, and they reach the step that the record of the attempt's end tells.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from tracks_dagster.recovery.effects.fsck.findings import Finding, FindingKind
from tracks_dagster.stores.journals import read_steps
from tracks_dagster.track.ports import ObjectStore
from tracks_dagster.track.states.run_state import AttemptState, RunState

_OFFSET = re.compile(r"[0-9]{1,18}")
RESTORE = "Restore the object from a backup or the bucket's versions if the steps matter"


def check_journals(store: ObjectStore, state: RunState) -> Iterator[Finding]:
    """Check the journal of every rank of every attempt that has ended; holds one segment at a time."""
    for attempt in state.attempts:
        if attempt.placed is None or attempt.ended is None:
            continue
        launch_id = attempt.placed.launch_id
        prefix = f"runs/{state.run_id}/attempts/{attempt.attempt_id}/{launch_id}/journal/"
        for rank in store.folders(prefix):
            yield from _check_segments(store, f"{prefix}{rank}/")
        yield from _check_end(store, state.run_id, attempt, prefix)


def _check_segments(store: ObjectStore, prefix: str) -> Iterator[Finding]:
    """Yield the first thing that is wrong with one rank's journal."""
    end, torn = 0, b""  # of the file on the gang's machine; what the segment before did not finish
    for key in store.list(prefix):
        name, data = key.removeprefix(prefix).removesuffix(".jsonl"), store.get(key)
        if not _OFFSET.fullmatch(name) or data is None:
            continue
        offset = int(name)
        if offset > end:
            yield Finding(
                kind=FindingKind.JOURNAL_GAP,
                where=key,
                meaning=f"The {offset - end} bytes of this journal before it are gone: segments are "
                "shipped one after the other, so one was deleted. The steps in it are not shown.",
                to_do=f"{RESTORE}; no decision rests on them.",
            )
            return
        lines = (torn + data[end - offset :]).split(b"\n")
        torn = lines.pop()
        end = max(end, offset + len(data))
        if (bad := next((line for line in lines if not _is_whole(line)), None)) is not None:
            yield Finding(
                kind=FindingKind.JOURNAL_EDITED,
                where=key,
                meaning=f"A line of this journal is no JSON ({bad[:40]!r}…) and whole lines follow "
                "it: it was edited or damaged after it was written. That line is not shown.",
                to_do=f"{RESTORE}, and find out who wrote there.",
            )
            return


def _check_end(
    store: ObjectStore, run_id: str, attempt: AttemptState, prefix: str
) -> Iterator[Finding]:
    assert attempt.placed is not None
    assert attempt.ended is not None
    told = attempt.ended.last_step
    if told is None:
        return
    steps = read_steps(store, run_id, attempt.attempt_id, attempt.placed.launch_id)
    found = steps[-1].step if steps else None
    if found is None or found < told:
        yield Finding(
            kind=FindingKind.JOURNAL_SHORT,
            where=prefix,
            meaning=f"The journal of attempt {attempt.attempt_id} of run {run_id} "
            f"{'holds no step' if found is None else f'ends at step {found}'}, and its record tells "
            f"step {told}: the end of it was deleted, or never left a machine that was taken away.",
            to_do="Nothing, where the machine is gone: the verdict and the count of steps stand in "
            f"the track. Else {RESTORE[0].lower()}{RESTORE[1:]}.",
        )


def _is_whole(line: bytes) -> bool:
    try:
        return not line or isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False

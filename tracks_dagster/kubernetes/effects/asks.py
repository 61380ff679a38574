"""What the ranks of a living gang are asked for, through the store: a save, a stack dump.

Nobody may enter a pod, and a pod holds no credentials of the cluster: so a wish is an object that
every pod of the gang looks for (`attempts.pod_files`), and a pod answers with another one. The
newest wish counts; a pod that has seen none for a few seconds misses the one before it, and its
asker is told.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping

from tracks_dagster.attempts.pod_files import (
    ASK_EVERY_S,
    SAVE,
    STACKS,
    Ask,
    SaveAnswer,
    ask_key,
    decode_save,
    decode_stacks,
    encode_ask,
    save_key,
    stacks_key,
)
from tracks_dagster.reasons.hangs import StackDump
from tracks_dagster.track.ports import ObjectStore
from tracks_dagster.track.text.redact import Redact

# Pods look every ASK_EVERY_S, dump within 5 s, and put what they have.
STACKS_S_MAX = ASK_EVERY_S + 10.0
SAVE_S_MAX = ASK_EVERY_S + 10.0  # for the pod's word that rank 0 was asked; not for the save
POLL_S = 0.5


def ask_to_save(
    store: ObjectStore,
    run_id: str,
    attempt_id: int,
    pod_uid: str,
    *,
    sleep: Callable[[float], None] = time.sleep,
    seconds: Callable[[], float] = time.monotonic,
) -> SaveAnswer | None:
    """Ask for a save, and return what the pod that holds rank 0 says to it; None when it said nothing
    within SAVE_S_MAX: it may still find the wish."""
    ask = Ask(uid=uuid.uuid4().hex, what=SAVE)
    store.put(ask_key(run_id, attempt_id), encode_ask(ask))
    answer_at = save_key(run_id, attempt_id, pod_uid, ask.uid)
    give_up_at = seconds() + SAVE_S_MAX
    while (told := decode_save(store.get(answer_at))) is None and seconds() < give_up_at:
        sleep(POLL_S)
    return told


def ask_for_stacks(
    store: ObjectStore,
    run_id: str,
    attempt_id: int,
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
    store.put(ask_key(run_id, attempt_id), encode_ask(ask))
    answers: dict[str, tuple[StackDump, ...]] = {}
    give_up_at = seconds() + STACKS_S_MAX
    while True:
        for uid in pods.keys() - answers.keys():
            told = decode_stacks(store.get(stacks_key(run_id, attempt_id, uid, ask.uid)))
            if told is not None:
                answers[uid] = told
        if len(answers) == len(pods) or seconds() >= give_up_at:
            break
        sleep(POLL_S)
    found = [dump for told in answers.values() for dump in told]
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

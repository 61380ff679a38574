"""Answers what the pods of a gang are asked through the store: to save soon, to tell where they stand.

A wish stands in one object and is known by its uid; each pod answers the newest one once.
"""

from __future__ import annotations

import os
import signal

from tracks_dagster.attempts import pod_files
from tracks_dagster.attempts.effects.local.stack_dumps import dump_stacks
from tracks_dagster.attempts.pod_files import Ask, SaveAnswer
from tracks_dagster.track.ports import ObjectStore
from tracks_dagster.track.records import canonical_json
from tracks_dagster.track.text.redact import Redact
from tracks_dagster.training.pods.environment import PodEnvironment
from tracks_dagster.training.pods.rank_files import read_ranks


class Asks:
    """Looks for wishes and obeys them. One thread calls `look`."""

    def __init__(self, store: ObjectStore, told: PodEnvironment, *, clean: Redact) -> None:
        self._store = store
        self._told = told
        self._clean = clean
        self._obeyed: str | None = None  # the uid of the newest wish that was obeyed
        self._answer: tuple[str, bytes] | None = None  # key and bytes, until the store has them

    def look(self) -> None:
        """Obey a new wish, and answer. Raises StoreError; the next call goes on where this ended."""
        ask = pod_files.decode_ask(self._store.get(self._key))
        if ask is not None and ask.uid != self._obeyed:
            self._obeyed = ask.uid  # first: what was done is not done again because of the store
            self._answer = self._obey(ask)
        if self._answer is not None:
            self._store.put(*self._answer)
            self._answer = None

    @property
    def _key(self) -> str:
        return pod_files.ask_key(self._told.run_id, self._told.attempt_id)

    def _obey(self, ask: Ask) -> tuple[str, bytes] | None:
        """Do what is asked; return the answer and where it belongs, None where others answer."""
        where = (self._told.run_id, self._told.attempt_id, self._told.pod_uid, ask.uid)
        if ask.what == pod_files.STACKS:
            ranks = read_ranks(self._told.work, self._told.all_ranks)
            processes = {r.rank: r.process for r in ranks.values() if r.process is not None}
            dumps = dump_stacks(self._told.work, processes, clean=self._clean)
            return pod_files.stacks_key(*where), pod_files.encode_stacks(dumps)
        if ask.what == pod_files.SAVE and self._told.first_rank == 0:  # one rank's wish is enough
            return pod_files.save_key(*where), pod_files.encode_save(self._save())
        return None  # of a newer version, or of another pod

    def _save(self) -> SaveAnswer:
        """Send SIGUSR1, which ends a process that does not catch it, to rank 0 if it does."""
        process = read_ranks(self._told.work, (0,))[0].process
        if process is None or not process.lives:
            return SaveAnswer(is_asked=False, problem="rank 0 does not live")
        if not process.catches(signal.SIGUSR1):
            return SaveAnswer(is_asked=False, problem="rank 0 does not listen yet, or any more")
        try:
            os.kill(process.pid, signal.SIGUSR1)
        except ProcessLookupError:
            return SaveAnswer(is_asked=False, problem="rank 0 went by itself")
        return SaveAnswer(is_asked=True)


# --- pod failure ----------------------------------------------------------------------------------
#
# How the pods of a gang learn that another one's rank failed, when no collective tells them.
#
# With NCCL a rank whose peer died waits until its time-out, and a pod cannot see another pod end. One
# object in the store says it. Without it the devices of all others would stand idle until the grace of
# the pods that their Job's controller deletes is over.


class GangFailure:
    """is_seen: another pod, or this one, told that the gang has failed."""

    def __init__(self, store: ObjectStore, told: PodEnvironment) -> None:
        self.is_seen = False
        self._store = store
        self._told = told
        self._key = pod_files.failed_key(told.run_id, told.attempt_id)

    def tell(self) -> None:
        """Tell the others. Raises StoreError; idempotent."""
        self._store.put(self._key, canonical_json({"pod": self._told.pod}))

    def look(self) -> None:
        """See whether a pod told. Raises StoreError; the next call looks again."""
        self.is_seen = self.is_seen or self._store.get(self._key) is not None

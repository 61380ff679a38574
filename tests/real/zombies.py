"""Rounds of a stopped writer against a newer one: `python -m tests.real.zombies URL SEED ROUNDS`.

A process of its own, warm and with one thread, so that a writer is forked in milliseconds. A round: a
writer of attempt 1 stops itself (SIGSTOP) before its n-th call to the store; the attempt is ended
and attempt 2 opened; a writer of attempt 2 commits; then the old one goes on, by chance together with
the newer one. Every round is a run of its own in one store. Prints what it did as JSON.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.bodies import FREE, ended, placed
from tests.histories import History
from tracks_dagster.stores import open_store
from tracks_dagster.track.append import Authority
from tracks_dagster.track.bodies import AttemptOpened, AttemptRestored, CheckpointCommitted
from tracks_dagster.track.body_json import to_json
from tracks_dagster.track.errors import Fenced
from tracks_dagster.track.names import AttemptRef, run_track
from tracks_dagster.track.ports import ObjectStore
from tracks_dagster.track.records import Draft, Kind, Record, canonical_json, sha256_hex
from tracks_dagster.track.states import run_fold
from tracks_dagster.track.states.checkpoints import CheckpointRef, manifest_key, object_prefix
from tracks_dagster.track.track import Track, read_records
from tracks_dagster.track.trainer_track import TrainerTrack
from tracks_dagster.wiring import new_uid, utc_now

CHUNKS = 2  # of each checkpoint, beside those that it names of the one before
COMMITS = 3
CALLS = 3 + 2 + COMMITS * (CHUNKS + 1 + 2)  # of an undisturbed writer: begin, restore, commits
# The call after a first commit; one reads `resume`.
FIRST_COMMITTED = 3 + 2 + 1 + CHUNKS + 1 + 2 + 1
OPENED_SEQ = 1
EXIT_DONE, EXIT_FENCED, EXIT_BROKEN = 0, 10, 11
WRITER_S_MAX = 60.0


class StoppingStore:
    """The calls of a writer to its store; it stops itself before call number `stop_before`."""

    def __init__(self, store: ObjectStore, stop_before: int) -> None:
        self.calls = 0
        self._store = store
        self._stop_before = stop_before

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._store, name)

        def call(*arguments: Any) -> Any:
            self.calls += 1
            if self.calls == self._stop_before:
                os.kill(os.getpid(), signal.SIGSTOP)
            return method(*arguments)

        return call


@dataclass(frozen=True, slots=True, kw_only=True)
class Writer:
    """One launch of one attempt: it places itself, restores, and commits three checkpoints."""

    store: Any
    run_id: str
    attempt_id: int
    launch_id: str
    opened_seq: int
    resume: CheckpointRef | None

    def write(self) -> None:
        """Do all of it; raises Fenced."""
        authority = Authority(attempt_id=self.attempt_id, launch_id=self.launch_id)
        track = TrainerTrack(
            self.store,
            run_track(self.run_id),
            opened_seq=self.opened_seq,
            authority=authority,
            now=utc_now,
        )
        track.append(self._draft(Kind.ATTEMPT_PLACED, placed(self.launch_id)))
        restored = AttemptRestored(
            launch_id=self.launch_id,
            step=self.resume.step if self.resume else 0,
            checkpoint=self.resume,
            cursor=0,
        )
        track.append(self._draft(Kind.ATTEMPT_RESTORED, restored))
        first = self.resume.step if self.resume else 0
        known, source = self._known()
        for step in range(first + 1, first + 1 + COMMITS):
            ref, named = self._store_checkpoint(step, known)
            commit = self._draft(Kind.CHECKPOINT_COMMITTED, self._commit(ref))
            assert track.append(commit, sources=source) is not None, "nothing was withdrawn"
            known, source = named[-1:], frozenset({ref.manifest_sha256})

    def _known(self) -> tuple[list[str], frozenset[str]]:
        if self.resume is None:
            return [], frozenset()
        manifest = json.loads(self.store.get(manifest_key(self.resume)))
        return manifest["chunks"][-1:], frozenset({self.resume.manifest_sha256})

    def _store_checkpoint(self, step: int, known: list[str]) -> tuple[CheckpointRef, list[str]]:
        prefix = object_prefix(AttemptRef(self.run_id, self.attempt_id), self.launch_id, step)
        chunks = list(known)
        for number in range(CHUNKS):
            data = f"{prefix} {number}".encode()
            key = f"{prefix}chunks/{sha256_hex(data)}"
            self.store.put(key, data)
            chunks.append(key)
        manifest = canonical_json({"chunks": chunks})
        ref = CheckpointRef(self.run_id, self.attempt_id, step, prefix, sha256_hex(manifest))
        self.store.put(manifest_key(ref), manifest)
        return ref, chunks

    def _commit(self, ref: CheckpointRef) -> CheckpointCommitted:
        return CheckpointCommitted(
            launch_id=self.launch_id,
            ref=ref,
            cursor=0,
            epoch=0,
            trigger="interval",
            total_bytes=0,
            written_bytes=0,
            blocking_s=0.0,
        )

    def _draft(self, kind: Kind, body: object) -> Draft:
        return Draft(uid=new_uid(), kind=kind, body=to_json(body), attempt_id=self.attempt_id)


def fork(url: str, stop_before: int, **fields: Any) -> int:
    """Start a writer with a store of its own; return its pid."""
    pid = os.fork()
    if pid:
        return pid
    code = EXIT_BROKEN
    try:
        Writer(store=StoppingStore(open_store(url, probe=False), stop_before), **fields).write()
        code = EXIT_DONE
    except Fenced:
        code = EXIT_FENCED
    except Exception:  # noqa: BLE001 the outermost edge of a process
        traceback.print_exc()
    finally:
        os._exit(code)


def wait(pid: int, *, stopped: bool) -> int | None:
    """Wait until a writer stops or ends; return its exit code, or None when it stopped."""
    deadline = time.monotonic() + WRITER_S_MAX
    while time.monotonic() < deadline:
        found, status = os.waitpid(pid, os.WNOHANG | (os.WUNTRACED if stopped else 0))
        if found and os.WIFSTOPPED(status):
            return None
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.0005)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    raise TimeoutError(f"A writer neither stopped nor ended within {WRITER_S_MAX} s.")


def play(store: ObjectStore, url: str, run_id: str, rng: random.Random, stop_before: int) -> str:
    """Play one round and check it; return how the old writer ended.

    Raises AssertionError with the track when anything is not as it must be.
    """
    History(run_id).declare().open().write_to(store)
    track = Track(store, run_track(run_id), now=utc_now)
    old = fork(
        url,
        stop_before,
        run_id=run_id,
        attempt_id=1,
        launch_id="old",
        opened_seq=OPENED_SEQ,
        resume=None,
    )
    old_code = wait(old, stopped=True)
    end_and_open(track)
    opened = track.known[-1]
    # The newer writer has committed before the old one goes on; how far it is then, chance decides.
    pause = rng.randrange(FIRST_COMMITTED, CALLS + 3)
    newer = fork(
        url,
        pause,
        run_id=run_id,
        attempt_id=2,
        launch_id="newer",
        opened_seq=opened.seq,
        resume=CheckpointRef(**opened.body["resume"]) if opened.body["resume"] else None,
    )
    newer_code = wait(newer, stopped=True)
    first, second = rng.sample([old, newer], 2)
    codes = {old: old_code, newer: newer_code}
    for pid in (first, second):
        if codes[pid] is None:
            os.kill(pid, signal.SIGCONT)
    for pid in (old, newer):
        if codes[pid] is None:
            codes[pid] = wait(pid, stopped=False)
    check(store, run_id, codes[old], codes[newer])
    return {EXIT_DONE: "done", EXIT_FENCED: "fenced"}[codes[old] or 0]


def end_and_open(track: Track) -> None:
    """Be the sensor: end attempt 1 and open attempt 2, while the old writer stands still."""

    def end(records: list[Record]) -> Draft | None:
        body = to_json(ended("hang"))
        draft = Draft(uid=new_uid(), kind=Kind.ATTEMPT_ENDED, body=body, attempt_id=1)
        return run_fold.check(run_fold.fold(records), draft)

    def open_next(records: list[Record]) -> Draft | None:
        state = run_fold.fold(records)
        assert state is not None
        body = AttemptOpened(
            cause="retry",
            decided_by="tests",
            decision="",
            config={},
            compute=state.declared.compute,
            snapshot=state.declared.snapshot,
            resume=state.resumes_from,
            debit=FREE,
        )
        draft = Draft(uid=new_uid(), kind=Kind.ATTEMPT_OPENED, body=to_json(body), attempt_id=2)
        return run_fold.check(state, draft)

    assert track.decide(end) is not None
    assert track.decide(open_next) is not None
    track.refresh()


def check(store: ObjectStore, run_id: str, old_code: int | None, newer_code: int | None) -> None:
    """Raise AssertionError unless the newer writer wrote all of its own, and no zombie anything."""
    records = list(read_records(store, run_track(run_id)))
    shown = "\n".join(
        f"{r.seq} {r.kind} a{r.attempt_id} {r.body.get('launch_id')}" for r in records
    )
    state = run_fold.fold(records)  # refuses what a zombie would have written
    assert state is not None
    end = next(r.seq for r in records if r.kind is Kind.ATTEMPT_ENDED)
    zombies = [r for r in records if r.seq > end and r.body.get("launch_id") == "old"]
    assert not zombies, shown
    assert newer_code == EXIT_DONE, f"the newer writer ended with {newer_code}\n{shown}"
    assert old_code in (EXIT_DONE, EXIT_FENCED), f"the old writer ended with {old_code}\n{shown}"
    commits = Counter(c.ref.attempt_id for c in state.checkpoints)
    assert commits[2] == COMMITS, shown
    assert (old_code == EXIT_DONE) == (commits[1] == COMMITS), shown
    for checkpoint in state.checkpoints:
        check_readable(store, checkpoint.ref, shown)


def check_readable(store: ObjectStore, ref: CheckpointRef, shown: str) -> None:
    """Raise AssertionError unless the manifest and every chunk that it names are whole."""
    manifest = store.get(manifest_key(ref))
    assert manifest is not None, shown
    assert sha256_hex(manifest) == ref.manifest_sha256, shown
    for key in json.loads(manifest)["chunks"]:
        chunk = store.get(key)
        assert chunk is not None, f"{key} is missing\n{shown}"
        assert sha256_hex(chunk) == key.rpartition("/")[2], shown


def main(url: str, seed: int, rounds: int) -> None:
    """Play rounds, the old writer stopped before another call in each."""
    ends: Counter[str] = Counter()
    began = time.monotonic()
    store = open_store(url)
    for number in range(rounds):
        rng = random.Random(f"{seed} {number}")
        stop_before = 1 + (seed + number) % (CALLS + 1)
        try:
            ends[play(store, url, f"r-{number}", rng, stop_before)] += 1
        except Exception:
            print(
                f"round {number} of seed {seed}: stopped before call {stop_before}", file=sys.stderr
            )
            raise
    print(json.dumps({"ends": ends, "seconds": round(time.monotonic() - began, 1)}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))

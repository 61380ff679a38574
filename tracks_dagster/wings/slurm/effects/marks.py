"""What the launcher leaves in the store of one gang: who may submit its job, which job it is.

    gang/submit-<n>.json    who submits for the nth time: created once, before sbatch is started
    gang/refused-<n>.json   that Slurm took no job for it
    gang/job.json           the gang's job; created once
    gang/cancelled.json     that a supervisor ended the job: Slurm names the account only

A submit without a job and without a refusal may have led to one: its name tells.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from tracks_dagster.attempts.pod_files import gang_prefix
from tracks_dagster.track.body_json import from_json, to_json
from tracks_dagster.track.errors import TrackBroken
from tracks_dagster.track.json_text import SMALL_BYTES_MAX, parse_json
from tracks_dagster.track.names import AttemptRef
from tracks_dagster.track.ports import ObjectStore
from tracks_dagster.track.records import canonical_json

SUBMITS_MAX = 1000  # of one attempt; a supervisor makes up to 90 of them

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Submit:
    """Somebody submits. token: in the job's comment; at: text time; host: where."""

    token: str
    at: str
    host: str
    nodes: int
    ranks_per_node: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The job of a gang. output: its file, on a file system that the nodes share."""

    id: str
    name: str
    nodes: int
    ranks_per_node: int
    at: str
    output: str = ""

    @property
    def uids(self) -> tuple[str, ...]:
        """The uids of its nodes' parts, as the job's script names them."""
        return tuple(f"slurm-{self.id}-{index}" for index in range(self.nodes))


class Marks:
    """The marks of one gang. All may raise StoreError."""

    def __init__(self, store: ObjectStore, ref: AttemptRef) -> None:
        self._store, self._prefix = store, gang_prefix(ref)
        self._known = 0  # submits that were seen; a mark is never deleted

    def job(self) -> Job | None:
        """Return the gang's job, None where nobody has noted one."""
        return self._read("job", Job)

    def put_job(self, job: Job) -> bool:
        """Note the job; False where another one was, which stays."""
        return self._create("job", job)

    def last_submit(self) -> tuple[int, Submit] | None:
        """Return the newest submit that Slurm has not refused, and its number; None where none is."""
        number = self.submits()
        found = self._read(f"submit-{number}", Submit)
        if found is None or self._has(f"refused-{number}"):
            return None
        return number, found

    def tokens(self) -> set[str]:
        """Return the token of each submit."""
        found = (self._read(f"submit-{n}", Submit) for n in range(1, self.submits() + 1))
        return {each.token for each in found if each is not None}

    def begin_submit(self, number: int, submit: Submit) -> bool:
        """Claim the submit of that number; False where another process has, or there were too many.

        number: the one after those that there were before the gang's job was looked for: a submit that
        came since may have led to one.
        """
        return number <= SUBMITS_MAX and self._create(f"submit-{number}", submit)

    def refuse_submit(self, number: int) -> None:
        """Note that Slurm took no job: the next submit need not wait."""
        self._store.put(self._key(f"refused-{number}"), canonical_json({}))

    def put_cancelled(self) -> None:
        """Note that a supervisor ends the job."""
        self._store.put(self._key("cancelled"), canonical_json({}))

    def is_cancelled(self) -> bool:
        """Whether a supervisor has ended the job."""
        return self._has("cancelled")

    def submits(self) -> int:
        """Return how many submits were begun."""
        while self._known < SUBMITS_MAX and self._has(f"submit-{self._known + 1}"):
            self._known += 1
        return self._known

    def _has(self, name: str) -> bool:
        return self._store.get(self._key(name), SMALL_BYTES_MAX) is not None

    def _key(self, name: str) -> str:
        return f"{self._prefix}{name}.json"

    def _create(self, name: str, value: object) -> bool:
        return self._store.create(self._key(name), canonical_json(to_json(value)))

    def _read(self, name: str, kind: type[T]) -> T | None:
        data = self._store.get(self._key(name), SMALL_BYTES_MAX)
        try:
            return None if data is None else from_json(kind, parse_json(data))
        except (ValueError, TrackBroken):
            return None

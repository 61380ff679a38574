"""Looks at runs: the tail of each journal, what the ledger and the policy say, the three lights."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from statistics import median

from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.ledger.prices import Prices
from tracks_dagster.ledger.timeline import accelerator_of
from tracks_dagster.review.lights import Lights
from tracks_dagster.scheduling.policy import SchedulingPolicy
from tracks_dagster.track.ports import ObjectStore
from tracks_dagster.track.records import Kind, Record, canonical_json, sha256_hex
from tracks_dagster.track.states import run_fold
from tracks_dagster.track.states.run_state import RunState
from tracks_dagster.wings.watch.health.effects.tails import Tails
from tracks_dagster.wings.watch.health.finding import Bounds
from tracks_dagster.wings.watch.health.tail import Tail
from tracks_dagster.wings.watch.health.three_lights import judge

USUAL_STEPS_MIN = 60  # that an attempt ran, to be compared with
USUAL_ATTEMPTS_MAX = 20  # the newest ones
USUALS_MAX = 4096  # kept by one process

_USUAL = """
select f.spent_steps_s, f.spent_data_s, f.last_step, coalesce(f.restored_step, 0) as first_step
from training_attempts a
join attempt_facts f on f.run_id = a.run_id and f.attempt_id = a.attempt_id
where a.config_sha256 = :config_sha256 and f.accelerator = :accelerator and f.devices = :devices
  and f.spent_steps_s is not null and f.last_step >= coalesce(f.restored_step, 0) + :steps_min
  and not (a.run_id = :run_id and a.attempt_id = :attempt_id)
order by a.opened_at desc, a.run_id, a.attempt_id
limit :attempts_max
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What was seen of a run: the tail of its open attempt's journal, and its lights."""

    tail: Tail
    lights: Lights


class Looks:
    """Looks at runs again and again, reading of each only what is new. Safe for several threads.

    Raises what the store and the ledger raise; a run's state is the caller's to read.
    """

    def __init__(self, tracks: Tracks, ledger: Ledger) -> None:
        self._tracks = tracks
        self._ledger = ledger
        self._tails = Tails(tracks.store)
        self._lock = threading.Lock()
        self._usual: dict[tuple[str, int], float | None] = {}

    def look(
        self,
        state: RunState,
        *,
        scheduling: SchedulingPolicy,
        prices: Prices | None,
        as_of: datetime | None = None,
    ) -> Look:
        """Return what is seen of a run now. as_of: the time to judge by; None: the tracks' clock."""
        tail = self._tails.read(state)
        bounds = Bounds(
            queue_s=scheduling.class_of(state.declared.workload_class).queue_s,
            prices=prices,
            usual_step_s=self._usual_step_s(state) if tail.steps else None,
        )
        return Look(tail=tail, lights=judge(state, tail, as_of or self._tracks.now(), bounds))

    def _usual_step_s(self, state: RunState) -> float | None:
        """Return what a step of this config took before on such devices; asked once an attempt."""
        attempt = state.open_attempt
        if attempt is None:
            return None
        key = (state.run_id, attempt.attempt_id)
        with self._lock:
            if key in self._usual:
                return self._usual[key]
        placed = attempt.placed
        rows = self._ledger.query(
            _USUAL,
            {
                "config_sha256": sha256_hex(canonical_json(attempt.opened.config)),
                "accelerator": accelerator_of(attempt),
                "devices": placed.world_size if placed else attempt.opened.compute.ranks,
                "steps_min": USUAL_STEPS_MIN,
                "run_id": state.run_id,
                "attempt_id": attempt.attempt_id,
                "attempts_max": USUAL_ATTEMPTS_MAX,
            },
        )
        found = [
            (row["spent_steps_s"] + (row["spent_data_s"] or 0.0))
            / (row["last_step"] - row["first_step"])
            for row in rows
        ]
        usual_s = median(found) if found else None
        with self._lock:
            if len(self._usual) >= USUALS_MAX:
                del self._usual[next(iter(self._usual))]
            self._usual[key] = usual_s
        return usual_s


def look_back(
    store: ObjectStore, records: Iterable[Record], attempt_ids: Collection[int], now: datetime
) -> dict[int, Lights]:
    """Return the lights of these attempts of a run: as of the last line of each that ended, else now.

    records: of its track, from the first on. An attempt without a journal has none. What rests on
    prices, a class or other runs is not judged. Reads no more of a journal than a first look does, and
    raises what the store raises.
    """
    tails, found = Tails(store), {}
    state: RunState | None = None
    for record in records:
        attempt_id = record.attempt_id
        if state and record.kind is Kind.ATTEMPT_ENDED and attempt_id in attempt_ids:
            tail = tails.read(state)
            if attempt_id is not None and tail.last_line_at is not None:
                found[attempt_id] = judge(state, tail, tail.last_line_at)
        state = run_fold.apply(state, record)
    attempt = state.open_attempt if state is not None else None
    if state is not None and attempt is not None and attempt.attempt_id in attempt_ids:
        found[attempt.attempt_id] = judge(state, tails.read(state), now)
    return found


def runs_that_go_on(ledger: Ledger) -> Iterator[str]:
    """Yield the runs that train, or are between two attempts, oldest first. Raises LedgerError."""
    rows = ledger.query(
        "select run_id from training_runs where state = 'running' order by declared_at, run_id", {}
    )
    yield from (row["run_id"] for row in rows)

"""How `join` begins and ends: from the environment to a placed launch, and to the last word."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import torch

from tracks_dagster.processes.process import name_process
from tracks_dagster.processes.stack_dumps import enable_dumps
from tracks_dagster.reasons.evidence import LastWord
from tracks_dagster.reasons.hangs import Phase
from tracks_dagster.stores import open_store
from tracks_dagster.track.errors import Fenced
from tracks_dagster.track.names import AttemptRef
from tracks_dagster.track.ports import ObjectStore
from tracks_dagster.track.reasons import TerminationReason
from tracks_dagster.track.records import Json, format_time
from tracks_dagster.track.states.stop_cause import CONVERGED_WORDS
from tracks_dagster.track.text.redact import Redact, redact
from tracks_dagster.training import alone
from tracks_dagster.training.environment import (
    AttemptPlace,
    device_of,
    place_from_json,
    place_to_json,
    read_environment,
)
from tracks_dagster.training.last_word import (
    ChildFailed,
    early_last_word_key,
    last_word,
    last_word_key,
    leave,
)
from tracks_dagster.training.launch import Launch, place, utc_now
from tracks_dagster.training.leaving import Finished
from tracks_dagster.training.pulse import Pulse
from tracks_dagster.training.ranks import Ranks

ALONE_FOLDER = Path(".tracks-notebook")  # where a script trains that no launcher started


class Farewell:
    """Leaves this rank's last word, as far as it is known by then where that belongs.

    step: the last step finished, None before the first. has_converged: the script says so.
    is_alone: there is no attempt around it, so rank 0 also records its end.
    """

    def __init__(self) -> None:
        self.rank = 0
        self.clean: Redact = redact
        self.step: int | None = None
        self.launch: Launch | None = None
        self._store: ObjectStore | None = None
        self._place: AttemptPlace | None = None
        self._launch_id: str | None = None
        self.is_alone = False
        self.has_converged = False

    @property
    def why_stopped(self) -> str:
        """Why the script leaves its loop before the last step, as far as it said; follows a clause."""
        return f", {CONVERGED_WORDS}" if self.has_converged else ""

    def know_place(self, store: ObjectStore, where: AttemptPlace) -> None:
        """Take in which attempt it is."""
        self._store, self._place = store, where

    def know_launch_id(self, launch_id: str) -> None:
        """Take in which launch of it."""
        self._launch_id = launch_id

    def completed(self, finished: Finished) -> None:
        """Leave how far the script came; what ends it otherwise later replaces that.

        Left as soon as the last step is saved: whatever ends the process then took nothing.
        """
        is_complete = finished.is_complete
        word = LastWord(
            rank=self.rank,
            reason=TerminationReason.COMPLETED if is_complete else TerminationReason.EARLY_STOPPED,
            exception=None,
            message=finished.words,
            traceback_tail="",
            step=self.step,
            at=format_time(utc_now()),
        )
        self._leave(word)

    def failed(self, error: BaseException) -> None:
        """Leave what ended the rank, unless a command of its own did. A fenced launch ships nothing
        more."""
        if not isinstance(error, ChildFailed):
            word = last_word(self.rank, error, step=self.step, at=utc_now(), clean=self.clean)
            self._leave(word)  # first: a gang that fails is not waited for; the journal is a file
        self.close(ship=not isinstance(error, Fenced))

    def close(self, *, ship: bool) -> None:
        """End the launch's journal; ship: what is left of it."""
        if self.launch is not None:
            self.launch.journal.close(ship=ship)
        if self.is_alone and self.rank == 0 and ship and self._store and self._place:
            alone.close(self._store, self._place.attempt_id)  # nobody else will

    def _leave(self, word: LastWord) -> None:
        if self._store is None or self._place is None:
            return
        run_id, attempt_id = self._place.run_id, self._place.attempt_id
        if self._launch_id is None:
            key = early_last_word_key(AttemptRef(run_id, attempt_id), uuid.uuid4().hex)
        else:
            key = last_word_key(AttemptRef(run_id, attempt_id), self._launch_id, self.rank)
        leave(self._store, key, word)


def join_launch(
    environ: Mapping[str, str],
    farewell: Farewell,
    *,
    config: Mapping[str, Json],
    folder: Path,
    is_parent: bool = False,
) -> Launch:
    """Return the placed launch that `environ` names; outside an attempt, one alone in `folder`.

    is_parent: another process computes; this one leaves the device to it.
    """
    environment = read_environment(environ)
    farewell.rank = environment.rank
    farewell.clean = partial(redact, secrets=environment.secrets)
    where = environment.attempt
    if where is not None:
        of = f"parent of rank {environment.rank}" if is_parent else f"rank {environment.rank}"
        name_process(f"tracks {where.ref.key} {of}: {Path(sys.argv[0]).name}")
        enable_dumps(where.work, environment.rank)
        _beat_start(where.work, environment.rank)
        farewell.know_place(open_store(where.store_url, probe=False), where)
    computes_on = device_of(environment)
    device = torch.device("cpu") if is_parent else computes_on
    if device.type == "cpu":
        torch.set_num_threads(environment.threads)
    ranks = Ranks(
        rank=environment.rank,
        world_size=environment.world_size,
        device=device,
        has_group=environment.has_group,
    )
    if where is None:
        farewell.is_alone = True
        where = place_from_json(
            ranks.from_first(
                lambda: place_to_json(alone.open_attempt(folder, config, ranks.world_size))
            )
        )
    store = open_store(where.store_url, probe=False)
    farewell.know_place(store, where)
    farewell.launch = place(
        store,
        where,
        ranks,
        environment,
        on_launch_id=farewell.know_launch_id,
        clean=farewell.clean,
        computes_on=computes_on if is_parent else None,
    )
    return farewell.launch


def _beat_start(work: Path, rank: int) -> None:
    pulse = Pulse(work, rank)
    pulse.beat(Phase.STARTING, 0)
    pulse.close()

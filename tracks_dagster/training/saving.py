"""Commits checkpoints: bytes durable first, then the journal, then the one record that counts.

Rank 0 writes for all (with DDP every rank holds the same state); the others wait, because the gang
must agree on what happened before the next step.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping

import torch

from tracks_dagster.core.bodies import Alert, CheckpointCommitted
from tracks_dagster.core.errors import CheckpointWriteFailed, NonFinite, StoreError
from tracks_dagster.core.records import Draft, Json, Kind, canonical_json, sha256_hex
from tracks_dagster.training import random_state
from tracks_dagster.training.checkpoint_files import Moment, Trained, Written, write_checkpoint
from tracks_dagster.training.chunk_writer import KnownChunks
from tracks_dagster.training.launch import Launch

COMMIT_METRICS_MAX = 16  # a commit record is small; the manifest holds all of them
METRIC_NAME_CHARS_MAX = 64
LAST_TRIGGERS = frozenset({"sigterm", "final"})  # nothing comes after these


class Saver:
    """Saves one launch's checkpoints. `saved_step`: the newest that can be resumed from."""

    def __init__(self, launch: Launch, trained: Trained, known: KnownChunks, *, step: int) -> None:
        self.saved_step = step
        self._launch = launch
        self._trained = trained
        self._known = known
        self._alerts: list[Draft] = []

    def save(
        self, step: int, trigger: str, data: Mapping[str, Json], metrics: Mapping[str, float]
    ) -> None:
        """Commit a checkpoint of `step`. Collective; blocks until it is committed or has failed.

        A save that failed is journalled and alerted, and training goes on; only when nothing comes
        after it (SIGTERM, the last step) it raises CheckpointWriteFailed. Raises Fenced, and NonFinite
        for weights that are.
        """
        launch = self._launch
        began = time.monotonic()
        self._check_finite(step)
        rng = launch.ranks.gather(random_state.capture())
        moment = Moment(
            run_id=launch.place.run_id,
            attempt_id=launch.place.attempt_id,
            launch_id=launch.launch_id,
            step=step,
            rng=rng,
            data=data,
            metrics=metrics,
            config_sha256=sha256_hex(canonical_json(dict(launch.opened.config))),
            environment_sha256=launch.environment_sha256,
        )
        failure = launch.ranks.from_first(lambda: self._try_commit(moment, trigger, began))
        blocking_s = round(time.monotonic() - began, 4)
        if failure is None:
            self.saved_step = step
            launch.journal.write("save", step=step, blocking_s=blocking_s)
            return
        launch.journal.write("save_failed", step=step, blocking_s=blocking_s, error=failure)
        if trigger in LAST_TRIGGERS:
            raise CheckpointWriteFailed(
                f"The {trigger} save of step {step} failed: {failure} Steps after "
                f"{self.saved_step} will be run again."
            )

    def _check_finite(self, step: int) -> None:
        """Raise NonFinite, on every rank, for weights that no run should resume from.

        The loss of a step is of the weights before it, so a finite one does not tell. Buffers may
        hold infinities on purpose (a mask does).
        """
        for name, parameter in self._trained.model.named_parameters():
            if not torch.isfinite(parameter).all():
                raise NonFinite(
                    f"Step {step} left NaN or infinity in {name}; it is not saved, the last "
                    f"checkpoint is of step {self.saved_step}."
                )

    def _try_commit(self, moment: Moment, trigger: str, began: float) -> str | None:
        """Commit on rank 0; return what failed, or None."""
        try:
            self._commit(moment, trigger, began)
        except StoreError as error:
            text = f"The {trigger} save of step {moment.step} failed: {error}"
            print(text, file=sys.stderr, flush=True)
            alert = Alert(rule="save_failed", text=text[:2000], data={"step": moment.step})
            self._alerts.append(self._launch.draft(Kind.ALERT, alert))
            self._send_alerts()
            return str(error)
        self._send_alerts()
        return None

    def _commit(self, moment: Moment, trigger: str, began: float) -> None:
        written = write_checkpoint(self._launch.store, self._trained, moment, self._known)
        self._launch.journal.ship()
        record = self._launch.append(
            self._draft(written, moment, trigger, began), sources=written.sources
        )
        if record is None:  # a checkpoint whose chunks it names was quarantined: write them anew
            self._known.forget()
            written = write_checkpoint(self._launch.store, self._trained, moment, self._known)
            self._launch.append(self._draft(written, moment, trigger, began))
        self._known.learn(written.ref.manifest_sha256, written.manifest.chunks)

    def _draft(self, written: Written, moment: Moment, trigger: str, began: float) -> Draft:
        names = [name for name in sorted(moment.metrics) if len(name) <= METRIC_NAME_CHARS_MAX]
        body = CheckpointCommitted(
            launch_id=moment.launch_id,
            ref=written.ref,
            cursor=moment.data["cursor"],
            epoch=moment.data["epoch"],
            trigger=trigger,
            total_bytes=written.total_bytes,
            written_bytes=written.written_bytes,
            blocking_s=round(time.monotonic() - began, 4),
            metrics={name: moment.metrics[name] for name in names[:COMMIT_METRICS_MAX]},
        )
        return self._launch.draft(Kind.CHECKPOINT_COMMITTED, body)

    def _send_alerts(self) -> None:
        """Append what has not landed yet; a store that is down gets it with the next save."""
        try:
            while self._alerts:
                self._launch.whole_track().note(self._alerts[0])
                del self._alerts[0]
        except StoreError as error:
            print(f"an alert waits for the next save: {error}", file=sys.stderr, flush=True)

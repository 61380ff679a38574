"""What a person changes for a run's next attempt: checked as when a run is declared, and recorded.

What is not named stays as it was for the attempt before. Nothing is written here; `manual_retry` opens
the attempt. Which checkpoints are kept belongs to the run and cannot be changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tracks_dagster.attempts.effects.opening.run_config import (
    COMPUTE_FIELDS,
    check_compute,
    check_own,
    check_ranks,
    checked_cadence,
)
from tracks_dagster.data.effects.own_trainer import FAMILY, trainer_name
from tracks_dagster.data.effects.snapshots import find_snapshot
from tracks_dagster.data.families import FAMILIES, resolve_config
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.retry.avoidance import own_compute
from tracks_dagster.track.bodies import CheckpointCadence, ComputeRequest, ConfigChange, SnapshotRef
from tracks_dagster.track.body_json import to_json
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.records import Json
from tracks_dagster.track.states.run_state import AttemptState, RunState, trainer_of


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptChanges:
    """What is to be different in the next attempt.

    config: keys of the config. compute: fields of a `ComputeRequest`. every_steps, every_s: of the
    cadence. snapshot_id: of the same dataset, its beginning suffices. trainer_source: a script.
    """

    config: Mapping[str, Json] = field(default_factory=dict)
    compute: Mapping[str, Any] = field(default_factory=dict)
    every_steps: int | None = None
    every_s: float | None = None
    snapshot_id: str | None = None
    trainer_source: bytes | None = None


NO_CHANGES = AttemptChanges()


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptPlan:
    """What the next attempt runs with. cadence, trainer: as in `AttemptOpened`."""

    config: Mapping[str, Json]
    compute: ComputeRequest
    cadence: CheckpointCadence | None
    snapshot: SnapshotRef
    trainer: str | None


def plan_attempt(
    tracks: Tracks, state: RunState, last: AttemptState, changes: AttemptChanges
) -> AttemptPlan:
    """Return what follows on `last` with `changes`; raises InvalidInput for one that cannot be made."""
    compute = _compute(last, changes)
    return AttemptPlan(
        config=_config(state, last, changes, ranks=compute.ranks),
        compute=compute,
        cadence=_cadence(state, last, changes),
        snapshot=_snapshot(tracks, last, changes),
        trainer=_trainer(state, last, changes),
    )


def differences(
    state: RunState, last: AttemptState, plan: AttemptPlan, *, why: str
) -> tuple[ConfigChange, ...]:
    """Return a change for each thing in which `plan` differs from what `last` ran with."""
    before, after = _facts(state, own_compute(last.opened), last.opened), _facts(state, None, plan)
    return tuple(
        ConfigChange(key=key, before=before.get(key), after=value, why=why)
        for key, value in after.items()
        if before.get(key) != value
    )


def _facts(state: RunState, compute: ComputeRequest | None, of: Any) -> dict[str, Json]:
    """Return everything of an `AttemptOpened` or an `AttemptPlan` that a person may change, by key."""
    asked = to_json(compute or of.compute)
    cadence = of.cadence or state.declared.cadence
    return {
        **of.config,
        **{f"compute.{name}": asked[name] for name in COMPUTE_FIELDS},
        "cadence.every_steps": cadence.every_steps,
        "cadence.every_s": cadence.every_s,
        "snapshot": of.snapshot.snapshot_id,
        "trainer": of.trainer or state.declared.trainer,
    }


def _compute(last: AttemptState, changes: AttemptChanges) -> ComputeRequest:
    before = own_compute(last.opened)
    launcher = changes.compute.get("launcher", before.launcher)
    if launcher != before.launcher:  # what was asked of the other place means nothing there
        before = ComputeRequest(launcher=launcher, ranks=before.ranks)
    compute = replace(before, **changes.compute)
    if changes.compute:
        check_ranks(compute.ranks)
        check_compute(compute)
    return compute


def _config(
    state: RunState, last: AttemptState, changes: AttemptChanges, *, ranks: int
) -> dict[str, Json]:
    """Return the config with the changes, and the accumulation that follows from them."""
    before, given = dict(last.opened.config), changes.config
    if not given and ranks == last.opened.compute.ranks:
        return before
    unknown = sorted(set(given) - set(before))
    if unknown and state.declared.trainer == FAMILY:
        raise InvalidInput(
            f"The config of {state.run_id} has no key {unknown[0]!r}; it has: "
            f"{', '.join(sorted(before))}."
        )
    if "accumulation" in given:
        raise InvalidInput(
            "accumulation follows from global_batch, micro_batch and the ranks: change micro_batch."
        )
    family = FAMILIES.get(state.declared.model_family)
    after = {**before, **given}
    if family is None:
        return after
    own = {key: after[key] for key in after if key not in family.keys and key != "accumulation"}
    for key in own.keys() & given.keys():
        check_own(key, given[key])
    keys = {key: after[key] for key in after if key in family.keys}
    return {**resolve_config(family, keys, ranks=ranks), **own}


def _cadence(
    state: RunState, last: AttemptState, changes: AttemptChanges
) -> CheckpointCadence | None:
    if changes.every_steps is None and changes.every_s is None:
        return last.opened.cadence
    before = last.opened.cadence or state.declared.cadence
    return checked_cadence(
        before.every_steps if changes.every_steps is None else changes.every_steps,
        before.every_s if changes.every_s is None else changes.every_s,
        may_be_off=True,  # one of them is given
    )


def _snapshot(tracks: Tracks, last: AttemptState, changes: AttemptChanges) -> SnapshotRef:
    if changes.snapshot_id is None:
        return last.opened.snapshot
    return find_snapshot(tracks, last.opened.snapshot.dataset, changes.snapshot_id)


def _trainer(state: RunState, last: AttemptState, changes: AttemptChanges) -> str | None:
    if changes.trainer_source is None:
        return last.opened.trainer
    if trainer_of(state, last) == FAMILY:
        raise InvalidInput(
            f"Training run {state.run_id} trains a family that ships, whose evals cannot read another "
            "trainer's weights; `tracks run --from RUN@STEP --trainer FILE.py` goes on from one of its "
            "checkpoints in a run of its own."
        )
    return trainer_name(state.run_id, changes.trainer_source)

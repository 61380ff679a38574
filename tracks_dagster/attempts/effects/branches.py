"""Branch a run: declare a new one that starts from a committed checkpoint of another.

Here is what it takes over from the source; `runs.declare` declares it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from tracks_dagster.attempts.effects.runs import RunRequest
from tracks_dagster.attempts.run_config import CLUSTER_FIELDS, COMPUTE_FIELDS
from tracks_dagster.holds.effects.holds import Holds
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.track.bodies import RetentionRule
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.records import Json
from tracks_dagster.track.states.checkpoints import CheckpointRef, checkpoint_at, parse_at
from tracks_dagster.track.states.run_state import RunState, find_at, trainer_of

_RULE = tuple(each.name for each in fields(RetentionRule))


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """What a branch starts from, and what it inherits of the attempt that wrote it.

    config: as remedied, without what follows from other keys. trainer: as in `RunDeclared`, and its
    script, None for a family's or one that the store has lost. fields: what else of a `RunRequest` is
    taken over. Not taken over: code, owner, intent and drills.
    """

    ref: CheckpointRef
    family: str
    config: Mapping[str, Json]
    snapshot_id: str | None
    fields: Mapping[str, Any]
    retention: RetentionRule
    trainer: str
    trainer_source: bytes | None

    def inherited_by(self, request: RunRequest, *, given: Collection[str]) -> RunRequest:
        """Return `request` with all that it leaves open taken from the source; its own values stand.

        given: names of fields of `RunRequest` and `RetentionRule` that a person chose; of the others
        only a config, a snapshot or a script that is there counts as chosen. Raises InvalidInput for
        another family, whose model could not load the weights, and where the source's script is lost
        and no other is given.
        """
        if request.family != self.family:
            raise InvalidInput(
                f"{checkpoint_at(self.ref)} is a checkpoint of family {self.family}, which "
                f"{request.family} cannot load; leave --family out."
            )
        script = request.trainer_source or self.trainer_source
        if script is None and self.trainer != "family":
            raise InvalidInput(
                f"The trainer of {self.ref.run_id}, {self.trainer}, is not in the store; give it with "
                "--trainer."
            )
        own = {name: getattr(request.retention, name) for name in _RULE if name in given}
        is_moved = "launcher" in given and request.launcher != self.fields["launcher"]
        left = {*given, *CLUSTER_FIELDS, "device_class", "pool"} if is_moved else given
        return replace(
            request,
            **{name: value for name, value in self.fields.items() if name not in left},
            retention=replace(self.retention, **own),
            config={**self.config, **request.config},
            snapshot_id=request.snapshot_id or self.snapshot_id,
            trainer_source=script,
            branched_from=self.ref,
        )


def find_origin(
    tracks: Tracks, at: str, *, run_id: str | None, attempt_id: int | None = None
) -> Origin:
    """Return what `RUN@STEP` offers to a branch; `run_id`: the branch's, where it has one already.

    attempt_id: whose checkpoint of that step; the newest attempt's that has one by default.

    Writes nothing. Raises UnknownRun for a run or step that is not there or may not be resumed from,
    InvalidInput for text that names no checkpoint, for one that descends from a source in quarantine,
    and for a run that exists and is no such branch.
    """
    source_id, step = parse_at(at)
    state = tracks.run(source_id)
    ref = find_at(state, step, attempt_id=attempt_id).ref
    branch = tracks.find_run(run_id) if run_id is not None else None
    _check_branch(branch, ref)
    hold = Holds(tracks).on_checkpoint(ref, state) if branch is None else None
    if hold is not None:
        raise InvalidInput(f"Nothing can branch from {at}: {hold.sentence}")
    writer = state.attempts[ref.attempt_id - 1]
    wrote, declared, trainer = writer.opened, state.declared, trainer_of(state, writer)
    return Origin(
        ref=ref,
        family=declared.model_family,
        config={key: value for key, value in wrote.config.items() if key != "accumulation"},
        snapshot_id=None if wrote.snapshot is None else wrote.snapshot.snapshot_id,
        fields={
            **{name: getattr(wrote.compute, name) for name in COMPUTE_FIELDS},
            "checkpoint_every_steps": declared.cadence.every_steps,
            "checkpoint_every_s": declared.cadence.every_s,
            "team": declared.team,
            "stage": declared.stage,
        },
        retention=declared.retention,
        trainer=trainer,
        trainer_source=None if trainer == "family" else tracks.store.get(trainer),
    )


def _check_branch(state: RunState | None, ref: CheckpointRef) -> None:
    if state is None or state.declared.branched_from == ref:
        return
    source = state.declared.branched_from
    what = (
        f"a branch of {checkpoint_at(source)} (attempt {source.attempt_id})"
        if source
        else "no branch"
    )
    raise InvalidInput(
        f"Training run {state.run_id} exists and is {what}; leave --from out to take it up, or "
        "choose another --run-id or --from-attempt."
    )

"""Branch a run: declare a new one that starts from a committed checkpoint of another.

Here is what it takes over from the source; `runs.declare` declares it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from tracks_dagster.attempts.ports import FoundCode
from tracks_dagster.attempts.recorded import as_archive, recorded_project, without_accumulation
from tracks_dagster.holds.effects.holds import Holds
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.projects.project import Project, known_values
from tracks_dagster.track.addressed import read_addressed
from tracks_dagster.track.bodies import CodeVersion, SnapshotRef
from tracks_dagster.track.declared_fields import inherited
from tracks_dagster.track.errors import InvalidInput, ObjectLost
from tracks_dagster.track.names import TRAINER_FAMILY
from tracks_dagster.track.records import Json
from tracks_dagster.track.states.checkpoints import CheckpointRef, checkpoint_at, parse_at
from tracks_dagster.track.states.run_state import RunState, code_of, find_at, program_of, trainer_of
from tracks_dagster.track.states.stop_cause import StopCause, describe_stop, stop_cause
from tracks_dagster.track.track import code_diff_key


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """What a branch starts from, and what it inherits of the attempt that wrote it.

    config: as remedied, without what follows from other keys. project: as its records have it;
    archive: its stored code, None for one that the store has lost and of a family of an older version;
    code, code_diff: the checkout that it is of, None of a script of an older version, which recorded
    another; folder: of the project. fields: what is inherited, by the name of its row in
    `track.declared_fields`. cut_off: how training was cut off there, in a sentence; None where it
    was not.
    """

    ref: CheckpointRef
    family: str
    config: Mapping[str, Json]
    snapshot: SnapshotRef | None
    fields: Mapping[str, Any]
    trainer: str
    project: Project
    archive: bytes | None
    code: CodeVersion | None
    code_diff: bytes | None
    folder: str | None
    cut_off: str | None

    def continued_by(self, code: FoundCode | CodeVersion, family: str) -> FoundCode:
        """Return the code that a branch trains: what was found, else that of the source.

        code: as of `preparing.prepare`. Raises InvalidInput for another project, whose model could not
        load the weights, and where the source's code is lost and no other is given.
        """
        if family != self.family:
            raise InvalidInput(
                f"{checkpoint_at(self.ref)} is a checkpoint of the project {self.family}, which "
                f"{family} cannot load; name no project, or a folder of yours whose tracks.yaml has "
                f"name: {self.family}."
            )
        if isinstance(code, FoundCode):
            if not code.project.is_open:
                return code
            # a script alone names no dataset: it goes on with the source's
            data = None if self.snapshot is None else self.snapshot.dataset
            return replace(code, project=replace(code.project, dataset=data))
        if self.archive is None:
            raise InvalidInput(
                f"The code of {self.ref.run_id}, {self.trainer}, is not in the store, or was changed "
                "there; give it with --trainer, or from the project's folder."
            )
        return FoundCode(
            project=self.project,
            archive=self.archive,
            folder=self.folder,
            code=self._code_by(code.package_version),
            code_diff=self.code_diff,
        )

    @property
    def is_of_family(self) -> bool:
        """Whether it was declared with a model family: the example of its name has the code now."""
        return self.trainer == TRAINER_FAMILY

    def _code_by(self, package_version: str) -> CodeVersion:
        """Return the checkout of the inherited code, for a run that this version declares.

        Its local changes are the branch's own object, where the source still has them.
        """
        if self.code is None:
            return CodeVersion(
                git_commit=None, branch=None, dirty=None, package_version=package_version
            )
        return replace(self.code, package_version=package_version, diff_sha256=None)

    def config_for(self, project: Project) -> dict[str, Json]:
        """Return the source's config, where the branch trains `project`.

        A script takes any key, and one of an older version had those of a model family too: what the
        project's file does not list is left out.
        """
        return known_values(project, self.config) if self.project.is_open else dict(self.config)

    def snapshot_for(self, project: Project) -> str | None:
        """Return the source's snapshot, where the branch trains on the same dataset."""
        if self.snapshot is None:
            return None
        is_same = project.dataset == self.snapshot.dataset
        return self.snapshot.snapshot_id if is_same else None


def find_origin(
    tracks: Tracks, at: str, *, run_id: str | None, attempt_id: int | None = None
) -> Origin:
    """Return what `RUN@STEP` offers to a branch; `run_id`: the branch's, where it has one already.

    attempt_id: whose checkpoint of that step; the newest attempt's that has one by default.

    Writes nothing. Raises UnknownRun for a run or step that is not there or may not be resumed from,
    InvalidInput for text that names no checkpoint, for one that descends from a source in quarantine,
    and for a run that exists and is another branch or none.
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
    code = None if program_of(state, writer) is None else code_of(state, writer)
    return Origin(
        ref=ref,
        family=declared.model_family,
        config=without_accumulation(wrote.config, declared.roles),
        snapshot=wrote.snapshot,
        fields=inherited(declared, wrote.compute),
        trainer=trainer,
        project=recorded_project(state, writer),
        archive=as_archive(trainer, _stored(tracks, trainer)),
        folder=declared.folder,
        cut_off=describe_stop(state, ref) if stop_cause(state, ref) is StopCause.CUT_OFF else None,
        code=code,
        code_diff=None
        if code is None or code.diff_sha256 is None
        else _stored(tracks, code_diff_key(state.run_id, code.diff_sha256)),
    )


def _stored(tracks: Tracks, key: str) -> bytes | None:
    """Return an object as it was stored; None where it is lost, and of a model family's code."""
    try:
        return None if key == TRAINER_FAMILY else read_addressed(tracks.store, key)
    except ObjectLost:
        return None


def _check_branch(state: RunState | None, ref: CheckpointRef) -> None:
    if state is None or state.declared.branched_from == ref:
        return
    source = state.declared.branched_from
    what = (
        f"a branch of {checkpoint_at(source)} (attempt {source.attempt_id})"
        if source
        else "not a branch"
    )
    raise InvalidInput(
        f"Training run {state.run_id} exists and is {what}; leave --from out to take it up, or "
        "choose another --run-id or --from-attempt."
    )

"""Runs of older versions that were declared with a model family, whose code was never stored.

An example of the family's name took its place: the same model under the same names, the same metrics.
The next attempt of such a run gets its code, stored and recorded as other code that a retry brings.
"""

from __future__ import annotations

from dataclasses import replace

from tracks_dagster.attempts.effects.world import World
from tracks_dagster.attempts.ports import FindShipped, FoundCode
from tracks_dagster.data.effects.config_file import render_config
from tracks_dagster.data.ports import EvalSpec
from tracks_dagster.data.project import program_of_project, requirement_of
from tracks_dagster.holds.effects.starts import refuse_code
from tracks_dagster.track.addressed import write_addressed
from tracks_dagster.track.bodies import AttemptOpened, ConfigChange
from tracks_dagster.track.names import TRAINER_FAMILY
from tracks_dagster.track.ports import ObjectStore
from tracks_dagster.track.records import sha256_hex
from tracks_dagster.track.states.run_state import RunState
from tracks_dagster.track.track import code_diff_key, code_key


def with_stored_code(world: World, state: RunState, opened: AttemptOpened) -> AttemptOpened:
    """Return the attempt that follows, of a family's run with the code of its example, stored first.

    Any other is returned as it is, and one whose family has no example: its start fails in words.
    Raises InvalidInput for code in quarantine.
    """
    if (opened.trainer or state.declared.trainer) != TRAINER_FAMILY or world.shipped is None:
        return opened
    found = world.shipped(state.declared.model_family)
    if found is None:
        return opened
    code, doing = found.code, f"Training run {state.run_id} cannot be retried"
    refuse_code(world.tracks, code, sha256_hex(found.archive), doing=doing)
    if found.code_diff is not None:
        code = replace(code, diff_sha256=sha256_hex(found.code_diff))
        key = code_diff_key(state.run_id, sha256_hex(found.code_diff))
        write_addressed(world.tracks.store, key, found.code_diff)
    key = _store(world.tracks.store, state.run_id, found)
    change = ConfigChange(
        key="trainer",
        before=TRAINER_FAMILY,
        after=key,
        why="the family's own code was a part of an older version; this is its example's",
    )
    return replace(
        opened,
        trainer=key,
        program=program_of_project(found.project),
        code=code,
        remediation=(*opened.remediation, change),
    )


def measured_by_example(store: ObjectStore, shipped: FindShipped, spec: EvalSpec) -> EvalSpec:
    """Return an eval of a family as that of its example, whose code is stored first.

    A spec with a program is returned as it is, and one that no example measures.
    """
    found = None if spec.program is not None else shipped(spec.family)
    own = (
        None
        if found is None
        else next((e for e in found.project.evals if e.name == spec.suite), None)
    )
    if found is None or own is None:
        return spec
    asked = requirement_of(found.project, own, spec.snapshot, seed=spec.seed)
    program = asked.program
    name = None if program is None else program.config_name
    return replace(
        spec,
        suite_version=asked.suite_version,
        program=program,
        code_key=_store(store, spec.run_id, found),
        files={} if name is None else {name: render_config(spec.config, name)},
    )


def _store(store: ObjectStore, run_id: str, found: FoundCode) -> str:
    key = code_key(run_id, sha256_hex(found.archive))
    write_addressed(store, key, found.archive)
    return key

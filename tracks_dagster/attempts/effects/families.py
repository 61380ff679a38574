"""Runs of older versions that were declared with a model family, whose code was never stored.

An example of the family's name took its place: the same model under the same names, the same metrics.
The next attempt of such a run gets its code, stored and recorded as other code that a retry brings.
"""

from __future__ import annotations

from dataclasses import replace

from tracks_dagster.attempts.effects.world import World
from tracks_dagster.attempts.ports import FoundCode
from tracks_dagster.holds.effects.starts import refuse_code
from tracks_dagster.projects.project import program_of_project
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
    key = store_code(world.tracks.store, state.run_id, found)
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


def store_code(store: ObjectStore, run_id: str, found: FoundCode) -> str:
    """Store the code of an example for a run; return its key."""
    key = code_key(run_id, sha256_hex(found.archive))
    write_addressed(store, key, found.archive)
    return key

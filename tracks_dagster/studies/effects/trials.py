"""The run of a trial, as its study declares it: prepared as any other, from the study's own record."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tracks_dagster.attempts.effects.branches import find_origin
from tracks_dagster.attempts.effects.preparing import GatesOfStudy, Prepared, prepare
from tracks_dagster.attempts.ports import FoundCode
from tracks_dagster.attempts.recorded import declared_project, without_accumulation
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.retry.policy import RetryPolicy
from tracks_dagster.track.addressed import read_addressed
from tracks_dagster.track.bodies import RunDeclared, StudyDeclared, TrialProposed
from tracks_dagster.track.declared_fields import FIELDS
from tracks_dagster.track.records import Json
from tracks_dagster.track.roles import HORIZON, SEED, STEPS, key_of
from tracks_dagster.track.states.checkpoints import checkpoint_at
from tracks_dagster.track.states.study_state import StudyState


def prepared_of(
    tracks: Tracks, state: StudyState, proposed: TrialProposed, policy: RetryPolicy
) -> Prepared:
    """Return the run of a rung; raises InvalidInput, and ObjectLost where the study's code is."""
    study = state.declared
    run, source = study.run, proposed.source
    code = FoundCode(
        project=declared_project(run),
        archive=read_addressed(tracks.store, run.trainer),
        folder=run.folder,
        code=run.code,
        code_diff=None,
    )
    origin = None
    if source is not None:
        origin = find_origin(
            tracks, checkpoint_at(source), run_id=proposed.run_id, attempt_id=source.attempt_id
        )
    again = "" if proposed.repeat is None else " again, with another seed"
    given = {
        **_given(run),
        "run_id": proposed.run_id,
        "intent": f"Trial {proposed.trial} of the study {study.study}{again}: {proposed.steps} steps.",
        "expect": f"Compared with the others of {study.study} by {study.metric}.",
        "experiment": study.study,
    }
    prepared = prepare(
        given,
        config_of(study, proposed.config, proposed.steps, repeat=proposed.repeat or 0),
        code,
        family=run.model_family,
        origin=origin,
        policy=policy,
        otherwise={},
    )
    horizon = key_of(run.config, run.roles, HORIZON)
    drawn = {*study.space, *([] if horizon is None else [horizon])}
    gates_of = GatesOfStudy(drawn=drawn, config=run.config, at=state.declared_at)
    return replace(prepared, gates_of=gates_of)


def config_of(study: StudyDeclared, chosen: Any, steps: int, *, repeat: int = 0) -> dict[str, Json]:
    """Return the config of a run: the study's, what was chosen, so many steps of the whole horizon.

    repeat: what is added to the seed.
    """
    run = study.run
    config = {**without_accumulation(run.config, run.roles), **chosen}
    for role, value in ((STEPS, steps), (HORIZON, study.budgets[-1])):
        key = key_of(run.config, run.roles, role)
        if key is not None:
            config[key] = value
    seed = key_of(run.config, run.roles, SEED)
    if repeat and seed is not None:
        config[seed] += repeat
    return config


def _given(run: RunDeclared) -> dict[str, Any]:
    """Return what the study's run was declared with, by the names of `track.declared_fields`."""
    found = {each.name: each.of_run(run) for each in FIELDS if each.of is not None}
    snapshot = None if run.snapshot is None else run.snapshot.snapshot_id
    return {**found, "snapshot_id": snapshot}

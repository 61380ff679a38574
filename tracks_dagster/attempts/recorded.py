"""The project that a run's records describe, for a retry or a branch of it. Pure.

Records hold values and no rules for them: a key's type is that of its value. Whether any other key may
be added is recorded too; of a script of an older version any may.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Mapping
from dataclasses import replace

from tracks_dagster.attempts.ports import SCRIPT
from tracks_dagster.projects.project import OUR_KEYS, ConfigKey, OwnEval, Project
from tracks_dagster.track.bodies import EvalRequirement, RunDeclared
from tracks_dagster.track.names import TRAINER_FAMILY
from tracks_dagster.track.records import Json
from tracks_dagster.track.roles import ACCUMULATION, GLOBAL_BATCH, MICRO_BATCH, Roles, roles_of
from tracks_dagster.track.samples import SKIP_WINDOWS
from tracks_dagster.track.states.run_state import AttemptState, RunState, program_of, trainer_of


def recorded_project(state: RunState, attempt: AttemptState) -> Project:
    """Return what `attempt` trained, a family of an older version too."""
    program = program_of(state, attempt)
    is_open = trainer_of(state, attempt) != TRAINER_FAMILY if program is None else None
    ran = replace(
        state.declared,
        program=program,
        config=attempt.opened.config,
        snapshot=attempt.opened.snapshot,
    )
    project = declared_project(ran)
    return project if is_open is None else replace(project, is_open=is_open)


def declared_project(declared: RunDeclared) -> Project:
    """Return what a run is declared to train."""
    program, snapshot = declared.program, declared.snapshot
    config = without_accumulation(declared.config, declared.roles)
    ours = {*OUR_KEYS, SKIP_WINDOWS}
    keys = {name: ConfigKey(default=value) for name, value in config.items() if name not in ours}
    return Project(
        name=declared.model_family,
        entry=(SCRIPT,) if program is None else program.entry,
        keys=keys,
        is_open=program is not None and program.takes_any_key,
        roles=roles_of(declared.roles, keys),
        config_name=None if program is None else program.config_name,
        dataset=None if snapshot is None else snapshot.dataset,
        python=None if program is None else program.python,
        by_files=program is not None and program.by_files,
        replay_steps=0 if program is None else program.replay_steps,
        watch=() if program is None else program.watch,
        evals=tuple(_own_eval(each) for each in declared.evals if each.program is not None),
        promotion=declared.promotion,
    )


def _own_eval(declared: EvalRequirement) -> OwnEval:
    program, snapshot = declared.program, declared.snapshot
    return OwnEval(
        name=declared.suite,
        entry=() if program is None else program.entry,
        version=declared.suite_version,
        dataset=None if snapshot is None else snapshot.dataset,
        every=declared.every,
        is_required=declared.is_required,
        python=None if program is None else program.python,
        timeout_s=declared.timeout_s,
        needs_device=declared.needs_device,
        of=declared.of,
    )


def without_accumulation(config: Mapping[str, Json], roles: Roles) -> dict[str, Json]:
    """Return a config without the accumulation, where that follows from its other keys."""
    found = roles_of(roles, config)
    follows = found.get(ACCUMULATION) if {GLOBAL_BATCH, MICRO_BATCH} <= found.keys() else None
    return {key: value for key, value in config.items() if key != follows}


def as_archive(key: str, stored: bytes | None) -> bytes | None:
    """Return stored code as an archive; a script of an older version becomes one of one file."""
    if stored is None or not key.endswith(".py"):
        return stored
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w", format=tarfile.PAX_FORMAT) as tar:
        member = tarfile.TarInfo(SCRIPT)
        member.size = len(stored)
        tar.addfile(member, io.BytesIO(stored))
    return written.getvalue()

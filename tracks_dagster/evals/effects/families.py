"""Evals of a model family of an older version, started as the example that took its place says."""

from __future__ import annotations

from dataclasses import replace

from tracks_dagster.attempts.effects.families import store_code
from tracks_dagster.attempts.ports import FindShipped
from tracks_dagster.evals.ports import EvalSpec
from tracks_dagster.projects.effects.config_file import render_config
from tracks_dagster.projects.project import requirement_of
from tracks_dagster.track.ports import ObjectStore


def measured_by_example(store: ObjectStore, shipped: FindShipped, spec: EvalSpec) -> EvalSpec:
    """Return an eval of a family as that of its example.

    Its code is what wrote the checkpoint, as of any run; for a checkpoint of the family's own code,
    which nobody stored, the example's, stored first. A spec with a program is returned as it is, and
    one that no example measures.
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
        code_key=spec.code_key or store_code(store, spec.run_id, found),
        files={} if name is None else {name: render_config(spec.config, name)},
    )

"""From what somebody gives to what will be declared: the same for every edge.

`runs.declare` checks and records it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from tracks_dagster.attempts.effects.branches import Origin
from tracks_dagster.attempts.ports import FoundCode
from tracks_dagster.projects.project import Project
from tracks_dagster.retry.contracts import within
from tracks_dagster.retry.policy import RetryPolicy
from tracks_dagster.retry.stages import FULL, KITCHEN_SINK, StageRule
from tracks_dagster.track.bodies import (
    CheckpointCadence,
    CodeVersion,
    ComputeRequest,
    RetentionRule,
    RunDeclared,
)
from tracks_dagster.track.declared_fields import FIELDS, Field, merge
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.records import Json, sha256_hex
from tracks_dagster.track.roles import STEPS, roles_of
from tracks_dagster.track.samples import SampleOrder


@dataclass(frozen=True, slots=True, kw_only=True)
class GatesOfStudy:
    """A trial passes the gates that its study passed.

    drawn: keys that the study sets for each trial; config: the study's, at whose values of these the
    gates were shown; at: when it was declared: what counted then counts to its end.
    """

    drawn: Collection[str]
    config: Mapping[str, Json]
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """What will be declared, within the policy and the limits of its stage.

    body: the record, but for what `runs.plan_run` finds out: its whole config (here are the overrides
    of the project's, cut to the limits), snapshot, evals, drills, estimate, stored code and gates.
    uncut: the overrides before that. limits: those that the run keeps, None for none; is_limited: they
    were asked for, whatever the policy's profile. project, archive: what it trains, its stored files.
    code_diff: what the checkout has beside its commit, cleaned; kept with the run.
    checkpoints_may_be_off: whether the policy allows neither steps nor seconds between checkpoints.
    gates_of: of a trial what its gates are asked for in place of its own config; else None.
    passed_gates: those that were passed already, for all of it; None: they are to be asked.
    The others are rows of `track.declared_fields` that a body has in another form.
    """

    body: RunDeclared
    uncut: Mapping[str, Json]
    project: Project
    archive: bytes = field(repr=False)
    code_diff: bytes | None
    limits: StageRule | None
    is_limited: bool
    checkpoints_may_be_off: bool
    snapshot_id: str | None
    skip_gates: tuple[str, ...]
    skip_why: str | None
    drills: tuple[str, ...]
    gates_of: GatesOfStudy | None = None
    passed_gates: Mapping[str, str] | None = None

    @property
    def run_id(self) -> str:
        """The id of the run."""
        return self.body.run_id

    @property
    def steps_done(self) -> int:
        """The steps that a branch has already."""
        source = self.body.branched_from
        return 0 if source is None else source.step

    def value(self, row: Field) -> Any:
        """Return the value of a field."""
        return getattr(self, row.name) if row.of is None else row.of_run(self.body)


def prepare(
    given: Mapping[str, Any],
    config: Mapping[str, Json],
    code: FoundCode | CodeVersion,
    *,
    family: str,
    origin: Origin | None,
    policy: RetryPolicy,
    otherwise: Mapping[str, Any],
    is_limited: bool = False,
) -> Prepared:
    """Return what will be declared, of a branch with all that it takes over.

    given: values of `track.declared_fields` that somebody chose, by name; otherwise: those of the edge
    where nobody did. config: overrides. code: what was found, or this package's own version for a
    branch that takes its source's code. family: the project's name. is_limited: it keeps to the limits
    of its stage, whatever the policy's profile. Raises InvalidInput.
    """
    found = code if isinstance(code, FoundCode) else None
    values = merge(
        given,
        source={} if origin is None else origin.fields,
        project={} if found is None else found.project.values,
        otherwise=otherwise,
    )
    if origin is not None:
        found = origin.continued_by(code, family)
        config = {**origin.config_for(found.project), **config}
        values["snapshot_id"] = values["snapshot_id"] or origin.snapshot_for(found.project)
    if found is None:
        raise InvalidInput(f"{values['run_id']} cannot be declared: no project was named.")
    limits = _limits(policy, values, is_limited=is_limited)
    project, diff, parts = found.project, found.code_diff, _by_part(values)
    if limits is not None and values["stage"] != FULL:
        project = replace(project, promotion=None)  # twenty steps would take an alias from a model
    own = parts[RunDeclared]
    own["max_cost"] = _max_cost(policy, own["max_cost"], limits)
    body = RunDeclared(
        **own,
        model_family=family,
        config=_cut(project, config, limits, done=0 if origin is None else origin.ref.step),
        snapshot=None,
        code=found.code if diff is None else replace(found.code, diff_sha256=sha256_hex(diff)),
        compute=ComputeRequest(**parts[ComputeRequest]),
        cadence=CheckpointCadence(**parts[CheckpointCadence]),
        retention=within(policy.contracts, RetentionRule(**parts[RetentionRule])),
        estimated_device_s=None,
        promotion=project.promotion,
        branched_from=None if origin is None else origin.ref,
        sample_order=SampleOrder.FEISTEL.value,
        folder=found.folder,
        max_device_s=None if limits is None else limits.device_s,
        required_artifacts=policy.contracts.tracking.required_artifacts,
        media_items=policy.contracts.tracking.media_items,
        media_size_bytes=policy.contracts.tracking.media_size_bytes,
        required_signals=policy.contracts.monitoring.required_signals,
    )
    return Prepared(
        **parts[None],
        body=body,
        uncut=config,
        project=project,
        archive=found.archive,
        code_diff=diff,
        limits=limits,
        is_limited=is_limited,
        checkpoints_may_be_off=policy.checkpoints_may_be_off,
    )


def _by_part(values: Mapping[str, Any]) -> dict[type | None, dict[str, Any]]:
    """Return the values by the part of the record that has them, as they are called there."""
    parts: dict[type | None, dict[str, Any]] = {each.of: {} for each in FIELDS}
    for each in FIELDS:
        parts[each.of][each.recorded or each.name] = values[each.name]
    return parts


def _limits(
    policy: RetryPolicy, values: Mapping[str, Any], *, is_limited: bool
) -> StageRule | None:
    """Return the limits that the run keeps: those of its stage, where stages mean anything, or where
    `tracks smoke` and `tracks canary` ask for them; a kitchen sink, whose small model nobody wants, is
    one by any profile. A run with drills rehearses faults: it keeps none, and shows nothing."""
    is_asked = is_limited or values["stage"] == KITCHEN_SINK
    is_kept = (is_asked or policy.stages.has_gates) and not values["drills"]
    return policy.stages.rule(values["stage"]) if is_kept else None


def _cut(
    project: Project, config: Mapping[str, Json], limits: StageRule | None, *, done: int
) -> Mapping[str, Json]:
    """Return the config with the steps that the stage has; done: those that a branch has already."""
    key = roles_of(project.roles, {**project.keys, **config}).get(STEPS)
    if key is None or limits is None or limits.steps is None:
        return config
    asked = config.get(key, project.keys[key].default if key in project.keys else None)
    most = done + limits.steps
    return {**config, key: min(asked, most) if isinstance(asked, int | float) else most}


def _max_cost(policy: RetryPolicy, given: float | None, limits: StageRule | None) -> float | None:
    """Return the cap in money: what was given, else the policy's, and never above the stage's."""
    cap = policy.contracts.cost.max_cost if given is None else given
    caps = (cap, None if limits is None else limits.money)
    return min((each for each in caps if each is not None), default=None)

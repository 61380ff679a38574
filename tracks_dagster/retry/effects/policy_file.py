"""A person's policy file, in ten sections: what it names replaces the default, everything else stays.

Nothing is guessed and nothing skipped: a file with one error changes nothing.

    submission: {required_fields: [owner, team, on_call]}
    scheduling:
      order: fair                 # the queue, docs/scheduling.md
      classes: {sweep: {devices_per_owner: 4}}
    fault_tolerance:
      reasons:                    # one row a termination reason, as in `RetryRule`
        node_failure: {count: 8, window: 7d, backoff: 30s, backoff_max: 20min}
      limits: {fingerprint_limit: 4}
    tracking: {required_artifacts: [checkpoint, logs]}
    governance: {may_promote: [owner]}
    profile: strict               # and `stages:`, `stages_file`, docs/stages.md

The keys of `fault_tolerance`, and `classes`, `teams` and `owners`, may also be at the top level,
as in files from before there were sections.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from pydantic import Field, PlainValidator

from tracks_dagster.retry.contracts import (
    AGENT_ACTS,
    ANY_CLASS,
    PARAMETERS,
    STRICT,
    Contracts,
)
from tracks_dagster.retry.effects.stages_file import ProfileName, StagesRow, read_stages
from tracks_dagster.retry.environments import EnvironmentRule
from tracks_dagster.retry.policy import NEED_A_RULE, Remedy, RetryPolicy
from tracks_dagster.retry.stages import Profile
from tracks_dagster.retry.submission import FIELDS
from tracks_dagster.scheduling.policy import (
    NO_TIME_SLICES,
    SWEEP,
    Allowance,
    Order,
    Placement,
    SchedulingPolicy,
    Sharing,
    WorkloadClass,
)
from tracks_dagster.track.effects.settings_file import LEFT_OUT, FileModel, Loc, SettingsFile
from tracks_dagster.track.names import STAGES
from tracks_dagster.track.reasons import TerminationReason
from tracks_dagster.track.states.validity import ARTIFACTS
from tracks_dagster.track.text import units
from tracks_dagster.track.text.nearest import unknown
from tracks_dagster.track.text.units import shown

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Rules = TypeVar("Rules", bound="DataclassInstance")

FAULT_TOLERANCE, SCHEDULING = "fault_tolerance", "scheduling"
ANY, EXACT = "any", "exact"  # of an environment's key: a difference is only reported, or refuses
ANY_PARTS = 0

_FAILURES = {reason.value: reason for reason in sorted(NEED_A_RULE)}


def read_policy(file: SettingsFile, base: RetryPolicy) -> RetryPolicy:
    """Return `base` as the file changes it; raises SettingsError with all that is wrong."""
    found = file.read(_PolicyFile) or _PolicyFile()
    for section, part in (
        (FAULT_TOLERANCE, found.fault_tolerance),
        (SCHEDULING, found.scheduling),
    ):
        for key in found.given().keys() & part.given().keys():
            first = file.line((key,))
            file.refuse((section, key), f"{key} was given before, in line {first}; give it once.")
    asked = STRICT if found.profile is Profile.STRICT else base.contracts
    try:
        policy = _fault_tolerance(base, found, file, ())
        policy = _fault_tolerance(policy, found.fault_tolerance, file, (FAULT_TOLERANCE,))
        scheduling = _queue(policy.scheduling, found, file, ())
        scheduling = _queue(scheduling, found.scheduling, file, (SCHEDULING,))
        policy = replace(
            policy,
            scheduling=_changed(scheduling, found.scheduling.order_alone(), file, (SCHEDULING,)),
            contracts=_contracts(asked, found, file, scheduling.classes),
            stages=read_stages(found.profile, found.stages, file),
        )
    except ValueError as error:  # every row holds by itself, but not beside the others
        file.refuse((), str(error))
    if file.problems:
        raise file.error()
    return _with_sweeps(policy)


def _fault_tolerance(
    base: RetryPolicy, found: _FaultTolerance, file: SettingsFile, at: Loc
) -> RetryPolicy:
    """Return `base` as the part of the file at `at` changes it; raises ValueError."""
    rules = {rule.reason: rule for rule in base.rules}
    for reason, row in found.reasons.items():
        rules[reason] = _changed(rules[reason], row, file, (*at, "reasons", reason))
    environment = {rule.key: rule for rule in base.environment}
    for key, parts in found.environment.items():
        if parts == ANY_PARTS:
            environment.pop(key, None)
        else:
            environment[key] = EnvironmentRule(key=key, parts=parts)
    return replace(
        _changed(base, found.limits, file, (*at, "limits")),
        rules=tuple(rules.values()),
        environment=tuple(environment.values()),
        storm=_changed(base.storm, found.storm, file, (*at, "storm")),
        nodes=_changed(base.nodes, found.nodes, file, (*at, "nodes")),
        larger_devices={**base.larger_devices, **found.larger_devices},
        other_pools={**base.other_pools, **found.other_pools},
    )


def _queue(base: SchedulingPolicy, found: _Queue, file: SettingsFile, at: Loc) -> SchedulingPolicy:
    """Return `base` with the classes, teams and owners at `at`. A class that is not shipped needs a
    priority: a name that was only mistyped would else be a class that nothing is of."""
    classes = dict(base.classes)
    for name, row in found.classes.items():
        if name not in classes and "priority" not in row.given():
            words = unknown("workload class", name, list(classes))
            file.refuse((*at, "classes", name), f"{words} One of your own needs a priority.")
            continue
        known = classes.get(name, WorkloadClass())
        classes[name] = _changed(known, row, file, (*at, "classes", name))
    return replace(
        base,
        classes=classes,
        teams={**base.teams, **_allowances((*at, "teams"), found.teams, file)},
        owners={**base.owners, **_allowances((*at, "owners"), found.owners, file)},
    )


def _allowances(at: Loc, rows: Mapping[str, _Owner], file: SettingsFile) -> Mapping[str, Allowance]:
    return {name: _changed(Allowance(), row, file, (*at, name)) for name, row in rows.items()}


def _contracts(
    base: Contracts, found: _PolicyFile, file: SettingsFile, classes: Iterable[str]
) -> Contracts:
    """Return `base` as the file changes it: each of its fields is a section of that name."""
    sections = {each.name: getattr(found, each.name) for each in fields(base)}
    known = [ANY_CLASS, *classes]
    for name in found.submission.given().get("required_parameters", {}):
        if name not in known:
            at = ("submission", "required_parameters", name)
            file.refuse(at, unknown("workload class", name, known))
    tuning = found.tuning.given()
    row = found.scheduling.classes.get(SWEEP) or found.classes.get(SWEEP)
    if "devices_per_team" in tuning and row is not None and "devices_per_team" in row.given():
        words = "devices_per_team is given for the class sweep too; give it once."
        file.refuse(("tuning", "devices_per_team"), words)
    return replace(
        base,
        **{
            name: _changed(getattr(base, name), row, file, (name,))
            for name, row in sections.items()
        },
    )


def _with_sweeps(policy: RetryPolicy) -> RetryPolicy:
    """Return the policy whose queue keeps what `tuning` gives a team's sweeps."""
    most = policy.contracts.tuning.devices_per_team
    if most is None:
        return policy
    classes = policy.scheduling.classes
    sweep = replace(classes[SWEEP], devices_per_team=most)
    scheduling = replace(policy.scheduling, classes={**classes, SWEEP: sweep})
    return replace(policy, scheduling=scheduling)


def _changed(rules: Rules, row: FileModel, file: SettingsFile, loc: Loc) -> Rules:
    """Return `rules` with what the row gives; as they are, and a problem, where they cannot be so.

    A key that is not even possible alone is refused in its own line; what is only impossible together
    in the line of them all.
    """
    keys = {name: str(each.alias) for name, each in type(row).model_fields.items()}
    given = {
        keys[name]: value if isinstance(value, _Fields) else {name: value}
        for name, value in row.given().items()
    }
    together = {name: value for fields in given.values() for name, value in fields.items()}
    try:
        return replace(rules, **together)
    except ValueError as error:
        alone = [(key, str(wrong)) for key, each in given.items() if (wrong := _wrong(rules, each))]
        for key, words in alone:
            file.refuse((*loc, key), words)
        if not alone:
            file.refuse(loc, str(error))
    return rules


def _wrong(rules: Rules, fields: Mapping[str, Any]) -> ValueError | None:
    try:
        replace(rules, **fields)
    except ValueError as error:
        return error
    return None


def _reason_with_a_row(value: str) -> TerminationReason:
    if value in _FAILURES:
        return _FAILURES[value]
    if value in list(TerminationReason):
        raise ValueError(f"{value} is never retried, and has no row.")
    raise ValueError(unknown("termination reason", value, list(_FAILURES)))


def _list_of(what: str, valid: Iterable[str] | None) -> units.Reader[tuple[str, ...]]:
    """Return the reader of a list of names, of `valid` where there are valid ones."""
    known = None if valid is None else {each: each for each in valid}
    read = units.name if known is None else units.one_of(what, known)
    example = "ada" if known is None else next(iter(known))

    def listed(value: object) -> tuple[str, ...]:
        if isinstance(value, str) or not isinstance(value, Sequence):
            raise ValueError(f"{shown(value)} is not a list; write for example [{example}].")
        if any(not isinstance(each, str) for each in value):
            raise ValueError(f"each of the list is one {what}; write for example [{example}].")
        return tuple(dict.fromkeys(read(each) for each in value))

    return listed


def _failures(value: object) -> tuple[TerminationReason, ...]:
    """Read a list of termination reasons."""
    return tuple(_FAILURES[each] for each in _list_of("termination reason", _FAILURES)(value))


def _parts(value: object) -> int | None:
    """Read how many parts of a version must be the same: `ANY_PARTS`, or None for the whole of it."""
    if value == EXACT:
        return None
    if value == ANY:
        return ANY_PARTS
    if type(value) is int and value >= 1:
        return value
    raise ValueError(
        f"{shown(value)} is not a rule for a version; write {EXACT}, {ANY}, or how many leading parts "
        "must be the same, for example 2."
    )


class _Fields(dict[str, float | None]):
    """What one key of a file says of several fields."""


def _window(value: object) -> _Fields:
    """A window is in time or in steps: naming one takes the other away."""
    seconds, steps = (None, None) if value == units.NONE else units.window(value)
    return _Fields(window_s=seconds, window_steps=steps)


def _sharing(value: object) -> Sharing:
    """Read how a device is shared; slices of time are refused by their name."""
    if isinstance(value, str) and value.replace("_", "-") in ("time", "slices", "time-slicing"):
        raise ValueError(NO_TIME_SLICES)
    return units.one_of("way to share a device", {each.value: each for each in Sharing})(value)


_Count = Annotated[int, PlainValidator(units.count)]
_CountOrNone = Annotated[int | None, PlainValidator(units.or_none(units.count))]
_Number = Annotated[float, PlainValidator(units.number)]
_MoneyOrNone = Annotated[float | None, PlainValidator(units.or_none(units.amount_of_money))]
_Share = Annotated[float, PlainValidator(units.share)]
_Seconds = Annotated[float, PlainValidator(units.duration_s)]
_SecondsOrNone = Annotated[float | None, PlainValidator(units.or_none(units.duration_s))]
_Flag = Annotated[bool, PlainValidator(units.flag)]
_Name = Annotated[str, PlainValidator(units.name)]
_Reasons = Annotated[tuple[TerminationReason, ...], PlainValidator(_failures)]
_Names = Annotated[tuple[str, ...], PlainValidator(_list_of("name", None))]
_Anyone = Annotated[tuple[str, ...] | None, PlainValidator(units.or_none(_list_of("name", None)))]
_Remedy = Annotated[
    Remedy, PlainValidator(units.one_of("remedy", {remedy.value: remedy for remedy in Remedy}))
]
_CountsAs = Annotated[
    TerminationReason | None,
    PlainValidator(units.or_none(units.one_of("termination reason", _FAILURES))),
]


class _Row(FileModel):
    count: _CountOrNone = LEFT_OUT
    count_before_first_step: _CountOrNone = LEFT_OUT
    count_by_words: _CountOrNone = LEFT_OUT
    window: Annotated[_Fields, PlainValidator(_window)] = LEFT_OUT
    time_s: _SecondsOrNone = LEFT_OUT
    refund: _Share = LEFT_OUT
    refund_past_onset: _Flag = LEFT_OUT
    backoff_s: _Seconds = LEFT_OUT
    backoff_s_max: _Seconds = LEFT_OUT
    remedy: _Remedy = LEFT_OUT
    other_node_from: _CountOrNone = LEFT_OUT
    other_node_window_s: _SecondsOrNone = LEFT_OUT
    fingerprint_limited: _Flag = LEFT_OUT
    counts_as: _CountsAs = LEFT_OUT


class _Limits(FileModel):
    fingerprint_limit: _Count = LEFT_OUT
    never_started_limit: _Count = LEFT_OUT
    never_started_backoff_s: _Seconds = LEFT_OUT
    never_started_backoff_s_max: _Seconds = LEFT_OUT
    device_hours_factor: _Number = LEFT_OUT
    device_s_floor: _Seconds = Field(default=LEFT_OUT, alias="device_time_floor")
    memory_growth: _Number = LEFT_OUT
    memory_growth_max: _Number = LEFT_OUT
    checkpoints_may_be_off: _Flag = LEFT_OUT
    other_pool_from: _Count = LEFT_OUT
    other_pool_window_s: _Seconds = LEFT_OUT
    other_pool_s: _Seconds = Field(default=LEFT_OUT, alias="other_pool_stay")


class _Storm(FileModel):
    ends: _CountOrNone = LEFT_OUT
    runs: _Count = LEFT_OUT
    share: _Share = LEFT_OUT
    window_s: _Seconds = LEFT_OUT
    pause_s: _Seconds = LEFT_OUT
    pause_s_max: _Seconds = LEFT_OUT


class _Nodes(FileModel):
    reasons: _Reasons = LEFT_OUT
    at_once: _Reasons = LEFT_OUT
    strikes: _CountOrNone = LEFT_OUT
    window_s: _Seconds = LEFT_OUT
    rate_factor: _Number = LEFT_OUT
    share: _Share = LEFT_OUT
    quarantine_s: _Seconds = LEFT_OUT
    quarantine_s_max: _Seconds = LEFT_OUT
    memory_s: _Seconds = LEFT_OUT


class _Order(FileModel):
    order: Annotated[
        Order, PlainValidator(units.one_of("order", {each.value: each for each in Order}))
    ] = LEFT_OUT
    backfill: _Flag = LEFT_OUT
    preemption: _Flag = LEFT_OUT
    placement: Annotated[
        Placement,
        PlainValidator(units.one_of("placement", {each.value: each for each in Placement})),
    ] = LEFT_OUT
    sharing: Annotated[Sharing, PlainValidator(_sharing)] = LEFT_OUT
    half_life_s: _Seconds = LEFT_OUT
    move_rest_s: _Seconds = LEFT_OUT
    default_class: _Name = LEFT_OUT


class _Class(FileModel):
    priority: _Count = LEFT_OUT
    queue_s: _SecondsOrNone = LEFT_OUT
    completion_s: _SecondsOrNone = LEFT_OUT
    recovery_s: _SecondsOrNone = LEFT_OUT
    promise_s: _SecondsOrNone = LEFT_OUT
    loss_s: _SecondsOrNone = LEFT_OUT
    wait_s_max: _Seconds = LEFT_OUT
    reserved: _Count = LEFT_OUT
    devices: _CountOrNone = LEFT_OUT
    devices_per_team: _CountOrNone = LEFT_OUT
    devices_per_owner: _CountOrNone = LEFT_OUT
    money_per_day: _MoneyOrNone = LEFT_OUT
    ranks_min: _Count = LEFT_OUT


class _Owner(FileModel):
    devices: _CountOrNone = LEFT_OUT
    money_per_day: _MoneyOrNone = LEFT_OUT


class _Team(_Owner):
    share: _Number = LEFT_OUT


class _FaultTolerance(FileModel):
    reasons: Mapping[Annotated[TerminationReason, PlainValidator(_reason_with_a_row)], _Row] = {}
    limits: _Limits = _Limits()
    storm: _Storm = _Storm()
    nodes: _Nodes = _Nodes()
    environment: Mapping[_Name, Annotated[int | None, PlainValidator(_parts)]] = {}
    larger_devices: Mapping[str, _Name] = {}
    other_pools: Mapping[str, _Name] = {}


class _Queue(FileModel):
    classes: Mapping[_Name, _Class] = {}
    teams: Mapping[_Name, _Team] = {}
    owners: Mapping[_Name, _Owner] = {}


class _Scheduling(_Queue, _Order):
    def order_alone(self) -> _Order:
        given = {name: each for name, each in self.given().items() if name in _Order.model_fields}
        return _Order.model_construct(_fields_set=set(given), **given)


class _Submission(FileModel):
    required_fields: Annotated[
        tuple[str, ...], PlainValidator(_list_of("field of a declaration", FIELDS))
    ] = LEFT_OUT
    required_parameters: Mapping[
        _Name, Annotated[tuple[str, ...], PlainValidator(_list_of("parameter", PARAMETERS))]
    ] = LEFT_OUT


class _Tracking(FileModel):
    required_artifacts: Annotated[
        tuple[str, ...], PlainValidator(_list_of("artifact", ARTIFACTS))
    ] = LEFT_OUT
    media_items: _Count = LEFT_OUT
    media_size_bytes: Annotated[int, PlainValidator(units.size_bytes)] = LEFT_OUT


class _Monitoring(FileModel):
    required_signals: _Names = LEFT_OUT
    notify_stages: Annotated[tuple[str, ...], PlainValidator(_list_of("stage", STAGES))] = LEFT_OUT


class _Cost(FileModel):
    max_cost: _MoneyOrNone = LEFT_OUT


class _Tuning(FileModel):
    trials: _CountOrNone = LEFT_OUT
    devices_per_team: _CountOrNone = LEFT_OUT


class _Promotion(FileModel):
    seeds: _Count = LEFT_OUT
    only_valid: _Flag = LEFT_OUT


class _Retention(FileModel):
    keep_last: _Count = LEFT_OUT
    keep_best: _Count = LEFT_OUT
    delete_after_s: _Seconds = LEFT_OUT


class _Governance(FileModel):
    may_promote: _Anyone = LEFT_OUT
    may_waive: _Anyone = LEFT_OUT
    may_raise_cap: _Anyone = LEFT_OUT
    agents_may: Annotated[
        tuple[str, ...], PlainValidator(_list_of("act of an agent", AGENT_ACTS))
    ] = LEFT_OUT
    agent_acts: _Count = LEFT_OUT
    teams: Mapping[_Name, _Names] = LEFT_OUT


class _PolicyFile(_FaultTolerance, _Queue):
    submission: _Submission = _Submission()
    scheduling: _Scheduling = _Scheduling()
    fault_tolerance: _FaultTolerance = _FaultTolerance()
    tracking: _Tracking = _Tracking()
    monitoring: _Monitoring = _Monitoring()
    cost: _Cost = _Cost()
    tuning: _Tuning = _Tuning()
    promotion: _Promotion = _Promotion()
    retention: _Retention = _Retention()
    governance: _Governance = _Governance()
    profile: ProfileName = Profile.LIGHT
    stages: StagesRow = StagesRow()

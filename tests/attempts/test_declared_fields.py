"""Each field of a declaration is one row, and comes from where it came before there was a table."""

from __future__ import annotations

import os
import random
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

import click
from click.testing import CliRunner

from tests.bodies import declared
from tests.examples import example
from tests.reference import FIELDS_PAGE, with_fields
from tracks_dagster.attempts.effects.branches import Origin
from tracks_dagster.attempts.effects.preparing import Prepared, prepare
from tracks_dagster.attempts.ports import FoundCode
from tracks_dagster.attempts.run_config import CLUSTER_FIELDS, COMPUTE_FIELDS
from tracks_dagster.cli.declared_options import declared_options
from tracks_dagster.defs.assets.declarations import filling_in, read_in
from tracks_dagster.projects.project import Project
from tracks_dagster.retry.contracts import within
from tracks_dagster.retry.default_policy import DEFAULT_POLICY
from tracks_dagster.retry.policy import RetryPolicy
from tracks_dagster.retry.stages import LIGHT, STRICT
from tracks_dagster.track.bodies import (
    CheckpointCadence,
    CodeVersion,
    ComputeRequest,
    RetentionRule,
    RunDeclared,
)
from tracks_dagster.track.declared_fields import (
    CLUSTER,
    COMPUTE,
    DEFAULTS,
    FIELDS,
    NAMES,
    RETENTION,
    Field,
    Kind,
    inherited,
    merge,
)
from tracks_dagster.track.names import STAGES
from tracks_dagster.track.states.checkpoints import CheckpointRef

CASES = 10_000
CODE = CodeVersion(git_commit=None, branch=None, dirty=None, package_version="1")
OF_CODE: Mapping[str, Any] = {"code": CODE, "code_diff": None}
RULE = tuple(each.name for each in fields(RetentionRule))
# What a request had that nobody gave anything.
PLAIN: Mapping[str, Any] = {
    **{name: getattr(ComputeRequest(), name) for name in COMPUTE_FIELDS},
    **dict.fromkeys(("workload_class", "expect", "max_cost", "on_call", "experiment", "baseline")),
    **dict.fromkeys(("checkpoint_every_s", "skip_why")),
    **dict.fromkeys(("skip_gates", "drills"), ()),
    **dict.fromkeys(("owner", "team"), "unknown"),
    "stage": "smoke",
    "checkpoint_every_steps": 10,
}
HALVES = frozenset({"checkpoint_every_steps", "checkpoint_every_s"})
VALUES: Mapping[str, tuple[Any, ...]] = {
    "snapshot_id": ("a" * 12, "b" * 12),
    "ranks": (1, 2, 4),
    "device_class": ("cpu", "h200"),
    "checkpoint_every_steps": (None, 5, 10),
    "checkpoint_every_s": (30.0, 60.0),
    "owner": ("ann", "dagster"),
    "team": ("speech", "unknown"),
    "stage": STAGES,
    "skip_gates": (("smoke",), ("smoke", "canary")),
    "skip_why": ("It was shown.",),
    "workload_class": ("urgent", "sweep"),
    "expect": ("a lower loss",),
    "max_cost": (1.0, 50.0),
    "on_call": ("grace", "ann"),
    "experiment": ("wider", "deeper"),
    "baseline": ("r-8", "r-9"),
    "drills": (("preempt@3",), ("gpu_oom@2", "preempt@3")),
    "keep_last": (2, 3, 5),
    "keep_best": (0, 1, 2),
    "metric": ("loss", "val_loss"),
    "direction": ("min", "max"),
    "milestone_every_steps": (50, 100),
    "delete_after_s": (0.0, 3600.0),
    "launcher": ("local", "kubernetes"),
    "ranks_per_node": (1, 2),
    "memory_bytes": (2**30,),
    "cpus": (1.0, 2.5),
    "node_selector": ({"gpu": "a100"},),
    "tolerations": (({"key": "gpu", "operator": "Exists"},),),
    "priority_class": ("high",),
    "topology_key": ("zone",),
    "queue": ("team-a",),
    "slurm": ({"account": "a"}, {"time_limit": "2h"}),
    "pool": ("big",),
}


def some(draw: random.Random, names: Any, share: float = 0.3) -> dict[str, Any]:
    return {name: draw.choice(VALUES[name]) for name in names if draw.random() < share}


def a_project(draw: random.Random) -> Project:
    own = some(draw, ("ranks", "device_class", "workload_class", "team", "on_call"), 0.5)
    every_steps, every_s = draw.choice((None, 7)), draw.choice((None, 70.0))
    halves = {"checkpoint_every_steps": every_steps, "checkpoint_every_s": every_s}
    saves = draw.choice(({}, halves))
    values = {**own, **some(draw, RULE), **saves}
    return replace(example(), is_open=draw.random() < 0.2, values=values)


def an_origin(draw: random.Random) -> Origin:
    compute = ComputeRequest(**some(draw, COMPUTE_FIELDS, 0.5))
    names = ("team", "stage", "workload_class", "on_call", "experiment", "baseline")
    body = replace(
        declared(),
        compute=compute,
        cadence=CheckpointCadence(every_steps=draw.choice((None, 25)), every_s=90.0),
        retention=RetentionRule(**some(draw, RULE, 0.5)),
        **some(draw, names, 0.5),
    )
    return Origin(
        ref=CheckpointRef("r-0", 1, 20, "prefix", "a" * 64),
        family=example().name,
        config={"steps": 40, "lr": 0.1},
        snapshot=body.snapshot,
        fields=inherited(body, compute),
        trainer="a key",
        project=example(),
        archive=b"theirs",
        code=CODE,
        code_diff=None,
        folder="/theirs",
        cut_off=None,
    )


def a_policy(draw: random.Random) -> RetryPolicy:
    contracts = DEFAULT_POLICY.contracts
    cost = replace(contracts.cost, max_cost=draw.choice((None, 20.0)))
    return replace(
        DEFAULT_POLICY,
        stages=draw.choice((LIGHT, STRICT)),
        contracts=replace(contracts, cost=cost),
        checkpoints_may_be_off=draw.random() < 0.5,
    )


def test_a_project_says_where_it_runs_unless_a_person_does_and_then_its_device_counts_not() -> None:
    project = {"launcher": "kubernetes", "device_class": "a100", "ranks": 2}
    for given, source, place in (
        ({}, {}, ("kubernetes", "a100", 2)),
        ({"launcher": "local"}, {}, ("local", "cpu", 2)),  # the class is one of the cluster's
        ({}, {"launcher": "local", "device_class": "cpu"}, ("local", "cpu", 2)),
        ({"launcher": "kubernetes"}, {}, ("kubernetes", "a100", 2)),
    ):
        found = merge(given, source=source, project=project, otherwise={})
        assert tuple(found[name] for name in ("launcher", "device_class", "ranks")) == place


def test_what_is_asked_of_slurm_is_merged_name_by_name_and_a_project_s_counts_there_alone() -> None:
    project = {"slurm": {"account": "p", "nice": "9"}}
    source = {"launcher": "slurm", "slurm": {"account": "s", "time_limit": "1h"}}
    given = {"slurm": {"time_limit": "2h"}}
    merged = {"account": "s", "nice": "9", "time_limit": "2h"}
    for own, before, expected in (
        (given, source, merged),
        ({}, {}, {}),  # it stays local
        ({"launcher": "slurm"}, {}, project["slurm"]),
        ({"launcher": "kubernetes"}, source, {}),
        ({"launcher": "kubernetes", **given}, source, given["slurm"]),  # which is refused
    ):
        assert merge(own, source=before, project=project, otherwise={})["slurm"] == expected


def as_before(
    given: Mapping[str, Any],
    config: Mapping[str, Any],
    found: FoundCode | None,
    origin: Origin | None,
    policy: RetryPolicy,
    otherwise: Mapping[str, Any],
) -> dict[str, Any]:
    """The merge as the edges had it, in the order in which they did it, then the limits as both had
    them: the values of a request by name, the retention rule whole."""
    project = None if found is None else found.project
    rule = {name: value for name, value in given.items() if name in RULE}
    known: dict[str, Any] = {name: value for name, value in given.items() if name not in RULE}
    by_file: dict[str, Any] = {}
    in_file: dict[str, Any] = {}
    if project is not None:
        own = project.values
        by_file = {"ranks": own.get("ranks", 1), "device_class": own.get("device_class", "cpu")}
        by_file |= {"workload_class": own.get("workload_class")}
        by_file |= {name: own[name] for name in ("team", "on_call") if name in own}
        if not HALVES & set(given):
            by_file |= {name: own[name] for name in HALVES if name in own}
        in_file = {name: own[name] for name in RULE if name in own}
    base = RetentionRule(**in_file)
    request = {**PLAIN, **otherwise, **by_file, **known, "retention": replace(base, **rule)}
    request |= {"config": config, "snapshot_id": known.get("snapshot_id")}
    if origin is not None:
        moved = "launcher" in given and request["launcher"] != origin.fields["launcher"]
        left = {*given, *CLUSTER_FIELDS, "device_class", "pool"} if moved else set(given)
        theirs = {name: value for name, value in origin.fields.items() if name not in RULE}
        kept = {name: getattr(request["retention"], name) for name in RULE if name in given}
        their_rule = RetentionRule(**{name: origin.fields[name] for name in RULE})
        request |= {name: value for name, value in theirs.items() if name not in left}
        request |= {"retention": replace(their_rule, **kept)}
        slurm = given.get("slurm", {}) if moved else {**origin.fields["slurm"], **request["slurm"]}
        request |= {"slurm": slurm}
        request["config"] = {**origin.config, **config}
        if request["snapshot_id"] is None and origin.snapshot is not None:
            request["snapshot_id"] = origin.snapshot.snapshot_id
    return _limited(request, policy, done=0 if origin is None else origin.ref.step)


def _limited(request: dict[str, Any], policy: RetryPolicy, *, done: int) -> dict[str, Any]:
    if request["max_cost"] is None:
        request["max_cost"] = policy.contracts.cost.max_cost
    request["retention"] = within(policy.contracts, request["retention"])
    is_asked = request["stage"] == "kitchen_sink"
    limits = None
    if (is_asked or policy.stages.has_gates) and not request["drills"]:
        limits = policy.stages.rule(request["stage"])
    request["promotes"] = limits is None or request["stage"] == "full"
    request["max_device_s"] = None if limits is None else limits.device_s
    if limits is not None:
        if limits.steps is not None:
            asked = request["config"].get("steps", example().keys["steps"].default)
            steps = min(asked, done + limits.steps)
            request["config"] = {**request["config"], "steps": steps}
        caps = [each for each in (request["max_cost"], limits.money) if each is not None]
        request["max_cost"] = min(caps, default=None)
    return request


def values_of(prepared: Prepared) -> dict[str, Any]:
    """The same of what was prepared, and where its code lies."""
    body = prepared.body
    values = {each.name: prepared.value(each) for each in FIELDS if each.of is not RetentionRule}
    promotes = body.promotion is not None
    return {
        **values,
        "retention": body.retention,
        "config": body.config,
        "promotes": promotes,
        "max_device_s": body.max_device_s,
    }


def test_every_field_comes_from_where_it_came_before_there_was_a_table() -> None:
    """Random sets of what is given, of project files, sources and policies."""
    seed = int(os.environ.get("TRACKS_FIELDS_SEED", random.randrange(10**9)))
    print(f"TRACKS_FIELDS_SEED={seed}")
    draw = random.Random(seed)
    for case in range(CASES):
        origin = an_origin(draw) if draw.random() < 0.5 else None
        own = FoundCode(project=a_project(draw), archive=b"own", folder="/own", **OF_CODE)
        found = None if origin is not None and draw.random() < 0.5 else own
        given = some(draw, VALUES, draw.choice((0.05, 0.3, 0.8)))
        config = draw.choice(({}, {"steps": 60}, {"steps": 60, "lr": 0.3}))
        policy = a_policy(draw)
        otherwise: dict[str, Any] = {"run_id": "b-1", "intent": "Try it.", "owner": "ann"}
        if "checkpoint_every_s" in given and draw.random() < 0.5:  # as the command has it
            otherwise["checkpoint_every_steps"] = None
        new = prepare(
            given,
            config,
            found or CODE,
            family=example().name,
            origin=origin,
            policy=policy,
            otherwise=otherwise,
        )
        old = as_before(given, config, found, origin, policy, otherwise)
        assert values_of(new) == old, f"TRACKS_FIELDS_SEED={seed}, case {case}: {given}"
        code = (b"theirs", "/theirs") if found is None else (found.archive, found.folder)
        assert (new.archive, new.body.folder) == code


def test_a_row_is_an_option_that_is_handed_over_only_where_it_is_given() -> None:
    row = Field("room_count", Kind.COUNT, "Rooms of the model.", default=4)
    seen: list[dict[str, Any]] = []

    @click.command()
    @declared_options([row])
    def command(asked: dict[str, Any]) -> None:
        seen.append(asked)

    assert CliRunner().invoke(command, ["--room-count", "4"]).exit_code == 0
    assert CliRunner().invoke(command, []).exit_code == 0
    assert seen == [{"room_count": 4}, {}]
    words = CliRunner().invoke(command, ["--help"]).output
    assert "--room-count INTEGER  Rooms of the model.  [default: 4]" in words


def test_a_row_is_one_field_of_its_part_of_the_record_and_every_name_is_one_row() -> None:
    parts = {RunDeclared, ComputeRequest, CheckpointCadence, RetentionRule}
    for part in parts:
        own = [each.recorded or each.name for each in FIELDS if each.of is part]
        assert set(own) <= {each.name for each in fields(part)}
        assert len(own) == len(set(own))
    assert {each.name for each in FIELDS if each.of not in parts} == {
        *("snapshot_id", "skip_gates", "skip_why", "drills")
    }
    assert {each.name for each in RETENTION} == set(RULE)
    assert {each.name for each in COMPUTE} == set(COMPUTE_FIELDS)
    assert {each.name for each in CLUSTER} == set(CLUSTER_FIELDS)
    assert len(FIELDS) == len(NAMES)


def test_the_page_has_the_fields_of_today() -> None:
    page = FIELDS_PAGE.read_text("utf-8")
    assert page == with_fields(page), "run `.venv/bin/python -m tests.reference`"


def test_the_launchpad_reads_what_a_schedule_fills_in() -> None:
    given = {"run_id": "r-1", "stage": "full", "keep_last": 4, "cpus": 2.0, "ranks": 2}
    config = filling_in("gpt", given)
    assert config["project"] == {"gpt": {}}
    assert (config["retention"], config["cluster"]) == ({"keep_last": 4}, {"cpus": 2.0})
    assert read_in(config) == {"project": {"gpt": {}}, **given}


def test_the_default_of_a_row_is_that_of_its_field() -> None:
    expected = {**PLAIN, "snapshot_id": None}
    expected |= {name: getattr(RetentionRule(), name) for name in RULE}
    assert expected == DEFAULTS

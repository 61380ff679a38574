"""Asks the gates of a stage when a run is declared: what was shown is read from the ledger.

Every way to declare a run comes through `shown_ready`: the command line, the launchpad, a schedule; and
so does a gang on a cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from tracks_dagster.attempts.changed_files import changed_files
from tracks_dagster.attempts.effects.preparing import GatesOfStudy, Prepared
from tracks_dagster.attempts.effects.stage_verdicts import JudgeStages, unjudged
from tracks_dagster.attempts.gates import (
    Shown,
    ShownCertificate,
    ShownRun,
    Subject,
    ask_gates,
    code_of,
    command_of,
    options_of,
    ran_otherwise,
    refusal,
    subject_of,
)
from tracks_dagster.ledger.effects.deciding import settle
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.projects.effects.certificates import certificates
from tracks_dagster.retry.contracts import check_may
from tracks_dagster.retry.policy import RetryPolicy
from tracks_dagster.retry.stages import JUDGED, StagePolicy
from tracks_dagster.track.addressed import read_addressed
from tracks_dagster.track.bodies import (
    CERTIFIES,
    GATES,
    ComputeRequest,
    RunDeclared,
    SkippedGates,
    SnapshotRef,
)
from tracks_dagster.track.errors import InvalidInput, ObjectLost
from tracks_dagster.track.json_text import parse_json
from tracks_dagster.track.records import Json
from tracks_dagster.track.states.lifecycle import RunLifecycle
from tracks_dagster.track.text.nearest import unknown
from tracks_dagster.track.track import code_key

# What a gang would find: (what it asks for, key of its code, its own interpreter) → software, by name.
Foresee = Callable[[ComputeRequest, str, str | None], Mapping[str, Json]]

# Of that, what may make the same code another computation; a rank's threads are its machine's.
ENVIRONMENT = ("python", "torch", "cuda", "numpy", "platform", "image")
RUNS_MAX = 50  # of a stage, that are looked at


@dataclass(frozen=True, slots=True, kw_only=True)
class Door:
    """What asking needs. ledger: None knows of nothing that was shown; foresee: None of no software."""

    tracks: Tracks
    ledger: Ledger | None
    policy: RetryPolicy
    foresee: Foresee | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _World:
    """What the judge of stages needs."""

    tracks: Tracks
    ledger: Ledger
    policy: RetryPolicy


def check_skips(prepared: Prepared) -> None:
    """Raise InvalidInput for gates that there are not, and for skips without a reason."""
    for gate in prepared.skip_gates:
        if gate not in GATES:
            raise InvalidInput(unknown("gate", gate, list(GATES)))
    if prepared.skip_gates and not (prepared.skip_why or "").strip():
        raise InvalidInput(
            f"{', '.join(prepared.skip_gates)} cannot be skipped without a reason, which is "
            'recorded: --why "…" (skip_why in the launchpad).'
        )
    if prepared.skip_why is not None and not prepared.skip_gates:
        raise InvalidInput("--why says why a gate is skipped; name it: --skip-gate GATE.")


def shown_ready(door: Door, declared: RunDeclared, prepared: Prepared) -> RunDeclared:
    """Return the declaration with its key, and with what its stage needs and who showed it.

    Raises InvalidInput naming each gate that is closed, why, and the command that satisfies it.
    """
    declared = replace(declared, environment=_environment(door, declared))
    subject = subject_of(declared)
    skipped = (
        SkippedGates(gates=prepared.skip_gates, by=declared.owner, why=prepared.skip_why or "")
        if prepared.skip_gates
        else None
    )
    gate_key = None if declared.drills else subject.key
    declared = replace(declared, gate_key=gate_key, skipped=skipped)
    if prepared.passed_gates is not None:
        return replace(declared, passed_gates=prepared.passed_gates)
    stages, wanted = door.policy.stages, subject
    if prepared.gates_of is not None:
        stages, wanted = _as_of_study(stages, subject, prepared.gates_of, door.tracks.now())
    if skipped is not None:
        doing = f"{', '.join(skipped.gates)} cannot be skipped"
        governance = door.policy.contracts.governance
        check_may(governance, "may_waive", doing, skipped.by, declared.owner)
    if not stages.rule(declared.stage).needs:
        return declared
    shown = _shown(door, declared, wanted)
    answer = ask_gates(stages, declared.stage, wanted, shown, now=door.tracks.now())
    closed = {g: why for g, why in answer.closed.items() if g not in prepared.skip_gates}
    if closed:
        named = prepared.snapshot_id is not None
        options = options_of(declared, prepared.project, names_snapshot=named)
        commands = {gate: command_of(gate, options, declared) for gate in closed}
        changed = _changed(door.tracks, shown, wanted, prepared)
        words = refusal(declared.run_id, declared.stage, closed, commands, changed=changed)
        raise InvalidInput(words)
    return replace(declared, passed_gates=answer.passed)


def _as_of_study(
    stages: StagePolicy, subject: Subject, study: GatesOfStudy, now: datetime
) -> tuple[StagePolicy, Subject]:
    """Return by which rules, and for what, the gates of a trial are asked: its study's config, and what
    was not too old for that."""
    own = {key: value for key, value in subject.config.items() if key not in study.drawn}
    theirs = {key: study.config[key] for key in study.drawn if key in study.config}
    age_s = max(0.0, (now - study.at).total_seconds())
    aged = replace(stages, fresh_s=stages.fresh_s + age_s)
    return aged, replace(subject, config={**own, **theirs})


def _changed(tracks: Tracks, shown: Shown, subject: Subject, prepared: Prepared) -> str:
    """Say in which files the code differs from the newest run's; "" where in none, or nobody knows."""
    newest = max(shown.runs, key=lambda each: each.at, default=None)
    if newest is None:
        return ""
    code_sha256 = newest.subject.code_sha256
    if code_sha256 == subject.code_sha256:
        return ""
    try:
        stored = read_addressed(tracks.store, code_key(newest.run_id, code_sha256))
    except ObjectLost:  # what differs cannot be said; that the code differs is
        return ""
    names = changed_files(stored, prepared.archive)
    return f"The code is not that of {newest.run_id}: {names}." if names else ""


def _environment(door: Door, declared: RunDeclared) -> Mapping[str, Json]:
    compute, program = declared.compute, declared.program
    python = None if program is None else program.python
    found = {} if door.foresee is None else door.foresee(compute, declared.trainer, python)
    known = {name: found[name] for name in ENVIRONMENT if name in found}
    return {"launcher": compute.launcher, "device_class": compute.device_class, **known}


def _shown(door: Door, declared: RunDeclared, subject: Subject) -> Shown:
    ledger = door.ledger
    if ledger is None:
        return Shown()
    world = _World(tracks=door.tracks, ledger=ledger, policy=door.policy)
    for run_id in unjudged(ledger, declared.model_family):
        settle(world, JudgeStages(), run_id)
    asked = {"name": declared.model_family, "key": subject.key, "most": RUNS_MAX}
    needs = door.policy.stages.rule(declared.stage).needs
    rows = [
        row
        for stage in needs
        if stage not in CERTIFIES
        for row in ledger.query(_RUNS, {**asked, "stage": stage})
    ]
    found: dict[str, ShownCertificate] = {}
    newest = certificates(ledger, subject.code_sha256)
    for row in sorted(newest, key=_says_little):
        found.setdefault(row["what"], _certificate(row))  # the first counts
    return Shown(runs=[_run(door.tracks, row, subject.key) for row in rows], certificates=found)


# Those of the same key first, then the newest.
_RUNS = """
select run_id, stage, gate_key, trainer, config_json, roles_json, dataset, snapshot_id,
    environment_json, state, state_why, declared_at, finished_at, stage_passed, stage_why
from training_runs
where model_family = :name and gate_key is not null and stage = :stage
order by case when gate_key = :key then 0 else 1 end, declared_at desc, run_id desc
limit :most
"""


def _run(tracks: Tracks, row: Mapping[str, Json], key: str) -> ShownRun:
    """Return the run of a row; of the stages without verdicts, one that could open its gate is read."""
    snapshot = None
    is_read = row["stage"] not in JUDGED and row["gate_key"] == key
    is_read &= row["state"] == RunLifecycle.SUCCEEDED
    if row["dataset"] is not None:
        snapshot = SnapshotRef(dataset=row["dataset"], snapshot_id=row["snapshot_id"])
    return ShownRun(
        run_id=row["run_id"],
        stage=row["stage"],
        subject=Subject(
            code_sha256=code_of(row["trainer"]),
            config=parse_json(row["config_json"]),
            roles=parse_json(row["roles_json"]),
            snapshot=snapshot,
            environment=parse_json(row["environment_json"]),
        ),
        state=row["state"],
        why=row["state_why"],
        at=row["finished_at"] or row["declared_at"],
        passed=row["stage_passed"],
        verdict=row["stage_why"] or "",
        otherwise=ran_otherwise(tracks.run(row["run_id"])) if is_read else None,
    )


def _says_little(row: Mapping[str, Json]) -> bool:
    """Whether tests were left out and none failed: that takes nothing from a certificate before it."""
    return bool(row["left_out_count"]) and not row["failed_count"]


def _certificate(row: Mapping[str, Json]) -> ShownCertificate:
    found = parse_json(row["findings_json"])
    counts = (
        f"{row['passed_count']} passed, {row['failed_count']} failed, "
        f"{row['left_out_count']} left out"
    )
    return ShownCertificate(
        what=row["what"],
        is_green=row["is_green"],
        name=f"{row['code_sha256'][:12]} by {row['certified_by']}",
        at=row["certified_at"],
        words=f"{counts}{': ' + ', '.join(found) if found else ''}",
    )

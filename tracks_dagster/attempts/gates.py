"""Whether a run may be declared: what its stage needs, shown with the same key, and not long ago.

The key is of the code, the config, the data and the environment; not of how long, on how many ranks and
from which seed: a smoke of twenty steps on one rank shows the wiring of the full run. Pure:
`effects.gates` reads what was shown from the ledger.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import PurePosixPath

from tracks_dagster.holds.hold import short_id
from tracks_dagster.projects.project import Project
from tracks_dagster.retry.environments import Difference
from tracks_dagster.retry.stages import CANARY, JUDGED, KITCHEN_SINK, SMOKE, StagePolicy
from tracks_dagster.track.bodies import (
    CERTIFIES,
    CONFORM,
    TESTS,
    RunDeclared,
    SkippedGates,
    SnapshotRef,
    StageJudged,
)
from tracks_dagster.track.json_text import parse_json
from tracks_dagster.track.names import LOCAL
from tracks_dagster.track.records import Json, canonical_json, sha256_hex
from tracks_dagster.track.roles import (
    ACCUMULATION,
    GLOBAL_BATCH,
    MICRO_BATCH,
    SEED,
    STEPS,
    Roles,
    key_of,
)
from tracks_dagster.track.states.accounting import kept_and_lost
from tracks_dagster.track.states.checkpoints import checkpoint_at
from tracks_dagster.track.states.run_state import AttemptState, RunState, trainer_of
from tracks_dagster.track.text.units import about, duration

DIFFERENCES_SHOWN = 4
CLOCKS_APART_S = 3600.0  # at most; what is dated further ahead was dated by a wrong clock


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What a key is of. config: the whole one; environment: what the gang will find, by name.

    Where the config has a global batch, how it is divided follows the ranks, and is not a part of the
    key.
    """

    code_sha256: str
    config: Mapping[str, Json]
    roles: Roles
    snapshot: SnapshotRef | None
    environment: Mapping[str, Json]

    @property
    def parts(self) -> dict[str, dict[str, Json]]:
        """Return what the key is of: by part, what is compared by name."""
        left_out = parts_left_out(self.config, self.roles)
        snapshot = self.snapshot
        return {
            "code": {"code": self.code_sha256},
            "config": {name: v for name, v in self.config.items() if name not in left_out},
            "data": {
                "dataset": None if snapshot is None else snapshot.dataset,
                "snapshot": None if snapshot is None else snapshot.snapshot_id,
            },
            "environment": dict(self.environment),
        }

    @property
    def key(self) -> str:
        """Return the sha256 of the parts."""
        return sha256_hex(canonical_json(self.parts))

    def is_shown_by(self, other: Subject, stage: str) -> bool:
        """Whether what a run of that stage and of `other` shows is shown of this: by the key; in the
        kitchen sink, a small model on all data, by the code and the data alone."""
        if stage == KITCHEN_SINK:
            return (self.code_sha256, self.snapshot) == (other.code_sha256, other.snapshot)
        return self.key == other.key

    def differences(self, other: Subject) -> tuple[Difference, ...]:
        """Return what differs from `other` to this; what one of the two lacks is None."""
        mine, theirs = self.parts, other.parts
        return tuple(
            Difference(
                key=f"environment {name}" if part == "environment" else name,
                saved=theirs[part].get(name),
                found=mine[part].get(name),
            )
            for part in mine
            for name in dict.fromkeys((*mine[part], *theirs[part]))
            if mine[part].get(name) != theirs[part].get(name)
        )


def subject_of(declared: RunDeclared) -> Subject:
    """Return what the key of a declared run is of."""
    return Subject(
        code_sha256=code_of(declared.trainer),
        config=declared.config,
        roles=declared.roles,
        snapshot=declared.snapshot,
        environment=declared.environment,
    )


def code_of(trainer: str) -> str:
    """Return the sha256 of the stored code with that key; the word of an older version's family."""
    return PurePosixPath(trainer).stem


def ran_otherwise(state: RunState) -> str | None:
    """Say in what a finished run shows something else than what it was declared with; None: in nothing.

    A remedy or a person may change the config, the code, the data and the place between its attempts,
    and somebody the software before its gang starts. Attempts whose steps were all lost do not count.
    """
    wanted, stage = subject_of(state.declared), state.declared.stage
    accounts = kept_and_lost(state)
    if all(each.last <= each.resume for each in accounts):
        return "it trained no step"
    for attempt, account in zip(state.attempts, accounts, strict=True):
        ran = _subject_of_attempt(state, attempt)
        is_part = account.kept or attempt is state.attempts[-1]
        if is_part and not wanted.is_shown_by(ran, stage):
            differ = _listed(ran.differences(wanted))
            return f"attempt {attempt.attempt_id} was not as declared: {differ}"
    return None


def _subject_of_attempt(state: RunState, attempt: AttemptState) -> Subject:
    opened, declared = attempt.opened, state.declared.environment
    environment = {
        **declared,
        "launcher": opened.compute.launcher,
        "device_class": opened.compute.device_class,
    }
    if (placed := attempt.placed) is not None:
        found = {**placed.environment, "image": placed.image}
        environment |= {name: value for name, value in found.items() if name in declared}
    return Subject(
        code_sha256=code_of(trainer_of(state, attempt)),
        config=opened.config,
        roles=state.declared.roles,
        snapshot=opened.snapshot,
        environment=environment,
    )


def parts_left_out(config: Mapping[str, Json], roles: Roles) -> set[str | None]:
    """Return the keys of a config that are not part of a key."""
    out = [STEPS, SEED]
    if key_of(config, roles, GLOBAL_BATCH) is not None:
        out += [MICRO_BATCH, ACCUMULATION]
    return {key_of(config, roles, role) for role in out}


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownRun:
    """A run of a stage. state, why: as of the run. passed: the verdict on a run of a stage of JUDGED,
    None before there is one; verdict: its words. at: when it finished, else was declared. otherwise: as
    `ran_otherwise` says, of a stage without verdicts."""

    run_id: str
    stage: str
    subject: Subject
    state: str
    why: str
    at: datetime
    passed: bool | None = None
    verdict: str = ""
    otherwise: str | None = None

    @property
    def problem(self) -> str | None:
        """Say why it shows nothing; None where it does."""
        if self.state != "succeeded":
            return f"is {self.state}: {self.why}"
        if self.stage in JUDGED and not self.passed:
            return f"did not pass: {self.verdict or 'it was not judged'}"
        if self.otherwise is not None:
            return f"does not count: {self.otherwise}"
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownCertificate:
    """The certificate that counts, of one kind and code. words: what is wrong where it is not green."""

    what: str
    is_green: bool
    name: str
    at: datetime
    words: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What was shown so far. runs: of the project and of stages that are needed, newest first;
    certificates: of the code, by kind."""

    runs: Sequence[ShownRun] = ()
    certificates: Mapping[str, ShownCertificate] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class GateAnswer:
    """passed: by gate, the run or certificate that opened it. closed: by gate, why not, in words."""

    passed: Mapping[str, str]
    closed: Mapping[str, str]


def ask_gates(
    policy: StagePolicy, stage: str, wanted: Subject, shown: Shown, *, now: datetime
) -> GateAnswer:
    """Return which gates of `stage` are open to a run of `wanted`."""
    passed: dict[str, str] = {}
    closed: dict[str, str] = {}
    for gate in policy.rule(stage).needs:
        if gate in CERTIFIES:
            found, why = _certified(gate, wanted, shown, policy.fresh_s, now)
        else:
            found, why = _rehearsed(gate, wanted, shown, policy.fresh_s, now)
        if found is not None:
            passed[gate] = found
        else:
            closed[gate] = why
    return GateAnswer(passed=passed, closed=closed)


def _certified(
    gate: str, wanted: Subject, shown: Shown, fresh_s: float, now: datetime
) -> tuple[str | None, str]:
    """Return the name of the certificate that opens the gate, or None and why none does."""
    found = shown.certificates.get(gate)
    if found is None:
        return None, f"none of this code ({wanted.code_sha256[:12]})"
    if not found.is_green:
        return None, f"the newest of this code is not green: {found.words}"
    if (old := _too_old(found.at, fresh_s, now)) is not None:
        return None, f"the newest of this code is {old}"
    return found.name, ""


def _rehearsed(
    stage: str, wanted: Subject, shown: Shown, fresh_s: float, now: datetime
) -> tuple[str | None, str]:
    """Return the run that opens the gate, or None and why the nearest one does not."""
    of_stage = [each for each in shown.runs if each.stage == stage]
    same = [each for each in of_stage if wanted.is_shown_by(each.subject, stage)]
    for each in same:
        if each.problem is None and _too_old(each.at, fresh_s, now) is None:
            return each.run_id, ""
    if same:
        newest = same[0]
        old = newest.problem or f"is {_too_old(newest.at, fresh_s, now)}"
        return None, f"the newest with this key, {newest.run_id}, {old}"
    if not of_stage:
        return None, "there is none of this project"
    compared = [(each, wanted.differences(each.subject)) for each in of_stage]
    nearest, differ = min(compared, key=lambda pair: len(pair[1]))
    return None, f"none with this key; from the nearest, {nearest.run_id}: {_listed(differ)}"


def _too_old(at: datetime, fresh_s: float, now: datetime) -> str | None:
    age_s = (now - at).total_seconds()
    if age_s < -CLOCKS_APART_S:
        return f"dated {about(-age_s)} after now: the clock was wrong then, or is now"
    if age_s <= fresh_s:
        return None
    return f"{about(age_s)} old, and {duration(fresh_s)} count"


def _listed(differ: Sequence[Difference]) -> str:
    shown = ", ".join(each.words for each in differ[:DIFFERENCES_SHOWN])
    more = len(differ) - DIFFERENCES_SHOWN
    return f"{shown} and {more} more" if more > 0 else shown


def options_of(
    declared: RunDeclared, project: Project | None, *, names_snapshot: bool = False
) -> list[str]:
    """Return the options of `tracks run` that give a run of another stage the same key: its code, and
    what differs from what the project's file says. names_snapshot: it is not just the newest one."""
    keys = {} if project is None else project.keys
    left_out = parts_left_out(declared.config, declared.roles)
    options = _code_options(declared)
    for name, value in sorted(declared.config.items()):
        if name not in left_out and (name not in keys or keys[name].default != value):
            options += ["--set", f"{name}={_as_given(value)}"]
    if names_snapshot and declared.snapshot is not None:
        options += ["--snapshot", short_id(declared.snapshot)]
    compute = declared.compute
    if compute.launcher != LOCAL:
        options += ["--on", compute.launcher]
    if project is not None and compute.device_class != project.value("device_class"):
        options += ["--device-class", compute.device_class]
    return options


def _code_options(declared: RunDeclared) -> list[str]:
    """Return what names its code: of a branch its source, else a script or a folder."""
    source, program = declared.branched_from, declared.program
    if source is not None:
        return ["--from", checkpoint_at(source), "--from-attempt", str(source.attempt_id)]
    if declared.folder is None:
        return []
    if program is not None and program.takes_any_key:
        return ["--trainer", str(PurePosixPath(declared.folder) / program.entry[0])]
    return ["--project", declared.folder]


def _as_given(value: Json) -> str:
    """Return a value so that `--set` reads the same one: text that reads as JSON is quoted."""
    if not isinstance(value, str):
        return json.dumps(value)
    try:
        parse_json(value)
    except json.JSONDecodeError:
        return value
    except ValueError:  # JSON that is refused, such as NaN: as a text it is quoted
        return json.dumps(value)
    return json.dumps(value)


def command_of(gate: str, options: Sequence[str], declared: RunDeclared) -> str:
    """Return the command that satisfies a gate; options: of `tracks run`, for the same key."""
    if gate in CERTIFIES and declared.program is not None and declared.program.takes_any_key:
        return "a script alone has none, `tracks init` in its folder makes a project of it"
    where = "the project's folder" if declared.folder is None else declared.folder
    if gate == TESTS:
        return f"`pytest --tracks` in {where}"
    if gate == CONFORM:
        return f"`tracks conform` in {where}"
    of_stage = gate if gate in (SMOKE, CANARY) else f"run --stage {gate}"
    return f"`{shlex.join(['tracks', *of_stage.split(), *options])}`"


def refusal(
    run_id: str,
    stage: str,
    closed: Mapping[str, str],
    commands: Mapping[str, str],
    *,
    changed: str = "",
) -> str:
    """Return the refusal: each gate that is closed, why, and the command that satisfies it.

    changed: in which files the code differs from what was shown, in words.
    """
    lines = [f"{gate}: {why}; {commands[gate]}." for gate, why in closed.items()]
    lines += [changed] if changed else []
    skip = " ".join(f"--skip-gate {gate}" for gate in closed)
    return "\n".join(
        [
            f"Refused by policy stages.{stage}.needs: {run_id} was not shown to be ready.",
            *(f"  {line}" for line in lines),
            f'{skip} --why "…" declares it anyway; the gate and the reason are recorded.',
        ]
    )


def gate_lines(declared: RunDeclared, judged: StageJudged | None) -> Iterator[str]:
    """Yield which gates the run skipped, which it passed and by what, and what it shows."""
    if declared.skipped is not None:
        yield skipped_words(declared.skipped)
    if declared.passed_gates:
        passed = ", ".join(f"{gate} {name}" for gate, name in declared.passed_gates.items())
        yield f"Declared as {declared.stage}; passed gates: {passed}."
    if judged is not None:
        verdict = "passed" if judged.passed else "did not pass"
        yield f"As a {judged.stage} it {verdict}: {judged.why}."


def skipped_words(skipped: SkippedGates) -> str:
    """Return what a run was declared without, by whom and why."""
    return f"Declared without {', '.join(skipped.gates)}, by {skipped.by}: {skipped.why}"

"""Declare a training run: from what was prepared to the first two records of its track.

Everything is checked before anything is written. The command line, the launchpad job and the
schedules of projects all come through `declare`; launching the attempt that it opens is
`attempts.launch`'s work. `FirstAttempts` is the decider that opens the first attempt of a run without
one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from tracks_dagster.attempts.drills import fit_drill, parse_drill
from tracks_dagster.attempts.effects.gates import (
    Door,
    Foresee,
    check_skips,
    shown_ready,
)
from tracks_dagster.attempts.effects.preparing import Prepared
from tracks_dagster.attempts.expectation import question_of, times_its_source
from tracks_dagster.attempts.ports import SCRIPT, GangSpec, RankCommand
from tracks_dagster.attempts.run_config import (
    CheckGang,
    check_cadence,
    check_compute,
    check_ranks,
    refuse_secrets,
)
from tracks_dagster.checkpoints.effects.pins import pin_source
from tracks_dagster.checkpoints.retention import check_rule
from tracks_dagster.data.effects.snapshots import find_snapshot
from tracks_dagster.holds.effects.holds import Holds
from tracks_dagster.holds.effects.starts import refuse_declaration, start_or_refuse
from tracks_dagster.holds.hold import stop_of
from tracks_dagster.ledger.deciding import Answer, Append, Wait
from tracks_dagster.ledger.effects.deciding import HasTracks
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.projects.project import (
    Project,
    program_of_project,
    requirement_of,
    resolve_config,
)
from tracks_dagster.retry.contracts import (
    refused,
)
from tracks_dagster.retry.default_policy import DEFAULT_POLICY
from tracks_dagster.retry.effects.due import runs_without_attempts
from tracks_dagster.retry.effects.node_health import avoid_now
from tracks_dagster.retry.policy import RetryPolicy
from tracks_dagster.retry.submission import check_declaration, check_trials
from tracks_dagster.scheduling.policy import SWEEP, SchedulingPolicy
from tracks_dagster.track.addressed import write_addressed
from tracks_dagster.track.bodies import (
    Alert,
    AttemptOpened,
    Drill,
    EvalRequirement,
    RunDeclared,
    SnapshotRef,
)
from tracks_dagster.track.declared_fields import TEXTS
from tracks_dagster.track.errors import InvalidInput, check_all
from tracks_dagster.track.names import (
    ALERT_FIRST_ATTEMPT_HELD,
    STAGES,
    WATCH_ATTEMPTS,
    check_run_id,
    run_track,
)
from tracks_dagster.track.ports import NewUid
from tracks_dagster.track.records import Draft, Json, Kind, Record, sha256_hex
from tracks_dagster.track.roles import GLOBAL_BATCH, STEPS, roles_of, value_of
from tracks_dagster.track.states.checkpoints import CheckpointRef, checkpoint_at
from tracks_dagster.track.states.run_state import RunState
from tracks_dagster.track.text.safe_text import check_words
from tracks_dagster.track.track import code_diff_key, code_key

DRILLS_MAX = 16
EXPERIMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
EVAL_SEED = 0  # every eval of a suite sees the same held-out samples in the same order

# Generous on purpose: the estimate only feeds the cap on a run's device-hours (1.5 times it, and
# never less than one hour), which stops a run that burns money without an end.
START_S_ESTIMATE = 60.0
STEP_S_ESTIMATE = 1.0


def declare(
    tracks: Tracks,
    prepared: Prepared,
    *,
    check_gang: CheckGang | None = None,
    policy: RetryPolicy = DEFAULT_POLICY,
    ledger: Ledger | None = None,
    foresee: Foresee | None = None,
    checks: Sequence[Callable[[], None]] = (),
) -> RunDeclared:
    """Record the run and open its first attempt; return the declaration in the track.

    Idempotent: a run of that id that exists is left as it is, and only a first attempt that a killed
    caller did not come to open is opened. check_gang: refuses what the launcher could not start;
    policy: has the workload classes, the teams, the stages, and what is asked of a declaration; ledger:
    counts the trials of an experiment, and has what was shown for a stage; foresee: tells what the gang
    would find; checks: what else the policy asks, of which each raises InvalidInput. Raises
    InvalidInput with all that is refused, and nothing written.
    """
    run_id, by = prepared.run_id, prepared.body.owner
    state = tracks.find_run(check_run_id(run_id))
    if state is None:
        declared = plan_run(
            tracks, prepared, policy=policy, ledger=ledger, foresee=foresee, checks=checks
        )
        if check_gang is not None:
            check_gang(first_gang(declared, tracks.store.url, policy.scheduling))
        if declared.branched_from is not None:  # pinned before anybody relies on it
            pin_source(tracks, declared.branched_from, run_id, by=by)
        # Before the record: from then on the watcher may open the attempt that needs it. A caller
        # killed here leaves code without a run, which nobody takes for one.
        write_addressed(tracks.store, declared.trainer, prepared.archive)
        if prepared.code_diff is not None and declared.code.diff_sha256 is not None:
            key = code_diff_key(run_id, declared.code.diff_sha256)
            write_addressed(tracks.store, key, prepared.code_diff)
        tracks.declare_run(declared)
    open_first_attempt(tracks, run_id, decided_by=by)
    # A caller killed between its append and the projection left a run that no sensor sees.
    tracks.project(run_track(run_id))
    return tracks.run(run_id).declared


def open_first_attempt(tracks: Tracks, run_id: str, *, decided_by: str) -> Record | None:
    """Open the first attempt of a declared run; None when it was opened before, or the run stops.

    Idempotent.

    Raises InvalidInput when its snapshot was quarantined after it was declared.
    """
    return tracks.decide_run(run_id, lambda state: first_attempt(tracks, state, decided_by))


def first_attempt(tracks: Tracks, state: RunState | None, decided_by: str) -> Draft | None:
    """Return the record that opens the first attempt; None when it was opened, or is not wanted.

    Raises InvalidInput while its snapshot, or all that it could resume from, is on hold.
    """
    if state is None or state.attempts or state.finished is not None:
        return None
    if stop_of(state) is not None:
        return None
    declared = state.declared
    doing = f"The first attempt of {state.run_id} cannot be opened"
    holds = Holds(tracks).on_run(state, tracks.now())
    start_or_refuse(state, declared.snapshot, holds, doing=doing)
    opened = AttemptOpened(
        cause="first",
        decided_by=decided_by,
        decision=_first_decision(declared.branched_from),
        config=declared.config,
        compute=declared.compute,
        snapshot=declared.snapshot,
        resume=state.resumes_from,
        counted_seqs=(state.head.seq,),
    )
    return tracks.draft(Kind.ATTEMPT_OPENED, avoid_now(tracks, opened), attempt_id=1)


def check_prepared(prepared: Prepared) -> dict[str, Json]:
    """Check all that needs no store, and return the run's whole config.

    Raises InvalidInput.
    """
    body, config = prepared.body, dict[str, Json]()
    check_all(
        partial(check_run_id, body.run_id),
        partial(_check_texts, prepared),
        partial(check_skips, prepared),
        partial(_check_experiment, body),
        partial(_check_stage, body.stage),
        lambda: config.update(_config(prepared)),
        partial(_check_snapshot_has_dataset, prepared),
        partial(check_compute, body.compute),
        partial(
            check_cadence,
            body.cadence,
            may_be_off=prepared.checkpoints_may_be_off,
            saves_itself=prepared.project.by_files,
        ),
        partial(check_rule, body.retention),
    )
    check_all(partial(_check_branch_steps, prepared, config), partial(_drills, prepared, config))
    return config


def _check_texts(prepared: Prepared) -> None:
    texts = {
        "the reason to skip a gate" if row.name == "skip_why" else row.name: prepared.value(row)
        for row in TEXTS
    }
    check_words({name: text for name, text in texts.items() if text is not None})


def _check_stage(stage: str) -> None:
    if stage not in STAGES:
        raise InvalidInput(f"There is no stage {stage!r}; use {', '.join(STAGES)}.")


def check_queue(declared: RunDeclared, scheduling: SchedulingPolicy) -> None:
    """Raise InvalidInput for a workload class that the policy does not have."""
    if declared.workload_class is not None:
        scheduling.check_class(declared.workload_class)


def ask_expectation(tracks: Tracks, prepared: Prepared) -> str | None:
    """Return what has to be said before a branch that costs much more than its source, or None."""
    body = prepared.body
    if body.branched_from is None or body.expect is not None:
        return None
    source = tracks.run(body.branched_from.run_id)
    config, roles = _config(prepared), prepared.project.roles
    steps, batch = (value_of(config, roles, role) for role in (STEPS, GLOBAL_BATCH))
    times = times_its_source(
        source,
        steps=steps - prepared.steps_done if type(steps) is int else None,
        ranks=body.compute.ranks,
        global_batch=batch if type(batch) is int else None,
    )
    return None if times is None else question_of(body.run_id, source, times)


def plan_run(
    tracks: Tracks,
    prepared: Prepared,
    *,
    policy: RetryPolicy = DEFAULT_POLICY,
    ledger: Ledger | None = None,
    foresee: Foresee | None = None,
    checks: Sequence[Callable[[], None]] = (),
) -> RunDeclared:
    """Return what `declare` would record, and write nothing but verdicts that were due.

    Raises InvalidInput with everything that the policy refuses.
    """
    config = check_prepared(prepared)
    body, project = prepared.body, prepared.project
    check_queue(body, policy.scheduling)
    _check_baseline(tracks, body)
    if (question := ask_expectation(tracks, prepared)) is not None:
        raise InvalidInput(question)
    started = {"entry": " ".join(project.entry), "watch": " ".join(project.watch)}
    place = {} if body.folder is None else {"project folder": body.folder}
    measured = {"evals": [" ".join(each.entry) for each in project.evals]}
    asked = {f"slurm {name}": value for name, value in body.compute.slurm.items()}
    recorded = {"run id": body.run_id, **started, **measured, **place, **asked, **config}
    refuse_secrets(recorded, tracks.clean)
    code_sha256 = sha256_hex(prepared.archive)
    refuse_declaration(tracks, body.run_id, body.code, code_sha256, body.branched_from)
    steps = value_of(config, project.roles, STEPS)
    snapshot = _snapshot(tracks, prepared)
    declared = replace(
        body,
        config=config,
        snapshot=snapshot,
        estimated_device_s=estimate_device_s(steps - prepared.steps_done, body.compute.ranks)
        if type(steps) is int
        else None,
        evals=_evals(tracks, project, snapshot),
        drills=_drills(prepared, config),
        trainer=code_key(body.run_id, code_sha256),
        program=program_of_project(project),
        roles=roles_of(project.roles, config),
    )
    door = Door(tracks=tracks, ledger=ledger, policy=policy, foresee=foresee)
    shown: list[RunDeclared] = []
    check_all(
        partial(_check_team, body.team, policy.scheduling),
        partial(_check_policy, declared, policy, ledger),
        *checks,
        lambda: shown.append(shown_ready(door, declared, prepared)),
    )
    return shown[0]


def _check_team(team: str, scheduling: SchedulingPolicy) -> None:
    try:
        scheduling.check_team(team)
    except InvalidInput as error:
        raise refused("scheduling.teams", str(error)) from error


def _check_policy(declared: RunDeclared, policy: RetryPolicy, ledger: Ledger | None) -> None:
    """Raise InvalidInput with what the policy asks of a declaration, and of the trials before it."""
    class_name = policy.scheduling.class_name(declared.workload_class)
    check_declaration(policy.contracts, declared, class_name=class_name)
    if class_name == SWEEP and declared.experiment is not None and ledger is not None:
        trials = _trials(ledger, declared.experiment, policy.scheduling)
        check_trials(policy.contracts, declared.experiment, trials)


def _check_experiment(declared: RunDeclared) -> None:
    name = declared.experiment
    if name is None and declared.baseline is not None:
        raise InvalidInput(
            f"--baseline {declared.baseline} belongs to an experiment; give --experiment NAME too."
        )
    if name is not None and not EXPERIMENT.fullmatch(name):
        raise InvalidInput(
            f"{name!r} cannot name an experiment: use 1 to 64 letters, digits, '.', '_' and '-', "
            "a letter or digit first, for example wider-model."
        )


def _check_baseline(tracks: Tracks, declared: RunDeclared) -> None:
    if declared.baseline is not None and tracks.find_run(check_run_id(declared.baseline)) is None:
        raise InvalidInput(
            f"There is no training run {declared.baseline!r} to be the baseline of "
            f"{declared.experiment}; `tracks status` lists the runs."
        )


def _trials(ledger: Ledger, experiment: str, scheduling: SchedulingPolicy) -> int:
    """Return how many runs of the class `sweep` the experiment has."""
    [row] = ledger.query(
        "select count(*) as trials from training_runs where experiment = :experiment and "
        "coalesce(workload_class, :default_class) = :sweep",
        {"experiment": experiment, "default_class": scheduling.default_class, "sweep": SWEEP},
    )
    return int(row["trials"])


def _config(prepared: Prepared) -> dict[str, Json]:
    ranks = prepared.body.compute.ranks
    check_ranks(ranks)
    return resolve_config(prepared.project, prepared.body.config, ranks=ranks)


def _check_snapshot_has_dataset(prepared: Prepared) -> None:
    """Raise InvalidInput for a snapshot of a project that names no dataset."""
    if prepared.project.dataset is None and prepared.snapshot_id is not None:
        raise InvalidInput(
            f"{prepared.snapshot_id!r} names a snapshot of no dataset: {prepared.body.model_family} "
            "has none. Name one in tracks.yaml, dataset: NAME."
        )


def _snapshot(tracks: Tracks, prepared: Prepared) -> SnapshotRef | None:
    dataset = prepared.project.dataset
    return None if dataset is None else find_snapshot(tracks, dataset, prepared.snapshot_id)


def first_gang(declared: RunDeclared, store_url: str, scheduling: SchedulingPolicy) -> GangSpec:
    """Return the first gang that the launcher will be asked to start, to check it beforehand.

    Its place in the track is not known yet, nor its code."""
    return GangSpec(
        run_id=declared.run_id,
        attempt_id=1,
        opened_seq=1,
        compute=declared.compute,
        store_url=store_url,
        command=RankCommand(words=(SCRIPT,)),  # no launcher refuses one
        workload_class=scheduling.class_name(declared.workload_class),
    )


def new_run_id(family: str, *, day: str, new_uid: NewUid) -> str:
    """Return a run id like `gpt-20260131-1f3a`, of the uid that is given; `day` is YYYYMMDD."""
    return check_run_id(f"{family}-{day}-{new_uid()[:4]}")


def estimate_device_s(steps: int, ranks: int) -> float:
    """Return device seconds that an undisturbed run may take, at a second a step.

    Example: 40 steps on 2 ranks, 2 × (60 s start + 40 × 1 s) = 200.
    """
    return ranks * (START_S_ESTIMATE + steps * STEP_S_ESTIMATE)


def _first_decision(source: CheckpointRef | None) -> str:
    start = "starts from scratch" if source is None else f"resumes from {checkpoint_at(source)}"
    return f"The run was declared; its first attempt {start}."


def _check_branch_steps(prepared: Prepared, config: Mapping[str, Json]) -> None:
    """Raise InvalidInput unless a branch has steps left: they count from step 0 of its source."""
    source, done = prepared.body.branched_from, prepared.steps_done
    steps = value_of(config, prepared.project.roles, STEPS)
    if source is not None and type(steps) is int and steps <= done:
        raise InvalidInput(
            f"A branch of {checkpoint_at(source)} to {steps} steps has nothing to do: "
            f"steps count in total, {done} are done; use --steps {done + 1} or more."
        )


def _evals(
    tracks: Tracks, project: Project, snapshot: SnapshotRef | None
) -> tuple[EvalRequirement, ...]:
    """Return the project's evals, those on its own dataset with the snapshot that the run trains on."""

    def on(dataset: str | None) -> SnapshotRef | None:
        if dataset is None or (snapshot is not None and snapshot.dataset == dataset):
            return None if dataset is None else snapshot
        return find_snapshot(tracks, dataset, None)

    return tuple(
        requirement_of(project, each, on(each.dataset), seed=EVAL_SEED) for each in project.evals
    )


def _drills(prepared: Prepared, config: Mapping[str, Json]) -> tuple[Drill, ...]:
    if len(prepared.drills) > DRILLS_MAX:
        raise InvalidInput(f"{len(prepared.drills)} drills are too many; use at most {DRILLS_MAX}.")
    drills = (parse_drill(text) for text in prepared.drills)
    roles, ranks = prepared.project.roles, prepared.body.compute.ranks
    return tuple(fit_drill(drill, config, roles, ranks=ranks) for drill in drills)


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstAttempts:
    """Opens the first attempt of a run whose declaring process did not come to it.

    A snapshot that was quarantined after the run was declared holds its first attempt back until
    somebody releases it or stops the run: that is an alert in the track, the same words once.
    """

    name: str = WATCH_ATTEMPTS

    def due(self, world: HasTracks) -> list[str]:
        """Return the runs without an attempt, oldest first."""
        return runs_without_attempts(world.ledger)

    def decide(self, state: RunState, world: HasTracks) -> Answer:
        """Return the first attempt, or the wait for a release; None when it is open or not wanted."""
        try:
            draft = first_attempt(world.tracks, state, self.name)
        except InvalidInput as error:
            why = (
                f"{error} It is opened by itself then; "
                f'`tracks stop {state.run_id} --why "…"` ends the run instead.'
            )
            is_known = any(alert.body.text == why for alert in state.alerts)
            alert = Alert(rule=ALERT_FIRST_ATTEMPT_HELD, text=why)
            return Wait(why=why, alert=None if is_known else alert)
        if draft is None:
            return None
        return Append(draft=draft, what="opened", why="its first attempt")

"""Supervise one attempt from the claim to its end, in the attempt's Dagster run.

A supervisor may come and go; training does not depend on it. It starts the gang or adopts the one
that lives, and acts only while its claim is the newest in the track. A supervisor that dies anywhere
here leaves nothing that the next one could not take up.
"""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from tracks_dagster.attempts.drills import claim_note, was_claimed
from tracks_dagster.attempts.effects.closing import close_attempt, find_attempt
from tracks_dagster.attempts.effects.evidence import (
    NO_PROBLEM,
    STOPPED_BEFORE_START,
    EndProblem,
)
from tracks_dagster.attempts.effects.gang_watch import POLL_S, GangWatch
from tracks_dagster.attempts.effects.resuming import check_resume
from tracks_dagster.attempts.machine import ProcessId
from tracks_dagster.attempts.ports import (
    DRAIN_GRACE_S,
    SCRIPT,
    ForeseeEnvironment,
    GangLauncher,
    GangPhase,
    GangReport,
    GangSpec,
    Orchestrator,
    RankCommand,
)
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.projects.effects.config_file import render_config
from tracks_dagster.projects.project import fill_entry
from tracks_dagster.reasons.evidence import START_FAILED, UNREACHABLE, Condition
from tracks_dagster.reasons.user_rules import NO_RULES, UserRules
from tracks_dagster.retry.policy import RetryPolicy
from tracks_dagster.retry.remediation import allocator_environment
from tracks_dagster.scheduling.effects.leases import DevicePool, no_devices
from tracks_dagster.scheduling.policy import SchedulingPolicy
from tracks_dagster.stores.journals import last_step
from tracks_dagster.track import names
from tracks_dagster.track.addressed import read_addressed
from tracks_dagster.track.bodies import AttemptSupervised, Drill, HeldDevices, Note, Program
from tracks_dagster.track.errors import (
    GangError,
    GangUnreachable,
    InvalidInput,
    NoDevices,
    ObjectLost,
)
from tracks_dagster.track.names import LOCAL, AttemptRef, attempt_key, run_track
from tracks_dagster.track.records import Draft, Json, Kind, format_time
from tracks_dagster.track.states.pool_state import Lease
from tracks_dagster.track.states.run_state import AttemptState, RunState, program_of, trainer_of

START_AGAIN_S = 10.0  # where the API server or the store could not be asked
START_S_MAX = 900.0  # after that a cluster that cannot be asked ends the attempt
OF_SUPERVISOR = "kill_run_worker"  # the drill that it plays itself
SHOW_AGAIN_S = 10.0  # where the ledger or Dagster took nothing
SHOW_ENDED_S_MAX = 30.0  # for what is not shown yet at the end; the watcher shows the rest

_log = logging.getLogger(__name__)


def _kill_this_process() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Supervisor:
    """One supervising process: its Dagster run, the machine it runs on, and its ports.

    foresee: the environment of a gang that would start now; policy: which differences from the one
    that wrote a checkpoint refuse a resume. rules: a user's own of the classifier.
    drain_grace_s: for a gang that is drained, to finish a step and save. on_growth: called with the
    run's state whenever its track has grown, to show it within about a second; False where more is left
    for the next look. What it raises ends no supervisor. monotonic: a steady clock, in seconds;
    process: this one, for the claim; die: ends it as SIGKILL does, for the drill that plays it.
    devices: of this machine, of which a gang that is started here needs a lease; None where they are
    not ours to give. lets_go: it looks once at the gang that it started or adopted, and leaves it to
    the sensor `watch_attempts`, so that its Dagster run holds no slot while training goes on.
    """

    tracks: Tracks
    gangs: GangLauncher
    orchestrator: Orchestrator
    foresee: ForeseeEnvironment
    policy: RetryPolicy
    dagster_run_id: str
    host: str
    sleep: Callable[[float], None]
    on_growth: Callable[[RunState], object]
    rules: UserRules = NO_RULES
    drain_grace_s: float = DRAIN_GRACE_S
    monotonic: Callable[[], float] = time.monotonic
    process: ProcessId | None = None
    devices: DevicePool | None = None
    lets_go: bool = False
    die: Callable[[], None] = _kill_this_process

    def supervise(self, run_id: str, attempt_id: int) -> AttemptState | None:
        """Claim the attempt, see it to its end and return it ended, or open where this one lets go.

        None when a newer claim took over: this one has to go at once and touch nothing more. Raises
        UnknownRun, InvalidInput when the attempt has ended already, and NoDevices, with nothing
        started, when its devices were given to somebody else.
        """
        ref = AttemptRef(run_id, attempt_id)
        problem = self._start_or_adopt(ref, self._claim(ref))
        if problem is None:
            return self._watch(ref)
        # A start may take long, and fail because a newer supervisor was at it too.
        _, attempt = find_attempt(self.tracks, ref)
        if attempt.is_open and not self._has_claim(attempt):
            return None
        return self._close(ref, problem)

    def _claim(self, ref: AttemptRef) -> AttemptState:
        """Append `attempt_supervised`: from here on older supervisors let go."""
        own = self.process
        body = AttemptSupervised(
            dagster_run_id=self.dagster_run_id,
            host=self.host,
            pid=own.pid if own else None,
            pid_started=own.started if own else None,
            boot_id=own.boot_id if own else None,
            held=self._devices_of(ref),
            lets_go=self.lets_go,
        )
        draft = self.tracks.draft(Kind.ATTEMPT_SUPERVISED, body, attempt_id=ref.attempt_id)

        def choose(state: RunState | None) -> Draft | None:
            attempt = state.attempt(ref.attempt_id) if state else None
            is_free = attempt is not None and attempt.is_open and not self._has_claim(attempt)
            return draft if is_free else None

        find_attempt(self.tracks, ref)
        self.tracks.decide_run(ref.run_id, choose)
        _, attempt = find_attempt(self.tracks, ref)
        if not attempt.is_open:
            raise InvalidInput(
                f"Attempt {ref.key} has ended ({attempt.reason}) and stays "
                f"as it is; `tracks retry {ref.run_id} --why …` opens the next one, `tracks explain "
                f"{ref.key}` says what happened."
            )
        return attempt

    def _devices_of(self, ref: AttemptRef) -> HeldDevices | None:
        """Return the devices that the gang runs on; raises NoDevices where it may not start.

        Only a lease that is confirmed says so: any other one may end before something starts on it.
        """
        if self.devices is None:
            return None
        is_new = self._is_to_start(ref)
        lease = self._confirm(self.devices, ref) if is_new else self.devices.find(ref.key)
        return (
            None if lease is None or lease.confirmed_at is None else self.devices.devices_of(lease)
        )

    def _confirm(self, devices: DevicePool, ref: AttemptRef) -> Lease:
        """From here on no time ends the lease; raises NoDevices."""
        lease = devices.confirm(ref.key, self.dagster_run_id)
        if lease is None:
            raise no_devices(ref.key)
        return lease

    def _is_to_start(self, ref: AttemptRef) -> bool:
        """Whether the attempt's gang would be started now: it had none, and nobody wants its end."""
        state, attempt = find_attempt(self.tracks, ref)
        if not attempt.is_open or attempt.placed is not None or state.stop_for(attempt) is not None:
            return False
        return self.gangs.glance(ref).phase is GangPhase.NEVER_STARTED

    def _start_or_adopt(self, ref: AttemptRef, attempt: AttemptState) -> EndProblem | None:
        """See to it that the gang lives; return why it cannot any more, or None."""
        give_up_at = self.monotonic() + START_S_MAX
        is_noted = False
        while True:
            try:
                return self._start_or_adopt_once(ref, attempt)
            except GangUnreachable as error:
                if self.monotonic() >= give_up_at:
                    return EndProblem(
                        message=str(error), conditions=self._start_failed(attempt, error)
                    )
                if not is_noted:
                    self._note_waiting(ref, error)
                is_noted = True
            self.sleep(START_AGAIN_S)
            _, attempt = find_attempt(self.tracks, ref)
            if not attempt.is_open or not self._has_claim(attempt):
                return None  # the first look of the watch lets go

    def _start_or_adopt_once(self, ref: AttemptRef, attempt: AttemptState) -> EndProblem | None:
        """Raises GangUnreachable where another try may succeed."""
        phase = self.gangs.observe(ref).phase
        if phase is not GangPhase.NEVER_STARTED:
            return None  # alive: adopted; gone: closed by the first look at it
        if attempt.placed is not None:
            return EndProblem(
                message="The launch that was placed does not live here, and no second one is started."
            )
        state, attempt = find_attempt(self.tracks, ref)
        if state.stop_for(attempt) is not None:
            return STOPPED_BEFORE_START
        if (refused := self._refuse_resume(state, attempt)) is not None:
            return refused
        try:
            spec = gang_spec(self.tracks, state, attempt, self.policy.scheduling)
            self.gangs.start(self._on_devices(ref, spec))
        except (GangUnreachable, NoDevices):
            raise
        except GangError as error:
            return EndProblem(message=str(error), conditions=self._start_failed(attempt, error))
        return None

    def _on_devices(self, ref: AttemptRef, spec: GangSpec) -> GangSpec:
        """Return what to start, on the devices that the attempt was given; raises NoDevices."""
        if self.devices is None:
            return spec
        given = self.devices.environment(self._confirm(self.devices, ref))
        return replace(spec, environment={**spec.environment, **given})

    def _note_waiting(self, ref: AttemptRef, error: GangError) -> None:
        """Say in the track, once, why the gang has not begun: a person may be able to help."""
        again = f"It is asked again every {START_AGAIN_S:g} s, for {START_S_MAX:g} s."
        note = Note(by="supervisor", text=f"{self.tracks.clean(str(error))} {again}")
        draft = self.tracks.draft(Kind.NOTE, note, attempt_id=ref.attempt_id)
        self.tracks.note_run(ref.run_id, draft)

    def _start_failed(self, attempt: AttemptState, error: GangError) -> tuple[Condition, ...]:
        """Return a cluster's refusal of the gang; on this machine there is none beside the error."""
        launcher = attempt.opened.compute.launcher
        if launcher == LOCAL:
            return ()
        refused = Condition(
            type=START_FAILED,
            reason=UNREACHABLE if isinstance(error, GangUnreachable) else "",
            message=str(error),
            at=format_time(self.tracks.now()),
            source=launcher,
        )
        return (refused,)

    def _refuse_resume(self, state: RunState, attempt: AttemptState) -> EndProblem | None:
        """Return why the attempt may not resume as opened; None if it may, differences noted."""
        resume = check_resume(
            self.tracks, state, attempt, foresee=self.foresee, rules=self.policy.environment
        )
        if resume.refusal is not None:
            return EndProblem(message=resume.refusal.message, conditions=(resume.refusal,))
        if resume.note is not None:
            draft = self.tracks.draft(Kind.NOTE, resume.note, attempt_id=attempt.attempt_id)
            self.tracks.note_run(state.run_id, draft)
        return None

    def _watch(self, ref: AttemptRef) -> AttemptState | None:
        """Look every `POLL_S` until the attempt ends, as long as training takes; once with `lets_go`.

        What it shows comes last in a look: nobody waits for it.
        """
        shown_seq, show_at = -1, 0.0
        watch = GangWatch(
            tracks=self.tracks,
            gangs=self.gangs,
            ref=ref,
            drain_grace_s=self.drain_grace_s,
            monotonic=self.monotonic,
            sleep=self.sleep,
        )
        while True:
            state, attempt = find_attempt(self.tracks, ref)
            if not attempt.is_open:
                self._show_ended(ref)
                return attempt
            if not self._has_claim(attempt):
                return None
            problem = watch.look(attempt, is_stopped=state.stop_for(attempt) is not None)
            if problem is not None:
                _, attempt = find_attempt(self.tracks, ref)  # to end what hangs takes seconds
                is_taken = attempt.is_open and not self._has_claim(attempt)
                return None if is_taken else self._close(ref, problem)
            if watch.report is not None:
                self._play_own_death(state, watch.report)
            if state.head.seq > shown_seq and self.monotonic() >= show_at:
                is_shown = self._show(ref)
                shown_seq = state.head.seq if is_shown else shown_seq
                show_at = self.monotonic() + (SHOW_AGAIN_S if is_shown is None else 0.0)
            if self.lets_go:
                return attempt
            self.sleep(POLL_S)

    def _show(self, ref: AttemptRef) -> bool | None:
        """Bring what the ranks appended into the ledger and Dagster; whether all of it is there.

        None where one of them took it not: a database that is locked or away keeps no gang unwatched.
        """
        try:
            self.tracks.project(run_track(ref.run_id))
            return self.on_growth(self.tracks.run(ref.run_id)) is not False
        except Exception as error:  # noqa: BLE001  # whatever a database raises
            _log.warning("%s is not shown yet: %s", ref.key, self.tracks.clean(str(error)))
            return None

    def _show_ended(self, ref: AttemptRef) -> None:
        give_up_at = self.monotonic() + SHOW_ENDED_S_MAX
        while self._show(ref) is False:
            if self.monotonic() >= give_up_at:
                return

    def _play_own_death(self, state: RunState, report: GangReport) -> None:
        done = min((beat.step for beat in report.beats), default=0) - 1
        if claim_outside_drill(self.tracks, state, OF_SUPERVISOR, done) is not None:
            self.die()

    def _close(self, ref: AttemptRef, problem: EndProblem = NO_PROBLEM) -> AttemptState:
        ended = close_attempt(self, self.gangs, ref, by=self.dagster_run_id, problem=problem)
        self._show_ended(ref)
        return ended

    def _has_claim(self, attempt: AttemptState) -> bool:
        claims = attempt.claims
        return bool(claims) and claims[-1].body.dagster_run_id == self.dagster_run_id


_BY_FILES = ("-m", "tracks_dagster.training.projects.command")


def gang_spec(
    tracks: Tracks, state: RunState, attempt: AttemptState, scheduling: SchedulingPolicy
) -> GangSpec:
    """Return what to start for `attempt`; raises GangError when its code is missing or was changed."""
    key = trainer_of(state, attempt)
    doing = f"Cannot start {attempt_key(state.run_id, attempt.attempt_id)}"
    if key == names.TRAINER_FAMILY:
        raise GangError(
            f"{doing}: the code of the model family {state.declared.model_family} was a part of an "
            "older version. The next attempt gets the code of the example of that name."
        )
    try:
        code = read_addressed(tracks.store, key)
    except ObjectLost as error:
        raise GangError(
            f"{doing}: its code {error}. Nothing was started; restore the object, or `tracks retry "
            f'{state.run_id} --why "…" --code DIR` stores the code of a folder. `tracks fsck` says '
            "what else is wrong."
        ) from error
    return GangSpec(
        run_id=state.run_id,
        attempt_id=attempt.attempt_id,
        opened_seq=attempt.opened_seq,
        compute=attempt.opened.compute,
        store_url=tracks.store.url,
        command=rank_command(program_of(state, attempt), attempt.opened.config),
        code_key=key,
        code=code,
        environment=allocator_environment(attempt.opened.config),
        workload_class=scheduling.class_name(state.declared.workload_class),
    )


def rank_command(program: Program | None, config: Mapping[str, Json]) -> RankCommand:
    """Return what each rank starts with `config`; program: None of one script of an older version.

    Raises GangError where the program names a key that the config lacks.
    """
    if program is None:
        return RankCommand(words=(SCRIPT,))
    name = program.config_name
    try:
        words = fill_entry(program.entry, config, config_path=name or "")
    except InvalidInput as error:
        raise GangError(str(error)) from error
    files = {} if name is None else {name: render_config(config, name)}
    if program.by_files:
        words = (*_BY_FILES, *words)
    return RankCommand(words=words, python=program.python, files=files)


def steps_done(tracks: Tracks, state: RunState) -> int:
    """Return the newest step that a rank of the run's last attempt has shipped; 0 before."""
    attempt = state.last_attempt
    if attempt is None or attempt.placed is None:
        return 0
    launch_id = attempt.placed.launch_id
    line = last_step(tracks.store, state.ref(attempt), launch_id)
    return line.step if line is not None else 0


def has_drill_of_supervisor(tracks: Tracks, state: RunState) -> bool:
    """Whether a drill is to come that only a process which watches this attempt alone can play."""
    drills = [i for i, each in enumerate(state.declared.drills) if each.kind == OF_SUPERVISOR]
    records = tracks.records(run_track(state.run_id)) if drills else ()
    return not all(was_claimed(records, index) for index in drills)


def claim_outside_drill(tracks: Tracks, state: RunState, kind: str, step: int) -> Drill | None:
    """Claim a drill of that kind that is due now that `step` is done; None when there is none.

    Two that claim at once both fire: the drills of one kind have one player at a time.
    """
    for index, drill in enumerate(state.declared.drills):
        is_due = drill.kind == kind and step >= drill.step
        if not is_due or was_claimed(tracks.records(run_track(state.run_id)), index):
            continue
        draft: Draft = tracks.draft(Kind.NOTE, claim_note(index, drill))
        tracks.note_run(state.run_id, draft)
        return drill
    return None

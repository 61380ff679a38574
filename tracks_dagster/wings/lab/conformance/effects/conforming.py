"""Runs the trials of `tracks conform`: real gangs of this machine, in a home of their own.

Each trial is a run of its own, declared and closed as any other; drills interrupt it at the step that
is asked for, and the next attempt is a new process that resumes from the newest checkpoint. What the
ranks saw of themselves (`training.observing`), the journals and the checkpoints are read back. What it
means is `review.conformance`'s to say.
"""

from __future__ import annotations

import json
import math
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from tracks_dagster.attempts.effects.closing import close_attempt, find_attempt
from tracks_dagster.attempts.effects.evidence import read_evidence
from tracks_dagster.attempts.effects.preparing import Prepared, prepare
from tracks_dagster.attempts.effects.runs import declare
from tracks_dagster.attempts.effects.supervise import gang_spec
from tracks_dagster.attempts.effects.world import World
from tracks_dagster.attempts.ports import FoundCode, GangLauncher, GangPhase
from tracks_dagster.reasons.evidence import Evidence
from tracks_dagster.retry.default_policy import DEFAULT_POLICY
from tracks_dagster.stores.journals import read_steps
from tracks_dagster.track import names
from tracks_dagster.track.bodies import MANUAL, AttemptOpened
from tracks_dagster.track.body_json import from_json
from tracks_dagster.track.errors import CheckpointCorrupt, InvalidInput, StoreError
from tracks_dagster.track.json_text import parse_json
from tracks_dagster.track.names import ALERT_SAVE_FAILED, LOCAL, AttemptRef
from tracks_dagster.track.records import Draft, Json, canonical_json, sha256_hex
from tracks_dagster.track.records import Kind as RecordKind
from tracks_dagster.track.roles import LOADER_WORKERS, STEPS, key_of
from tracks_dagster.track.states.checkpoints import resume_target
from tracks_dagster.track.states.run_state import AttemptState, RunState
from tracks_dagster.track.text.units import counted
from tracks_dagster.training.saves.manifest import read_manifest, read_tensors
from tracks_dagster.wings.lab.conformance.judge import judge, unstable_contents
from tracks_dagster.wings.lab.conformance.report import Conformance, Judged
from tracks_dagster.wings.lab.conformance.seen import (
    COMPLETED,
    HANG,
    INTERRUPTS,
    PLANTED,
    TOO_SLOW,
    AttemptSeen,
    Kind,
    RankSeen,
    Trial,
    TrialSeen,
    read_rank,
    saved_contents,
)
from tracks_dagster.wings.lab.conformance.trials import epoch_of, hangs, interruptions, trials_of

BY = "tracks conform"
SAVES = 3  # in an undisturbed run: steps between two checkpoints are its steps over this
GRACE_S = 120.0  # between SIGTERM and SIGKILL, to finish a step and save on a busy machine
POLL_S = 0.01  # to see a folder while a command writes it
GLANCE_S = 0.05  # from one look whether the gang lives to the next: it reads files and /proc
STEPS_MAX = 6  # at which a shape is interrupted: all that `interruptions` names
RNG = "rng"  # the member with the random numbers, which ranks show as they use them
NAMES_MAX = 5  # in a note
SAVE_POLL_S = 0.002  # to see a save while it is under way
HANG_TIMES, HANG_S_MIN = 10.0, 120.0  # of a calm run: an attempt that takes longer `hangs`
_OF_OURS = ("journal", "resume", "drill", "cache", "beats")  # in a gang's folder, written by ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is asked of a conformance. ranks, workers: of its shapes; workers (None,): no such key.

    has_faults: the script is Python, so that an exception and NaN can be played in it. steps_max: at
    how many steps of each shape it is interrupted. shorter: what makes a run shorter, for a person.
    """

    ranks: tuple[int, ...]
    workers: tuple[int | None, ...]
    has_faults: bool
    tolerance: float
    time_limit_s: float
    steps: int | None = None
    steps_max: int = STEPS_MAX
    shorter: str = "give fewer --steps"

    @property
    def shapes(self) -> list[tuple[int, int | None]]:
        """(ranks, loader workers): every number of ranks, and the workers on the first of them."""
        first = self.ranks[0]
        return [
            *((first, each) for each in self.workers),
            *((n, self.workers[0]) for n in self.ranks[1:]),
        ]


def prepared_of(
    found: FoundCode, config: Mapping[str, Json], *, steps: int, owner: str
) -> Prepared:
    """Return the run that trials repeat: no evals, so many steps where a key of the config has them,
    and after a SIGTERM none that is replayed, which could be the last: each step is compared anyway.

    Its workload class is left out: the trials have the shipped policy, which may not have it."""
    values = {k: each for k, each in found.project.values.items() if k != "workload_class"}
    project = replace(found.project, evals=(), promotion=None, replay_steps=0, values=values)
    keys = {name: key.default for name, key in project.keys.items()}
    key = key_of({**keys, **config}, project.roles, STEPS)
    return prepare(
        {
            "run_id": "conform",
            "intent": "It is interrupted and resumed, to compare.",
            "owner": owner,
            "checkpoint_every_steps": None if project.by_files else max(1, steps // SAVES),
        },
        {**({} if key is None else {key: steps}), **config},
        replace(found, project=project),
        family=project.name,
        origin=None,
        policy=DEFAULT_POLICY,
        otherwise={},
    )


def conform(
    trials: Trials, plan: Plan, *, project: str, code_sha256: str, progress: Progress
) -> Conformance:
    """Run the calm runs and the trials that follow from them, as far as the time goes.

    progress: called after each trial with how many are planned so far. Raises InvalidInput where the
    first calm run takes longer than the time limit, and what `Trials.run` raises.
    """
    began = trials.monotonic()
    played = _Round(trials, plan, progress, give_up_at=began + plan.time_limit_s)
    played.play_calm()
    played.play_trials()
    return Conformance(
        project=project,
        code_sha256=code_sha256,
        trials=tuple(played.judged),
        left_out=tuple(played.left_out),
        notes=tuple(played.notes),
        tolerance=plan.tolerance,
        seconds=trials.monotonic() - began,
    )


Progress = Callable[[Judged, int, int], None]  # the trial, its number, how many there are


class _Round:
    """The trials so far."""

    def __init__(
        self, trials: Trials, plan: Plan, progress: Progress, *, give_up_at: float
    ) -> None:
        self.judged: list[Judged] = []
        self.left_out: list[Trial] = []
        self.notes: list[str] = []
        self._trials = trials
        self._plan = plan
        self._progress = progress
        self._give_up_at = give_up_at
        self._planned = len(plan.shapes) + 1
        self._had_no_time: list[Trial] = []
        self._missed: list[Trial] = []
        self._attempt_s_max = math.inf
        self._calm: dict[tuple[int, int | None], TrialSeen] = {}
        self._unstable: frozenset[str] = frozenset()

    @property
    def _names(self) -> set[str]:
        return {finding.name for each in self.judged for finding in each.findings}

    def play_calm(self) -> None:
        """Run each shape undisturbed, the first of them twice.

        That one is killed once before any other runs: with little time, one resume was tried.
        """
        for number, (ranks, workers) in enumerate(self._plan.shapes):
            calm = self._play(Trial(kind=Kind.CALM, ranks=ranks, workers=workers))
            if calm is None and not number:
                raise InvalidInput(
                    f"One undisturbed run took longer than --time-limit {self._plan.time_limit_s:g}; "
                    f"{self._plan.shorter}, or give more time."
                )
            if calm is None or not calm.last.is_complete:
                continue  # what depends on it cannot be planned
            self._calm[ranks, workers] = calm
            if not number:
                self._attempt_s_max = max(HANG_S_MIN, HANG_TIMES * calm.seconds)
                again = self._play(replace(calm.trial, kind=Kind.AGAIN))
                if again is not None:
                    self._unstable = unstable_contents(calm, again)
                    seconds = min(calm.seconds, again.seconds)  # the first one loads torch, too
                    self._attempt_s_max = max(HANG_S_MIN, HANG_TIMES * seconds)
                steps = [each for each in interruptions(calm.last) if not self._is_beyond(each)]
                if steps and "not_deterministic" not in self._names:
                    self._planned += 1
                    self._play(replace(calm.trial, kind=Kind.SIGKILL, step=steps[0]))

    def play_trials(self) -> None:
        """Run what follows from the calm runs; what there is no time for is left out."""
        if not self._calm:
            return
        calm = {shape: seen.last for shape, seen in self._calm.items()}
        self._without_steps(calm)
        found = trials_of(calm, faults=self._plan.has_faults, steps_max=self._plan.steps_max)
        tried = [*(each.seen.trial for each in self.judged), *self._missed, *self._had_no_time]
        planned = [each for each in found if each not in tried]
        beyond = [each for each in planned if self._is_beyond(each.step)]
        if beyond:
            planned = [each for each in planned if each not in beyond]
            self.left_out += beyond
            last = next(iter(calm.values())).last_step
            self.notes.append(
                f"It trained {last} steps where its config says {self._plan.steps}, so "
                f"{counted(len(beyond), 'trial')} after step {self._plan.steps} were left out: let the "
                "script take the number from its config (a.config)."
            )
        if "not_deterministic" in self._names:
            planned = self._without(planned, INTERRUPTS, "Two undisturbed runs differ")
        self._planned = len(self.judged) + len(planned)
        while planned:
            self._play(planned.pop(0))
            if "sigterm_swallowed" in self._names:
                planned = self._without(planned, (Kind.SIGTERM,), "SIGTERM was swallowed")
        self._note(next(iter(calm.values())))

    def _is_beyond(self, step: int | None) -> bool:
        """Whether a run may not be interrupted there: by its config it never comes so far."""
        last = self._plan.steps
        return step is not None and last is not None and step > last

    def _without_steps(self, calm: Mapping[tuple[int, int | None], AttemptSeen]) -> None:
        """Leave out the shapes in which there is no step to interrupt it after."""
        for (ranks, workers), seen in calm.items():
            if not interruptions(seen):
                trial = Trial(kind=Kind.SIGKILL, step=1, ranks=ranks, workers=workers)
                self.left_out.append(trial)
                self.notes.append(
                    f"It reported no step before its last ({trial.shape}), so it could not be "
                    "interrupted: report each step, or train more of them."
                )

    def _without(self, planned: list[Trial], kinds: Sequence[Kind], why: str) -> list[Trial]:
        """Leave trials out that would say nothing more."""
        left_out = [each for each in planned if each.kind in kinds]
        if left_out:
            self.left_out += left_out
            self.notes.append(f"{why}, so {counted(len(left_out), 'trial')} were left out.")
        return [each for each in planned if each.kind not in kinds]

    def _note(self, calm: AttemptSeen) -> None:
        """Say what was not looked at."""
        epoch = epoch_of(calm)
        if epoch is not None and epoch >= calm.last_step:
            self.notes.append(
                f"An epoch has {epoch} steps, so its end was not reached; --steps {epoch + 3} tries it."
            )
        if not any(step < calm.last_step for step in calm.commits):
            self.notes.append(
                "No checkpoint was written before the last step, so a SIGKILL left nothing to resume "
                "from; let it save more often (--set) to try that."
            )
        if not any(each.inputs for rank in calm.ranks for each in rank.steps.values()):
            self.notes.append(
                "No module of torch was seen to train: losses, steps and checkpoints were compared, "
                "samples and states were not."
            )
        if self._unstable:
            names = ", ".join(sorted(self._unstable)[:NAMES_MAX])
            self.notes.append(f"Not compared, because undisturbed runs differ in it: {names}.")
        if self._had_no_time:
            self.notes.append(
                f"There was no time for {counted(len(self._had_no_time), 'trial')}, beginning with "
                f"{self._had_no_time[0]}; --time-limit is {self._plan.time_limit_s:g} s."
            )
            self.left_out += self._had_no_time
        if self._missed:
            self.notes.append(
                f"In {counted(len(self._missed), 'trial')} the run was over before it was killed, "
                f"{self._missed[0]} first; longer steps, or more of them (--steps), try it."
            )
            self.left_out += self._missed
        if any(rank.loaders for rank in calm.ranks) and self._plan.workers == (None,):
            self.notes.append(
                "No key of the config says how many workers its loader has (keys: loader_workers), so "
                "no other number was tried."
            )

    def _play(self, trial: Trial) -> TrialSeen | None:
        """Run and judge a trial; None where there was no time for it, or it came too late."""
        number = len(self.judged) + len(self._missed) + 1
        seen = None
        if self._trials.monotonic() < self._give_up_at:
            seen = self._trials.run(
                trial, number, give_up_at=self._give_up_at, attempt_s_max=self._attempt_s_max
            )
        if seen is None or seen.last.reason == TOO_SLOW:
            self._had_no_time.append(trial)
            return None
        if seen.was_missed:
            self._missed.append(trial)
            return None
        calm = self._calm.get((trial.ranks, trial.workers), seen)
        found = judge(calm, seen, tolerance=self._plan.tolerance, unstable=self._unstable)
        judged = Judged(seen=seen, findings=tuple(found))
        self.judged.append(judged)
        self._progress(judged, number, max(self._planned, number))
        return seen


def load_per_core() -> float:
    """Return how many processes of this machine wanted a core, for each that it has, in a minute."""
    return os.getloadavg()[0] / (os.cpu_count() or 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trials:
    """What the trials of one project work with. home: theirs alone, with its store in it.

    prepared: the run, without a fault; load: as `load_per_core`; grace_s: as GRACE_S.
    """

    world: World
    home: Path
    prepared: Prepared
    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    load: Callable[[], float] = load_per_core
    grace_s: float = GRACE_S

    def run(
        self, trial: Trial, number: int, *, give_up_at: float, attempt_s_max: float
    ) -> TrialSeen:
        """Run a trial to its end; its processes are killed at give_up_at, on the monotonic clock, and
        once an attempt has taken attempt_s_max, the one that gets SIGTERM beside its grace, times the
        load.

        Raises InvalidInput where the run cannot be declared so, GangError where it cannot be started.
        """
        began = self.monotonic()
        run_id = f"conform-{number:03d}"
        declare(self.world.tracks, self._of_trial(trial, run_id))
        limits = _Limits(give_up_at=give_up_at, attempt_s=attempt_s_max)
        grace_s = self.grace_s if trial.kind is Kind.SIGTERM else 0.0
        first = replace(limits, attempt_s=attempt_s_max + grace_s)
        seen = [self._attempt(trial, AttemptRef(run_id, 1), first)]
        if trial.kind in INTERRUPTS and seen[0].reason not in (COMPLETED, TOO_SLOW):
            self._open_next(run_id)
            seen.append(self._attempt(trial, AttemptRef(run_id, 2), limits))
        state = self.world.tracks.run(run_id)
        contents: dict[str, str] = {}
        if seen[-1].is_complete:
            contents = {**self._contents(state), **saved_contents(seen[-1].ranks)}
        seconds = self.monotonic() - began
        return TrialSeen(trial=trial, attempts=tuple(seen), contents=contents, seconds=seconds)

    def _of_trial(self, trial: Trial, run_id: str) -> Prepared:
        body, project = self.prepared.body, self.prepared.project
        config = dict(body.config)
        if trial.workers is not None:
            keys = {name: key.default for name, key in project.keys.items()}
            key = key_of({**keys, **config}, project.roles, LOADER_WORKERS)
            config |= {} if key is None else {key: trial.workers}
        drills = {
            Kind.SIGTERM: (f"preempt@{trial.step},grace={self.grace_s:g}",),
            Kind.SIGKILL: (f"sigkill@{trial.step}",),
        }
        compute = replace(body.compute, ranks=trial.ranks)
        return replace(
            self.prepared,
            body=replace(body, run_id=run_id, compute=compute, config=config),
            drills=drills.get(trial.kind, ()),
        )

    def _open_next(self, run_id: str) -> None:
        """Open the attempt that resumes, as a person's retry would."""
        tracks = self.world.tracks

        def choose(state: RunState | None) -> Draft | None:
            if state is None or state.last_attempt is None:
                return None
            opened = AttemptOpened(
                cause=MANUAL,
                decided_by=BY,
                decision="The trial resumes in new processes.",
                config=state.last_attempt.opened.config,
                compute=state.last_attempt.opened.compute,
                snapshot=state.last_attempt.opened.snapshot,
                resume=state.resumes_from,
            )
            return tracks.draft(
                RecordKind.ATTEMPT_OPENED, opened, attempt_id=len(state.attempts) + 1
            )

        tracks.decide_run(run_id, choose)

    def _attempt(self, trial: Trial, ref: AttemptRef, limits: _Limits) -> AttemptSeen:
        """Run one attempt to its end, and read what became of it."""
        world, gangs = self.world, self.world.launcher_of(LOCAL)
        work = self.home / "work" / ref.key
        state, attempt = find_attempt(world.tracks, ref)
        spec = gang_spec(world.tracks, state, attempt, world.policy.scheduling)
        asked = self._asked(trial, work, is_first=ref.attempt_id == 1)
        spec = replace(spec, environment={**spec.environment, names.ENV_OBSERVE: json.dumps(asked)})
        box = Boxes(work)
        try:
            gangs.start(spec)
            late = self._wait(trial, gangs, ref, box, limits)
            close_attempt(world, gangs, ref, by=BY)
        except BaseException:  # Ctrl-C: nobody else would end it
            gangs.kill(ref)
            raise
        seen = self._read(ref, work, half_written=box.half_written)
        if late == HANG:
            ended = f"it did not end within {limits.attempt_s:.0f} s and was killed"
            return replace(seen, reason=HANG, words=f"{seen.words}\n{ended}")
        return replace(seen, reason=late) if late else seen

    def _asked(self, trial: Trial, work: Path, *, is_first: bool) -> dict[str, Json]:
        of_ours = [self.home / "cache", *(work / each for each in _OF_OURS)]
        left_out = [self.world.tracks.store.url, *map(str, of_ours)]
        fault: dict[str, Json] = {}
        if is_first and trial.kind is Kind.ERROR:
            fault = {"fail_step": trial.step, "fail_words": PLANTED}
        elif is_first and trial.kind is Kind.NAN:
            fault = {"nan_step": trial.step}
        return {"folder": str(work / "observed"), "leave_out": left_out, **fault}

    def _wait(
        self, trial: Trial, gangs: GangLauncher, ref: AttemptRef, box: Boxes, limits: _Limits
    ) -> str:
        """Wait for the gang's end, or kill it amid a save. Return TOO_SLOW or HANG, or nothing."""
        kills_save = trial.kind is Kind.SAVE and ref.attempt_id == 1
        began = now = glance_at = self.monotonic()
        while True:
            if now >= glance_at:
                if gangs.glance(ref).phase is not GangPhase.ALIVE:
                    return ""
                glance_at = now + GLANCE_S
            box.look()
            if kills_save and self._is_saving(ref, trial.step):
                gangs.kill(ref)
                return ""
            if now > limits.give_up_at:
                return TOO_SLOW
            if hangs(now - began, limit_s=limits.attempt_s, load=self.load()):
                return HANG
            self.sleep(SAVE_POLL_S if kills_save else POLL_S)
            now = self.monotonic()

    def _is_saving(self, ref: AttemptRef, step: int) -> bool:
        """Whether something of a checkpoint of that step, or a later one, lies in the store."""
        folder = self.home / "store" / ref.folder
        found = (each.name.removeprefix("step-") for each in folder.glob("*/step-*"))
        return any(each.isdecimal() and int(each) >= step for each in found)

    def _read(self, ref: AttemptRef, work: Path, *, half_written: tuple[str, ...]) -> AttemptSeen:
        tracks = self.world.tracks
        state, attempt = find_attempt(tracks, ref)
        evidence = self._evidence(attempt)
        launch_id = attempt.placed.launch_id if attempt.placed else None
        lines = read_steps(tracks.store, ref, launch_id) if launch_id else []
        commits = [c.body.ref for c in state.checkpoints]
        return AttemptSeen(
            resumed=attempt.restored.step if attempt.restored else 0,
            losses={line.step: line.loss for line in lines},
            samples={line.step: s for line in lines if (s := line.indices_sha256) is not None},
            ranks=tuple(_ranks(work / "observed", attempt.opened.compute.ranks)),
            commits=tuple(c.step for c in commits if c.attempt_id == ref.attempt_id),
            reason=str(attempt.reason or "unknown"),
            words=_words(evidence),
            was_killed=any(end.signal == signal.SIGKILL for end in evidence.ranks),
            alerts=tuple(a.body.text for a in state.alerts if a.body.rule == ALERT_SAVE_FAILED),
            half_written=half_written,
        )

    def _evidence(self, attempt: AttemptState) -> Evidence:
        found, _ = read_evidence(self.world.tracks.store, attempt)
        return found or from_json(Evidence, {})

    def _contents(self, state: RunState) -> dict[str, str]:
        """Return the digest of each tensor, file and value of the newest checkpoint."""
        if not state.resumable:
            return {}
        store, found = self.world.tracks.store, {}
        with suppress(StoreError, CheckpointCorrupt):
            manifest = read_manifest(store, resume_target(state.resumable))
            for name, member in manifest.members.items():
                if name == RNG:
                    continue  # a generator that nobody seeds and nobody draws from says nothing
                found[name] = sha256_hex(canonical_json(member.values))
                for entry, data in read_tensors(store, manifest, name):
                    found[f"{name}/{entry.name}"] = sha256_hex(data)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Limits:
    """When a trial's processes are killed: give_up_at, monotonic, and after attempt_s of an attempt."""

    give_up_at: float
    attempt_s: float


def _ranks(folder: Path, count: int) -> Iterator[RankSeen]:
    for rank in range(count):
        path = folder / f"rank-{rank}.jsonl"
        text = path.read_text("utf-8") if path.exists() else ""
        yield read_rank(_lines(text))


def _lines(text: str) -> Iterator[Mapping[str, Json]]:
    for line in text.splitlines():
        with suppress(ValueError):  # a torn last line of a rank that was killed
            yield parse_json(line)


def _words(evidence: Evidence) -> str:
    """Return what the ranks said of their end: the logs, then the last words, which say more."""
    words = [end.log_tail for end in evidence.ranks]
    for end in evidence.ranks:
        if end.last_word is not None:
            words.append(f"{end.last_word.exception or ''}: {end.last_word.message}")
    return "\n".join(words)


class Boxes:
    """The folders that commands publish, looked at while they lie there."""

    def __init__(self, work: Path) -> None:
        self._root = work / "command"
        self._seen: dict[Path, dict[str, int]] = {}
        self._half: dict[Path, None] = {}

    @property
    def half_written(self) -> tuple[str, ...]:
        """Folders that changed after they had their final name."""
        return tuple(str(each.relative_to(self._root)) for each in self._half)

    def look(self) -> None:
        """Compare what lies there with the last look; a file younger than its folder's name counts.

        A file that is gone does not: a folder that was committed is removed file by file.
        """
        if not self._root.is_dir():
            return  # no command is its trainer
        for folder in self._root.glob("rank-*/checkpoints/step-*"):
            with suppress(OSError):  # committed and removed meanwhile
                named_ns = folder.stat().st_ctime_ns
                stats = {str(each): each.stat() for each in folder.rglob("*") if each.is_file()}
                sizes = {name: stat.st_size for name, stat in stats.items()}
                is_late = any(stat.st_mtime_ns > named_ns for stat in stats.values())
                seen = self._seen.setdefault(folder, sizes)
                if is_late or any(seen.get(name) != size for name, size in sizes.items()):
                    self._half[folder] = None

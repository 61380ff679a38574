"""A study on four pretended devices whose daemon and supervisors are killed and whose trials give way.

It comes to the configs and the values of one that nobody disturbed, trains no commit twice, and leaves
no device idle for more than a few looks of the daemon while a trial waits. What happened is read from
the stored bytes and from Dagster's ticks. When each disturbance comes is a number of committed steps.

TRACKS_STUDY_SEED=n repeats the order of the disturbances; TRACKS_STUDY_TRIALS=8 makes a smaller study,
with as many disturbances for each trial.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import pytest
from dagster import DagsterInstance

from tests.integration.homes import Home, embedded, outcome, wait_for
from tests.integration.test_devices import loses_no_commit, moves, processes, read_track
from tests.integration.test_storm import POLICY as NEVER_REFUSES
from tracks_dagster.track import names
from tracks_dagster.track.states.study_state import StudyState
from tracks_dagster.wings.embedded.sensor_pace import OPEN_S
from tracks_dagster.wiring import open_dagster_home

TRIALS = int(os.environ.get("TRACKS_STUDY_TRIALS") or 60)
# For each trial; sixty have ten kills of the daemon, five of a supervisor, and ten urgent runs.
DAEMON_KILLS, SUPERVISOR_KILLS = max(1, TRIALS // 6), max(1, TRIALS // 12)
PREEMPTIONS = max(1, TRIALS // 6)
STUDY_S_MAX = 3600.0  # of one study: more than twice of what sixty trials take on an idle machine
DEVICES, STEPS, EVERY = 4, 80, 10
PACE_S = 1.0  # of a step: who would end within the time that a move takes (MOVE_S) is not moved
TRIES_MAX = 10  # of a preemption: the urgent run may find devices that are free
# The daemon looks every OPEN_S at what is open, and at once at what is new. So many looks are 15 s.
IDLE_LOOKS_MAX = 15.0 / OPEN_S
POLICY = f"{NEVER_REFUSES}\nscheduling: {{move_rest: 0s}}\n"
PROJECT = f"""
version: 1
name: paced
entry: train.py
config: {{steps: {STEPS}, seed: 7, global_batch: 24, pace_s: 0.0, lr: 0.01}}
checkpoint: {{every_steps: {EVERY}}}
"""
STUDY = f"""
name: lr
metric: loss
space: {{lr: {{loguniform: [0.0001, 0.1]}}}}
search: random
trials: {TRIALS}
slots: {DEVICES}
seed: 3
"""
Track = list[dict[str, Any]]

pytestmark = [pytest.mark.full, pytest.mark.timeout(2 * STUDY_S_MAX)]


def test_a_study_that_is_killed_and_preempted_comes_to_what_a_calm_one_comes_to(
    tmp_path: Path,
) -> None:
    seed = int(os.environ.get("TRACKS_STUDY_SEED") or random.SystemRandom().randrange(2**32))
    print(f"\nTRACKS_STUDY_SEED={seed}")
    rng = random.Random(seed)
    calm = Tuned.made(tmp_path / "calm", pace_s=0.0)
    calm.start()
    calm.end()

    shaken = Tuned.made(tmp_path / "shaken", pace_s=PACE_S)
    shaken.start()
    kinds: list[Callable[[random.Random], str]] = [
        *[shaken.kill_daemon] * DAEMON_KILLS,
        *[shaken.kill_supervisor] * SUPERVISOR_KILLS,
        *[shaken.preempt] * PREEMPTIONS,
    ]
    rng.shuffle(kinds)
    done = []
    for number, disturb in enumerate(kinds, start=1):
        shaken.train_to(number * TRIALS * STEPS // (len(kinds) + 2), f"after {done}")
        done.append(disturb(rng))
    shaken.end()
    runs = shaken.runs()
    moved = [(run_id, stop) for run_id, track in runs.items() for stop in moves(track)]
    attempts = sum(len(of_kind(track, "attempt_opened")) for track in runs.values())
    print(f"disturbed: {done}; attempts: {attempts}; moved: {len(moved)}")

    assert len(moved) >= PREEMPTIONS
    assert all(loses_no_commit(runs[run_id], stop) for run_id, stop in moved)
    before, after = calm.study, shaken.study
    assert after.finished is not None
    assert after.finished.cause == "complete"
    assert results(after) == results(before)
    assert len({repr(config) for config, _ in results(after)}) == TRIALS
    assert set(runs) == {rung.proposed.run_id for each in after.trials for rung in each.rungs}
    again = {run_id: steps for run_id, track in runs.items() if (steps := trained_again(track))}
    assert again == {}
    idle = Idle.read(shaken)
    queue = idle.longest(shaken.looks(names.LAUNCH_ATTEMPTS), idle.is_wait)
    search = idle.longest(shaken.looks(names.TUNE_STUDIES), idle.is_gap)
    print(f"looks with a device idle: while a trial waited {queue}, before a proposal {search}")
    print(f"longest idle with a trial to train: {idle.longest_s():.1f} s")
    assert max(len(queue), len(search)) <= IDLE_LOOKS_MAX
    assert shaken.home.call("fsck").returncode == 0


# --- playing --------------------------------------------------------------------------------------


@dataclass
class Tuned:
    """A study in a home of its own."""

    home: Home
    folder: Path
    urgent: list[str] = field(default_factory=list)
    _command: subprocess.Popen[str] | None = None

    @classmethod
    def made(cls, folder: Path, *, pace_s: float) -> Tuned:
        project = folder / "project"
        project.mkdir(parents=True)
        (project / "tracks.yaml").write_text(PROJECT)
        trainer = Path(__file__).with_name("paced_trainer.py").read_text()
        (project / "train.py").write_text(trainer.replace("lr=0.01", 'lr=a.config["lr"]'))
        (folder / "study.yaml").write_text(f"{STUDY}config: {{pace_s: {pace_s}}}\n")
        (folder / "policy.yaml").write_text(POLICY)
        given = {"TRACKS_DEVICES": str(DEVICES), "TRACKS_POLICY": str(folder / "policy.yaml")}
        return cls(Home({**embedded(folder).variables, **given}), folder)

    def start(self) -> None:
        path = str(self.folder / "study.yaml")
        project = str(self.folder / "project")
        self._command = self.home.start("tune", path, "--project", project, "--json")

    def end(self) -> None:
        """Wait for the study's end."""
        assert self._command is not None
        _, stderr = self._command.communicate(timeout=STUDY_S_MAX)
        assert self._command.returncode == 0, stderr

    def train_to(self, steps: int, what: str) -> None:
        """Return once its trials have committed so many steps together; fails where it is over."""
        self._wait_for(lambda: self.steps() >= steps, what)

    def _wait_for(self, happened: Callable[[], bool], what: str) -> None:
        command = self._command
        assert command is not None
        wait_for(lambda: happened() or command.poll() is not None, STUDY_S_MAX)
        assert command.poll() is None, f"it ended {what}: {command.communicate()[1]}"

    @property
    def study(self) -> StudyState:
        return self.home.app.tracks.study("lr")

    def runs(self) -> dict[str, Track]:
        """Return the records of each trial's run, as they are stored."""
        return self._tracks("runs/lr-t*")

    def _tracks(self, pattern: str) -> dict[str, Track]:
        store = self.folder / "home" / "store"
        return {path.name: read_track(path) for path in sorted(store.glob(pattern))}

    def steps(self) -> int:
        """Return how many steps all trials have committed together."""
        return sum(newest_commit(track) for track in self.runs().values())

    def kill_daemon(self, rng: random.Random) -> str:
        return self._kill(rng, lambda what: what == "daemon")

    def kill_supervisor(self, rng: random.Random) -> str:
        return self._kill(rng, lambda what: what != "daemon")

    def _kill(self, rng: random.Random, is_one: Callable[[str], bool]) -> str:
        killed: list[str] = []

        def kill() -> bool:
            found = [(pid, what) for pid, what in processes(self.home) if is_one(what)]
            if not found:
                return False
            pid, what = rng.choice(sorted(found))
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                return False
            killed.append(what)
            return True

        wait_for(kill)
        return killed[0]

    def preempt(self, rng: random.Random) -> str:
        """Let an urgent run take all devices."""
        before = self._moved()
        for number in range(1, TRIES_MAX + 1):
            self._wait_for(
                lambda: any(map(is_begun, self.runs().values())), f"at urgent run {number}"
            )
            run_id = f"urgent-{len(self.urgent)}"
            self.urgent.append(run_id)
            named = ("--run-id", run_id, "--intent", "Urgent.", "--class", "urgent", "--json")
            size = ("--ranks", str(DEVICES), "--steps", "2")
            command = self.home.start(
                "run", "--project", str(self.folder / "project"), *named, *size
            )
            assert outcome(command)["state"] == "succeeded"
            if (count := self._moved() - before) > 0:
                return f"{count} moved"
        raise AssertionError("no trial gave way")

    def _moved(self) -> int:
        return sum(len(moves(track)) for track in self.runs().values())

    def looks(self, sensor: str) -> list[Span]:
        """Return when a sensor looked, oldest first; not a look that a kill ended."""
        home = open_dagster_home(self.home.settings)
        with DagsterInstance.from_config(home.environment["DAGSTER_HOME"]) as instance:
            (state,) = [s for s in instance.all_instigator_state() if s.instigator_name == sensor]
            ticks = instance.get_ticks(state.instigator_origin_id, state.selector_id)
        spans = [Span(at(t.timestamp), at(t.end_timestamp)) for t in ticks if t.end_timestamp]
        return sorted(spans)


# --- what the stored bytes say --------------------------------------------------------------------


def results(study: StudyState) -> list[tuple[Any, Any]]:
    """Return the config and the value of each trial, by its number."""
    judged = [trial.last.judged for trial in study.trials]
    return [
        (dict(trial.config), None if each is None else each.value)
        for trial, each in zip(study.trials, judged, strict=True)
    ]


def of_kind(track: Track, kind: str) -> Track:
    return [record for record in track if record["kind"] == kind]


def newest_commit(track: Track) -> int:
    commits = of_kind(track, "checkpoint_committed")
    return max((record["body"]["ref"]["step"] for record in commits), default=0)


def is_begun(track: Track) -> bool:
    """Whether an attempt trains, and has not come to a quarter of its run's steps."""
    of_attempts = ("attempt_opened", "attempt_restored", "attempt_ended")
    kinds = [record["kind"] for record in track if record["kind"] in of_attempts]
    return kinds[-1:] == ["attempt_restored"] and newest_commit(track) < STEPS / 4


def trained_again(track: Track) -> list[tuple[int, int]]:
    """Return the newest commit and the first step of attempts that began elsewhere than there."""
    newest, found = 0, []
    for record in track:
        body = record["body"]
        if record["kind"] == "checkpoint_committed":
            newest = max(newest, body["ref"]["step"])
        if record["kind"] == "attempt_opened":
            begins = body["resume"]["step"] if body["resume"] else 0
            found += [(newest, begins)] if begins != newest else []
    return found


@dataclass(frozen=True, order=True)
class Span:
    """Some time, with both of its ends."""

    begin: datetime
    end: datetime

    def has(self, other: Span) -> bool:
        return self.begin <= other.begin and other.end <= self.end

    def meets(self, other: Span) -> bool:
        return self.begin < other.end and other.begin < self.end


ALWAYS = Span(datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC))


def at(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def when(record: dict[str, Any]) -> datetime:
    return datetime.fromisoformat(record["at"])


@dataclass(frozen=True)
class Idle:
    """When each device was nobody's, and when trials, and urgent runs, waited for one.

    searched: from the first trial to the proposal of the last."""

    devices: Sequence[Span]
    trials: Sequence[Span]
    urgent: Sequence[Span]
    searched: Span

    @classmethod
    def read(cls, tuned: Tuned) -> Idle:
        runs = {**tuned.runs(), **tuned._tracks("runs/urgent-*")}
        opened, ended = {}, {}
        for run_id, track in runs.items():
            for record in track:
                moments = {"attempt_opened": opened, "attempt_ended": ended}.get(record["kind"], {})
                moments[f"{run_id}/a{record.get('attempt_id') or 0:02d}"] = when(record)
        [pool] = tuned._tracks("pools/*").values()
        leases = of_kind(pool, "devices_leased")
        leased = {each["body"]["key"]: when(each) for each in leases}
        waits = {key: Span(since, leased.get(key, ALWAYS.end)) for key, since in opened.items()}
        devices = [
            Span(begin, end)
            for device in sorted({name for each in leases for name in each["body"]["devices"]})
            for begin, end in gaps(
                (when(each), ended.get(each["body"]["key"], ALWAYS.end))
                for each in leases
                if device in each["body"]["devices"]
            )
        ]
        proposed = [trial.rungs[0].at for trial in tuned.study.trials]
        return cls(
            devices=devices,
            trials=[span for key, span in waits.items() if not key.startswith("urgent")],
            urgent=[span for key, span in waits.items() if key.startswith("urgent")],
            searched=Span(min(proposed), max(proposed)),
        )

    def is_wait(self, look: Span) -> bool:
        """Whether a device was idle and a trial waited for one, from a look's begin to its end."""
        return self._is_free(look) and any(each.has(look) for each in self.trials)

    def is_gap(self, look: Span) -> bool:
        """Whether a device was idle, no trial waited, and the study had another one to propose."""
        is_waited = any(each.meets(look) for each in self.trials)
        return self._is_free(look) and not is_waited and self.searched.has(look)

    def _is_free(self, look: Span) -> bool:
        """Whether a device was idle all the time, and no urgent run waited for all of them."""
        is_urgent = any(each.meets(look) for each in self.urgent)
        return not is_urgent and any(each.has(look) for each in self.devices)

    def longest(self, looks: Sequence[Span], is_idle: Callable[[Span], bool]) -> list[Span]:
        """Return the longest row of looks in which a device was idle."""
        rows = [list(row) for idle, row in groupby(looks, is_idle) if idle]
        return max(rows, key=len, default=[])

    def longest_s(self) -> float:
        """Return for how long a device was idle at most until a trial, or an urgent run, had it."""
        inner = [each for each in self.devices if self.searched.has(each)]
        return max(((each.end - each.begin).total_seconds() for each in inner), default=0.0)


def gaps(uses: Iterable[tuple[datetime, datetime]]) -> list[tuple[datetime, datetime]]:
    """Return what lies between the uses of a device, before the first and after the last too."""
    ends = [(ALWAYS.begin, ALWAYS.begin), *uses, (ALWAYS.end, ALWAYS.end)]
    return [(before[1], after[0]) for before, after in pairwise(ends)]

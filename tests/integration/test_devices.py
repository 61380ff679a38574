"""Two devices, four runs of one rank and one of two, an eval of each commit, and ten kills at random.

What happened is read from the stored bytes alone, by code that shares nothing with the product. The
policy has no `move_rest`: with the shipped one a run's own eval waits up to 10 min (docs/scheduling.md,
rule 4). TRACKS_DEVICES_SEED=n repeats the kills.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import pytest
from dagster import DagsterInstance, DagsterRunStatus, RunsFilter

from tests.integration.homes import COMMAND_S_MAX, Home, embedded, outcome, wait_for
from tests.integration.test_storm import POLICY as NEVER_REFUSES
from tracks_dagster.defs.resources.run_processes import find_run_process
from tracks_dagster.wiring import open_dagster_home

pytestmark = [pytest.mark.full, pytest.mark.timeout(2 * COMMAND_S_MAX)]

KILLS = 10
KILL_TRIES_MAX = 10 * KILLS  # between two of them there may be nothing to kill
SEEN_S = 60.0  # until a daemon that was killed is back and knows of a run
CALM_S = 6.0  # between kills, on average
DEVICES = 2
# Anyone who has waited so long is the first, and after twice of it is passed by nobody.
WAIT_S_MAX = 600.0
EVAL_WAIT_S_MAX = 5 * 60.0  # a minute on an idle machine, as is printed; this one may be busy
POLICY = f"""
{NEVER_REFUSES}
scheduling: {{move_rest: 0s}}
classes:
  single: {{wait_max: {WAIT_S_MAX:g}s}}
  distributed: {{wait_max: {WAIT_S_MAX:g}s}}
  sweep: {{wait_max: {WAIT_S_MAX:g}s}}
"""
PROJECT = """
version: 1
name: paced
entry: train.py
config: {steps: 160, seed: 7, global_batch: 24, pace_s: 0.2}
checkpoint: {every_steps: 40}
evals:
  small: {run: evaluate.py, every: 1}
"""
EVALUATE = """
import os, time

def evaluate(checkpoint_folder, data_folder):
    time.sleep(1.0)
    return {"devices": len(os.environ["TRACKS_LEASED_DEVICES"].split(","))}
"""
CLASSES = {"sweep-1": "sweep", "sweep-2": "sweep", "one-1": "single", "one-2": "single"}
STEPS = {"sweep": "600", "single": "160"}  # a sweep is there still when the urgent one comes
PAIR, URGENT = "pair", "urgent"


def test_two_devices_are_shared_by_all_and_held_by_one_at_a_time(tmp_path: Path) -> None:
    seed = int(os.environ.get("TRACKS_DEVICES_SEED") or random.SystemRandom().randrange(2**32))
    print(f"\nTRACKS_DEVICES_SEED={seed}")
    rng = random.Random(seed)
    home, folder = made(tmp_path)
    commands = {}
    with home.daemon():
        for run_id, name in CLASSES.items():
            steps = STEPS[name]
            commands[run_id] = started(home, folder, run_id, "--class", name, "--steps", steps)
        commands[PAIR] = started(home, folder, PAIR, "--class", "distributed", "--ranks", "2")
        wait_for(lambda: all(home.line(run_id) is not None for run_id in commands))
        wait_for(lambda: bool(set(dict(processes(home)).values()) - {"daemon"}))
        killed = kill_ten(home, rng)
        wait_for(lambda: a_sweep_trains(home))
        commands[URGENT] = started(home, folder, URGENT, "--class", "urgent", "--ranks", "2")
        for run_id, command in commands.items():
            assert outcome(command)["state"] == "succeeded", run_id
    print(f"killed: {killed}")
    assert len(killed) == KILLS
    assert len(set(killed)) > 1, "only one kind of process was killed"

    store = tmp_path / "home" / "store"
    runs = {run_id: read_track(store / "runs" / run_id) for run_id in commands}
    [pool] = [read_track(path) for path in (store / "pools").iterdir()]
    leases = [record for record in pool if record["kind"] == "devices_leased"]
    assert never_two_holders(pool)
    uses = [use for run_id, track in runs.items() for use in uses_of(run_id, track)]
    assert overlaps(sorted(uses, key=by_begin)) == []
    assert {use.key for use in uses} <= {lease["body"]["key"] for lease in leases}

    waits = {lease["body"]["key"]: waited_s(lease, runs) for lease in leases}
    evals = {key: wait for key, wait in waits.items() if "@" in key}
    print(f"waits: {sorted((round(wait, 1), key) for key, wait in waits.items())}")
    for run_id, track in runs.items():
        evaluated, committed = (
            steps_of(track, "eval_opened"),
            steps_of(track, "checkpoint_committed"),
        )
        assert max(evaluated) == max(committed), run_id
        # A sweep trains for two minutes at least, a commit each eight seconds.
        assert len(evaluated) >= (2 if CLASSES.get(run_id) == "sweep" else 1), run_id
    print(f"longest wait of an eval: {max(evals.values()):.1f} s")
    assert max(evals.values()) <= EVAL_WAIT_S_MAX
    assert [key for key in evals if passed_by_runs(leases, key, runs)] == []
    assert max(waits[key] for key in waits if key.startswith(f"{PAIR}/")) <= 2 * WAIT_S_MAX
    assert passed_without_right(leases, runs[PAIR]) == []

    moved = [(run_id, stop) for run_id, track in runs.items() for stop in moves(track)]
    print(f"moved: {[(run_id, stop['body']['why']) for run_id, stop in moved]}")
    assert "sweep" in {CLASSES.get(run_id) for run_id in made_room_for_urgent(leases, moved)}
    for run_id, stop in moved:
        assert loses_no_commit(runs[run_id], stop), run_id
    assert home.call("fsck").returncode == 0


# --- playing --------------------------------------------------------------------------------------


def made(tmp_path: Path) -> tuple[Home, Path]:
    """Return a home with two pretended devices, and the project that all runs train."""
    policy, folder = tmp_path / "policy.yaml", tmp_path / "project"
    policy.write_text(POLICY)
    folder.mkdir()
    (folder / "tracks.yaml").write_text(PROJECT)
    (folder / "train.py").write_text(Path(__file__).with_name("paced_trainer.py").read_text())
    (folder / "evaluate.py").write_text(EVALUATE)
    variables = {"TRACKS_DEVICES": str(DEVICES), "TRACKS_POLICY": str(policy)}
    return Home({**embedded(tmp_path).variables, **variables}), folder


def started(home: Home, folder: Path, run_id: str, *arguments: str) -> subprocess.Popen[str]:
    named = ("--run-id", run_id, "--intent", "To share.", "--json")
    return home.start("run", "--project", str(folder), *named, *arguments)


def kill_ten(home: Home, rng: random.Random) -> list[str]:
    """Return what ten real kills ended."""
    tries = (kill_one(home, rng) for _ in range(KILL_TRIES_MAX))
    return list(islice((what for what in tries if what is not None), KILLS))


def kill_one(home: Home, rng: random.Random) -> str | None:
    """Kill the daemon, or the worker of an attempt or an eval; the commands bring a daemon back.

    Return None where there was nothing to kill, or it ended by itself.
    """
    time.sleep(rng.expovariate(1 / CALM_S))
    targets = dict(processes(home))
    if not targets:
        return None
    pid = rng.choice(sorted(targets))
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return None
    return targets[pid]


def processes(home: Home) -> Iterator[tuple[int, str]]:
    """Every process that decides or supervises for this home; no gang, and no command of a person.

    A run worker is forked and keeps the code server's command line: only its run says which it is.
    """
    dagster_home = open_dagster_home(home.settings)
    daemon = dagster_home.find_daemon()
    if daemon is not None:
        yield daemon.pid, "daemon"
    with DagsterInstance.from_config(dagster_home.environment["DAGSTER_HOME"]) as instance:
        for run in instance.get_runs(filters=RunsFilter(statuses=[DagsterRunStatus.STARTED])):
            process = find_run_process(instance, run)
            if process is not None:
                yield process.pid, run.job_name


def a_sweep_trains(home: Home) -> bool:
    """Whether a sweep is at its steps, so that the queue may ask it to make room."""
    runs = [home.app.tracks.run(run_id) for run_id in CLASSES if CLASSES[run_id] == "sweep"]
    attempts = [run.open_attempt for run in runs]
    return any(each is not None and each.restored is not None for each in attempts)


# --- what the stored bytes say --------------------------------------------------------------------


def made_room_for_urgent(
    leases: list[dict[str, Any]], moved: list[tuple[str, dict[str, Any]]]
) -> list[str]:
    """Return the runs that moved off the urgent run's devices, for it or an eval just before it; one of
    the devices may have been free all the time, for the pair that waits for two."""
    urgent = first_lease(leases, URGENT)
    gangs = [each for each in leases[: leases.index(urgent)] if "@" not in each["body"]["key"]]
    last = {device: each for each in gangs for device in each["body"]["devices"]}
    before = [last[device] for device in urgent["body"]["devices"] if device in last]
    return [
        run_id
        for run_id, stop in moved
        if any(
            g["body"]["run_id"] == run_id and g["at"] < stop["at"] < urgent["at"] for g in before
        )
    ]


def first_lease(leases: list[dict[str, Any]], run_id: str) -> dict[str, Any]:
    return next(each for each in leases if each["body"]["key"].startswith(f"{run_id}/a"))


def passed_without_right(
    leases: list[dict[str, Any]], pair: list[dict[str, Any]]
) -> list[tuple[str, str]]:
    """Return the sweeps that were given a device while the pair waited for two, and do not say that
    they end before it, or that it can do without. So starvation begins, on a machine of any speed."""
    opened = next(record for record in pair if record["kind"] == "attempt_opened")
    given = first_lease(leases, PAIR)
    seen_at = datetime.fromisoformat(opened["at"]) + timedelta(seconds=SEEN_S)
    return [
        (each["body"]["key"], each["body"]["why"])
        for each in leases[: leases.index(given)]
        if each["body"]["workload_class"] == "sweep"
        and datetime.fromisoformat(each["at"]) > seen_at
        and "it ends before" not in each["body"]["why"]
        and "can do without" not in each["body"]["why"]
    ]


def steps_of(track: list[dict[str, Any]], kind: str) -> set[int]:
    """Return the steps of the checkpoints that records of this kind are about."""
    name = {"eval_opened": "checkpoint", "checkpoint_committed": "ref"}[kind]
    return {record["body"][name]["step"] for record in track if record["kind"] == kind}


@dataclass(frozen=True)
class Use:
    """Something was on a device from its first process to its last."""

    device: str
    key: str
    begin: datetime
    end: datetime


def by_begin(use: Use) -> tuple[str, datetime]:
    return use.device, use.begin


def read_track(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_bytes()) for path in sorted((folder / "log").glob("*.json"))]


def never_two_holders(pool: list[dict[str, Any]]) -> bool:
    """Whether no record of the pool gives away a device that a lease before it still holds."""
    standing: dict[int, set[str]] = {}
    for record in pool:
        if record["kind"] != "devices_leased":
            continue
        for seq in record["body"]["freed"]:
            del standing[seq]
        devices = set(record["body"]["devices"])
        if any(devices & held for held in standing.values()):
            return False
        standing[record["seq"]] = devices
    return True


def uses_of(run_id: str, track: list[dict[str, Any]]) -> Iterator[Use]:
    """Yield who was on which device when, by what the run's own records say of its processes."""
    held: dict[int, list[str]] = {}
    for record in track:
        body, attempt_id = record["body"], record.get("attempt_id")
        if record["kind"] == "attempt_supervised" and body["held"] is not None:
            held[attempt_id] = body["held"]["devices"]
        if record["kind"] == "attempt_ended" and body["started_at"] and body["finished_at"]:
            for device in held[attempt_id]:
                yield _use(device, f"{run_id}/a{attempt_id:02d}", body)
        if record["kind"] == "eval_ended" and body["held"] is not None:
            for device in body["held"]["devices"]:
                yield _use(device, f"{run_id}/{body['eval_id']}/{body['number']}", body)


def _use(device: str, key: str, body: dict[str, Any]) -> Use:
    begin, end = (datetime.fromisoformat(body[name]) for name in ("started_at", "finished_at"))
    return Use(device=device, key=key, begin=begin, end=end)


def overlaps(uses: list[Use]) -> list[tuple[Use, Use]]:
    return [(a, b) for a, b in pairwise(uses) if a.device == b.device and b.begin < a.end]


def waited_s(lease: dict[str, Any], runs: dict[str, list[dict[str, Any]]]) -> float:
    """Return how long what a lease was given for had waited, from the record that opened it."""
    opened, given = wait_of(lease, runs)
    return (given - opened).total_seconds()


def passed_by_runs(
    leases: list[dict[str, Any]], key: str, runs: dict[str, list[dict[str, Any]]]
) -> list[str]:
    """Return the runs of a lower class that were given a device while an eval waited for one."""
    opened, given = wait_of(next(each for each in leases if each["body"]["key"] == key), runs)
    seen_at = opened + timedelta(seconds=SEEN_S)
    return [
        each["body"]["key"]
        for each in leases
        if each["body"]["workload_class"] in ("sweep", "single", "distributed")
        and seen_at < datetime.fromisoformat(each["at"]) < given
    ]


def wait_of(
    lease: dict[str, Any], runs: dict[str, list[dict[str, Any]]]
) -> tuple[datetime, datetime]:
    """Return when what a lease was given for was opened, and when it got the lease."""
    run_id, _, rest = lease["body"]["key"].partition("/")
    for record in reversed(runs[run_id]):
        body = record["body"]
        is_attempt = record["kind"] == "attempt_opened" and rest == f"a{record['attempt_id']:02d}"
        if is_attempt or (
            record["kind"] == "eval_opened" and rest == f"{body['eval_id']}/{body['number']}"
        ):
            return datetime.fromisoformat(record["at"]), datetime.fromisoformat(lease["at"])
    raise AssertionError(f"nothing opened {lease['body']['key']}")


def moves(track: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        record
        for record in track
        if record["kind"] == "stop_requested" and record["body"]["by"] == "scheduler"
    ]


def loses_no_commit(track: list[dict[str, Any]], stop: dict[str, Any]) -> bool:
    """Whether what was moved resumed from its newest commit, ended as preempted and paid nothing."""
    after = [record for record in track if record["seq"] > stop["seq"]]
    ended = next(record for record in after if record["kind"] == "attempt_ended")
    opened = next((record for record in after if record["kind"] == "attempt_opened"), None)
    commits = [
        record["body"]["ref"]["step"]
        for record in track
        if record["kind"] == "checkpoint_committed" and record["seq"] < ended["seq"]
    ]
    if ended["body"]["reason"] == "completed":  # it had done its last step when it was asked
        return True
    assert opened is not None
    resumed = opened["body"]["resume"]["step"] if opened["body"]["resume"] else 0
    is_whole = resumed == max(commits, default=0)
    return (
        is_whole
        and ended["body"]["reason"] == "preempted"
        and opened["body"]["debit"]["amount"] == 0
    )

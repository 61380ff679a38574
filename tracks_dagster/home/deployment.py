"""What works less in a Dagster deployment that is not ours: its launcher, its queue, what is off.

Said in each attempt's Dagster run and by `tracks doctor`; docs/existing-dagster.md has the table.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dagster import DagsterInstance
from dagster._core.launcher.default_run_launcher import DefaultRunLauncher
from dagster._core.scheduler.instigation import InstigatorStatus, InstigatorType

from tracks_dagster.track.names import LAUNCH_ATTEMPTS, WATCH_ATTEMPTS, Prefix

UNLIMITED = -1  # of Dagster's `max_concurrent_runs`
NEEDED = (WATCH_ATTEMPTS, LAUNCH_ATTEMPTS)  # sensors without which an attempt waits for ever


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """runs_max: how many runs Dagster starts at once; None where that does not matter here. launcher:
    the class of a run launcher that is not ours, else None. finds_dead_runs: whether something ends a
    run whose worker died. off: sensors of ours that somebody switched off.
    """

    runs_max: int | None
    launcher: str | None
    finds_dead_runs: bool
    off: tuple[str, ...] = ()


def is_limited(instance: DagsterInstance) -> bool:
    """Whether Dagster starts only so many runs at once, by an instance that is not ours: there a run
    that supervises for days would leave the others of its deployment no room.

    Our own has room for every attempt that has devices.
    """
    return _runs_max(instance) is not None


def find_deployment(folder: Path, prefix: Prefix) -> Deployment:
    """Look at the one whose DAGSTER_HOME is `folder`. Raises what its storage and classes raise."""
    with DagsterInstance.from_config(str(folder)) as instance:
        return read_deployment(instance, prefix)


def read_deployment(instance: DagsterInstance, prefix: Prefix) -> Deployment:
    """Look at an instance, of whichever deployment."""
    launcher = instance.run_launcher
    is_ours = _is_ours(launcher)
    states = instance.all_instigator_state(instigator_type=InstigatorType.SENSOR)
    stopped = {each.name for each in states if each.status is InstigatorStatus.STOPPED}
    return Deployment(
        runs_max=_runs_max(instance),
        launcher=None if is_ours else type(launcher).__name__,
        finds_dead_runs=is_ours
        or type(launcher) is DefaultRunLauncher  # by our own look at its processes
        or (instance.run_monitoring_enabled and launcher.supports_check_run_worker_health),
        off=tuple(name for name in map(prefix.name, NEEDED) if name in stopped),
    )


def works_less(found: Deployment, prefix: Prefix) -> Iterator[str]:
    """Yield what is otherwise than with our own programs, a sentence each."""
    watcher = prefix.name(WATCH_ATTEMPTS)
    if found.runs_max is not None:
        yield (
            f"Dagster starts at most {found.runs_max} runs at once, so the Dagster run of an attempt "
            f"ends once training has begun. {watcher} watches it then: an end or a hang is seen at its "
            "next tick, and tracks stop RUN ends it, for there is no Dagster run to cancel."
        )
    if found.launcher == DefaultRunLauncher.__name__:
        yield (
            "DefaultRunLauncher forgets its runs with the code server: one whose process was killed is "
            f"ended within a minute, by {watcher}."
        )
    elif found.launcher is not None and found.finds_dead_runs:
        yield (
            f"{found.launcher} does not record why a run worker ended; a dead one is found by "
            "Dagster's run monitoring."
        )


def what_is_wrong(found: Deployment) -> Iterator[str]:
    """Yield what keeps attempts from their end there, and what to do, a sentence each."""
    if found.off:
        yield (
            f"{' and '.join(found.off)} is off, so attempts are not started, or not watched: switch it "
            "on in Dagster's UI."
        )
    if not found.finds_dead_runs:
        yield (
            f"Nothing finds a run of {found.launcher} whose worker died, and its attempt waits for it: "
            "set run_monitoring: {enabled: true} in dagster.yaml."
        )


def _is_ours(thing: object) -> bool:
    return type(thing).__module__.partition(".")[0] == "tracks_dagster"


def _runs_max(instance: DagsterInstance) -> int | None:
    if _is_ours(instance.run_coordinator):
        return None
    queue = instance.get_concurrency_config().run_queue_config
    unlimited = queue is None or queue.max_concurrent_runs == UNLIMITED
    return None if queue is None or unlimited else queue.max_concurrent_runs

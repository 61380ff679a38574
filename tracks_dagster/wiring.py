"""Builds the application: from settings to ports. Beside `reading` nothing else constructs adapters.

Used by the command line and by Dagster's resources; what a person gave is in `settings`. Nothing
happens at import, and adapters are imported where they are built, so that no command loads Dagster
or torch.
"""

from __future__ import annotations

import logging
import platform
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar, cast

from tracks_dagster.home.home_folder import check_home, prepare_home
from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.settings import (
    Settings,
    find_file,
    load_policy,
    load_prices,
    places_set_up,
    usable_policy,
    usable_prices,
    usable_rules,
)
from tracks_dagster.track import names
from tracks_dagster.track.errors import GangError
from tracks_dagster.track.ports import Clock, Leftovers, NewUid, ObjectStore
from tracks_dagster.track.records import Json
from tracks_dagster.track.text.redact import Redact, redact
from tracks_dagster.wing import check_installed, load, wings
from tracks_dagster.wing import launchers as launchers_of_wings

if TYPE_CHECKING:
    from tracks_dagster.attempts.effects.gates import Foresee
    from tracks_dagster.attempts.effects.preparing import Prepared
    from tracks_dagster.attempts.effects.world import World
    from tracks_dagster.attempts.findings import Finding
    from tracks_dagster.attempts.machine import Devices, ProcessId
    from tracks_dagster.attempts.ports import (
        FindShipped,
        FoundCode,
        GangLauncher,
        GangSpec,
        LauncherOf,
        Orchestrator,
    )
    from tracks_dagster.attempts.run_config import CheckGang
    from tracks_dagster.checkpoints.ports import CheckpointReader
    from tracks_dagster.data.ports import Datasets
    from tracks_dagster.evals.ports import Evaluator
    from tracks_dagster.home.dagster_home import DagsterHome
    from tracks_dagster.home.programs import Programs
    from tracks_dagster.ledger.effects.projector import Projector, Reindexed
    from tracks_dagster.ledger.effects.ticks import Tick
    from tracks_dagster.ledger.effects.tracks import Tracks
    from tracks_dagster.reasons.user_rules import UserRules
    from tracks_dagster.retry.policy import RetryPolicy
    from tracks_dagster.scheduling.effects.leases import DevicePool
    from tracks_dagster.scheduling.leases import Found
    from tracks_dagster.stores import Store
    from tracks_dagster.track.bodies import ComputeRequest, DevicesLeased, RunDeclared

T = TypeVar("T")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class App:
    """Everything that services need, built once per process.

    The retry policy and the classifier's rules come from files that a person may change, and break, at
    any time. They are read at each use, so ask once for what has to hold together; a file with an
    error stops what needs it and nothing else.
    """

    settings: Settings
    store: ObjectStore
    leftovers: Leftovers
    checkpoints: CheckpointReader
    ledger: Ledger
    projector: Projector
    tracks: Tracks
    launcher_of: LauncherOf
    foresee: Foresee
    shipped: FindShipped
    evaluator: Evaluator
    datasets: Datasets
    redact: Redact
    now: Clock
    new_uid: NewUid
    devices: DevicePool | None = None

    def world(self, policy: RetryPolicy, orchestrator: Orchestrator | None = None) -> World:
        """Return the world that deciders see in one tick, or in one command, which asks no Dagster."""
        from tracks_dagster.attempts.effects.world import NoOrchestrator, World
        from tracks_dagster.holds.effects.holds import Holds

        world = World(
            tracks=self.tracks,
            ledger=self.ledger,
            launcher_of=self.launcher_of,
            orchestrator=orchestrator or NoOrchestrator(),
            policy=policy,
            checkpoints=self.checkpoints,
            holds=Holds(self.tracks),
            shipped=self.shipped,
            devices=self.devices,
            prices=usable_prices(self.settings)[0],
            drain_grace_s=self.drain_grace_s,
            declare=partial(self.declare, policy=policy),
        )
        return world.for_tick()

    def drain_grace_s(self, launcher: str) -> float:
        """Return how long a gang of that launcher gets to finish a step and save."""
        from tracks_dagster.attempts.ports import DRAIN_GRACE_S

        if launcher == names.LOCAL:
            return DRAIN_GRACE_S
        return launching(launcher).drain_grace_s(self.settings)

    def own_process(self) -> ProcessId:
        """Return the process that calls, as a claim records it."""
        from tracks_dagster.attempts.machine import ProcessId
        from tracks_dagster.processes.process import this_process

        this = this_process()
        return ProcessId(pid=this.pid, started=this.started, boot_id=this.boot_id)

    def look_at_devices(self) -> Devices:
        """Return the devices of this machine and who is on them, by a look of bounded time."""
        from tracks_dagster.attempts.effects.local.this_machine import ThisMachine

        return ThisMachine().devices()

    def declare(self, prepared: Prepared, policy: RetryPolicy) -> RunDeclared:
        """Record the run and open its first attempt, as `runs.declare`, by all that this home knows.

        Raises InvalidInput also where a daemon of an older release would have to read it.
        """
        from importlib.metadata import version

        from tracks_dagster.attempts.effects.heartbeat import (
            DISTRIBUTION,
            check_daemon_reads,
            read_heartbeat,
        )
        from tracks_dagster.attempts.effects.runs import declare

        check_daemon_reads(read_heartbeat(self.store), version(DISTRIBUTION), self.now())
        return declare(
            self.tracks,
            prepared,
            check_gang=gang_check(self.settings),
            policy=policy,
            ledger=self.ledger,
            foresee=self.foresee,
            checks=run_checks(self.settings, policy, prepared),
        )

    def plan(self, prepared: Prepared, policy: RetryPolicy) -> RunDeclared:
        """Return what `declare` would record, checked by all that this home knows; writes no run."""
        from tracks_dagster.attempts.effects.runs import first_gang, plan_run

        gang_check(self.settings)(first_gang(prepared.body, self.store.url, policy.scheduling))
        return plan_run(
            self.tracks,
            prepared,
            policy=policy,
            ledger=self.ledger,
            foresee=self.foresee,
            checks=run_checks(self.settings, policy, prepared),
        )

    @property
    def policy(self) -> RetryPolicy:
        """The retry policy as its file is now; raises SettingsError naming every error of it."""
        return load_policy(self.settings)

    def usable_policy(self) -> tuple[RetryPolicy, str | None]:
        """Return the policy for what decides no retry, and None; or the shipped one and what is wrong
        with the file: a run is started and stopped anyway."""
        return usable_policy(self.settings)

    def usable_rules(self) -> tuple[UserRules, str | None]:
        """Return the user's rules and None; or no rules and what is wrong with their file: an attempt
        is classified anyway, and `tracks reclassify` asks the mended file."""
        return usable_rules(self.settings)


def build(settings: Settings) -> App:
    """Return the application on `settings`, making the home and the ledger's tables if need be.

    A ledger of an older version is rebuilt first, which may take long (docs/ledger.md). What is
    remote is opened first, so that nothing was written when it cannot be reached. Raises SettingsError,
    also where gangs are to run at a place of a wing that is not installed; StoreUnavailable,
    StoreUnsuitable or LedgerError.
    """
    from tracks_dagster.data.effects.datasets.catalog import ShippedDatasets
    from tracks_dagster.evals.effects.evaluator import LocalEvaluator
    from tracks_dagster.evals.effects.families import measured_by_example

    for name in places_set_up(settings):
        check_installed(launchers_of_wings()[name][0])
    store, ledger = _open_store_and_ledger(
        settings, when_outdated=partial(_project_again, settings)
    )
    projector, tracks = _projected(settings, store, ledger)
    clean = partial(redact, secrets=settings.secrets)
    shipped = partial(_find_shipped, settings.examples, store.url, clean)
    return App(
        settings=settings,
        store=store,
        leftovers=store,
        checkpoints=read_checkpoints(store),
        ledger=ledger,
        projector=projector,
        tracks=tracks,
        launcher_of=launchers(settings, store, clean),
        foresee=partial(_foresee, settings),
        shipped=shipped,
        evaluator=LocalEvaluator(
            settings.work,
            clean=clean,
            of_family=partial(measured_by_example, store, shipped),
            warm_address=_warm_address(settings),
        ),
        datasets=ShippedDatasets(settings.work),
        redact=clean,
        now=utc_now,
        new_uid=new_uid,
        devices=open_devices(settings, tracks),
    )


def open_tracks(settings: Settings) -> Tracks:
    """Return the tracks alone, for what starts no run and no eval: two thirds of what `build` loads.

    Makes and raises the same.
    """
    opened = _open_store_and_ledger(settings, when_outdated=partial(_project_again, settings))
    return _projected(settings, *opened)[1]


def home_ledger(settings: Settings) -> Ledger:
    """Return the ledger alone, for what only asks it: two thirds of what `build` loads. It makes and
    raises the same.
    """
    return _open_store_and_ledger(settings, when_outdated=partial(_project_again, settings))[1]


def _projected(settings: Settings, store: Store, ledger: Ledger) -> tuple[Projector, Tracks]:
    """Return tracks of `store`, each projected whenever something was appended to it."""
    from tracks_dagster.ledger.effects.projector import Projector
    from tracks_dagster.ledger.effects.tracks import Tracks

    projector = Projector(store, ledger)
    clean = partial(redact, secrets=settings.secrets)
    tracks = Tracks(store, now=utc_now, new_uid=new_uid, project=projector.project, clean=clean)
    return projector, tracks


def gang_check(settings: Settings) -> CheckGang:
    """Return what raises InvalidInput for a gang that could never be started, on this machine or where
    the settings say, were all devices free."""
    from tracks_dagster.scheduling.leases import check_demand

    def check(spec: GangSpec) -> None:
        if spec.compute.launcher == names.LOCAL:
            check_demand(spec.ranks, devices_here(settings))
        else:
            launching(spec.compute.launcher).check_gang(settings, spec)

    return check


def run_checks(
    settings: Settings, policy: RetryPolicy, prepared: Prepared
) -> tuple[Callable[[], None], ...]:
    """Return what a run that is declared has to meet beside `runs.declare`'s own: by the price table
    and by who is notified. Each raises InvalidInput."""
    from tracks_dagster.retry.caps import check_cap
    from tracks_dagster.review.effects.watching import watching

    body, limits = prepared.body, prepared.limits

    def cap() -> None:
        if body.max_cost is not None:  # a broken price table hinders no other run
            by_policy = {policy.contracts.cost.max_cost, limits.money if limits else None}
            check_cap(
                body.max_cost,
                load_prices(settings),
                body.compute,
                is_by_policy=body.max_cost in by_policy,
            )

    def notified() -> None:
        find = partial(find_file, settings)
        watching().check_notified(policy.contracts, body.stage, body.team, find)

    return cap, notified


def devices_here(settings: Settings) -> Found:
    """Return the devices that this machine may give out, were all of them free; bounded."""
    from tracks_dagster.attempts.effects.local.this_machine import find_devices

    return find_devices(settings.devices, platform.node(), frozenset())


def open_devices(settings: Settings, tracks: Tracks, *, to_read: bool = False) -> DevicePool:
    """Return this machine's devices, and who has them by the track in `settings.pool_url`.

    tracks: of the home's own store. Another home's is opened when a lease of it is met. to_read: makes
    and probes no store.
    """
    from tracks_dagster.attempts.effects.local.this_machine import (
        find_devices,
        find_gone,
        this_pool,
    )
    from tracks_dagster.ledger.effects.tracks import Tracks
    from tracks_dagster.scheduling.effects.leases import DevicePool
    from tracks_dagster.stores import open_store

    @_once_each
    def other(url: str) -> Tracks:
        store = open_store(url, probe=url == settings.pool_url and not to_read)
        return Tracks(
            store, now=utc_now, new_uid=new_uid, project=project_nothing, clean=tracks.clean
        )

    def runs(url: str) -> Tracks:
        return tracks if url == tracks.store.url else other(url)

    given = settings.devices
    here = this_pool(platform.node())
    return DevicePool(
        here=here,
        tracks=tracks if settings.pool_url is None else runs(settings.pool_url),
        runs=runs,
        store=tracks.store.url,
        look=partial(find_devices, given, here.node),
        gone=partial(find_gone, given),
        work=str(settings.work),
        is_gone=_is_gone,
        lives=_lives,
        hides_gpus=given.hides_gpus,
    )


def _is_gone(leased: DevicesLeased) -> bool:
    """Tell whether the gang of a lease is gone; an eval's processes are its run worker's to end."""
    from tracks_dagster.attempts.effects.local.launcher import is_gone

    is_eval = names.parse_eval_attempt_key(leased.key) is not None
    return bool(leased.work) and not is_eval and is_gone(Path(leased.work), leased.key)


def _lives(leased: DevicesLeased) -> bool:
    from tracks_dagster.attempts.effects.local.launcher import lives

    return bool(leased.work) and lives(Path(leased.work), leased.key)


def project_nothing(track: str) -> None:
    """Project nothing: for who appends nothing, or to another home's tracks."""


def reindex(settings: Settings, *, forgets_lost: bool) -> Reindexed:
    """Rebuild the ledger, of whichever older version it is; raises as `build`."""
    from tracks_dagster.ledger.effects.projector import Projector

    store, ledger = _open_store_and_ledger(settings, when_outdated=lambda ledger: None)
    return Projector(store, ledger).reindex(forgets_lost=forgets_lost)


def _open_store_and_ledger(
    settings: Settings, *, when_outdated: Callable[[Ledger], object]
) -> tuple[Store, Ledger]:
    from tracks_dagster.ledger.effects.database import open_ledger

    check_home(settings.home)
    if settings.postgres_url is not None:
        ledger = open_ledger(settings.ledger_url, when_outdated=when_outdated)
        store = _open_store(settings)
        prepare_home(settings.home)
    else:
        store = _open_store(settings)
        prepare_home(settings.home)
        ledger = open_ledger(settings.ledger_url, when_outdated=when_outdated)
    return store, ledger


def _open_store(settings: Settings) -> Store:
    from tracks_dagster.stores import open_store
    from tracks_dagster.stores.histories import HistoryStore

    if Path(settings.store_url).is_relative_to(settings.home):
        prepare_home(settings.home)  # a store makes the folders above it for everybody to read
    return HistoryStore(open_store(settings.store_url))


def _project_again(settings: Settings, ledger: Ledger) -> None:
    """Rebuild the ledger of an older version; what it could not be made of is a warning."""
    from tracks_dagster.ledger.effects.projector import Projector
    from tracks_dagster.stores import open_store

    _log.warning("The ledger is of an older version of this program: rebuilding it.")
    done = Projector(open_store(settings.store_url), ledger).reindex(only_outdated=True)
    for problem in done.problems:
        _log.warning("%s", problem)
    if done.track_count:  # else another process was faster
        _log.warning("Rebuilt the ledger, from %d tracks.", done.track_count)


def read_checkpoints(store: ObjectStore) -> CheckpointReader:
    """Return the reader of what was committed in `store`; loads no torch."""
    from tracks_dagster.training.saves.manifest import StoredCheckpoints

    return StoredCheckpoints(store)


def open_dagster_home(settings: Settings) -> DagsterHome:
    """Return the home of Dagster's storage, daemon and web server; nothing is started yet."""
    from tracks_dagster.home.dagster_home import DagsterHome

    return DagsterHome(
        settings.home / "dagster",
        root=settings.root,
        environment=settings.environment,
        postgres_url=settings.postgres_url,
        programs=programs_of(settings),
    )


def programs_of(settings: Settings) -> Programs:
    """Return Dagster's programs of a home: a wing's, or its own where the settings say so."""
    from tracks_dagster.home.programs import Programs

    package = next((name for name, wing in wings().items() if wing.home), None)
    if settings.is_stock or package is None:
        return Programs()
    return cast(Programs, load(package, wings()[package].home).PROGRAMS)


class Launching(Protocol):
    """What the module of a wing's launcher has: a function each, of one place where gangs run."""

    def open_launcher(self, settings: Settings, store: ObjectStore, clean: Redact) -> GangLauncher:
        """Return the launcher, connected; called once a process. Raises a TracksError."""

    def check_gang(self, settings: Settings, spec: GangSpec) -> None:
        """Raise InvalidInput for a gang that could never be started there."""

    def drain_grace_s(self, settings: Settings) -> float:
        """Return how long a gang gets to finish a step and save."""

    def software(self, settings: Settings, compute: ComputeRequest) -> Mapping[str, Json]:
        """Return what is known of the software of a gang that would start now and asks for this."""

    def findings(self, settings: Settings) -> Sequence[Finding]:
        """Return what gangs need there and lack, for `tracks doctor`; only reads. Raises SettingsError
        for settings that cannot be used."""

    def upkeep(self, app: App) -> Tick[None]:
        """Once a minute, where the place is set up: end what outlived its attempt."""

    def open_home(self, settings: Settings) -> DagsterHome:
        """Return the home of Dagster whose runs are there; only where `Launcher.runs` says so."""


def launching(name: str) -> Launching:
    """Return how gangs run at that launcher of a wing.

    Raises GangError where no wing has it, SettingsError where the wing's extra is not installed.
    """
    if (found := launchers_of_wings().get(name)) is None:
        known = " and ".join((names.LOCAL, *launchers_of_wings()))
        raise GangError(f"There is no launcher {name!r}; there are {known}.")
    package, launcher = found
    return cast(Launching, load(package, launcher.module))


def launchers(settings: Settings, store: ObjectStore, clean: Redact) -> LauncherOf:
    """Return the launchers by name; one of a wing is connected at its first use."""
    from tracks_dagster.attempts.effects.local.launcher import LocalLauncher

    local = LocalLauncher(settings.work, clean=clean, warm_address=_warm_address(settings))

    @_once_each
    def of_wing(name: str) -> GangLauncher:
        return launching(name).open_launcher(settings, store, clean)

    def launcher_of(name: str) -> GangLauncher:
        return local if name == names.LOCAL else of_wing(name)

    return launcher_of


def _once_each(make: Callable[[str], T]) -> Callable[[str], T]:
    """Return what makes each but once, also where several threads ask for it first."""
    kept, lock = cache(make), threading.Lock()

    def of(name: str) -> T:
        with lock:
            return kept(name)

    return of


def _warm_address(settings: Settings) -> Path | None:
    """Return where a warm parent for gangs listens; None outside of a home that is up."""
    from tracks_dagster.processes.warm import GANGS

    return None if settings.sockets is None else settings.sockets.with_suffix(GANGS)


def _foresee(
    settings: Settings, compute: ComputeRequest, trainer: str, python: str | None
) -> Mapping[str, Json]:
    """Tell the environment of a gang that would start now: local ones start where this runs."""
    from tracks_dagster.processes.process import worker_environment
    from tracks_dagster.training.software import describe_code, foresee_software

    if compute.launcher != names.LOCAL:  # the place has it; of code that is stored all is known
        return {
            **launching(compute.launcher).software(settings, compute),
            **describe_code(trainer),
        }
    if python is None:
        software: Mapping[str, Json] = foresee_software(worker_environment())
    else:
        from tracks_dagster.attempts.effects.local.project_code import ask_interpreter

        software = ask_interpreter(python)
    return {**software, **describe_code(trainer)}


def _find_shipped(examples: Path, store_url: str, clean: Redact, name: str) -> FoundCode | None:
    """Find the code of an example; what reads its file is loaded only when somebody asks."""
    from tracks_dagster.attempts.effects.local.project_code import find_shipped

    return find_shipped(examples, name, store_url=store_url, clean=clean)


def utc_now() -> datetime:
    """Return the time, aware and in UTC."""
    return datetime.now(UTC)


def new_uid() -> str:
    """Return a fresh random identity, 32 hex digits."""
    return uuid.uuid4().hex

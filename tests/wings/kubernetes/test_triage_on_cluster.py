"""`tracks triage` of attempts on a cluster: a glance, which writes nothing; and of a lost cluster."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.bodies import placed
from tests.fakes import FakeObjectStore
from tests.histories import History
from tests.six_variants import sources_of
from tests.wings.kubernetes.double.kube_double import KubeDouble, kube_double
from tests.wings.kubernetes.double.launching import Clock, launcher_on, running, spec
from tracks_dagster.ledger.effects.database import open_ledger
from tracks_dagster.ledger.effects.database.sql_ledger import SqlLedger
from tracks_dagster.ledger.effects.projector import Projector
from tracks_dagster.track.names import AttemptRef
from tracks_dagster.wings.kubernetes.effects.gang_job import BOARD_S
from tracks_dagster.wings.kubernetes.effects.launcher import KubernetesLauncher
from tracks_dagster.wings.triage.effects.line import Line
from tracks_dagster.wings.triage.effects.triage import GivenDevices, triage


@pytest.fixture
def kube(tmp_path: Path) -> Iterator[KubeDouble]:
    """A double whose pods have no processes."""
    with kube_double(tmp_path / "kube", pretend=True) as double:
        yield double


@pytest.fixture
def ledger(tmp_path: Path, store: FakeObjectStore) -> SqlLedger:
    """A ledger that knows one attempt, placed in two pods."""
    history = History("r-1").declare(compute=spec().compute).open().supervise()
    ranks = placed("", world_size=4).ranks
    history.place(ranks=ranks, world_size=4).restore().commit(10).write_to(store)
    found = open_ledger(f"sqlite:///{tmp_path / 'ledger.db'}")
    Projector(store, found).scan()
    return found


def line(launcher: KubernetesLauncher, store: FakeObjectStore, ledger: SqlLedger) -> Line:
    [found] = triage(sources_of(store, ledger, launcher), GivenDevices(slots=12)).lines
    return found


def test_a_gang_on_a_cluster_is_judged_by_its_job_and_nothing_is_written(
    kube: KubeDouble, store: FakeObjectStore, ledger: SqlLedger
) -> None:
    clock = Clock()
    clock.freeze()
    with launcher_on(kube, store, clock) as starter:
        starter.start(spec())
        running(kube)
        with launcher_on(kube, store, clock) as launcher:
            before = dict(store.objects)
            found = line(launcher, store, ledger)
            assert (found.verdict, found.committed_step) == (
                "orphaned",
                10,
            )  # no daemon ever ticked
            assert store.objects == before
        starter.kill(AttemptRef("r-1", 1))
        clock.advance(2 * BOARD_S)
        with launcher_on(kube, store, clock) as launcher:
            before = dict(store.objects)
            assert line(launcher, store, ledger).verdict == "dead"
            assert store.objects == before


def test_of_a_cluster_that_is_gone_nothing_is_called_dead(
    tmp_path: Path, store: FakeObjectStore, ledger: SqlLedger
) -> None:
    with ExitStack() as stack:
        with kube_double(tmp_path / "lost", pretend=True) as lost:
            launcher = stack.enter_context(launcher_on(lost, store))
        found = line(launcher, store, ledger)
    assert found.verdict == "not_seen"
    assert not found.is_due

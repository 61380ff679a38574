"""Settings that change while gangs run: a gang that is looked for elsewhere is not taken for gone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.fakes import FakeObjectStore
from tests.wings.kubernetes.double.gangs import until
from tests.wings.kubernetes.double.kube_double import KubeDouble, kube_double
from tests.wings.kubernetes.double.launching import (
    is_gone,
    launcher_on,
    pods_of,
    running,
    seen,
    spec,
)
from tracks_dagster.attempts.ports import GangPhase
from tracks_dagster.track.errors import GangError
from tracks_dagster.track.names import AttemptRef
from tracks_dagster.wings.kubernetes.effects.launcher import KubernetesLauncher

ACTS: dict[str, Callable[[KubernetesLauncher], object]] = {
    "glance": lambda launcher: launcher.glance(AttemptRef("r-1", 1)),
    "observe": lambda launcher: launcher.observe(AttemptRef("r-1", 1)),
    "drain": lambda launcher: launcher.drain(AttemptRef("r-1", 1), grace_s=5.0),
    "kill": lambda launcher: launcher.kill(AttemptRef("r-1", 1)),
    "start": lambda launcher: launcher.start(spec()),
}


@pytest.fixture
def kube(tmp_path: Path) -> Iterator[KubeDouble]:
    """A double whose pods have no processes."""
    with kube_double(tmp_path / "kube", pretend=True) as double:
        yield double


@pytest.fixture
def other(tmp_path: Path) -> Iterator[KubeDouble]:
    """Another cluster, which knows nothing of the first."""
    with kube_double(tmp_path / "other", pretend=True) as double:
        yield double


@pytest.mark.parametrize("act", ["glance", "observe", "drain", "kill", "start"])
def test_a_gang_of_another_namespace_than_the_settings_say_now_is_reported_and_left_alone(
    kube: KubeDouble, store: FakeObjectStore, act: str
) -> None:
    with launcher_on(kube, store) as launcher:
        launcher.start(spec())
        running(kube)
    moved = launcher_on(kube, store, namespace="elsewhere")
    with moved as launcher, pytest.raises(GangError, match=r"r-1/a01.*in namespace tracks, and"):
        ACTS[act](launcher)
    assert len(pods_of(kube)) == 2


@pytest.mark.parametrize("act", ["glance", "observe", "drain", "kill"])
def test_a_gang_that_is_not_found_on_another_cluster_is_reported_and_not_taken_for_gone(
    kube: KubeDouble, other: KubeDouble, store: FakeObjectStore, act: str
) -> None:
    with launcher_on(kube, store) as launcher:
        launcher.start(spec())
        running(kube)
    with (
        launcher_on(other, store) as lost,
        pytest.raises(GangError, match=r"the state of r-1/a01.*`context` in kubernetes.yaml"),
    ):
        ACTS[act](lost)
    with launcher_on(kube, store) as launcher:
        assert launcher.glance(AttemptRef("r-1", 1)).phase is GangPhase.ALIVE


def test_a_gang_that_was_seen_to_end_is_gone_whatever_the_server_is_called(
    kube: KubeDouble, other: KubeDouble, store: FakeObjectStore
) -> None:
    with launcher_on(kube, store) as launcher:
        launcher.start(spec())
        names = running(kube)
        seen(launcher, lambda report: bool(report.beats), "both pods are seen running")
        for name in names:
            kube.finish(name, 0)
        seen(launcher, is_gone, "the gang is gone")
    with launcher_on(other, store) as late:
        assert late.glance(AttemptRef("r-1", 1)).phase is GangPhase.GONE
        late.kill(AttemptRef("r-1", 1))
        assert [rank.exit_code for rank in late.observe(AttemptRef("r-1", 1)).ranks] == [0] * 4


def test_a_gang_whose_job_a_person_deleted_unseen_is_closed_once_they_say_so(
    kube: KubeDouble, other: KubeDouble, store: FakeObjectStore
) -> None:
    with launcher_on(kube, store) as launcher:
        launcher.start(spec())
        running(kube)
    with launcher_on(other, store) as late:
        with pytest.raises(GangError, match=r"delete (runs/r-1/\S+) from the store") as caught:
            late.observe(AttemptRef("r-1", 1))
        key = str(caught.value).split("delete ")[1].split(" from")[0]
        del store.objects[key]
        store.objects["runs/r-1/attempts/1/gang/u/beat.json"] = b"{}"  # as every pod that ran left
        late.kill(AttemptRef("r-1", 1))
        until(lambda: is_gone(late.observe(AttemptRef("r-1", 1))), "the gang counts as gone")

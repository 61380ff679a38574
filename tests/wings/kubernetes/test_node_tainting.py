"""The taint of a quarantine on the double: put on and taken off, and never over another's change."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes import FakeObjectStore
from tests.wings.kubernetes.double.faults import Misbehaviour
from tests.wings.kubernetes.double.kube_double import KubeDouble, kube_double
from tests.wings.kubernetes.double.launching import launcher_on, pods_of, running, spec
from tracks_dagster.track.errors import GangError
from tracks_dagster.track.records import Json
from tracks_dagster.wings.kubernetes.upkeep import TAINT_KEY


@pytest.fixture
def kube(tmp_path: Path) -> Iterator[KubeDouble]:
    """A double whose pods have no processes."""
    with kube_double(tmp_path / "kube", pretend=True) as double:
        yield double


def taints(kube: KubeDouble, node: str) -> list[Json]:
    return list(kube.objects.get("nodes", "", node)["spec"].get("taints") or ())


def test_a_node_has_it_as_long_as_it_is_wanted_and_keeps_its_others(
    kube: KubeDouble, store: FakeObjectStore
) -> None:
    kube.taint_node("node2", "team", "NoSchedule", "a")
    others = taints(kube, "node2")
    with launcher_on(kube, store, taint_quarantined_nodes=True) as launcher:
        assert launcher.taints_nodes
        assert launcher.taint({"node2", "gone"}) == ["node node2 has the taint of its quarantine"]
        assert [each["key"] for each in taints(kube, "node2")] == ["team", TAINT_KEY]
        assert taints(kube, "node1") == []
        assert launcher.taint({"node2"}) == []
        assert launcher.taint(set()) == ["node node2 has it no longer"]
    assert taints(kube, "node2") == others


def test_another_pod_is_kept_off_and_what_runs_there_goes_on(
    kube: KubeDouble, store: FakeObjectStore
) -> None:
    with launcher_on(kube, store, taint_quarantined_nodes=True) as launcher:
        launcher.start(spec())
        names = running(kube)
        nodes = {kube.pod(name)["spec"]["nodeName"] for name in names}
        launcher.taint(nodes)
        assert pods_of(kube) == names
        launcher.start(spec("r-2"))
        kept_off = {kube.pod(name)["spec"].get("nodeName") for name in pods_of(kube, "r-2")}
    assert not nodes & kept_off


def test_two_homes_leave_each_others_taints_alone(kube: KubeDouble, store: FakeObjectStore) -> None:
    theirs = FakeObjectStore()
    theirs.put("format.json", b'{"store_id": "another"}')
    with launcher_on(kube, store) as ours, launcher_on(kube, theirs) as others:
        others.taint({"node1"})
        assert ours.taint({"node1"}) == []
        assert ours.taint(set()) == []
        assert others.taint(set()) == ["node node1 has it no longer"]


def test_a_node_that_changed_meanwhile_is_left_to_the_next_call(
    kube: KubeDouble, store: FakeObjectStore
) -> None:
    conflict = Misbehaviour(verb="patch", resource="nodes", status=409, count=1)
    with launcher_on(kube, store) as launcher:
        with kube.misbehaving(conflict):
            assert launcher.taint({"node1"}) == []
        assert launcher.taint({"node1"}) == ["node node1 has the taint of its quarantine"]


def test_a_missing_right_is_reported_with_the_rule_to_add(
    kube: KubeDouble, store: FakeObjectStore
) -> None:
    kube.deny("patch", "nodes")
    with (
        launcher_on(kube, store) as launcher,
        pytest.raises(GangError, match="may not patch nodes"),
    ):
        launcher.taint({"node1"})

"""A running double, and the real client's APIs against it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from kubernetes import client

from tests.wings.kubernetes.double.kube_double import KubeDouble, kube_double
from tests.wings.kubernetes.double.validation import problems_of


@pytest.fixture
def kube(tmp_path: Path) -> Iterator[KubeDouble]:
    """A double with one namespace and two nodes; nothing of it lives after the test.

    Every manifest that it received has to be valid in three versions of Kubernetes.
    """
    with kube_double(tmp_path / "kube") as double:
        yield double
        assert double.received_count == len(double.received), "manifests that nobody validates"
        assert problems_of(double.received) == []


@pytest.fixture
def batch(kube: KubeDouble) -> Iterator[client.BatchV1Api]:
    """Jobs."""
    with kube.client() as connection:
        yield client.BatchV1Api(connection)


@pytest.fixture
def core(kube: KubeDouble) -> Iterator[client.CoreV1Api]:
    """Pods, services, events, nodes, logs."""
    with kube.client() as connection:
        yield client.CoreV1Api(connection)

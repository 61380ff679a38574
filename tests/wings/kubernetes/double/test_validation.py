"""Manifests are validated strictly, in three versions, and nothing is passed over."""

from __future__ import annotations

import pytest

from tests.wings.kubernetes.double.answers import Json
from tests.wings.kubernetes.double.gangs import job
from tests.wings.kubernetes.double.validation import VERSIONS, problems_of


def test_three_versions_are_asked_for_the_newest_is_one_of_them() -> None:
    assert VERSIONS[:2] == ("1.32", "1.34")
    assert len(set(VERSIONS)) == 3


def test_a_good_job_has_no_problems() -> None:
    assert problems_of([job("good")]) == []


@pytest.mark.parametrize(
    ("manifest", "words"),
    [
        (job("bad", backoffLimits=3), "backoffLimits"),
        (job("bad", container={"resources": {"limits": {"memory": ["1Gi"]}}}), "memory"),
        ({"kind": "Workload", "apiVersion": "kueue.x-k8s.io/v1beta1"}, "no schema"),
        ({"metadata": {"name": "nameless"}}, "apiVersion and kind"),
        (
            {
                "apiVersion": "jobset.x-k8s.io/v1alpha2",
                "kind": "JobSet",
                "metadata": {"name": "set"},
                "spec": {
                    "replicatedJobs": [
                        {"name": "w", "template": {"spec": {**job("in")["spec"], "oops": 1}}}
                    ]
                },
            },
            "oops",
        ),
    ],
)
def test_what_is_wrong_is_reported_for_every_version(manifest: Json, words: str) -> None:
    found = problems_of([manifest])
    assert [version for version in VERSIONS if any(f"({version})" in why for why in found)] == list(
        VERSIONS
    )
    assert all(words in why for why in found)

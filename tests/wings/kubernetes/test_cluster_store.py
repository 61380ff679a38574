"""Whether pods reach the store: what settings can tell of it, in words that say what to do."""

from __future__ import annotations

import pytest

from tracks_dagster.track.records import Json
from tracks_dagster.wings.kubernetes.settings import (
    ClusterSettings,
    gives_credentials,
    why_unreachable,
)

CLAIM = {"name": "v", "persistentVolumeClaim": {"claimName": "store"}}
MOUNT = {"name": "v", "mountPath": "/store"}


def cluster(**fields: Json) -> ClusterSettings:
    return ClusterSettings(image="train:1", **fields)


@pytest.mark.parametrize(
    ("url", "fields"),
    [
        ("s3://bucket/prefix", {}),
        ("s3://bucket/prefix", {"environment": {"AWS_ENDPOINT_URL_S3": "http://minio.data:9000"}}),
        ("/store", {"volumes": (CLAIM,), "volume_mounts": (MOUNT,)}),
        ("/store/team/a", {"volumes": (CLAIM,), "volume_mounts": (MOUNT,)}),
        ("file:///store/a%20b", {"volumes": (CLAIM,), "volume_mounts": (MOUNT,)}),
        (
            "/store",
            {
                "pod_template": {
                    "spec": {
                        "volumes": [CLAIM],
                        "containers": [
                            {"name": "sidecar"},
                            {"name": "trainer", "volumeMounts": [MOUNT]},
                        ],
                    }
                }
            },
        ),
    ],
)
def test_a_store_that_pods_can_reach_is_not_spoken_against(
    url: str, fields: dict[str, Json]
) -> None:
    assert why_unreachable(url, cluster(**fields)) is None


@pytest.mark.parametrize(
    ("url", "fields", "words"),
    [
        ("/home/me/.tracks/store", {}, "no volume mounts into the pods. Set TRACKS_STORE to s3://"),
        ("/stores", {"volumes": (CLAIM,), "volume_mounts": (MOUNT,)}, "no volume mounts"),
        ("file://localhost/other", {}, "The store /other is a folder of this machine"),
        (
            "/store",
            {"volumes": ({"name": "v", "emptyDir": {}},), "volume_mounts": (MOUNT,)},
            "every pod has its own",
        ),
        (
            "/store",
            {"volumes": (CLAIM,), "volume_mounts": ({**MOUNT, "readOnly": True},)},
            "read-only",
        ),
        (
            "/store/deep/a",
            {
                "volumes": (CLAIM, {"name": "c", "configMap": {"name": "c"}}),
                "volume_mounts": (MOUNT, {"name": "c", "mountPath": "/store/deep"}),
            },
            "volume c at /store/deep, which is read-only",
        ),
        (
            "/store",
            {
                "pod_template": {
                    "spec": {"volumes": [CLAIM], "containers": [{"name": "a"}, {"name": "b"}]}
                }
            },
            "no volume mounts",
        ),
        (
            "s3://bucket",
            {"environment": {"AWS_ENDPOINT_URL": "http://127.0.0.1:9000"}},
            "in a pod, that is the pod itself",
        ),
    ],
)
def test_a_store_that_pods_cannot_reach_is_reported(
    url: str, fields: dict[str, Json], words: str
) -> None:
    assert words in str(why_unreachable(url, cluster(**fields)))


def test_credentials_come_from_a_secret_or_an_account() -> None:
    assert not gives_credentials(cluster())
    assert gives_credentials(cluster(service_account="gangs"))
    assert gives_credentials(cluster(environment_from=({"secretRef": {"name": "s3"}},)))

"""What a manifest tells a pod is what the pod reads, and whatever is wrong is named at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tracks_dagster.attempts.ports import GangSpec, RankCommand
from tracks_dagster.track.bodies import ComputeRequest
from tracks_dagster.track.errors import SettingsError
from tracks_dagster.track.names import ENV_ENDS_AT, ENV_SWITCHES, POD_VARIABLES
from tracks_dagster.training.pods.environment import PodEnvironment, read_pod_environment
from tracks_dagster.wings.kubernetes.manifests import gang_objects
from tracks_dagster.wings.kubernetes.settings import ClusterSettings

COMMAND = RankCommand(words=("train.py", "--lr=0.1"), files={"config.yaml": "lr: 0.1\n"})

# What a kubelet makes of the fields that a manifest refers to.
FIELDS = {
    "metadata.annotations['batch.kubernetes.io/job-completion-index']": "1",
    "spec.nodeName": "node-7",
    "metadata.name": "gang-1-abcde",
    "metadata.uid": "3f1c",
    "metadata.labels['kueue.x-k8s.io/cluster-queue-name']": "shared",
}


def given(code_key: str | None = None, *, ranks: int = 4) -> dict[str, str]:
    """Return the environment of the second pod of a gang of two ranks in each."""
    spec = GangSpec(
        run_id="r",
        attempt_id=2,
        opened_seq=5,
        compute=ComputeRequest(launcher="kubernetes", ranks=ranks, ranks_per_node=2),
        store_url="s3://bucket/prefix",
        command=COMMAND,
        code_key=code_key,
        workload_class="urgent",
    )
    cluster = ClusterSettings(image="registry/image:1", queue="training")
    job = gang_objects(spec, cluster)[-1]
    (container,) = job["spec"]["template"]["spec"]["containers"]
    return {
        each["name"]: each["value"]
        if "value" in each
        else FIELDS[each["valueFrom"]["fieldRef"]["fieldPath"]]
        for each in container["env"]
    }


def test_a_manifest_sets_exactly_what_the_table_of_a_pods_variables_has() -> None:
    ours = {
        name for name in given("runs/r/trainer.py") if name in POD_VARIABLES or "TRACKS" in name
    }
    assert ours == POD_VARIABLES - {ENV_ENDS_AT, ENV_SWITCHES}  # which Slurm alone says


def test_a_pod_reads_what_its_manifest_tells() -> None:
    environ = given()
    result = read_pod_environment(environ)
    assert result == PodEnvironment(
        store_url="s3://bucket/prefix",
        run_id="r",
        attempt_id=2,
        work=Path(environ["TRACKS_WORK"]),
        node="node-7",
        pod="gang-1-abcde",
        pod_uid="3f1c",
        index=1,
        pods=2,
        ranks=2,
        master_addr=environ["TRACKS_MASTER_ADDR"],
        master_port=29500,
        grace_s=120.0,
        command=COMMAND,
        code_key=None,
    )
    assert list(result.all_ranks) == [2, 3]


def test_stored_code_is_found_by_its_key() -> None:
    assert read_pod_environment(given("scripts/abc.tar")).code_key == "scripts/abc.tar"


def test_a_gang_of_one_pod_needs_no_name_in_the_cluster_s_dns() -> None:
    environ = given(ranks=2) | {"TRACKS_MASTER_ADDR": "", "JOB_COMPLETION_INDEX": ""}
    result = read_pod_environment(environ)
    assert (result.index, result.master_addr) == (0, "127.0.0.1")


def test_secrets_are_known_and_not_shown() -> None:
    result = read_pod_environment(given() | {"AWS_SECRET_ACCESS_KEY": "not-to-be-seen"})
    assert {"not-to-be-seen", b"not-to-be-seen".hex()} <= {*result.secrets}
    assert "not-to-be-seen" not in repr(result)


def test_everything_that_is_missing_or_bad_is_named_at_once() -> None:
    environ = given() | {
        "TRACKS_RUN_ID": "No Run",
        "TRACKS_COMMAND": "train.py",
        "TRACKS_MASTER_PORT": "70000",
        "JOB_COMPLETION_INDEX": "2",
        "TRACKS_RANKS_PER_NODE": "0",
        "TRACKS_TERMINATION_GRACE_S": "soon",
        "TRACKS_OPENED_SEQ": "-1",
    }
    del environ["TRACKS_STORE"], environ["TRACKS_POD_UID"]
    with pytest.raises(SettingsError) as error:
        read_pod_environment(environ)
    for words in (
        "TRACKS_STORE is not set",
        "TRACKS_POD_UID is not set",
        "'No Run' cannot name a training run",
        "TRACKS_COMMAND is not a command: ",
        "TRACKS_MASTER_PORT is 70000: 1 to 65535",
        "JOB_COMPLETION_INDEX is 2 and TRACKS_NODES is 2: 0 to 1",
        "TRACKS_RANKS_PER_NODE is '0': a whole number from 1 on",
        "TRACKS_TERMINATION_GRACE_S is 'soon': a whole number from 1 on",
        "TRACKS_OPENED_SEQ is '-1': a whole number from 0 on",
    ):
        assert words in str(error.value)


def test_a_pod_of_several_needs_its_index_and_the_first_pod_s_name() -> None:
    environ = given()
    del environ["JOB_COMPLETION_INDEX"], environ["TRACKS_MASTER_ADDR"]
    with pytest.raises(SettingsError, match=r"JOB_COMPLETION_INDEX is not set.*MASTER_ADDR is not"):
        read_pod_environment(environ)

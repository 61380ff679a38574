"""`tracks doctor --slurm`: what a cluster's own programs say, and what of it is missing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tracks_dagster.attempts.findings import Health
from tracks_dagster.wings.slurm.checkup import Facts, check
from tracks_dagster.wings.slurm.settings import ClassSettings, DeviceClass, SlurmSettings

# As 22.05 prints it, shortened.
CONFIG = """\
Configuration data as of 2026-11-28T09:06:08
AccountingStorageType   = accounting_storage/slurmdbd
ClusterName             = t
ProctrackType           = proctrack/cgroup
SLURM_VERSION           = 22.05.8
"""
PARTITIONS = """\
PartitionName=low AllowGroups=ALL Default=YES DefaultTime=NONE GraceTime=15 MaxTime=1-00:00:00 \
State=UP TotalNodes=2 PreemptMode=REQUEUE
PartitionName=high AllowGroups=ALL Default=NO DefaultTime=00:10:00 GraceTime=0 \
MaxTime=UNLIMITED State=UP TotalNodes=2 PreemptMode=OFF
PartitionName=old Default=NO GraceTime=0 MaxTime=UNLIMITED State=DOWN TotalNodes=1 PreemptMode=OFF
"""
NODES = "n1|low|gpu:a100:2(S:0)|ib\nn1|high|gpu:a100:2(S:0)|ib\nn2|low|gpu:2|(null)\n"
FACTS = Facts(
    config=CONFIG,
    partitions=PARTITIONS,
    nodes=NODES,
    drained="",
    associations="team-a||normal,urgent\nteam-b||normal\n",
    logs="/shared/logs",
    logs_type="nfs",
)
SETTINGS = SlurmSettings(python="/p", partition="low")


def found(settings: SlurmSettings, facts: Facts = FACTS) -> dict[str, tuple[Health, str]]:
    return {each.check: (each.health, each.words) for each in check(facts, settings)}


def test_a_cluster_that_has_all_is_described() -> None:
    answers = found(replace(SETTINGS, account="team-a", qos="urgent"))
    assert {health for health, _ in answers.values()} == {Health.OK}
    assert answers["Slurm"][1] == "cluster t, 22.05.8."
    words = answers["partition low"][1]
    assert words.startswith("up, 2 nodes, at most 24 h a job; its jobs may be preempted, with 15 s")
    assert "notice is 2 min: a save has to fit into it" in words


@pytest.mark.parametrize(
    ("settings", "name", "words"),
    [
        ({"partition": "lo"}, "partition lo", "did you mean low?"),
        ({"partition": "old"}, "partition old", "it is DOWN."),
        ({"partition": "low,old"}, "partition old", "it is DOWN."),
        ({"time_limit_s": 90_000}, "partition low", "jobs there have 24 h at most"),
        (
            {"partition": "high", "notice_s": 600},
            "partition high",
            "time_limit is its default, 10 min",
        ),
        (
            {"notice_s": 86_400},
            "partition low",
            "its default, 24 h, and notice 24 h: a job that is asked",
        ),
        ({"account": "team-c"}, "account", "'team-c' is not"),
        ({"qos": "gold"}, "QOS gold", "'gold' is not"),
        ({"classes": {"x": ClassSettings(partition="none")}}, "partition none", "'none' is not"),
        (
            {"device_classes": {"h100": DeviceClass(gres="gpu:h100")}},
            "device class h100",
            "0 nodes",
        ),
    ],
)
def test_what_is_missing_is_named(settings: dict[str, object], name: str, words: str) -> None:
    health, text = found(replace(SETTINGS, **settings))[name]  # type: ignore[arg-type]
    assert (health, words in text) == (Health.MISSING, True), text


def test_a_template_that_has_a_limit_of_its_own_is_not_measured_by_the_partition_s() -> None:
    settings = replace(
        SETTINGS, partition="high", notice_s=600, template="#!/bin/sh\n#SBATCH -t 60\n"
    )
    assert found(settings)["partition high"][0] is Health.OK


@pytest.mark.parametrize(("gres", "count"), [("gpu", "2 nodes"), ("gpu:a100", "1 node")])
def test_devices_are_counted_by_name_and_type(gres: str, count: str) -> None:
    settings = replace(SETTINGS, device_classes={"x": DeviceClass(gres=gres)})
    assert found(settings)["device class x"] == (
        Health.OK,
        f"gres {gres}: {count} of partition low.",
    )


def test_what_may_not_be_asked_is_unknown_and_a_controller_that_is_away_is_missing() -> None:
    blind = replace(FACTS, partitions=None, associations=None, nodes=None, drained=None)
    answers = found(SETTINGS, blind)
    assert answers["partitions"][0] == answers["account"][0] == Health.UNKNOWN
    away = replace(blind, config=None, problem="Unable to contact slurm controller")
    assert found(SETTINGS, away) == {
        "Slurm": (Health.MISSING, "Unable to contact slurm controller")
    }


def test_a_site_without_accounting_says_what_stays_unknown() -> None:
    config = CONFIG.replace("accounting_storage/slurmdbd", "(null)")
    assert "who cancelled a job" in found(SETTINGS, replace(FACTS, config=config))["accounting"][1]


@pytest.mark.parametrize(
    ("settings", "type_", "health", "words"),
    [
        ({}, "lustre", Health.OK, "/shared/logs, on lustre."),
        ({}, "ext2/ext3", Health.UNKNOWN, "which other machines do not see"),
        ({}, None, Health.MISSING, "not there on this machine"),
        ({"host": "login", "logs": "/shared/logs"}, None, Health.MISSING, "not there on login"),
        ({"host": "login", "logs": "/shared/logs"}, "nfs", Health.OK, "on nfs"),
    ],
)
def test_jobs_output_has_to_lie_where_nodes_see_it(
    settings: dict[str, object], type_: str | None, health: Health, words: str
) -> None:
    answer = found(replace(SETTINGS, **settings), replace(FACTS, logs_type=type_))["logs"]  # type: ignore[arg-type]
    assert (answer[0], words in answer[1]) == (health, True), answer


def test_drained_nodes_are_listed_with_their_reasons() -> None:
    titles = "NODELIST|USER|TIMESTAMP|REASON"
    row = "n2|root|2026-11-28T09:14:38|NHC: GPU 1 fell off the bus"
    drained = replace(FACTS, drained=f"{titles}\n{row}\n")
    assert "n2 (root): NHC: GPU 1 fell off the bus" in found(SETTINGS, drained)["drained nodes"][1]

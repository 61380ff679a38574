"""The settings file of gangs on Slurm: what it says, and every error of it with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tracks_dagster.track.effects.settings_file import parse_settings
from tracks_dagster.track.errors import SettingsError
from tracks_dagster.wings.slurm.effects.slurm_file import read_slurm
from tracks_dagster.wings.slurm.settings import ClassSettings, DeviceClass, SlurmSettings

WHOLE = """
python: /shared/venv/bin/python
partition: gpu
account: team-a
qos: normal
constraint: a100&ib
reservation: week_5
exclude: ["node[01,07]", gpu9]
nice: 100
time_limit: 24h
notice: 3min
scheduling_timeout: 2d
device_classes:
  a100: {gres: "gpu:a100", partition: big}
classes:
  urgent: {partition: "high,top", qos: urgent, nice: 0}
container: apptainer
container_image: /shared/train.sif
container_mounts: [/data]
modules: [cuda/12.4]
prologue: ["ulimit -n 65536"]
environment: {NCCL_DEBUG: INFO}
pass_environment: [AWS_ACCESS_KEY_ID]
options: ["--switches=1"]
work: /scratch
logs: /shared/logs
"""


def read(text: str) -> SlurmSettings:
    return read_slurm(parse_settings(text, "The file"))


def problems(text: str) -> str:
    with pytest.raises(SettingsError) as error:
        read(text)
    return str(error.value)


def test_a_whole_file_is_read() -> None:
    assert read(WHOLE) == SlurmSettings(
        python="/shared/venv/bin/python",
        partition="gpu",
        account="team-a",
        qos="normal",
        constraint="a100&ib",
        reservation="week_5",
        exclude=("node[01,07]", "gpu9"),
        nice=100,
        time_limit_s=86_400,
        notice_s=180,
        scheduling_timeout_s=172_800,
        device_classes={"a100": DeviceClass(gres="gpu:a100", partition="big")},
        classes={"urgent": ClassSettings(partition="high,top", qos="urgent", nice=0)},
        container="apptainer",
        container_image="/shared/train.sif",
        container_mounts=("/data",),
        modules=("cuda/12.4",),
        prologue=("ulimit -n 65536",),
        environment={"NCCL_DEBUG": "INFO"},
        pass_environment=("AWS_ACCESS_KEY_ID",),
        options=("--switches=1",),
        work="/scratch",
        logs="/shared/logs",
    )


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("partion: gpu", "partition"),
        ("partition: 'a b'", "'a b' is not a partition, or some of them"),
        ("partition: 'low,,high'", "'low,,high' is not a partition"),
        ("time_limit: 24", "has no unit"),
        ("notice: 2d", "at most 65535 s"),
        ("options: ['--array=1-3']", "--array belongs to the launcher"),
        *(
            (f"options: ['{option}']", "belongs to the launcher")
            for option in ("-N4", "-Jfoo", "-o/dev/null", "--job-nam=x", "--outpu=/x", "-Mother")
        ),
        *(
            (f"options: ['{option}']", f"write the key {key} of this file instead")
            for option, key in (
                ("--exclude=bad01", "exclude"),
                ("-xbad01", "exclude"),
                ("--exclu=bad01", "exclude"),
                ("--qos=low", "qos"),
                ("-p", "partition"),
                ("--time=10", "time_limit"),
                ("--gres=gpu:1", "device_classes"),
            )
        ),
        ("options: ['rm -rf /']", "not an option of sbatch"),
        ("device_classes: {cpu: {gres: gpu}}", "cpu is there always"),
        ("environment: {TRACKS_STORE: x}", "belongs to the launcher or Slurm"),
        ("environment: {AWS_SECRET_ACCESS_KEY: abcdefgh}", "pass_environment"),
        ("container: docker\ncontainer_image: x", "container"),
        ("modules: ['cuda; rm']", "is not a module"),
        ("template: /no/such/file", "cannot be read"),
        ("work: tmp", "is not an absolute path"),
        ("host: login\npass_environment: [A]", "ssh would show their values"),
        ("host: login", "it needs logs"),
    ],
)
def test_what_cannot_be_meant_is_refused(line: str, words: str) -> None:
    assert words in problems(f"python: /p\n{line}\n")


def test_a_file_without_an_interpreter_says_what_to_write() -> None:
    assert "python: /shared/venv/bin/python" in problems("partition: gpu\n")


@pytest.mark.parametrize(
    "option",
    [
        "--wait-all-nodes=1",
        "--ntasks-per-core=1",
        "--mem=1G",
        "--exclusive",
        "--gres-flags=x",
        "--time-min=5",
    ],
)
def test_an_option_whose_name_begins_as_one_of_ours_is_not_ours(option: str) -> None:
    assert read(f"python: /p\noptions: ['{option}']\n").options == (option,)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("echo\n{tracks}\n", "its first line begins with #!"),
        ("#!/bin/sh\necho\n", "needs one line that is {tracks} alone"),
        ("#!/bin/sh\n{tracks}\n{tracks}\n", "needs one line that is {tracks} alone"),
        ("#!/bin/sh\n#SBATCH --mem=1G --array=1-3\n{tracks}\n", "--array=1-3, which belongs to"),
        ("#!/bin/sh\n#SBATCH -x bad01\n{tracks}\n", "-x: write the key exclude"),
        ("#!/bin/sh\n#SBATCH -M other\n{tracks}\n", "-M, which belongs to the launcher"),
    ],
)
def test_a_template_has_one_place_for_the_ranks(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "site.sh"
    path.write_text(text)
    assert words in problems(f"python: /p\ntemplate: {path}\n")

"""A person's `slurm.yaml` as `SlurmSettings`. Nothing is guessed and nothing skipped.

    partition: gpu
    account: team-a
    python: /shared/venv/bin/python
    time_limit: 24h
    notice: 3min
    device_classes:
      a100: {gres: gpu:a100, constraint: ib}
    classes:                      # of the policy: what their gangs ask for instead
      urgent: {partition: high, qos: urgent}
    modules: [cuda/12.4]

Names are Slurm's own; whether the cluster has them, `tracks doctor --slurm` and sbatch say.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field, PlainValidator

from tracks_dagster.track.effects.settings_file import LEFT_OUT, FileModel, SettingsFile
from tracks_dagster.track.text import units
from tracks_dagster.track.text.redact import is_secret_name, secrets_of
from tracks_dagster.track.text.units import shown
from tracks_dagster.wings.slurm.settings import (
    CONTAINERS,
    CPU,
    NICE_MAX,
    NOTICE_S_MAX,
    TRACKS,
    ClassSettings,
    DeviceClass,
    SlurmSettings,
    matching,
    read_constraint,
    read_line,
    read_module,
    read_name,
    read_nodes,
)

TEMPLATE_BYTES_MAX = 64 * 1024
_PARTITIONS = re.compile(r"[\w.@+-]{1,80}(,[\w.@+-]{1,80}){0,9}", re.ASCII)
_GRES = re.compile(r"[\w.-]{1,40}(:[\w.-]{1,40})?", re.ASCII)
_HOST = re.compile(r"[\w.@-]{1,200}", re.ASCII)
_VARIABLE = re.compile(r"[A-Za-z_]\w*", re.ASCII)
# What the launcher passes itself, and what would make it another job.
_OURS = (
    *(
        "--job-name",
        "-J",
        "--comment",
        "--requeue",
        "--no-requeue",
        "--nodes",
        "-N",
        "--ntasks",
        "-n",
    ),
    *(
        "--ntasks-per-node",
        "--array",
        "-a",
        "--dependency",
        "-d",
        "--signal",
        "--export",
        "--parsable",
    ),
    *("--output", "-o", "--error", "-e", "--wrap", "--wait", "-W", "--test-only", "--chdir", "-D"),
    *("--clusters", "-M"),
)
# What the launcher passes where the file or a quarantine says so; sbatch takes the last of two.
_KEYS = {
    "--exclude": "exclude",
    "-x": "exclude",
    "--partition": "partition",
    "-p": "partition",
    "--account": "account",
    "-A": "account",
    "--qos": "qos",
    "-q": "qos",
    "--constraint": "constraint",
    "-C": "constraint",
    "--reservation": "reservation",
    "--nice": "nice",
    "--time": "time_limit",
    "-t": "time_limit",
    "--gres": "device_classes",
}
_DIRECTIVE = re.compile(r"^#SBATCH\s+(.*)$", re.MULTILINE)


def read_slurm(file: SettingsFile) -> SlurmSettings:
    """Return what the file contains; raises SettingsError with all that is wrong."""
    found = file.read(_SlurmFile)
    given = {} if found is None else found.given()
    template = None
    if given.get("template"):
        template = _template(file, str(given["template"]))
    if given.get("host") and given.get("pass_environment"):
        words = (
            "ssh would show their values to everybody on the machine; set them in ~/.bashrc there."
        )
        file.refuse(("pass_environment",), words)
    if given.get("host") and not given.get("logs"):
        file.refuse(("host",), "it needs logs: a folder of the cluster for the jobs' output.")
    for name, value in (given.get("environment") or {}).items():
        if value and (is_secret_name(name) or secrets_of({name: value})):
            words = (
                "it looks like a secret, which would be in the job's script; name the variable under "
                "pass_environment: […] and set it for this program."
            )
            file.refuse(("environment", name), words)
    if found is None or file.problems:
        raise file.error()
    return replace(SlurmSettings(**given), template=template)


def _template(file: SettingsFile, path: str) -> str | None:
    """Return a site's own script; refuses one that cannot be read or that has no place for ours."""
    try:
        data = Path(path).expanduser().read_bytes()[: TEMPLATE_BYTES_MAX + 1]
        text = data.decode()
    except (OSError, UnicodeDecodeError) as error:
        file.refuse(("template",), f"{path} cannot be read: {error}.")
        return None
    if len(data) > TEMPLATE_BYTES_MAX:
        file.refuse(("template",), f"{path} has more than {TEMPLATE_BYTES_MAX // 1024} KiB.")
    for line in _DIRECTIVE.findall(text):
        for word in line.partition("#")[0].split():
            if word.startswith("-") and _is_ours(word.partition("=")[0]):
                file.refuse(("template",), f"{path} has {word}, which belongs to the launcher.")
            elif word.startswith("-") and _key_of(word.partition("=")[0]) == "exclude":
                words = f"{path} has {word}: write the key exclude of this file instead."
                file.refuse(("template",), f"{words} A quarantine would take its place.")
    lines = text.splitlines()
    if not lines or not lines[0].startswith("#!"):
        file.refuse(("template",), f"{path} is not a script: its first line begins with #!.")
    if [line.strip() for line in lines].count(TRACKS) != 1:
        words = f"{path} needs one line that is {TRACKS} alone: there the ranks are started."
        file.refuse(("template",), words)
    return text


def _matching(pattern: re.Pattern[str], what: str, example: str) -> PlainValidator:
    return PlainValidator(matching(pattern, what, example))


def _path(value: object) -> str:
    if not isinstance(value, str) or not value.startswith("/") or "\n" in value:
        raise ValueError(f"{shown(value)} is not an absolute path; write for example /scratch.")
    return value


def _option(value: object) -> str:
    text = read_line(value)
    name = text.partition("=")[0]
    if not text.startswith("-") or " " in name:
        raise ValueError(f"{text!r} is not an option of sbatch; write for example --switches=1.")
    if _is_ours(name):
        raise ValueError(f"{name} belongs to the launcher, which gives it to sbatch itself.")
    if key := _key_of(name):
        raise ValueError(
            f"{name} would take the place of ours: write the key {key} of this file instead."
        )
    return text


def _is_ours(name: str) -> bool:
    """Whether sbatch takes it for an option of the launcher's: -N4 is one, and so is --job-nam."""
    if not name.startswith("--"):
        return name[:2] in _OURS
    return name in _OURS or (len(name) > 2 and any(ours.startswith(name) for ours in _OURS))


def _key_of(name: str) -> str | None:
    """Return the key of the file that an option is asked for by: exclude for -xn7 and --exclu."""
    if not name.startswith("--"):
        return _KEYS.get(name[:2])
    return next(
        (key for ours, key in _KEYS.items() if len(name) > 2 and ours.startswith(name)), None
    )


def _variable(value: object) -> str:
    if not isinstance(value, str) or not _VARIABLE.fullmatch(value):
        raise ValueError(f"{shown(value)} cannot name a variable.")
    if value.startswith(("TRACKS_", "SLURM_", "SBATCH_")):
        raise ValueError(f"{value} belongs to the launcher or Slurm; choose another name.")
    return value


def _nice(value: object) -> int:
    if type(value) is not int or not -NICE_MAX <= value <= NICE_MAX:
        raise ValueError(
            f"{shown(value)} is not a nice value; write a whole number, 100 for example."
        )
    return value


def _notice(value: object) -> int:
    found = units.whole_seconds(value)
    if found > NOTICE_S_MAX:
        raise ValueError(f"{shown(value)} is too long: Slurm gives at most {NOTICE_S_MAX} s.")
    return found


def _class_name(value: str) -> str:
    if value == CPU:
        raise ValueError(f"{CPU} is there always, and asks for no device; choose another name.")
    return value


_Word = Annotated[str, PlainValidator(units.name)]
_Name = Annotated[str, PlainValidator(read_name)]
_Partition = Annotated[
    str, _matching(_PARTITIONS, "a partition, or some of them of which Slurm takes one", "gpu,big")
]
_Constraint = Annotated[str, PlainValidator(read_constraint)]
_Seconds = Annotated[int, PlainValidator(units.whole_seconds)]
_Path = Annotated[str, PlainValidator(_path)]
_Line = Annotated[str, PlainValidator(read_line)]
_Nice = Annotated[int, PlainValidator(_nice)]
_Variable = Annotated[str, PlainValidator(_variable)]


class _DeviceClass(FileModel):
    gres: Annotated[str, _matching(_GRES, "one device as sbatch names it", "gpu:a100")] = LEFT_OUT
    partition: _Partition = LEFT_OUT
    constraint: _Constraint = LEFT_OUT


class _Class(FileModel):
    partition: _Partition = LEFT_OUT
    qos: _Name = LEFT_OUT
    account: _Name = LEFT_OUT
    nice: _Nice = LEFT_OUT


class _SlurmFile(FileModel):
    python: _Path = Field(
        description="name the interpreter on the nodes, as `python: /shared/venv/bin/python`"
    )
    host: Annotated[str, _matching(_HOST, "a destination of ssh", "login.example.com")] = LEFT_OUT
    partition: _Partition = LEFT_OUT
    account: _Name = LEFT_OUT
    qos: _Name = LEFT_OUT
    constraint: _Constraint = LEFT_OUT
    reservation: _Name = LEFT_OUT
    exclude: tuple[Annotated[str, PlainValidator(read_nodes)], ...] = LEFT_OUT
    nice: _Nice = LEFT_OUT
    time_limit_s: _Seconds = LEFT_OUT
    notice_s: Annotated[int, PlainValidator(_notice)] = LEFT_OUT
    scheduling_timeout_s: _Seconds = LEFT_OUT
    device_classes: Mapping[
        Annotated[_Word, AfterValidator(_class_name)],
        Annotated[_DeviceClass, AfterValidator(lambda found: DeviceClass(**found.given()))],
    ] = LEFT_OUT
    classes: Mapping[
        _Word, Annotated[_Class, AfterValidator(lambda found: ClassSettings(**found.given()))]
    ] = LEFT_OUT
    container: Annotated[
        str, PlainValidator(units.one_of("container", {each: each for each in CONTAINERS}))
    ] = LEFT_OUT
    container_image: _Line = LEFT_OUT
    container_mounts: tuple[_Line, ...] = LEFT_OUT
    modules: tuple[Annotated[str, PlainValidator(read_module)], ...] = LEFT_OUT
    prologue: tuple[_Line, ...] = LEFT_OUT
    environment: Mapping[_Variable, _Line] = LEFT_OUT
    pass_environment: tuple[_Variable, ...] = LEFT_OUT
    options: tuple[Annotated[str, PlainValidator(_option)], ...] = LEFT_OUT
    template: _Path = LEFT_OUT
    work: _Path = LEFT_OUT
    logs: _Path = LEFT_OUT

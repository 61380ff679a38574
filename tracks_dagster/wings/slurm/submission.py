"""From one attempt and the cluster's settings to the job that is its gang: words for sbatch, a script.

Pure; the same attempt and settings make the same script. The request overrides its workload class, the
class the device class, that the settings for all. srun starts one task a node, which starts and watches
the node's ranks (`training.pod`): Slurm knows one exit code of a task, and sends a step's signals to
its tasks alone.

There is one job an attempt, which Slurm may not start again: a second launch of an attempt would be
fenced. Where a site forces it, the script ends before it starts anything. `singleton` keeps a second
job of the same name, should a controller ever make one of a submit that was lost, from running beside
the first.
"""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import Any

from tracks_dagster.attempts.ports import GangSpec
from tracks_dagster.reasons.slurm_rows import hosts
from tracks_dagster.track import names
from tracks_dagster.track.body_json import to_json
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.names import AttemptRef, parse_attempt_key
from tracks_dagster.track.records import sha256_hex
from tracks_dagster.track.text.nearest import unknown
from tracks_dagster.track.text.units import duration
from tracks_dagster.wings.slurm.settings import (
    APPTAINER,
    CPU,
    TRACKS,
    ClassSettings,
    DeviceClass,
    RunOptions,
    SlurmSettings,
    run_options,
    software_of,
)

MODULE = "tracks_dagster.training.pod"
COMMENT = "tracks"  # how the comment of each job of ours begins
_BEGIN = "# tracks: attempt "  # how our lines of a job's script begin
NAME_PREFIX = "tracks-"
STORE_DIGITS = 8  # of the store's hash: two homes of one account have runs of the same name
_NAME = re.compile(rf"{NAME_PREFIX}(?P<run>.+)-a(?P<attempt>\d{{2,9}})-[0-9a-f]{{8}}")
FIRST_PORT, PORTS = 20_000, 10_000  # below the ports that a kernel gives out by itself
MIB = 1024**2
LIMIT_S_MAX = 360 * 86_400  # Slurm ends a job without a limit after 365 days

# As on Kubernetes (`pod_template`): a failure is read in the log, and ends the process.
_NCCL = {"NCCL_DEBUG": "WARN", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "3"}

# One task a node. `exec`: Slurm's signals go to the task itself.
_TASK = """\
export {index}=$SLURM_PROCID {node}=${{SLURMD_NODENAME:-$(hostname)}}
export {pod}=$SLURM_JOB_ID-$SLURM_PROCID {uid}=slurm-$SLURM_JOB_ID-$SLURM_PROCID
export {work}=$TRACKS_JOB_WORK/$SLURM_PROCID
mkdir -p "${work}" || exit 1
exec {python} -m {module}"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """One job. options: words for sbatch; script: what it reads; nodes, ranks_per_node: of its gang;
    left_out: nodes that a person excludes, as written, which Slurm has to know.
    """

    name: str
    options: tuple[str, ...]
    script: str
    nodes: int
    ranks_per_node: int
    left_out: tuple[str, ...] = ()

    def excluding(self, known: Collection[str]) -> Submission:
        """Return it with those of its excluded nodes that are known; Slurm refuses a job for one that
        its site has removed since. The job's output says which these are."""
        options, gone = [], []
        for option in self.options:
            name, _, nodes = option.partition("=")
            if name != "--exclude":
                options.append(option)
                continue
            gone = [node for node in hosts(nodes) if node not in known]
            if left := [node for node in hosts(nodes) if node in known]:
                options.append(f"{name}={','.join(left)}")
        words = f"tracks: not excluded, for Slurm does not know them: {' '.join(gone)}"
        script = self.script.replace(_BEGIN, f"echo {shlex.quote(words)}\n{_BEGIN}", 1)
        return replace(self, options=tuple(options), script=script if gone else self.script)


def job_name(ref: AttemptRef, store_url: str) -> str:
    """Return the name by which an attempt's job is found: `tracks-gpt-7-a02-` and a hash of the store.

    A job's name is kept by accounting everywhere, its comment only where a site asks for that.
    """
    digest = sha256_hex(store_url.encode())[:STORE_DIGITS]
    return f"{NAME_PREFIX}{ref.run_id}-a{ref.attempt_id:02d}-{digest}"


def ref_of(name: str, store_url: str) -> AttemptRef | None:
    """Return the attempt of a job of that name; None where it is not of this store."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    ref = AttemptRef(match["run"], int(match["attempt"]))
    return ref if job_name(ref, store_url) == name else None


def comment_of(ref: AttemptRef, token: str) -> str:
    """Return the comment of a job, which stays where somebody gives the job another name."""
    return f"{COMMENT} {ref.key} {token}"


def in_comment(comment: str) -> tuple[AttemptRef, str] | None:
    """Return the attempt and the submit's token of a comment of ours; None of any other."""
    words = comment.split()
    if len(words) != 3 or words[0] != COMMENT:
        return None
    try:
        return AttemptRef(*parse_attempt_key(words[1])), words[2]
    except InvalidInput:
        return None


def is_marked(name: str, comment: str) -> bool:
    """Whether a job is of a gang: by its name, or, where somebody changed that, by its comment."""
    return name.startswith(NAME_PREFIX) or comment.startswith(f"{COMMENT} ")


def submission(spec: GangSpec, settings: SlurmSettings, *, token: str, output: str) -> Submission:
    """Return the job of an attempt. token: of this submit, drawn; output: of the job, a file on the
    first node.

    Raises InvalidInput with all that cannot be asked of Slurm.
    """
    problems: list[str] = []
    own = run_options(spec.compute.slurm, problems)
    if own.container_mounts and software_of(settings, own).container_image is None:
        problems.append("container_mounts of the run's jobs needs a container_image.")
    asked = _Asked.of(spec, settings, own, problems)
    settings = software_of(settings, own)
    nodes = spec.compute.ranks // spec.compute.ranks_per_node
    name = job_name(spec.ref, spec.store_url)
    options = (
        f"--job-name={name}",
        f"--comment={comment_of(spec.ref, token)}",
        *("--parsable", "--no-requeue", "--dependency=singleton", "--export=ALL", "--chdir=/"),
        *("--open-mode=append", f"--output={output}"),
        *(f"--nodes={nodes}", "--ntasks-per-node=1", f"--signal=TERM@{settings.notice_s}"),
        *asked.options(),
        *settings.options,
    )
    return Submission(
        name=name,
        options=options,
        script=_script(spec, settings, asked, nodes, token),
        nodes=nodes,
        ranks_per_node=spec.compute.ranks_per_node,
        # A later attempt does not end because a site has removed a node since: its output says so.
        left_out=(
            *settings.exclude,
            *([own.exclude] if own.exclude and spec.attempt_id == 1 else []),
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """The request beside the settings, as sbatch names it; None: left to Slurm."""

    partition: str | None
    account: str | None
    qos: str | None
    constraint: str | None
    reservation: str | None
    nice: int | None
    exclude: tuple[str, ...]
    gres: str | None
    cpus: int | None
    memory_bytes: int | None
    time_limit_s: int | None

    @classmethod
    def of(
        cls, spec: GangSpec, settings: SlurmSettings, own: RunOptions, problems: list[str]
    ) -> _Asked:
        """problems: what is wrong with the run's own options. Raises InvalidInput with all of it."""
        compute = spec.compute
        named = settings.classes.get(spec.workload_class or "", ClassSettings())
        classes = {CPU: DeviceClass(gres=None), **settings.device_classes}
        device = classes.get(compute.device_class, classes[CPU])
        left_out = {*settings.exclude, *compute.excluded_nodes}
        limit_s = _first(own.time_limit, settings.time_limit_s)
        if problems := [*problems, *_problems(spec, settings, classes, limit_s)]:
            count = "1 error" if len(problems) == 1 else f"{len(problems)} errors"
            title = f"Cannot start {spec.ref.key} on Slurm; what was asked for has {count}:"
            raise InvalidInput("\n".join([title, *(f"  {problem}" for problem in problems)]))
        partition = compute.queue or named.partition or device.partition or settings.partition
        cpus = None if compute.cpus is None else max(1, math.ceil(compute.cpus))
        return cls(
            partition=partition,
            account=_first(own.account, named.account, settings.account),
            qos=compute.priority_class or named.qos or settings.qos,
            constraint=_first(own.constraint, device.constraint, settings.constraint),
            reservation=_first(own.reservation, settings.reservation),
            nice=_first(own.nice, named.nice, settings.nice),
            exclude=tuple(sorted({*left_out, own.exclude or ""} - {""})),
            gres=None if device.gres is None else f"{device.gres}:{compute.ranks_per_node}",
            cpus=cpus,
            memory_bytes=compute.memory_bytes,
            time_limit_s=limit_s,
        )

    def options(self) -> Iterator[str]:
        for name in ("partition", "account", "qos", "constraint", "reservation", "nice", "gres"):
            value = getattr(self, name)
            if value is not None:
                yield f"--{name}={value}"
        if self.exclude:
            yield f"--exclude={','.join(self.exclude)}"
        if self.cpus is not None:
            yield f"--cpus-per-task={self.cpus}"
        if self.memory_bytes is not None:
            yield f"--mem={math.ceil(self.memory_bytes / MIB)}M"
        if self.time_limit_s is not None:
            yield f"--time={math.ceil(self.time_limit_s / 60)}"

    def words(self, workload_class: str | None) -> dict[str, str]:
        """Return what was asked of Slurm, for the receipt."""
        found = {
            "class": workload_class,
            "partition": self.partition,
            "qos": self.qos,
            "account": self.account,
            "reservation": self.reservation,
            "time limit": None if self.time_limit_s is None else duration(self.time_limit_s),
        }
        return {name: value for name, value in found.items() if value}


def _first(*values: Any) -> Any:
    """Return the first value that is given; an empty word leaves it to Slurm."""
    found = next((value for value in values if value is not None), None)
    return None if found == "" else found


def _problems(
    spec: GangSpec,
    settings: SlurmSettings,
    classes: dict[str, DeviceClass],
    limit_s: float | None,
) -> Iterator[str]:
    compute = spec.compute
    if compute.device_class not in classes:
        words = unknown("device class", compute.device_class, sorted(classes))
        yield f"{words} Others are declared under device_classes in slurm.yaml."
    for name in ("node_selector", "tolerations", "topology_key"):
        if getattr(compute, name):
            yield f"{name} is of Kubernetes; name a constraint in slurm.yaml instead."
    if limit_s is not None and limit_s <= settings.notice_s:
        yield (
            f"time_limit is {duration(limit_s)} and notice {duration(settings.notice_s)}: a job that "
            "is asked to save at once trains nothing; raise the first, or lower the second."
        )


def _script(spec: GangSpec, settings: SlurmSettings, asked: _Asked, nodes: int, token: str) -> str:
    """Return the whole script. A site's lines after ours run too, and change no exit code.

    A site may have set `-e`, `-u` and `pipefail` before: no line of ours fails where it need not.
    """
    own = "\n".join(_lines(spec, settings, asked, nodes, token))
    site = (
        ["#!/bin/bash -l", TRACKS] if settings.template is None else settings.template.splitlines()
    )
    lines = "\n".join(own if line.strip() == TRACKS else line for line in site).rstrip("\n")
    return f"{lines}\nexit $tracks_code\n"


def _lines(
    spec: GangSpec, settings: SlurmSettings, asked: _Asked, nodes: int, token: str
) -> Iterator[str]:
    yield f"{_BEGIN}{spec.ref.key}, submit {token}"
    yield 'if [ "${SLURM_RESTART_COUNT:-0}" != 0 ]; then'
    yield "  echo 'tracks: Slurm has started this job again; its attempt has had its launch.'"
    yield f"  exit {names.EXIT_FENCED}"
    yield "fi"
    yield from (f"module load {name}" for name in settings.modules)
    yield from settings.prologue
    for name, value in _environment(spec, settings, asked, nodes).items():
        yield f"export {name}={shlex.quote(value)}"
    yield f"export {names.ENV_MASTER_PORT}=$(({FIRST_PORT} + SLURM_JOB_ID % {PORTS}))"
    yield 'first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | sed -n 1p)'
    # A node's name in Slurm need not be one that others find; this script runs on the first node.
    yield 'getent hosts "$first" >/dev/null || first=$(hostname)'
    yield f"export {names.ENV_MASTER_ADDR}=$first"
    # The switches of all nodes, for the receipt; where a site has no topology, a node's name is all.
    yield 'if [ "${SLURM_TOPOLOGY_ADDR_PATTERN:-node}" != node ]; then'
    yield f"  export {names.ENV_SWITCHES}=$(timeout 20 {_each(nodes)} --immediate=10 \\"
    yield "    sh -c 'echo ${SLURM_TOPOLOGY_ADDR%.*}' | sort -u | head -n 8 | paste -sd ' ')"
    yield "fi"
    # Newer Slurms set it; %s: what squeue writes are Unix seconds. Of a job without a limit, a year.
    yield "ends=${SLURM_JOB_END_TIME:-}"
    yield '[ -n "$ends" ] || ends=$(SLURM_TIME_FORMAT=%s timeout 20 \\'
    yield '  squeue --noheader --jobs="$SLURM_JOB_ID" --format=%e 2>/dev/null) || ends='
    yield "case $ends in '' | *[!0-9]*) ends=0 ;; esac"
    yield f'if [ "$ends" -gt 0 ] && [ "$ends" -lt $(($(date +%s) + {LIMIT_S_MAX})) ]; then'
    yield f"  export {names.ENV_ENDS_AT}=$ends"
    yield "fi"
    yield f"export TRACKS_JOB_WORK={shlex.quote(settings.work)}/tracks-$SLURM_JOB_ID"
    yield "trap : TERM  # the ranks get it too, and save: their end is waited for"
    each = _each(nodes)
    cpus = "" if asked.cpus is None else f" --cpus-per-task={asked.cpus}"
    yield "tracks_code=0"
    yield f"{each}{cpus} --cpu-bind=none --kill-on-bad-exit=0 --wait=0 --mpi=none --export=ALL \\"
    yield f"  {_contained(settings)}sh -c {shlex.quote(_task(settings))} || tracks_code=$?"
    clear = f'{each} --overlap --immediate=5 rm -rf "$TRACKS_JOB_WORK"'
    yield f"timeout 20 {clear} >/dev/null 2>&1 || :"


def _each(nodes: int) -> str:
    """Return the words by which each node runs something once."""
    return f"srun --nodes={nodes} --ntasks={nodes} --ntasks-per-node=1"


def _task(settings: SlurmSettings) -> str:
    return _TASK.format(
        index=names.ENV_INDEX,
        node=names.ENV_NODE,
        pod=names.ENV_POD,
        uid=names.ENV_POD_UID,
        work=names.ENV_WORK,
        python=shlex.quote(settings.python),
        module=MODULE,
    )


def _contained(settings: SlurmSettings) -> str:
    """Return the words by which a task runs in the image."""
    image = settings.container_image
    if image is None:
        return ""
    mounts = ",".join(settings.container_mounts)
    if settings.container == APPTAINER:
        bound = f"--bind {shlex.quote(mounts)} " if mounts else ""
        return f"apptainer exec --nv {bound}{shlex.quote(image)} "
    found = f"--container-image={shlex.quote(image)} "
    return found + (f"--container-mounts={shlex.quote(mounts)} " if mounts else "")


def _environment(
    spec: GangSpec, settings: SlurmSettings, asked: _Asked, nodes: int
) -> dict[str, str]:
    """Return the variables of each task: defaults, the settings, the attempt, the launcher's."""
    found = {"PYTHONUNBUFFERED": "1"}  # a log that ends where the process did
    if asked.cpus is not None:
        found["OMP_NUM_THREADS"] = str(max(1, asked.cpus // spec.compute.ranks_per_node))
    if asked.gres is not None:
        found |= _NCCL
    own = {
        names.ENV_STORE: spec.store_url,
        names.ENV_RUN_ID: spec.run_id,
        names.ENV_ATTEMPT_ID: str(spec.attempt_id),
        names.ENV_OPENED_SEQ: str(spec.opened_seq),
        names.ENV_COMMAND: json.dumps(to_json(spec.command)),
        names.ENV_NODES: str(nodes),
        names.ENV_RANKS_PER_NODE: str(spec.compute.ranks_per_node),
        names.ENV_TERMINATION_GRACE_S: str(settings.notice_s),
    }
    if words := asked.words(spec.workload_class):
        own[names.ENV_ASKED] = json.dumps(words)
    if settings.container_image is not None:
        own[names.ENV_IMAGE] = settings.container_image
    if spec.code_key is not None:
        own[names.ENV_CODE_KEY] = spec.code_key
    return {**found, **settings.environment, **spec.environment, **own}

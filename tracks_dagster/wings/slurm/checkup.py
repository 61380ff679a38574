"""From what Slurm's programs say to what is missing there before the first run. Pure.

What this account may not ask is `UNKNOWN`, never missing, and no error.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tracks_dagster.attempts.findings import DrainedNode, Finding, Health
from tracks_dagster.reasons.slurm_nodes import NodeRow, read_nodes
from tracks_dagster.reasons.slurm_rows import hosts
from tracks_dagster.track.text.nearest import unknown
from tracks_dagster.track.text.units import counted, duration
from tracks_dagster.wings.slurm.rows import limit_s
from tracks_dagster.wings.slurm.settings import SlurmSettings

NODES_SHOWN_MAX = 8
_TIME = re.compile(r"^#SBATCH\b.*\s(-t|--time)", re.MULTILINE)  # of a site's template
_PAIR = re.compile(r"(\w+)=(\S*)")
# File systems of one machine, as `stat` names them; ones that nodes share have many more names.
_OF_ONE_MACHINE = ("ext", "xfs", "btrfs", "zfs", "tmpfs", "ramfs", "overlay", "ufs", "jfs", "apfs")
# What a supervisor of ours sends to a whole job, such a plugin sends to each of a node's processes.
_WHOLE_TREE = ("proctrack/linuxproc", "proctrack/pgid")


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What was printed; None where it could not be asked, and `problem` is the first such answer.

    config: `scontrol show config`; partitions: `scontrol show partition -o`; nodes: `sinfo -N` as
    NODES_FORMAT; drained: `sinfo -R` as DRAINED_FORMAT; associations: of this user, as sacctmgr prints
    ASSOCIATION_FIELDS with -P. logs: the folder of jobs' output; logs_type: of its file system, as
    `stat -f -c %T` names it.
    """

    config: str | None
    partitions: str | None
    nodes: str | None
    drained: str | None
    associations: str | None
    logs: str = ""
    logs_type: str | None = None
    problem: str = ""


NODES_FORMAT = "%N|%R|%G|%f"
DRAINED_FORMAT = "%N|%u|%H|%E"  # with its titles, by which it is read
ASSOCIATION_FIELDS = "Account,Partition,QOS"


def check(facts: Facts, settings: SlurmSettings) -> list[Finding]:
    """Return the answer of each check."""
    if facts.config is None:
        return [_found("Slurm", Health.MISSING, facts.problem)]
    config = dict(re.findall(r"^(\w+)\s*= (.*)$", facts.config, re.MULTILINE))
    version = config.get("SLURM_VERSION", "unknown version")
    name = config.get("ClusterName", "unnamed")
    return [
        _found("Slurm", Health.OK, f"cluster {name}, {version}."),
        *_accounting(config),
        *_signals(config),
        *_logs(facts, settings),
        *_partitions(facts, settings),
        *_devices(facts, settings),
        *_association(facts, settings),
        *_drained(facts),
    ]


def read_drained(text: str) -> list[DrainedNode]:
    """Return the nodes of `sinfo -R`, as DRAINED_FORMAT asks for them, one each."""
    found = []
    for row in read_nodes(text.splitlines()):
        if not isinstance(row, NodeRow):
            continue
        try:
            each_of = hosts(row.nodes)
        except ValueError:  # too many, or cut: as Slurm names them
            each_of = (row.nodes,)
        found += [DrainedNode(node=node, by=row.by, why=row.reason) for node in each_of]
    return found


def _found(check: str, health: Health, words: str) -> Finding:
    return Finding(check=check, health=health, words=words)


def _accounting(config: Mapping[str, str]) -> Iterator[Finding]:
    kind = config.get("AccountingStorageType", "")
    if kind.strip() in ("", "(null)", "accounting_storage/none"):
        words = (
            "none: who cancelled a job, and what became of one that left the queue while nobody "
            "looked, stays unknown."
        )
        yield _found("accounting", Health.UNKNOWN, words)
    else:
        yield _found("accounting", Health.OK, f"{kind.strip()}.")


def _signals(config: Mapping[str, str]) -> Iterator[Finding]:
    kind = config.get("ProctrackType", "").strip()
    if kind in _WHOLE_TREE:
        words = (
            f"{kind} sends a notice to every process of a job: workers of a data loader end at once. "
            "Ranks that have such workers save only if they ignore SIGTERM there."
        )
        yield _found("notice", Health.UNKNOWN, words)


def _logs(facts: Facts, settings: SlurmSettings) -> Iterator[Finding]:
    """Say whether nodes can write jobs' output: where they cannot, Slurm ends a job at once."""
    if facts.logs_type is None:
        where = "this machine" if settings.host is None else settings.host
        yield _found("logs", Health.MISSING, f"{facts.logs} is not there on {where}; make it.")
    elif facts.logs_type.startswith(_OF_ONE_MACHINE):
        words = (
            f"{facts.logs} lies on {facts.logs_type}, which other machines do not see: a job whose "
            "node has no such folder ends at once, without a word. Name a shared one in `logs`."
        )
        yield _found("logs", Health.UNKNOWN, words)
    else:
        yield _found("logs", Health.OK, f"{facts.logs}, on {facts.logs_type}.")


def _partitions(facts: Facts, settings: SlurmSettings) -> Iterator[Finding]:
    if facts.partitions is None:
        yield _found("partitions", Health.UNKNOWN, "This account may not list them.")
        return
    rows = [dict(_PAIR.findall(line)) for line in facts.partitions.splitlines() if line.strip()]
    known = {row.get("PartitionName", ""): row for row in rows}
    wanted = {
        settings.partition,
        *(each.partition for each in settings.classes.values()),
        *(each.partition for each in settings.device_classes.values()),
    }
    named = sorted({name for names in wanted if names for name in names.split(",")}) or [
        name for name, row in known.items() if row.get("Default") == "YES"
    ]
    if not named:
        words = f"the settings name none and none is the default; there are {', '.join(known)}."
        yield _found("partition", Health.MISSING, words)
    for name in named:
        yield _partition(name, known, settings)


def _partition(
    name: str, known: Mapping[str, Mapping[str, str]], settings: SlurmSettings
) -> Finding:
    check, row = f"partition {name}", known.get(name)
    if row is None:
        return _found(check, Health.MISSING, unknown("partition", name, sorted(known)))
    if row.get("State") != "UP":
        return _found(check, Health.MISSING, f"it is {row.get('State')}.")
    longest, wanted = limit_s(row.get("MaxTime", "")), settings.time_limit_s
    if wanted is not None and longest is not None and wanted > longest:
        words = f"time_limit is {duration(wanted)}; jobs there have {duration(longest)} at most."
        return _found(check, Health.MISSING, words)
    if words := _no_time(row, longest, settings):
        return _found(check, Health.MISSING, words)
    grace_s = int(row["GraceTime"]) if row.get("GraceTime", "").isdecimal() else 0
    words = f"up, {counted(int(row.get('TotalNodes') or 0), 'node')}, "
    words += "no limit" if longest is None else f"at most {duration(longest)} a job"
    if row.get("PreemptMode", "OFF") != "OFF":
        words += f"; its jobs may be preempted, with {grace_s} s of grace"
        if grace_s < settings.notice_s:
            words += f" where notice is {duration(settings.notice_s)}: a save has to fit into it"
    return _found(check, Health.OK, f"{words}.")


def _no_time(row: Mapping[str, str], longest_s: float | None, settings: SlurmSettings) -> str:
    """Return what is wrong where a job gets the partition's own limit, and notice leaves it no time."""
    default_s = limit_s(row.get("DefaultTime", "")) or longest_s
    is_ours = settings.time_limit_s is not None or _TIME.search(settings.template or "")
    if is_ours or default_s is None or default_s > settings.notice_s:
        return ""
    return (
        f"time_limit is its default, {duration(default_s)}, and notice {duration(settings.notice_s)}: "
        "a job that is asked to save at once trains nothing; set the first, or lower the second."
    )


def _devices(facts: Facts, settings: SlurmSettings) -> Iterator[Finding]:
    if facts.nodes is None or not settings.device_classes:
        return
    lines = [line.split("|") for line in facts.nodes.splitlines() if line.count("|") == 3]
    for name, device in settings.device_classes.items():
        if device.gres is None:
            continue
        partition = device.partition or settings.partition
        having = {
            node
            for node, where, gres, _ in lines
            if (partition is None or where in partition.split(","))
            and any(_has(each, device.gres) for each in gres.split(","))
        }
        words = (
            f"gres {device.gres}: {counted(len(having), 'node')} of partition {partition or 'any'}."
        )
        health = Health.OK if having else Health.MISSING
        yield _found(f"device class {name}", health, words)


def _has(node_gres: str, wanted: str) -> bool:
    """Whether a node's `gpu:a100:4(S:0-1)` has what is asked for, `gpu` or `gpu:a100`."""
    parts = node_gres.partition("(")[0].split(":")
    return parts[: wanted.count(":") + 1] == wanted.split(":")


def _association(facts: Facts, settings: SlurmSettings) -> Iterator[Finding]:
    if facts.associations is None:
        yield _found("account", Health.UNKNOWN, "Slurm's accounting does not say what is allowed.")
        return
    rows = [line.split("|") for line in facts.associations.splitlines() if line.count("|") >= 2]
    accounts = sorted({row[0] for row in rows if row[0]})
    if settings.account is not None and accounts and settings.account not in accounts:
        yield _found("account", Health.MISSING, unknown("account", settings.account, accounts))
        return
    listed = f"this user's accounts: {', '.join(accounts)}" if accounts else "this user has none"
    health = Health.OK if accounts else Health.UNKNOWN
    yield _found("account", health, f"{listed}; {settings.account or 'the default one'} is used.")
    allowed = {each for row in rows for each in row[2].split(",") if each}
    wanted = {settings.qos, *(each.qos for each in settings.classes.values())}
    for qos in sorted(each for each in wanted if each):
        if allowed and qos not in allowed:
            yield _found(f"QOS {qos}", Health.MISSING, unknown("QOS", qos, sorted(allowed)))


def _drained(facts: Facts) -> Iterator[Finding]:
    rows = read_drained(facts.drained or "")
    if rows:
        shown = "; ".join(f"{n.node} ({n.by}): {n.why}" for n in rows[:NODES_SHOWN_MAX])
        more = f"; and {len(rows) - NODES_SHOWN_MAX} more" if len(rows) > NODES_SHOWN_MAX else ""
        words = f"Slurm starts nothing on {shown}{more}."
        yield _found("drained nodes", Health.OK, words)

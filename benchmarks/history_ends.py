"""How the attempts of a generated history end: the kinds of ends, and the evidence that each leaves.

The verdict in a record is what the classifier finds in that evidence, so `explain` of a
generated attempt reads like that of a real one. A test holds every kind to the reason it is named for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import accumulate
from random import Random

from tracks_dagster.reasons.classify import classify
from tracks_dagster.reasons.evidence import DRAINED, Condition, Evidence, LastWord, RankEnd, Verdict
from tracks_dagster.track.body_json import from_json, to_json
from tracks_dagster.track.records import Json

SIGABRT, SIGKILL = 6, 9
DRAINED_CODE = 75  # a rank's exit code after it obeyed a SIGTERM
NEVER = "2026-01-31T02:00:00.000000Z"  # where a last word needs a time and nobody asks for it

STOPPED: Mapping[str, str] = {"by": "ann", "why": "The idea did not work out.", "mode": "stop"}


@dataclass(frozen=True, slots=True, kw_only=True)
class EndKind:
    """One way to end. weight: its share among the ends of its table.

    exit_code, signal: of rank 0, as `RankEnd` has them; word: the reason of its last word, empty
    without one; exception: "package.Type: message" in it; condition: (type, reason) that a control
    plane reported; reboots: its node has another boot id afterwards.
    """

    weight: int
    exit_code: int | None = 1
    signal: int | None = None
    word: str = ""
    exception: str = ""
    log: str = ""
    condition: tuple[str, str] | None = None
    kernel_lines: tuple[str, ...] = ()
    reboots: bool = False
    stop: Mapping[str, str] | None = field(default=None, hash=False)


# After some commits: what a fleet sees that lives on spot capacity.
MIDWAY: Mapping[str, EndKind] = {
    "preempted": EndKind(
        weight=42,
        exit_code=DRAINED_CODE,
        word=DRAINED,
        condition=("DisruptionTarget", "PreemptionByScheduler"),
    ),
    "node_drained": EndKind(
        weight=7,
        exit_code=DRAINED_CODE,
        word=DRAINED,
        condition=("DisruptionTarget", "EvictionByEvictionAPI"),
    ),
    "node_failure": EndKind(weight=9, exit_code=None, signal=SIGKILL, reboots=True),
    "gpu_hardware": EndKind(
        weight=6,
        log="RuntimeError: CUDA error: uncorrectable ECC error encountered",
        kernel_lines=("NVRM: Xid (PCI:0000:3b:00): 48, pid=4711, DBE (double bit error)",),
    ),
    "network_fabric": EndKind(
        weight=6,
        log="node:41:41 [0] misc/ibvwrap.cc:262 NCCL WARN Call to ibv_modify_qp failed with error "
        "Network is unreachable\ntorch.distributed.DistBackendError: NCCL error: system error",
    ),
    "rank_lost_secondary": EndKind(
        weight=3,
        log="torch.distributed.DistBackendError: NCCL error: remote process exited or there was a "
        "network error, NCCL version 2.21.5",
    ),
    "hang": EndKind(
        weight=4,
        exit_code=None,
        signal=SIGABRT,
        log="[E] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5172, "
        "OpType=ALLREDUCE, NumelIn=1) ran for 600002 milliseconds before timing out.",
    ),
    "gpu_oom": EndKind(
        weight=8,
        word="gpu_oom",
        exception="torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.25 GiB",
    ),
    "host_oom": EndKind(
        weight=3,
        exit_code=None,
        signal=SIGKILL,
        kernel_lines=("Memory cgroup out of memory: Killed process 4711 (python) total-vm:1kB",),
    ),
    "nan_loss": EndKind(
        weight=4,
        word="nan_loss",
        exception="tracks_dagster.track.errors.NonFinite: the loss is nan",
    ),
    "storage_io": EndKind(weight=3, log="OSError: [Errno 5] Input/output error: '/data/shard-17'"),
    "code_error": EndKind(
        weight=2, word="code_error", exception="builtins.KeyError: 'attention_mask'"
    ),
    "unknown": EndKind(weight=3),
}

# Before the first commit.
EARLY: Mapping[str, EndKind] = {
    "config_error": EndKind(
        weight=25,
        word="config_error",
        exception="builtins.ValueError: d_model has to be a multiple of the number of heads",
    ),
    "code_error": EndKind(
        weight=25,
        word="code_error",
        exception="builtins.AttributeError: 'NoneType' object has no attribute 'shape'",
    ),
    "dependency_mismatch": EndKind(
        weight=10,
        word="dependency_mismatch",
        exception="builtins.ModuleNotFoundError: No module named 'flash_attn'",
    ),
    "preempted": MIDWAY["preempted"],
    "gpu_oom": MIDWAY["gpu_oom"],
}

# Of a run's last attempt.
COMPLETED, CANCELLED = "completed", "user_cancelled"
LAST: Mapping[str, EndKind] = {
    COMPLETED: EndKind(weight=75, exit_code=0, word="completed"),
    CANCELLED: EndKind(weight=15, exit_code=DRAINED_CODE, word=DRAINED, stop=STOPPED),
    "code_error": MIDWAY["code_error"],
    "gpu_hardware": MIDWAY["gpu_hardware"],
}

KINDS: Mapping[str, Mapping[str, EndKind]] = {"midway": MIDWAY, "early": EARLY, "last": LAST}


def draw_end(rng: Random, when: str) -> str:
    """Return the name of one of the ends of `when` (midway, early or last), by their weights."""
    names, cumulated = _weights(when)
    return rng.choices(names, cum_weights=cumulated)[0]


@cache
def _weights(when: str) -> tuple[list[str], list[int]]:
    kinds = KINDS[when]
    return list(kinds), list(accumulate(kind.weight for kind in kinds.values()))


@cache
def verdict_on(when: str, name: str) -> Verdict:
    """Return the classifier's verdict on such an end."""
    return classify(from_json(Evidence, evidence_json(when, name, {}, node="n")))


def evidence_json(
    when: str, name: str, known: Mapping[str, Json], *, node: str
) -> Mapping[str, Json]:
    """Return the evidence that such an end leaves, as it is stored; only rank 0 left a last word.

    known: run_id, attempt_id, launch_id, started_at, finished_at and last_step, where they are known.
    """
    template = _template(when, name)
    rank = dict(template["ranks"][0])
    rank["started_at"], rank["ended_at"] = known.get("started_at"), known.get("finished_at")
    if rank["last_word"] is not None:
        last_word = {"step": known.get("last_step"), "at": known.get("finished_at", NEVER)}
        rank["last_word"] = {**rank["last_word"], **last_word}
    boots = {node: "another-boot"} if KINDS[when][name].reboots else {}
    return {**template, **known, "ranks": [rank], "boot_ids": boots}


@cache
def _template(when: str, name: str) -> Mapping[str, Json]:
    kind = KINDS[when][name]
    end = RankEnd(
        rank=0,
        exit_code=kind.exit_code,
        signal=kind.signal,
        log_tail=kind.log,
        last_word=_last_word(kind),
    )
    evidence = Evidence(
        run_id="",
        attempt_id=1,
        launch_id="",
        ranks=(end,),
        conditions=_conditions(kind),
        stop=kind.stop,
        kernel_lines=kind.kernel_lines,
        placed=True,
    )
    return to_json(evidence)


def _last_word(kind: EndKind) -> LastWord | None:
    if not kind.word:
        return None
    exception, _, message = kind.exception.partition(": ")
    return LastWord(
        rank=0,
        reason=kind.word,
        exception=exception or None,
        message=message,
        traceback_tail=f"Traceback (most recent call last):\n{kind.exception}\n" if message else "",
        step=None,
        at=NEVER,
    )


def _conditions(kind: EndKind) -> tuple[Condition, ...]:
    if kind.condition is None:
        return ()
    name, why = kind.condition
    return (Condition(type=name, reason=why, message="", at=None, source="kubernetes"),)

"""Drills: faults played on purpose, as a person writes them, and what should follow each.

`KIND@STEP[,option=value…]`: `preempt@23` takes the gang away after step 23 with 30 s of grace,
`hang@12,rank=1,how=loader` lets rank 1 wait for ever for the data of step 12. Each fires once a run,
whatever is replayed, unless its row repeats. Parsing and checking only:
`training.drills` plays what happens inside a gang, `attempts.effects.supervise` the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum

from tracks_dagster.track.bodies import Drill, Note
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.reasons import TerminationReason
from tracks_dagster.track.records import Json, Kind, Record
from tracks_dagster.track.roles import MICRO_BATCH, STEPS, Roles, value_of

GRACE_S_MAX = 3600.0
STEPS_MAX = 100_000
FACTOR_MAX = 100.0
BY = "drill"  # whose notes claim drills, each before it fires
HANGS = ("code", "loader", "stopped")  # how a rank hangs; the first is the default


class Action(Enum):
    """What should follow a drill."""

    RETRIED = "retried"
    REFUSED = "refused"
    CONTINUES = "goes on"
    EVAL_RETRIED = "eval retried"


@dataclass(frozen=True, slots=True, kw_only=True)
class DrillKind:
    """One row of the table. reason: of the attempt, or eval, that the drill ends; None: it ends none.

    first_step: the least step that it can fire at; ranks_min: processes that it takes; options:
    what may be written after the step; repeats: fires in every attempt that gets there; of_all: without
    a rank it concerns all of them, else the last one.
    """

    reason: TerminationReason | None
    action: Action
    plays: str
    first_step: int = 1
    ranks_min: int = 1
    options: tuple[str, ...] = ()
    repeats: bool = False
    of_all: bool = False


_R = TerminationReason

KINDS: dict[str, DrillKind] = {
    "preempt": DrillKind(
        reason=_R.PREEMPTED,
        action=Action.RETRIED,
        plays="the machine is taken after the step, with grace=SECONDS (30)",
        options=("grace",),
    ),
    "sigkill": DrillKind(
        reason=_R.UNKNOWN,
        action=Action.RETRIED,
        plays="SIGKILL after the step, of rank=N or of all, and no report says why",
        options=("rank",),
        of_all=True,
    ),
    "gpu_oom": DrillKind(
        reason=_R.GPU_OOM,
        action=Action.RETRIED,
        plays="no device memory while the micro-batch is above half of the run's",
        repeats=True,
    ),
    "host_oom": DrillKind(
        reason=_R.HOST_OOM,
        action=Action.RETRIED,
        plays="a rank outgrows a real memory cgroup; skipped where none can be made",
        options=("rank",),
    ),
    "nan": DrillKind(
        reason=_R.NAN_LOSS,
        action=Action.RETRIED,
        plays="one rank's loss is NaN",
        options=("rank",),
    ),
    "spike": DrillKind(
        reason=None,
        action=Action.CONTINUES,
        plays="the loss is 20 times what it was, for steps=N (1); long enough, it has diverged",
        options=("steps",),
    ),
    "hang": DrillKind(
        reason=_R.HANG,
        action=Action.RETRIED,
        plays="one rank gets no further: how=code, loader (its data) or stopped (SIGSTOP)",
        options=("rank", "how"),
    ),
    "bad_batch": DrillKind(
        reason=_R.BAD_INPUT_DATA,
        action=Action.RETRIED,
        plays="the loader cannot read a sample of the step",
        options=("rank",),
    ),
    "bad_snapshot": DrillKind(
        reason=_R.BAD_INPUT_DATA,
        action=Action.REFUSED,
        plays="a byte of the snapshot is another than its manifest says",
        first_step=0,
        repeats=True,
    ),
    "disk_full": DrillKind(
        reason=_R.DISK_FULL,
        action=Action.RETRIED,
        plays="from the step on no chunk of a checkpoint can be written: no space left",
    ),
    "storage_error": DrillKind(
        reason=_R.STORAGE_IO,
        action=Action.RETRIED,
        plays="the object store does not answer in the step",
    ),
    "rank_crash": DrillKind(
        reason=_R.NATIVE_CRASH,
        action=Action.RETRIED,
        plays="one rank of several dies of a segmentation fault",
        ranks_min=2,
        options=("rank",),
    ),
    "evaluator_crash": DrillKind(
        reason=_R.EVALUATOR_ERROR,
        action=Action.EVAL_RETRIED,
        plays="the evaluator of a checkpoint of that step or a later one dies, once",
    ),
    "corrupt_checkpoint": DrillKind(
        reason=_R.PREEMPTED,
        action=Action.RETRIED,
        plays="a byte of the newest checkpoint changes, and the gang is preempted after the step",
    ),
    "kill_daemon": DrillKind(
        reason=None, action=Action.CONTINUES, plays="SIGKILL of the Dagster daemon of this home"
    ),
    "kill_run_worker": DrillKind(
        reason=None,
        action=Action.CONTINUES,
        plays="SIGKILL of the process that supervises the gang",
    ),
    "slow": DrillKind(
        reason=None,
        action=Action.CONTINUES,
        plays="from the step on rank=N, or all, takes factor=X (2) times as long to compute",
        options=("rank", "factor"),
        of_all=True,
    ),
    "data_slow": DrillKind(
        reason=None,
        action=Action.CONTINUES,
        plays="from the step on the data of rank=N, or all, is late: its steps take factor=X (2) times",
        options=("rank", "factor"),
        of_all=True,
    ),
    "flat_validation": DrillKind(
        reason=None,
        action=Action.CONTINUES,
        plays="from the step on evaluations in the loop find what the one before found",
    ),
    "idle_device": DrillKind(
        reason=None,
        action=Action.CONTINUES,
        plays="from the step on every rank reports a device that is hardly used",
    ),
    "code_error": DrillKind(
        reason=_R.CODE_ERROR,
        action=Action.REFUSED,
        plays="the training code raises, in every attempt that gets there",
        first_step=0,
        repeats=True,
    ),
}


def parse_drill(text: str) -> Drill:
    """Return the drill that `KIND@STEP[,option=value…]` names; raises InvalidInput."""
    kind_text, separator, rest = text.partition("@")
    kind = KINDS.get(kind_text)
    if kind is None or not separator:
        raise InvalidInput(
            f"{text!r} is not a drill: write KIND@STEP with one of {', '.join(sorted(KINDS))}, "
            "for example preempt@23."
        )
    step_text, *options = rest.split(",")
    if not step_text.isascii() or not step_text.isdigit() or int(step_text) < kind.first_step:
        raise InvalidInput(
            f"The step of drill {text!r} is not a whole number from {kind.first_step} on."
        )
    drill = Drill(kind=kind_text, step=int(step_text))
    for option in options:
        drill = _with_option(drill, text, kind, option)
    return drill


def fit_drill(drill: Drill, config: Mapping[str, Json], roles: Roles, *, ranks: int) -> Drill:
    """Return `drill` as recorded in the track of a run with that config and so many ranks.

    An OOM drill gets its limit, half of the run's micro-batch. Raises InvalidInput for a drill that
    could never fire.
    """
    steps = value_of(config, roles, STEPS)
    if type(steps) is int and drill.step > steps:
        raise InvalidInput(
            f"Drill {drill.kind}@{drill.step} would never fire: the run has {steps} "
            "steps; choose an earlier step or more steps."
        )
    ranks_min = KINDS[drill.kind].ranks_min
    if ranks < ranks_min:
        raise InvalidInput(
            f"Drill {drill.kind}@{drill.step} needs {ranks_min} ranks or more and the run has "
            f"{ranks}: add --ranks {ranks_min}."
        )
    if drill.rank is not None and drill.rank >= ranks:
        raise InvalidInput(
            f"Drill {drill.kind}@{drill.step} names rank {drill.rank}; the run's ranks are 0 to "
            f"{ranks - 1}."
        )
    if drill.kind != "gpu_oom":
        return drill
    micro_batch = value_of(config, roles, MICRO_BATCH)
    if type(micro_batch) is not int or micro_batch < 2:
        raise InvalidInput(
            f"Drill gpu_oom@{drill.step} needs a micro-batch that can be halved, and it is "
            f"{micro_batch}: set it to 2 or more, and name its key in tracks.yaml, keys: "
            "{micro_batch: KEY}."
        )
    return replace(drill, micro_batch_max=max(1, micro_batch // 2))


def _with_option(drill: Drill, text: str, kind: DrillKind, option: str) -> Drill:
    name, _, value = option.partition("=")
    if name in kind.options:
        match name:
            case "grace" if (grace_s := _number(value)) is not None and grace_s <= GRACE_S_MAX:
                return replace(drill, grace_s=grace_s)
            case "rank" if value.isascii() and value.isdigit():
                return replace(drill, rank=int(value))
            case "steps" if value.isascii() and value.isdigit() and 1 <= int(value) <= STEPS_MAX:
                return replace(drill, steps=int(value))
            case "factor" if (factor := _number(value)) is not None and 1.0 < factor <= FACTOR_MAX:
                return replace(drill, factor=factor)
            case "how" if value in HANGS:
                return replace(drill, how=value)
    takes = ", ".join(_OPTIONS[each] for each in kind.options) or "nothing"
    raise InvalidInput(
        f"{text!r} is not a drill: after the step {drill.kind} takes {takes}, and {option!r} is not "
        "one of these."
    )


_OPTIONS = {
    "grace": f"grace=SECONDS from 0 to {GRACE_S_MAX:g}",
    "rank": "rank=N",
    "steps": f"steps=N from 1 to {STEPS_MAX}",
    "factor": f"factor=X above 1, up to {FACTOR_MAX:g}",
    "how": f"how={'|'.join(HANGS)}",
}


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if number >= 0.0 else None  # not NaN


def was_claimed(records: Iterable[Record], index: int) -> bool:
    """Whether the drill at that index of the declaration has fired or was skipped."""
    notes = (record for record in records if record.kind is Kind.NOTE)
    return any(n.body["by"] == BY and n.body["data"].get("drill") == index for n in notes)


def claim_note(index: int, drill: Drill, *, skipped: str = "") -> Note:
    """Return the note that claims a drill; skipped: why it cannot be played here."""
    name = f"{drill.kind}@{drill.step}"
    if skipped:
        text = f"Drill {name} is skipped: {skipped}"
        return Note(by=BY, text=text, data={"drill": index, "skipped": skipped})
    grace = f" with {drill.grace_s:g} s of grace" if drill.kind == "preempt" else ""
    return Note(by=BY, text=f"Drill {name} fires{grace}.", data={"drill": index})

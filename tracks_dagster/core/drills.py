"""Drills: faults played on purpose, as a person writes them.

`preempt@23` takes the gang away after step 23, with 30 s of grace; `preempt@23,grace=0` without.
`gpu_oom@31` runs out of device memory in step 31 while the micro-batch is above half of the run's.
`code_error@0` raises before the first step, `code_error@5` at step 5, in every attempt that gets
there. Parsing and checking only: `training.drills` plays them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tracks_dagster.core.bodies import Drill
from tracks_dagster.core.errors import InvalidInput
from tracks_dagster.core.records import Json

GRACE_S_MAX = 3600.0
FIRST_STEP = {"preempt": 1, "gpu_oom": 1, "code_error": 0}  # the least step each can fire at


def parse_drill(text: str) -> Drill:
    """Return the drill that `KIND@STEP` or `preempt@STEP,grace=SECONDS` names.

    Raises InvalidInput for anything else.
    """
    kind, separator, rest = text.partition("@")
    if kind not in FIRST_STEP or not separator:
        raise InvalidInput(
            f"{text!r} is no drill: write KIND@STEP with one of {', '.join(sorted(FIRST_STEP))}, "
            "for example preempt@23."
        )
    step_text, comma, option = rest.partition(",")
    if not step_text.isascii() or not step_text.isdigit() or int(step_text) < FIRST_STEP[kind]:
        raise InvalidInput(
            f"The step of drill {text!r} is no whole number from {FIRST_STEP[kind]} on."
        )
    drill = Drill(kind=kind, step=int(step_text))
    return replace(drill, grace_s=_grace(text, kind, option)) if comma else drill


def fit_drill(drill: Drill, config: Mapping[str, Json]) -> Drill:
    """Return `drill` as it stands in the track of a run with that config.

    An OOM drill gets its limit, half of the run's micro-batch. Raises InvalidInput for a drill that
    could never fire.
    """
    if drill.step > config["steps"]:
        raise InvalidInput(
            f"Drill {drill.kind}@{drill.step} would never fire: the run has {config['steps']} "
            "steps; choose an earlier step or more steps."
        )
    if drill.kind != "gpu_oom":
        return drill
    if config["micro_batch"] < 2:
        raise InvalidInput(
            f"Drill gpu_oom@{drill.step} needs a micro-batch that can be halved, and it is "
            f"{config['micro_batch']}: set micro_batch to 2 or more."
        )
    return replace(drill, micro_batch_max=max(1, config["micro_batch"] // 2))


def _grace(text: str, kind: str, option: str) -> float:
    name, _, value = option.partition("=")
    try:
        grace_s = float(value)
    except ValueError:
        grace_s = -1.0
    if kind != "preempt" or name != "grace" or not 0.0 <= grace_s <= GRACE_S_MAX:
        raise InvalidInput(
            f"{text!r} is no drill: after the step only preempt takes an option, "
            f"grace=SECONDS from 0 to {GRACE_S_MAX:g}, for example preempt@23,grace=0."
        )
    return grace_s

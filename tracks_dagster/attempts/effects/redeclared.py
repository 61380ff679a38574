"""A run that exists is not declared otherwise: which values of a request it does not have."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from tracks_dagster.attempts.declaring.fields import AS_GIVEN, CADENCE, RETENTION
from tracks_dagster.attempts.drills import fit_drill, parse_drill
from tracks_dagster.attempts.effects.runs import RunRequest
from tracks_dagster.attempts.run_config import COMPUTE_FIELDS
from tracks_dagster.track.bodies import Drill
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.records import Json, sha256_hex
from tracks_dagster.track.states.checkpoints import CheckpointRef, checkpoint_at
from tracks_dagster.track.states.run_state import RunState
from tracks_dagster.track.text.units import shown
from tracks_dagster.track.track import code_key

RULE = frozenset(each.name for each in RETENTION)
HALVES = {each.name: each.recorded for each in CADENCE}
DECLARED = {"branched_from", *(each.name for each in AS_GIVEN)} - {"owner"}


def check_as_declared(state: RunState, request: RunRequest, given: Collection[str]) -> None:
    """Raise InvalidInput where a person gives a value that the run of that id does not have.

    given: names of fields of `RunRequest`, `RetentionRule` and `ComputeRequest`; whatever is in the
    config of the request was given. A value counts as the run's where it was declared with it, or where
    its newest attempt has it.
    """
    differing = [
        (name, asked, own)
        for name, asked, *own in _compared(state, request, given)
        if asked not in own
    ]
    if not differing:
        return
    run_id = state.run_id
    asked = ", ".join(f"{name} = {_word(value)}" for name, value, _ in differing)
    there = ", ".join(f"{name} = {_word(own[-1])}" for name, _, own in differing)
    raise InvalidInput(
        f"{run_id} exists with {there}, and cannot be declared with {asked}. Leave that out to "
        f"continue it; `tracks retry {run_id}` changes what a retry may change, `tracks run --from "
        f"{run_id}@STEP` branches from one of its checkpoints, and another --run-id starts afresh."
    )


def has_other_code(state: RunState, request: RunRequest) -> bool:
    """Whether the request's code, of the folder that the run was declared in, is not what it runs."""
    is_of_run = request.folder == state.declared.folder
    return is_of_run and _code(request, state.run_id) not in (None, _runs(state))


def _code(request: RunRequest, run_id: str) -> str | None:
    """Return the key of the request's code in that run; None where it brings none."""
    return None if request.archive is None else code_key(run_id, sha256_hex(request.archive))


def _runs(state: RunState) -> str:
    """Return the key of the code that the run trains now."""
    last = state.last_attempt
    return (last.opened.trainer if last else None) or state.declared.trainer


def _compared(
    state: RunState, request: RunRequest, given: Collection[str]
) -> Iterator[tuple[Json, ...]]:
    """Yield name and value of all that was given, then the run's own: declared, of its last attempt."""
    declared, last = state.declared, state.last_attempt
    opened = declared if last is None else last.opened
    for key, value in request.config.items():
        yield key, value, declared.config.get(key), opened.config.get(key)
    for name in sorted(set(given)):
        asked = getattr(request.retention if name in RULE else request, name, None)
        if name in RULE:
            yield name, asked, getattr(declared.retention, name)
        elif name in HALVES:
            yield name, asked, getattr(declared.cadence, HALVES[name])
        elif name in COMPUTE_FIELDS:
            yield name, asked, getattr(declared.compute, name), getattr(opened.compute, name)
        elif name in DECLARED:
            yield name, asked, getattr(declared, name)
        elif name == "archive":
            yield "code", _code(request, state.run_id), declared.trainer, _runs(state)
        elif name == "snapshot_id" and asked is not None:
            own = [each and each.snapshot_id for each in (declared.snapshot, opened.snapshot)]
            yield name, asked, *(asked if each and each.startswith(asked) else each for each in own)
        elif name == "drills":
            roles, ranks = declared.roles, request.ranks
            drills = (parse_drill(text) for text in request.drills)
            fitted = tuple(fit_drill(each, declared.config, roles, ranks=ranks) for each in drills)
            yield name, fitted, declared.drills


def _word(value: object) -> str:
    if value is None or value == ():
        return "none"
    if isinstance(value, CheckpointRef):
        return checkpoint_at(value)
    if isinstance(value, tuple) and all(isinstance(each, Drill) for each in value):
        return " and ".join(f"{each.kind}@{each.step}" for each in value)
    return value if isinstance(value, str) else shown(value)

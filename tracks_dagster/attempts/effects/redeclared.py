"""A run that exists is not declared otherwise: which values of what was prepared it does not have."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace

from tracks_dagster.attempts.drills import fit_drill, parse_drill
from tracks_dagster.attempts.effects.preparing import Prepared
from tracks_dagster.track.bodies import Drill
from tracks_dagster.track.declared_fields import ROWS
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.records import Json, sha256_hex
from tracks_dagster.track.states.checkpoints import CheckpointRef, checkpoint_at
from tracks_dagster.track.states.run_state import RunState
from tracks_dagster.track.text.units import shown
from tracks_dagster.track.track import code_key

NOT_COMPARED = frozenset({"run_id", "intent", "owner"})  # whose it is now, and why


def check_as_declared(state: RunState, prepared: Prepared, given: Collection[str]) -> None:
    """Raise InvalidInput where a person gives a value that the run of that id does not have.

    given: names of rows of `track.declared_fields`, and `branched_from` and `archive`; whatever is in
    the config was given. A value counts as the run's where it was declared with it, or where its newest
    attempt has it. A stage that nobody named cuts what a run of another one was declared with, so its
    cut does not count.
    """
    differing = [
        (name, asked, own)
        for name, asked, *own in _compared(state, prepared, given)
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


def has_other_code(state: RunState, prepared: Prepared) -> bool:
    """Whether its code, of the folder that the run was declared in, is not what that runs."""
    is_of_run = prepared.body.folder == state.declared.folder
    return is_of_run and _code(prepared, state.run_id) != _runs(state)


def _code(prepared: Prepared, run_id: str) -> str:
    """Return the key of its code in that run."""
    return code_key(run_id, sha256_hex(prepared.archive))


def _runs(state: RunState) -> str:
    """Return the key of the code that the run trains now."""
    last = state.last_attempt
    return (last.opened.trainer if last else None) or state.declared.trainer


def _compared(
    state: RunState, prepared: Prepared, given: Collection[str]
) -> Iterator[tuple[Json, ...]]:
    """Yield name and value of all that was given, then the run's own: declared, of its last attempt."""
    declared, last = state.declared, state.last_attempt
    opened = declared if last is None else last.opened
    config = prepared.body.config if prepared.is_limited else prepared.uncut
    for key in prepared.uncut:
        yield key, config[key], declared.config.get(key), opened.config.get(key)
    runs = replace(declared, compute=opened.compute)
    for name in sorted(set(given) - NOT_COMPARED):
        row = ROWS.get(name)
        if row is not None and row.of is not None:
            yield name, row.of_run(prepared.body), row.of_run(declared), row.of_run(runs)
        elif name == "branched_from":
            yield name, prepared.body.branched_from, declared.branched_from
        elif name == "archive":
            yield "code", _code(prepared, state.run_id), declared.trainer, _runs(state)
        elif name == "snapshot_id" and (asked := prepared.snapshot_id) is not None:
            own = [each and each.snapshot_id for each in (declared.snapshot, opened.snapshot)]
            yield name, asked, *(asked if each and each.startswith(asked) else each for each in own)
        elif name == "drills":
            roles, ranks = declared.roles, prepared.body.compute.ranks
            drills = (parse_drill(text) for text in prepared.drills)
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

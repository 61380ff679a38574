"""Find the two attempts or checkpoints that a person names, and read what is compared of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.ledger.facts.attempt import ATTEMPT, AttemptView, attempt_views
from tracks_dagster.ledger.facts.checkpoint import CHECKPOINT
from tracks_dagster.ledger.facts.fact import compared
from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.review.comparing import Comparison, Score, Side, compare
from tracks_dagster.track.errors import InvalidInput, UnknownRun
from tracks_dagster.track.names import RUN_ID_PATTERN, attempt_key, parse_attempt_key
from tracks_dagster.track.records import Json
from tracks_dagster.track.states.checkpoints import CheckpointRef, parse_at, resume_target
from tracks_dagster.track.states.evals import is_completed
from tracks_dagster.track.states.run_state import (
    AttemptState,
    CheckpointState,
    EvalState,
    RunState,
    find_at,
    known_attempt,
)

DESCENT_MAX = 10_000  # checkpoints that one side's descent is followed through, branches included
STEPS_NAMED_MAX = 5  # of a run, those nearest to one that is not there
SHA256_DIGITS_MIN = 8  # of a manifest: fewer may be a word

_SHA256 = re.compile(rf"[0-9a-f]{{{SHA256_DIGITS_MIN},64}}")

OpenLedger = Callable[[], Ledger]


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """What a person named: an attempt, or one of its checkpoints."""

    state: RunState
    attempt: AttemptState
    checkpoint: CheckpointState | None


def compare_named(
    tracks: Tracks, open_ledger: OpenLedger, a: str, b: str, *, is_forced: bool = False
) -> Comparison:
    """Return two attempts (RUN/aNN) or two checkpoints (RUN@STEP, RUN for its last one, or a manifest's
    sha256) compared.

    open_ledger: asked only for a manifest, which does not name its run. Raises UnknownRun naming the
    nearest, InvalidInput for other names and for an attempt against a checkpoint.
    """
    first, second = (find(tracks, open_ledger, text) for text in (a, b))
    if (first.checkpoint is None) != (second.checkpoint is None):
        raise InvalidInput(
            f"{a} and {b} are an attempt and a checkpoint; compare two attempts (RUN/aNN) or two "
            "checkpoints (RUN@STEP)."
        )
    return compare(side_of(tracks, first), side_of(tracks, second), is_forced=is_forced)


def find(tracks: Tracks, open_ledger: OpenLedger, text: str) -> Named:
    """Return what `text` names; raises UnknownRun or InvalidInput."""
    where, at, step = text.partition("@")
    if at:
        run_id, attempt_id = parse_attempt_key(where) if "/" in where else (where, None)
        if not step.isascii() or not step.isdigit():
            parse_at(text)
        state = tracks.run(run_id)
        return _of_checkpoint(state, _at_step(state, int(step), attempt_id))
    if "/" in text:
        run_id, attempt_id = parse_attempt_key(text)
        state = tracks.run(run_id)
        return Named(state=state, attempt=known_attempt(state, attempt_id), checkpoint=None)
    of_run = tracks.find_run(text) if RUN_ID_PATTERN.fullmatch(text) else None
    if of_run is not None:
        return _of_checkpoint(of_run, _last(of_run))
    if _SHA256.fullmatch(text):
        run_id, sha256 = _run_of_manifest(open_ledger(), text)
        state = tracks.run(run_id)
        checkpoint = state.checkpoint(sha256)
        if checkpoint is not None:
            return _of_checkpoint(state, checkpoint)
    if RUN_ID_PATTERN.fullmatch(text):
        tracks.run(text)  # raises UnknownRun with the nearest
    raise InvalidInput(
        f"{text!r} names neither an attempt nor a checkpoint; write RUN/aNN, RUN@STEP, RUN (its last "
        f"checkpoint) or at least {SHA256_DIGITS_MIN} digits of a manifest's sha256."
    )


def find_checkpoint(
    tracks: Tracks, open_ledger: OpenLedger, text: str, *, attempt_id: int | None = None
) -> tuple[RunState, CheckpointState]:
    """Return the checkpoint that can be read and that `text` names: RUN@STEP, RUN/aNN@STEP, RUN for its
    last one, or a manifest's sha256. Raises UnknownRun or InvalidInput."""
    where, at, step = text.partition("@")
    if at and step.isascii() and step.isdigit():
        run_id, number = parse_attempt_key(where) if "/" in where else (where, attempt_id)
        state = tracks.run(run_id)
        return state, find_at(state, int(step), attempt_id=number)
    found = find(tracks, open_ledger, text)
    if found.checkpoint is None:
        parse_at(text)  # raises InvalidInput: it is an attempt
    assert found.checkpoint is not None
    return found.state, found.checkpoint


def _last(state: RunState) -> CheckpointState:
    """Return the checkpoint that the run ended with, else the newest that can be resumed from."""
    ref = state.finished.final if state.finished is not None else None
    ref = ref or (resume_target(state.resumable) if state.resumable else None)
    found = None if ref is None else state.checkpoint(ref.manifest_sha256)
    if found is None:
        raise UnknownRun(
            f"{state.run_id} has no checkpoint that could be compared; name an attempt, "
            f"{attempt_key(state.run_id, 1)}."
        )
    return found


def side_of(tracks: Tracks, named: Named) -> Side:
    """Return what is compared of an attempt or a checkpoint."""
    state, attempt, checkpoint = named.state, named.attempt, named.checkpoint
    snapshot = attempt.opened.snapshot
    view = attempt_views(state)[attempt.attempt_id - 1]
    line = list(_descent(tracks, named))
    return Side(
        name=_name(named),
        steps=_attempt_steps(view) if checkpoint is None else _checkpoint_steps(checkpoint),
        dataset=None if snapshot is None else snapshot.dataset,
        snapshot_id=None if snapshot is None else snapshot.snapshot_id,
        cursor_from=attempt.restored.cursor if attempt.restored else None,
        cursor_to=_cursor_to(named),
        config=attempt.opened.config,
        roles=state.declared.roles,
        in_use=_in_use(attempt),
        code=_code(view),
        environment=_environment(attempt),
        placement=_placement(view),
        descent=tuple(each.ref for each in line),
        ancestor_cursors={
            each.ref.manifest_sha256: each.body.cursor
            for each in line
            if each.body.cursor is not None
        },
        scores=tuple(_scores(named)),
    )


def _of_checkpoint(state: RunState, checkpoint: CheckpointState) -> Named:
    attempt = known_attempt(state, checkpoint.ref.attempt_id)
    return Named(state=state, attempt=attempt, checkpoint=checkpoint)


def _at_step(state: RunState, step: int, attempt_id: int | None = None) -> CheckpointState:
    """Return the checkpoint of `step`, of that attempt or the newest, whatever was decided about it."""
    there = [
        c
        for c in state.checkpoints
        if c.ref.step == step and attempt_id in (None, c.ref.attempt_id)
    ]
    if there:
        return max(there, key=lambda c: c.ref.attempt_id)
    steps = sorted({c.ref.step for c in state.checkpoints}, key=lambda s: (abs(s - step), s))
    named = ", ".join(f"{state.run_id}@{s}" for s in sorted(steps[:STEPS_NAMED_MAX]))
    nearest = f"the nearest are {named}" if named else "it has committed none"
    raise UnknownRun(f"{state.run_id} has no checkpoint of step {step}; {nearest}.")


def _run_of_manifest(ledger: Ledger, digits: str) -> tuple[str, str]:
    rows = ledger.query(
        "select run_id, manifest_sha256, step from checkpoints "
        "where manifest_sha256 >= :digits and manifest_sha256 <= :last "
        "order by manifest_sha256, run_id limit 3",
        {"digits": digits, "last": digits.ljust(64, "f")},
    )
    if not rows:
        raise UnknownRun(
            f"No committed checkpoint has a manifest whose sha256 begins with {digits}; `tracks "
            "checkpoints list RUN` shows those of a run."
        )
    if len(rows) > 1:
        named = ", ".join(f"{row['manifest_sha256']} ({row['run_id']})" for row in rows)
        raise InvalidInput(f"{digits} begins several manifests' sha256: {named}; give more digits.")
    return str(rows[0]["run_id"]), str(rows[0]["manifest_sha256"])


def _name(named: Named) -> str:
    if named.checkpoint is None:
        return attempt_key(named.state.run_id, named.attempt.attempt_id)
    ref = named.checkpoint.ref
    return f"{ref.run_id}@{ref.step} (attempt {ref.attempt_id})"


def _attempt_steps(view: AttemptView) -> Mapping[str, Json]:
    reason = view.attempt.reason
    ended_as = "open" if reason is None else reason.value
    return {**compared(ATTEMPT, view, "steps"), "ended_as": ended_as}


def _checkpoint_steps(checkpoint: CheckpointState) -> Mapping[str, Json]:
    metrics = checkpoint.body.metrics
    training = {f"training {name}": metrics[name] for name in sorted(metrics)}
    return {**compared(CHECKPOINT, checkpoint, "steps"), **training}


def _cursor_to(named: Named) -> int | None:
    """Return how far the order was consumed: at a checkpoint, else as far as is known at the end."""
    attempt, checkpoint = named.attempt, named.checkpoint
    if checkpoint is not None:
        return checkpoint.body.cursor
    if attempt.ended is not None and attempt.ended.cursor_to is not None:
        return attempt.ended.cursor_to
    made = (c.body for c in named.state.checkpoints if c.ref.attempt_id == attempt.attempt_id)
    own = [body.cursor for body in made if body.cursor is not None]
    return max(own, default=attempt.restored.cursor if attempt.restored else None)


def _code(view: AttemptView) -> Mapping[str, Json]:
    code = view.code
    return {
        **compared(ATTEMPT, view, "code"),
        "branch": code.branch,
        "package_version": code.package_version,
    }


def _in_use(attempt: AttemptState) -> Mapping[str, Json]:
    """Return what its first step used of optimizers and schedules, by dotted names."""
    found = attempt.restored.in_use if attempt.restored else None
    flat: dict[str, Json] = {}
    for name, parts in (found or {}).items():
        groups = parts if isinstance(parts, list) else [parts]
        for index, group in enumerate(groups):
            at = f"{name}.{index}" if len(groups) > 1 else name
            flat |= {f"{at}.{key}": value for key, value in group.items()}
    return flat


def _environment(attempt: AttemptState) -> Mapping[str, Json]:
    """Return every version by name, those in a table of their own as `table.name`."""
    if attempt.placed is None:
        return {}
    flat: dict[str, Json] = {}
    for name, value in sorted(attempt.placed.environment.items()):
        if isinstance(value, dict):
            flat |= {f"{name}.{each}": value[each] for each in sorted(value)}
        else:
            flat[name] = value
    return flat


def _placement(view: AttemptView) -> Mapping[str, Json]:
    compute, placed = view.attempt.opened.compute, view.attempt.placed
    ranks = placed.ranks if placed else ()
    return {
        "launcher": compute.launcher,
        "pool": compute.pool,
        "ranks": compute.ranks,
        "device_class": compute.device_class,
        "memory_bytes": compute.memory_bytes,
        "excluded_nodes": sorted(compute.excluded_nodes),
        "devices": sorted({place.device for place in ranks}) or None,
        "accelerators": sorted({place.accelerator for place in ranks}) or None,
        **compared(ATTEMPT, view, "placement"),
    }


def _scores(named: Named) -> Iterator[Score]:
    """Yield the completed evals: of the checkpoint, or of the newest one of an attempt by suite."""
    done = [e for e in named.state.evals if _is_of(e, named) and is_completed(e)]
    newest: dict[str, int] = {}
    for each in done:
        newest[each.opened.suite] = max(
            each.opened.checkpoint.step, newest.get(each.opened.suite, 0)
        )
    counted = {  # of several measurements of one thing the last
        (e.opened.suite, e.opened.suite_version, _data_of(e), e.opened.seed): e
        for e in done
        if e.opened.checkpoint.step == newest[e.opened.suite]
    }
    return (_score(each) for each in counted.values())


def _is_of(evaluation: EvalState, named: Named) -> bool:
    ref = evaluation.opened.checkpoint
    if named.checkpoint is not None:
        return ref.manifest_sha256 == named.checkpoint.ref.manifest_sha256
    return ref.attempt_id == named.attempt.attempt_id


def _data_of(evaluation: EvalState) -> str:
    """Return the id of the snapshot it was measured on; "" where it reads none."""
    snapshot = evaluation.opened.snapshot
    return "" if snapshot is None else snapshot.snapshot_id


def _score(evaluation: EvalState) -> Score:
    opened, ended = evaluation.opened, evaluation.ended
    assert ended is not None, "only completed ones are scores"
    return Score(
        suite=opened.suite,
        suite_version=opened.suite_version,
        snapshot_id=_data_of(evaluation),
        seed=opened.seed,
        step=opened.checkpoint.step,
        environment_sha256=ended.environment_sha256,
        metrics=ended.metrics,
    )


def _descent(tracks: Tracks, named: Named) -> Iterator[CheckpointState]:
    """Yield the checkpoints that it rests on, the newest first, its own among them.

    Checkpoints of one attempt follow each other, so a later checkpoint of it descends from an earlier.
    Ends at a run that is not there, and after `DESCENT_MAX`.
    """
    state: RunState | None = named.state
    attempt: AttemptState | None = named.attempt
    until = None if named.checkpoint is None else named.checkpoint.ref.step
    count = 0
    while state is not None and attempt is not None:
        own = [c for c in state.checkpoints if c.ref.attempt_id == attempt.attempt_id]
        for checkpoint in sorted(own, key=lambda c: c.ref.step, reverse=True):
            if until is None or checkpoint.ref.step <= until:
                yield checkpoint
                count += 1
        source = attempt.resumed_from
        if source is None or count >= DESCENT_MAX:
            return
        state = _run_of(tracks, state, source)
        attempt = state.attempt(source.attempt_id) if state is not None else None
        until = source.step


def _run_of(tracks: Tracks, state: RunState, source: CheckpointRef) -> RunState | None:
    return state if source.run_id == state.run_id else tracks.find_run(source.run_id)

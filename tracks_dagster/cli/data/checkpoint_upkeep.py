"""`tracks checkpoints verify`, `gc` and `advise`: read every byte, collect, and how often to save."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import click

from tracks_dagster.checkpoints.cadence import CadenceAdvice, MeanTime, PoolRecord
from tracks_dagster.checkpoints.effects.cadence import advise_cadence
from tracks_dagster.checkpoints.effects.retention import Collected, collect
from tracks_dagster.checkpoints.effects.verification import Verified, describe_fallback, verify
from tracks_dagster.checkpoints.ports import CheckpointReader
from tracks_dagster.cli import BAD_NEWS
from tracks_dagster.cli.common import as_json, by_option, open_app, print_json, run_argument
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.reading import (
    open_dry_run,
    open_ledger_to_read,
    open_store_to_read,
    open_tracks_to_read,
)
from tracks_dagster.settings import Settings
from tracks_dagster.track.body_json import to_json
from tracks_dagster.track.errors import (
    CheckpointMismatch,
    InvalidInput,
    StoreUnavailable,
)
from tracks_dagster.track.names import check_run_id
from tracks_dagster.track.ports import ObjectStore
from tracks_dagster.track.records import Json
from tracks_dagster.track.states.checkpoints import CheckpointRef
from tracks_dagster.track.states.run_state import RunState, find_at
from tracks_dagster.track.text.units import counted
from tracks_dagster.track.unforeseen import problem_of
from tracks_dagster.wiring import App

BY = "tracks checkpoints gc"


@click.command("verify")
@click.argument("run_id", metavar="[RUN]", required=False)
@click.option("--step", type=int, help="Only the checkpoint of this step.")
@click.option("--attempt", type=int, help="Only checkpoints of this attempt.")
@by_option
@as_json
@click.pass_context
def verify_checkpoints(
    ctx: click.Context,
    run_id: str | None,
    step: int | None,
    attempt: int | None,
    by: str,
    as_json: bool,
) -> None:
    """Read every byte of the checkpoints of RUN, or of all runs; exit with 1 when one is not good.

    What was read in full is recorded as verified, what is corrupt is quarantined: a resume then
    falls back to the checkpoint that is named. A run that cannot be read is named, and the others
    are verified.
    """
    if run_id is None and (step is not None or attempt is not None):
        raise InvalidInput("--step and --attempt need a RUN: they choose among its checkpoints.")
    open_store_to_read(Settings.from_environment())  # an empty home is an error, it is not made
    app = open_app()
    if run_id is None:
        results = of_every_run(app.store, lambda each: _verify_run(app, each, by=by))
    else:
        results = _verify_run(app, check_run_id(run_id), step=step, attempt_id=attempt, by=by)
    ctx.exit(print_results(results, as_json=as_json, nothing="There is no checkpoint to verify."))


def _verify_run(
    app: App, run_id: str, *, step: int | None = None, attempt_id: int | None = None, by: str
) -> Iterator[Result]:
    for ref in _refs_to_verify(app.tracks.run(run_id), step=step, attempt_id=attempt_id):
        yield _verify(app, ref, by=by)


def _refs_to_verify(
    state: RunState, *, step: int | None, attempt_id: int | None
) -> list[CheckpointRef]:
    if step is not None:
        return [find_at(state, step, attempt_id=attempt_id).ref]
    refs = [ref for ref in state.resumable if attempt_id in (None, ref.attempt_id)]
    if not refs and attempt_id is not None:
        raise InvalidInput(_no_attempt(state, attempt_id))
    return refs


def _no_attempt(state: RunState, attempt_id: int) -> str:
    attempts = sorted({ref.attempt_id for ref in state.resumable})
    have = ", ".join(map(str, attempts)) or "none"
    return f"Attempt {attempt_id} of {state.run_id} has no checkpoint; attempts that have: {have}."


def _verify(app: App, ref: CheckpointRef, *, by: str) -> Result:
    """Verify one checkpoint. What cannot be read now, or by this version, is not known to be bad."""
    where = f"{ref.run_id} step {ref.step}, attempt {ref.attempt_id}"
    try:
        read = verify(app.tracks, app.checkpoints, ref, by=by)
    except (CheckpointMismatch, StoreUnavailable) as error:
        row = {"status": "unreadable", "problem": str(error), "ref": to_json(ref)}
        return Result(row=row, text=f"unreadable  {where}: {error}", is_bad=True)
    row = {"status": read.status, **to_json(read)}
    text = f"{read.status:<12}{where}{_detail(read)}"
    return Result(row=row, text=text, is_bad=read.problem is not None)


def _detail(read: Verified) -> str:
    if read.problem is not None:
        by = f"record {read.seq}" if read.seq is not None else "an earlier record"
        fallback = describe_fallback(read.fallback)
        return f": {read.problem}\n            Quarantined by {by}. {fallback}"
    if read.total_bytes is None:
        return ", while it was read"
    return f": {read.total_bytes} bytes, record {read.seq}"


@click.command("gc")
@click.argument("run_id", metavar="[RUN]", required=False)
@click.option("--dry-run", is_flag=True, help="Print what would be done, and write nothing.")
@as_json
@click.pass_context
def collect_checkpoints(
    ctx: click.Context, run_id: str | None, dry_run: bool, as_json: bool
) -> None:
    """Supersede and delete what the rule of RUN, or of every run, keeps no longer.

    The newest checkpoint is read in full first: until it is known to be good, nothing is deleted. Exit
    with 1 when one is corrupt, or a run could not be looked at; the others are collected anyway.
    """
    tracks, reader = _open(dry_run)

    def one(each: str) -> Iterator[Result]:
        done = collect(tracks, reader, each, by=BY)
        row, text = _collected_row(done, dry_run=dry_run), _collected_text(done, dry_run=dry_run)
        yield Result(row=row, text=text, is_bad=bool(done.corrupt))

    results = of_every_run(tracks.store, one) if run_id is None else one(check_run_id(run_id))
    ctx.exit(print_results(results, as_json=as_json, nothing="There is no run to collect."))


def _open(dry_run: bool) -> tuple[Tracks, CheckpointReader]:
    settings = Settings.from_environment()
    if dry_run:
        return open_dry_run(settings)
    open_store_to_read(settings)  # an empty home is an error, it is not made
    app = open_app()
    return app.tracks, app.checkpoints


def _collected_row(done: Collected, *, dry_run: bool) -> dict[str, Json]:
    return {
        "run_id": done.run_id,
        "dry_run": dry_run,
        "read": [to_json(each) for each in done.read],
        "superseded": [to_json(each) for each in done.superseded],
        "deleted": [to_json(each) for each in done.deleted],
        "freed_bytes": done.freed_bytes,
        "waiting": list(done.waiting),
        "kept": [
            {"ref": to_json(j.checkpoint.ref), "status": j.checkpoint.status, "why": list(j.why)}
            for j in done.kept
        ],
        "leftover_count": done.leftover_count,
    }


def _collected_text(done: Collected, *, dry_run: bool) -> str:
    would = "would be " if dry_run else ""
    lines = [
        f"{done.run_id}: {len(done.superseded)} {would}superseded, {len(done.deleted)} {would}"
        f"deleted, {done.freed_bytes} bytes {would}freed, {done.leftover_count} objects without a "
        f"record {would}removed"
    ]
    for read in done.corrupt:
        record = f" by record {read.seq}" if read.seq is not None and not dry_run else ""
        lines.append(
            f"  {would}quarantined{record}: {_step_of(read.ref)}: {read.problem} "
            f"{describe_fallback(read.fallback)}"
        )
    lines += [f"  {would}superseded: {_step_of(each.ref)}: {each.why}" for each in done.superseded]
    lines += [
        f"  {would}deleted: {_step_of(each.ref)}, {sum(each.chunks.values())} bytes in "
        f"{len(each.chunks)} chunks: {each.why}"
        for each in done.deleted
    ]
    lines += [f"  waits: {each}" for each in done.waiting]
    lines += [f"  kept: {_step_of(j.checkpoint.ref)}: {'; '.join(j.why)}" for j in done.kept]
    return "\n".join(lines)


def _step_of(ref: CheckpointRef) -> str:
    return f"step {ref.step} of attempt {ref.attempt_id}"


@click.command("advise")
@run_argument
@as_json
def advise_on_cadence(run_id: str, as_json: bool) -> None:
    """Propose how often RUN should save: √(2·δ·M), from its saves and its pool's interruptions."""
    settings = Settings.from_environment()
    tracks = open_tracks_to_read(settings)
    advice = advise_cadence(tracks, open_ledger_to_read(settings), check_run_id(run_id))
    if as_json:
        print_json(to_json(advice))
    else:
        click.echo("\n".join(advice_lines(advice)))


def advice_lines(advice: CadenceAdvice) -> Iterator[str]:
    """Yield the proposal, what the run does now, and what was measured."""
    yield _proposal(advice)
    if advice.now_s is not None:
        yield f"Now it saves every {duration(advice.now_s)}{_loses(advice.now_loss)}."
    if advice.saves is not None:
        yield (
            f"  δ     {duration(advice.saves.blocking_s)}: how long a save blocks training, median "
            f"of {counted(advice.saves.save_count, 'periodic save')} of this run"
        )
    yield f"  M     {_mean_time(advice.mean_time)}"
    yield from (f"        {line}" for line in _pool(advice.pool))
    if advice.steps is not None:
        steps = counted(advice.steps.step_count, "step")
        yield (
            f"  step  {duration(advice.steps.step_s)}: median of {steps} of attempt "
            f"{advice.steps.attempt_id}"
        )
    yield from (f"  note  {line}" for line in (*advice.missing, *advice.caveats))


def _proposal(advice: CadenceAdvice) -> str:
    if advice.interval_s is None:
        return f"{advice.run_id}: too little was measured yet to advise how often to save."
    steps = ""
    if advice.interval_steps is not None:
        steps = f"{counted(advice.interval_steps, 'step')}, "
    every = f"every {steps}{duration(advice.interval_s)}"
    return f"{advice.run_id}: save {every}{_loses(advice.expected_loss)}."


def _loses(loss: float | None) -> str:
    if loss is None:
        return ""
    return f"; {100 * loss:.2g} % of the time is expected to go into saves and work done again"


def _mean_time(mean_time: MeanTime | None) -> str:
    if mean_time is None:
        return "not known: the mean time between interruptions"
    at_least = "at least " if mean_time.is_lower_bound else ""
    return (
        f"{at_least}{duration(mean_time.seconds)}: mean time between interruptions; {mean_time.how}"
    )


def _pool(pool: PoolRecord) -> Iterator[str]:
    yield (
        f"pool {pool.launcher}/{pool.device_class}: "
        f"{counted(pool.interruption_count, 'interruption')}{_reasons(pool.interruptions)} in "
        f"{duration(pool.exposure_s)} of {counted(pool.attempt_count, 'attempt')} of "
        f"{counted(pool.run_count, 'run')}"
    )
    if pool.other_ends:
        yield f"not counted as interruptions: {_counts(pool.other_ends)}"


def _reasons(counts: Mapping[str, int]) -> str:
    return f" ({_counts(counts)})" if counts else ""


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{reason} {count}" for reason, count in counts.items())


def duration(seconds: float) -> str:
    """Return seconds in the unit that a person would use."""
    if seconds < 120.0:
        return f"{seconds:.3g} s"
    if seconds < 7200.0:
        return f"{seconds / 60:.3g} min"
    return f"{seconds / 3600:.3g} h" if seconds < 360_000.0 else f"{seconds / 86400:.3g} days"


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One result, for a program and for a person; is_bad: the command exits with 1."""

    row: dict[str, Json]
    text: str
    is_bad: bool


def of_every_run(store: ObjectStore, one: Callable[[str], Iterable[Result]]) -> Iterator[Result]:
    """Yield the results of `one` for each run of the store; an error becomes a result, too."""
    for run_id in store.folders("runs/"):
        try:
            yield from one(run_id)
        except Exception as error:  # noqa: BLE001 - of that run alone
            problem = problem_of(error)
            row = {"run_id": run_id, "status": "failed", "problem": problem}
            yield Result(row=row, text=f"failed      {run_id}: {problem}", is_bad=True)


def print_results(results: Iterable[Result], *, as_json: bool, nothing: str) -> int:
    """Print each result as it comes, or all as one JSON array; return the exit code.

    nothing: the sentence for a person when there is no result.
    """
    printed: list[Result] = []
    for each in results:
        printed.append(each)
        if not as_json:
            click.echo(each.text)
    if as_json:
        print_json([each.row for each in printed])
    elif not printed:
        click.echo(nothing)
    return BAD_NEWS if any(each.is_bad for each in printed) else 0

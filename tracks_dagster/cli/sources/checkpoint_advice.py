"""`tracks checkpoints advise`: how often a run should save, with the numbers behind it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import click

from tracks_dagster.checkpoints.cadence import CadenceAdvice, MeanTime, PoolRecord
from tracks_dagster.checkpoints.effects.cadence import advise_cadence
from tracks_dagster.cli.common import as_json, print_json, run_argument
from tracks_dagster.reading import open_ledger_to_read, open_tracks_to_read
from tracks_dagster.settings import Settings
from tracks_dagster.track.body_json import to_json
from tracks_dagster.track.names import check_run_id


@click.command("advise")
@run_argument
@as_json
def command(run_id: str, as_json: bool) -> None:
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
            f"of {_count(advice.saves.save_count, 'periodic save')} of this run"
        )
    yield f"  M     {_mean_time(advice.mean_time)}"
    yield from (f"        {line}" for line in _pool(advice.pool))
    if advice.steps is not None:
        steps = _count(advice.steps.step_count, "step")
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
        steps = f"{_count(advice.interval_steps, 'step')}, "
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
        f"{_count(pool.interruption_count, 'interruption')}{_reasons(pool.interruptions)} in "
        f"{duration(pool.exposure_s)} of {_count(pool.attempt_count, 'attempt')} of "
        f"{_count(pool.run_count, 'run')}"
    )
    if pool.other_ends:
        yield f"not counted as interruptions: {_counts(pool.other_ends)}"


def _count(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _reasons(counts: Mapping[str, int]) -> str:
    return f" ({_counts(counts)})" if counts else ""


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{reason} {count}" for reason, count in counts.items())


def duration(seconds: float) -> str:
    """Return seconds in the unit in which a person would say them."""
    if seconds < 120.0:
        return f"{seconds:.3g} s"
    if seconds < 7200.0:
        return f"{seconds / 60:.3g} min"
    return f"{seconds / 3600:.3g} h" if seconds < 360_000.0 else f"{seconds / 86400:.3g} days"

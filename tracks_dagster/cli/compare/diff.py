"""`tracks diff`: two attempts, or two checkpoints, side by side; or the runs of an experiment."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import click

from tracks_dagster.cli import BAD_NEWS
from tracks_dagster.cli.common import archive_option, as_json, print_json, print_table, settings_for
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.reading import open_ledger_to_read, open_tracks_to_read
from tracks_dagster.retry.caps import Cost, cost_of
from tracks_dagster.review.comparing import Comparison, Measured, MetricLine
from tracks_dagster.review.effects.code_diff import diff_code
from tracks_dagster.review.effects.comparing import compare_named, find
from tracks_dagster.review.effects.experiments import read_experiment
from tracks_dagster.review.experiments import (
    EXPERIMENT_RUNS_MAX,
    ExperimentRun,
    MeasuredBy,
    changes,
    measured_by,
    outside,
    result,
)
from tracks_dagster.settings import Settings, load_prices
from tracks_dagster.track.body_json import to_json
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.names import RUN_ID_PATTERN
from tracks_dagster.track.records import Json
from tracks_dagster.track.states.checkpoints import checkpoint_at
from tracks_dagster.track.states.run_state import AttemptState, RunState
from tracks_dagster.track.text.units import about, cost_text, counted


@click.command("diff")
@click.argument("a", metavar="A", required=False)
@click.argument("b", metavar="B", required=False)
@click.option(
    "--force", is_flag=True, help="Also show metrics that cannot be compared, with a label."
)
@click.option(
    "--experiment",
    metavar="NAME",
    help="What each run of it changed from the baseline, and what came of it; A and B: only of these.",
)
@click.option("--baseline", metavar="RUN", help="With --experiment: compare with this run of it.")
@click.option("--code", is_flag=True, help="The files of their stored code, line by line.")
@archive_option
@as_json
@click.pass_context
def diff_command(
    ctx: click.Context,
    a: str | None,
    b: str | None,
    force: bool,
    experiment: str | None,
    baseline: str | None,
    code: bool,
    archive: Path | None,
    as_json: bool,
) -> None:
    """Compare two attempts (RUN/aNN) or two checkpoints (RUN@STEP, RUN, or a manifest's sha256).

    RUN alone is its last checkpoint.

    Metrics are not compared across versions of an eval, across eval snapshots, or across seeds with
    only one eval each. Then everything else is shown, and the exit code is 1.

    With --experiment: its runs, how each differs from the baseline, and what came of it.

    With --code: what differs in the files that they were started with; RUN is its newest attempt.
    """
    settings = settings_for(archive)
    if experiment is not None:
        only = [each for each in (a, b) if each is not None]
        _experiment(settings, experiment, baseline or "", only, as_json=as_json)
        return
    if a is None or b is None or baseline is not None:
        raise click.UsageError(
            "Name two attempts or checkpoints, or an experiment: `tracks diff A B`, `tracks diff "
            "--experiment NAME [--baseline RUN]`."
        )
    tracks = open_tracks_to_read(settings)
    if code:
        _print_code(settings, tracks, a, b, as_json=as_json)
        return
    found = compare_named(tracks, lambda: open_ledger_to_read(settings), a, b, is_forced=force)
    print_json(to_json(found)) if as_json else _print(found)
    ctx.exit(BAD_NEWS if found.refused else 0)


def _print(found: Comparison) -> None:
    click.echo(f"A  {found.a}\nB  {found.b}\n\n{_descent(found)}\n{_data(found)}\n")
    print_table(("", "what", "A", "B"), _differences(found))
    if found.evals:
        click.echo("")
        titles = ("eval", "metric", "A", "B", "B − A", "remark")
        print_table(titles, map(_eval_cells, found.evals))
    for refused in found.refused:
        click.echo(f"\n{refused} --force shows the values anyway, labelled.")


def _print_code(settings: Settings, tracks: Tracks, a: str, b: str, *, as_json: bool) -> None:
    """Print what differs in the stored code of two attempts."""

    def attempt(text: str) -> tuple[RunState, AttemptState]:
        state = tracks.find_run(text) if RUN_ID_PATTERN.fullmatch(text) else None
        if state is not None and state.last_attempt is not None:
            return state, state.last_attempt
        found = find(tracks, lambda: open_ledger_to_read(settings), text)
        return found.state, found.attempt

    found = diff_code(tracks.store, attempt(a), attempt(b))
    if as_json:
        print_json(to_json(found))
        return
    same = counted(found.equal_count, "file")
    click.echo(f"A  {found.a}\nB  {found.b}\n")
    click.echo(f"{found.text}\n\n{same} are the same." if found.files else f"Equal: {same}.")


def _experiment(
    settings: Settings, name: str, wanted: str, only: Sequence[str], *, as_json: bool
) -> None:
    """Print the runs of an experiment beside its baseline; raises InvalidInput."""
    ledger = open_ledger_to_read(settings)
    found = read_experiment(
        ledger, name, runs_max=EXPERIMENT_RUNS_MAX, baseline=wanted, others=only
    )
    if found is None or all(run.experiment != name for run in found.runs):
        raise InvalidInput(
            f"No run belongs to an experiment {name!r}; `tracks run --experiment {name}` declares one."
        )
    runs, baseline = found.runs, found.baseline
    others = [run for run in runs if run is not baseline and (not only or run.run_id in only)]
    shown = [baseline, *others]
    prices = load_prices(settings)
    tracks = open_tracks_to_read(settings)
    now = datetime.now(UTC)
    by = measured_by(runs, baseline)
    costs = {
        run.run_id: cost_of(tracks.run(run.run_id), prices, now)
        for run in shown
        if prices is not None
    }
    if as_json:
        print_json(
            {
                "experiment": name,
                "baseline": baseline.run_id,
                "baseline_why": found.why,
                "run_count": found.count,
                "measured_by": to_json(by),
                "runs": [
                    {
                        **to_json(run),
                        "is_outside": bool(outside(run, name, runs)),
                        "changes": to_json(changes(run, baseline)),
                        "result": to_json(result(run, baseline, by)),
                        "cost": to_json(costs.get(run.run_id)),
                    }
                    for run in shown
                ],
            }
        )
        return
    click.echo(f"{name}: {found.words}. Baseline: {baseline.run_id}, {found.why}.\n")
    money = next(iter(costs.values())).currency if costs else ""
    numbers = ("eval" if by is None else by.title, "against", "training", "device time")
    titles = ("run", "changed", "state", "steps", *numbers, *([money] if money else []))
    print_table(
        titles,
        (_experiment_cells(run, baseline, by, outside(run, name, runs), costs) for run in shown),
        right={"steps", *numbers, money},
    )


def _experiment_cells(
    run: ExperimentRun,
    baseline: ExperimentRun,
    by: MeasuredBy | None,
    where: str,
    costs: Mapping[str, Cost],
) -> tuple[str, ...]:
    found = [
        f"{each.name} {_value(each.before)} → {_value(each.after)}"
        for each in changes(run, baseline)
    ]
    changed = "the baseline" if run is baseline else "\n".join(found) or "nothing"
    own = result(run, baseline, by)
    off = None if own is None else own.difference
    against = "–" if own is None or off is None else f"{off:+.4g} {own.verdict}".rstrip()
    losses = [f"{name} {value:.4g}" for name, value in run.trained.items()]
    cells = (
        f"{run.run_id}\n{where}".rstrip(),
        changed,
        run.state,
        "–" if run.steps is None else str(run.steps),
        "–" if own is None else f"{own.value:.4g} at {own.step}",
        against,
        "\n".join([*losses, f"at {run.trained_step}"]) if losses else "–",
        about(run.device_s) if run.device_s else "–",
    )
    return (*cells, cost_text(costs[run.run_id].amount)) if costs else cells


def _descent(found: Comparison) -> str:
    ancestor = found.descent.ancestor
    if ancestor is None:
        return "They descend from no common checkpoint."
    beyond = f"A went {found.descent.a_steps} steps beyond it, B {found.descent.b_steps}"
    at = f"{checkpoint_at(ancestor)} (attempt {ancestor.attempt_id})"
    return f"Both descend from {at}: {beyond}."


def _data(found: Comparison) -> str:
    return (
        f"Samples that both consumed alike: {found.shared_data.samples} ({found.shared_data.why})."
    )


def _differences(found: Comparison) -> Iterator[tuple[str, ...]]:
    """Yield the rows of each section; one without a difference is the same on both sides."""
    sections = {
        "steps": found.steps,
        "data": found.data,
        "config": found.config,
        "in use": found.in_use,
        "code": found.code,
        "environment": found.environment,
        "placement": found.placement,
    }
    for title, lines in sections.items():
        if not lines:
            yield title, "the same"
        for index, line in enumerate(lines):
            b = "the same" if line.is_equal and line.a is not None else _value(line.b)
            yield "" if index else title, line.name, _value(line.a), b


def _eval_cells(line: MetricLine) -> tuple[str, ...]:
    difference = "–" if line.difference is None else f"{line.difference:+.6g}"
    a, b = _measured(line.a), _measured(line.b)
    return line.suite, line.metric, a, b, difference, _remark(line)


def _measured(measured: Measured | None) -> str:
    """Return `2.525 ± 0.01 (seeds 1, 2)`, or `2.525 (seed 7)`."""
    if measured is None:
        return "–"
    seeds = ", ".join(str(seed) for seed in measured.seeds)
    if measured.spread is None:
        return f"{measured.mean:.6g} (seed {seeds})"
    return f"{measured.mean:.6g} ± {measured.spread:.2g} (seeds {seeds})"


def _remark(line: MetricLine) -> str:
    remarks = [line.label, line.remark]
    if line.is_within_spread is not None:
        remarks.append(
            "no more than the seeds alone make"
            if line.is_within_spread
            else "more than the seeds alone make"
        )
    elif not line.label and line.a is not None and line.b is not None:
        remarks.append("one seed: nobody knows what the seed alone makes")
    elif not line.label:
        remarks.append(f"not evaluated: {'A' if line.a is None else 'B'} (tracks eval RUN@STEP)")
    return "; ".join(remark for remark in remarks if remark)


def _value(value: Json) -> str:
    if value is None:
        return "–"
    if isinstance(value, list):
        return ", ".join(str(each) for each in value) or "none"
    return str(value)

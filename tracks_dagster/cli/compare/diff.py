"""`tracks diff`: two attempts, or two checkpoints, side by side."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from tracks_dagster.cli import BAD_NEWS
from tracks_dagster.cli.common import archive_option, as_json, print_json, print_table, settings_for
from tracks_dagster.reading import open_ledger_to_read, open_tracks_to_read
from tracks_dagster.review.comparing import Comparison, Measured, MetricLine
from tracks_dagster.review.effects.comparing import compare_named
from tracks_dagster.track.body_json import to_json
from tracks_dagster.track.records import Json
from tracks_dagster.track.states.checkpoints import checkpoint_at


@click.command("diff")
@click.argument("a", metavar="A")
@click.argument("b", metavar="B")
@click.option(
    "--force", is_flag=True, help="Also show metrics that cannot be compared, with a label."
)
@archive_option
@as_json
@click.pass_context
def diff_command(
    ctx: click.Context, a: str, b: str, force: bool, archive: Path | None, as_json: bool
) -> None:
    """Compare two attempts (RUN/aNN) or two checkpoints (RUN@STEP, or a manifest's sha256).

    Metrics are not compared across versions of an eval, across eval snapshots, or across seeds with
    only one eval each. Then everything else is shown, and the exit code is 1.
    """
    settings = settings_for(archive)
    tracks = open_tracks_to_read(settings)
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
        click.echo(f"\n{refused} --force shows the values all the same, labelled.")


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

"""`tracks studies`: all studies, or one with its trials."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import click

from tracks_dagster.cli.common import as_json, print_json, print_table
from tracks_dagster.reading import open_ledger_to_read, open_tracks_to_read
from tracks_dagster.review.effects.status import trials_for_a_person, waiting_studies
from tracks_dagster.settings import Settings
from tracks_dagster.studies.deciding import value_words
from tracks_dagster.studies.results import in_order
from tracks_dagster.studies.words import as_facts, best_words, config_words, summary
from tracks_dagster.track.errors import NothingYet, StoreError
from tracks_dagster.track.states.study_state import StudyState, Trial
from tracks_dagster.wiring import utc_now

_ALL = (
    "select study, state, model_family, metric, best_value, best_run_id, trial_count, max_trials, "
    "device_hours, off_peak, cause from studies order by declared_at, study"
)


@click.command("studies")
@click.argument("name", metavar="[STUDY]", required=False)
@as_json
def studies_command(name: str | None, as_json: bool) -> None:
    """List the studies, or the trials of STUDY: their configs, values, and why they were stopped."""
    given = Settings.from_environment()
    if name is None:
        ledger = open_ledger_to_read(given)
        rows = ledger.query(_ALL)
        if as_json:
            print_json(rows)
            return
        print_table(
            ("study", "state", "project", "metric", "best", "run", "trials", "device h"),
            (
                (
                    row["study"],
                    row["cause"] or row["state"],
                    row["model_family"],
                    row["metric"],
                    "–" if row["best_value"] is None else f"{row['best_value']:g}",
                    row["best_run_id"] or "–",
                    f"{row['trial_count']} of {row['max_trials']}",
                    f"{row['device_hours']:.3g}",
                )
                for row in rows
            ),
        )
        with suppress(NothingYet, StoreError):  # the ledger alone has the rest
            for words in waiting_studies(open_tracks_to_read(given), ledger):
                click.echo(words)
        return
    tracks = open_tracks_to_read(given)
    study = tracks.study(name)
    if as_json:
        print_json(as_facts(study))
        return
    waiting = trials_for_a_person(tracks, [r.proposed.run_id for r in study.open_rungs])
    click.echo(f"{summary(study, utc_now(), waiting)}\n{best_words(study)}")
    print_table(("trial", "status", "step", study.declared.metric, "config", "why"), _rows(study))


def _rows(study: StudyState) -> Iterator[tuple[str, ...]]:
    """Yield the trials, the best first."""
    for trial in in_order(study):
        judged = next((r.judged for r in reversed(trial.rungs) if r.judged is not None), None)
        why = trial.stopped.why if trial.stopped is not None else ""
        yield (
            str(trial.number),
            trial.status.value,
            str(trial.last.proposed.steps),
            "–" if judged is None else value_words(judged.value, judged.outcome) + _spread(trial),
            config_words(trial.config),
            why or (judged.why if judged is not None and judged.value is None else ""),
        )


def _spread(trial: Trial) -> str:
    spread = trial.mean_and_deviation
    return "" if spread is None else f" ({spread[0]:.4g} ± {spread[1]:.2g})"

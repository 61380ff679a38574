"""`tracks explain --grade`: asks the reader of an explanation six questions, by the clock."""

from __future__ import annotations

import time
from textwrap import indent

import click

from tracks_dagster.cli.common import print_json
from tracks_dagster.review.explain.explanation import AttemptExplanation
from tracks_dagster.review.explain.grading import QUESTIONS, TIME_S_MAX, Sheet, questions
from tracks_dagster.track.body_json import to_json
from tracks_dagster.track.text.units import duration


def grade(attempt: AttemptExplanation, text: str, *, as_json: bool) -> bool:
    """Show the explanation, ask, and print the sheet; whether it was passed. Questions go to stderr.

    An answer that is left empty is wrong; so is one that the record does not hold.
    """
    click.echo(text, err=True)
    began_s = time.monotonic()
    answers, right = {}, {}
    for question in questions(attempt):
        answer = click.prompt(
            f"\n{question.asks}", default="", show_default=False, err=True
        ).strip()
        answers[question.name] = answer
        recorded = "\n".join(question.recorded) or "nothing: the record does not hold it"
        click.echo(indent(recorded, "    "), err=True)
        right[question.name] = bool(answer and question.recorded) and click.confirm(
            "  Is that what you answered?", default=True, err=True
        )
    took_s = round(time.monotonic() - began_s, 1)
    sheet = Sheet(attempt=attempt.key, answers=answers, right=right, took_s=took_s)
    if as_json:
        print_json({**to_json(sheet), "score": sheet.score, "passed": sheet.passed})
    else:
        click.echo(_describe(sheet))
    return sheet.passed


def _describe(sheet: Sheet) -> str:
    wrong = [name for name, is_right in sheet.right.items() if not is_right]
    missed = f"; not {', '.join(wrong)}" if wrong else ""
    verdict = "passed" if sheet.passed else "not passed"
    return (
        f"{sheet.attempt}: {sheet.score} of {len(QUESTIONS)} answered{missed}, in "
        f"{duration(sheet.took_s)} of {duration(TIME_S_MAX)}: {verdict}."
    )

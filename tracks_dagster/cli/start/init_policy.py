"""`tracks init --policy`: write policy.yaml from the answers to six questions."""

from __future__ import annotations

from collections.abc import Iterable

import click

from tracks_dagster.cli.common import print_answer
from tracks_dagster.home.home_folder import make_private
from tracks_dagster.retry.contracts import contract_lines
from tracks_dagster.retry.default_policy import DEFAULT_POLICY
from tracks_dagster.retry.effects.policy_file import read_policy
from tracks_dagster.retry.policy import RetryPolicy
from tracks_dagster.retry.policy_text import (
    QUESTIONS,
    Question,
    check_answer,
    render_policy,
    whole_answers,
)
from tracks_dagster.settings import POLICY_FILE, Settings
from tracks_dagster.track.effects.settings_file import parse_settings
from tracks_dagster.track.errors import InvalidInput


def write_policy(answers: Iterable[str], *, is_asking: bool, as_json: bool) -> None:
    """Write the file where the settings look for it, and say what it asks; raises InvalidInput."""
    settings = Settings.from_environment()
    path = settings.policy_file or settings.home / POLICY_FILE
    if path.is_symlink() or path.exists():
        raise InvalidInput(
            f"{path} is there already and stays as it is. Edit it, or remove it and run `tracks init "
            "--policy` again."
        )
    given = _parse(answers)
    if is_asking:
        for name, question in QUESTIONS.items():
            given[name] = given.get(name) or _ask(name, question)
    text = render_policy(given)
    policy = read_policy(parse_settings(text, str(path)), DEFAULT_POLICY)  # before it is written
    try:
        make_private(path.parent)
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise InvalidInput(f"{path} cannot be written ({error.strerror}).") from error
    asked = _asked(policy)
    listed = "".join(f"\n  {line}" for line in asked) or "\n  nothing"
    print_answer(
        f"Wrote {path}. It asks of runs:{listed}\nLook at it; `tracks policy` shows all of it.",
        {
            "file": str(path),
            "answers": whole_answers(given),
            "asked": asked,
            "version": policy.version,
        },
        as_json=as_json,
    )


def _asked(policy: RetryPolicy) -> list[str]:
    gated = {stage: rule.needs for stage, rule in policy.stages.rules.items() if rule.needs}
    gates = [f"stages.{stage}.needs: {', '.join(needs)}" for stage, needs in gated.items()]
    return [*gates, *contract_lines(policy.contracts)]


def _parse(pairs: Iterable[str]) -> dict[str, str]:
    """Return question → answer; raises InvalidInput."""
    given: dict[str, str] = {}
    for pair in pairs:
        name, separator, answer = pair.partition("=")
        if not separator:
            raise InvalidInput(
                f"--answer {pair!r} is not QUESTION=ANSWER; write for example expense=days."
            )
        if name in given:
            raise InvalidInput(f"--answer {name} is given twice; give one answer.")
        given[name] = check_answer(name, answer.strip())
    return given


def _ask(name: str, question: Question) -> str:
    """Ask until the answer is one."""
    click.echo(f"\n{question.text}", err=True)
    for answer, (meaning, _) in question.answers.items():
        click.echo(f"  {answer}: {meaning}", err=True)
    lightest = next(iter(question.answers))

    def read(text: str) -> str:
        try:
            return check_answer(name, text.strip())
        except InvalidInput as error:
            raise click.UsageError(str(error)) from error

    found: str = click.prompt("Answer", lightest, value_proc=read, err=True)
    return found

"""`tracks init --policy`: write policy.yaml from the answers to six questions."""

from __future__ import annotations

from collections.abc import Iterable

import click

from tracks_dagster.cli.common import print_answer
from tracks_dagster.retry.contracts import contract_lines
from tracks_dagster.retry.policy_text import QUESTIONS, Question, check_answer, render_policy
from tracks_dagster.settings import POLICY_FILE, Settings, read_policy_file
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
    given = dict(_parse(each) for each in answers)
    if is_asking:
        for name, question in QUESTIONS.items():
            given[name] = given.get(name) or _ask(name, question)
    text = render_policy(given)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise InvalidInput(f"{path} cannot be written ({error.strerror}).") from error
    policy = read_policy_file(path)
    gated = {stage: rule.needs for stage, rule in policy.stages.rules.items() if rule.needs}
    asked = [f"stages.{stage}.needs: {', '.join(needs)}" for stage, needs in gated.items()]
    asked += contract_lines(policy.contracts)
    listed = "".join(f"\n  {line}" for line in asked) or "\n  nothing"
    facts = {"file": str(path), "answers": given, "asked": asked, "version": policy.version}
    print_answer(
        f"Wrote {path}. It asks of runs:{listed}\nLook at it; `tracks policy` shows all of it.",
        facts,
        as_json=as_json,
    )


def _parse(pair: str) -> tuple[str, str]:
    name, separator, answer = pair.partition("=")
    if not separator:
        raise InvalidInput(
            f"--answer {pair!r} is not QUESTION=ANSWER; write for example expense=days."
        )
    return name, check_answer(name, answer.strip())


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

"""The smell test: any failed attempt is explained to a new engineer by `tracks explain` alone.

Thirteen incidents of different kinds are made with the project's own parts; of each, the text of the
attempt that is asked about has to answer every question. `pytest -s` prints the texts and the lists.
"""

from __future__ import annotations

import re
import shlex
import shutil
from dataclasses import replace
from pathlib import Path
from textwrap import indent

import pytest
from click import Context
from click.testing import CliRunner

from tests.fakes import FakeClock
from tests.incidents.parts import parts_of, without
from tests.incidents.questions import QUESTIONS, Asked, Question, unanswered
from tests.incidents.twelve import INCIDENTS, Incident
from tests.incidents.world import World
from tests.wings.kubernetes.double.furniture import cluster_file
from tracks_dagster.attempts.effects.evidence import read_evidence
from tracks_dagster.cli import main
from tracks_dagster.ledger.effects.database import open_ledger
from tracks_dagster.review.explain.summary import LINES_MAX, attempt_summary
from tracks_dagster.settings import Settings
from tracks_dagster.wiring import build

PLACEHOLDERS = {"…": "because", "KEY=VALUE": "lr=0.0005", "CLASS": "a100", "SIZE": "4GiB"}


@pytest.fixture(scope="module")
def empty_ledger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a ledger that has taken nothing in: copied for each incident, made once."""
    path = tmp_path_factory.mktemp("ledger") / "ledger.db"
    open_ledger(f"sqlite:///{path}")
    return path


@pytest.fixture(scope="module")
def misleading(empty_ledger: Path, tmp_path_factory: pytest.TempPathFactory) -> Asked:
    """The NCCL time-out that was one rank's OOM, as its text tells it."""
    first = INCIDENTS[0]
    return asked(first, played(first, empty_ledger, tmp_path_factory.mktemp("misleading")))


@pytest.fixture(scope="module", params=INCIDENTS, ids=lambda each: each.name)
def incident(request: pytest.FixtureRequest) -> Incident:
    """Each of them in turn."""
    found: Incident = request.param
    return found


@pytest.fixture(scope="module")
def world(
    incident: Incident, empty_ledger: Path, tmp_path_factory: pytest.TempPathFactory
) -> World:
    """A world in which the incident has happened, for tests that only read."""
    return played(incident, empty_ledger, tmp_path_factory.mktemp("incident"))


def played(incident: Incident, empty_ledger: Path, folder: Path) -> World:
    """Let the incident happen in a world of its own."""
    shutil.copy(empty_ledger, folder / "ledger.db")
    ledger = open_ledger(f"sqlite:///{folder}/ledger.db")
    world = World(f"incident-{INCIDENTS.index(incident):02d}", ledger, FakeClock())
    incident.play(world)
    return world


def asked(incident: Incident, world: World) -> Asked:
    """Return the text that tells of the incident, and what is true."""
    attempt = world.state.attempt(incident.attempt_id)
    assert attempt is not None
    evidence, problem = read_evidence(world.store, attempt)
    assert evidence is not None, problem
    text = world.text(incident.attempt_id)
    return Asked(text, world.state, attempt, incident.truth, evidence)


def test_the_text_alone_answers_every_question(incident: Incident, world: World) -> None:
    found = asked(incident, world)
    left = unanswered(found)
    print(f"{found.text}\n\nnot answered of {incident.name}: {left}")
    assert left == []
    for question in QUESTIONS:  # and each word of an answer is needed
        for answer in question.expected(found):
            text = found.text.replace(answer, "…")
            assert not question.is_answered(replace(found, text=text)), (question.words, answer)


def test_the_short_answer_is_one_screen_and_has_the_four_answers(
    incident: Incident, world: World
) -> None:
    """Why it ended, what follows, what to do, what it cost: at a hundred columns and at eighty."""
    explained = world.explain(incident.attempt_id)
    ended = explained.ended
    assert ended is not None
    for width in (100, 80):
        text = attempt_summary(explained, width=width)
        print(text)
        rows = sum(-(-len(line) // width) or 1 for line in text.splitlines())
        assert rows <= LINES_MAX
        parts = parts_of(text)
        assert next(iter(parts)) == "why it ended"
        assert incident.truth[0] in text.splitlines()[0]
        why = " ".join(" ".join(parts["why it ended"]).split())
        assert ended.rule in why
        assert " ".join(ended.lines[0].removesuffix(".").split())[:100] in why
        follows = " ".join(parts["what follows"])
        assert follows.startswith(("retried by", "refused by", "finished by", "undecided"))
        commands = re.findall(r"`[^`]+`", explained.what_to_do)
        assert all(command in text for command in commands)
        assert " steps kept, " in parts["what it cost"][0]


def test_the_example_of_the_docs_is_what_is_printed(empty_ledger: Path, tmp_path: Path) -> None:
    shutil.copy(empty_ledger, tmp_path / "ledger.db")
    ledger = open_ledger(f"sqlite:///{tmp_path}/ledger.db")
    world = World("gpt-20260131-1f3a", ledger, FakeClock())
    INCIDENTS[0].play(world)
    text = attempt_summary(world.explain(1), width=100)
    docs = (Path(__file__).parents[2] / "docs" / "explain.md").read_text(encoding="utf-8")
    assert indent(text, "    ") in docs


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda each: each.words)
def test_a_text_without_the_part_that_answers_is_found_out(
    question: Question, misleading: Asked
) -> None:
    """The questions are strict: what no longer stands in the text counts as not answered."""
    text = misleading.text
    for label in question.labels:
        text = without(text, label)
    assert question.words in unanswered(replace(misleading, text=text))


def test_a_record_that_lacks_the_cause_is_found_out(misleading: Asked) -> None:
    text = misleading.text.replace("CUDA out of memory", "something went wrong")
    left = unanswered(replace(misleading, text=text))
    assert left == ["Why did it end?", "What was the true cause?"]


def test_the_incidents_are_of_different_kinds() -> None:
    assert len(INCIDENTS) >= 12
    assert len({incident.truth[0] for incident in INCIDENTS}) >= 11  # as many reasons


def test_every_command_that_the_text_names_can_be_given(incident: Incident, world: World) -> None:
    text = asked(incident, world).text
    named = re.findall(r"`tracks ([^`]+)`", text)
    assert named
    for command in named:
        name, *arguments = shlex.split(command)
        found = main.get_command(Context(main), name)
        assert found is not None, f"there is no `tracks {name}`"
        assert arguments or name == "policy", f"`tracks {name}` says nothing by itself"
        found.make_context(name, arguments)  # raises where an option or argument is wrong


def test_every_command_of_what_to_do_works_there_and_then(
    incident: Incident, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "\n".join(parts_of(world.text(incident.attempt_id))["what to do"])
    home = tmp_path / "home"
    monkeypatch.setenv("TRACKS_HOME", str(home))
    monkeypatch.setenv("TRACKS_KUBERNETES", str(cluster_file(tmp_path, mount=home)))
    app = build(Settings.from_environment())
    for key, data in world.store.objects.items():
        app.store.put(key, data)
    app.projector.scan()
    commands = re.findall(r"`tracks ([^`]+)`", text)
    assert commands or text.startswith("Nothing")
    has_gone_on = False
    for command in commands:  # of several ways to go on the first; tests/cli/test_advice.py has all
        if "--snapshot" in command or (has_gone_on and command.startswith("retry")):
            continue  # there is no other snapshot here
        has_gone_on = has_gone_on or command.startswith("retry")
        for placeholder, word in PLACEHOLDERS.items():
            command = command.replace(placeholder, word)
        done = CliRunner().invoke(main, shlex.split(command))
        assert done.exit_code == 0, (text, command, done.output, done.exception)

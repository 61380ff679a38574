"""Six answers make a policy file that is read, says why at each line, and asks for what they mean."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import pytest

from tests.policies import policy_of
from tracks_dagster.retry.contracts import contract_lines
from tracks_dagster.retry.default_policy import DEFAULT_POLICY
from tracks_dagster.retry.policy_text import QUESTIONS, check_answer, render_policy
from tracks_dagster.track.errors import InvalidInput

HEAVIEST = {name: list(question.answers)[-1] for name, question in QUESTIONS.items()}
EACH = [
    *((name, answer) for name, question in QUESTIONS.items() for answer in question.answers),
    ("people", "ada,grace"),
    ("people", 'owner,true,12,#ada,a: b,[x],"q",Émile D.'),
]


def test_there_are_six_questions_whose_lightest_answers_ask_nothing() -> None:
    assert len(QUESTIONS) == 6
    assert policy_of(render_policy({})) == DEFAULT_POLICY


def test_the_docs_name_every_question_and_its_answers() -> None:
    page = (Path(__file__).parents[2] / "docs" / "policy.md").read_text(encoding="utf-8")
    for name, question in QUESTIONS.items():
        [row] = [line for line in page.splitlines() if line.startswith(f"| `{name}`: ")]
        assert re.findall(r"`(\w+)`", row) == [name, *question.answers]


@pytest.mark.parametrize(("name", "answer"), EACH)
def test_every_answer_makes_a_file_that_is_read_and_all_but_the_lightest_change_something(
    name: str, answer: str
) -> None:
    is_lightest = answer == next(iter(QUESTIONS[name].answers))
    text = render_policy({name: check_answer(name, answer)})
    assert (policy_of(text) == DEFAULT_POLICY) is is_lightest
    assert f" {answer}\n" in text  # the head has the answers


def test_every_key_says_why_in_the_line_above_and_every_section_is_there() -> None:
    lines = render_policy(HEAVIEST).splitlines()
    for above, line in pairwise(lines):
        if line.startswith("  ") and not line.startswith("  #"):
            assert above.startswith("  # "), line
    sections = [line.lstrip("# ").partition(":")[0] for line in lines if line and line[0] != " "]
    assert sections[-11:] == [
        *("stages", "submission", "scheduling", "fault_tolerance", "tracking", "monitoring"),
        *("cost", "tuning", "promotion", "retention", "governance"),
    ]


def test_what_is_only_shown_as_an_example_can_be_taken_as_it_is() -> None:
    text = "".join(
        line.removeprefix("# ") + "\n"
        for line in render_policy({}).splitlines()
        if line.startswith("# ") and ": {" in line
    )
    assert len({line.partition(".")[0] for line in contract_lines(policy_of(text).contracts)}) == 8


def test_names_are_read_as_they_were_given() -> None:
    names = ("owner", "true", "12", "#ada", "a: b", "[x", '"q"', "-", "Émile D.", "ada@lab.org")
    policy = policy_of(render_policy({"people": ",".join(names)}))
    assert policy.contracts.governance.may_promote == names


def test_what_several_answers_ask_for_is_one_list() -> None:
    policy = policy_of(render_policy({"expense": "days", "proof": "everything"}))
    assert policy.contracts.submission.required_fields == (
        *("intent", "expect", "on_call", "owner", "commit", "snapshot"),
    )


@pytest.mark.parametrize(
    ("name", "answer", "words"),
    [
        ("expence", "days", "did you mean expense?"),
        ("expense", "day", "did you mean days?"),
        ("keeping", "", "'' is not an answer"),
        ("people", " , ", "is not an answer"),
        ("people", "anyone,ada", "is not an answer"),
        ("people", "ada\ncost: {max_cost: 1}", "is not an answer"),
    ],
)
def test_an_answer_that_is_not_one_is_refused_with_those_there_are(
    name: str, answer: str, words: str
) -> None:
    with pytest.raises(InvalidInput, match=words.replace("?", r"\?")):
        check_answer(name, answer)

"""The text of a new `policy.yaml`: six questions, and the lines that their answers ask for. Pure.

Every section is in the file. One without a rule is a comment that shows an example.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.text.nearest import unknown

Value = str | tuple[str, ...]  # as the file has it; names, of which several answers make one list


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One key of a section, and why it is there."""

    section: str
    key: str
    value: Value
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """answers: what each means, the lightest first; takes_names: or people, with commas."""

    text: str
    answers: Mapping[str, tuple[str, tuple[Line, ...]]]
    takes_names: bool = False


def _asks(section: str, why: str, **keys: Value) -> tuple[Line, ...]:
    return tuple(Line(section=section, key=key, value=v, why=why) for key, v in keys.items())


_REHEARSED = "a bug in the wiring costs twenty steps in a smoke, and weeks in a full run"
PEOPLE = "people"
ANYONE = "anyone"
_PLAIN = re.compile(r"(?!(?:true|false|null)$)[A-Za-z][A-Za-z0-9_.-]*")  # read as text by YAML
ACTS = {
    "may_promote": "gives a checkpoint its alias",
    "may_waive": "waives an eval or a gate",
    "may_raise_cap": "lets a run cost more than cost.max_cost",
}
QUESTIONS: Mapping[str, Question] = {
    "expense": Question(
        text="How expensive is one run?",
        answers={
            "minutes": ("on a device or two", ()),
            "hours": (
                "every run needs an intent, a full run tests, smoke and canary",
                (
                    *_asks("stages", _REHEARSED, full="{needs: [tests, smoke, canary]}"),
                    *_asks(
                        "submission",
                        "a run of hours says what it is for",
                        required_fields=("intent",),
                    ),
                ),
            ),
            "days": (
                "also conform, somebody on call, and alerts that reach somebody",
                (
                    *_asks("stages", _REHEARSED, full="{needs: [tests, smoke, canary, conform]}"),
                    *_asks(
                        "submission",
                        "a run of days says what it is for, and who is called at night",
                        required_fields=("intent", "expect", "on_call"),
                    ),
                    *_asks(
                        "monitoring",
                        "a full run that hangs unseen wastes days; notify.yaml names who is alerted",
                        notify_stages=("full",),
                    ),
                    *_asks(
                        "monitoring",
                        "without its loss nobody sees that a run of days learns nothing",
                        required_signals=("loss",),
                    ),
                ),
            ),
        },
    ),
    "interruptions": Question(
        text="What interrupts runs?",
        answers={
            "rarely": ("a machine of your own", ()),
            "preemption": (
                "spot capacity, or a busy cluster",
                _asks(
                    "fault_tolerance",
                    "capacity that was taken comes back: wait three days for it, not one",
                    reasons="{scheduling_timeout: {time: 72h}}",
                ),
            ),
            "hardware": (
                "many nodes, of which one always fails",
                _asks(
                    "fault_tolerance",
                    "with many nodes some fail each week; eight are not a reason to give up",
                    reasons="{node_failure: {count: 8}, gpu_hardware: {count: 8}}",
                ),
            ),
        },
    ),
    "sharing": Question(
        text="Who shares the devices?",
        answers={
            "me": ("only me", ()),
            "team": (
                "one team",
                _asks(
                    "scheduling",
                    "nobody's sweep takes all devices from the others",
                    classes="{sweep: {devices_per_owner: 4}}",
                ),
            ),
            "teams": (
                "several teams",
                (
                    *_asks("scheduling", "the team that had least comes first", order="fair"),
                    *_asks(
                        "submission",
                        "a share is a team's, so each run names one",
                        required_fields=("team",),
                    ),
                    *_asks("tuning", "no team's sweeps take all devices", devices_per_team="4"),
                ),
            ),
        },
    ),
    "proof": Question(
        text="What must be provable afterwards?",
        answers={
            "nothing": ("only what every run records", ()),
            "results": (
                "which code and data made a result",
                (
                    *_asks(
                        "submission",
                        "without its commit and snapshot no result can be reproduced",
                        required_fields=("commit", "snapshot"),
                    ),
                    *_asks(
                        "tracking",
                        "what it takes to reproduce a result",
                        required_artifacts=("checkpoint", "config", "environment"),
                    ),
                ),
            ),
            "everything": (
                "also that it was not luck: other seeds",
                (
                    *_asks(
                        "submission",
                        "a result has a commit, a snapshot and an owner",
                        required_fields=("intent", "owner", "commit", "snapshot"),
                    ),
                    *_asks(
                        "submission",
                        "the settings that every comparison starts with",
                        required_parameters="{any: [lr, global_batch]}",
                    ),
                    *_asks(
                        "tracking",
                        "what it takes to reproduce a result, and to judge it",
                        required_artifacts=(
                            "checkpoint",
                            "weights",
                            "config",
                            "environment",
                            "evals",
                            "logs",
                        ),
                    ),
                    *_asks(
                        "promotion",
                        "a result of one seed may be luck: two other seeds must show it too",
                        seeds="2",
                    ),
                    *_asks(
                        "promotion", "a run that left no proof is not promoted", only_valid="true"
                    ),
                ),
            ),
        },
    ),
    PEOPLE: Question(
        text="Who may promote, waive and raise a cap? (anyone, owner, or names: ada,grace)",
        answers={
            ANYONE: ("who can write to the store; but nobody raises cost.max_cost", ()),
            "owner": ("the one who declared the run", ()),
        },
        takes_names=True,
    ),
    "keeping": Question(
        text="How long do checkpoints stay that newer ones replaced?",
        answers={
            "hour": ("as shipped: the newest 3 and the best stay, others go after an hour", ()),
            "week": (
                "others go after 7 days",
                _asks("retention", "time to look at last week's run", delete_after="7d"),
            ),
            "months": (
                "for an audit: the newest 5 and the best 3 stay, others go after 90 days",
                (
                    *_asks(
                        "retention",
                        "an audit asks for more than the newest",
                        keep_last="5",
                        keep_best="3",
                    ),
                    *_asks("retention", "and a quarter later", delete_after="90d"),
                ),
            ),
        },
    ),
}
_UNASKED: Mapping[str, str] = {  # what each section could ask
    "stages": "{full: {needs: [tests, smoke, canary]}}  # docs/stages.md",
    "submission": "{required_fields: [owner, team, on_call]}  # refuse a declaration without",
    "scheduling": "{order: fair}  # who gets devices first: docs/scheduling.md",
    "fault_tolerance": "{reasons: {hang: {count: 5}}}  # what is retried: docs/retries.md",
    "tracking": "{required_artifacts: [checkpoint, logs]}  # a run without is not valid",
    "monitoring": "{notify_stages: [full]}  # refuse one whose red alerts reach nobody",
    "cost": "{max_cost: 200}  # of any run, once prices.yaml says what a device hour costs",
    "tuning": "{trials: 60}  # runs of the class sweep in one experiment",
    "promotion": "{seeds: 2}  # so many other seeds must meet the threshold too",
    "retention": "{keep_last: 5}  # the least that a run keeps",
    "governance": "{may_promote: [owner]}  # by name: a record, not a log-in",
}


def check_answer(name: str, answer: str) -> str:
    """Return an answer to the question of that name; raises InvalidInput with the valid ones."""
    if name not in QUESTIONS:
        raise InvalidInput(unknown("question", name, list(QUESTIONS)))
    question = QUESTIONS[name]
    if answer in question.answers or (question.takes_names and _are_names(answer)):
        return answer
    words = unknown("answer", answer, list(question.answers))
    raise InvalidInput(f"{name}: {question.text} {words}")


def whole_answers(answers: Mapping[str, str]) -> dict[str, str]:
    """Return an answer to every question: the one given, else the lightest."""
    return {
        name: answers.get(name) or next(iter(question.answers))
        for name, question in QUESTIONS.items()
    }


def render_policy(answers: Mapping[str, str]) -> str:
    """Return the file's text; a question without an answer has its lightest."""
    given = whole_answers(answers)
    lines = [each for name, answer in given.items() for each in _lines(name, answer)]
    head = (
        "# What is asked of runs here; it is yours to edit. docs/policy.md says what each rule does,\n"
        "# `tracks policy --check FILE` what is wrong.\n#\n"
        + "".join(
            f"# {QUESTIONS[name].text.partition(' (')[0]} {each}\n" for name, each in given.items()
        )
    )
    return head + "".join(_section(name, lines) for name in _UNASKED)


def _lines(name: str, answer: str) -> tuple[Line, ...]:
    if name != PEOPLE:
        return QUESTIONS[name].answers[answer][1]
    if answer == ANYONE:
        return ()
    return tuple(
        Line(
            section="governance",
            key=act,
            value=_names(answer),
            why=f"who {does}; by name, no log-in",
        )
        for act, does in ACTS.items()
    )


def _names(answer: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in answer.split(",") if name.strip())


def _are_names(answer: str) -> bool:
    """Whether it lists names; `anyone` cannot be combined with them."""
    names = _names(answer)
    return bool(names) and answer.isprintable() and ANYONE not in names


def _section(name: str, lines: Iterable[Line]) -> str:
    own: dict[str, list[Line]] = {}
    for each in lines:
        if each.section == name:
            own.setdefault(each.key, []).append(each)
    if not own:
        return f"\n# {name}: {_UNASKED[name]}\n"
    return f"\n{name}:\n" + "".join(_key(key, given) for key, given in own.items())


def _key(key: str, given: list[Line]) -> str:
    why = "".join(f"  # {each.why}\n" for each in given)
    names = dict.fromkeys(
        name for each in given if isinstance(each.value, tuple) for name in each.value
    )
    value = f"[{', '.join(map(_quoted, names))}]" if names else given[-1].value
    return f"{why}  {key}: {value}\n"


def _quoted(name: str) -> str:
    """Return a name as a list of YAML has it: in quotes where it would be read as something else."""
    return name if _PLAIN.fullmatch(name) else json.dumps(name, ensure_ascii=False)

"""What a person may do from a page, to a run or a saved view: a form each, and the equal command. Pure.

Only what the run's state allows is offered. `effects/acting.py` does it, by what the commands call.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tracks_dagster.projects.project import ALIAS
from tracks_dagster.track.bodies import ANY_RULE
from tracks_dagster.track.names import attempt_key
from tracks_dagster.track.states.checkpoints import checkpoint_at
from tracks_dagster.track.states.run_state import RunState
from tracks_dagster.wings.watch.health.rules import RULES

CHOICES_MAX = 20  # checkpoints, attempts: the newest
WHY, FOR, VIEW = "why", "for", "view"
WHOLE_RUN = "the whole run"


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """What a form asks for. choices: of which one is chosen, () for text; value: what is in it; without
    a label it is not asked for, and sent as it is. may_be_empty: of a text."""

    name: str
    label: str = ""
    value: str = ""
    choices: tuple[str, ...] = ()
    may_be_empty: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """One thing to do. what: what comes of it, in a sentence; command: the same on the command line."""

    name: str
    what: str
    fields: tuple[Field, ...]
    command: str


def acts_of(state: RunState) -> tuple[Act, ...]:
    """Return what may be done to the run now, in the order in which it is asked for."""
    return tuple(_acts(state))


def _acts(state: RunState) -> Iterator[Act]:
    run_id, why = state.run_id, Field(name=WHY, label="why")
    is_open = state.open_attempt is not None
    if state.finished is None and not is_open and state.attempts:
        yield Act(
            name="retry",
            what="Open another attempt, outside of the automatic budget; what it was given stays.",
            fields=(
                why,
                Field(
                    name="force",
                    label="even with nothing changed that could change the result",
                    choices=("no", "yes"),
                ),
            ),
            command=f'tracks retry {run_id} --why "…"',
        )
    if is_open:
        yield Act(
            name="drain",
            what="Save and end the open attempt; the run then waits for a retry.",
            fields=(why,),
            command=f'tracks drain {run_id} --why "…"',
        )
    if state.finished is None:
        yield Act(
            name="stop",
            what="Save and end the open attempt, then finish the run as cancelled.",
            fields=(why,),
            command=f'tracks stop {run_id} --why "…"',
        )
    yield _note(state)
    yield from _labels(state)
    yield _mute(state)
    if state.resumable:
        yield _promote(state)
    if state.attempts:
        yield _quarantine(state)


def _note(state: RunState) -> Act:
    newest = [f"a{each.attempt_id:02d}" for each in reversed(state.attempts)][:CHOICES_MAX]
    return Act(
        name="note",
        what="Add a note to the record; the search finds it.",
        fields=(
            Field(name="text", label="note"),
            Field(name="attempt", label="of", choices=(WHOLE_RUN, *newest)),
        ),
        command=f'tracks note {state.run_id} "…"',
    )


def _labels(state: RunState) -> Iterator[Act]:
    run_id = state.run_id
    yield Act(
        name="tag",
        what="Give the run tags (spaces between them), which tables find; -TAG takes one away.",
        fields=(Field(name="tags", label="tags"),),
        command=f"tracks runs tag {run_id} TAG",
    )
    yield Act(
        name="rename",
        what="Give the run a name for people; its id stays. An empty one takes the name away.",
        fields=(Field(name="name", label="name", value=state.labels.name, may_be_empty=True),),
        command=f'tracks runs rename {run_id} "…"',
    )
    if state.archived_at is not None:
        yield Act(
            name="unarchive",
            what="Show the run in tables again.",
            fields=(Field(name=WHY, label="why"),),
            command=f'tracks runs archive {run_id} --back --why "…"',
        )
    elif state.open_attempt is None:
        yield Act(
            name="archive",
            what="Leave the run out of tables that do not ask for `archived=yes`; nothing is lost.",
            fields=(Field(name=WHY, label="why"),),
            command=f'tracks runs archive {run_id} --why "…"',
        )


def _mute(state: RunState) -> Act:
    rules = dict.fromkeys(each.body.rule for each in state.open_alerts)
    known = [rule for rule in (*rules, *RULES, ANY_RULE) if rule in RULES or rule == ANY_RULE]
    choices = tuple(dict.fromkeys(known))
    return Act(
        name="mute",
        what="Send nobody the alerts of a rule for a while; they are recorded anyway.",
        fields=(
            Field(name="rule", label="rule", choices=choices),
            Field(name=FOR, label="for", value="2h"),
            Field(name=WHY, label="why"),
        ),
        command=f'tracks alerts mute {choices[0]} --run {state.run_id} --for 2h --why "…"',
    )


def _promote(state: RunState) -> Act:
    newest = sorted(state.resumable, key=lambda ref: (ref.attempt_id, ref.step), reverse=True)
    steps = tuple(dict.fromkeys(str(ref.step) for ref in newest))[:CHOICES_MAX]
    rule = state.declared.promotion
    alias = ALIAS if rule is None else rule.alias
    return Act(
        name="promote",
        what="Give an alias to a checkpoint, on its newest completed eval.",
        fields=(
            Field(name="step", label="checkpoint of step", choices=steps),
            Field(name="alias", label="alias", value=alias),
            Field(name=WHY, label="why"),
        ),
        command=f'tracks promote {checkpoint_at(newest[0])} --alias {alias} --why "…"',
    )


def _quarantine(state: RunState) -> Act:
    return Act(
        name="quarantine",
        what=(
            "Let nothing new start from a source: no retry, eval, branch or promotion of what descends "
            "from it. Attempts that run continue."
        ),
        fields=(
            Field(name="source", label="source", choices=sources_of(state)),
            Field(name=WHY, label="why"),
        ),
        command=f'tracks quarantine {sources_of(state)[0]} --why "…"',
    )


def sources_of(state: RunState) -> tuple[str, ...]:
    """Return what of a run can be put in quarantine, by name: checkpoints, attempts, its snapshot."""
    newest = [each for each in reversed(state.checkpoints) if each.is_resumable][:CHOICES_MAX]
    checkpoints = [
        f"checkpoint:{attempt_key(state.run_id, each.ref.attempt_id)}@{each.ref.step}"
        for each in newest
    ]
    attempts = [
        f"attempt:{attempt_key(state.run_id, each.attempt_id)}" for each in reversed(state.attempts)
    ][:CHOICES_MAX]
    snapshot = state.attempts[-1].opened.snapshot if state.attempts else state.declared.snapshot
    data = [] if snapshot is None else [f"snapshot:{snapshot.dataset}@{snapshot.snapshot_id[:12]}"]
    return (*checkpoints, *attempts, *data)

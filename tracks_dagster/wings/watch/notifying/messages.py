"""The messages that records make. Pure; `delivery` says who gets them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum

from tracks_dagster.ledger.track_states import TrackState
from tracks_dagster.track.bodies import (
    Alert,
    AlertCleared,
    PromotionDecided,
    RetryRefused,
    RunFinished,
)
from tracks_dagster.track.body_json import body_of
from tracks_dagster.track.names import attempt_key, pool_track, run_track
from tracks_dagster.track.records import (
    Json,
    Kind,
    Record,
    format_time,
    parse_time,
)
from tracks_dagster.track.states.lifecycle import RunLifecycle, run_status
from tracks_dagster.track.states.pool_state import PoolState
from tracks_dagster.track.states.run_state import RunState
from tracks_dagster.track.text.redact import Redact, redact_json
from tracks_dagster.track.text.safe_text import one_line, visible
from tracks_dagster.wings.watch.health import rules
from tracks_dagster.wings.watch.health.advice import DATA_KEY

TEXT_CHARACTERS_MAX = 2000  # of one text of a message: a chat cuts at 4000, a record has 16 KiB
NUMBERS_MAX = 12  # of a message

YELLOW, RED = "yellow", "red"
SEVERITIES = (YELLOW, RED)  # in ascending order


class Event(StrEnum):
    """What a message is about. All but alerts and tests are sent to who asks for them."""

    ALERT = "alert"
    CLEARED = "cleared"
    REFUSED = "refused"
    WAITING = "waiting"
    FINISHED = "finished"
    PROMOTED = "promoted"
    TEST = "test"


ON_REQUEST = (Event.CLEARED, Event.REFUSED, Event.WAITING, Event.FINISHED, Event.PROMOTED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """What one record says to a person.

    key: TRACK/SEQ of the record, the same however often it is sent: a receiver drops what it has had.
    rule, severity: of an alert, and of the end of one. numbers: what the sentence rests on. runbook: a
    path below the checkout. advice: one word with its numbers; empty where there was none. command: the
    one to begin with. links: the run's page on the board, then the attempt's in Dagster; of each only
    while its address is known.
    """

    key: str
    event: Event
    at: datetime
    sentence: str
    command: str
    rule: str | None = None
    severity: str | None = None
    run_id: str | None = None
    attempt_id: int | None = None
    team: str | None = None
    owner: str | None = None
    numbers: Mapping[str, Json] = field(default_factory=dict)
    runbook: str = ""
    advice: str = ""
    links: tuple[str, ...] = ()

    @property
    def about(self) -> str:
        """The attempt, the run or the track that it is about."""
        if self.run_id is None:
            return self.key.rpartition("/")[0]
        if self.attempt_id is None:
            return self.run_id
        return attempt_key(self.run_id, self.attempt_id)

    @property
    def title(self) -> str:
        """A line for a subject: `red: save_failed in gpt-1/a02`."""
        if self.event is Event.ALERT:
            return one_line(f"{self.severity}: {self.rule} in {self.about}")
        if self.event is Event.CLEARED:
            return one_line(f"cleared: {self.rule} in {self.about}")
        return one_line(f"{self.event}: {self.about}")

    @property
    def text(self) -> str:
        """The whole message for people, a few lines."""
        of = ", ".join(filter(None, (self.owner, self.team)))
        numbers = ", ".join(f"{name} {_number(value)}" for name, value in self.numbers.items())
        lines = (
            f"{self.title} ({of})" if of else self.title,
            self.sentence,
            numbers,
            f"Advice: {self.advice}" if self.advice else "",
            f"Runbook: {self.runbook}" if self.runbook else "",
            f"Begin with: {self.command}" if self.command else "",
            *self.links,
        )
        return "\n".join(line for line in lines if line)

    def to_json(self) -> dict[str, Json]:
        """The message for programs. text: the whole of it, where a chat's own webhook looks for it."""
        return {
            "version": 1,
            "key": self.key,
            "event": self.event.value,
            "title": self.title,
            "text": self.text,
            "at": format_time(self.at),
            "sentence": self.sentence,
            "command": self.command,
            "rule": self.rule,
            "severity": self.severity,
            "run_id": self.run_id,
            "attempt_id": self.attempt_id,
            "team": self.team,
            "owner": self.owner,
            "numbers": dict(self.numbers),
            "runbook": self.runbook,
            "advice": self.advice,
            "link": self.links[0] if self.links else "",
            "links": list(self.links),
        }

    @classmethod
    def from_json(cls, value: Json) -> Message:
        """Return the message that `to_json` wrote; raises KeyError, TypeError or ValueError."""
        links = value.get("links") or [value["link"]]  # an older version knew one, or "" for none
        return cls(
            key=str(value["key"]),
            event=Event(value["event"]),
            at=parse_time(value["at"]),
            sentence=str(value["sentence"]),
            command=str(value["command"]),
            rule=value["rule"],
            severity=value["severity"],
            run_id=value["run_id"],
            attempt_id=value["attempt_id"],
            team=value["team"],
            owner=value["owner"],
            numbers=dict(value["numbers"]),
            runbook=str(value["runbook"]),
            advice=str(value.get("advice", "")),
            links=tuple(filter(None, map(str, links))),
        )


# --- from a record --------------------------------------------------------------------------------

# (run, attempt_id) → the pages of both, of each only while its address is known
LinksOf = Callable[[RunState, int], tuple[str, ...]]


def message_of(
    state: TrackState, record: Record, *, links_of: LinksOf, clean: Redact
) -> Message | None:
    """Return what a record has to say to a person, without secrets; None for most records.

    state: of its track, with this record and perhaps with later ones.
    """
    if isinstance(state, PoolState):
        found = _of_alert(record, run_id=None)
        track = pool_track(state.pool)
    elif isinstance(state, RunState):
        found = _of_run(state, record)
        track = run_track(state.run_id)
    else:
        return None
    if found is None:
        return None
    if isinstance(state, RunState):
        found = replace(
            found,
            run_id=state.run_id,
            team=state.declared.team,
            owner=state.declared.owner,
            links=links_of(state, found.attempt_id or len(state.attempts)),
        )
    return _safe(replace(found, key=f"{track}/{record.seq}"), clean)


def _of_run(state: RunState, record: Record) -> Message | None:
    run_id = state.run_id
    match record.kind:
        case Kind.ALERT:
            return _of_alert(record, run_id=run_id)
        case Kind.ALERT_CLEARED:
            return _of_cleared(state, record)
        case Kind.RETRY_REFUSED:
            refused = body_of(RetryRefused, record)
            sentence = f"{refused.decision} {refused.what_to_do}"
            return _event(record, Event.REFUSED, sentence, f"tracks explain {run_id}")
        case Kind.ATTEMPT_ENDED:
            return _of_end(state, record)
        case Kind.PROMOTION_DECIDED:
            return _of_promotion(run_id, record)
        case Kind.RUN_FINISHED:
            finished = body_of(RunFinished, record)
            sentence = f"It is finished ({finished.stop_cause}): {finished.why}"
            return _event(record, Event.FINISHED, sentence, f"tracks report {run_id}")
    return None


def _of_alert(record: Record, *, run_id: str | None) -> Message | None:
    if record.kind is not Kind.ALERT:
        return None
    alert = body_of(Alert, record)
    return replace(
        _event(record, Event.ALERT, alert.text, _command(alert, run_id)),
        rule=alert.rule,
        severity=rules.severity_of(alert),
        numbers=_numbers(alert.data),
        runbook=rules.RULES[alert.rule].runbook if alert.rule in rules.RULES else "",
        advice=str(alert.data.get(DATA_KEY, "")),
    )


def _of_cleared(state: RunState, record: Record) -> Message | None:
    cleared = body_of(AlertCleared, record)
    begun = next((each for each in state.alerts if each.seq == cleared.alert_seq), None)
    if begun is None:
        return None
    words = f"{cleared.why} It began with: {begun.body.text}"
    return replace(
        _event(record, Event.CLEARED, words, _command(begun.body, state.run_id)),
        rule=cleared.rule,
        severity=rules.severity_of(begun.body),
    )


def _of_end(state: RunState, record: Record) -> Message | None:
    """Return a message for the end of an attempt after which the run waits for a person."""
    newest, status = state.last_attempt, run_status(state)
    waits = status.state == RunLifecycle.WAITING
    if newest is None or record.seq != newest.ended_seq or not waits:
        return None
    return _event(record, Event.WAITING, status.why, f"tracks explain {state.run_id}")


def _of_promotion(run_id: str, record: Record) -> Message:
    decided = body_of(PromotionDecided, record)
    step, alias = f"{run_id}@{decided.checkpoint.step}", decided.alias
    numbers = {
        **({decided.metric: decided.metrics.get(decided.metric)} if decided.metric else {}),
        "threshold": decided.threshold,
    }
    if decided.promoted:
        sentence = f"{step} is {alias} now: {decided.why}"
        found = _event(record, Event.PROMOTED, sentence, f"tracks checkpoints list {run_id}")
    else:
        sentence = f"{step} was not made {alias}, and only a person can: {decided.why}"
        command = f'tracks promote {step} --alias {alias} --why "…"'
        found = _event(record, Event.WAITING, sentence, command)
    return replace(found, attempt_id=decided.checkpoint.attempt_id, numbers=_numbers(numbers))


def _event(record: Record, event: Event, sentence: str, command: str) -> Message:
    return Message(
        key="",
        event=event,
        at=record.at,
        sentence=sentence,
        command=command,
        attempt_id=record.attempt_id,
    )


def _command(alert: Alert, run_id: str | None) -> str:
    """Return the command to begin with: the record's own, else the rule's."""
    given = alert.data.get("command")
    if isinstance(given, str):
        return given
    return rules.command_of(alert.rule, run_id)


def _numbers(data: Mapping[str, Json]) -> dict[str, Json]:
    """Return the first few numbers, truths and short words of an alert's data."""
    plain = {
        name: value
        for name, value in data.items()
        if name not in ("command", DATA_KEY) and isinstance(value, int | float | str)
    }
    return dict(list(plain.items())[:NUMBERS_MAX])


def _number(value: Json) -> str:
    return f"{value:.6g}" if isinstance(value, float) else one_line(str(value))


def _safe(message: Message, clean: Redact) -> Message:
    """Return the message with its texts cleaned, cut, and without what controls a terminal."""

    def safe(text: str) -> str:
        cleaned = visible(clean(text))
        return (
            cleaned if len(cleaned) <= TEXT_CHARACTERS_MAX else f"{cleaned[:TEXT_CHARACTERS_MAX]}…"
        )

    return replace(
        message,
        rule=None if message.rule is None else one_line(safe(message.rule)),
        sentence=safe(message.sentence),
        command=one_line(safe(message.command)),
        advice=one_line(safe(message.advice)),
        team=None if message.team is None else one_line(safe(message.team)),
        owner=None if message.owner is None else one_line(safe(message.owner)),
        numbers=redact_json(dict(message.numbers), safe),
    )

"""The page of a run. Pure: a reading, what was drawn and what was read beside it, to a view."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from tracks_dagster.attempts.gates import skipped_words
from tracks_dagster.attempts.pace import Span
from tracks_dagster.curves.curve import Point
from tracks_dagster.ledger.facts.attempt import AttemptView, attempt_views
from tracks_dagster.track.states.checkpoints import checkpoint_at
from tracks_dagster.track.states.end_words import end_sentence
from tracks_dagster.track.states.run_state import AttemptState, RunState
from tracks_dagster.track.text.units import about, cost_text, counted
from tracks_dagster.wings.watch.board import formats, record
from tracks_dagster.wings.watch.board.acts import Act, acts_of
from tracks_dagster.wings.watch.board.formats import LightMark, marks
from tracks_dagster.wings.watch.board.heat_map import HeatMap
from tracks_dagster.wings.watch.board.reading import RunReading
from tracks_dagster.wings.watch.board.record import NOTHING_BESIDE, RecordContext, Section
from tracks_dagster.wings.watch.health.rules import RULES, command_of, severity_of

ATTEMPTS_MAX = 12  # the newest; the report has them all
ALERTS_MAX = 20  # that are over, the newest
COLOUR_COUNT = 6  # classes a0 to a5 of charts.css
SHORT = 12  # digits of a commit
_RANK = re.compile(r"rank ([0-9]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A page. is_chosen: of a choice, the one that is shown."""

    label: str
    address: str
    is_chosen: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """How curves are drawn may be chosen: what of it, and a link for each way."""

    name: str
    links: tuple[Link, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """One number with its name, and what helps to read it."""

    label: str
    value: str
    beside: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One curve. value: its newest, in words; svg: drawn by `review`; kind: what is measured, "" for
    what the script reports; is_large: looked at first."""

    name: str
    value: str
    svg: str
    kind: str = ""
    is_large: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """What a colour of the curves means."""

    colour: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertLine:
    """An alert. until: when it ended, "" while it is open; runbook: the page that says what to do."""

    rule: str
    colour: str
    text: str
    since: str
    until: str
    command: str
    runbook: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptLine:
    """One attempt. because: the sentence of its reason; opened: why it was, and what it changed."""

    name: str
    colour: str
    address: str
    ended_as: str
    because: str
    from_step: str
    last_step: str
    kept: str
    lost: str
    device_time: str
    opened: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """What the page shows that is not a part of a reading: pictures, the log, links.

    loss: the newest that was kept, for a run whose journal grows no more. zoom: the way back from a
    part of the curves to all of them. may_act: whether the forms are there, not their commands alone.
    """

    panels: tuple[Panel, ...] = ()
    maps: tuple[HeatMap, ...] = ()
    choices: tuple[Choice, ...] = ()
    zoom: Link | None = None
    left_out: tuple[str, ...] = ()
    logs: str = ""
    log_ranks: tuple[Link, ...] = ()
    log_words: str = ""
    links: tuple[Link, ...] = ()
    banners: tuple[str, ...] = ()
    attempt_pages: Mapping[int, str] | None = None
    record: RecordContext = NOTHING_BESIDE
    may_act: bool = False
    loss: Point | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPage:
    """All that run.html shows."""

    run_id: str
    state: str
    why: str
    called: str  # its name for people, "" for none
    intent: str
    about: str
    steps: str
    share: float | None
    lights: tuple[LightMark, ...]
    alerts: tuple[AlertLine, ...]
    past_alerts: tuple[AlertLine, ...]
    advice: str
    tiles: tuple[Tile, ...]
    keys: tuple[Key, ...]
    attempts: tuple[AttemptLine, ...]
    attempts_left_out: str
    links: tuple[Link, ...]
    choices: tuple[Choice, ...]
    zoom: Link | None
    panels: tuple[Panel, ...]
    left_out: tuple[str, ...]
    maps: tuple[HeatMap, ...]
    logs: str
    log_ranks: tuple[Link, ...]
    log_words: str
    banners: tuple[str, ...]
    results: tuple[Section, ...]
    record: tuple[Section, ...]
    acts: tuple[Act, ...]
    may_act: bool
    seq: int  # of the newest record that the page shows


def run_page(reading: RunReading, beside: Beside) -> RunPage:
    """Return the page of a run as it is now."""
    state = reading.state
    attempts = _attempts(reading, beside.attempt_pages or {})
    shown = attempts[-ATTEMPTS_MAX:]
    waits = reading.waits_for or reading.queue
    alerts = list(_alerts(state, reading.now))
    return RunPage(
        run_id=state.run_id,
        state=reading.pill,
        why=" ".join(filter(None, (reading.status.why, waits))),
        called=state.labels.name,
        intent=state.declared.intent,
        about=_about(state),
        steps=formats.of_steps(reading.step, reading.steps),
        share=reading.share,
        lights=marks(reading.lights) if state.finished is None else (),
        alerts=tuple(each for each in alerts if not each.until),
        past_alerts=tuple(each for each in alerts if each.until)[:ALERTS_MAX],
        advice=_advice(reading),
        tiles=tuple(_tiles(reading, beside.loss)),
        keys=tuple(Key(colour=each.colour, text=f"{each.name} {each.ended_as}") for each in shown),
        attempts=tuple(reversed(shown)),
        attempts_left_out=_left_out(len(attempts) - len(shown), state.run_id),
        links=beside.links,
        choices=beside.choices,
        zoom=beside.zoom,
        panels=beside.panels,
        left_out=beside.left_out,
        maps=beside.maps,
        logs=beside.logs,
        log_ranks=beside.log_ranks,
        log_words=beside.log_words,
        banners=beside.banners,
        results=record.results(state, beside.record, reading.now),
        record=record.record(state, beside.record, reading.now),
        acts=acts_of(state),
        may_act=beside.may_act,
        seq=state.head.seq,
    )


def colour(attempt_id: int) -> str:
    """Return the class of an attempt's colour, as the curves have it."""
    return f"a{(attempt_id - 1) % COLOUR_COUNT}"


def _about(state: RunState) -> str:
    declared = state.declared
    commit = declared.code.git_commit
    parts = [
        declared.model_family,
        declared.stage,
        f"class {declared.workload_class}" if declared.workload_class else "",
        f"{counted(declared.compute.ranks, 'rank')} of {declared.compute.device_class}",
        f"{declared.owner} ({declared.team})",
        f"data {declared.snapshot.dataset}" if declared.snapshot else "",
        f"commit {commit[:SHORT]}" if commit else "",
        f"declared {formats.clock(state.declared_at)}",
    ]
    if declared.branched_from is not None:
        parts.append(f"a branch of {checkpoint_at(declared.branched_from)}")
    if declared.skipped is not None:
        parts.append(skipped_words(declared.skipped))
    return " · ".join(filter(None, parts))


def _tiles(reading: RunReading, kept: Point | None) -> Iterator[Tile]:
    """Yield the numbers that are looked for first, those of an open attempt while there is one."""
    state, pace = reading.state, reading.pace
    done = "" if reading.share is None else f"{100 * reading.share:.1f} %"
    steps = formats.of_steps(reading.step, reading.steps)
    yield Tile(label="step", value=steps, beside=done)
    if state.open_attempt is not None:
        yield _left_tile(reading.left)
    yield _loss_tile(reading, kept)
    if pace is not None:
        beside = formats.share(reading.data_share)
        yield Tile(label="pace", value=formats.pace(pace.step_s), beside=f"{beside} wait for data")
    if reading.samples_per_s is not None:
        yield Tile(label="samples per second", value=formats.number(reading.samples_per_s))
    yield _commit_tile(reading)
    if state.open_attempt is not None:
        yield Tile(
            label="devices", value=str(reading.devices or formats.UNKNOWN), beside=_nodes(state)
        )
    if reading.cost is not None:
        cap = reading.max_cost
        of = (
            ""
            if cap is None
            else f"of at most {cost_text(cap)}, {100 * reading.cost.amount / cap:.0f} %"
        )
        yield Tile(label="money so far", value=formats.money(reading.cost), beside=of)


def _loss_tile(reading: RunReading, kept: Point | None) -> Tile:
    """Return the newest loss of the training, with its step and what was evaluated beside it."""
    loss = None if kept is None else kept.value
    step = None if kept is None else kept.step
    if reading.loss is not None:
        loss, step = reading.loss, reading.step
    at = "" if step is None else f"at step {formats.grouped(step)}"
    beside = "; ".join(filter(None, (at, _evaluated(reading))))
    return Tile(label="training loss", value=formats.number(loss), beside=beside)


def _left_tile(left: Span | None) -> Tile:
    """Return the time left, and how far off 95 % of such remainders are at most."""
    value, _, half = formats.left(left).partition(" ± ")
    unit = half.partition(" ")[2]
    return Tile(
        label="time left", value=f"{value} {unit}".strip(), beside=f"± {half}" if half else ""
    )


def _evaluated(reading: RunReading) -> str:
    """Return the newest validation metrics in a few words."""
    if not reading.tail.evaluated:
        return ""
    newest = reading.tail.evaluated[-1]
    named = [f"{name} {formats.number(value)}" for name, value in list(newest.metrics.items())[:2]]
    return f"{', '.join(named)} at step {formats.grouped(newest.step)}"


def _commit_tile(reading: RunReading) -> Tile:
    checkpoints = reading.state.checkpoints
    if not checkpoints:
        return Tile(label="newest checkpoint", value="none yet")
    newest = max(checkpoints, key=lambda each: each.seq)
    return Tile(
        label="newest checkpoint",
        value=f"step {formats.grouped(newest.ref.step)}",
        beside=formats.ago(newest.at, reading.now),
    )


def _nodes(state: RunState) -> str:
    attempt = state.open_attempt
    if attempt is None or attempt.placed is None:
        return "not placed yet"
    nodes = sorted({place.node for place in attempt.placed.ranks})
    return nodes[0] if len(nodes) == 1 else counted(len(nodes), "node")


def _alerts(state: RunState, now: datetime) -> Iterator[AlertLine]:
    """Yield the alerts of a run, newest first."""
    is_open = {each.seq for each in state.open_alerts}
    for each in reversed(state.alerts):
        rule = RULES.get(each.body.rule)
        ended = each.cleared_at
        is_over = each.seq not in is_open
        yield AlertLine(
            rule=each.body.rule,
            colour=severity_of(each.body),
            text=each.body.text,
            since=f"{formats.clock(each.at)}, {formats.ago(each.at, now)}",
            until=("ended by itself" if ended is None else formats.clock(ended)) if is_over else "",
            command=command_of(each.body.rule, state.run_id),
            runbook="" if rule is None else f"/runbooks/{rule.name}",
        )


def _advice(reading: RunReading) -> str:
    advice = reading.lights.advice
    return "" if advice is None else f"Advice: {advice.sentence}"


def _attempts(reading: RunReading, pages: Mapping[int, str]) -> list[AttemptLine]:
    tail = reading.tail
    newest = {tail.attempt_id: tail.steps[-1].step} if tail.attempt_id and tail.steps else {}
    return [_attempt(view, pages) for view in attempt_views(reading.state, newest)]


def _attempt(view: AttemptView, pages: Mapping[int, str]) -> AttemptLine:
    attempt, account = view.attempt, view.account
    reason = attempt.reason
    is_open = attempt.ended is None
    seconds = None if attempt.ended is None else attempt.ended.device_seconds
    return AttemptLine(
        name=f"a{attempt.attempt_id:02d}",
        colour=colour(attempt.attempt_id),
        address=pages.get(attempt.attempt_id, ""),
        ended_as="open" if reason is None else reason.value,
        because=end_sentence(attempt),
        from_step=formats.grouped(account.resume),
        last_step=formats.grouped(account.last),
        kept=formats.grouped(account.kept),
        lost=formats.UNKNOWN if is_open else formats.grouped(account.lost),
        device_time=formats.UNKNOWN if seconds is None else about(seconds),
        opened=_opened(attempt),
    )


def _opened(attempt: AttemptState) -> str:
    changes = ", ".join(
        f"{each.key} {each.before} → {each.after}" for each in attempt.opened.remediation
    )
    parts = (f"{attempt.opened.decided_by}: {attempt.opened.decision}", changes)
    return " ".join(filter(None, parts))


def _left_out(count: int, run_id: str) -> str:
    if count <= 0:
        return ""
    return f"{counted(count, 'older attempt')} not shown: the report of {run_id} has every one."


def hot_ranks(reading: RunReading) -> Sequence[int]:
    """Return the ranks that a finding names, whose log is worth a look first."""
    named = (about for finding in reading.lights.findings for about in finding.about)
    matches = (_RANK.fullmatch(each) for each in named)
    return [int(match[1]) for match in matches if match]

"""Sends alerts, and what else somebody asked for in notify.yaml, to those who asked."""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import lru_cache, partial

from dagster import (
    ResourceParam,
    SensorDefinition,
    SensorEvaluationContext,
    SkipReason,
    sensor,
)

from tracks_dagster.defs.site import Site
from tracks_dagster.ledger.effects.ticks import (
    AT_ONCE_MAX,
    Tick,
    TickPart,
    TimeSlice,
    run_parts,
    skip_reason,
)
from tracks_dagster.review.effects.explain.run import attempt_address
from tracks_dagster.settings import (
    Settings,
    find_board_url,
    find_ui_url,
)
from tracks_dagster.track import names
from tracks_dagster.track.errors import SettingsError
from tracks_dagster.track.json_text import parse_json
from tracks_dagster.track.states.run_state import RunState
from tracks_dagster.track.text.redact import redact
from tracks_dagster.wings.watch.edge.notify_settings import find_notify_file, load_notify
from tracks_dagster.wings.watch.notifying.delivery import Delivery
from tracks_dagster.wings.watch.notifying.effects.notify import (
    Notify,
    Outbox,
    begin,
    forget,
    leave_letters,
    remember,
)
from tracks_dagster.wings.watch.notifying.effects.senders import Senders
from tracks_dagster.wings.watch.notifying.messages import LinksOf
from tracks_dagster.wiring import App

LETTERS, SEND = "letters", "send"

# Of one file the same from tick to tick: they know which message still waits for an answer.
_senders = lru_cache(maxsize=1)(Senders)


def send_notifications(site: Site) -> SensorDefinition:
    """Return the sensor."""
    return sensor(
        name=site.name(names.SEND_NOTIFICATIONS),
        minimum_interval_seconds=site.every_s(),
        default_status=site.sensor_status,
        description=(
            "Sends each new alert to whom notify.yaml in TRACKS_HOME names, and refusals, ends and "
            "promotions to those who asked for them. What is not taken is tried again, later each "
            "time; `tracks alerts` shows it. Off: nobody is sent anything, and what is new waits."
        ),
    )(site.body(_send_notifications))


def _send_notifications(context: SensorEvaluationContext, app: ResourceParam[App]) -> SkipReason:
    """Leave a letter for each channel that wants a new record, then send the letters that are due."""
    try:
        delivery = load_notify(app.settings)
    except SettingsError as error:
        context.log.error(app.redact(str(error)))
        return SkipReason(app.redact(str(error)))
    if delivery is None:
        forget(app.store)
        return SkipReason("there is no notify.yaml, so nobody is sent anything")
    seen, marks = _read_cursor(context.cursor)
    ticks, marks = run_parts(_parts(app, delivery, seen), marks, app.now())
    looked: Tick[tuple[str, int]] = ticks[LETTERS]
    context.update_cursor(json.dumps({"seen": dict(looked.done), "marks": marks}))
    for tick in ticks.values():
        for problem in tick.problems:
            context.log.warning(app.redact(problem))
    words = replace(ticks[SEND], problems=looked.problems, waiting=ticks[SEND].problems)
    return SkipReason(app.redact(skip_reason(words, idle="nothing is to be sent")))


def definitions(site: Site) -> list[SensorDefinition]:
    """Return the sensor of this module."""
    return [send_notifications(site)]


def _parts(app: App, delivery: Delivery, seen: Mapping[str, int]) -> tuple[TickPart, ...]:
    now = app.now()
    begun = begin(app.store, now, file_at=_written_at(app.settings) or now)
    follower = Notify(
        store=app.store,
        channels=delivery.channels,
        since=begun.at,
        now=now,
        links_of=_links_of(
            find_board_url(app.settings), find_ui_url(app.settings), app.settings.prefix
        ),
        clean=partial(redact, secrets=(*app.settings.secrets, *delivery.addresses)),
    )
    outbox = Outbox(
        store=app.store,
        delivery=delivery,
        senders=_senders(delivery, app.settings.secrets),
        find_mutes=app.tracks.find_mutes,
    )

    def leave(after: str | None) -> Tick[tuple[str, int]]:
        time_slice = TimeSlice(after=after, at_once=AT_ONCE_MAX)
        tick = leave_letters(
            app.tracks, app.ledger, follower, since=begun.since, seen=seen, time_slice=time_slice
        )
        if tick.cut_at is None and not tick.problems:
            remember(app.store, begun, now)
        return tick

    def send(after: str | None) -> Tick[str]:
        return outbox.send_due(now, after=after)

    return (TickPart(name=LETTERS, work=leave), TickPart(name=SEND, work=send))


def _written_at(settings: Settings) -> datetime | None:
    path = find_notify_file(settings)
    with suppress(OSError):  # it was taken away this moment
        return None if path is None else datetime.fromtimestamp(path.stat().st_mtime, UTC)
    return None


def _links_of(board_url: str, ui_url: str, prefix: names.Prefix) -> LinksOf:
    def links(state: RunState, attempt_id: int) -> tuple[str, ...]:
        board = f"{board_url}/runs/{state.run_id}" if board_url else ""
        attempt = state.attempt(attempt_id) if ui_url else None
        if attempt is None:
            return tuple(filter(None, (board,)))
        dagster = attempt_address(state.run_id, attempt, ui_url, prefix)
        return tuple(filter(None, (board, dagster)))

    return links


def _read_cursor(text: str | None) -> tuple[Mapping[str, int], str | None]:
    """Return how far each track was looked at, and where the parts were cut."""
    try:
        value = parse_json(text or "{}")
        seen = {str(track): int(seq) for track, seq in value.get("seen", {}).items()}
        return seen, value.get("marks")
    except (ValueError, TypeError, AttributeError, RecursionError):
        return {}, None

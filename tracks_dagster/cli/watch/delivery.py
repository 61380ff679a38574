"""`tracks alerts test` and `tracks alerts retry`: do alerts reach people, and those that did not."""

from __future__ import annotations

from collections.abc import Iterator

import click

from tracks_dagster.cli import BAD_NEWS
from tracks_dagster.cli.common import as_json, open_app, print_json
from tracks_dagster.health.delivery import Channel, Delivery, Letter
from tracks_dagster.health.effects.notify import (
    NO_LETTERS,
    Letters,
    Outbox,
    read_letters,
    revive,
)
from tracks_dagster.health.messages import Event, Message
from tracks_dagster.reading import open_store_to_read
from tracks_dagster.settings import Settings, load_notify
from tracks_dagster.track.errors import InvalidInput, NothingYet, SettingsError
from tracks_dagster.track.records import Json
from tracks_dagster.track.text import units
from tracks_dagster.track.text.nearest import instead
from tracks_dagster.wiring import new_uid, utc_now

SHOWN_MAX = 10


@click.command("test")
@click.option("--to", "name", metavar="NAME", help="Only to this entry; default: to each.")
@as_json
@click.pass_context
def test_command(ctx: click.Context, name: str | None, as_json: bool) -> None:
    """Send a test message to the entries of notify.yaml.

    Nothing is recorded, and mutes do not count. Exit code 1 when one was not taken.
    """
    from tracks_dagster.health.effects.senders import Senders  # the list of alerts needs none

    settings = Settings.from_environment()
    delivery = _delivery(settings)
    channels = _channels(delivery, name)
    sending, message = Senders(delivery, settings.secrets), _test_message()
    problems = {each.name: sending.send(each, message) for each in channels}
    if as_json:
        print_json([{"to": to, "problem": problem} for to, problem in problems.items()])
    else:
        for to, problem in problems.items():
            click.echo(f"{to}: sent" if problem is None else f"{to}: not sent. {problem}")
    ctx.exit(BAD_NEWS if any(problems.values()) else 0)


@click.command("retry")
@click.option("--to", "name", metavar="NAME", help="Only those to this entry of notify.yaml.")
@as_json
@click.pass_context
def retry_command(ctx: click.Context, name: str | None, as_json: bool) -> None:
    """Send again the messages that reached nobody.

    What fails now is tried again by itself, as a new message is. Exit code 1 when one fails.
    """
    from tracks_dagster.health.effects.senders import Senders

    app = open_app()
    delivery = _delivery(app.settings)
    if name is not None:
        _channels(delivery, name)
    count = revive(app.store, app.now(), channel=name)
    outbox = Outbox(
        store=app.store,
        delivery=delivery,
        senders=Senders(delivery, app.settings.secrets),
        find_mutes=app.tracks.find_mutes,
    )
    tick = outbox.send_due(app.now())
    if as_json:
        print_json({"retried": count, "done": list(tick.decided), "problems": list(tick.problems)})
    else:
        click.echo(f"{units.counted(count, 'message')} had reached nobody.")
        for line in (*tick.decided, *tick.problems):
            click.echo(line)
    ctx.exit(BAD_NEWS if tick.problems else 0)


def find_letters() -> Letters:
    """Return the messages that reached nobody; none where nothing was recorded yet."""
    try:
        return read_letters(open_store_to_read(Settings.from_environment()))
    except NothingYet:
        return NO_LETTERS


def describe_delivery(letters: Letters, *, has_alerts: bool) -> Iterator[str]:
    """Yield lines on why alerts reach nobody, and on those that did not; none where all is well."""
    try:
        delivery = load_notify(Settings.from_environment())
        if has_alerts and (delivery is None or not delivery.channels):
            yield "Nobody is sent alerts: there is no notify.yaml (docs/health.md)."
    except SettingsError as error:
        yield f"Nobody is sent alerts. {error}"
    if letters.dead:
        what = units.counted(letters.dead_count, "message")
        yield f"{what} reached nobody; `tracks alerts retry` sends again:"
        yield from (f"  {_line(each)}" for each in letters.dead[:SHOWN_MAX])
    if letters.failing:
        yield f"{units.counted(len(letters.failing), 'message')} failed and will be tried again:"
        yield from (f"  {_line(each)}" for each in letters.failing[:SHOWN_MAX])


def letters_json(letters: Letters) -> list[dict[str, Json]]:
    """Return the messages that reached nobody, for programs: those that are not tried again first."""
    return [
        {
            "to": each.channel,
            "key": each.message.key,
            "title": each.message.title,
            "is_tried_again": each in letters.failing,
            "tries": each.tries,
            "problem": each.problem,
        }
        for each in (*letters.dead, *letters.failing)
    ]


def _line(letter: Letter) -> str:
    return (
        f"{letter.message.title} → {letter.channel}, "
        f"tried {units.counted(letter.tries, 'time')}: {letter.problem}"
    )


def _delivery(settings: Settings) -> Delivery:
    """Return who is told of alerts; raises SettingsError for a wrong file, InvalidInput without one."""
    delivery = load_notify(settings)
    if delivery is None or not delivery.channels:
        place = settings.notify_file or settings.home / "notify.yaml"
        raise InvalidInput(
            "Nobody is told of alerts: there is no entry in a notify file. Write for example "
            f"`- {{name: oncall, to: 'https://…'}}` to {place}; docs/health.md has the rest."
        )
    return delivery


def _channels(delivery: Delivery, name: str | None) -> tuple[Channel, ...]:
    """Return the channel of that name, or all; raises InvalidInput."""
    if name is None:
        return delivery.channels
    channel = delivery.channel(name)
    if channel is None:
        known = [each.name for each in delivery.channels]
        listed = f"there are: {', '.join(known)}."
        raise InvalidInput(f"There is no entry {name!r}; {instead(name, known, listed)}")
    return (channel,)


def _test_message() -> Message:
    return Message(
        key=f"test/{new_uid()}",
        event=Event.TEST,
        at=utc_now(),
        sentence="This is a test: whoever reads it is told of alerts. Nothing is wrong.",
        command="tracks alerts",
    )

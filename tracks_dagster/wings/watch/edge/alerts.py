"""`tracks alerts`: what is wrong now, what was, what nobody is to be sent, and what reached nobody."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

import click

from tracks_dagster.cli import BAD_NEWS
from tracks_dagster.cli.common import (
    WholeGroup,
    as_json,
    deciding_options,
    open_app,
    print_answer,
    print_json,
    print_table,
    seq_of,
)
from tracks_dagster.reading import open_ledger_to_read, open_store_to_read, open_tracks_to_read
from tracks_dagster.review.lights import Colour
from tracks_dagster.settings import Settings
from tracks_dagster.track.bodies import ANY_RULE
from tracks_dagster.track.body_json import to_json
from tracks_dagster.track.errors import InvalidInput, NothingYet, SettingsError
from tracks_dagster.track.names import check_run_id
from tracks_dagster.track.records import Json
from tracks_dagster.track.text import units
from tracks_dagster.track.text.nearest import instead
from tracks_dagster.track.text.safe_text import check_words
from tracks_dagster.wings.watch.edge.notify_settings import load_notify
from tracks_dagster.wings.watch.health.effects.listing import (
    ALERTS_MAX,
    AlertLine,
    AlertList,
    describe_mute,
    read_alerts,
)
from tracks_dagster.wings.watch.health.effects.muting import check_rule, mute, unmute
from tracks_dagster.wings.watch.notifying.delivery import Channel, Delivery, Letter
from tracks_dagster.wings.watch.notifying.effects.notify import (
    NO_LETTERS,
    Letters,
    Outbox,
    read_letters,
    revive,
)
from tracks_dagster.wings.watch.notifying.messages import Event, Message
from tracks_dagster.wiring import new_uid, utc_now


class ListedByDefault(WholeGroup):
    """A group in which no subcommand means `list`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put `list` before arguments that no subcommand begins."""
        if not args or args[0] not in {*self.commands, *ctx.help_option_names}:
            args = ["list", *args]
        return super().parse_args(ctx, args)


@click.group("alerts", cls=ListedByDefault)
def alerts_command() -> None:
    """List open alerts (`tracks alerts`) and those that are over; mute rules; send messages."""


_run_option = click.option("--run", "run_id", metavar="RUN", help="Only alerts of this run.")


@alerts_command.command("list")
@_run_option
@as_json
@click.pass_context
def list_open(ctx: click.Context, run_id: str | None, as_json: bool) -> None:
    """List the open alerts, newest first, with what to do; exit code 1 where one of them is red."""
    found = _read(run_id)
    letters, alerts = find_letters(), found.lines
    if as_json:
        listed = [to_json(each) for each in alerts]
        print_json({"alerts": listed, "undelivered": letters_json(letters)})
    else:
        shown = ["\n".join(_open_lines(each)) for each in alerts] or ["No alert is open."]
        mutes = map(describe_mute, found.mutes)
        for words in (*shown, *mutes, *describe_delivery(letters, has_alerts=bool(alerts))):
            click.echo(words)
    is_bad = found.problems or any(each.severity == Colour.RED for each in alerts)
    ctx.exit(BAD_NEWS if is_bad else 0)


@alerts_command.command("history")
@_run_option
@click.option("--rule", metavar="RULE", help="Only alerts of this rule.")
@click.option(
    "--last", default="7d", show_default=True, help=f"Not before: {units.DURATION_WORDS}."
)
@as_json
def history(run_id: str | None, rule: str | None, last: str, as_json: bool) -> None:
    """List all alerts of a stretch of time, newest first, those that are over too."""
    if rule is not None:
        check_rule(rule)
    found = _read(run_id, rule=rule, since=_since(last), ended=True).lines
    if as_json:
        print_json([to_json(each) for each in found])
    elif not found:
        click.echo("No alert in that time.")
    else:
        titles = ("began", "over", "run", "rule", "", "what")
        print_table(titles, map(_cells, found))
        if len(found) == ALERTS_MAX:
            click.echo(f"There may be more than these {ALERTS_MAX}: give --run, --rule or --last.")


@alerts_command.command("mute")
@click.argument("rule", metavar="RULE")
@click.option("--for", "for_", required=True, metavar="2h", help=f"{units.DURATION_WORDS}.")
@_run_option
@deciding_options
def mute_rule(rule: str, for_: str, run_id: str | None, why: str, by: str, as_json: bool) -> None:
    """Send nobody the alerts of RULE (or of "*": all) for a while; they are recorded anyway."""
    check_words({"why": why, "by": by})
    try:
        for_s = units.duration_s(for_)
    except ValueError as error:
        raise InvalidInput(f"--for: {error}") from error
    app = open_app()
    record = mute(app.tracks, rule, run_id=_checked(run_id), for_s=for_s, by=by, why=why)
    of = f" of {run_id}" if run_id is not None else ""
    sentence = f"Alerts of {_named(rule)}{of} are sent to nobody for {units.duration(for_s)}."
    facts = {"rule": rule, "run_id": run_id, "until": record.body["until_at"], "seq": record.seq}
    print_answer(sentence, facts, as_json=as_json)


@alerts_command.command("unmute")
@click.argument("rule", metavar="RULE")
@_run_option
@deciding_options
def unmute_rule(rule: str, run_id: str | None, why: str, by: str, as_json: bool) -> None:
    """End the mutes of RULE, given with the same --run or without."""
    check_words({"why": why, "by": by})
    app = open_app()
    record = unmute(app.tracks, rule, run_id=_checked(run_id), by=by, why=why)
    of = f" of {run_id}" if run_id is not None else ""
    sentence = f"Alerts of {_named(rule)}{of} are sent again."
    if record is None:
        sentence = f"No mute of {_named(rule)}{of} is in force."
    facts = {"rule": rule, "run_id": run_id, "seq": seq_of(record)}
    print_answer(sentence, facts, as_json=as_json)


@alerts_command.command("test")
@click.option("--to", "name", metavar="NAME", help="Only to this entry; default: to each.")
@as_json
@click.pass_context
def send_test(ctx: click.Context, name: str | None, as_json: bool) -> None:
    """Send a test message to the entries of notify.yaml.

    Nothing is recorded, and mutes do not count. Exit code 1 when one was not taken.
    """
    from tracks_dagster.wings.watch.notifying.effects.senders import (
        Senders,  # the list of alerts needs none
    )

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


@alerts_command.command("retry")
@click.option("--to", "name", metavar="NAME", help="Only those to this entry of notify.yaml.")
@as_json
@click.pass_context
def send_again(ctx: click.Context, name: str | None, as_json: bool) -> None:
    """Send again the messages that reached nobody.

    What fails now is tried again by itself, as a new message is. Exit code 1 when one fails.
    """
    from tracks_dagster.wings.watch.notifying.effects.senders import Senders

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


def _read(
    run_id: str | None,
    *,
    rule: str | None = None,
    since: datetime | None = None,
    ended: bool = False,
) -> AlertList:
    """Return the alerts that were asked for; print on stderr what could not be read."""
    settings = Settings.from_environment()
    tracks = open_tracks_to_read(settings)
    if run_id is not None:
        tracks.run(check_run_id(run_id))
    ledger = open_ledger_to_read(settings)
    found = read_alerts(tracks, ledger, run_id=run_id, rule=rule, since=since, ended=ended)
    for problem in found.problems:
        click.echo(problem, err=True)
    return found


def _open_lines(alert: AlertLine) -> tuple[str, ...]:
    runbook = f"; {alert.runbook}" if alert.runbook is not None else ""
    lines = [
        f"{alert.at[:19]}Z  {alert.run_id or alert.pool}  {alert.severity} {alert.rule}",
        f"  {alert.text}",
        f"  `{alert.command}`{runbook}",
    ]
    if alert.muted is not None:
        lines.append(f"  {alert.muted}")
    return tuple(lines)


def _cells(alert: AlertLine) -> tuple[str, ...]:
    over = f"{alert.cleared_at[:19]}Z" if alert.cleared_at is not None else "open"
    of = alert.run_id or alert.pool or ""
    return (f"{alert.at[:19]}Z", over, of, alert.rule, alert.severity, alert.text)


def _since(last: str) -> datetime:
    try:
        return utc_now() - timedelta(seconds=units.duration_s(last))
    except (ValueError, OverflowError) as error:
        raise InvalidInput(f"--last: {error}") from error


def _checked(run_id: str | None) -> str | None:
    return None if run_id is None else check_run_id(run_id)


def _named(rule: str) -> str:
    return "every rule" if rule == ANY_RULE else rule


# --- what reached nobody ---------------------------------------------------------------------------


SHOWN_MAX = 10


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
    """Return who is sent alerts; raises SettingsError for a wrong file, InvalidInput without one."""
    delivery = load_notify(settings)
    if delivery is None or not delivery.channels:
        place = settings.files.get("TRACKS_NOTIFY", settings.home / "notify.yaml")
        raise InvalidInput(
            "Nobody is sent alerts: there is no entry in a notify file. Write for example "
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
        sentence="This is a test: who reads it is sent alerts. Nothing is wrong.",
        command="tracks alerts",
    )

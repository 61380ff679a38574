"""Who gets a message, and when a failed one is tried again. Pure.

`effects.notify_file` reads who gets what, `effects.notify` keeps what is to be sent, and
`effects.senders` sends it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from fnmatch import fnmatchcase

from tracks_dagster.retry.contracts import Contracts, refused
from tracks_dagster.track.ports import is_part
from tracks_dagster.track.records import Json, format_time, parse_time, sha256_hex
from tracks_dagster.wings.watch.health.rules import RULES
from tracks_dagster.wings.watch.notifying.messages import RED, SEVERITIES, YELLOW, Event, Message

TRIES_MAX = 12  # then it is dead; with the pauses below that takes about five hours
PAUSE_S, PAUSE_S_MAX = 30.0, 3600.0  # after the first failure; doubled after each further one


@dataclass(frozen=True, slots=True, kw_only=True)
class Mail:
    """Where mail is handed over. tls: starttls, ssl or none."""

    server: str
    port: int
    sender: str
    tls: str
    user: str = ""
    password: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Channel:
    """One entry of the file: where messages go, and which. to: a secret, for a URL may hold a token.

    rules: globs, one of which the alert's rule has to match; teams: the same of the run's team, () for
    every run. severity: the least one. also: events besides alerts.
    """

    name: str
    to: str = field(repr=False)
    rules: tuple[str, ...] = ("*",)
    teams: tuple[str, ...] = ()
    severity: str = YELLOW
    also: frozenset[Event] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """All that a notify file says. secrets: texts that no problem, log or record may show."""

    channels: tuple[Channel, ...] = ()
    mail: Mail | None = None
    secrets: tuple[str, ...] = field(default=(), repr=False)

    @property
    def addresses(self) -> tuple[str, ...]:
        """Where messages go: no message shows one whole."""
        return tuple(each.to for each in self.channels)

    def channel(self, name: str) -> Channel | None:
        """Return the channel of that name, or None."""
        return next((each for each in self.channels if each.name == name), None)


def wants(channel: Channel, message: Message) -> bool:
    """Whether a message goes to a channel; a test goes to each."""
    if message.event is Event.TEST:
        return True
    if channel.teams and not any(fnmatchcase(message.team or "", team) for team in channel.teams):
        return False
    if message.event is not Event.ALERT and message.event not in channel.also:
        return False
    if message.rule is None:
        return True
    is_enough = SEVERITIES.index(message.severity or YELLOW) >= SEVERITIES.index(channel.severity)
    return is_enough and any(fnmatchcase(message.rule, rule) for rule in channel.rules)


def check_notified(
    contracts: Contracts, stage: str, team: str, load: Callable[[], Delivery | None]
) -> None:
    """Raise InvalidInput where the policy asks that alerts of a stage reach somebody, and red ones of
    this team would not. load: reads notify.yaml."""
    if stage not in contracts.monitoring.notify_stages:
        return
    delivery = load()
    channels = () if delivery is None else delivery.channels
    red = [rule.name for rule in RULES.values() if rule.severity == RED]
    missed = [name for name in red if not any(_takes_red(each, name, team) for each in channels)]
    if missed:
        raise refused(
            "monitoring.notify_stages",
            f"red alerts ({', '.join(missed)}) of a {stage} run of team {team} would reach nobody. "
            "Name a channel for them in notify.yaml (docs/health.md).",
        )


def _takes_red(channel: Channel, rule: str, team: str) -> bool:
    is_for_team = not channel.teams or any(fnmatchcase(team, each) for each in channel.teams)
    return is_for_team and any(fnmatchcase(rule, each) for each in channel.rules)


@dataclass(frozen=True, slots=True, kw_only=True)
class Letter:
    """A message on its way to one channel.

    tries: how often it failed; next_at: not tried again before; problem: of the last try, without
    secrets.
    """

    channel: str
    message: Message
    next_at: datetime
    tries: int = 0
    problem: str = ""

    @property
    def name(self) -> str:
        """What it is stored as; names sort by the times of their records."""
        at = self.message.at.strftime("%Y%m%dT%H%M%S")
        key = self.message.key.replace("/", "=")
        name = f"{at}={key}"
        return name if is_part(name) else f"{at}={sha256_hex(key.encode())}"

    @property
    def is_dead(self) -> bool:
        """Whether it failed as often as it is tried."""
        return self.tries >= TRIES_MAX

    def is_due(self, now: datetime) -> bool:
        """Whether it is to be tried now; at once after a clock was set back by more than any pause."""
        return now >= self.next_at or self.next_at - now > timedelta(seconds=PAUSE_S_MAX)

    def failed(self, problem: str, now: datetime) -> Letter:
        """Return the letter after one more failure."""
        pause_s = min(PAUSE_S * 2**self.tries, PAUSE_S_MAX)
        return replace(
            self,
            tries=self.tries + 1,
            next_at=now + timedelta(seconds=pause_s),
            problem=problem,
        )

    def to_json(self) -> dict[str, Json]:
        """The letter as it is stored."""
        return {
            "channel": self.channel,
            "message": self.message.to_json(),
            "next_at": format_time(self.next_at),
            "tries": self.tries,
            "problem": self.problem,
        }

    @classmethod
    def from_json(cls, value: Json) -> Letter:
        """Return the letter that `to_json` wrote; raises KeyError, TypeError or ValueError."""
        return cls(
            channel=str(value["channel"]),
            message=Message.from_json(value["message"]),
            next_at=parse_time(value["next_at"]),
            tries=int(value["tries"]),
            problem=str(value["problem"]),
        )

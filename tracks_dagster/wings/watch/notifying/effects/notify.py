"""Sends what records have to say to people: a follower, the letters it leaves, and who sends them.

A record that somebody asked for becomes a letter for each channel that wants it, in the store, before
the cursor moves. A letter is deleted once it was taken. So a process that is killed anywhere loses
none, and may send one again: its key is the same. What fails is tried again, later each time, and at
last laid among the dead letters, which `tracks alerts` shows and `tracks alerts retry` sends again.

    notify/begun.json                   since when there is a notify file: nothing older is sent
    notify/waiting/<channel>/<letter>   to be sent
    notify/dead/<channel>/<letter>      failed too often, or without a channel
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import groupby, islice
from typing import TYPE_CHECKING

from tracks_dagster.ledger.effects.following import StoredCursors, follow
from tracks_dagster.ledger.effects.ticks import (
    AT_ONCE_MAX,
    PART_S_MAX,
    Seconds,
    Tick,
    TimeSlice,
    take_turns,
)
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.ledger.track_states import TrackState
from tracks_dagster.track.json_text import SMALL_BYTES_MAX, parse_json
from tracks_dagster.track.ports import ObjectStore
from tracks_dagster.track.records import Kind, Record, canonical_json, format_time, parse_time
from tracks_dagster.track.states.mute_state import MuteState
from tracks_dagster.track.text.redact import Redact
from tracks_dagster.track.unforeseen import problem_of
from tracks_dagster.wings.watch.notifying.delivery import Channel, Delivery, Letter, wants
from tracks_dagster.wings.watch.notifying.messages import LinksOf, Message, message_of

if TYPE_CHECKING:  # what only reads letters loads no client of mail and HTTP
    from tracks_dagster.wings.watch.notifying.effects.senders import Senders

NAME = "notify"
BEGUN = "notify/begun.json"
WAITING, DEAD = "notify/waiting/", "notify/dead/"
LOOK_BACK = timedelta(days=1)  # a record reaches the ledger this late at most, while a daemon ticks
REMEMBER_EVERY = timedelta(hours=1)
NEW_FILE = timedelta(minutes=10)
CLOCK_BACK_MAX = timedelta(
    minutes=5
)  # of a clock that was set back by more, the beginning is again
LETTERS_MAX = 10_000  # of one list
CHANNEL_LETTERS_MAX = 1000  # of one channel, waiting or dead; of more the oldest go
RESTING_MAX = 20  # letters of one channel that failed and rest, read at a tick before it gives up
SHOWN_MAX = 50

# A track has news where it has one of these. An end may have no words, and so no row of `texts`; where
# it leaves a run to a person, that person's request to stop has some.
_KINDS = (
    Kind.ALERT,
    Kind.ALERT_CLEARED,
    Kind.RETRY_REFUSED,
    Kind.STOP_REQUESTED,
    Kind.PROMOTION_DECIDED,
    Kind.RUN_FINISHED,
    Kind.ATTEMPT_ENDED,
)


# --- since when -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """at: since when there is a notify file; looked_at: of the last whole look."""

    at: datetime
    looked_at: datetime

    @property
    def since(self) -> datetime:
        """From when on records are looked for."""
        return max(self.at, self.looked_at - LOOK_BACK)


def begin(store: ObjectStore, now: datetime, *, file_at: datetime) -> Begun:
    """Return since when messages are sent: where there was no notify file before, from now on.

    file_at: when it was written. A new file is seen at the next tick, and what comes in between is
    sent; of one that was written long ago, and comes from somewhere else, the time means nothing.
    """
    begun = _stored(store)
    if begun is not None and begun.at - now < CLOCK_BACK_MAX:
        return begun
    at = file_at if timedelta(0) <= now - file_at < NEW_FILE else now
    begun = Begun(at=at, looked_at=now)
    _remember(store, begun)
    return begun


def _stored(store: ObjectStore) -> Begun | None:
    """Return what is remembered; None where that is nothing, or nothing of this version."""
    stored = store.get(BEGUN, SMALL_BYTES_MAX)
    try:
        value = {} if stored is None else parse_json(stored)
        return Begun(at=parse_time(value["at"]), looked_at=parse_time(value["looked_at"]))
    except (KeyError, TypeError, ValueError):
        return None


def remember(store: ObjectStore, begun: Begun, now: datetime) -> None:
    """Remember that everything up to `now` was looked at; seldom, for it only bounds the next look."""
    if not timedelta(0) <= now - begun.looked_at < REMEMBER_EVERY:
        _remember(store, replace(begun, looked_at=now))


def forget(store: ObjectStore) -> None:
    """Forget that there was a notify file: the next one begins at its own time."""
    if store.get(BEGUN, 0) is not None:
        store.delete(BEGUN)


def _remember(store: ObjectStore, begun: Begun) -> None:
    value = {"at": format_time(begun.at), "looked_at": format_time(begun.looked_at)}
    store.put(BEGUN, canonical_json(value))


# --- from records to letters ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Notify:
    """The follower: leaves a letter for each channel that wants what a record says.

    since: nothing older is sent; now: when a letter that is left is due.
    """

    store: ObjectStore
    channels: Sequence[Channel]
    since: datetime
    now: datetime
    links_of: LinksOf
    clean: Redact
    name: str = NAME

    def take(self, state: TrackState, new: Sequence[Record]) -> None:
        """Implements `ledger.following.Follower`; a letter that is there already stays as it is."""
        for record in new:
            if record.at < self.since:
                continue
            message = message_of(state, record, links_of=self.links_of, clean=self.clean)
            if message is None:
                continue
            for channel in self.channels:
                if wants(channel, message):
                    letter = Letter(channel=channel.name, message=message, next_at=self.now)
                    self.store.create(_key(WAITING, letter), canonical_json(letter.to_json()))


def leave_letters(
    tracks: Tracks,
    ledger: Ledger,
    follower: Notify,
    *,
    since: datetime,
    seen: Mapping[str, int],
    time_slice: TimeSlice,
) -> Tick[tuple[str, int]]:
    """Hand the follower what is new of the tracks that have had news since then.

    seen: how far each was looked at before, so that most are not asked for again. done: the same now.
    Raises LedgerError.
    """
    cursors = StoredCursors(tracks.store)
    heads = _tracks_with_news(ledger, since)

    def look(track: str) -> Tick[tuple[str, int]]:
        if seen.get(track, -1) < heads[track]:
            follow(tracks, cursors, follower, track)
        return Tick(done=((track, heads[track]),))

    return take_turns(list(heads), look, time_slice)


def _tracks_with_news(ledger: Ledger, since: datetime) -> dict[str, int]:
    """Return the tracks with a record since then that a message is made of, with their last seq."""
    kinds = {f"kind_{place}": kind.value for place, kind in enumerate(_KINDS)}
    rows = ledger.query(
        "select c.track, c.seq from track_cursors c where c.track in "
        "(select t.track from texts t where t.said_at >= :since "
        f"and t.kind in ({', '.join(f':{name}' for name in kinds)})) order by c.track",
        {"since": format_time(since), **kinds},
    )
    return {row["track"]: row["seq"] for row in rows}


# --- from letters to people -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Outbox:
    """Sends the letters that wait. find_mutes: asked only where there are any."""

    store: ObjectStore
    delivery: Delivery
    senders: Senders
    find_mutes: Callable[[], MuteState | None]
    seconds: Seconds = time.monotonic

    def send_due(self, now: datetime, *, after: str | None = None) -> Tick[str]:
        """Send what is due, all channels at once, so that one which hangs holds up no other.

        decided: a line for each letter that was sent, dropped or laid aside; problems: one for each
        channel that did not take one. A channel that fails is left alone until the next tick.
        """
        keys = _by_channel(self.store.list(WAITING))
        if not keys:
            return Tick()
        mutes, unread = self._mutes()

        def work(name: str) -> Tick[str]:
            return self._send_all(name, keys[name], mutes, now)

        tick = take_turns(list(keys), work, TimeSlice(after=after, at_once=AT_ONCE_MAX))
        return replace(tick, problems=(*unread, *tick.problems))

    def _mutes(self) -> tuple[MuteState | None, tuple[str, ...]]:
        """Return what is muted; where that cannot be read, nothing is, and why."""
        try:
            return self.find_mutes(), ()
        except Exception as error:  # noqa: BLE001 - then nothing is muted
            why = problem_of(error)
            return None, (f"mutes are not known, and nothing is muted: {why}",)

    def _send_all(
        self, name: str, keys: Sequence[str], mutes: MuteState | None, now: datetime
    ) -> Tick[str]:
        channel, lines, answers = self.delivery.channel(name), [], False
        surplus = len(keys) - CHANNEL_LETTERS_MAX
        begun_s, resting = self.seconds(), 0
        for place, key in enumerate(keys):
            if resting == RESTING_MAX or self.seconds() - begun_s > PART_S_MAX:
                break
            letter = _read(self.store, key)
            if letter is None:
                continue  # another process was faster, or a newer version left it
            if channel is None or place < surplus:
                why = "no such entry in the notify file" if channel is None else "too many wait"
                lines.append(self._lay_aside(key, replace(letter, problem=letter.problem or why)))
                continue
            if _is_muted(mutes, letter.message, now):
                self.store.delete(key)
                lines.append(f"{name}: {letter.message.key} is muted")
                continue
            # Once one was taken, the others need not wait for the ends of their pauses.
            if not letter.is_due(now) and not answers:
                resting += 1
                continue
            problem = self.senders.send(channel, letter.message)
            if problem is None:
                self.store.delete(key)
                lines.append(f"{name}: {letter.message.key} is sent")
                answers = True
                continue
            failed = letter.failed(problem, now)
            if failed.is_dead:
                lines.append(self._lay_aside(key, failed))
            else:
                self.store.put(key, canonical_json(failed.to_json()))
            return Tick(decided=tuple(lines), problems=(f"{name}: {problem}",))
        return Tick(decided=tuple(lines))

    def _lay_aside(self, key: str, letter: Letter) -> str:
        """Lay a letter among the dead ones, of which the oldest go where they are too many."""
        self.store.put(_key(DEAD, letter), canonical_json(letter.to_json()))
        self.store.delete(key)
        dead = list(islice(self.store.list(f"{DEAD}{letter.channel}/"), LETTERS_MAX))
        for old in dead[:-CHANNEL_LETTERS_MAX]:
            self.store.delete(old)
        return f"{letter.channel}: {letter.message.key} is dead: {letter.problem}"


def _is_muted(mutes: MuteState | None, message: Message, now: datetime) -> bool:
    if mutes is None or message.rule is None:
        return False
    return mutes.mute_of(message.rule, message.run_id, now) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Letters:
    """What was not taken yet. dead: not tried any more; failing: tried again by themselves.

    The newest of each; counts: of all.
    """

    dead: tuple[Letter, ...] = ()
    dead_count: int = 0
    failing: tuple[Letter, ...] = ()
    waiting_count: int = 0


NO_LETTERS = Letters()


def read_letters(store: ObjectStore) -> Letters:
    """Return the letters that did not reach anybody; reads only."""
    dead = list(islice(store.list(DEAD), LETTERS_MAX))
    waiting = list(islice(store.list(WAITING), LETTERS_MAX))
    return Letters(
        dead=tuple(_read_all(store, dead)),
        dead_count=len(dead),
        failing=tuple(each for each in _read_all(store, waiting) if each.tries),
        waiting_count=len(waiting),
    )


def revive(store: ObjectStore, now: datetime, *, channel: str | None = None) -> int:
    """Let letters that failed be due, dead ones too, as if they were new; return how many."""
    count = 0
    for folder in (WAITING, DEAD):
        place = folder if channel is None else f"{folder}{channel}/"
        for key in list(islice(store.list(place), LETTERS_MAX)):
            letter = _read(store, key)
            if letter is None or not (letter.tries or folder == DEAD):
                continue
            again = replace(letter, tries=0, next_at=now)
            store.put(_key(WAITING, again), canonical_json(again.to_json()))
            if folder == DEAD:
                store.delete(key)
            count += 1
    return count


def _key(folder: str, letter: Letter) -> str:
    return f"{folder}{letter.channel}/{letter.name}.json"


def _by_channel(keys: Iterable[str]) -> dict[str, list[str]]:
    """Return the keys of letters by channel, oldest first."""
    listed = sorted(islice(keys, LETTERS_MAX))
    return {name: list(own) for name, own in groupby(listed, lambda key: key.split("/")[2])}


def _read(store: ObjectStore, key: str) -> Letter | None:
    """Return a stored letter; None where it is gone, or no letter of this version."""
    stored = store.get(key, SMALL_BYTES_MAX)
    try:
        return None if stored is None else Letter.from_json(parse_json(stored))
    except (KeyError, TypeError, ValueError):
        return None


def _read_all(store: ObjectStore, keys: Sequence[str]) -> Iterator[Letter]:
    """Yield the newest letters, by the time of their records."""
    newest = sorted(keys, key=lambda key: key.split("/")[-1], reverse=True)[:SHOWN_MAX]
    return (letter for key in newest if (letter := _read(store, key)) is not None)

"""The newest lines of pods' logs: read at once where it counts, cleaned, and bounded."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import cast

import pytest

from tracks_dagster.reasons.evidence import LOG_TAIL_BYTES_MAX
from tracks_dagster.wings.kubernetes.effects import log_tails
from tracks_dagster.wings.kubernetes.effects.log_tails import (
    LAST_READS_MAX,
    LINE_BYTES_MAX,
    LogTails,
)
from tracks_dagster.wings.kubernetes.effects.reads import LOGS, ReadFailed, Reads

WAIT_S_MAX = 60.0


class ScriptedLog:
    """One pod's log; `grow` adds a line, `failing` refuses the next reads with that status.

    said: what the kubelet adds to every answer.
    """

    def __init__(self) -> None:
        self.lines: list[bytes] = []
        self.failing: list[int] = []
        self.said: list[bytes] = []  # by the kubelet, in the place of the log
        self.since: list[str] = []

    def grow(self, text: bytes, *, zone: bytes = b"Z") -> None:
        self.lines.append(b"2026-01-31T02:00:%02d.000000000%s %s" % (len(self.lines), zone, text))

    def log(self, pod: str, container: str, *, lines: int, since: str = "") -> Iterator[bytes]:
        self.since.append(since)
        if self.failing:
            raise ReadFailed("Cannot read", status=self.failing.pop(0))
        yield from (line for line in self.lines[-lines:] if line.decode()[:19] >= since[:19])
        yield from self.said


class Took:
    """What a reader of logs gave; waits until something is as wanted."""

    def __init__(self) -> None:
        self.tails: list[tuple[str, bool]] = []
        self.troubles: list[str] = []
        self._changed = threading.Condition()

    def took(self, uid: str, log: str, *, until: str, whole: bool, at_once: bool) -> None:
        with self._changed:
            self.tails.append((log, whole))
            self._changed.notify_all()

    def troubled(self, about: str, message: str) -> None:
        assert about == LOGS
        with self._changed:
            self.troubles.append(message)
            self._changed.notify_all()

    def wait(self, count: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.tails) >= count, WAIT_S_MAX)

    def wait_for_trouble(self) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: bool(self.troubles), WAIT_S_MAX)


def begin(log: ScriptedLog) -> tuple[LogTails, Took]:
    took = Took()
    logs = LogTails(
        cast(Reads, log),
        took.took,
        took.troubled,
        clean=lambda text: text.replace("hunter2", "***"),
        reads_per_s=1000.0,
        every_s=3600.0,
    )
    logs.follow("u", "pod", "c")
    return logs, took


def test_what_came_since_is_added_and_read_only_once() -> None:
    log = ScriptedLog()
    log.grow(b"one hunter2")
    logs, took = begin(log)
    took.wait(1)
    log.grow(b"two")
    logs.hurry("u", ended=False)
    took.wait(2)
    logs.hurry("u", ended=True)
    took.wait(3)
    logs.close()
    assert took.tails == [("one ***\n", False), ("one ***\ntwo\n", False), ("one ***\ntwo\n", True)]
    assert log.since == ["", "2026-01-31T02:00:00Z", "2026-01-31T02:00:01Z"]


def test_a_tail_is_bounded_and_begins_with_a_whole_line_or_word() -> None:
    log = ScriptedLog()
    for number in range(50):
        log.grow(b"%02d " % number + b"word " * 1000)
    log.grow(b"a" + b" word" * LINE_BYTES_MAX)
    logs, took = begin(log)
    took.wait(1)
    logs.close()
    ((tail, _),) = took.tails
    assert len(tail) <= LOG_TAIL_BYTES_MAX
    assert tail[:2].isdigit()
    assert len(tail.splitlines()[-1]) <= LINE_BYTES_MAX
    assert tail.splitlines()[-1].startswith("word")


def test_a_log_that_is_gone_leaves_what_was_read_before() -> None:
    log = ScriptedLog()
    log.grow(b"one")
    logs, took = begin(log)
    took.wait(1)
    log.failing = [404]
    logs.hurry("u", ended=True)
    took.wait(2)
    logs.close()
    assert took.tails[-1] == ("one\n", True)


GONE = b"unable to retrieve container logs for containerd://0a1b"


def test_words_of_the_kubelet_in_the_place_of_a_log_are_not_a_line_of_it_and_hide_no_later_one() -> (
    None
):
    """A kubelet answers 200 while a container goes, and its words sort after every time."""
    log = ScriptedLog()
    log.grow(b"one")
    log.said = [GONE]
    logs, took = begin(log)
    took.wait(1)
    took.wait_for_trouble()
    log.said = []
    log.grow(b"two")
    logs.hurry("u", ended=True)
    took.wait(2)
    logs.close()
    assert took.tails[-1] == ("one\ntwo\n", True)
    assert GONE.decode() in took.troubles[0]
    assert took.troubles[-1] == ""


def test_a_log_that_the_kubelet_never_finds_again_leaves_what_was_read_and_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(log_tails, "LEAVING_EVERY_S", 0.0)
    log = ScriptedLog()
    log.grow(b"one")
    logs, took = begin(log)
    took.wait(1)
    log.said = [GONE]
    logs.hurry("u", ended=True)
    took.wait(3)
    logs.close()
    assert took.tails[-2:] == [("one\n", False), ("one\n", True)]
    assert GONE.decode() in took.troubles[-1]
    assert len(log.since) == 1 + LAST_READS_MAX


def test_lines_are_put_in_order_by_their_times_not_by_how_they_are_written() -> None:
    log = ScriptedLog()
    log.grow(b"before the clocks went back", zone=b"+02:00")
    logs, took = begin(log)
    took.wait(1)
    log.lines = [b"2026-01-31T01:00:01Z after it"]
    logs.hurry("u", ended=True)
    took.wait(2)
    logs.close()
    assert took.tails[-1] == ("before the clocks went back\nafter it\n", True)
    assert log.since == ["", "2026-01-31T00:00:00Z"]


def test_an_account_that_may_not_read_logs_is_reported_and_no_stop_waits_for_it() -> None:
    log = ScriptedLog()
    log.failing = [403] * 10
    logs, took = begin(log)
    took.wait_for_trouble()
    logs.hurry("u", ended=True)
    logs.close(WAIT_S_MAX)
    assert took.troubles[0] == "Cannot read"
    assert took.tails == []

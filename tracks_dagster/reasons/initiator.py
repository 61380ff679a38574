"""Which rank of a gang failed first, and which ones only followed.

When one rank fails, the others lose their peer a moment later and fail loudly of that; clocks of
nodes, and the polling of what writes ends down, can turn the order around. So a rank that
reports nothing but a lost peer is never blamed while another one failed.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta

from tracks_dagster.reasons.evidence import RankEnd
from tracks_dagster.reasons.kube_json import time_of
from tracks_dagster.reasons.logs import STEPS_WHILE_ENDING, is_raised_by_code, steps_after
from tracks_dagster.track.names import EXIT_FENCED
from tracks_dagster.track.reasons import TerminationReason

SHELL_SIGNAL_BASE = 128  # a shell, and Kubernetes, report signal n as exit code 128 + n
CLOCK_SKEW_S = 30.0  # clocks of nodes differ, and ends are noticed by polling

_LATEST = datetime.max.replace(tzinfo=UTC)

# What gloo, NCCL, the rendezvous and our own trainer say when another rank went away first.
CASCADE = re.compile(
    r"Connection (closed|reset) by (remote )?peer|Broken pipe|ConnectionResetError"
    r"|remote process exited or there was a network error"
    r"|ncclRemoteError|remote process exiting prematurely"
    r"|NCCL communicator was aborted|DistStoreError|Socket Timeout|Timed out waiting .* clients"
    r"|RendezvousConnectionError|failed to send a keep-alive heartbeat|RendezvousClosedError"
    r"|Connection reset by peer|peer (has )?(closed|disconnected|gone)|Broken pipe|EPIPE"
    r"|socketStartConnect|socketPollConnect|recvValue failed|Failed to recv, got 0 bytes"
    r"|NCCL communicator .{0,20}(was )?aborted|ncclCommAbort"
    r"|remote (process|rank) .{0,30}(exit|died|gone)"
    r"|some other rank|Connection closed by localRank|worker .{0,30}lost .{0,20}peer"
    r"|NET/IB : Got completion from peer .* with error 5\b"  # a flush after the peer's own error
    r"|\bRankLost\b|Horovod has been shut down"
    r"|another (rank|task|worker|process) (has )?(failed|died|crashed)",
    re.IGNORECASE,
)


# What a rank says that waited for another one until its time was up.
WAITED = re.compile(
    r"Watchdog caught collective operation timeout|Timeout at NCCL work"
    r"|\b(WorkNCCL|WorkHCCL|WorkGloo)\(.{0,200}timed? ?out|Timed out waiting \d+ms for (send|recv)"
    r"|watchdog got stuck|failed to pass monitoredBarrier",
    re.IGNORECASE,
)


def own(ranks: Iterable[RankEnd]) -> list[RankEnd]:
    """Return the ranks that were not fenced, in the order in which they ended; equal ones as given."""
    fenced = TerminationReason.FENCED
    kept = [r for r in ranks if r.exit_code != EXIT_FENCED and not has_last_word(r, fenced)]
    return sorted(kept, key=_ended_at)


def initiator(ranks: Iterable[RankEnd]) -> RankEnd | None:
    """Return the rank that failed first of itself; one that only followed counts when no other failed.

    Least of all one that lost its peer; then one that the gang's parent ended by SIGTERM; then one that
    waited for the others until its watchdog ended it.
    """
    kept = own(ranks)
    failed = [rank for rank in kept if _has_failed(rank)]
    if not any(rank.has_ended or rank.last_word for rank in kept):
        failed = [rank for rank in kept if rank.log_tail]  # nothing but words is known of any
    return min(failed, key=_followed, default=None)  # of equals the first


def failed_first(ranks: Sequence[RankEnd], world_size: int) -> RankEnd | None:
    """Return the rank that is known to have failed before the others; None where nobody can tell.

    A survivor shows only that another rank went away. One that was killed may be a survivor too, since
    what is left of a gang is killed at its end, as long as the end of another rank is not known.
    """
    first = initiator(ranks)
    if first is None or world_size == 1:
        return first
    ended = sum(rank.has_ended or rank.last_word is not None for rank in ranks)
    is_killed = first.last_word is None and signal_of(first) == signal.SIGKILL
    if _followed(first) or (is_killed and not first.oom_killed and ended < world_size):
        return None
    return first


def _followed(rank: RankEnd) -> int:
    """Return how far a rank only followed another one's end: 0 where it failed of itself."""
    if lost_its_peer(rank):
        return 3
    if rank.last_word is not None:
        return 0
    if signal_of(rank) == signal.SIGTERM:
        return 2
    return int(waited(rank))


def waited(rank: RankEnd) -> bool:
    """Whether a rank waited for another one until its time was up, and raised nothing of its own."""
    raised = any(is_raised_by_code(line) for line in rank.log_tail.splitlines())
    return not raised and WAITED.search(rank.log_tail) is not None


def by_end(ranks: Iterable[RankEnd]) -> list[RankEnd]:
    """Return the ranks that ended first, as far as clocks tell: within CLOCK_SKEW_S of the first."""
    ordered = sorted(ranks, key=_ended_at)
    if not ordered or _ended_at(ordered[0]) == _LATEST:
        return ordered
    until = _ended_at(ordered[0]) + timedelta(seconds=CLOCK_SKEW_S)
    return [rank for rank in ordered if _ended_at(rank) <= until]


def lost_its_peer(rank: RankEnd) -> bool:
    """Whether the rank reports a lost peer; its last word counts before its log."""
    if has_last_word(rank, TerminationReason.RANK_LOST_SECONDARY):
        return True
    if rank.last_word is not None:
        return CASCADE.search(texts(rank)[0]) is not None
    return _lost_at(rank.log_tail.splitlines()) is not None


def _lost_at(lines: list[str]) -> int | None:
    """Return the line that reports a lost peer; None where steps went on after it, or where the rank
    had raised an exception of its own before."""
    steps = steps_after(lines)
    for number, line in enumerate(lines):
        if steps[number] > STEPS_WHILE_ENDING:
            continue
        if CASCADE.search(line):
            return number
        if is_raised_by_code(line):
            return None
    return None


def texts(rank: RankEnd) -> tuple[str, ...]:
    """Return what the rank left in words, the most particular first."""
    word = rank.last_word
    if word is None:
        return (rank.log_tail,)
    summary = f"{word.exception or ''}: {word.message}"
    return (summary, word.traceback_tail, rank.log_tail)


def has_last_word(rank: RankEnd, reason: str) -> bool:
    """Whether the rank's last word is `reason`."""
    return rank.last_word is not None and rank.last_word.reason == reason


def signal_of(rank: RankEnd) -> int | None:
    """Return the signal that ended the rank, also where a shell reported 128 + n."""
    if rank.signal is not None:
        return rank.signal
    code = rank.exit_code
    if code is None or not SHELL_SIGNAL_BASE < code < SHELL_SIGNAL_BASE + signal.NSIG:
        return None
    return code - SHELL_SIGNAL_BASE


def exit_code(rank: RankEnd) -> int | None:
    """Return the exit code; None when it is not known or a signal ended the rank."""
    return None if signal_of(rank) is not None else rank.exit_code


def last_line(rank: RankEnd) -> str:
    """Return the last line of the rank's log, to tell one silent end from another."""
    lines = [line.strip() for line in rank.log_tail.splitlines() if line.strip()]
    return lines[-1] if lines else ""


def _has_failed(rank: RankEnd) -> bool:
    """Whether the rank failed; an adopter knows no exit codes, and there its log has to tell."""
    if rank.has_ended or rank.last_word is not None:
        return exit_code(rank) != 0
    return any(is_raised_by_code(line) for line in rank.log_tail.splitlines())


def _ended_at(rank: RankEnd) -> datetime:
    """Return when the rank failed: its last word's time, else its process's end, else the latest."""
    text = rank.last_word.at if rank.last_word is not None else rank.ended_at
    return time_of(text) or _LATEST

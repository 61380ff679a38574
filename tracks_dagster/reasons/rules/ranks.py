"""What the ranks' typed last words, exit codes and signals show: weights 0, 5, 7 and 8.

Only the rank that failed first counts (`initiator`): the others end of it, or by a signal of the
gang's parent.
"""

from __future__ import annotations

import re
import signal

from tracks_dagster.reasons.evidence import DRAINED, Evidence, LastWord, RankEnd
from tracks_dagster.reasons.initiator import (
    exit_code,
    has_last_word,
    initiator,
    last_line,
    lost_its_peer,
    own,
    signal_of,
)
from tracks_dagster.reasons.rules.cause import (
    CERTAIN,
    LEANING,
    LIKELY,
    MEASURED,
    SEEN,
    SILENT,
    Finding,
)
from tracks_dagster.track.names import EXIT_DRAINED
from tracks_dagster.track.reasons import TerminationReason

_R = TerminationReason

# SIGBUS is none of them: shared memory that is full ends a process by it as well as a crash does.
CRASH_SIGNALS = {
    signal.SIGSEGV: "segmentation fault",
    signal.SIGABRT: "abort",
    signal.SIGILL: "illegal instruction",
    signal.SIGFPE: "arithmetic fault",
}

# Words that name no cause by themselves: the text rules read the exception beside them. A script that
# has all its steps, or stopped early, may still end with a code of its own: then its end is that.
_UNTYPED = frozenset(
    {
        *(_R.COMPLETED, _R.EARLY_STOPPED, _R.FENCED),
        *(_R.RANK_LOST_SECONDARY, _R.CODE_ERROR, _R.UNKNOWN),
    }
)


# What a program logs that did all its steps: the last of so many, or that it is done.
_LAST_OF = re.compile(
    r"\b(?:step|iter|iteration|epoch)s?\W{0,3}(\d{1,9})\s?(?:/|of)\s?(\d{1,9})\b", re.I
)
_DONE = re.compile(
    r"\btraining (is |has |was )?(done|complete(d)?|finished|ended)\b|\b100%\|"
    r"|\bmax_(steps|epochs)=\d+` reached",
    re.IGNORECASE,
)
_LAST_LINES = 20  # in which it is looked for


def completed(evidence: Evidence) -> Finding | None:
    """Every rank says that it has done all its steps, and none says otherwise."""
    ranks = evidence.ranks
    words = [rank.last_word for rank in ranks if rank.last_word is not None]
    if not ranks or len(words) < len(ranks):
        return None
    if any(word.reason not in (_R.COMPLETED, _R.EARLY_STOPPED) for word in words):
        return None
    if any(exit_code(rank) not in (0, None) or signal_of(rank) for rank in ranks):
        return None
    word = next((word for word in words if word.reason == _R.EARLY_STOPPED), words[0])
    reason = TerminationReason(word.reason)
    line = f"every rank's last word is {reason}"
    return _finding(reason, CERTAIN, line, word.message, root=str(reason))


def exited_early(evidence: Evidence) -> Finding | None:
    """A rank ended with exit code 0, and never said that it had all its steps or meant to stop.

    Those that lost it fail after it. One that failed for a cause of its own is the root instead.
    """
    early = [rank for rank in own(evidence.ranks) if exit_code(rank) == 0 and not _is_done(rank)]
    first = initiator(evidence.ranks)
    if not early or not evidence.placed or evidence.last_step is None:
        return None
    if first is not None and not lost_its_peer(first):
        return None
    rank = early[0]
    if rank.last_word is not None:
        how = f"rank {rank.rank}: {rank.last_word.message}"
    else:
        how = (
            f"rank {rank.rank} ended with exit code 0 after step {evidence.last_step}, and left no "
            "last word that it had all its steps: an exit in its own code, or in a library's"
        )
    return _finding(_R.CODE_ERROR, LIKELY, how, root=how.partition(": ")[2] or how)


def typed_last_word(evidence: Evidence) -> Finding | None:
    """The earliest last word that names a cause by its type."""
    words = [rank.last_word for rank in own(evidence.ranks) if rank.last_word is not None]
    typed = ((word, reason) for word in words if (reason := _typed_reason(word)) is not None)
    word, reason = next(typed, (None, None))
    if word is None or reason is None:
        return None
    root = f"{word.exception}: {word.message}" if word.exception else word.message
    return _finding(reason, MEASURED, f"rank {word.rank}'s last word: {reason}", root, root=root)


def crash_signal(evidence: Evidence) -> Finding | None:
    """Native code crashed in the rank that ended first."""
    first = initiator(evidence.ranks)
    number = signal_of(first) if first is not None else None
    if first is None or number not in CRASH_SIGNALS:
        return None
    name = signal.Signals(number).name
    line = f"rank {first.rank} ended first, by {name} ({CRASH_SIGNALS[signal.Signals(number)]})"
    return _finding(_R.NATIVE_CRASH, LIKELY, line, root=f"{name} {last_line(first)}")


def drained(evidence: Evidence) -> Finding | None:
    """The ranks obeyed a SIGTERM whose sender nobody recorded."""
    first = initiator(evidence.ranks)
    if first is None:
        return None
    obeyed = exit_code(first) == EXIT_DRAINED or has_last_word(first, DRAINED)
    if not obeyed and signal_of(first) != signal.SIGTERM:
        return None
    did = "saved and ended" if obeyed else "ended"
    line = f"rank {first.rank} {did} on a SIGTERM; who sent it is not recorded"
    return _finding(_R.UNKNOWN, SEEN, line, root="SIGTERM of unknown sender")


def killed(evidence: Evidence) -> Finding | None:
    """SIGKILL or SIGINT ended the first rank: the first does not show why, the second is a person's."""
    first = initiator(evidence.ranks)
    number = signal_of(first) if first is not None else None
    if first is None:
        return None
    if number == signal.SIGINT:
        line = f"rank {first.rank} ended by SIGINT, as from a terminal"
        return _finding(_R.USER_CANCELLED, LEANING, line, root="SIGINT")
    if number != signal.SIGKILL:
        return None
    line = (
        f"rank {first.rank} ended first, by SIGKILL; alone that is neither an OOM nor a preemption"
    )
    return _finding(_R.UNKNOWN, SEEN, line, root=f"SIGKILL {last_line(first)}")


def all_exited_0(evidence: Evidence) -> Finding | None:
    """Every rank ended with exit code 0 and left no last word.

    That alone is not an end as meant: a script may leave its loop early. An attempt without a step
    trained nothing.
    """
    if not evidence.ranks or any(exit_code(rank) != 0 for rank in evidence.ranks):
        return None
    is_silent = all(rank.last_word is None for rank in evidence.ranks)
    if evidence.run_id and evidence.last_step is None and is_silent:
        what = "ran a step" if evidence.placed else "joined: its code never called join()"
        line = f"every rank ended with exit code 0, and none {what}"
        return _finding(_R.CODE_ERROR, LIKELY, line, root=f"exit code 0, and no rank {what}")
    if any(map(_shows_its_end, evidence.ranks)):
        line = "every rank ended with exit code 0, after its last step"
        return _finding(_R.COMPLETED, LIKELY, line, root="completed")
    line = "every rank ended with exit code 0; whether it had done its last step is not known"
    return _finding(_R.UNKNOWN, SEEN, line, root="exit code 0")


def _shows_its_end(rank: RankEnd) -> bool:
    """Whether the rank's last word, or its last lines, show that it had done its last step."""
    if has_last_word(rank, _R.COMPLETED) or has_last_word(rank, _R.EARLY_STOPPED):
        return True
    lines = rank.log_tail.splitlines()[-_LAST_LINES:]
    of = [match for line in lines for match in _LAST_OF.finditer(line)]
    return any(m[1] == m[2] for m in of[-1:]) or any(map(_DONE.search, lines))


def fenced_only(evidence: Evidence) -> Finding | None:
    """Every rank gave way to another launch, and nothing of that one is known."""
    if not evidence.ranks or own(evidence.ranks):
        return None
    line = "every rank that is known gave way to another launch, of which nothing is known"
    return _finding(_R.UNKNOWN, SILENT, line, root="fenced")


def other_exit(evidence: Evidence) -> Finding | None:
    """The exit code or signal of the rank that ended first; it does not say why."""
    first = initiator(evidence.ranks)
    if first is None:
        return None
    number = signal_of(first)
    code = exit_code(first)
    if number == signal.SIGBUS:
        how = "SIGBUS: full shared memory, a mapped file cut short, or a crash,"
    elif number is not None:
        how = f"signal {number}"
    else:
        how = "an exit code that is not known" if code is None else f"exit code {code}"
    line = f"rank {first.rank} ended first, with {how} and no word of why"
    return _finding(_R.UNKNOWN, SEEN, line, root=f"{how} {last_line(first)}")


def never_started(evidence: Evidence) -> Finding | None:
    """No rank is known and the attempt was never placed."""
    if evidence.ranks or evidence.placed or not evidence.run_id:
        return None
    message = str((evidence.dagster or {}).get("message") or "")
    line = f"no rank ever started{f': {message}' if message else ''}"
    return _finding(_R.UNKNOWN, SEEN, line, root=message or "never started")


def vanished(evidence: Evidence) -> Finding | None:
    """The gang is gone and left neither exit codes nor words."""
    line = "the gang is gone and left neither exit codes nor words"
    if evidence.last_heartbeat_at is not None:
        line += f"; its last heartbeat is of {evidence.last_heartbeat_at}"
    if not evidence.run_id:
        return None  # a case without an end: there was perhaps none
    is_silent = evidence.vanished or not any(r.has_ended or r.last_word for r in evidence.ranks)
    return _finding(_R.UNKNOWN, SILENT, line, root="vanished") if is_silent else None


def _is_done(rank: RankEnd) -> bool:
    """Whether its last word is that it did all it meant to, or obeyed a signal."""
    word = rank.last_word
    return word is not None and word.reason in (_R.COMPLETED, _R.EARLY_STOPPED, DRAINED)


def _typed_reason(word: LastWord) -> TerminationReason | None:
    try:
        reason = TerminationReason(word.reason)
    except ValueError:
        return None  # `drained`, or a newer trainer's word
    return None if reason in _UNTYPED else reason


def _finding(reason: TerminationReason, confidence: float, *lines: str, root: str) -> Finding:
    kept = tuple(line for line in lines if line)
    return Finding(reason=reason, confidence=confidence, lines=kept, root_message=root.strip())

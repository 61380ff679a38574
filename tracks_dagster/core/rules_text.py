"""Words in last words and logs that tell a cause: weight 6.

A table of causes, the particular before the general. It is written for causes, not for one library's
phrasing of the day: a row names what software says when that cause is met.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tracks_dagster.core.evidence import Evidence, RankEnd
from tracks_dagster.core.finding import Finding
from tracks_dagster.core.initiator import (
    CASCADE,
    initiator,
    lost_its_peer,
    own,
    says,
    signal_of,
    texts,
)
from tracks_dagster.core.reasons import TerminationReason

LOG_LINES_MAX = 400  # of each text; warnings of hours before are not why it ended

_R = TerminationReason


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """One row: words that tell `reason`.

    follows: the same words are also heard when another rank went away; they count for less than a
    rank that a signal ended.
    """

    reason: TerminationReason
    words: re.Pattern[str]
    confidence: float
    follows: bool


def _cause(
    reason: TerminationReason, words: str, *, confidence: float = 0.85, follows: bool = False
) -> Cause:
    return Cause(
        reason=reason,
        words=re.compile(words, re.IGNORECASE),
        confidence=confidence,
        follows=follows,
    )


CAUSES: tuple[Cause, ...] = (
    # memory and disk
    _cause(
        _R.GPU_OOM,
        r"CUDA out of memory|HIP out of memory|torch\.(cuda\.)?OutOfMemoryError|^OutOfMemoryError"
        r"|cuda runtime error.*out of memory|cuda run time error.*out of memory"
        r"|CUDA error: out of memory|CUBLAS_STATUS_ALLOC_FAILED|RESOURCE_EXHAUSTED: Out of memory",
    ),
    _cause(
        _R.SHM_EXHAUSTED,
        r"out of shared memory|insufficient shared memory|/dev/shm.*No space left"
        r"|unable to (write to file|open shared memory object|allocate shared memory)"
        r"|No space left on device.*/dev/shm|THAllocator|Unexpected bus error encountered in worker",
    ),
    _cause(
        _R.HOST_OOM,
        r"^MemoryError|\bMemoryError\b|DefaultCPUAllocator: (can't allocate|not enough) memory"
        r"|Cannot allocate memory|std::bad_alloc|Unable to allocate [\d.]+ [KMGT]iB"
        r"|OutOfMemoryError: Task was killed|OOM-killed",
    ),
    _cause(
        _R.DISK_FULL,
        r"No space left on device|Errno 28\b|Errno 122\b|Disk quota exceeded|ENOSPC"
        r"|database or disk is full",
    ),
    # what a checkpoint says when it is read; a write that failed is storage
    _cause(
        _R.CHECKPOINT_CORRUPT,
        r"CheckpointCorrupt|PytorchStreamReader failed|failed finding central directory"
        r"|SafetensorError|invalid header or archive is corrupted|(?<!image )file is truncated"
        r"|unexpected EOF, expected \d+ more bytes|checkpoint .*(is|may be) corrupt",
    ),
    # hardware and fabric
    _cause(
        _R.NETWORK_FABRIC,
        r"NET/IB : Got completion .*with error (?!5\b)\d+|NET/OFI (Request completed with error"
        r"|Couldn't open|Creating new endpoint)|ibv_\w+ failed|ALLOC_PD|infiniband .*Failed"
        r"|No route to host|Network is unreachable|provider efa output empty",
        follows=True,
    ),
    _cause(
        _R.STORAGE_IO,
        r"Input/output error|Errno 5\b|Stale file handle|Transport endpoint is not connected"
        r"|PytorchStreamWriter failed|StoreUnavailable|FSTimeoutError|EndpointConnectionError"
        r"|HTTP response code 5\d\d|(500|502|503|504) Server Error|429 Client Error|SlowDown"
        r"|Server Disconnected|ServerDisconnectedError|Read timed out|Read-only file system",
        confidence=0.75,
        follows=True,
    ),
    # coordination
    _cause(
        _R.HANG,
        r"Watchdog caught collective operation timeout|NCCL watchdog .*timed? ?out"
        r"|Timeout at NCCL work|collective .*timed out",
        confidence=0.6,
        follows=True,
    ),
    _cause(
        _R.DATA_LOADER_STALL,
        r"DataLoader timed out after|stuck on: .*data_queue|DataLoader worker .*(hung|not respond)",
    ),
    # software
    _cause(
        _R.DEPENDENCY_MISMATCH,
        r"ModuleNotFoundError|\bImportError\b|undefined symbol|no kernel image is available"
        r"|driver version is insufficient|version `\w+_[\d.]+' not found|VersionConflict"
        r"|cannot open shared object file|was compiled (with|using) .*(incompatible|different)",
    ),
    _cause(
        _R.PERMISSION_DENIED,
        r"PermissionError|Permission denied|Errno 13\b|AccessDenied|Access Denied|\b403 (Client|Forb)"
        r"|\b401 (Client|Unauth)|InvalidAccessKeyId|SignatureDoesNotMatch|ExpiredToken"
        r"|GatedRepoError|NoCredentialsError",
    ),
    # numerics and data
    _cause(
        _R.NAN_LOSS,
        r"NonFinite|loss is (nan|inf)|loss[=:]\s*(nan|inf)\b|non-finite loss"
        r"|function '\w+' returned nan values",
    ),
    _cause(_R.LOSS_DIVERGENCE, r"Minimum loss scale reached|loss (has )?diverged"),
    _cause(
        _R.BAD_INPUT_DATA,
        r"DataRejected|image file is truncated|cannot identify image file|UnicodeDecodeError"
        r"|UnidentifiedImageError|ArrowInvalid|JSONDecodeError"
        r"|Assertion `t >= 0 && t < n_classes|Target \d+ is out of bounds",
    ),
    _cause(
        _R.CONFIG_ERROR,
        r"(non-existent|unknown|missing|invalid) config[- ]?key|ConfigAttributeError"
        r"|ConfigKeyError|undefined key|is not in struct"
        r"|CheckpointMismatch|InvalidInput|unrecognized arguments|omegaconf\.errors|hydra\.errors"
        r"|MissingMandatoryValue|invalid choice:",
    ),
    _cause(_R.NATIVE_CRASH, r"Segmentation fault|\bSIGSEGV\b(?!.*(or|other))|double free or corr"),
)

# The line that Python ends a traceback with: a qualified name of an exception, then its message.
_EXCEPTION = re.compile(
    r"^\s*(?:\[rank\d+\]:\s*)?((?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception))(?::|\s*$)"
)
# These carry another process's failure, and say nothing of why.
_WRAPPERS = re.compile(r"(ChildFailedError|RayTaskError|JobFailedError|CalledProcessError)$")


def known_cause(evidence: Evidence) -> Finding | None:
    """The cause that the earliest rank with words for one tells."""
    first = initiator(evidence.ranks)
    is_signalled = first is not None and signal_of(first) is not None
    told = [(rank, *found) for rank in own(evidence.ranks) if (found := _told_by(rank)) is not None]
    for rank, cause, line in sorted(told, key=lambda each: each[1].follows):
        if cause.follows and is_signalled and rank is not first:
            continue
        return _finding(cause.reason, cause.confidence, rank, line)
    return None


def any_exception(evidence: Evidence) -> Finding | None:
    """An exception without a row of its own, in the rank that failed first: the code raised it."""
    first = initiator(evidence.ranks)
    if first is None or lost_its_peer(first):
        return None
    if says(first, _R.CODE_ERROR) and first.last_word is not None:
        word = first.last_word
        said = f"{word.exception}: {word.message}"
        return None if _has_row(said) else _finding(_R.CODE_ERROR, 0.85, first, said)
    for text in texts(first):
        raised = [line for line in _lines(text) if _is_raised_by_code(line)]
        if raised:
            return None if _has_row(raised[-1]) else _finding(_R.CODE_ERROR, 0.7, first, raised[-1])
    return None


def cascade_only(evidence: Evidence) -> Finding | None:
    """Ranks that lost their peer, and none that failed of something else."""
    first = initiator(evidence.ranks)
    if first is None or not lost_its_peer(first):
        return None
    lines = [line for text in texts(first) for line in _lines(text) if CASCADE.search(line)]
    return _finding(_R.RANK_LOST_SECONDARY, 0.6, first, lines[0] if lines else "a peer was lost")


def _told_by(rank: RankEnd) -> tuple[Cause, str] | None:
    """Return the most particular cause that a rank's words tell, and the line that does."""
    lines = [line for text in texts(rank) for line in _lines(text)]
    found = ((cause, line) for cause in CAUSES for line in lines if cause.words.search(line))
    return next(found, None)


def _has_row(text: str) -> bool:
    """Whether a row of `CAUSES` speaks for an exception: then it is not just the code's."""
    return any(cause.words.search(line) for cause in CAUSES for line in _lines(text))


def _is_raised_by_code(line: str) -> bool:
    match = _EXCEPTION.match(line)
    return match is not None and not _WRAPPERS.search(match.group(1))


def _lines(text: str) -> list[str]:
    """Return the last lines of a text, stripped: what a process says at its end tells why."""
    return [line.strip() for line in text.splitlines()[-LOG_LINES_MAX:]]


def _finding(reason: TerminationReason, confidence: float, rank: RankEnd, line: str) -> Finding:
    return Finding(
        reason=reason,
        confidence=confidence,
        lines=(f"rank {rank.rank}: {line}",),
        root_message=line,
    )

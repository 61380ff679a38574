"""A rank's last word: why it ends, as far as the rank itself knows, left in the store.

It is one voice among several: `classify` weighs recorded intent, control planes and hardware before
it. Leaving it is an effort with a bound, never a reason to hang.
"""

from __future__ import annotations

import errno
import re
import sys
import threading
import traceback
from datetime import datetime

import torch
import torch.distributed as dist

from tracks_dagster.reasons.evidence import DRAINED, LastWord
from tracks_dagster.reasons.initiator import CASCADE
from tracks_dagster.reasons.logs import cut_to
from tracks_dagster.track.body_json import to_json
from tracks_dagster.track.errors import (
    CheckpointCorrupt,
    CheckpointMismatch,
    CheckpointWriteFailed,
    DataRejected,
    Fenced,
    InvalidInput,
    LossDiverged,
    NonFinite,
    RankLost,
    StoreError,
)
from tracks_dagster.track.names import EXIT_DRAINED, AttemptRef
from tracks_dagster.track.ports import ObjectStore
from tracks_dagster.track.reasons import TerminationReason
from tracks_dagster.track.records import canonical_json, format_time
from tracks_dagster.track.text.redact import Redact, redact

LEAVE_S_MAX = 10.0  # how long a rank tries to leave it
MESSAGE_CHARS_MAX = 2000
TRACEBACK_CHARS_MAX = 8000
_R = TerminationReason
_BY_TEXT: tuple[tuple[str, str], ...] = (
    ("CUDA out of memory", _R.GPU_OOM),
    ("DefaultCPUAllocator: can't allocate memory", _R.HOST_OOM),
    ("DefaultCPUAllocator: not enough memory", _R.HOST_OOM),
    ("Connection closed by peer", _R.RANK_LOST_SECONDARY),  # gloo, when another rank went first
    ("Connection reset by peer", _R.RANK_LOST_SECONDARY),
    ("Broken pipe", _R.RANK_LOST_SECONDARY),
    ("Timed out waiting", _R.RANK_LOST_SECONDARY),
)
# The words of a store for a disk without space, and of the system without a store.
_NO_SPACE = re.compile(
    r"the disk is full|the disk quota is used up|No space left on device|Disk quota exceeded"
)
_BY_ERRNO = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), _R.DISK_FULL),
    **dict.fromkeys((errno.EIO, errno.EROFS, errno.ESTALE), _R.STORAGE_IO),
}


class Drained(SystemExit):
    """SIGTERM was obeyed. Ends the process with the agreed code. how: what became of the step."""

    def __init__(self, how: str = "the step was finished and saved") -> None:
        super().__init__(EXIT_DRAINED)
        self._how = how

    def __str__(self) -> str:
        return f"SIGTERM was obeyed: {self._how}."


class ChildFailed(SystemExit):
    """The command that trained for this rank failed: its exit and what it printed say why.

    No last word is left for it. returncode: as of Popen, -N for signal N.
    """

    def __init__(self, returncode: int) -> None:
        super().__init__(returncode)
        self.returncode = returncode


def is_exit_0(error: SystemExit) -> bool:
    """Whether a script ended itself, and without saying that it failed."""
    return type(error) is SystemExit and error.code in (None, 0)


# The first row that fits decides; a RuntimeError is known by its text, as torch has no type for it.
_BY_TYPE: tuple[tuple[type[BaseException], str], ...] = (
    (Drained, DRAINED),
    (KeyboardInterrupt, DRAINED),
    (Fenced, _R.FENCED),
    (NonFinite, _R.NAN_LOSS),
    (LossDiverged, _R.LOSS_DIVERGENCE),
    (torch.OutOfMemoryError, _R.GPU_OOM),
    (MemoryError, _R.HOST_OOM),
    (CheckpointCorrupt, _R.CHECKPOINT_CORRUPT),
    (CheckpointMismatch, _R.CONFIG_ERROR),
    (CheckpointWriteFailed, _R.CHECKPOINT_WRITE_FAILED),
    (InvalidInput, _R.CONFIG_ERROR),
    (DataRejected, _R.BAD_INPUT_DATA),
    (RankLost, _R.RANK_LOST_SECONDARY),
    (StoreError, _R.STORAGE_IO),
    (ModuleNotFoundError, _R.DEPENDENCY_MISMATCH),
    (PermissionError, _R.PERMISSION_DENIED),
    (dist.DistNetworkError, _R.RANK_LOST_SECONDARY),
    (dist.DistStoreError, _R.RANK_LOST_SECONDARY),
    (dist.DistBackendError, _R.RANK_LOST_SECONDARY),
)


def reason_of(error: BaseException) -> str:
    """Return the reason of an exception: a termination reason's value, or DRAINED."""
    if isinstance(error, CheckpointWriteFailed | StoreError) and _NO_SPACE.search(str(error)):
        return str(_R.DISK_FULL)
    for kind, reason in _BY_TYPE:
        if isinstance(error, kind):
            return str(reason)
    if isinstance(error, OSError) and error.errno in _BY_ERRNO:
        return str(_BY_ERRNO[error.errno])
    if isinstance(error, RuntimeError):
        for text, reason in _BY_TEXT:
            if text in str(error):
                return str(reason)
    return str(_R.CODE_ERROR)


def is_of_lost_rank(error: BaseException) -> bool:
    """Whether it is torch's error for another rank whose process is gone, or that of the ranks' store.

    RankLost is not: rank 0 raises it while it lives, and then ends the save under way itself.
    """
    if isinstance(error, dist.DistNetworkError | dist.DistStoreError):
        return True
    return isinstance(error, RuntimeError) and CASCADE.search(str(error)) is not None


def last_word(
    rank: int, error: BaseException, *, step: int | None, at: datetime, clean: Redact = redact
) -> LastWord:
    """Return the last word of a rank that `error` ends. step: the last one it finished.

    Cleaned of secrets before it is cut: half of one would not be known.
    """
    return LastWord(
        rank=rank,
        reason=reason_of(error),
        exception=f"{type(error).__module__}.{type(error).__qualname__}",
        message=clean(_message(error, step))[:MESSAGE_CHARS_MAX],
        traceback_tail=cut_to(
            clean("".join(traceback.format_exception(error))), TRACEBACK_CHARS_MAX
        ),
        step=step,
        at=format_time(at),
        onset_step=getattr(error, "onset_step", None),
    )


def _message(error: BaseException, step: int | None) -> str:
    if type(error) is not SystemExit:
        return str(error)
    when = "before its first step ended" if step is None else f"after step {step}"
    code = error.code if isinstance(error.code, int) else 1  # as Python ends with a text
    text = "" if isinstance(error.code, int) else f": {error.code}"
    return f"The script ended itself with exit code {code}, {when}{text}"


def leave(store: ObjectStore, key: str, word: LastWord) -> None:
    """Put `word` at `key`, trying for at most 10 seconds; a failure goes to stderr."""

    def put() -> None:
        try:
            store.put(key, canonical_json(to_json(word)))
        except StoreError as error:
            print(f"cannot leave the last word at {key}: {error}", file=sys.stderr, flush=True)

    thread = threading.Thread(target=put, name="last word", daemon=True)
    thread.start()
    thread.join(LEAVE_S_MAX)


def last_word_key(ref: AttemptRef, launch_id: str, rank: int) -> str:
    """Return where a rank that knows its launch leaves its last word."""
    return f"{ref.folder}{launch_id}/exit/rank-{rank}.json"


def early_last_word_key(ref: AttemptRef, uid: str) -> str:
    """Return where a rank leaves it that ends before its launch has an id."""
    return f"{ref.folder}early/{uid}/exit.json"

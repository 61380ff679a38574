"""From an exception to the reason that a rank leaves behind."""

from __future__ import annotations

import errno
from functools import partial

import pytest
import torch
import torch.distributed as dist

from tests.fakes import FakeClock, FakeObjectStore, Fault
from tracks_dagster.reasons.evidence import DRAINED
from tracks_dagster.track import errors
from tracks_dagster.track.names import EXIT_DRAINED
from tracks_dagster.track.reasons import TerminationReason as R
from tracks_dagster.track.text.redact import redact, secrets_of
from tracks_dagster.training.last_word import (
    MESSAGE_CHARS_MAX,
    Drained,
    is_of_lost_rank,
    last_word,
    leave,
    reason_of,
)

HOST_OOM = "[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 TB"


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (Drained(), DRAINED),
        (KeyboardInterrupt(), DRAINED),
        (errors.Fenced("a newer attempt"), R.FENCED),
        (errors.NonFinite("nan"), R.NAN_LOSS),
        (torch.OutOfMemoryError("CUDA out of memory"), R.GPU_OOM),
        (RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"), R.GPU_OOM),
        (MemoryError(), R.HOST_OOM),
        (RuntimeError(HOST_OOM), R.HOST_OOM),
        (errors.CheckpointCorrupt("chunk"), R.CHECKPOINT_CORRUPT),
        (errors.CheckpointMismatch("shape"), R.CONFIG_ERROR),
        (errors.CheckpointWriteFailed("final"), R.CHECKPOINT_WRITE_FAILED),
        (errors.StoreUnavailable("down"), R.STORAGE_IO),
        (errors.StoreUnavailable("Cannot put k: the disk quota is used up; free"), R.DISK_FULL),
        (errors.CheckpointWriteFailed("[Errno 122] Disk quota exceeded: '/h'"), R.DISK_FULL),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), R.DISK_FULL),
        (OSError(errno.ENOSPC, "No space left on device"), R.DISK_FULL),
        (OSError(errno.EIO, "Input/output error"), R.STORAGE_IO),
        (OSError(errno.EROFS, "Read-only file system"), R.STORAGE_IO),
        (OSError(errno.ESTALE, "Stale file handle"), R.STORAGE_IO),
        (OSError(errno.ENOENT, "No such file"), R.CODE_ERROR),
        (errors.InvalidInput("lr"), R.CONFIG_ERROR),
        (errors.DataRejected("rows"), R.BAD_INPUT_DATA),
        (errors.RankLost("rank 0"), R.RANK_LOST_SECONDARY),
        (dist.DistStoreError("wait timeout after 300000ms"), R.RANK_LOST_SECONDARY),
        (dist.DistBackendError("NCCL"), R.RANK_LOST_SECONDARY),
        (RuntimeError("[gloo] Connection closed by peer [127.0.0.1]"), R.RANK_LOST_SECONDARY),
        (RuntimeError("[gloo] writev [127.0.0.1]:4: Broken pipe"), R.RANK_LOST_SECONDARY),
        (ModuleNotFoundError("no module"), R.DEPENDENCY_MISMATCH),
        (PermissionError(13, "denied"), R.PERMISSION_DENIED),
        (errors.TrainingError("not reported"), R.CODE_ERROR),
        (RuntimeError("shape mismatch"), R.CODE_ERROR),
        (ValueError("x"), R.CODE_ERROR),
        (SystemExit(3), R.CODE_ERROR),
    ],
    ids=lambda value: getattr(value, "value", None) or type(value).__name__,
)
def test_an_exception_tells_a_reason(error: BaseException, reason: str) -> None:
    assert reason_of(error) == reason


@pytest.mark.parametrize(
    ("error", "is_lost"),
    [
        (RuntimeError("[gloo] Connection closed by peer [127.0.0.1]"), True),
        (dist.DistBackendError("ncclRemoteError: A call failed possibly due to"), True),
        (dist.DistBackendError("NCCL error: unhandled cuda error"), False),  # this rank's own
        (errors.RankLost("Rank 0 failed with StoreUnavailable: Connection reset by peer"), False),
        (errors.StoreUnavailable("Cannot read: Connection reset by peer"), False),
        (ConnectionResetError("Connection reset by peer"), False),
    ],
)
def test_only_what_torch_says_of_a_peer_tells_that_its_process_is_gone(
    error: Exception, is_lost: bool
) -> None:
    assert is_of_lost_rank(error) is is_lost


def test_drained_is_an_exit_that_except_exception_does_not_swallow() -> None:
    assert Drained().code == EXIT_DRAINED
    assert not isinstance(Drained(), Exception)


def test_a_word_keeps_the_end_of_a_long_traceback(clock: FakeClock) -> None:
    def deeper(depth: int) -> None:
        if depth == 0:
            raise ValueError("the root " + "x" * 9000)
        deeper(depth - 1)

    with pytest.raises(ValueError, match="the root") as caught:
        deeper(200)
    word = last_word(3, caught.value, step=7, at=clock())
    assert (word.rank, word.step, word.at) == (3, 7, "2026-01-31T02:00:00.000000Z")
    assert len(word.traceback_tail) <= 8000
    assert len(word.message) <= 2000


def test_a_secret_is_hidden_before_the_word_is_cut_so_that_no_half_of_it_stays(
    clock: FakeClock,
) -> None:
    secret = "wJalr9XUtnFEMIx7-K7MDENG"
    filler = "x" * (MESSAGE_CHARS_MAX - 10)
    error = RuntimeError(f"{filler} {secret} postgresql://bob:hunter22pw@db")
    clean = partial(redact, secrets=secrets_of({"AWS_SECRET_ACCESS_KEY": secret}))
    word = last_word(0, error, step=1, at=clock(), clean=clean)
    assert "wJalr" not in word.message + word.traceback_tail
    assert "hunter22pw" not in word.message + word.traceback_tail


def test_a_store_that_is_down_does_not_keep_a_rank_from_ending(
    store: FakeObjectStore, clock: FakeClock, capfd: pytest.CaptureFixture[str]
) -> None:
    store.fail("put", 1, Fault.FAILS)
    leave(store, "exit.json", last_word(0, ValueError("x"), step=None, at=clock()))
    assert "cannot leave the last word" in capfd.readouterr().err

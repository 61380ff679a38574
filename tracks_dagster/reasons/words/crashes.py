"""What is said of a process that crashed, could not save or was interrupted: rows of causes."""

from __future__ import annotations

from tracks_dagster.reasons.finding import LIKELY
from tracks_dagster.reasons.words.cause import Cause, Tier, cause
from tracks_dagster.track.reasons import TerminationReason

_R = TerminationReason

CRASHES: tuple[Cause, ...] = (
    cause(
        _R.NATIVE_CRASH,
        "crash",
        r"Segmentation fault|\bSIGSEGV\b(?!.{0,40}\b(or|other)\b)|double free or corr"
        r"|stack smashing",
        r"(munmap_chunk|free|realloc|malloc)\(\): (invalid|corrupt|double|mis)|corrupted (size"
        r"|double|unsorted)",
        r"Fatal Python error: (Segmentation|Aborted|Illegal|Bus|PyThread|\w+_)|heap corruption",
        r"Illegal instruction|\bSIGILL\b|\bSIGFPE\b|Floating point exception|core dumped"
        r"|Access violation",
        r"Memory access fault by GPU|pure virtual method called|segfault at [0-9a-f]+|malloc\.c:\d+: ",
        unless=r"other unexpected errors",
    ),
    cause(
        _R.NATIVE_CRASH,
        "device_access",
        r"illegal memory access|unspecified launch failure|misaligned address"
        r"|an illegal instruction was",
        r"terminate called (after throwing|without)|\bSIGABRT\b",
        r"CU(DNN|BLAS)_STATUS_(EXECUTION_FAILED|INTERNAL_ERROR)|launch timed out and was terminated",
        r"\b(cuda|hip)Error(IllegalAddress|LaunchFailure|MisalignedAddress)\b"
        r"|\bCUDA_ERROR_(ILLEGAL_ADDRESS|LAUNCH_FAILED|ILLEGAL_INSTRUCTION)\b",
        r"\bHSA_STATUS_ERROR_(EXCEPTION|MEMORY_FAULT|MEMORY_APERTURE_VIOLATION|ILLEGAL_INSTRUCTION)\b",
        tier=Tier.SYMPTOM,
    ),
    cause(
        _R.NATIVE_CRASH,
        # Signals 4, 6, 8 and 11 as a shell, a parent and Windows report them; 9 and 15 tell nothing.
        "told_exit_code",
        r"\b(exit|return)(ed|s)?[ _-]?(with )?(non-?zero )?(code|status)( of)?\s{0,3}[:=]?\s{0,3}"
        r"(13[2469]|-(4|6|8|11)|-1073741(819|795))\b|\(0xC0000(005|01D)\)",
        tier=Tier.SYMPTOM,
    ),
    cause(
        _R.CHECKPOINT_WRITE_FAILED,
        "last_save",
        r"CheckpointWriteFailed|(fail\w*|error|could not|unable)\b.{0,30}(sav|writ|commit"
        r"|upload)\w* .{0,40}"
        r"(checkpoint|state[_ ]dict)",
        r"(checkpoint|model) (save|saving|write|upload).{0,30}(fail|error|abort|timed out)",
        tier=Tier.GENERAL,
    ),
    cause(
        _R.CHECKPOINT_WRITE_FAILED,
        "save_given_up",
        r"\bsav(e|ing) failed\b|failed to save\b",
        beside=r"checkpoint|ckpt|state[_ ]dict",
        tier=Tier.GENERAL,
    ),
    cause(
        _R.USER_CANCELLED,
        "interrupted",
        r"\bKeyboardInterrupt\b|Received SIGINT|Process got signal: 2\b",
        r"(interrupted|cancel+ed|killed|stopped|aborted|terminated) by (the )?user|scancel"
        r"|user (requested|cancel)|\bTERM_(FORCE_)?(OWNER|ADMIN)\b"
        r"|(delet|cancel|kill|stopp?)\w* (at (the )?request of|by (the )?(owner|admin\w*|operator))\b"
        r"|Client\.(User|Instance)InitiatedShutdown",
        tier=Tier.SYMPTOM,
        confidence=LIKELY,
    ),
)

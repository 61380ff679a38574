"""Which lines of a log may tell what ended the process, and which it survived. No cause is named here.

A log is full of warnings, retries and libraries that are missing and not needed. A line counts as
survived when it says so itself, when it stands far before the failure, or when code that is simply
wrong raised an exception after it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

FAR_LINES = 60  # between two lines of one failure, at most: a traceback of a deep call

# The line that Python ends a traceback with: a qualified name of an exception, then its message.
EXCEPTION = re.compile(r"^((?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Exit))(?::|\s*$)")

# These carry another process's failure, and say nothing of why.
_WRAPPERS = re.compile(
    r"(ChildFailedError|RayTaskError(\(\w+\))?|JobFailedError|CalledProcessError|RayActorError"
    r"|ActorDiedError|ProcessExitedException|ProcessRaisedException|WorkerCrashedError"
    r"|AlgorithmError|ExecuteUserScriptError|UnexpectedStatusException"
    r"|SignalException|SystemExit)$"
)
# Anything may raise these: the code that is at fault raises a type that says more.
_OPAQUE = re.compile(
    r"^(builtins\.)?(RuntimeError|Exception|OSError|IOError|EnvironmentError|SystemError"
    r"|TimeoutError|BaseException"
    # of a device or a service, whatever its state was
    r"|([\w.]+\.)?(DistBackendError|Rendezvous\w*Error|AcceleratorError|(Xla|Jax)RuntimeError"
    r"|(\w*Internal|Unknown|Unavailable|Aborted|Cancelled|FailedPrecondition)Error"
    r"|(\w*(Connect|Timeout|Timed|Exceeded|Protocol|Transport|Socket|Network|SSL|Http|HTTP|URL|Rpc|RPC"
    r"|Client|Server|Service|Operational|Comm)\w*)(Error|Exception)))$"
)
# Whoever raises these is wrong itself: a line that was printed before tells of something else.
_WRONG_CODE = re.compile(
    r"^(builtins\.)?(AttributeError|TypeError|IndexError|NameError|UnboundLocalError|SyntaxError"
    r"|IndentationError|ZeroDivisionError|NotImplementedError)\b"
)
_WENT_ON = re.compile(
    r"\bretrying\b|will (be )?retr(y|ied)|retry \d+ ?(/|of) ?\d+|attempt \d+ ?(/|of) ?\d+"
    r"|\b(trying|will try) again|try(ing)? again in \d|entering retry|\bsleeping\b"
    r"|\bback(ing)?[- ]?off\b"
    r"|\bignor(ed|ing)\b|falling back",
    re.IGNORECASE,
)
_LEVEL = re.compile(
    r"^\W*(WARN(ING)?|INFO|DEBUG)\b|^\W?[WI](\d{4}\s|\s[\w/.]+:\d)|\b\w*Warning: "
    r"|\bskip(ped|ping)\b",
    re.IGNORECASE,
)
_GAVE_UP = re.compile(
    r"giving up|retries exceeded|retr\w+ .{0,20}(failed|exhausted)", re.IGNORECASE
)
_OF_A_TRACEBACK = re.compile(
    r"^(Traceback \(most recent|File \"|During handling|The above exception)"
)


def is_raised_by_code(line: str) -> bool:
    """Whether a line ends a traceback of an exception that blames the code which raised it."""
    match = EXCEPTION.match(line)
    return match is not None and not (_WRAPPERS.search(match[1]) or _OPAQUE.match(match[1]))


def says_it_went_on(line: str) -> bool:
    """Whether a line says itself that what it tells was tried again or done without."""
    return _WENT_ON.search(line) is not None and _GAVE_UP.search(line) is None


def survived(lines: Sequence[str]) -> list[bool]:
    """Return for each line whether the process survived what it tells."""
    begins = _failure_begins(lines)
    wrong_code = max((n for n, line in enumerate(lines) if _WRONG_CODE.match(line)), default=-1)
    return [
        number < begins - FAR_LINES
        or says_it_went_on(line)
        or (_LEVEL.search(line) is not None and _GAVE_UP.search(line) is None)
        or (number < wrong_code and EXCEPTION.match(line) is None)
        for number, line in enumerate(lines)
    ]


def _failure_begins(lines: Sequence[str]) -> int:
    """Return where the last failure begins: its first traceback, or the end where there is none."""
    begins = len(lines)
    for number in range(len(lines) - 1, -1, -1):
        if begins - number > FAR_LINES:
            break
        if _OF_A_TRACEBACK.match(lines[number]) or EXCEPTION.match(lines[number]):
            begins = number
    return begins

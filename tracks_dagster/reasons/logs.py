"""Lines of a log as rules read them: bounded, readable, and which of them may name a cause."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from tracks_dagster.reasons import hangs
from tracks_dagster.reasons.evidence import Condition, Evidence, LastWord, RankEnd
from tracks_dagster.reasons.shared_logs import by_rank
from tracks_dagster.reasons.wrapped import joined, unwrapped

# --- log lines ------------------------------------------------------------------------------------
#
# Colours, progress bars, timestamps and rank prefixes differ between two logs of one failure. What
# is bounded here keeps the time of every rule bounded: a line of any length becomes one of at most
# `LINE_CHARACTERS`, a log of any length its last `LINES`.

LINES = 400  # of each text; what a process says at its end tells why
RAW_LINES = 20_000  # of each text that are looked at for them
LINE_CHARACTERS = 1000
_HEAD_CHARACTERS = 640  # of a longer line: errors name themselves first, and sum up last
_PREFIXES_MAX = 6  # one collector wraps the next

_TERMINAL = re.compile(
    r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]{0,200}(?:\x07|\x1b\\)|[\x00-\x08\x0b-\x1f]"
)
_PROGRESS = re.compile(r"\d{1,3}%\|[^|]{0,200}\||\b\d+/\d+ \[\d+:\d\d(:\d\d)?<")

# What a runtime prints of itself by the hundred: it tells no cause, and keeps none out of sight.
_NO_DISTANCE = re.compile(r"^frame #\d+: |^#\d+\s+0x[0-9a-f]+ in |^.{0,80}\bNCCL (INFO|TRACE)\b")

# What stands before the words: who said them and when. That it was only a warning stays.
_PREFIX = re.compile(
    r"""\s*(?:
      \[?\d{4}-\d\d-\d\d[T _]\d\d:\d\d(?::\d\d)?(?:[.,]\d+)?(?:Z|\s?[+-]\d\d:?\d\d)?\]?[:,]?   # ISO
    | \[?\d{4}/\d\d/\d\d\s\d\d:\d\d:\d\d(?:\.\d+)?\]?:?
    | (?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)?\s?(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)
      \s+\d{1,2}\s\d\d:\d\d:\d\d(?:\s\d{4}\b(?!-))?  # syslog
    | \[\s*\d+\.\d{3,6}\]                                                                     # dmesg
    | \[?\d\d:\d\d:\d\d(?:[.,]\d+)?\]?
    | [EF]\d{4}\s\d\d:\d\d:\d\d\.\d+\s+\d+\s[\w./-]+:\d+\]                                    # glog
    | \[(?:rank|default|local_rank|worker|gpu)[\s:=_-]{0,2}\d+\]:?                            # torchrun
    | (?:rank|worker|task)[\s:=_-]{0,2}\d+\s?[:|>]
    | \[\d+(?:,\d+)?\](?:<std(?:out|err)>)?:                                                 # mpirun
    | \d{1,5}(?:/\d{1,5})?:(?=\s)                                                             # srun -l
    | \((?:pid|[\w.]+\s(?:pid|ip))=[^)]{0,120}\)                                              # Ray
    | \[?(?:ERROR|CRITICAL|FATAL|stderr|stdout)\]?(?:\s*[:|]|(?<=\])|(?=\s*\|))
    | std(?:out|err)\s[FP](?=\s)                                                              # CRI
    | \|
    )\s*""",
    re.VERBOSE,
)


def lines_of(text: str) -> tuple[str, ...]:
    """Return the last lines of `text`, cleaned; without empty ones, repeats, and frames of native code.

    Of a progress bar only the last drawing is kept.
    """
    kept: list[str] = []  # the newest first
    text = joined(text.replace("\r\n", "\n"))
    for raw in reversed(text.rsplit("\n", RAW_LINES)[-RAW_LINES:]):
        for piece in reversed(raw.rsplit("\r", LINES)[-LINES:]):
            for line in reversed([clean(each) for each in unwrapped(piece)]):
                if not line or _NO_DISTANCE.search(line) or (kept and kept[-1] == line):
                    continue
                is_older_drawing = kept and _PROGRESS.search(line) and _PROGRESS.search(kept[-1])
                if not is_older_drawing:
                    kept.append(line)
        if len(kept) >= LINES:
            break
    return tuple(reversed(kept[:LINES]))


def clean(raw: str) -> str:
    """Return one line without colours and prefixes, cut in its middle when it is too long."""
    if len(raw) > LINE_CHARACTERS:
        raw = f"{raw[:_HEAD_CHARACTERS]} … {raw[-(LINE_CHARACTERS - _HEAD_CHARACTERS - 3) :]}"
    line = _TERMINAL.sub("", raw).strip()
    for _ in range(_PREFIXES_MAX):
        match = _PREFIX.match(line)
        if match is None or match.end() == len(line):
            break
        line = line[match.end() :]
    return line.encode("utf-8", "replace").decode()


# --- readable -------------------------------------------------------------------------------------
#
# Evidence with its texts made readable: what every rule is given.


def readable(evidence: Evidence) -> Evidence:
    """Return `evidence` with every text as its last lines, cleaned and bounded; nothing is judged."""
    return replace(
        evidence,
        ranks=tuple(_rank(piece) for rank in evidence.ranks for piece in by_rank(rank)),
        conditions=tuple(_condition(each) for each in evidence.conditions),
        kernel_lines=tuple(line for text in evidence.kernel_lines for line in lines_of(text)),
    )


def _rank(rank: RankEnd) -> RankEnd:
    word = None if rank.last_word is None else _word(rank.last_word)
    return replace(rank, log_tail=_text(rank.log_tail), last_word=word)


def _word(word: LastWord) -> LastWord:
    return replace(word, message=_text(word.message), traceback_tail=_text(word.traceback_tail))


def _condition(condition: Condition) -> Condition:
    if condition.type == hangs.CONDITION:  # ours: a line for every rank, the first is the finding
        return replace(condition, message=_text(condition.message))
    return replace(condition, message=clean(condition.message.replace("\n", " ")))


def _text(text: str) -> str:
    return "\n".join(lines_of(text))


# --- own frames -----------------------------------------------------------------------------------
#
# Which frames of a traceback are of the user's own code, and which of libraries below it. Pure.
#
# An error that torch raises ends in a dozen frames of torch; the one line that a person can change
# is above them.

_FRAME = re.compile(r'^\s*File "(?P<file>[^"]*)", line \d+')
_LIBRARY = re.compile(r"(^|/)(site-packages|dist-packages|python3\.\d+|tracks_dagster)/|^<")


def newest_own_frame(lines: Sequence[str]) -> range | None:
    """Return which lines are the last frame of the user's own code, or None."""
    starts = [index for index, line in enumerate(lines) if _FRAME.match(line)]
    own = [index for index in starts if _is_own(lines[index])]
    if not own:
        return None
    first = own[-1]
    indent = len(lines[first]) - len(lines[first].lstrip())
    last = first + 1
    while last < len(lines) and len(lines[last]) - len(lines[last].lstrip()) > indent:
        last += 1
    return range(first, last)


def cut_to(text: str, characters_max: int) -> str:
    """Return the end of a traceback, at most that long, with the newest frame of the user's own code
    before it where the end does not hold it."""
    if len(text) <= characters_max:
        return text
    lines = text.splitlines(keepends=True)
    own = newest_own_frame(lines)
    if own is None:
        return text[-characters_max:]
    below = sum(map(len, lines[own.start :]))
    if below <= characters_max:
        return text[-characters_max:]
    frame = "".join(lines[own.start : own.stop])[: characters_max // 2]
    gap = "  …\n"
    return f"{frame}{gap}{text[-(characters_max - len(frame) - len(gap)) :]}"


def _is_own(line: str) -> bool:
    match = _FRAME.match(line)
    return match is not None and _LIBRARY.search(match["file"]) is None


# --- exceptions in logs ---------------------------------------------------------------------------
#
# Which lines of a log may tell what ended the process, and which it survived. No cause is named here.
#
# A log is full of warnings, retries and libraries that are missing and not needed. A line counts as
# survived when it says so itself, when steps went on after it, or when it was only printed before the
# program raised an exception of its own.

# The line that Python ends a traceback with: a qualified name of an exception, then its message.
EXCEPTION = re.compile(r"^((?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Exit))(?::|\s*$)")

# These carry another process's failure, and say nothing of why.
_WRAPPERS = re.compile(
    r"(ChildFailedError|RayTaskError(\(\w+\))?|JobFailedError|CalledProcessError|RayActorError"
    r"|ActorDiedError|ProcessExitedException|ProcessRaisedException|WorkerCrashedError"
    r"|CheckpointException|AlgorithmError|ExecuteUserScriptError|UnexpectedStatusException"
    r"|SignalException|SystemExit)$"
)
# Anything may raise these: the code that is at fault raises a type that says more.
_OPAQUE = re.compile(
    r"^(builtins\.)?(RuntimeError|Exception|OSError|IOError|EnvironmentError|SystemError|BrokenPipeError"
    r"|TimeoutError|BaseException"
    # of a device or a service, whatever its state was
    r"|([\w.]+\.)?(DistBackendError|Rendezvous\w*Error|AcceleratorError|(Xla|Jax)RuntimeError"
    r"|(\w*Internal|Unknown|Unavailable|Aborted|Cancelled|FailedPrecondition)Error"
    r"|(\w*(Connect|Timeout|Timed|Exceeded|Protocol|Transport|Socket|Network|SSL|Http|HTTP|URL|Rpc|RPC"
    r"|Client|Server|Service|Operational|Comm)\w*)(Error|Exception)))$"
)
_RECOVERED = re.compile(
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
_TRACEBACK = "Traceback (most recent"
_CHAINED = ("During handling", "The above exception")


def is_raised_by_code(line: str) -> bool:
    """Whether a line ends a traceback of an exception that blames the code which raised it."""
    match = EXCEPTION.match(line)
    return match is not None and not (_WRAPPERS.search(match[1]) or _OPAQUE.match(match[1]))


def reports_recovery(line: str) -> bool:
    """Whether a line itself reports that the failure was tried again or done without."""
    return _RECOVERED.search(line) is not None and _GAVE_UP.search(line) is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """The last failure that a program raised itself.

    begins: its first line, the number of lines where there is none. blames_code: whether the exception
    blames the code that raised it.
    """

    begins: int
    blames_code: bool = False


def last_failure(lines: Sequence[str]) -> Failure:
    """Return the last failure; what only carries another process's failure is none."""
    for number in range(len(lines) - 1, -1, -1):
        match = EXCEPTION.match(lines[number])
        if match is not None and not _WRAPPERS.search(match[1]):
            begins = _traceback_begins(lines, number)
            return Failure(begins=begins, blames_code=is_raised_by_code(lines[number]))
    return Failure(begins=len(lines))


def _traceback_begins(lines: Sequence[str], exception: int) -> int:
    """Return the first line of the traceback that ends in `exception`, with those it is chained to."""
    begins = number = exception
    while number > 0:
        number -= 1
        if lines[number].startswith(_CHAINED):
            begins = number
            number = max(0, number - 1)  # the exception that it is chained to
        elif EXCEPTION.match(lines[number]):
            break
        elif lines[number].startswith(_TRACEBACK):
            begins = number
    return begins


def survived(lines: Sequence[str]) -> list[bool]:
    """Return for each line whether the process survived what it reports.

    It survived what was only printed once a step was logged after it, and what was raised once more
    steps were than a process logs that is being ended.
    """
    failure, steps = last_failure(lines), steps_after(lines)
    found = []
    for number, line in enumerate(lines):
        is_raised = EXCEPTION.match(line) is not None
        went_on = steps[number] > (STEPS_WHILE_ENDING if is_raised else 0)
        was_printed_before = not is_raised and failure.blames_code and number < failure.begins
        is_warning = _LEVEL.search(line) is not None and _GAVE_UP.search(line) is None
        found.append(went_on or was_printed_before or is_warning or reports_recovery(line))
    return found


# --- restarts -------------------------------------------------------------------------------------
#
# Which lines of a log are of an earlier start: requeued jobs and elastic gangs append to one file.
#
# What ended an earlier start is over, and no evidence of this end.

# What a program, an elastic agent or Slurm says when it starts again.
_STARTED_AGAIN = re.compile(
    r"={2,} ?(attempt|restart) #?\d+\b|will restart worker group|\brestart count\b"
    r"|(?<!be )\bresum(ing|ed)\b (training |run )?(from|at) (the )?(last |latest )?"
    r"(step|epoch|iteration|checkpoint|global_step|/|\w+://)"
    r"|(?<!be )\brestor(ing|ed)\b .{0,60}\bfrom\b .{0,60}(checkpoint|ckpt|step)"
    r"|job \d+ has been allocated resources",
    re.IGNORECASE,
)
_STEPS_DONE = re.compile(
    r"\b(step|iter|iteration|epoch|batch|global_step)s?\b\W{0,3}\d+|\d{1,3}%\|", re.IGNORECASE
)
STEPS_WHILE_ENDING = 2  # a process that is being ended may still tell of a few steps
_NO_STEP = re.compile(r"\bCANCELLED\b|\bStepId=")  # Slurm has steps of its own


def starts_again(lines: Sequence[str]) -> int:
    """Return where the last start begins, 0 where no line reports one."""
    return max((n for n, line in enumerate(lines) if _STARTED_AGAIN.search(line)), default=0)


def works_again(lines: Sequence[str]) -> int:
    """Return where the last start begins that got as far as a step, 0 where none did.

    A start that fails before its first step often fails of what ended the one before.
    """
    steps = [n for n, line in enumerate(lines) if step_of(line) is not None]
    if not steps:
        return 0
    return starts_again(lines[: steps[-1]])


def step_of(line: str) -> str | None:
    """Return the step that a line reports as done, in its own words; None when it reports none."""
    match = _STEPS_DONE.search(line)
    is_other = match is None or EXCEPTION.match(line) or _NO_STEP.search(line)
    return None if match is None or is_other else match[0]


def steps_after(lines: Sequence[str]) -> list[int]:
    """Return for each line how many steps were logged after it that no line before had."""
    seen: set[str] = set()
    is_new = []
    for line in lines:
        step = step_of(line)
        is_new.append(step is not None and step not in seen)
        seen.update([step] if step is not None else [])
    after = list(accumulate(reversed(is_new), initial=0))
    return after[-2::-1]


def has_progress(lines: Sequence[str]) -> bool:
    """Whether lines tell of more steps than a process does that is being ended."""
    return len({step for line in lines if (step := step_of(line))}) > STEPS_WHILE_ENDING


# --- guesses --------------------------------------------------------------------------------------
#
# What a line only supposes: a list of what may have happened names no cause.
#
# A program that does not know why something failed says what it may have been: "this may be due to …",
# "failed, or ran out of memory". A verdict rests on what has happened; so a line ends for the rules
# where it begins to suppose, and words that stand as one of several alternatives are not read.

# From here on a line no longer says what happened, only what it might mean, or what to try.
_GUESS = re.compile(
    r"(there are |some |other )*(potential|possible|common|likely) (root )?(causes?|reasons?)\b"
    r"|\b(this |it )?(may|might|could|can)( also)? be (due to|caused by|because|the result of|related)"
    r"|\b(may|might|could) have (been )?[a-z]"
    r"|\b(possibly|probably|perhaps|maybe|presumably|likely) (due to|because|caused by|out of|oom"
    r"|an? |the |it |ran |running |was |killed|preempted|evicted|related)"
    r"|\bit is possible that\b|\b(usually|often|typically) (means|caused by|due to|indicates|reflects)"
    r"|\bthis (can|may|could|might|usually|often) (happen|occur|mean)"
    r"|\b(e\.g\.|for example|for instance|such as) "
    r"|(^|: )\W{0,9}(if|when|in case) (you|your|the|this|it|there)\b"
    r"|\b(to (fix|avoid|resolve) this|consider|try) (to |setting|reducing|using|increasing|adding)",
    re.IGNORECASE,
)
# An "or" that leads to the words that follow, with no end of a clause between them.
_LED_BY_OR = re.compile(r"\b(or|and/or)\b[^.:;()'\"]{0,60}$", re.IGNORECASE)
_AND_THEN_OR = re.compile(r"^[^.:;()'\"]{0,60}?\bor\b ([^.:;()'\"]{0,60})", re.IGNORECASE)


# Where a supposition ends: with its sentence or its clause.
_CLAUSE_ENDS = re.compile(r"[.;!?](?=\s|$)")
# A list of causes goes on to the end of the line.
_LIST = re.compile(r"(causes?|reasons?)\W{0,3}$|^\W{0,2}(\(?\d[.)]|[-*•]) ", re.IGNORECASE)


def without_guesses(line: str) -> str:
    """Return the parts of a line that report what happened, without what it only supposes."""
    kept = ""
    while (match := _GUESS.search(line)) is not None:
        kept += line[: match.start()]
        line = _after_guess(line, match)
    return kept + line


def _after_guess(line: str, guess: re.Match[str]) -> str:
    """Return what a line reports after a supposition: behind its bracket, else its clause."""
    rest = line[guess.end() :]
    before = line[: guess.start()]
    if before.count("(") > before.count(")") and ")" in rest:
        return rest[rest.index(")") :]
    end = _CLAUSE_ENDS.search(rest)
    if _LIST.search(guess[0]) or end is None or _LIST.search(rest[end.end() :]):
        return ""
    return rest[end.start() :]


def is_led_by_or(line: str, start: int) -> bool:
    """Whether the words that begin at `start` are an alternative to the words before them.

    "the worker failed, or ran out of memory": the memory is only one of the two.
    """
    return _LED_BY_OR.search(line[:start]) is not None


def other_alternative(line: str, end: int) -> str:
    """Return what an "or" puts beside the words that end at `end`; "" when there is none.

    "ran out of memory or was preempted" → "was preempted"
    """
    match = _AND_THEN_OR.match(line[end:])
    return "" if match is None else match[1]

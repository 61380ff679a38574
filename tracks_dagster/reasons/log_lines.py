"""The lines of a log as rules read them: bounded, and without what a terminal or a collector added.

Colours, progress bars, timestamps and rank prefixes differ between two tellings of one failure. What
is bounded here keeps the time of every rule bounded: a line of any length becomes one of at most
`LINE_CHARACTERS`, a log of any length its last `LINES`.
"""

from __future__ import annotations

import re

LINES = 400  # of each text; what a process says at its end tells why
LINE_CHARACTERS = 1000
_HEAD_CHARACTERS = 640  # of a longer line: errors name themselves first, and sum up last
_PREFIXES_MAX = 6  # one collector wraps the next

_TERMINAL = re.compile(
    r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]{0,200}(?:\x07|\x1b\\)|[\x00-\x08\x0b-\x1f]"
)
_PROGRESS = re.compile(r"\d{1,3}%\|[^|]{0,200}\||\b\d+/\d+ \[\d+:\d\d(:\d\d)?<")

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
    | \d{1,5}:(?=\s)                                                                         # srun -l
    | \((?:pid|[\w.]+\s(?:pid|ip))=[^)]{0,120}\)                                              # Ray
    | \[?(?:ERROR|CRITICAL|FATAL|stderr|stdout)\]?(?:\s*[:|]|(?<=\])|(?=\s*\|))
    | std(?:out|err)\s[FP](?=\s)                                                              # CRI
    | \|
    )\s*""",
    re.VERBOSE,
)


def lines_of(text: str) -> tuple[str, ...]:
    """Return the last lines of `text`, cleaned; without empty ones and repeats.

    Of a progress bar only the last drawing is kept.
    """
    kept: list[str] = []
    for raw in text.replace("\r\n", "\n").rsplit("\n", LINES)[-LINES:]:
        for piece in raw.rsplit("\r", LINES)[-LINES:]:
            line = clean(piece)
            if not line or (kept and kept[-1] == line):
                continue
            if kept and _PROGRESS.search(line) and _PROGRESS.search(kept[-1]):
                kept.pop()  # a bar that was drawn again
            kept.append(line)
    return tuple(kept[-LINES:])


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

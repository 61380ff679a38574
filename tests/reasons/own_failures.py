"""Failures in lines written for these tests, in the format of `tracks classify`, with what is right.

failures_of_our_own.jsonl: `accept` names the readings that are right, one where the evidence
establishes the cause. The name of an id says what it is for: `words` alone, `signals` of control
planes, Slurm, kernels and exit codes beside words, `noise` for a cause (or none) that stands after
the warnings of every log.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
WARNINGS = (HERE / "warnings_of_every_log.txt").read_text()


@dataclass(frozen=True)
class Failure:
    """One case. log: its words; more: the rest of its evidence; accept: the right readings."""

    id: str
    log: str
    more: dict[str, Any]
    accept: tuple[str, ...]


def _read(line: str) -> Failure:
    result = json.loads(line)
    evidence = result["evidence"]
    log = evidence.pop("log_tail")
    noisy = result["id"].startswith("noise")
    return Failure(
        id=result["id"],
        log=WARNINGS + log if noisy else log,
        more=evidence,
        accept=tuple(result["accept"]),
    )


FAILURES = tuple(map(_read, (HERE / "failures_of_our_own.jsonl").read_text().splitlines()))
# Words that establish one cause by themselves.
ESTABLISHED = tuple(
    f
    for f in FAILURES
    if f.id.startswith("words") and len(f.accept) == 1 and f.accept != ("unknown",)
)

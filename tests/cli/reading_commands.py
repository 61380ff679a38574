"""Every command that reads, once: what holds of one of them is asked of all of them."""

from __future__ import annotations

from pathlib import Path

from tests.stories import RUN_ID

Arguments = tuple[str, ...]

FROM_LEDGER: tuple[Arguments, ...] = (
    ("status",),
    ("status", RUN_ID),
    ("runs",),
    ("runs", "--where", "state=running", "--sort", "-step"),
    ("triage",),
    ("triage", RUN_ID),
    ("checkpoints", "advise", RUN_ID),
    ("snapshots", "list"),
    ("snapshots", "list", "aws-docs"),
    ("search", "preempted"),
    ("search", "--deep", "traceback"),
    ("goodput",),
    ("slo", "--as-of", "2026-02-01"),
    ("sql", "select run_id, state from training_runs"),
    ("review", "--day", "2026-01-31"),
    ("lineage", f"checkpoint:{RUN_ID}@30"),
    ("blast", f"checkpoint:{RUN_ID}@30"),
    ("pool",),
    ("health",),
    ("health", RUN_ID),
    ("alerts",),
    ("alerts", "history", "--last", "30d"),
)
FROM_TRACK: tuple[Arguments, ...] = (
    ("explain", RUN_ID),
    ("explain", f"{RUN_ID}/a02"),
    ("explain", RUN_ID, "--records"),
    ("explain", f"{RUN_ID}/a02", "--evidence"),
    ("logs", f"{RUN_ID}/a02"),
    ("curves", RUN_ID),
    ("checkpoints", "list", RUN_ID),
    ("diff", f"{RUN_ID}/a01", f"{RUN_ID}/a02"),
    ("diff", f"{RUN_ID}@20", f"{RUN_ID}@40"),
    ("export", RUN_ID, "OUT/run.tar.gz"),
    ("fsck",),
    ("report", RUN_ID, "--out", "OUT/report.html"),
)
WITHOUT_RECORDS: tuple[Arguments, ...] = (("policy",),)
READING = (*FROM_LEDGER, *FROM_TRACK, *WITHOUT_RECORDS)


def with_out(arguments: Arguments, out: Path) -> Arguments:
    """The arguments with the folder that they write into, if they write a file."""
    return tuple(each.replace("OUT", str(out)) for each in arguments)

"""The subcommands of `tracks`, as `tracks --help` lists them: by what somebody is about to do.

Each with what it does, short enough for a line of 80 columns: nothing is imported to show it. Command
`x` is `x_command` in module `x` of its group's folder, or in the module that MODULES names.
"""

from __future__ import annotations

from collections.abc import Mapping

GROUPS: Mapping[str, Mapping[str, str]] = {
    "Start": {
        "up": "Serve the UI and keep the daemon running.",
        "run": "Declare a training run and follow it to its end.",
        "drill": "Play faults, and score what came of each.",
    },
    "Woken at night": {
        "status": "Runs: state, attempt, step, and what they wait for.",
        "triage": "After a reboot or an outage: what lives, what to start first.",
        "explain": "Why an attempt ended, from the record alone.",
        "logs": "What the ranks of an attempt printed.",
        "report": "A run as one HTML file.",
        "search": "Notes, alerts, decisions and messages of failures.",
        "review": "What ended on a day, and what needs a person.",
    },
    "Decide about a run": {
        "retry": "Open the next attempt.",
        "drain": "Save and end the attempt, keep the run; or empty a node.",
        "stop": "Save and end the run for good.",
        "note": "Add a sentence to its track.",
        "eval": "Ask for an eval of a checkpoint.",
        "waive": "Give a required eval up.",
        "promote": "Give a checkpoint an alias.",
    },
    "Checkpoints and data": {
        "checkpoints": "List, save, verify, collect, pin and export checkpoints.",
        "snapshots": "List, quarantine and release snapshots of data.",
        "lineage": "What a thing descends from, and what descends from it.",
        "blast": "What descends from a source and is in use now.",
        "quarantine": "Stop new work from starting from a source.",
        "release": "End the quarantine of a source.",
    },
    "Compare and count": {
        "diff": "Two attempts or two checkpoints, side by side.",
        "goodput": "Where the device hours went.",
        "sql": "One SELECT over the ledger.",
        "export": "A run with all its records, to read elsewhere.",
    },
    "Reasons and retries": {
        "policy": "What is retried: how often, how soon, with which change.",
        "simulate": "Play another retry policy over past failures.",
        "classify": "Why failures of other jobs happened.",
        "reclassify": "Read stored evidence again, or give the reason yourself.",
    },
    "Machines and upkeep": {
        "pool": "Nodes of compute pools; quarantine and release them.",
        "doctor": "What a run needs and this machine or cluster lacks.",
        "fsck": "Check every track, checkpoint, snapshot and the ledger.",
        "reindex": "Rebuild the ledger from the tracks.",
        "completion": "Print the completion script of bash, zsh or fish.",
    },
}
FOLDERS = {
    "Start": "start",
    "Woken at night": "night",
    "Decide about a run": "runs",
    "Checkpoints and data": "sources",
    "Compare and count": "compare",
    "Reasons and retries": "policies",
    "Machines and upkeep": "machines",
}
MODULES = {
    "search": "night.logbook",
    "note": "night.logbook",
    "drain": "runs.stop",
    "eval": "runs.evals",
    "waive": "runs.evals",
    "promote": "runs.evals",
    "blast": "sources.lineage",
    "quarantine": "sources.lineage",
    "release": "sources.lineage",
    "goodput": "compare.ledger",
    "sql": "compare.ledger",
    "reclassify": "policies.classify",
    "reindex": "machines.fsck",
}
SUMMARIES = {name: text for group in GROUPS.values() for name, text in group.items()}


def module_of(name: str) -> str:
    """Return the module of a subcommand."""
    folder = next(FOLDERS[title] for title, group in GROUPS.items() if name in group)
    return f"tracks_dagster.cli.{MODULES.get(name, f'{folder}.{name}')}"

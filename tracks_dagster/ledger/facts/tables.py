"""Which facts are the columns of which table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tracks_dagster.ledger import texts
from tracks_dagster.ledger.facts import attempt, checkpoint, run, sources, study, time
from tracks_dagster.ledger.facts.fact import Fact
from tracks_dagster.track.names import (
    CODES,
    DATASETS,
    HISTORIES,
    MUTES_TRACK,
    POOLS,
    PROJECTS,
    QUARANTINES_TRACK,
    RUNS,
    STUDIES,
)

Tables = Mapping[str, tuple[Fact[Any], ...]]

TABLES: Mapping[str, Tables] = {  # by the kind of track that a row is of
    RUNS: {
        "training_runs": run.RUN,
        "training_attempts": attempt.ATTEMPT,
        "checkpoints": checkpoint.CHECKPOINT,
        "evals": checkpoint.EVAL,
        "promotions": run.PROMOTION,
        "notes": run.NOTE,
        "attempt_nodes": sources.ATTEMPT_NODE,
        "attempt_resumes": sources.ATTEMPT_RESUME,
        "run_facts": time.RUN_TIME,
        "attempt_facts": time.ATTEMPT_TIME,
        "attempt_readings": time.READING,
    },
    DATASETS: {"datasets": sources.DATASET, "snapshots": sources.SNAPSHOT},
    POOLS: {
        "node_strikes": sources.NODE_STRIKE,
        "node_quarantines": sources.NODE_QUARANTINE,
    },
    HISTORIES: {"imported_nodes": sources.IMPORTED_NODE},
    CODES: {"certificates": sources.CERTIFICATE},
    PROJECTS: {"project_versions": sources.PROJECT_VERSION},
    STUDIES: {"studies": study.STUDY, "trials": study.TRIAL},
    QUARANTINES_TRACK: {"source_quarantines": sources.SOURCE_QUARANTINE},
    MUTES_TRACK: {"mutes": run.MUTE},
}
OF_EVERY_TRACK: Tables = {"texts": texts.TEXT}
FACTS: Tables = {
    table: facts for tables in (*TABLES.values(), OF_EVERY_TRACK) for table, facts in tables.items()
}


def key_of(facts: Sequence[Fact[Any]]) -> tuple[str, ...]:
    """Return the columns that tell the rows of a table apart."""
    return tuple(each.column for each in facts if each.is_key)

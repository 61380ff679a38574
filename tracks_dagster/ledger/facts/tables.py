"""Which facts are the columns of which table of the ledger."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tracks_dagster.ledger.facts import attempt, checkpoint, run, sources, text, time
from tracks_dagster.ledger.facts.fact import Fact

FACTS: Mapping[str, Sequence[Fact[Any]]] = {
    "training_runs": run.RUN,
    "training_attempts": attempt.ATTEMPT,
    "checkpoints": checkpoint.CHECKPOINT,
    "evals": checkpoint.EVAL,
    "promotions": run.PROMOTION,
    "notes": run.NOTE,
    "attempt_nodes": sources.ATTEMPT_NODE,
    "attempt_resumes": sources.ATTEMPT_RESUME,
    "datasets": sources.DATASET,
    "snapshots": sources.SNAPSHOT,
    "node_strikes": sources.NODE_STRIKE,
    "node_quarantines": sources.NODE_QUARANTINE,
    "source_quarantines": sources.SOURCE_QUARANTINE,
    "texts": text.TEXT,
    "run_facts": time.RUN_TIME,
    "attempt_facts": time.ATTEMPT_TIME,
    "attempt_readings": time.READING,
}

# Which of them `tracks explain RUN --json` has, and where in it.
EXPLAINED: Mapping[str, str] = {
    "training_runs": "",
    "training_attempts": ", in `attempts`",
    "checkpoints": ", in `checkpoints` of an attempt",
    "evals": ", in `evals` of an attempt",
}

"""Whether a run counts as valid: it has left what the policy asked for when it was declared. Pure.

A run of which nothing was asked is valid. One that still trains is not valid before it has left all.
"""

from __future__ import annotations

from tracks_dagster.track.bodies import AttemptEnded
from tracks_dagster.track.states.evals import final_checkpoint, is_completed
from tracks_dagster.track.states.run_state import RunState

CHECKPOINT = "checkpoint"
WEIGHTS = "weights"
CONFIG = "config"
ENVIRONMENT = "environment"
EVALS = "evals"
LOGS = "logs"
ARTIFACTS = (CHECKPOINT, WEIGHTS, CONFIG, ENVIRONMENT, EVALS, LOGS)


def why_invalid(state: RunState) -> str | None:
    """Return what a valid run would have left, rule by rule; None of a valid one.

    `tracking.required_artifacts: evals, logs missing; monitoring.required_signals: grad_norm missing`
    """
    missing = {
        "tracking.required_artifacts": [
            name for name in state.declared.required_artifacts if not _has(state, name)
        ],
        "monitoring.required_signals": [
            name for name in state.declared.required_signals if name not in _signals(state)
        ],
    }
    words = [f"{rule}: {', '.join(names)} missing" for rule, names in missing.items() if names]
    return "; ".join(words) or None


def _has(state: RunState, artifact: str) -> bool:
    """Whether the run has left it. An artifact that this version does not know is not there."""
    match artifact:
        case "checkpoint":  # one that somebody may resume from
            return bool(state.resumable)
        case "weights":  # of its last step
            return final_checkpoint(state) is not None
        case "config":
            return bool(state.declared.config)
        case "environment":  # of the newest attempt: versions, and the list of packages
            placed = [each.placed for each in state.attempts if each.placed is not None]
            return bool(placed) and bool(placed[-1].environment)
        case "evals":  # each that is required, on the final checkpoint; a waived one is not there
            return _has_evals(state)
        case "logs":  # the stored log of every attempt that began to run
            ended = [each.ended for each in state.attempts if each.ended is not None]
            return bool(ended) and all(map(_has_logs, ended))
    return False


def _has_logs(ended: AttemptEnded) -> bool:
    """An older version stored the last lines of every rank, with the evidence, and nothing else."""
    if ended.logs is None:
        return bool(ended.evidence_key)
    return bool(ended.logs) or not ended.first_line_ran


def _has_evals(state: RunState) -> bool:
    final = final_checkpoint(state)
    done = {
        (each.opened.suite, each.opened.suite_version)
        for each in state.evals
        if is_completed(each) and each.opened.checkpoint == final
    }
    required = {(e.suite, e.suite_version) for e in state.declared.evals if e.is_required}
    return bool(done) and required <= done


def _signals(state: RunState) -> frozenset[str]:
    """Return the metrics that its commits have."""
    return frozenset(name for each in state.checkpoints for name in each.body.metrics)

"""Where each cell of a line of triage can be looked up, beside its verdict's."""

from __future__ import annotations

from tracks_dagster.attempts.pace import Pace
from tracks_dagster.recovery.effects.triage.reading import Commit, RunRead
from tracks_dagster.recovery.signs import Sign
from tracks_dagster.stores.journals import journal_prefix
from tracks_dagster.track.records import format_time
from tracks_dagster.track.track import log_key, run_track

MEMORY_METRIC = "device_memory_bytes"  # what a trainer may report of its own device


def cell_signs(
    read: RunRead, *, step: int, code: str, pace: Pace | None, left_how: str, memory_how: str
) -> tuple[Sign, ...]:
    """Return the evidence for code, commit, progress, metrics, time left and memory."""
    first, journal = log_key(run_track(read.run_id), 0), _journal(read)
    signs = [Sign(cell="code", words=code, source=first)]
    if read.problem is not None:
        signs.append(Sign(cell="verdict", words=read.problem, source=run_track(read.run_id)))
    if read.commit is not None:
        signs += _commit(read.run_id, read.commit)
    signs += _steps(read, step, journal)
    pace_data = {} if pace is None else {"step_s": pace.step_s, "spread_s": pace.spread_s}
    paced = first if pace is None or journal is None else journal
    signs.append(Sign(cell="time left", words=left_how, source=paced, data=pace_data))
    newest = read.journal.steps[-1:]
    is_measured = journal is not None and any(MEMORY_METRIC in line.metrics for line in newest)
    memory = journal if journal is not None and is_measured else first
    return (*signs, Sign(cell="memory", words=memory_how, source=memory))


def _journal(read: RunRead) -> str | None:
    """Return the prefix of the journal that tells the newest step."""
    if read.paced is None or read.paced_launch is None:
        return None
    return journal_prefix(read.run_id, read.paced, read.paced_launch, 0)


def _commit(run_id: str, commit: Commit) -> tuple[Sign, Sign]:
    source = f"the ledger, checkpoints, {run_id}, {commit.manifest_sha256[:12]}"
    if commit.seq is not None:
        source = log_key(run_track(run_id), commit.seq)
    words = f"step {commit.step} of attempt {commit.attempt_id}, committed {format_time(commit.at)}"
    epoch = f"{commit.epoch} at the commit of step {commit.step}"
    return Sign(cell="commit", words=words, source=source), Sign(
        cell="epoch", words=epoch, source=source
    )


def _steps(read: RunRead, step: int, journal: str | None) -> list[Sign]:
    """Return what tells the newest step, and the metrics that were reported with it."""
    if journal is None:
        words = f"step {step}, by its records: no step stands in a journal"
        return [Sign(cell="progress", words=words, source=run_track(read.run_id))]
    newest = read.journal.steps[-1]
    words = f"step {newest.step} was finished {newest.at}"
    if step > newest.step:
        words = f"{words}; records and beats tell of step {step}"
    elif step < newest.step:
        words = (
            f"{words} by attempt {read.paced}, and lost with it: what lives now is at step {step}"
        )
    reported = f"as reported in step {newest.step}"
    return [
        Sign(cell="progress", words=words, source=journal, data={"step": step}),
        Sign(cell="metrics", words=reported, source=journal),
    ]

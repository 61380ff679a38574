"""The buckets of a run's seconds in words."""

from __future__ import annotations

BUCKET_WORDS = {
    "queue": "from the attempt's opening until its first process started",
    "startup": "from the first process until all ranks had come together",
    "restore": "reading the checkpoint, or preparing to begin afresh",
    "step_kept": "steps that the run still rests on",
    "step_lost": "steps that no checkpoint holds, or that a later attempt ran again",
    "checkpoint_blocking": "training waited while a checkpoint was taken",
    "data_wait": "training waited for samples",
    "inline_eval": "evaluating between two steps",
    "detection": "nothing worked any more, and nobody had noticed or recorded it yet",
    "idle": "between attempts, and while evals ran: backoff, or a person's turn",
    "unknown": "the record does not tell",
}


def bucket_label(bucket: str) -> str:
    """Return a bucket's name as people write it."""
    return bucket.replace("_", " ")

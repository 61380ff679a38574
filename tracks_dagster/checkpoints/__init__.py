"""The public reference to a checkpoint, and the rule that picks the one to resume from."""

from tracks_dagster.track.states.checkpoints import CheckpointRef, resume_target

__all__ = ["CheckpointRef", "resume_target"]

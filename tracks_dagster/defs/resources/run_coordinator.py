"""Dagster's queue of runs, into which a run comes without what became of another one.

"Re-execute" copies all tags, those with the verdict on the parent's attempt among them: the lists of
failures and interruptions would count a run that has yet to begin. `dagster.yaml` names this class.
"""

from dagster import DagsterRun
from dagster._core.run_coordinator import QueuedRunCoordinator, SubmitRunContext

from tracks_dagster.track.names import emptied


class TracksRunCoordinator(QueuedRunCoordinator):
    """Implements Dagster's run coordinator."""

    def submit_run(self, context: SubmitRunContext) -> DagsterRun:
        """Put the run into the queue."""
        if copied := emptied(context.dagster_run.tags):
            self._instance.add_run_tags(context.dagster_run.run_id, copied)
        return super().submit_run(context)

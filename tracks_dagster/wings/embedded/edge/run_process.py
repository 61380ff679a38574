"""One Dagster run in a process of its own, and a witness beside it that notices when that one dies.

    python -m tracks_dagster.wings.embedded.edge.run_process ARGS     # of `dagster api execute_run`

The witness is the parent. It does nothing while the run goes on; when the run's process is killed, it
writes the failure into the run at once, where Dagster's monitoring would need until its next look.
Where both are killed, the monitoring finds out.
"""

import os
import signal
import sys

DEFINITIONS = "tracks_dagster.definitions"
# What it imports before it does anything: two seconds of processor.
IMPORTED = (DEFINITIONS, "dagster._cli.api", "tracks_dagster.wings.embedded.edge.sqlite_storage")


def main(arguments: str) -> None:
    """Execute the run in a child; record its failure where the child dies before it could."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in before:  # for the run alone: it ends, and the witness sees that it did
        signal.signal(number, signal.SIG_IGN)
    worker = os.fork()
    if worker == 0:
        for number, handler in before.items():
            signal.signal(number, handler)
        execute(arguments)
        return
    _, status = os.waitpid(worker, 0)
    code = os.waitstatus_to_exitcode(status)
    if code != 0:
        record_death(arguments, worker, code)


def execute(arguments: str) -> None:
    """Execute the run as Dagster's own command does."""
    from dagster._cli.api import api_cli

    api_cli(["execute_run", arguments], standalone_mode=False)


def record_death(arguments: str, pid: int, code: int) -> None:
    """Write into the run that its process died, unless it has ended; code: -N for signal N."""
    from dagster import DagsterInstance
    from dagster._grpc.types import ExecuteRunArgs
    from dagster._serdes import deserialize_value
    from dagster._utils import get_run_crash_explanation

    given = deserialize_value(arguments, ExecuteRunArgs)
    reference = given.instance_ref
    with DagsterInstance.from_ref(reference) if reference else DagsterInstance.get() as instance:
        run = instance.get_run_by_id(given.run_id)
        if run is None or run.is_finished:
            return
        prefix = f"Run execution process for {run.run_id} (pid {pid})"
        instance.report_engine_event(get_run_crash_explanation(prefix=prefix, exit_code=code), run)
        instance.report_run_failed(run)


if __name__ == "__main__":
    main(sys.argv[1])

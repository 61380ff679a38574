"""A valid declaration of a training run for generated tracks."""

from __future__ import annotations

from tracks_dagster.track.bodies import (
    CheckpointCadence,
    CodeVersion,
    ComputeRequest,
    RunDeclared,
    SnapshotRef,
)


def declared(run_id: str) -> RunDeclared:
    """Return the body of a small run's `run_declared`."""
    return RunDeclared(
        run_id=run_id,
        model_family="gpt",
        config={"steps": 40, "seed": 7, "micro_batch": 4, "accumulation": 6, "global_batch": 24},
        snapshot=SnapshotRef(dataset="aws-docs", snapshot_id="0" * 64),
        code=CodeVersion(git_commit=None, branch=None, dirty=None, package_version="0"),
        owner="bench",
        team="bench",
        stage="smoke",
        intent="Be measured.",
        compute=ComputeRequest(),
        cadence=CheckpointCadence(every_steps=10),
        estimated_device_s=60.0,
    )

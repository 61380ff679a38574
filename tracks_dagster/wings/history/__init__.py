"""Imports what other systems ran, so that accounts, explanations and simulations cover it too."""

from tracks_dagster.wing import Command, Wing

WING = Wing(
    commands={
        "import": Command(
            module="edge.imports",
            summary="Runs of Slurm, MLflow, W&B and others, from their records.",
            group="Reasons and retries",
            after="classify",
        )
    }
)

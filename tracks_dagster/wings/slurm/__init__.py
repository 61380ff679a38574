"""Gangs as jobs of a Slurm cluster."""

from tracks_dagster.wing import Launcher, Wing

WING = Wing(
    launchers={
        "slurm": Launcher(
            module="edge.launching",
            file="TRACKS_SLURM",
            asks="the controller of Slurm",
            drained="edge.launching",
            lets_go=True,
        )
    },
    settings={"TRACKS_SLURM": "slurm.yaml"},
)

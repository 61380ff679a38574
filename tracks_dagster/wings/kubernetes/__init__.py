"""Gangs, and Dagster's runs, on a Kubernetes cluster."""

from tracks_dagster.wing import Command, Launcher, Wing

WING = Wing(
    commands={
        "doctor": Command(
            module="edge.doctor",
            summary="What a run needs and this machine or cluster lacks.",
            group="Machines and upkeep",
            after="pool",
        )
    },
    launchers={
        "kubernetes": Launcher(
            module="edge.launching",
            file="TRACKS_KUBERNETES",
            runs="Start every Dagster run as a pod.",
            asks="the cluster's API server",
        )
    },
    settings={"TRACKS_KUBERNETES": "kubernetes.yaml"},
    extra="kubernetes",
    packages=("dagster_k8s", "kubernetes"),
)

"""Gangs, and Dagster's runs, on a Kubernetes cluster."""

from tracks_dagster.wing import Launcher, Wing

WING = Wing(
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

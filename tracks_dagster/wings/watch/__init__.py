"""Watches runs that train: lights, alerts, messages, the board, trackers."""

from tracks_dagster.wing import Wing

WING = Wing(settings={"TRACKS_NOTIFY": "notify.yaml", "TRACKS_TRACKERS": "trackers.yaml"})

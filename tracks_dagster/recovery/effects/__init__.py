"""Triage and fsck: reads of tracks, machines and launchers."""

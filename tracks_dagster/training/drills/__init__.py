"""Faults played on purpose inside a gang."""

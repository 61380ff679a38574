"""A policy as a person's file has it."""

from __future__ import annotations

from textwrap import dedent

from tracks_dagster.retry.default_policy import DEFAULT_POLICY
from tracks_dagster.retry.effects.policy_file import read_policy
from tracks_dagster.retry.policy import RetryPolicy
from tracks_dagster.track.effects.settings_file import parse_settings


def policy_of(text: str) -> RetryPolicy:
    """Return the default policy as the text of a file changes it."""
    return read_policy(parse_settings(dedent(text), "The policy file"), DEFAULT_POLICY)

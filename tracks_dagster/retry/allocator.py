"""How the config's `allocator` reaches PyTorch: as variables, which it reads before it takes memory."""

from __future__ import annotations

from collections.abc import Mapping

from tracks_dagster.retry.remediation import ALLOCATOR
from tracks_dagster.track.records import Json

# The name since PyTorch 2.9, and the one before it, which later ones read where the first is not set.
VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
EXPANDABLE_SEGMENTS = "expandable_segments:True"


def allocator_environment(config: Mapping[str, Json]) -> dict[str, str]:
    """Return the variables that a rank must start with; none for the default, which the gang's own
    environment may have set otherwise."""
    if config.get(ALLOCATOR.key) != ALLOCATOR.value:
        return {}
    return dict.fromkeys(VARIABLES, EXPANDABLE_SEGMENTS)

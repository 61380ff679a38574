"""How many devices a list of Slurm's TRES has."""

from __future__ import annotations

import pytest

from tracks_dagster.reasons.slurm_rows import gpus_in


@pytest.mark.parametrize(
    ("tres", "expected"),
    [
        ("cpu=8,mem=1G,node=2", (0, "")),
        ("cpu=8,gres/gpu=0", (0, "")),
        ("cpu=8,gres/gpu=4", (4, "gpu")),
        ("gres/gpu=4,gres/gpu:a100=4", (4, "a100")),
    ],
)
def test_devices_are_counted_once_and_none_is_none(tres: str, expected: tuple[int, str]) -> None:
    assert gpus_in(tres) == expected

"""How a launch is placed in the track: by the cluster's own names, and however large it is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.training.gangs import TrainingRun
from tracks_dagster.attempts.effects.evidence import read_places
from tracks_dagster.track import placement
from tracks_dagster.track.names import AttemptRef
from tracks_dagster.training.environment import describe_place, read_environment
from tracks_dagster.training.launch import place
from tracks_dagster.training.ranks import Ranks

ALONE = read_environment({})


def test_a_rank_on_a_cluster_is_placed_by_the_cluster_s_names(tmp_path: Path) -> None:
    run = TrainingRun(tmp_path)
    attempt_id = run.open()
    place(
        run.store,
        run.place(attempt_id, tmp_path / "work"),
        Ranks(rank=0, world_size=1, device=torch.device("cpu")),
        replace(ALONE, image="image:1", node="node-7", pod="gang-0-abcde"),
        on_launch_id=lambda launch_id: None,
    )
    placed = run.state.attempts[0].placed
    assert placed is not None
    assert [(rank.node, rank.pod) for rank in placed.ranks] == [("node-7", "gang-0-abcde")]


def test_places_that_a_record_has_no_room_for_lie_in_an_object_of_the_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placement, "PLACES_BYTES_MAX", 0)
    run = TrainingRun(tmp_path)
    attempt_id = run.open()
    place(
        run.store,
        run.place(attempt_id, tmp_path / "work"),
        Ranks(rank=0, world_size=1, device=torch.device("cpu")),
        replace(ALONE, node="node-7"),
        on_launch_id=lambda launch_id: None,
    )
    placed = run.state.attempts[0].placed
    assert placed is not None
    assert placed.pod_nodes == ("node-7",)
    assert placed.places_sha256 is not None
    here = describe_place(0, torch.device("cpu"), node="node-7")
    assert read_places(run.store, AttemptRef("r", attempt_id), placed) == (here,)

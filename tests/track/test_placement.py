"""A gang's places fit into a record, however large the gang is, and nothing that decides is lost."""

from __future__ import annotations

import pytest

from tests.bodies import placed
from tracks_dagster.track.bodies import AttemptPlaced, RankPlace
from tracks_dagster.track.body_json import from_json, to_json
from tracks_dagster.track.errors import TrackBroken
from tracks_dagster.track.json_text import RECORD_BYTES_MAX
from tracks_dagster.track.placement import compacted, decode_places, node_of, nodes_of
from tracks_dagster.track.records import Json, canonical_json

NODE = "gke-production-pool-h100-a3-0123456789-{:04d}"
ENVIRONMENT: dict[str, Json] = {
    "python": "3.11.9",
    "torch": "2.13.0+cu130",
    "code_sha256": "0" * 64,
}


def gang(pods: int, ranks_per_pod: int) -> AttemptPlaced:
    """Return a gang with names as long as a cloud gives them; two pods on each node."""
    places = tuple(
        RankPlace(
            rank=rank,
            node=NODE.format(rank // ranks_per_pod // 2),
            pod=f"tracks-{'r' * 40}-a01-0123456789-{rank // ranks_per_pod}-abcde",
            pid=12345,
            pid_started=1234567.25,
            boot_id="01234567-89ab-cdef-0123-456789abcdef",
            device="GPU-01234567-89ab-cdef-0123-456789abcdef",
            accelerator="NVIDIA H100 80GB HBM3",
        )
        for rank in range(pods * ranks_per_pod)
    )
    return placed("launch", world_size=len(places), ranks=places, environment=ENVIRONMENT)


@pytest.mark.parametrize(("pods", "ranks"), [(1, 1), (2, 1), (1, 8), (4, 8)])
def test_a_small_gang_stands_whole_in_its_record(pods: int, ranks: int) -> None:
    small = gang(pods, ranks)
    assert compacted(small) == (small, None)


@pytest.mark.parametrize(("pods", "ranks"), [(64, 1), (64, 8), (8, 8), (256, 8)])
def test_a_large_gang_keeps_its_record_small_and_tells_every_rank_s_node(
    pods: int, ranks: int
) -> None:
    large = gang(pods, ranks)
    body, data = compacted(large)
    assert data is not None
    assert body.places_sha256 is not None
    assert len(canonical_json(to_json(body))) < RECORD_BYTES_MAX - 1024  # the rest of the record
    assert body.ranks == large.ranks[:1]
    assert nodes_of(body) == nodes_of(large)
    assert [node_of(body, p.rank) for p in large.ranks] == [p.node for p in large.ranks]
    assert node_of(body, pods * ranks) is None
    assert decode_places(data, body.places_sha256) == large.ranks
    assert from_json(AttemptPlaced, to_json(body)) == body


def test_pods_of_different_sizes_tell_the_node_of_each_rank() -> None:
    whole = gang(64, 2)
    uneven = placed("launch", world_size=127, ranks=whole.ranks[:127])
    body, _ = compacted(uneven)
    assert [node_of(body, p.rank) for p in uneven.ranks] == [p.node for p in uneven.ranks]


def test_a_record_from_before_pods_is_read_as_it_stands() -> None:
    old = gang(1, 2)
    result = {k: v for k, v in to_json(old).items() if k not in ("pod_nodes", "places_sha256")}
    assert from_json(AttemptPlaced, result) == old
    assert nodes_of(old) == (NODE.format(0),)
    assert node_of(old, 1) == NODE.format(0)
    assert node_of(old, 2) is None


def test_places_that_were_changed_are_not_believed() -> None:
    body, data = compacted(gang(64, 1))
    assert data is not None
    with pytest.raises(TrackBroken, match="its record says"):
        decode_places(data + b" ", str(body.places_sha256))

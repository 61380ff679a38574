"""Where a gang's ranks run, in a record that has to stay small however large the gang is.

Up to about forty ranks the record holds every place. Of a larger gang it holds rank 0's, the node of
each pod, and the sha256 of an object with all of them; what decides anything (which nodes, which node
a rank was on) never needs more than the record.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

from tracks_dagster.track.bodies import AttemptPlaced, ComputeRequest, RankPlace
from tracks_dagster.track.body_json import from_json, to_json
from tracks_dagster.track.errors import TrackBroken
from tracks_dagster.track.json_text import MANIFEST_BYTES_MAX, parse_json
from tracks_dagster.track.names import AttemptRef
from tracks_dagster.track.records import canonical_json, sha256_hex

PLACES_BYTES_MAX = 12 * 1024  # in the record, of the 16 KiB that it may have


def compacted(placed: AttemptPlaced) -> tuple[AttemptPlaced, bytes | None]:
    """Return what the record may hold, and the object with all places where that is not everything.

    The object belongs at `places_key` before the record is written. A record has room for the nodes
    of about 300 pods.
    """
    data = canonical_json([to_json(place) for place in placed.ranks])
    if len(data) <= PLACES_BYTES_MAX:
        return placed, None
    small = replace(
        placed,
        ranks=placed.ranks[:1],
        pod_nodes=_pod_nodes(placed.ranks),
        places_sha256=sha256_hex(data),
    )
    return small, data


def nodes_of(placed: AttemptPlaced) -> tuple[str, ...]:
    """Return the nodes that the gang runs on, each once, by name."""
    return tuple(sorted({*placed.pod_nodes, *(place.node for place in placed.ranks)}))


def node_of(placed: AttemptPlaced, rank: int) -> str | None:
    """Return the node that a rank runs on; None for a rank that the gang has not."""
    if placed.pod_nodes and 0 <= rank < placed.world_size:
        return placed.pod_nodes[rank * len(placed.pod_nodes) // placed.world_size]
    return next((place.node for place in placed.ranks if place.rank == rank), None)


def places_key(ref: AttemptRef, launch_id: str, sha256: str) -> str:
    """Return where the places of a large gang lie."""
    return f"{ref.folder}{launch_id}/places/{sha256}.json"


def decode_places(data: bytes, sha256: str) -> tuple[RankPlace, ...]:
    """Return all places; raises TrackBroken for bytes that are not those that the record names."""
    if sha256_hex(data) != sha256:
        raise TrackBroken(
            f"The places of a gang have sha256 {sha256_hex(data)}; its record says {sha256}."
        )
    return tuple(
        from_json(RankPlace, each) for each in parse_json(data, bytes_max=MANIFEST_BYTES_MAX)
    )


def _pod_nodes(places: Sequence[RankPlace]) -> tuple[str, ...]:
    """Return one node for each pod, in the order of ranks; where pods differ in size, for each rank."""
    groups = [list(group) for _, group in groupby(places, lambda place: (place.node, place.pod))]
    if len({len(group) for group in groups}) > 1:
        return tuple(place.node for place in places)
    return tuple(group[0].node for group in groups)


def pool_of(compute: ComputeRequest) -> str:
    """Return the name of the pool that an attempt runs in."""
    return compute.pool or f"{compute.launcher}/{compute.device_class}"

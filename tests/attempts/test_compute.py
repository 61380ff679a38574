"""What a run asks a launcher for: checked before anything is written, and recorded as it was asked."""

from __future__ import annotations

import pytest

from tests.asked import asked, declare
from tests.fakes import FakeObjectStore
from tests.stories import Story
from tracks_dagster.attempts.ports import GangSpec
from tracks_dagster.attempts.run_config import CLUSTER_FIELDS, COMPUTE_FIELDS
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.track.bodies import ComputeRequest
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.records import Json

ASKED = ComputeRequest(
    launcher="kubernetes",
    ranks=4,
    ranks_per_node=2,
    memory_bytes=64 * 1024**3,
    cpus=7.5,
    device_class="a100",
    node_selector={"gpu": "a100"},
    tolerations=({"key": "gpu", "operator": "Exists", "effect": "NoSchedule"},),
    priority_class="high",
    topology_key="topology.kubernetes.io/zone",
    queue="team-a",
    pool="big",
)
SECRET = "hf_" + "aB3dE5gH7jK9mN1pQ3sT5vW7yZ9bC1dE3f"
PLAIN = asked(run_id="r-1", intent="See how it goes.", owner="ann", config={"steps": 40})
REQUEST = PLAIN.but(**{name: getattr(ASKED, name) for name in COMPUTE_FIELDS})


def test_what_was_asked_stands_in_the_declaration_and_in_the_first_attempt(
    data: Story, tracks: Tracks
) -> None:
    assert declare(tracks, REQUEST).compute == ASKED
    [attempt] = tracks.run("r-1").attempts
    assert attempt.opened.compute == ASKED


def test_a_run_is_local_with_one_rank_where_nothing_is_asked(data: Story, tracks: Tracks) -> None:
    assert declare(tracks, PLAIN).compute == ComputeRequest()


def test_every_field_of_a_compute_request_can_be_asked_for() -> None:
    assert REQUEST.prepared().body.compute == ASKED
    assert set(CLUSTER_FIELDS) < set(COMPUTE_FIELDS)


@pytest.mark.parametrize(
    ("changes", "hint"),
    [
        ({"launcher": "lsf"}, "there are: local, kubernetes"),
        ({"launcher": "kubernets"}, "did you mean kubernetes?"),
        ({"ranks_per_node": 3}, "4 ranks cannot be 3 on each node.*use 2"),
        ({"ranks_per_node": 0}, "use 1, for example"),
        ({"ranks_per_node": 8}, "4 ranks cannot be 8 on each node.*use 4"),
        ({"memory_bytes": 0}, "memory_bytes is 0"),
        ({"cpus": 0.0}, "cpus is 0"),
        ({"cpus": float("nan")}, "cpus is nan"),
        ({"queue": "Team A"}, "queue is 'Team A'"),
        ({"priority_class": "a/b"}, "priority_class"),
        ({"topology_key": "zone!"}, "topology_key"),
        ({"node_selector": {"gpu": "a 100"}}, "gpu=a 100 is not a label"),
        ({"node_selector": {f"k{i}": "x" for i in range(33)}}, "33 entries; at most 32"),
        ({"tolerations": ({"key": "x", "effect": "Never"},)}, "NoSchedule"),
        ({"launcher": "local"}, "say --on kubernetes"),
        ({"slurm": {"account": "a"}}, "--slurm is of gangs on Slurm.*launcher is kubernetes"),
        ({"launcher": "slurm", "slurm": {f"k{i}": "x" for i in range(33)}}, "slurm has 33 entries"),
        (
            {"launcher": "slurm", "slurm": {"account": SECRET}},
            "slurm account holds what looks like",
        ),
    ],
)
def test_a_request_that_cannot_be_met_writes_nothing(
    changes: dict[str, Json], hint: str, data: Story, tracks: Tracks, store: FakeObjectStore
) -> None:
    before = dict(store.objects)
    with pytest.raises(InvalidInput, match=hint):
        declare(tracks, REQUEST.but(**changes))
    assert store.objects == before


def test_all_that_is_wrong_with_a_request_is_reported_at_once(data: Story, tracks: Tracks) -> None:
    with pytest.raises(InvalidInput) as raised:
        declare(tracks, REQUEST.but(cpus=0.0, queue="A B", ranks_per_node=3))
    assert all(word in str(raised.value) for word in ("cpus", "queue", "on each node"))


def test_what_a_local_run_may_not_ask_for_is_named(data: Story, tracks: Tracks) -> None:
    local = PLAIN.but(queue="a", cpus=2.0)
    with pytest.raises(InvalidInput, match="cpus, queue ask something of a cluster"):
        declare(tracks, local)


def test_an_empty_word_refuses_what_the_cluster_settings_say(data: Story, tracks: Tracks) -> None:
    assert declare(tracks, REQUEST.but(queue="")).compute.queue == ""


def test_a_gang_that_cannot_be_started_is_refused_with_nothing_written(
    data: Story, tracks: Tracks, store: FakeObjectStore
) -> None:
    seen: list[GangSpec] = []

    def refuse(spec: GangSpec) -> None:
        seen.append(spec)
        raise InvalidInput("There is no device class a100.")

    before = dict(store.objects)
    with pytest.raises(InvalidInput, match="no device class"):
        declare(tracks, REQUEST, check_gang=refuse)
    assert store.objects == before
    [spec] = seen
    assert (spec.run_id, spec.attempt_id, spec.compute) == ("r-1", 1, ASKED)
    assert spec.store_url == store.url


def test_a_run_that_exists_is_taken_up_whatever_the_cluster_says_now(
    data: Story, tracks: Tracks
) -> None:
    def refuse(spec: GangSpec) -> None:
        raise InvalidInput("The cluster is another one now.")

    first = declare(tracks, REQUEST)
    assert declare(tracks, REQUEST, check_gang=refuse) == first

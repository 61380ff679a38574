"""Which of the free devices a gang gets: each placement on a few nodes, counted by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.queues import GIB, nodes, planned, runs, started, wants
from tracks_dagster.scheduling.model import Device
from tracks_dagster.scheduling.policy import Placement


@pytest.mark.parametrize(
    ("placement", "count", "busy", "where"),
    [
        # Sizes 4, 4, 2. The node with the fewest left over that holds it: 2 of 2, then 3 of 4.
        (Placement.PACK, 2, [], {"n2": 2}),
        (Placement.PACK, 3, [], {"n0": 3}),
        (Placement.PACK, 1, ["n1/0", "n1/1", "n1/2"], {"n1": 1}),
        (Placement.PACK, 6, [], {"n0": 4, "n2": 2}),  # no node holds it: the fewest nodes
        (Placement.PACK, 10, [], {"n0": 4, "n1": 4, "n2": 2}),
        # A rank on each node; the fourth where most is left; of two ranks none where less is free.
        (Placement.SPREAD, 3, [], {"n0": 1, "n1": 1, "n2": 1}),
        (Placement.SPREAD, 4, [], {"n0": 2, "n1": 1, "n2": 1}),
        (Placement.SPREAD, 2, ["n0/0", "n0/1", "n0/2"], {"n1": 1, "n2": 1}),
        (Placement.SPREAD, 9, [], {"n0": 4, "n1": 3, "n2": 2}),
        # In use with one more: 1 of 4, 1 of 4, 1 of 2; then 2 of 4 and 1 of 2 are the same part,
        # and of these the node with more free comes first.
        (Placement.BALANCED, 2, [], {"n0": 1, "n1": 1}),
        (Placement.BALANCED, 1, ["n0/0", "n0/1", "n1/0", "n1/1"], {"n2": 1}),  # 3/4, 3/4, 1/2
        (Placement.BALANCED, 5, [], {"n0": 2, "n1": 2, "n2": 1}),
    ],
)
def test_each_rank_gets_the_device_that_the_placement_names(
    placement: Placement, count: int, busy: list[str], where: dict[str, int]
) -> None:
    held = [runs("busy", *busy)] if busy else []
    found = planned([wants("a", count)], held, nodes(4, 4, 2), placement=placement)
    names = started(found)["a"]
    assert len(set(names)) == count
    assert {node: sum(n.startswith(node) for n in names) for node in where} == where


def test_an_eval_is_grouped_with_its_trainer_while_there_is_room_beside_it() -> None:
    trainer = runs("r/a01", "n1/0")
    group = {"placement": Placement.GROUP}
    one = wants("r@100", near=("r/a01",))
    found = planned([one], [trainer], nodes(4, 2), **group)
    assert started(found) == {"r@100": ("n1/1",)}
    assert found.starts[0].why == (
        "1 device free; group: beside r/a01, on n1, of whose 2 2 are now in use"
    )
    full = [trainer, runs("other", "n1/1")]
    found = planned([one], full, nodes(4, 2), **group)
    assert started(found) == {"r@100": ("n0/0",)}
    assert "group: no room beside r/a01, on n0" in found.starts[0].why
    gone = planned([one], [], nodes(4, 2), **group)
    assert started(gone) == {"r@100": ("n1/0",)}  # as packed: the fullest that holds it


def test_an_eval_of_known_memory_is_beside_its_trainer_before_it_is_far_and_alone() -> None:
    trainer = runs("r/a01", "n1/0", memory_bytes=10 * GIB)
    one = wants("r@100", memory_bytes=2 * GIB, near=("r/a01",))
    found = planned([one], [trainer], nodes(4, 1, memory=24 * GIB), placement=Placement.GROUP)
    assert started(found) == {"r@100": ("n1/0",)}


def test_a_gang_is_on_the_nodes_that_have_its_data_if_they_hold_all_of_it() -> None:
    near = ("n1", "gone")
    for count, where in ((2, ("n1/0", "n1/1")), (3, ("n0/0", "n0/1", "n0/2"))):
        found = planned(
            [wants("a", count, near=near)], [], nodes(4, 2), placement=Placement.LOCALITY
        )
        assert started(found) == {"a": where}


@pytest.mark.parametrize(("count", "first"), [(3, "a1"), (4, "b0"), (5, "b0"), (1, "a1")])
def test_ranks_on_one_node_are_on_one_island_where_one_holds_them(count: int, first: str) -> None:
    # 8 devices on two islands of 4, of which a0 is taken: 3 are left on one, 4 on the other.
    devices = [Device(name=f"{i}{n}", node="vm", islands=(i,)) for i in "ab" for n in range(4)]
    found = planned([wants("gang", count)], [runs("busy", "a0")], devices)
    names = started(found)["gang"]
    assert names[0] == first
    assert len({name[0] for name in names[:4]}) == 1 or count == 3


def machine(*links: str) -> list[Device]:
    """Return GPUs 0 to 7 of one machine. links: by link a letter for each GPU's island."""
    islands = zip(*links, strict=True)
    return [
        Device(name=f"{n}", node="vm", model="H100", islands=each) for n, each in enumerate(islands)
    ]


NUMA, SWITCHES = "NNNNMMMM", "qqrrsstt"
BRIDGED = machine("aabbccdd", NUMA, SWITCHES)  # pairs of NVLink
SWITCHED = machine("aaaaaaaa", NUMA, SWITCHES)  # NVLink from each to each
NO_NVLINK = machine("abcdefgh", NUMA, SWITCHES)
QUADS = machine("aaaabbbb", NUMA, SWITCHES)


@pytest.mark.parametrize(
    ("devices", "busy", "count", "gets"),
    [
        (QUADS, "", 4, "0123"),  # a whole island
        (QUADS, "2", 4, "4567"),
        (QUADS, "2", 2, "01"),  # of {0, 1, 3} and {4, 5, 6, 7}: the larger hole stays whole
        (QUADS, "026", 2, "13"),  # though 4 and 5 of {4, 5, 7} are on one switch
        (QUADS, "23", 6, "014567"),
        (BRIDGED, "", 2, "01"),
        (BRIDGED, "0", 1, "1"),  # half a pair is nothing for a gang
        (BRIDGED, "0", 2, "23"),  # pairs 23, 45, 67: the first has fewer free on its NUMA node
        (BRIDGED, "5", 4, "0123"),  # two pairs of one node; 4, 6, 7 are not enough
        (BRIDGED, "", 3, "012"),  # a pair, and its neighbour on the node
        (BRIDGED, "0247", 2, "13"),  # no pair is left: one node; 1, 3 and 5, 6 are alike
        (SWITCHED, "01", 2, "23"),  # NVLink either way; a node that is used already, one switch
        (SWITCHED, "0", 4, "4567"),  # NVLink either way; one node
        (SWITCHED, "0", 3, "123"),
        (SWITCHED, "05", 6, "123467"),
        (NO_NVLINK, "", 4, "0123"),
        (NO_NVLINK, "03", 2, "12"),  # the node with 2 free, though 1 and 2 are on two switches
        (NO_NVLINK, "0", 2, "23"),  # of 1, 2, 3: the two on one switch
        (NO_NVLINK, "01234", 2, "67"),
        (NO_NVLINK, "0", 1, "1"),
    ],
)
def test_a_gang_gets_the_best_linked_devices_and_leaves_large_holes(
    devices: list[Device], busy: str, count: int, gets: str
) -> None:
    found = planned([wants("gang", count)], [runs("busy", *busy)] if busy else [], devices)
    assert sorted(started(found)["gang"]) == list(gets)


@pytest.mark.parametrize(
    ("devices", "gets", "words"),
    [
        (QUADS, "0123", "; in one a and one N"),
        (SWITCHED, "01", "; in one a, one N and one q"),
        (NO_NVLINK, "0123", "; in one N"),
        (BRIDGED, "01234567", "; no island of fast links holds all of them"),
        (BRIDGED, "0", ""),  # nobody is far from itself
        (nodes(8, model="H100"), "01", "; how they are linked is not known"),
        (nodes(8), "01", ""),  # pretended ones have no links
    ],
)
def test_the_record_of_a_start_says_how_its_devices_are_linked(
    devices: list[Device], gets: str, words: str
) -> None:
    found = planned([wants("gang", len(gets))], [], devices)
    count = "1 device" if len(gets) == 1 else f"{len(gets)} devices"
    assert found.starts[0].why == f"{count} free{words}"


def test_an_eval_is_on_the_island_of_its_trainer_where_one_has_room() -> None:
    trainer = runs("r/a01", "0", "1")
    one = wants("r@100", near=("r/a01",))
    for devices, gets in ((QUADS, "2"), (SWITCHED, "2"), (NO_NVLINK, "2")):
        others = runs("others", "4", "5", "6")  # 7 is what would be left over of the fullest
        found = planned([one], [trainer, others], devices, placement=Placement.GROUP)
        assert started(found) == {"r@100": (gets,)}


def test_the_smallest_memory_that_is_enough_is_taken_first() -> None:
    devices = [
        *nodes(2, memory=80 * GIB),
        *(replace(each, name=f"s{n}") for n, each in enumerate(nodes(2, memory=24 * GIB))),
    ]
    waiting = [wants("light", memory_bytes=GIB), wants("heavy", memory_bytes=40 * GIB)]
    assert started(planned(waiting, [], devices)) == {"light": ("s0",), "heavy": ("n0/0",)}


def test_a_gang_of_several_ranks_shares_no_device() -> None:
    beside = [runs("a", "n0/0", memory_bytes=GIB), runs("b", "n0/1", memory_bytes=GIB)]
    found = planned([wants("gang", 2, memory_bytes=GIB)], beside, nodes(2, memory=24 * GIB))
    assert started(found) == {}

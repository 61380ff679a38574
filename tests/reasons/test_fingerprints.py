"""Two meetings of one failure have one fingerprint; another attempt at it has another."""

from __future__ import annotations

import pytest

from tests.bodies import CONFIG, HELDOUT, TRAIN
from tracks_dagster.reasons.fingerprints import fingerprint, normalise
from tracks_dagster.track.reasons import TerminationReason


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("pid 41 died at 0x7f3a after 3.5 s", "pid 9000 died at 0xdeadbeef after 12 s"),
        ("no space left: '/scratch/a/b.bin'", "no space left: '/tmp/x.bin'"),
        ("at 2026-01-31T02:00:00.000000Z: lost", "at 2027-12-01T23:59:59Z: lost"),
        ("chunk 3f9a0c4412 is missing", "chunk b0b1c2d3e4f5 is missing"),
        ("GET https://store/a?b failed", "GET https://store:9000/c failed"),
        ("job 0b7c1d2e-1111-2222-3333-444455556666", "job ffffffff-0000-4222-9333-aaaabbbbcccc"),
        ("Tried to allocate 3.78 GiB", "Tried  to allocate\n20 GiB"),
    ],
)
def test_what_varies_is_taken_out_of_a_message(one: str, other: str) -> None:
    assert normalise(one) == normalise(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [("KeyError: 'loss'", "KeyError: 'lr'"), ("cannot read a", "cannot write a")],
)
def test_what_tells_failures_apart_stays(one: str, other: str) -> None:
    assert normalise(one) != normalise(other)


def test_reason_config_snapshot_and_nodes_are_part_of_the_failure() -> None:
    oom, unknown = TerminationReason.GPU_OOM, TerminationReason.UNKNOWN
    halved = {**CONFIG, "micro_batch": 2}
    prints = [
        fingerprint(oom, "out of memory", CONFIG, TRAIN, ["node-1"]),
        fingerprint(unknown, "out of memory", CONFIG, TRAIN, ["node-1"]),
        fingerprint(oom, "out of memory", halved, TRAIN, ["node-1"]),
        fingerprint(oom, "out of memory", CONFIG, HELDOUT, ["node-1"]),
        fingerprint(oom, "out of memory", CONFIG, TRAIN, ["node-2"]),
    ]
    assert len(set(prints)) == len(prints)


def test_the_order_of_nodes_and_keys_does_not_matter() -> None:
    unknown = TerminationReason.UNKNOWN
    turned = dict(reversed(list(CONFIG.items())))
    one = fingerprint(unknown, "lost", CONFIG, TRAIN, ["a", "b", "b"])
    assert one == fingerprint(unknown, "lost", turned, TRAIN, ["b", "a"])

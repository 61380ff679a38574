"""Traces of spot capacity: what they mean, and what is said about a file that is not one."""

from __future__ import annotations

import pytest

from benchmarks.defects import drawn_trace, fleet
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.records import Json
from tracks_dagster.wings.lab.simulation.histories import (
    LLAMA3_CAUSES,
    LLAMA3_INTERRUPTIONS,
    interruptions_of,
    read_traces,
    spans_of,
    spot,
)
from tracks_dagster.wings.lab.simulation.world import Costs

COSTS = Costs(step_s=1.0, blocking_s=2.0, restart_s=60.0)


def test_a_trace_is_read_as_intervals() -> None:
    data = {"a": {"tick_s": 30, "intervals": [[1, 60], [0, 30.5]]}}
    assert read_traces(data, source="f") == {"a": [(1, 60.0), (0, 30.5)]}


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({}, "it holds an empty object, not traces by name"),
        ([], "it holds a list"),
        ("text", 'it holds "text"'),
        ({"a": 3}, "trace 'a' cannot be simulated: it has no list \"intervals\""),
        ({"a": {"intervals": []}}, "with an entry"),
        ({"a": {"intervals": {}}}, 'no list "intervals"'),
        ({"a": {"intervals": [[1, 5], [1]]}}, "interval 2 is a list, not two numbers"),
        ({"a": {"intervals": [7]}}, "interval 1 is 7, not two numbers"),
        ({"a": {"intervals": [[1, -5]]}}, "interval 1 lasts -5 seconds"),
        ({"a": {"intervals": [[1, 0]]}}, "interval 1 lasts 0 seconds"),
        ({"a": {"intervals": [[1, True]]}}, "interval 1 lasts true seconds"),
        ({"a": {"intervals": [[1, float("nan")]]}}, "interval 1 lasts NaN seconds"),
        ({"a": {"intervals": [[-1, 5]]}}, "interval 1 has -1 instances"),
        ({"a": {"intervals": [[1.5, 5]]}}, "interval 1 has 1.5 instances"),
        ({"a": {"intervals": [["1", 5]]}}, 'interval 1 has "1" instances'),
        ({"a": {"intervals": [[1, 1e12]]}}, "more than ten years"),
    ],
)
def test_an_unusable_trace_is_refused_with_what_is_wrong_and_an_example(
    data: Json, words: str
) -> None:
    with pytest.raises(InvalidInput) as error:
        read_traces(data, source="my.json")
    assert words in str(error.value)
    assert str(error.value).startswith("my.json")
    assert '{"zone-a": {"intervals": [[1, 3600]' in str(error.value)


def test_a_gang_runs_while_all_its_instances_are_up() -> None:
    intervals = [(1, 10.0), (2, 20.0), (3, 30.0), (1, 5.0), (2, 7.0), (0, 3.0)]
    assert spans_of(intervals, 2) == [(10.0, 60.0), (65.0, 72.0)]
    first, last = interruptions_of(spans_of(intervals, 2), 75.0)
    assert (first.at_s, first.down_s, last.at_s, last.down_s) == (60.0, 5.0, 72.0, 3.0)
    assert [each.at_s for each in interruptions_of([(0.0, 75.0)], 75.0)] == []


@pytest.mark.parametrize(("nodes", "words"), [(3, "choose 1 to 2"), (0, "choose 1 to 2")])
def test_a_gang_that_never_fits_is_refused(nodes: int, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        spot("zone", [(2, 100.0), (1, 100.0)], COSTS, nodes=nodes)
    with pytest.raises(InvalidInput, match="never has an instance"):
        spot("zone", [(0, 100.0)], COSTS)


def test_llama_3s_causes_are_as_many_as_were_published() -> None:
    assert LLAMA3_INTERRUPTIONS == 419
    assert sum(count for name, (count, _) in LLAMA3_CAUSES.items() if "GPU" in name) == 262


def test_a_fleet_is_drawn_from_its_seed() -> None:
    traces = {"drawn": drawn_trace(0)}

    def kinds(seed: int) -> list[str]:
        return [case.kind for case in fleet(traces, COSTS, runs_per_trace=30, seed=seed)]

    assert kinds(0) == kinds(0) != kinds(1)
    assert {"none", "code error", "bad node"} <= set(kinds(0))

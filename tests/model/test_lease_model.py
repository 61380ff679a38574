"""No two are on one device, nothing waits for ever, in every interleaving; and each rule is needed."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from tests.model.leases import Job, Model, Report, Rules
from tracks_dagster.scheduling.leases import Here, Holder, why_over

ONE, OTHER = Job(key="r-1/a01", count=1), Job(key="r-2/a01", count=1)
PAIR, OTHER_PAIR = Job(key="r-3/a01", count=2), Job(key="r-4/a01", count=2)
EVAL = Job(key="r-5/heldout-loss@40/1", count=1, is_eval=True)

WORLDS = {
    "two runs on one device": Model(jobs=(ONE, OTHER), devices=1),
    "an eval beside a run": Model(jobs=(ONE, EVAL), devices=1),
    "a person gives back what a run had": Model(jobs=(ONE, OTHER), devices=1, persons=True),
}
FULL_WORLDS = {
    "two gangs of two": Model(jobs=(PAIR, OTHER_PAIR), devices=2),
    "a gang of two between two runs": Model(jobs=(ONE, OTHER, PAIR), devices=2, workers=1),
    "an eval, a run and a gang of two": Model(jobs=(EVAL, ONE, PAIR), devices=2, workers=1),
    "three on one device": Model(jobs=(ONE, OTHER, EVAL), devices=1, workers=1),
    "two runs on one device, known late": Model(jobs=(ONE, OTHER), devices=1, stale=True),
}


def search(name: str, model: Model, until: str | None = None) -> Report:
    began = time.monotonic()
    report = model.run(until)
    took = f"{time.monotonic() - began:.1f} s"
    print(f"\n{name}: {report.states} states, {report.steps} steps, {took}")
    return report


@pytest.mark.parametrize("name", WORLDS)
def test_no_device_has_two_and_all_can_end_in_every_interleaving(name: str) -> None:
    report = search(name, WORLDS[name])
    assert report.broken == {}
    assert report.states > 1000


@pytest.mark.full
@pytest.mark.drawn(1)
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", FULL_WORLDS)
def test_the_same_holds_in_larger_worlds(name: str) -> None:
    assert search(name, FULL_WORLDS[name]).broken == {}


def by_time_alone(holder: Holder, here: Here, now: object) -> str | None:
    """A fault: time ends every lease, what has started under it or not."""
    waits = replace(holder, lease=replace(holder.lease, confirmed_at=None))
    return why_over(waits, here, now)  # type: ignore[arg-type]


FAULTS = {
    "release on timeout alone": (
        WORLDS["two runs on one device"],
        Rules(why_over=by_time_alone),
        "something is on a device that the record gives to nobody, or to another",
    ),
    "a lease per device": (
        Model(jobs=(PAIR, OTHER_PAIR), devices=2, workers=1),
        Rules(by_device=True, check=lambda state, pool, draft: draft),
        "something waits for ever",
    ),
    "a start without a confirmation": (
        WORLDS["two runs on one device"],
        Rules(confirms=False),
        "something is on a device that the record gives to nobody, or to another",
    ),
    "a start after the attempt was closed": (
        WORLDS["two runs on one device"],
        Rules(bars=False),
        "something is on a device that the record gives to nobody, or to another",
    ),
    "a lease given back while a worker lives": (
        WORLDS["a person gives back what a run had"],
        Rules(looks=False),
        "something is on a device that the record gives to nobody, or to another",
    ),
    "the end of an eval whose processes live": (
        WORLDS["an eval beside a run"],
        Rules(ends_left=False),
        "something is on a device that the record gives to nobody, or to another",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found(name: str) -> None:
    model, rules, breaks = FAULTS[name]
    report = search(name, replace(model, rules=rules), until=breaks)
    assert breaks in report.broken, f"broken were only: {sorted(report.broken)}"

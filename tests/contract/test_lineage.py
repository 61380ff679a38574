"""The walk in SQL is exact: against a brute-force walk over the tracks of random worlds, as of any
time, on both databases."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from random import Random

import pytest

from tests.bodies import BEGIN
from tests.fakes import FakeObjectStore
from tests.lineage_oracle import Answer, Node, Oracle, sources
from tests.lineage_worlds import World
from tracks_dagster.adapters.ledger import open_ledger
from tracks_dagster.core.bodies import SnapshotRef
from tracks_dagster.core.lineage import ThingKind
from tracks_dagster.core.ports import Ledger
from tracks_dagster.services.lineage.descent import Descendants, descendants
from tracks_dagster.services.projector import Projector
from tracks_dagster.services.things import Exact

ALL = 100_000  # names: every descendant is compared
SEEDS = range(8)
SOURCES_MAX = 10  # of one world at one time; chosen at random
TIMES = 2


@pytest.fixture(params=["sqlite", "postgres"])
def ledger(request: pytest.FixtureRequest, tmp_path: Path) -> Ledger:
    """An empty ledger on each database."""
    if request.param == "sqlite":
        return open_ledger(f"sqlite:///{tmp_path / 'ledger.db'}")
    return open_ledger(request.getfixturevalue("postgres_url"))


@pytest.mark.parametrize("seed", SEEDS)
def test_everything_downstream_is_what_a_walk_over_the_tracks_finds(
    ledger: Ledger, store: FakeObjectStore, seed: int
) -> None:
    world = World(Random(seed))
    world.write_to(store)
    Projector(store, ledger).scan()
    rng = Random(seed + 1)
    times = [None, *rng.sample(world.times, TIMES)]
    for until in times:
        oracle = Oracle(world.runs, until or datetime.max.replace(tzinfo=BEGIN.tzinfo))
        known = sources(oracle.states)
        for source in rng.sample(known, min(SOURCES_MAX, len(known))):
            found = descendants(ledger, exact(world, source), as_of=until, named_max=ALL)
            told = f"seed {seed}, as of {until}, {source}"
            assert answer_of(found) == oracle.answer(source), told
            assert_counts_agree(found, told)


def exact(world: World, source: Node) -> Exact:
    """The thing as services know it."""
    match source:
        case ("attempt", run_id, number):
            state = world.states[run_id]
            text = f"attempt:{run_id}/a{int(number):02d}"
            kind = ThingKind.ATTEMPT
            return Exact(kind=kind, text=text, called=text, state=state, attempt_id=int(number))
        case ("checkpoint", manifest):
            for state in world.states.values():
                found = state.checkpoint(manifest)
                if found is not None:
                    return Exact(
                        kind=ThingKind.CHECKPOINT,
                        text=f"checkpoint:{manifest}",
                        called="",
                        state=state,
                        attempt_id=found.ref.attempt_id,
                        checkpoint=found.ref,
                    )
        case ("snapshot", dataset, snapshot_id):
            ref = SnapshotRef(dataset=dataset, snapshot_id=snapshot_id)
            text = f"snapshot:{dataset}@{snapshot_id}"
            return Exact(kind=ThingKind.SNAPSHOT, text=text, called=text, snapshot=ref)
        case (kind, name):
            text = f"{kind}:{name}"
            return Exact(kind=ThingKind(kind), text=text, called=text)
    raise AssertionError(source)


def answer_of(found: Descendants) -> Answer:
    """What the service names, as the oracle does."""
    evals = [f"{e.thing} {e.detail.split()[1]}" for e in found.evals.newest]
    promotions = {(p.thing, p.status, _at(p.at)) for p in found.promotions.newest}
    return Answer(
        attempts={each.thing for each in found.attempts.newest},
        checkpoints={(each.thing, each.status) for each in found.checkpoints.newest},
        evals=sorted(evals),
        promotions=promotions,
        idle={each.thing for each in found.idle.newest},
        apart={each.thing for each in found.apart.newest},
        spared={each.thing for each in found.spared.newest},
    )


def assert_counts_agree(found: Descendants, told: str) -> None:
    """Where all are named, there are as many as are counted."""
    for group in (
        *(found.attempts, found.checkpoints, found.evals, found.promotions),
        *(found.idle, found.apart, found.spared),
    ):
        assert group.count == len(group.newest), told


def _at(text: str) -> str:
    return str(datetime.fromisoformat(text))

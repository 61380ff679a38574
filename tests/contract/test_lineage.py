"""The walk in SQL is exact: against a brute-force walk over the tracks of random worlds, as of any
time, on both databases."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from random import Random

import pytest

from tests.bodies import BEGIN
from tests.contract.conftest import NewUrl
from tests.fakes import FakeObjectStore
from tests.lineage_faults import ANCESTORS_FAULTS, DESCENDANTS_FAULTS, planted
from tests.lineage_oracle import Answer, Link, Node, Oracle, named_by_then, sources
from tests.lineage_worlds import World
from tests.seeds import fresh_seeds
from tracks_dagster.holds.effects import descent
from tracks_dagster.holds.effects.descent import Descendants, ancestors, descendants
from tracks_dagster.holds.effects.things import Exact
from tracks_dagster.holds.hold import ThingKind
from tracks_dagster.ledger.effects.database import open_ledger
from tracks_dagster.ledger.effects.projector import Projector
from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.track.bodies import SnapshotRef
from tracks_dagster.track.states.run_state import RunState

ALL = 100_000  # names: every descendant is compared
SEEDS = (7, 0, 1, 3)  # between them every planted fault shows
CASES = [*(("sqlite", seed) for seed in SEEDS), ("postgres", SEEDS[0])]
FRESH = 10  # worlds of the long proof
SOURCES_MAX = 10  # of one world at one time, beside snapshots and nodes; chosen at random
TIMES = 2

Projected = Callable[[str, int], tuple[Ledger, World]]


@pytest.fixture(scope="module")
def projected(new_url: NewUrl) -> Projected:
    """Gives the world of a seed in a ledger of its own, made once."""

    @functools.cache
    def made(database: str, seed: int) -> tuple[Ledger, World]:
        ledger, store, world = (
            open_ledger(new_url(database)),
            FakeObjectStore(),
            World(Random(seed)),
        )
        world.write_to(store)
        Projector(store, ledger).scan()
        return ledger, world

    return made


@pytest.mark.parametrize(("database", "seed"), CASES)
def test_everything_downstream_is_what_a_walk_over_the_tracks_finds(
    database: str, seed: int, projected: Projected
) -> None:
    assert list(differences_down(*projected(database, seed), seed)) == []


@pytest.mark.parametrize(("database", "seed"), CASES)
def test_what_a_thing_rests_on_is_what_a_walk_over_the_tracks_finds(
    database: str, seed: int, projected: Projected
) -> None:
    assert list(differences_up(*projected(database, seed), seed)) == []


@pytest.mark.full
@pytest.mark.parametrize("database", ["sqlite", "postgres"])
def test_both_walks_find_the_same_in_fresh_worlds(database: str, projected: Projected) -> None:
    for seed in fresh_seeds(FRESH):
        ledger, world = projected(database, seed)
        assert list(differences_down(ledger, world, seed)) == []
        assert list(differences_up(ledger, world, seed)) == []


@pytest.mark.parametrize("fault", DESCENDANTS_FAULTS)
def test_a_fault_planted_in_the_walk_down_is_found(
    projected: Projected, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    monkeypatch.setattr(descent, "DESCENDANTS", planted(DESCENDANTS_FAULTS[fault], tmp_path))
    assert any(any(differences_down(*projected("sqlite", seed), seed)) for seed in SEEDS)


@pytest.mark.parametrize("fault", ANCESTORS_FAULTS)
def test_a_fault_planted_in_the_walk_up_is_found(
    projected: Projected, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    monkeypatch.setattr(descent, "ANCESTORS", planted(ANCESTORS_FAULTS[fault], tmp_path))
    assert any(any(differences_up(*projected("sqlite", seed), seed)) for seed in SEEDS)


def differences_down(ledger: Ledger, world: World, seed: int) -> Iterator[str]:
    """Yield each source of which the statements find other things downstream than the walk."""
    for question in questions_down(world, seed):
        found = descendants(ledger, question.thing, as_of=question.until, named_max=ALL)
        if answer_of(found) != question.answer or not counts_agree(found):
            yield question.words


def differences_up(ledger: Ledger, world: World, seed: int) -> Iterator[str]:
    """Yield each thing that by the statements rests on something else than by the walk."""
    for question in questions_up(world, seed):
        if links_up(ledger, question) != question.answer:
            yield question.words


@dataclass(frozen=True)
class Question:
    """A thing of a world as of a time, and what the oracle says. words: for a failure's message."""

    thing: Exact
    until: datetime | None
    answer: object
    words: str


def questions_down(world: World, seed: int) -> Iterator[Question]:
    """Yield sources, each with what comes of it."""
    for rng, until, oracle in moments(world, seed):
        known = sources(oracle.states)
        shared = [each for each in known if each[0] in ("snapshot", "node")]
        own = [each for each in known if each not in shared]
        for source in (*shared, *rng.sample(own, min(SOURCES_MAX, len(own)))):
            words = f"seed {seed}, as of {until}, {source}"
            yield Question(exact(world, source), until, oracle.answer(source), words)


def questions_up(world: World, seed: int) -> Iterator[Question]:
    """Yield attempts, checkpoints, evals and promotions, each with what it rests on."""
    for rng, until, oracle in moments(world, seed):
        known = [each for each in sources(oracle.states) if each[0] in ("attempt", "checkpoint")]
        for source in rng.sample(known, min(SOURCES_MAX, len(known))):
            thing, words = exact(world, source), f"seed {seed}, as of {until}, {source}"
            assert thing.state is not None
            assert thing.attempt_id is not None
            manifest = thing.checkpoint.manifest_sha256 if thing.checkpoint else None
            chain = oracle.chain(thing.state.run_id, thing.attempt_id, manifest)
            yield Question(thing, until, chain, words)
        for name, ref in named_by_then(oracle).items():
            thing, words = exact(world, name), f"seed {seed}, as of {until}, {name}"
            chain = oracle.chain(ref.run_id, ref.attempt_id, ref.manifest_sha256)
            yield Question(thing, until, chain, words)


def moments(world: World, seed: int) -> Iterator[tuple[Random, datetime | None, Oracle]]:
    """Yield the end of all records, and times between, each with its oracle."""
    rng = Random(seed + 1)
    for until in (None, *rng.sample(world.times, TIMES)):
        yield rng, until, Oracle(world.runs, until or datetime.max.replace(tzinfo=BEGIN.tzinfo))


def links_up(ledger: Ledger, question: Question) -> list[Link]:
    """The chain that the service names, as the oracle does."""
    found = ancestors(ledger, question.thing, as_of=question.until)
    assert (found.missing, found.is_cut) == (None, False), question.words
    return [
        Link(
            attempt=each.attempt,
            up_to_step=each.up_to_step,
            from_step=each.from_step,
            used=(each.consumed.cursor_from, each.consumed.cursor_to) if each.consumed else None,
            snapshot=each.snapshot,
            nodes=tuple(sorted(each.nodes)),
            reason=each.reason,
        )
        for each in found.chain
    ]


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
        case ("eval", run_id, eval_id):
            return newest_eval(world.states[run_id], eval_id)
        case ("promotion", run_id, alias):
            return newest_promotion(world.states[run_id], alias)
        case (kind, name):
            text = f"{kind}:{name}"
            return Exact(kind=ThingKind(kind), text=text, called=text)
    raise AssertionError(source)


def newest_eval(state: RunState, eval_id: str) -> Exact:
    """The newest try at an eval, as a name finds it."""
    opened = next(e.opened for e in reversed(state.evals) if e.opened.eval_id == eval_id)
    text = f"eval:{state.run_id}/{eval_id}"
    return Exact(
        kind=ThingKind.EVAL,
        text=text,
        called=text,
        state=state,
        checkpoint=opened.checkpoint,
        snapshot=opened.snapshot,
        eval_id=eval_id,
        eval_number=opened.number,
    )


def newest_promotion(state: RunState, alias: str) -> Exact:
    """The newest promotion to an alias, as a name finds it."""
    given = [p.body for p in state.promotions if p.body.promoted and p.body.alias == alias]
    text = f"promotion:{state.run_id}/{alias}"
    return Exact(
        kind=ThingKind.PROMOTION,
        text=text,
        called=text,
        state=state,
        checkpoint=given[-1].checkpoint,
        snapshot=given[-1].snapshot,
        eval_id=given[-1].eval_id,
        eval_number=given[-1].eval_number,
        alias=alias,
    )


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


def counts_agree(found: Descendants) -> bool:
    """Whether there are as many as are counted, where all are named."""
    groups = (
        *(found.attempts, found.checkpoints, found.evals, found.promotions),
        *(found.idle, found.apart, found.spared),
    )
    return all(group.count == len(group.newest) for group in groups)


def _at(text: str) -> str:
    return str(datetime.fromisoformat(text))

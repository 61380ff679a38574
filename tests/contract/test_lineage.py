"""The walk in SQL is exact: against a brute-force walk over the tracks of random worlds, as of any
time, on both databases."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from random import Random

import pytest

from tests.bodies import BEGIN
from tests.fakes import FakeObjectStore
from tests.lineage_faults import ANCESTORS_FAULTS, DESCENDANTS_FAULTS, planted
from tests.lineage_oracle import Answer, Link, Node, Oracle, named_by_then, sources
from tests.lineage_worlds import World
from tracks_dagster.holds.effects import descent
from tracks_dagster.holds.effects.descent import Descendants, ancestors, descendants
from tracks_dagster.holds.effects.things import Exact
from tracks_dagster.holds.lineage import ThingKind
from tracks_dagster.ledger.effects.database import open_ledger
from tracks_dagster.ledger.effects.projector import Projector
from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.track.bodies import SnapshotRef
from tracks_dagster.track.states.run_state import RunState

ALL = 100_000  # names: every descendant is compared
SEEDS = range(8)
SOURCES_MAX = 10  # of one world at one time, beside snapshots and nodes; chosen at random
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
    for question in questions_down(project(seed, store, ledger), seed):
        found = found_down(ledger, question)
        assert answer_of(found) == question.answer, question.told
        assert counts_agree(found), question.told


@pytest.mark.parametrize("seed", SEEDS)
def test_what_a_thing_rests_on_is_what_a_walk_over_the_tracks_finds(
    ledger: Ledger, store: FakeObjectStore, seed: int
) -> None:
    for question in questions_up(project(seed, store, ledger), seed):
        assert told_up(ledger, question) == question.answer, question.told


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Ledger, int, World]]:
    """Worlds in ledgers of their own, which a fault is looked for in."""
    folder = tmp_path_factory.mktemp("worlds")
    found = []
    for seed in SEEDS:
        ledger = open_ledger(f"sqlite:///{folder / f'{seed}.db'}")
        found.append((ledger, seed, project(seed, FakeObjectStore(), ledger)))
    return found


@pytest.fixture(scope="module")
def down(worlds: list[tuple[Ledger, int, World]]) -> list[tuple[Ledger, Question]]:
    return [(ledger, q) for ledger, seed, world in worlds for q in questions_down(world, seed)]


@pytest.fixture(scope="module")
def up(worlds: list[tuple[Ledger, int, World]]) -> list[tuple[Ledger, Question]]:
    return [(ledger, q) for ledger, seed, world in worlds for q in questions_up(world, seed)]


@pytest.mark.parametrize("fault", DESCENDANTS_FAULTS)
def test_a_fault_planted_in_the_walk_down_is_found(
    down: list[tuple[Ledger, Question]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fault: str,
) -> None:
    monkeypatch.setattr(descent, "DESCENDANTS", planted(DESCENDANTS_FAULTS[fault], tmp_path))
    for ledger, question in down:
        found = found_down(ledger, question)
        if answer_of(found) != question.answer or not counts_agree(found):
            return
    pytest.fail(f"the comparison did not find it in seeds {SEEDS}: {fault}")


@pytest.mark.parametrize("fault", ANCESTORS_FAULTS)
def test_a_fault_planted_in_the_walk_up_is_found(
    up: list[tuple[Ledger, Question]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fault: str,
) -> None:
    monkeypatch.setattr(descent, "ANCESTORS", planted(ANCESTORS_FAULTS[fault], tmp_path))
    if all(told_up(ledger, question) == question.answer for ledger, question in up):
        pytest.fail(f"the comparison did not find it in seeds {SEEDS}: {fault}")


@dataclass(frozen=True)
class Question:
    """A thing of a world as of a time, and what the oracle says. told: for a failure's message."""

    thing: Exact
    until: datetime | None
    answer: object
    told: str


def project(seed: int, store: FakeObjectStore, ledger: Ledger) -> World:
    """Return a world, and bring it into the ledger."""
    world = World(Random(seed))
    world.write_to(store)
    Projector(store, ledger).scan()
    return world


def questions_down(world: World, seed: int) -> Iterator[Question]:
    """Yield sources, each with what comes of it."""
    for rng, until, oracle in moments(world, seed):
        known = sources(oracle.states)
        shared = [each for each in known if each[0] in ("snapshot", "node")]
        own = [each for each in known if each not in shared]
        for source in (*shared, *rng.sample(own, min(SOURCES_MAX, len(own)))):
            told = f"seed {seed}, as of {until}, {source}"
            yield Question(exact(world, source), until, oracle.answer(source), told)


def questions_up(world: World, seed: int) -> Iterator[Question]:
    """Yield attempts, checkpoints, evals and promotions, each with what it rests on."""
    for rng, until, oracle in moments(world, seed):
        known = [each for each in sources(oracle.states) if each[0] in ("attempt", "checkpoint")]
        for source in rng.sample(known, min(SOURCES_MAX, len(known))):
            thing, told = exact(world, source), f"seed {seed}, as of {until}, {source}"
            assert thing.state is not None
            assert thing.attempt_id is not None
            manifest = thing.checkpoint.manifest_sha256 if thing.checkpoint else None
            chain = oracle.chain(thing.state.run_id, thing.attempt_id, manifest)
            yield Question(thing, until, chain, told)
        for name, ref in named_by_then(oracle).items():
            thing, told = exact(world, name), f"seed {seed}, as of {until}, {name}"
            chain = oracle.chain(ref.run_id, ref.attempt_id, ref.manifest_sha256)
            yield Question(thing, until, chain, told)


def moments(world: World, seed: int) -> Iterator[tuple[Random, datetime | None, Oracle]]:
    """Yield the end of all records, and times between, each with its oracle."""
    rng = Random(seed + 1)
    for until in (None, *rng.sample(world.times, TIMES)):
        yield rng, until, Oracle(world.runs, until or datetime.max.replace(tzinfo=BEGIN.tzinfo))


def found_down(ledger: Ledger, question: Question) -> Descendants:
    """What the service finds downstream, all of it by name."""
    return descendants(ledger, question.thing, as_of=question.until, named_max=ALL)


def told_up(ledger: Ledger, question: Question) -> list[Link]:
    """The chain that the service names, as the oracle does."""
    found = ancestors(ledger, question.thing, as_of=question.until)
    assert (found.missing, found.is_cut) == (None, False), question.told
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

"""What decisions find to descend from a source in quarantine is what a walk over the tracks of random
worlds finds, as of any time. They read the tracks for it, not the ledger, whose statements
`tests/contract/test_lineage.py` compares with the same walk."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from random import Random

import pytest

from tests.bodies import BEGIN
from tests.contract.test_lineage import exact
from tests.fakes import FakeObjectStore, SequentialUids
from tests.lineage_oracle import Node, Oracle, sources
from tests.lineage_worlds import World
from tests.seeds import fresh_seeds
from tracks_dagster.holds.effects import holds
from tracks_dagster.holds.effects.holds import Holds, snapshot_name
from tracks_dagster.holds.effects.quarantines import quarantine_snapshot
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.track.bodies import SnapshotRef, SourceDecision
from tracks_dagster.track.names import attempt_key
from tracks_dagster.track.records import Kind
from tracks_dagster.track.states.run_state import AttemptState

SEEDS = range(3)
FRESH = 30
TIMES = 2
SETTLED = BEGIN + timedelta(minutes=1)  # the quarantines are recorded before it
FAULTS = {  # where, and what stands there instead
    "what was opened on a snapshot used it": (holds, "ran_a_step", lambda *_: True),
    "nothing comes from another run": (Holds, "_from_elsewhere", lambda *_: {}),
    "what was asked for counts after a fallback": (
        AttemptState,
        "resumed_from",
        property(lambda attempt: attempt.opened.resume),
    ),
    "what was restored and saved again counts as work": (
        AttemptState,
        "resumed_step",
        property(lambda attempt: -1),
    ),
}


@pytest.mark.parametrize("seed", SEEDS)
def test_what_descends_from_a_source_in_quarantine_is_what_a_walk_finds(seed: int) -> None:
    assert list(differences(seed)) == []


@pytest.mark.full
def test_what_descends_is_what_a_walk_finds_in_fresh_worlds() -> None:
    for seed in fresh_seeds(FRESH):
        assert list(differences(seed)) == []


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_planted_in_how_it_is_found_is_noticed(
    fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    where, name, instead = FAULTS[fault]
    monkeypatch.setattr(where, name, instead)
    assert any(any(differences(seed)) for seed in SEEDS)


def differences(seed: int) -> Iterator[str]:
    """Yield each thing of a world of which other sources in quarantine are found than by the walk."""
    world, store = World(Random(seed)), FakeObjectStore()
    world.write_to(store)
    tracks = Tracks(store, now=lambda: BEGIN, new_uid=SequentialUids(), project=lambda _: None)
    held = {quarantined(tracks, source): source for source in sources(world.states)}
    later = [at for at in world.times if at > SETTLED]
    for until in (None, *Random(seed).sample(later, TIMES)):
        oracle = Oracle(world.runs, until or datetime.max.replace(tzinfo=BEGIN.tzinfo))
        asked = Holds(tracks, as_of=until)
        for name, node in things(oracle):
            above = {node, *oracle.above(node)}
            found = set(asked.of_exact(exact(world, name)))
            if found != {mark for mark, source in held.items() if source in above}:
                yield f"seed {seed}, as of {until}, {name}: {sorted(found)}"


def quarantined(tracks: Tracks, source: Node) -> str:
    """Put a source in quarantine, and return what its mark is known by."""
    if source[0] == "snapshot":
        ref = SnapshotRef(dataset=source[1], snapshot_id=source[2])
        assert quarantine_snapshot(tracks, ref, by="ann", why="bad rows")
        return snapshot_name(ref)
    kind, *name = source
    called = attempt_key(name[0], int(name[1])) if kind == "attempt" else name[0]
    text = f"{kind}:{called}"
    body = SourceDecision(source=text, called=text, by="ann", why="it lies")
    assert tracks.decide_quarantines(lambda _: tracks.draft(Kind.SOURCE_QUARANTINED, body))
    return text


def things(oracle: Oracle) -> Iterator[tuple[Node, Node]]:
    """Yield what can be asked about, as a name and as the walk knows it."""
    for node in sources(oracle.states):
        if node[0] in ("attempt", "checkpoint"):
            yield node, node
    for state in oracle.states.values():
        run_id = state.run_id
        tries = {e.opened.eval_id: str(e.opened.number) for e in state.evals}
        given = {p.body.alias: str(p.seq) for p in state.promotions if p.body.promoted}
        for eval_id, number in tries.items():
            yield ("eval", run_id, eval_id), ("eval", run_id, eval_id, number)
        for alias, seq in given.items():
            yield ("promotion", run_id, alias), ("promotion", run_id, seq)

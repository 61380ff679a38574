"""The two machines of append, a reply at a time. Every interleaving is `tests/model`'s work."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from tracks_dagster.track.append import (
    Authority,
    Claim,
    Create,
    Created,
    Done,
    Outcome,
    Read,
    Walk,
    fences,
    withdraws,
)
from tracks_dagster.track.records import Draft, Json, Kind, Record, parse, seal

AT = datetime(2026, 1, 31, 2, 0, tzinfo=UTC)
MINE = Draft(uid="mine", kind=Kind.CHECKPOINT_COMMITTED, body={"step": 20}, attempt_id=2)
AUTHORITY = Authority(attempt_id=2, launch_id="launch-a")


def other(
    kind: Kind, attempt_id: int | None = None, *, seq: int = 5, uid: str = "other", **body: Json
) -> bytes:
    draft = Draft(uid=uid, kind=kind, body=body, attempt_id=attempt_id)
    return seal(draft, seq=seq, at=AT, prev_sha256="before")


def record_of(kind: Kind, attempt_id: int | None = None, **body: Json) -> Record:
    return parse(other(kind, attempt_id, **body), seq=5)


@pytest.fixture
def walk() -> Walk:
    return Walk(draft=MINE, at=AT, seq=5, prev_sha256="before", authority=AUTHORITY)


@pytest.fixture
def claim() -> Claim:
    return Claim(draft=MINE, at=AT, seq=5, prev_sha256="before")


def created_by(machine: Walk | Claim) -> Create:
    assert isinstance(machine.request, Create)
    return machine.request


def step(machine: Walk | Claim, *replies: object) -> Walk | Claim | Done:
    for reply in replies:
        assert not isinstance(machine, Done)
        machine = machine.advance(reply)  # type: ignore[arg-type, assignment]
    return machine


def test_a_walk_reads_before_it_creates(walk: Walk) -> None:
    assert walk.request == Read(5)
    free = walk.advance(None)
    assert isinstance(free, Walk)
    assert free.request == Create(5, seal(MINE, seq=5, at=AT, prev_sha256="before"))
    done = free.advance(Created.YES)
    assert done == Done(outcome=Outcome.APPENDED, record=parse(created_by(free).data, seq=5))


def test_a_walk_goes_past_what_does_not_concern_it_and_chains_to_it(walk: Walk) -> None:
    note = other(Kind.NOTE)
    further = step(walk, note, None)
    assert isinstance(further, Walk)
    data = created_by(further).data
    assert parse(data, seq=6).prev_sha256 == parse(note, seq=5).sha256


def test_a_walk_that_loses_its_place_reads_who_took_it(walk: Walk) -> None:
    lost = step(walk, None, Created.TAKEN)
    assert isinstance(lost, Walk)
    assert lost.request == Read(5)
    passed = lost.advance(other(Kind.NOTE))
    assert isinstance(passed, Walk)
    assert passed.request == Read(6)


@pytest.mark.parametrize("reply", [Created.TAKEN, Created.UNKNOWN])
def test_a_walk_that_meets_its_own_uid_has_landed(walk: Walk, reply: Created) -> None:
    trying = step(walk, None)
    assert isinstance(trying, Walk)
    mine = created_by(trying).data
    done = step(trying, reply, mine)
    assert done == Done(outcome=Outcome.APPENDED, record=parse(mine, seq=5))


def test_a_walk_whose_reply_was_lost_on_the_way_there_creates_the_same_bytes_again(
    walk: Walk,
) -> None:
    first = step(walk, None)
    again = step(walk, None, Created.UNKNOWN, None)
    assert first == again


FENCING = [
    (Kind.ATTEMPT_ENDED, 2, {}),
    (Kind.ATTEMPT_OPENED, 3, {}),
    (Kind.ATTEMPT_OPENED, 4, {}),
    (Kind.RUN_FINISHED, None, {}),
    (Kind.ATTEMPT_PLACED, 2, {"launch_id": "launch-b"}),
]
PASSING = [
    (Kind.ATTEMPT_OPENED, 2, {}),
    (Kind.ATTEMPT_ENDED, 1, {}),
    (Kind.ATTEMPT_PLACED, 2, {"launch_id": "launch-a"}),
    (Kind.ATTEMPT_PLACED, 1, {"launch_id": "launch-b"}),
    (Kind.ATTEMPT_SUPERVISED, 2, {}),
    (Kind.ATTEMPT_RECLASSIFIED, 2, {}),
    (Kind.CHECKPOINT_COMMITTED, 2, {"launch_id": "launch-a"}),
    (Kind.CHECKPOINT_QUARANTINED, None, {"manifest_sha256": "m"}),
    (Kind.STOP_REQUESTED, None, {}),
    (Kind.RETRY_REFUSED, 2, {}),
    (Kind.NOTE, None, {}),
    (Kind.NOTE, 2, {}),
]


@pytest.mark.parametrize(("kind", "attempt_id", "body"), FENCING)
def test_a_trainer_is_fenced_by(
    walk: Walk, kind: Kind, attempt_id: int | None, body: dict[str, Json]
) -> None:
    met = other(kind, attempt_id, **body)
    assert fences(parse(met, seq=5), AUTHORITY)
    done = Done(outcome=Outcome.FENCED, record=parse(met, seq=5))
    assert walk.advance(met) == done
    assert step(walk, None, Created.TAKEN, met) == done
    assert step(walk, None, Created.UNKNOWN, met) == done


@pytest.mark.parametrize(("kind", "attempt_id", "body"), PASSING)
def test_a_trainer_is_not_fenced_by(
    walk: Walk, kind: Kind, attempt_id: int | None, body: dict[str, Json]
) -> None:
    met = other(kind, attempt_id, **body)
    assert not fences(parse(met, seq=5), AUTHORITY)
    assert isinstance(walk.advance(met), Walk)


@pytest.mark.parametrize(("kind", "attempt_id", "body"), FENCING + PASSING)
def test_a_note_is_fenced_by_nothing(
    walk: Walk, kind: Kind, attempt_id: int | None, body: dict[str, Json]
) -> None:
    note = replace(walk, authority=None)
    assert isinstance(note.advance(other(kind, attempt_id, **body)), Walk)


WITHDRAWING = [Kind.CHECKPOINT_QUARANTINED, Kind.CHECKPOINT_DELETED]


@pytest.mark.parametrize("kind", WITHDRAWING)
def test_a_commit_is_abandoned_where_a_checkpoint_that_it_names_is_withdrawn(
    walk: Walk, kind: Kind
) -> None:
    commit = replace(walk, sources=frozenset({"gone", "good"}))
    met = other(kind, manifest_sha256="gone")
    done = Done(outcome=Outcome.ABANDONED, record=parse(met, seq=5))
    assert commit.advance(met) == done
    assert step(commit, None, Created.TAKEN, met) == done
    assert step(commit, None, Created.UNKNOWN, met) == done
    assert isinstance(walk.advance(met), Walk)


@pytest.mark.parametrize("kind", WITHDRAWING)
def test_a_commit_that_landed_before_its_source_was_withdrawn_stands(
    walk: Walk, kind: Kind
) -> None:
    commit = step(replace(walk, sources=frozenset({"gone"})), None)
    assert isinstance(commit, Walk)
    mine = created_by(commit).data
    done = Done(outcome=Outcome.APPENDED, record=parse(mine, seq=5))
    assert step(commit, Created.UNKNOWN, mine) == done


def test_only_a_source_that_is_taken_away_withdraws_it() -> None:
    sources = frozenset({"gone"})
    for kind in WITHDRAWING:
        assert withdraws(record_of(kind, manifest_sha256="gone"), sources)
        assert not withdraws(record_of(kind, manifest_sha256="other"), sources)
    for kind in (Kind.CHECKPOINT_SUPERSEDED, Kind.CHECKPOINT_PINNED, Kind.CHECKPOINT_UNPINNED):
        assert not withdraws(record_of(kind, manifest_sha256="gone"), sources)


def test_a_claim_tries_exactly_one_place(claim: Claim) -> None:
    assert created_by(claim).seq == 5
    mine = created_by(claim).data
    done = Done(outcome=Outcome.APPENDED, record=parse(mine, seq=5))
    assert claim.advance(Created.YES) == done
    assert step(claim, Created.UNKNOWN, mine) == done
    taken = other(Kind.NOTE)
    lost = Done(outcome=Outcome.TAKEN, record=parse(taken, seq=5))
    assert step(claim, Created.TAKEN, taken) == lost
    assert step(claim, Created.UNKNOWN, taken) == lost


def test_a_claim_whose_reply_was_lost_on_the_way_there_is_made_again(claim: Claim) -> None:
    assert step(claim, Created.UNKNOWN, None) == claim


def test_the_machines_can_be_kept_in_sets(walk: Walk, claim: Claim) -> None:
    assert len({walk, replace(walk), claim, replace(claim)}) == 2

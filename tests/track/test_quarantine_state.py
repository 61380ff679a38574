"""The one track of quarantines, and from which checkpoint a run may go on beside it."""

from __future__ import annotations

import pytest

from tests.histories import Grown, History
from tests.hold_values import in_quarantine, lost
from tracks_dagster.holds.hold import CleanStart, clean_start
from tracks_dagster.ledger.track_states import quarantine_rows
from tracks_dagster.track.bodies import Note, SourceDecision
from tracks_dagster.track.errors import TrackBroken
from tracks_dagster.track.names import QUARANTINES_TRACK
from tracks_dagster.track.records import Kind
from tracks_dagster.track.states import quarantine_state
from tracks_dagster.track.states.quarantine_state import QuarantineState


class Quarantines(Grown):
    """The track; every method appends one record."""

    def __init__(self) -> None:
        super().__init__(QUARANTINES_TRACK)
        self.state: QuarantineState | None = None

    def decide(self, kind: Kind, source: str) -> Quarantines:
        body = SourceDecision(source=source, called=source, by="ann", why="bad")
        return self.add(kind, body)

    def _fold(self, record) -> None:  # type: ignore[no-untyped-def]
        self.state = quarantine_state.apply(self.state, record)


def grown(*decisions: str) -> QuarantineState:
    """`+x` puts x in quarantine, `-x` releases it."""
    track = Quarantines()
    kinds = {"+": Kind.SOURCE_QUARANTINED, "-": Kind.SOURCE_RELEASED}
    for decision in decisions:
        track.decide(kinds[decision[0]], decision[1:])
    assert track.state is not None
    return track.state


@pytest.mark.parametrize(
    ("decisions", "in_force"),
    [
        (["+node:a"], {"node:a": 0}),
        (["+node:a", "-node:a"], {}),
        (["+node:a", "-node:a", "+node:a"], {"node:a": 2}),
        (["+node:a", "+node:a"], {"node:a": 0}),  # the oldest counts
        (["+node:a", "+node:a", "-node:a"], {}),  # and one release ends both
        (["+node:a", "+node:b", "-node:a"], {"node:b": 1}),
        (["-node:a"], {}),
    ],
)
def test_what_is_in_force_follows_from_the_records(
    decisions: list[str], in_force: dict[str, int]
) -> None:
    assert {text: each.seq for text, each in grown(*decisions).in_force.items()} == in_force


def test_only_what_changed_is_projected() -> None:
    before, after = grown("+node:a", "+node:b"), grown("+node:a", "+node:b", "-node:b")
    rows = quarantine_rows(after, before)["source_quarantines"]
    assert [(row["seq"], row["source"], row["released_by"]) for row in rows] == [
        (1, "node:b", "ann")
    ]
    assert len(quarantine_rows(after)["source_quarantines"]) == 2


def test_a_note_may_stand_there_and_another_kind_may_not() -> None:
    track = Quarantines().decide(Kind.SOURCE_QUARANTINED, "node:a")
    track.add(Kind.NOTE, Note(by="ann", text="seen"))
    assert track.state is not None
    assert list(track.state.in_force) == ["node:a"]
    with pytest.raises(TrackBroken, match=r"Record 0 .node_struck. does not belong"):
        Quarantines().add(Kind.NODE_STRUCK, Note(by="ann", text="seen"))


def run() -> History:
    """Steps 10 and 20 by attempt 1, 30 by attempt 2, 40 by attempt 3."""
    history = History().declare().open().place().restore().commit(10).commit(20).end("preempted")
    history.open().place().restore().commit(30).end("preempted")
    return history.open().place().restore().commit(40).end("preempted")


@pytest.mark.parametrize(
    ("on_hold", "given_up", "resume"),
    [
        ([], [], 40),
        ([10], [], 40),  # what nobody asks for
        ([40], [], 30),
        ([30, 40], [], 20),
        ([40], [30], 20),  # what a rollback passes over is not a way back
        ([10, 20, 30, 40], [], None),
    ],
)
def test_the_newest_clean_checkpoint_before_what_was_asked_is_taken(
    on_hold: list[int], given_up: list[int], resume: int | None
) -> None:
    state = run().state
    refs = {c.ref.step: c.ref for c in state.checkpoints}
    holds = [in_quarantine(refs[step]) for step in on_hold]
    start = clean_start(state, refs[40], holds, given_up=[refs[step] for step in given_up])
    if resume is None:
        assert start.hold == in_quarantine(refs[40])
        assert start.resume is None
        assert start.words.startswith(
            "Step 40 (attempt 3) descends from node:n-1, which ann put in"
        )
        assert start.words.endswith("No checkpoint before it is left that does not.")
    else:
        assert start.hold is None
        assert start.resume == refs[resume]
        assert bool(start.words) is (resume != 40)


def test_a_fresh_start_stays_one() -> None:
    history = run()
    holds = [in_quarantine(c.ref) for c in history.state.checkpoints]
    assert clean_start(history.state, None, holds) == CleanStart(resume=None)


@pytest.mark.parametrize(
    ("is_lost", "source_is_clean", "goes_on"),
    [(False, True, True), (True, True, False), (False, False, False)],
)
def test_a_branch_goes_back_to_where_it_left_if_that_holds(
    is_lost: bool, source_is_clean: bool, goes_on: bool
) -> None:
    source = run().state.checkpoints[0].ref
    branch = History("b-1").declare(branched_from=source).open().place().restore().commit(50)
    own = branch.end("preempted").state.checkpoints[0].ref
    holds = [in_quarantine(ref) for ref in ([own] if source_is_clean else [own, source])]
    start = clean_start(branch.state, own, [*holds, *([lost(source)] if is_lost else [])])
    assert start.resume == (source if goes_on else None)
    assert (start.hold is None) is goes_on


def test_a_branch_without_a_checkpoint_of_its_own_has_nothing_else() -> None:
    source = run().state.checkpoints[0].ref
    branch = History("b-1").declare(branched_from=source)
    start = clean_start(branch.state, source, [in_quarantine(source)])
    assert start.hold is not None
    assert start.words.startswith("r-1@10 (attempt 1) descends from node:n-1, which ann put in")

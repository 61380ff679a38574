"""Things by name, what an attempt consumed, and how marks flow through a run."""

from __future__ import annotations

from typing import Any

import pytest

from tests.histories import History
from tracks_dagster.holds.hold import ThingKind
from tracks_dagster.holds.lineage import (
    Consumed,
    carried,
    is_code,
    parse_thing,
    ran_a_step,
    skipped_samples,
)
from tracks_dagster.track.bodies import CodeVersion
from tracks_dagster.track.errors import InvalidInput

SHA = "ab" * 32


@pytest.mark.parametrize(
    ("text", "kind", "name"),
    [
        (f"snapshot:aws-docs@{SHA}", ThingKind.SNAPSHOT, f"aws-docs@{SHA}"),
        ("checkpoint:gpt-1@40", ThingKind.CHECKPOINT, "gpt-1@40"),
        ("checkpoint:gpt-1/a02@40", ThingKind.CHECKPOINT, "gpt-1/a02@40"),
        (f"checkpoint:{SHA[:6]}", ThingKind.CHECKPOINT, SHA[:6]),
        ("node:gpu-17.rack:3", ThingKind.NODE, "gpu-17.rack:3"),
        ("code:c0ffee", ThingKind.CODE, "c0ffee"),
        ("code:0.1.0", ThingKind.CODE, "0.1.0"),
        ("attempt:gpt-1/a2", ThingKind.ATTEMPT, "gpt-1/a02"),  # as its partition is written
        ("run:gpt-1", ThingKind.RUN, "gpt-1"),
        ("eval:gpt-1/heldout-loss@40", ThingKind.EVAL, "gpt-1/heldout-loss@40"),
        ("promotion:gpt-1/best", ThingKind.PROMOTION, "gpt-1/best"),
    ],
)
def test_a_thing_is_read_as_it_is_written(text: str, kind: ThingKind, name: str) -> None:
    thing = parse_thing(text)
    assert (thing.kind, thing.name, str(thing)) == (kind, name, f"{kind}:{name}")
    assert parse_thing(str(thing)) == thing


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "names nothing that can be looked up"),
        ("gpt-1@40", "write one of snapshot:DATASET@ID"),
        ("model:gpt", "checkpoint:RUN@STEP, RUN/aNN@STEP or SHA256"),
        ("snapshot:aws-docs", "write snapshot:DATASET@ID"),
        ("checkpoint:gpt-1", "write checkpoint:RUN@STEP"),
        ("checkpoint:abcd", "write checkpoint:RUN@STEP"),  # too short for a sha256
        ("checkpoint:abcd", "The first 6 or more digits are needed of a manifest's sha256"),
        ("checkpoint:gpt-1", "`tracks checkpoints list gpt-1` shows the steps"),
        ("snapshot:flights@b335", "The first 6 or more digits are needed of its id"),
        ("snapshot:flights@b335", "`tracks snapshots list flights` names them"),
        ("snapshot:flights", "ID. `tracks snapshots list flights` names them"),
        ("attempt:gpt-1", "write attempt:RUN/aNN"),
        ("attempt:gpt-1/a0", "names no attempt"),
        ("node:", "write node:NAME"),
        ("promotion:gpt-1", "write promotion:RUN/ALIAS"),
    ],
)
def test_what_names_nothing_is_answered_with_the_form(text: str, says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        parse_thing(text)


CODE = CodeVersion(git_commit="c0ffee11", branch=None, dirty=False, package_version="0.1.0")


@pytest.mark.parametrize(
    ("name", "is_it"),
    [
        ("c0ffee11", True),
        ("c0ff", True),
        ("c0f", False),  # shorter than git's own shortest
        ("c0ffee12", False),
        ("0.1.0", True),
        ("0.1", False),  # a version has no prefix
        (SHA, True),
        (SHA[:6], True),
        (SHA[:5], False),
    ],
)
def test_code_is_named_by_commit_version_or_environment(name: str, is_it: bool) -> None:
    assert is_code(name, CODE, SHA) is is_it
    assert not is_code(SHA[:8], CODE, None)


def test_skipped_samples_lie_between_the_cursors() -> None:
    config: Any = {"global_batch": 24, "skip_windows": [[11, 15]]}
    assert skipped_samples(config, {}, 0, 480) == ((240, 360),)  # blocks 11 to 15 of 24
    assert skipped_samples(config, {}, 0, 240) == ()
    assert skipped_samples(config, {}, 360, 480) == ()
    assert skipped_samples({**config, "skip_windows": "bad"}, {}, 0, 480) == ()
    assert skipped_samples({}, {}, 0, 480) == ()
    theirs: Any = {"batch": 24, "skip_windows": [[11, 15]]}
    assert skipped_samples(theirs, {"global_batch": "batch"}, 0, 480) == ((240, 360),)


def test_what_was_consumed_is_reported_without_what_was_skipped() -> None:
    used = Consumed(cursor_from=0, cursor_to=480, skipped=((240, 360),))
    assert used.words == "samples 0 to 480, without 240 to 360 (skipped)"
    assert "do not number" in Consumed(cursor_from=None, cursor_to=None).words


def begun() -> History:
    return History().declare().open().place().restore()


@pytest.mark.parametrize(
    ("history", "ran"),
    [
        (begun(), False),  # open, and nothing committed
        (begun().commit(10), True),
        (begun().commit(0), False),  # a save before the first step holds what was restored
        (begun().end("preempted"), False),
        (begun().end("preempted", last_step=0), False),
        (begun().end("preempted", last_step=3), True),
        (begun().end("preempted", cursor_from=0, cursor_to=24), True),
        (begun().commit(10).end("preempted").open().place().restore().commit(10), False),
        (begun().commit(10).end("preempted").open().end("unknown", last_step=10), False),
    ],
)
def test_an_attempt_used_samples_if_its_records_show_a_step(history: History, ran: bool) -> None:
    assert ran_a_step(history.state, history.state.attempts[-1]) is ran


def marks_of(history: History, number: int) -> tuple[dict[int, set[str]], dict[int, set[str]]]:
    """Mark one attempt; return what attempts, and checkpoints by seq, carry."""
    attempts, checkpoints = carried(
        history.state,
        by_attempt=lambda a: {"bad": "bad"} if a.attempt_id == number else {},
        by_checkpoint=lambda c: {},
        from_elsewhere=lambda ref: {"elsewhere": "elsewhere"},
    )
    by_seq = {c.seq: set(checkpoints[c.ref.manifest_sha256]) for c in history.state.checkpoints}
    return {n: set(m) for n, m in attempts.items()}, by_seq


def test_marks_pass_through_what_was_saved_after_a_step_and_resumed_from() -> None:
    history = begun().commit(10).end("preempted").open().place().restore()
    history.commit(10).commit(20).end("preempted").open().place().restore().commit(30)
    attempts, saved = marks_of(history, 2)
    assert attempts == {1: set(), 2: {"bad"}, 3: {"bad"}}
    assert list(saved.values()) == [set(), set(), {"bad"}, {"bad"}]


def test_a_rollback_before_the_mark_leaves_it_behind() -> None:
    history = begun().commit(10).end("preempted").open().place().restore().commit(20)
    history.end("nan_loss")
    first = history.state.checkpoints[0].ref
    history.open(resume=first).place().restore(first).commit(30)
    attempts, saved = marks_of(history, 2)
    assert attempts[3] == set()
    assert list(saved.values()) == [set(), {"bad"}, set()]


def test_a_fallback_at_restore_counts_and_not_what_was_asked_for() -> None:
    history = begun().commit(10).end("preempted").open().place().restore().commit(20)
    history.end("preempted").open()
    assert marks_of(history, 2)[0][3] == {"bad"}  # as it was asked to
    history.place().restore(history.state.checkpoints[0].ref)
    assert marks_of(history, 2)[0][3] == set()


def test_a_branch_carries_what_its_source_does() -> None:
    source = begun().commit(10)
    branch = History("b-1").declare(branched_from=source.state.checkpoints[0].ref).open().place()
    attempts, saved = marks_of(branch.restore().commit(20), 7)
    assert attempts == {1: {"elsewhere"}}
    assert list(saved.values()) == [{"elsewhere"}]

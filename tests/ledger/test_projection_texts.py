"""Every record that says something in words is searched by them, and by nothing else."""

from __future__ import annotations

from tests.histories import DatasetHistory, History
from tracks_dagster.ledger.texts import TEXT_CHARACTERS_MAX, text_rows
from tracks_dagster.track.bodies import ConfigChange
from tracks_dagster.track.records import Kind


def said(history: History) -> dict[int, str]:
    return {row["seq"]: row["text"] for row in text_rows(history.name, history.records)}


def test_a_run_is_searched_by_what_was_meant_decided_and_found() -> None:
    change = ConfigChange(key="lr", before=0.003, after=0.001, why="It diverged.")
    history = History().declare(intent="Try a smaller rate.")
    history.open(decision="Attempt 1 begins.", remediation=(change,)).supervise().place().restore()
    history.commit(20).verify()
    history.end("gpu_oom", last_step=23, root_message="CUDA out of memory", lines=("a line",))
    history.reclassify(1, "host_oom").stop().note("Shard 7 is longer.", attempt_id=1).refuse()
    assert said(history) == {
        0: "Try a smaller rate.",
        1: "Attempt 1 begins.\nlr 0.003 → 0.001: It diverged.",
        7: "gpu_oom: CUDA out of memory\na line",
        8: "host_oom: The node's log came in late.\na later line",
        9: "enough",
        10: "Shard 7 is longer.",
        11: "host_oom: The budget is used up.\nLook at the traceback, then `tracks retry`.",
    }


def test_a_row_says_who_said_it_when_and_of_which_attempt() -> None:
    history = History().declare().open().note("Look here.", attempt_id=1)
    note = text_rows(history.name, history.records)[-1]
    assert note == {
        "track": "runs/r-1",
        "seq": 2,
        "kind": "note",
        "run_id": "r-1",
        "attempt_id": 1,
        "author": "ann",
        "text": "Look here.",
        "words": "look here",
        "said_at": history.records[-1].at,
    }


def test_what_machines_say_of_every_checkpoint_is_left_out() -> None:
    history = History().declare().open().place().restore().commit(20).verify().commit(30)
    first = history.state.checkpoints[0].ref
    history.decide_checkpoint(Kind.CHECKPOINT_SUPERSEDED, first)
    history.decide_checkpoint(Kind.CHECKPOINT_QUARANTINED, first)
    assert sorted(said(history)) == [0, 1, 8]


def test_a_dataset_is_searched_as_well_and_belongs_to_no_run() -> None:
    history = DatasetHistory().declare().commit()
    history.decide(Kind.SNAPSHOT_QUARANTINED, history.state.snapshots[0].body.snapshot_id)
    rows = text_rows(history.name, history.records)
    assert [(row["seq"], row["text"], row["run_id"]) for row in rows] == [
        (0, "English text.", None),
        (2, "bad rows", None),
    ]


def test_a_text_is_bounded_and_so_are_its_words() -> None:
    history = History().declare().note("x" + " word" * 2000)
    row = text_rows(history.name, history.records)[-1]
    assert len(row["text"]) == TEXT_CHARACTERS_MAX
    assert len(row["words"]) <= TEXT_CHARACTERS_MAX

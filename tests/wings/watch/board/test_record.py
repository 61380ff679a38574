"""What the record has of a run, as the tables of its page."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from tests.bodies import CONFIG
from tests.histories import History
from tracks_dagster.track.bodies import Artifact, CodeVersion, ConfigChange
from tracks_dagster.track.states.checkpoints import CheckpointRef
from tracks_dagster.track.states.run_state import RunState
from tracks_dagster.wings.watch.board import formats, record
from tracks_dagster.wings.watch.board.record import (
    CHECKPOINTS_MAX,
    CONFIG_KEYS_MAX,
    NOTES_MAX,
    NOTHING_BESIDE,
    Origin,
    Row,
    Section,
)

RUN = "r-1"


def trained(**declared: object) -> History:
    """Return a run that resumed once and has checkpoints of 10, 20 and 30."""
    history = History(RUN).declare(**declared)
    history.open().supervise().place().restore().commit(10).commit(20).end(
        "preempted", last_step=23
    )
    return history.open().supervise().place().restore().commit(30).end("completed", last_step=30)


def texts(row: Row) -> list[str]:
    """Return what a person reads of a row's cells, each cell's words together."""
    return [" ".join(filter(None, (each.text, each.soft, each.command))) for each in row]


def sections_of(state: RunState) -> dict[str, Section]:
    """Return all sections of a run by key."""
    now = state.head.at + timedelta(minutes=5)
    found = (
        *record.results(state, NOTHING_BESIDE, now),
        *record.record(state, NOTHING_BESIDE, now),
    )
    return {each.key: each for each in found}


def test_a_config_begins_with_what_differs_from_its_origin() -> None:
    state = trained(config={**CONFIG, "lr": 0.01}).state
    before = {**CONFIG, "lr": 0.003, "gone": [1, 2]}
    origin = Origin(run_id="base", config=before, why="which it branched from")
    found = record.config(state, origin)
    assert [texts(row) for row in found.rows] == [["gone", "–", "[1, 2]"], ["lr", "0.01", "0.003"]]
    assert found.heads[-1] == "base"
    assert {row[0].text for row in found.folded} == set(CONFIG) - {"lr"}
    assert "base, which it branched from" in found.words[0]


def test_a_remedied_key_is_shown_with_the_value_that_was_declared() -> None:
    history = History(RUN).declare().open().supervise().place().restore().end("gpu_oom")
    change = ConfigChange(key="micro_batch", before=4, after=2, why="half")
    history.open(config={**CONFIG, "micro_batch": 2}, remediation=(change,))
    (row,) = record.config(history.state, None).rows
    assert texts(row)[:2] == ["micro_batch", "2 declared 4"]


def test_a_config_without_an_origin_is_folded_whole() -> None:
    found = record.config(trained().state, None)
    assert (found.rows, found.words) == ((), ())
    assert len(found.folded) == len(CONFIG)


def test_evals_are_shown_with_what_they_measured_their_data_and_their_files() -> None:
    history = trained()
    opened = history.open_eval(history.state.resumable[-1]).state.evals[-1].opened
    left = (Artifact(name="plots/roc.png", size_bytes=4096, sha256="a" * 64),)
    history.end_eval(opened, metrics={"loss": 3.5, "accuracy": 0.75}, artifacts=left)
    found = sections_of(history.state)
    (row,) = found["evals"].rows
    assert row[0].text == opened.suite
    assert row[1].text == "30"
    assert row[2].text == "accuracy 0.7500, loss 3.500"
    assert f"seed {opened.seed}" in row[3].soft
    (file,) = found["files"].rows
    assert file[0].text == "plots/roc.png"
    assert file[0].address == f"/runs/{RUN}/evals/heldout-loss%4030/1/plots/roc.png"
    assert file[1].text == "4\u202f096 B"


def test_evals_say_what_they_wait_for_until_the_run_is_finished() -> None:
    history = trained()
    assert record.evals(history.state, 3).words == ("Waits: heldout-loss@30: attempt 1 is due.",)
    history.waive_eval().finish()
    (words,) = record.evals(history.state, 3).words
    assert words.startswith("heldout-loss was let go by ")


def test_an_alias_shows_who_has_it_now() -> None:
    history = trained()
    opened = history.open_eval(history.state.resumable[-1]).state.evals[-1].opened
    history.end_eval(opened).promote(opened)
    state = history.state
    body = state.promotions[-1].body
    mine = {body.alias: (RUN, body.checkpoint.manifest_sha256)}
    now = state.head.at
    (row,) = record.aliases(state, mine, now).rows
    assert row[0].soft == "it has the alias now"
    (row,) = record.aliases(state, {body.alias: ("other", "b" * 64)}, now).rows
    assert row[0].soft == "other has the alias now"
    assert row[2].text == "promoted"


def test_a_checkpoint_shows_why_it_is_there_and_the_command_that_takes_it_away() -> None:
    history = trained()
    history.verify(history.state.resumable[-1])
    state = history.state
    context = replace(NOTHING_BESIDE, resumes_from=state.resumable[-1])
    found = record.checkpoints(state, context, state.head.at)
    assert [row[0].text for row in found.rows] == ["30", "20", "10"]
    newest, older = found.rows[0], found.rows[2]
    assert "a resume starts from it" in newest[3].text
    assert newest[1].soft.startswith("verified ")
    assert newest[4].command == f"tracks checkpoints export {RUN}@30 --bundle {RUN}-30"
    assert older[1].soft == "not verified yet"
    assert older[4].command == f"tracks checkpoints verify {RUN} --step 10"


def test_a_step_that_two_attempts_saved_names_its_attempt_in_the_command() -> None:
    history = History(RUN).declare().open().supervise().place().restore().commit(10)
    history.end("preempted", last_step=10).open(resume=None).supervise().place().restore()
    rows = record.checkpoints(history.commit(10).state, NOTHING_BESIDE, history.at).rows
    assert [row[4].command.rpartition("--attempt ")[2] for row in rows] == ["2", "1"]


def test_a_checkpoint_that_descends_from_a_quarantined_source_says_so() -> None:
    state = trained().state
    sha256 = state.resumable[0].manifest_sha256
    context = replace(NOTHING_BESIDE, quarantined={sha256: ["snapshot:words@abc"]})
    row = record.checkpoints(state, context, state.head.at).rows[-1]
    assert "no start from it: snapshot:words@abc is in quarantine" in row[3].text


def test_of_many_checkpoints_the_newest_are_shown_and_the_rest_is_counted() -> None:
    history = History(RUN).declare().open().supervise().place().restore()
    for step in range(1, CHECKPOINTS_MAX + 6):
        history.commit(step)
    found = record.checkpoints(history.state, NOTHING_BESIDE, history.at)
    assert len(found.rows) == CHECKPOINTS_MAX
    assert "5 older" in found.words[-1]
    assert f"`tracks checkpoints list {RUN}`" in found.words[-1]


def test_code_and_data_lead_to_their_lineage_their_source_and_the_difference() -> None:
    source = CheckpointRef("base", 1, 40, "runs/base/x/", "c" * 64)
    code = CodeVersion(
        git_commit="d" * 40, branch="main", dirty=True, package_version="1", diff_sha256="e" * 64
    )
    state = History(RUN).declare(branched_from=source, code=code).state
    origin = Origin(run_id="base", config=CONFIG, why="which it branched from")
    found = {row[0].text: row for row in record.code_and_data(state, origin).rows}
    assert found["data"][1].address.startswith("/lineage?thing=snapshot%3A")
    assert found["local changes"][1].address == f"/runs/{RUN}/code.diff"
    assert found["came from"][1].address == "/runs/base"
    assert found["difference"][1].address == f"/compare?run=base&run={RUN}"
    assert found["difference"][2].command == f"tracks diff base {RUN}"


def test_notes_and_stops_are_shown_newest_first_and_bounded() -> None:
    history = trained()
    for number in range(NOTES_MAX + 2):
        history.note(f"note {number}", attempt_id=1)
    found = sections_of(history.state)["notes"]
    assert found.rows[0][0].text == f"note {NOTES_MAX + 1}"
    assert found.rows[0][1].soft == "of a01"
    assert len(found.rows) == NOTES_MAX
    assert "2 older notes" in found.words[-1]


def test_a_page_stays_small_whatever_the_record_has() -> None:
    config = {f"k{number}": number for number in range(1000)}
    found = record.config(History(RUN).declare(config=config).state, None)
    assert len(found.folded) == CONFIG_KEYS_MAX
    assert "`tracks explain r-1 --json`" in found.words[-1]


def test_what_is_empty_is_left_out() -> None:
    found = sections_of(History(RUN).declare(evals=()).state)
    assert {"evals", "aliases", "checkpoints", "files", "notes"}.isdisjoint(found)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 B"),
        (9_999, "9\u202f999 B"),
        (10_240, "10 KiB"),
        (3_000_000, "2.861 MiB"),
        (2**50, "1\u202f024 TiB"),
    ],
)
def test_a_size_is_shown_in_the_unit_that_fits(value: int, text: str) -> None:
    assert formats.size(value) == text


def test_an_eval_that_failed_as_often_as_it_is_tried_says_what_a_person_can_do() -> None:
    history = trained()
    for _ in range(3):
        opened = history.open_eval(history.state.resumable[-1]).state.evals[-1].opened
        history.end_eval(opened, "evaluator_error")
    (words,) = record.evals(history.state, 3).words
    assert words.startswith("Waits: heldout-loss@30: failed 3 times")

"""A branch goes on from a checkpoint of another run: pinned first, then declared, both resumable."""

from __future__ import annotations

import io
import tarfile
from dataclasses import replace
from typing import Any

import pytest

from tests.asked import CODE, Asked, declare
from tests.attempts.test_runs import REQUEST
from tests.bodies import declared
from tests.deciders import retried, settled_run
from tests.examples import example, example_config
from tests.fakes import FakeClock, FakeObjectStore, Fault
from tests.histories import History
from tests.reports import render_report
from tests.stories import Story
from tracks_dagster.attempts.effects.branches import find_origin
from tracks_dagster.attempts.recorded import recorded_project
from tracks_dagster.checkpoints.effects.pins import pin_source, release_branches
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.projects.project import ConfigKey, Project, requirement_of
from tracks_dagster.review.effects.explain.run import explain_run
from tracks_dagster.review.effects.metadata import attempt_metadata
from tracks_dagster.review.effects.status import run_line
from tracks_dagster.review.explain.text import run_text
from tracks_dagster.review.narrate import sentence
from tracks_dagster.track.bodies import CheckpointCadence, ComputeRequest, Program, RetentionRule
from tracks_dagster.track.errors import InvalidInput, StoreUnavailable, UnknownRun
from tracks_dagster.track.records import Draft, Kind, sha256_hex
from tracks_dagster.track.states.checkpoints import CheckpointRef
from tracks_dagster.track.states.run_state import RunState
from tracks_dagster.track.track import code_diff_key, code_key

DAY_S = 24 * 3600.0
CONFIG = example_config({"steps": 40, "seed": 11, "lr": 0.002}, ranks=2)
REMEDIED = {**CONFIG, "micro_batch": 2, "accumulation": 6}
BRANCH = REQUEST.but(run_id="b-1", config={}, found=None)
KEY = code_key("r-0", sha256_hex(b"a tar"))
SEED = {"seed": ConfigKey(default=7), "steps": ConfigKey(default=40)}


@pytest.fixture
def source(story: Story, store: FakeObjectStore) -> History:
    """A run that committed steps 10 and 20, each by another attempt, and is open; its data is there."""
    for dataset in story.datasets:
        dataset.write_to(store)
    history = History("r-0").declare(
        config=CONFIG,
        snapshot=story.snapshot,
        trainer=KEY,
        program=Program(entry=("train.py",)),
    )
    store.put(KEY, b"a tar")
    history.open().place().restore().commit(10).end("gpu_oom", last_step=14)
    history.open(config=REMEDIED).place().restore().commit(20)
    history.write_to(store)
    return history


def branched(tracks: Tracks, at: str = "r-0@20", **changes: Any) -> Asked:
    """Return a branch that is given `changes`."""
    return BRANCH.but(origin=find_origin(tracks, at, run_id="b-1"), **changes)


def decide_source(tracks: Tracks, history: History, kind: Kind, ref: CheckpointRef) -> None:
    """Append a decision about a checkpoint of the source, as another process would."""
    draft = history.decide_checkpoint(kind, ref).drafts[-1]

    def choose(state: RunState | None) -> Draft | None:
        return draft

    tracks.decide_run(history.run_id, choose)


def kinds(tracks: Tracks, run_id: str) -> list[Kind]:
    return [record.kind for record in tracks.records(f"runs/{run_id}")]


def test_a_branch_inherits_what_the_attempt_that_wrote_the_checkpoint_ran_with(
    source: History, tracks: Tracks, story: Story
) -> None:
    request = branched(tracks, config={"steps": 60})
    with pytest.raises(InvalidInput, match=r"cost about 2.9 times as much as r-0, .* --expect"):
        declare(tracks, request)
    assert tracks.find_run("b-1") is None
    declared = declare(tracks, request.but(expect="a lower loss"))
    assert declared.expect == "a lower loss"
    assert declared.config == {**REMEDIED, "steps": 60}
    assert (declared.compute.ranks, declared.snapshot) == (2, story.snapshot)
    assert declared.branched_from == source.state.checkpoints[1].ref
    assert declared.code == source.state.declared.code
    assert declared.estimated_device_s == 2 * (60 + 40)  # ranks × (start + steps that are left)
    [attempt] = tracks.run("b-1").attempts
    assert (attempt.opened.cause, attempt.opened.resume) == ("first", declared.branched_from)
    assert "r-0@20" in attempt.opened.decision


def test_a_branch_saves_and_keeps_as_its_source_did_where_nothing_else_is_given(
    story: Story, store: FakeObjectStore, tracks: Tracks
) -> None:
    for dataset in story.datasets:
        dataset.write_to(store)
    rule = RetentionRule(keep_last=7, keep_best=2, metric="val", milestone_every_steps=100)
    store.put(KEY, b"a tar")
    history = History("r-0").declare(
        config=CONFIG,
        snapshot=story.snapshot,
        trainer=KEY,
        cadence=CheckpointCadence(every_steps=25, every_s=600.0),
        retention=rule,
        compute=ComputeRequest(ranks=2, device_class="h200"),
        stage="full",
        team="speech",
        workload_class="urgent",
    )
    history.open().place().restore().commit(20).write_to(store)
    taken = declare(tracks, branched(tracks))
    assert (taken.cadence, taken.retention) == (history.state.declared.cadence, rule)
    assert taken.compute == ComputeRequest(ranks=2, device_class="h200")
    assert (taken.stage, taken.team, taken.owner) == ("full", "speech", "ann")
    assert taken.workload_class == "urgent"
    body = branched(tracks, checkpoint_every_steps=5, keep_last=4).prepared().body
    assert body.cadence == CheckpointCadence(every_steps=5, every_s=600.0)
    assert body.retention == replace(rule, keep_last=4)


def test_the_source_is_pinned_for_the_branch_and_stays_resumable(
    source: History, tracks: Tracks
) -> None:
    declare(tracks, branched(tracks))
    state = tracks.run("r-0")
    assert [checkpoint.pins for checkpoint in state.checkpoints] == [frozenset(), {"branch:b-1"}]
    assert state.open_attempt is not None
    assert state.resumes_from == source.state.checkpoints[1].ref


def test_a_pass_over_the_source_lets_go_of_a_branch_that_is_finished(
    source: History, tracks: Tracks, store: FakeObjectStore, clock: FakeClock
) -> None:
    pin_source(tracks, source.state.checkpoints[1].ref, "b-1", by="ann")
    branch = History("b-1").declare().open().place().restore().commit(30)
    branch.write_to(store)
    clock.advance(7 * DAY_S)
    assert release_branches(tracks, "r-0", by="tests") == ()  # it may still fall back to its source
    branch.end("completed", last_step=40).finish().write_to(store)
    (record,) = release_branches(tracks, "r-0", by="tests")
    assert record.body["why"] == "b-1 is finished."
    assert tracks.run("r-0").checkpoints[1].pins == frozenset()
    assert release_branches(tracks, "r-0", by="tests") == ()


def test_the_pin_of_a_branch_that_was_never_declared_is_let_go_after_a_day(
    source: History, tracks: Tracks, clock: FakeClock
) -> None:
    ref = source.state.checkpoints[1].ref
    pin_source(tracks, ref, "b-1", by="ann")
    clock.advance(DAY_S - 1)
    assert release_branches(tracks, "r-0", by="tests") == ()
    clock.advance(1)
    (record,) = release_branches(tracks, "r-0", by="tests")
    assert "not declared within 24 hours" in record.body["why"]
    pin_source(tracks, ref, "b-1", by="ann")  # the same command again
    assert tracks.run("r-0").checkpoints[1].pins == {"branch:b-1"}


def test_what_is_given_replaces_what_is_inherited(source: History, tracks: Tracks) -> None:
    mine = {"project": Project(name="gpt", entry=("mine.py",), is_open=True), "archive": b"mine"}
    given = {"seed": 3, "steps": 50, "mine": 1}
    request = branched(tracks, config=given, expect="as good", **mine)
    declared = declare(tracks, request)
    assert (declared.config["seed"], declared.config["mine"]) == (3, 1)
    assert declared.config["lr"] == 0.002
    assert declared.trainer == f"runs/b-1/trainer/{sha256_hex(b'mine')}.tar"
    assert declared.program == Program(entry=("mine.py",))
    assert declared.config["accumulation"] == 6  # 24 samples of one rank in fours


def test_a_project_leaves_out_what_a_script_took_that_its_file_does_not_list(
    data: Story, store: FakeObjectStore, tracks: Tracks
) -> None:
    mine = {"project": Project(name="gpt", entry=("mine.py",), keys=SEED), "archive": b"mine"}
    key = f"runs/r-0/trainer/{sha256_hex(b'theirs')}.py"
    history = History("r-0").declare(config=CONFIG, snapshot=data.snapshot, trainer=key)
    history.open().place().restore().commit(20).write_to(store)
    declared = declare(tracks, branched(tracks, expect="as good", **mine))
    assert declared.config["seed"] == CONFIG["seed"]
    assert not {"lr", "layers"} & declared.config.keys()
    with pytest.raises(InvalidInput, match="'lr' is not a config key"):
        declare(tracks, branched(tracks, config={"lr": 0.1}, **mine).but(run_id="b-2"))


def test_a_key_that_the_sources_file_listed_is_not_left_out(
    data: Story, store: FakeObjectStore, tracks: Tracks
) -> None:
    mine = {"project": Project(name="gpt", entry=("mine.py",), keys=SEED), "archive": b"mine"}
    listed = Program(entry=("train.py",), takes_any_key=False)
    history = History("r-0").declare(
        config=CONFIG, snapshot=data.snapshot, trainer=KEY, program=listed
    )
    history.open().place().restore().commit(20).write_to(store)
    with pytest.raises(InvalidInput, match="'lr' is not a config key"):
        declare(tracks, branched(tracks, **mine))


def test_the_script_of_the_source_is_stored_with_the_branch(
    story: Story, store: FakeObjectStore, tracks: Tracks
) -> None:
    for dataset in story.datasets:
        dataset.write_to(store)
    key = f"runs/r-0/trainer/{sha256_hex(b'theirs')}.py"
    history = History("r-0").declare(config=CONFIG, snapshot=story.snapshot, trainer=key)
    history.open().place().restore().commit(20).write_to(store)
    with pytest.raises(InvalidInput, match="give it with --trainer"):
        branched(tracks).prepared()
    store.put(key, b"changed")
    with pytest.raises(InvalidInput, match="or was changed there; give it with --trainer"):
        branched(tracks).prepared()
    store.put(key, b"theirs")
    declared = declare(tracks, branched(tracks))
    with tarfile.open(fileobj=io.BytesIO(store.objects[declared.trainer])) as tar:
        script = tar.extractfile("trainer.py")
        assert script is not None
        assert script.read() == b"theirs"
    assert declared.program == Program(entry=("trainer.py",))
    assert declared.trainer.startswith("runs/b-1/trainer/")
    assert declared.code.git_commit is None  # older versions recorded their own checkout's


def test_a_branch_of_an_older_versions_family_takes_the_code_of_its_example(
    source: History, story: Story, store: FakeObjectStore, tracks: Tracks
) -> None:
    before = {**CONFIG, "hang_s": 90.0, "skip_windows": []}  # which every family's config had
    history = History("r-8").declare(config=before, snapshot=story.snapshot)
    history.open().place().restore().commit(20).write_to(store)
    assert find_origin(tracks, "r-8@20", run_id=None).is_of_family
    with pytest.raises(InvalidInput, match="The code of r-8, family, is not in the store"):
        branched(tracks, "r-8@20").prepared()
    declared = declare(tracks, branched(tracks, "r-8@20", project=example(), archive=b"a tar"))
    assert declared.program == Program(entry=("train.py",), takes_any_key=False)
    assert declared.config == before


def test_inherited_code_is_of_the_sources_checkout(
    source: History, tracks: Tracks, store: FakeObjectStore, story: Story
) -> None:
    key, diff_sha256 = code_key("r-9", sha256_hex(b"a tar")), sha256_hex(b"+ theirs")
    theirs = replace(CODE, diff_sha256=diff_sha256)
    history = History("r-9").declare(
        config=CONFIG,
        snapshot=story.snapshot,
        trainer=key,
        program=Program(entry=("train.py",)),
        code=replace(theirs, git_commit="theirs"),
    )
    history.open().place().restore().commit(20).write_to(store)
    store.put(key, b"a tar")
    store.put(code_diff_key("r-9", diff_sha256), b"+ theirs")
    declared = declare(tracks, branched(tracks, "r-9@20"))
    assert declared.code.git_commit == "theirs"
    diff = store.objects[f"runs/b-1/code/{declared.code.diff_sha256}.diff"]
    assert (diff, declared.program) == (b"+ theirs", Program(entry=("train.py",)))


def test_of_two_checkpoints_of_one_step_the_newest_attempts_is_taken_unless_one_is_named(
    source: History, tracks: Tracks, store: FakeObjectStore
) -> None:
    source.end("preempted").open(resume=source.state.checkpoints[0].ref).place().restore()
    source.commit(20).write_to(store)
    assert find_origin(tracks, "r-0@20", run_id=None).ref.attempt_id == 3
    assert find_origin(tracks, "r-0@20", run_id=None, attempt_id=2).ref.attempt_id == 2
    with pytest.raises(UnknownRun, match="by attempt 1 that can be read"):
        find_origin(tracks, "r-0@20", run_id=None, attempt_id=1)


@pytest.mark.parametrize("fault", [Fault.FAILS, Fault.LOST_AFTER, Fault.LOST_UNTIL_LATER])
@pytest.mark.parametrize("creation", [1, 3, 4], ids=["pin", "run_declared", "attempt_opened"])
def test_a_command_killed_on_the_way_leaves_at_most_a_pin_and_is_completed_by_the_next(
    creation: int, fault: Fault, source: History, tracks: Tracks, store: FakeObjectStore
) -> None:
    request = branched(tracks)
    before = kinds(tracks, "r-0")
    store.fail("create", creation, fault)
    try:
        declare(tracks, request)
    except StoreUnavailable:
        assert fault is Fault.FAILS
        if creation <= 3:
            assert tracks.find_run("b-1") is None
        assert len(kinds(tracks, "r-0")) == len(before) + (creation > 1)
    declare(tracks, branched(tracks))
    assert kinds(tracks, "r-0") == [*before, Kind.CHECKPOINT_PINNED]
    assert kinds(tracks, "b-1") == [Kind.RUN_DECLARED, Kind.ATTEMPT_OPENED]


def test_a_source_that_is_withdrawn_before_it_is_pinned_gives_no_branch(
    source: History, tracks: Tracks, store: FakeObjectStore
) -> None:
    request = branched(tracks)
    ref = source.state.checkpoints[1].ref
    decide_source(tracks, source, Kind.CHECKPOINT_QUARANTINED, ref)
    with pytest.raises(InvalidInput, match=r"r-0@20 .*was quarantined and cannot be branched from"):
        declare(tracks, request)
    assert tracks.find_run("b-1") is None
    assert tracks.run("r-0").checkpoints[1].pins == frozenset()
    assert not [key for key in store.objects if key.startswith("runs/b-1/")]


@pytest.mark.parametrize(
    ("at", "changes", "hint"),
    [
        ("r-0", {}, "names no checkpoint"),
        ("r-0@15", {}, r"no checkpoint of step 15.*10 \(attempt 1\), 20 \(attempt 2\)"),
        ("nobody@20", {}, "no training run 'nobody'"),
        ("r-0@20", {"family": "tabular"}, "project gpt, which tabular cannot load"),
        ("r-0@20", {"config": {"steps": 20}}, "use --steps 21 or more"),
        ("r-0@20", {"config": {"steps": 5}}, "nothing to do"),
        ("r-0@20", {"ranks": 5}, "multiple of 5"),
        ("r-0@20", {"snapshot_id": "f" * 64}, "no snapshot .* of dataset aws-docs"),
    ],
)
def test_a_branch_that_cannot_be_is_refused_in_words_and_nothing_is_written(
    at: str,
    changes: dict[str, Any],
    hint: str,
    source: History,
    tracks: Tracks,
    store: FakeObjectStore,
) -> None:
    before = dict(store.objects)
    with pytest.raises((InvalidInput, UnknownRun), match=hint):
        declare(tracks, branched(tracks, at, **changes))
    assert store.objects == before


def test_a_snapshot_of_another_dataset_is_refused(
    source: History, tracks: Tracks, story: Story, store: FakeObjectStore
) -> None:
    other = story.history.state.declared.evals[0].snapshot  # held-out documents
    before = dict(store.objects)
    with pytest.raises((InvalidInput, UnknownRun), match="of dataset aws-docs"):
        declare(tracks, branched(tracks, snapshot_id=other.snapshot_id))
    assert store.objects == before


@pytest.mark.parametrize("kind", [Kind.CHECKPOINT_QUARANTINED, Kind.CHECKPOINT_DELETED])
def test_a_checkpoint_that_nobody_may_resume_from_cannot_be_branched_from(
    kind: Kind, source: History, tracks: Tracks, store: FakeObjectStore
) -> None:
    source.decide_checkpoint(kind, source.state.checkpoints[1].ref).write_to(store)
    with pytest.raises(UnknownRun, match=r"no checkpoint of step 20.*10 \(attempt 1\)"):
        branched(tracks)


def test_a_run_that_exists_is_not_a_branch_of_something_else(
    source: History, tracks: Tracks
) -> None:
    declare(tracks, branched(tracks))
    assert declare(tracks, branched(tracks)).run_id == "b-1"  # the same command again
    with pytest.raises(InvalidInput, match=r"b-1 exists and is a branch of r-0@20"):
        find_origin(tracks, "r-0@10", run_id="b-1")
    with pytest.raises(InvalidInput, match=r"r-0 exists and is not a branch"):
        find_origin(tracks, "r-0@10", run_id="r-0")


def test_a_retry_of_a_branch_whose_source_was_quarantined_is_refused_in_a_record(
    source: History, tracks: Tracks
) -> None:
    declare(tracks, branched(tracks))
    branch = History("b-1").declare(branched_from=source.state.checkpoints[1].ref).open()
    for draft in branch.place().restore().end("preempted", last_step=23).drafts[2:]:
        append(tracks, draft)
    decide_source(tracks, source, Kind.CHECKPOINT_QUARANTINED, source.state.checkpoints[1].ref)
    settled = settled_run(tracks, "b-1")
    assert settled.what == "refused"
    assert "r-0@20 (attempt 2) was quarantined" in settled.why
    with pytest.raises(InvalidInput, match="b-1 cannot be retried: r-0@20"):
        retried(tracks, "b-1", by="ann", why="again")


def test_a_person_retries_a_branch_from_its_source(source: History, tracks: Tracks) -> None:
    declare(tracks, branched(tracks))
    branch = History("b-1").declare(branched_from=source.state.checkpoints[1].ref).open()
    append(tracks, branch.end("user_cancelled").drafts[-1])
    retried(tracks, "b-1", by="ann", why="again")
    assert tracks.run("b-1").attempts[1].opened.resume == source.state.checkpoints[1].ref


def test_the_edge_is_shown_wherever_people_look(
    source: History, tracks: Tracks, ledger: Ledger
) -> None:
    declare(tracks, branched(tracks))
    branch = History("b-1").declare(branched_from=source.state.checkpoints[1].ref).open()
    append(tracks, branch.place().drafts[-1])
    append(tracks, branch.restore().drafts[-1])
    text = run_text(explain_run(tracks, "b-1"))
    assert "from step 20 of attempt 2 of r-0, which it branched from, manifest" in text
    assert "a branch of r-0@20" in render_report(tracks, "b-1")
    assert "a branch of r-0@20" in sentence(tracks.records("runs/b-1")[0])
    assert run_line(tracks, tracks.run("b-1"), None).branched_from == "r-0@20"
    assert attempt_metadata(tracks, "b-1", 1)["steps/resumed_from"] == "r-0@20"
    [row] = ledger.query(
        "select r.branched_from_run_id, r.branched_from_step, a.resumed_from_run_id, c.pins_json"
        " from training_runs r join training_attempts a on a.run_id = r.run_id"
        " join checkpoints c on c.manifest_sha256 = r.branched_from_manifest_sha256"
        " where r.run_id = 'b-1'"
    )
    assert tuple(row.values()) == ("r-0", 20, "r-0", '["branch:b-1"]')


def append(tracks: Tracks, draft: Draft) -> None:
    """Append a record of the branch that another process writes."""

    def choose(state: RunState | None) -> Draft | None:
        return draft

    tracks.decide_run("b-1", choose)


def test_what_a_run_records_of_its_evals_is_what_a_branch_of_it_declares() -> None:
    own = replace(
        declared().evals[0],
        program=Program(entry=("evaluate.py",)),
        every=2,
        is_required=False,
        timeout_s=90.0,
        needs_device=False,
        of="quality",
    )
    state = History().declare(evals=(own,), promotion=None).open().state
    project = recorded_project(state, state.attempts[0])
    [again] = (requirement_of(project, each, own.snapshot, seed=own.seed) for each in project.evals)
    assert again == own

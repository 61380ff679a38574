"""Declaring a training run: everything is checked before anything is written."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from tests.asked import asked, declare
from tests.deciders import retried
from tests.fakes import FakeClock, FakeObjectStore, Fault, SequentialUids
from tests.histories import History
from tests.stories import Story
from tracks_dagster.attempts.effects.runs import estimate_device_s, new_run_id
from tracks_dagster.holds.effects.stops import request_stop
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.projects.project import ConfigKey, OwnEval, Project
from tracks_dagster.retry.default_policy import DEFAULT_POLICY
from tracks_dagster.review.effects.explain.run import explain_attempt
from tracks_dagster.review.explain.text import attempt_text
from tracks_dagster.scheduling.policy import Allowance, SchedulingPolicy
from tracks_dagster.track.bodies import CodeVersion, Drill, Program
from tracks_dagster.track.errors import InvalidInput, StoreUnavailable
from tracks_dagster.track.records import Kind, sha256_hex
from tracks_dagster.track.states.run_state import RunState
from tracks_dagster.track.track import code_diff_key

REQUEST = asked(
    run_id="r-1",
    intent="See how it goes.",
    config={"steps": 40, "seed": 7},
    owner="ann",
)


def state(tracks: Tracks) -> RunState:
    return tracks.run("r-1")


def test_a_declared_run_has_its_first_attempt_open(data: Story, tracks: Tracks) -> None:
    declared = declare(tracks, REQUEST)
    assert declared == state(tracks).declared
    [attempt] = state(tracks).attempts
    assert (attempt.opened.cause, attempt.opened.resume) == ("first", None)
    assert attempt.opened.config == declared.config
    assert attempt.opened.counted_seqs == (0,)
    assert declared.snapshot == data.snapshot
    [required] = declared.evals
    assert required.snapshot.dataset == "aws-docs-heldout"
    assert declared.promotion is not None
    assert declared.promotion.metric == "loss"


def test_declaring_it_again_changes_nothing(data: Story, tracks: Tracks) -> None:
    first = declare(tracks, REQUEST)
    assert declare(tracks, REQUEST.but(config={"steps": 99})) == first
    assert state(tracks).head.seq == 1


@pytest.mark.parametrize("creation", [2, 3], ids=["run_declared", "attempt_opened"])
@pytest.mark.parametrize("fault", [Fault.FAILS, Fault.LOST_AFTER, Fault.LOST_UNTIL_LATER])
def test_a_command_killed_on_the_way_is_completed_by_the_next(
    creation: int, fault: Fault, data: Story, tracks: Tracks, store: FakeObjectStore
) -> None:
    store.fail("create", creation, fault)
    try:
        declare(tracks, REQUEST)
    except StoreUnavailable:
        assert fault is Fault.FAILS
    declare(tracks, REQUEST)
    kinds = [record.kind for record in tracks.records("runs/r-1")]
    assert kinds == [Kind.RUN_DECLARED, Kind.ATTEMPT_OPENED]


def test_drills_stand_in_the_declaration_with_their_limits(data: Story, tracks: Tracks) -> None:
    declared = declare(tracks, REQUEST.but(drills=("preempt@23,grace=0", "gpu_oom@31")))
    assert declared.drills == (
        Drill(kind="preempt", step=23, grace_s=0.0),
        Drill(kind="gpu_oom", step=31, micro_batch_max=2),  # half of the default micro-batch, 4
    )


TINY = Project(
    name="tiny",
    entry=("train.py", "--lr={lr}"),
    keys={"lr": ConfigKey(default=0.1), "max_iters": ConfigKey(default=40)},
    roles={"steps": "max_iters", "lr": "lr"},
)
OWN = REQUEST.but(project=TINY, archive=b"a tar", config={"max_iters": 5})


def test_a_project_is_recorded_with_its_own_code_and_config_and_nothing_of_ours(
    data: Story, tracks: Tracks, store: FakeObjectStore
) -> None:
    declared = declare(tracks, OWN)
    assert declared.trainer == f"runs/r-1/trainer/{sha256_hex(b'a tar')}.tar"
    assert store.objects[declared.trainer] == b"a tar"
    assert declared.program == Program(entry=("train.py", "--lr={lr}"), takes_any_key=False)
    assert declared.config == {"lr": 0.1, "max_iters": 5}
    assert declared.roles == {"steps": "max_iters", "lr": "lr"}
    assert (declared.model_family, declared.snapshot) == ("tiny", None)
    assert (declared.evals, declared.promotion) == ((), None)
    assert declared.estimated_device_s == estimate_device_s(5, 1)
    result = attempt_text(explain_attempt(tracks, "r-1", 1))
    assert "no snapshot was named" in result


def test_a_run_that_names_no_steps_has_no_estimate_and_no_cap(data: Story, tracks: Tracks) -> None:
    script = Project(name="tiny", entry=("train.py",), is_open=True)
    code = CodeVersion(git_commit=None, branch=None, dirty=None, package_version="9.9")
    request = OWN.but(project=script, config={"temperature": 0.5}, code=code)
    declared = declare(tracks, request)
    result = attempt_text(explain_attempt(tracks, "r-1", 1))
    assert f"stored code {sha256_hex(b'a tar')}; no git checkout" in result
    assert "9.9" not in result  # the version is of this package, and not of that code
    assert (declared.config, declared.estimated_device_s) == ({"temperature": 0.5}, None)
    assert DEFAULT_POLICY.device_s_cap(None) == math.inf


def test_a_project_with_a_dataset_trains_on_its_newest_snapshot(
    data: Story, tracks: Tracks
) -> None:
    named = OWN.but(project=replace(TINY, dataset="aws-docs"))
    assert declare(tracks, named).snapshot == data.snapshot


def test_a_run_names_a_class_and_a_team_that_the_policy_has(data: Story, tracks: Tracks) -> None:
    teams = SchedulingPolicy(teams={"vision": Allowance()})
    policy = replace(DEFAULT_POLICY, scheduling=teams)
    wanted = OWN.but(workload_class="urgent", team="vision")
    for wrong, words in (
        (wanted.but(workload_class="urgnt"), "did you mean urgent"),
        (wanted.but(team="vison"), "did you mean vision"),
    ):
        with pytest.raises(InvalidInput, match=words):
            declare(tracks, wrong, policy=policy)
    assert tracks.find_run("r-1") is None
    assert declare(tracks, wanted, policy=policy).workload_class == "urgent"
    result = attempt_text(explain_attempt(tracks, "r-1", 1))
    assert "class urgent, owner ann, team vision" in result


def test_the_diff_of_a_dirty_tree_is_kept_and_reported(
    data: Story, tracks: Tracks, store: FakeObjectStore
) -> None:
    declared = declare(tracks, REQUEST.but(code_diff=b"diff --git a/x b/x\n"))
    assert declared.code.diff_sha256 is not None
    key = code_diff_key("r-1", declared.code.diff_sha256)
    assert store.objects[key] == b"diff --git a/x b/x\n"
    result = attempt_text(explain_attempt(tracks, "r-1", 1))
    assert f"with local changes, kept as {key}" in result
    assert f"store/{key} in the archive" in result


JUDGE = OwnEval(name="judge", entry=("./a", f"--key=AKIA{'ABCD' * 4}"), version="1")


@pytest.mark.parametrize(
    ("changes", "hint"),
    [
        ({"project": TINY, "archive": b"", "config": {"mine": 1}}, "mine"),
        ({"project": TINY, "archive": b"", "config": {"lr": "fast"}}, "not a number"),
        ({"project": TINY, "archive": b"", "config": {}, "snapshot_id": "f" * 64}, "no dataset"),
        (
            {
                "project": replace(TINY, entry=("t.py", f"--key=AKIA{'ABCD' * 4}")),
                "archive": b"",
                "config": {},
            },
            "entry holds what looks like a secret",
        ),
        (
            {"project": replace(TINY, evals=(JUDGE,)), "archive": b"", "config": {}},
            "evals holds what looks like a secret",
        ),
        ({"config": {"mine": 1}}, "mine"),
        ({"drills": ("preempt@1",) * 17}, "16"),
        ({"owner": ""}, "owner"),
        ({"checkpoint_every_s": 0.0}, "more than 0"),
        (
            {"project": replace(TINY, by_files=True), "archive": b"", "config": {}},
            "publishes folders when it likes",  # and REQUEST asks for one every 10 steps
        ),
        ({"snapshot_id": "f" * 64}, "no snapshot"),
        ({"run_id": "R 1"}, "a-z"),
    ],
)
def test_a_bad_request_writes_nothing(
    changes: dict[str, object],
    hint: str,
    data: Story,
    tracks: Tracks,
    store: FakeObjectStore,
) -> None:
    before = dict(store.objects)
    with pytest.raises(InvalidInput, match=hint):
        declare(tracks, REQUEST.but(**changes))
    assert store.objects == before


def test_without_a_snapshot_there_is_no_run(tracks: Tracks, store: FakeObjectStore) -> None:
    with pytest.raises(InvalidInput, match="aws-docs"):
        declare(tracks, REQUEST)
    assert store.objects == {}


def test_the_estimate_grows_with_ranks_and_steps() -> None:
    assert estimate_device_s(40, 2) == 200.0  # 2 × (60 + 40 × 1)


def test_a_fresh_run_id_can_be_used(tracks: Tracks) -> None:
    assert new_run_id("gpt", day="20260131", new_uid=lambda: "1f3a" * 8) == "gpt-20260131-1f3a"


def test_what_a_caller_killed_before_it_projected_left_is_brought_into_the_ledger_by_the_next(
    store: FakeObjectStore, clock: FakeClock, new_uid: SequentialUids
) -> None:
    projected: list[str] = []
    tracks = Tracks(store, now=clock, new_uid=new_uid, project=projected.append)
    History("r-1").declare().open().write_to(store)
    declare(tracks, REQUEST)
    with pytest.raises(InvalidInput, match="has not ended"):
        retried(tracks, "r-1", by="ann", why="again")
    request_stop(tracks, "r-1", mode="stop", by="ann", why="enough")
    assert projected == ["runs/r-1"] * 4  # the last request is a record, projected as well

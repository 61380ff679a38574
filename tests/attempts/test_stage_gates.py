"""A full run is declared once tests, smoke and canary were shown for its key, and refused before."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path

import pytest

from tests.asked import Asked, asked, declare
from tests.bodies import ended, placed
from tests.deciders import world_of
from tests.examples import example
from tests.fakes import FakeClock
from tests.policies import policy_of
from tests.reports import render_report
from tests.stories import Story, step_line
from tracks_dagster.attempts.effects.local.code_archive import pack_folder
from tracks_dagster.attempts.effects.stage_verdicts import JudgeStages
from tracks_dagster.ledger.effects.deciding import decide_due
from tracks_dagster.ledger.effects.ticks import ONE_BY_ONE
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.projects.effects.certificates import certify
from tracks_dagster.projects.project import ConfigKey
from tracks_dagster.retry.default_policy import DEFAULT_POLICY
from tracks_dagster.retry.policy import RetryPolicy
from tracks_dagster.retry.stages import SHIPPED, STRICT, StagePolicy
from tracks_dagster.review.daily import MatterKind
from tracks_dagster.review.effects.daily import review_day
from tracks_dagster.review.effects.explain.run import explain_run
from tracks_dagster.review.effects.metadata import run_metadata
from tracks_dagster.review.explain.summary import run_summary
from tracks_dagster.review.explain.text import run_text
from tracks_dagster.stores.journals import journal_prefix
from tracks_dagster.track.bodies import (
    CheckpointCommitted,
    RunDeclared,
    RunFinished,
    SkippedGates,
)
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.names import AttemptRef
from tracks_dagster.track.records import Json, Kind, format_time, sha256_hex
from tracks_dagster.track.states.checkpoints import CheckpointRef, object_prefix

STAGES = StagePolicy(
    rules={**SHIPPED, "full": replace(SHIPPED["full"], needs=("tests", "smoke", "canary"))}
)
POLICY = replace(DEFAULT_POLICY, stages=STAGES)
CODE = b"a tar"
REQUEST = asked(
    run_id="big",
    intent="The run that counts.",
    archive=CODE,
    config={"steps": 5000},
    owner="ann",
    stage="full",
    folder="/home/ann/gpt",
)
FALLING = [5.0 / step for step in range(1, 41)]
FLAT = [2.0] * 40
NO_CURSOR: Mapping[str, int | None] = {"cursor": None, "epoch": None}
SOFTWARE = {"python": "3.11.4", "torch": "2.9.0", "threads": 1}


def train(
    tracks: Tracks,
    run_id: str,
    losses: Sequence[float],
    *,
    found: Mapping[str, Json],
    commit: Mapping[str, int | None] = NO_CURSOR,
) -> CheckpointRef:
    """Leave what the one rank of attempt 1 leaves: its place, its journal and its last save.

    found: the software of the gang, with its image; commit: fields of the save.
    """
    here = placed("launch-1", world_size=1, environment=found, image=found.get("image"))
    add(tracks, run_id, Kind.ATTEMPT_PLACED, here)
    prefix = object_prefix(AttemptRef(run_id, 1), "launch-1", len(losses))
    ref = CheckpointRef(run_id, 1, len(losses), prefix, sha256_hex(prefix.encode()))
    at = format_time(tracks.now())
    lines = [{**step_line(n, at=at), "loss": loss} for n, loss in enumerate(losses, start=1)]
    journal = journal_prefix(AttemptRef(run_id, 1), "launch-1", 0)
    data = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    tracks.store.put(f"{journal}{0:012d}.jsonl", data)
    committed = CheckpointCommitted(
        launch_id="launch-1",
        ref=ref,
        trigger="final",
        total_bytes=1,
        written_bytes=1,
        blocking_s=0.0,
        **commit,
    )
    add(tracks, run_id, Kind.CHECKPOINT_COMMITTED, committed)
    return ref


def add(tracks: Tracks, run_id: str, kind: Kind, body: object, attempt_id: int | None = 1) -> None:
    """Append a record."""
    draft = tracks.draft(kind, body, attempt_id=attempt_id)
    tracks.decide_run(run_id, lambda state: draft)


class House:
    """A store and its ledger, and what people do in it."""

    def __init__(self, tracks: Tracks, ledger: Ledger, clock: FakeClock) -> None:
        self.tracks, self.ledger, self.clock = tracks, ledger, clock
        self.software: Mapping[str, Json] = SOFTWARE
        self.found: Mapping[str, Json] = {}  # by gangs, where it is other than was foreseen
        self.policy: RetryPolicy = POLICY

    def declare(self, request: Asked = REQUEST, **changes: object) -> RunDeclared:
        return declare(
            self.tracks,
            request.but(**changes),
            policy=self.policy,
            ledger=self.ledger,
            foresee=lambda *_: self.software,
        )

    def certify(self, what: str = "tests", **changes: object) -> None:
        known = {"passed": 9, "failed": 0, "by": "ann", "where": "node-1", "project": "gpt"}
        certify(self.tracks, **{"what": what, "code_sha256": sha256_hex(CODE), **known, **changes})

    def rehearse(
        self,
        stage: str,
        losses: Sequence[float] = FALLING,
        *,
        cause: str = "step_budget",
        commit: Mapping[str, int | None] = NO_CURSOR,
        **changes: object,
    ) -> str:
        """Declare a run of a stage and let it end so, with these losses; commit: of its last save."""
        run_id = f"{stage.replace('_', '-')}-{len(list(self.tracks.store.folders('runs/')))}"
        self.declare(**{"run_id": run_id, "stage": stage, "config": {"steps": 40}, **changes})
        found = self.found or self.software
        ref = train(self.tracks, run_id, losses, found=found, commit=commit)
        self.add(run_id, Kind.ATTEMPT_ENDED, ended("completed", last_step=len(losses)))
        finished = RunFinished(stop_cause=cause, why=f"for {cause}", decided_by="tests", final=ref)
        self.add(run_id, Kind.RUN_FINISHED, finished, attempt_id=None)
        return run_id

    def add(self, run_id: str, kind: Kind, body: object, attempt_id: int | None = 1) -> None:
        add(self.tracks, run_id, kind, body, attempt_id)

    def ready(self) -> House:
        """Show all that a full run needs."""
        self.certify()
        self.rehearse("smoke")
        self.rehearse("canary")
        return self

    def refused(self, request: Asked = REQUEST, **changes: object) -> str:
        with pytest.raises(InvalidInput) as caught:
            self.declare(request, **changes)
        assert self.tracks.find_run(request.run_id) is None
        return str(caught.value)


@pytest.fixture
def house(data: Story, tracks: Tracks, ledger: Ledger, clock: FakeClock) -> House:
    """Snapshots are there, and nothing was shown."""
    for dataset in data.datasets:
        tracks.project(dataset.name)
    return House(tracks, ledger, clock)


def test_in_an_empty_home_a_full_run_is_refused_with_every_command(house: House) -> None:
    assert house.refused() == (
        "Refused by policy stages.full.needs: big was not shown to be ready.\n"
        f"  tests: none of this code ({sha256_hex(CODE)[:12]}); `pytest --tracks` in /home/ann/gpt.\n"
        "  smoke: there is none of this project; `tracks smoke --project /home/ann/gpt`.\n"
        "  canary: there is none of this project; `tracks canary --project /home/ann/gpt`.\n"
        '--skip-gate tests --skip-gate smoke --skip-gate canary --why "…" declares it anyway; the '
        "gate and the reason are recorded."
    )


def test_it_passes_after_tests_smoke_and_canary_and_says_on_what(house: House) -> None:
    declared = house.ready().declare()
    assert declared.passed_gates == {
        "tests": f"{sha256_hex(CODE)[:12]} by ann",
        "smoke": "smoke-0",
        "canary": "canary-1",
    }
    [row] = house.ledger.query(
        "select gate_key, stage_passed from training_runs where run_id='big'"
    )
    assert (row["gate_key"], row["stage_passed"]) == (declared.gate_key, None)
    assert house.tracks.run("canary-1").judged is not None
    result = run_text(explain_run(house.tracks, "big"))
    assert "Declared as full; passed gates: canary canary-1, smoke smoke-0, tests" in result


@pytest.mark.parametrize(
    ("changes", "closed", "words"),
    [
        (
            {"archive": b"a tar with one line changed"},
            ["tests", "smoke", "canary"],
            f"code {sha256_hex(CODE)[:12]} → ",
        ),
        ({"config": {"steps": 5000, "lr": 0.5}}, ["smoke", "canary"], "lr 0.002 → 0.5"),
        ({"device_class": "h100"}, ["smoke", "canary"], "environment device_class cpu → h100"),
    ],
)
def test_one_change_closes_the_gates_again(
    changes: dict[str, object], closed: list[str], words: str, house: House
) -> None:
    refusal = house.ready().refused(**changes)
    assert [line.split(":")[0].strip() for line in refusal.splitlines()[1:-1]] == closed
    assert words in refusal
    if "config" in changes:
        assert "`tracks canary --project /home/ann/gpt --set lr=0.5`" in refusal


def test_a_refusal_names_the_files_in_which_the_code_differs(house: House, tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    for name in ("model.py", "old.py", "same.py"):
        (folder / name).write_text("a = 1\n")
    house.rehearse("smoke", archive=pack_folder(folder).data)
    (folder / "model.py").write_text("a = 2\n")
    (folder / "old.py").rename(folder / "out.log")
    refusal = house.refused(archive=pack_folder(folder).data)
    assert "The code is not that of smoke-0: model.py changed, old.py gone, out.log new." in refusal


def test_a_new_snapshot_closes_the_gates_but_the_tests(house: House, data: Story) -> None:
    house.ready()
    data.datasets[0].commit("f" * 64).write_to(house.tracks.store)
    refusal = house.refused()
    assert "tests:" not in refusal
    assert "→ ffffffffffff" in refusal


def test_another_library_closes_the_gates_and_another_thread_count_does_not(house: House) -> None:
    house.ready()
    house.software = {**SOFTWARE, "torch": "2.9.1"}
    assert "environment torch 2.9.0 → 2.9.1" in house.refused()
    house.software = {**SOFTWARE, "threads": 8}
    assert house.declare().passed_gates


def test_after_seven_days_what_was_shown_does_not_count(house: House) -> None:
    house.ready()
    house.clock.at += timedelta(days=7, seconds=1)
    assert house.refused().count("7.0 d old, and 7 d count") == 3


def test_a_canary_whose_loss_stays_flat_does_not_count(house: House) -> None:
    house.certify()
    house.rehearse("smoke")
    house.rehearse("canary", losses=FLAT)
    refusal = house.refused()
    assert "canary-1, did not pass: the median loss of the last quarter of 40 steps is 2" in refusal
    house.rehearse("canary")
    assert house.declare().passed_gates["canary"] == "canary-2"


def test_the_watcher_records_the_verdict_once_and_only_of_canaries(house: House) -> None:
    house.rehearse("smoke")
    run_id = house.rehearse("canary")
    world = world_of(house.tracks, house.ledger)
    for _ in range(2):
        decide_due(world, (JudgeStages(),), ONE_BY_ONE)
    kinds = [each.kind for each in house.tracks.records(f"runs/{run_id}")]
    assert kinds.count(Kind.STAGE_JUDGED) == 1
    judged = house.tracks.run(run_id).judged
    assert judged is not None
    assert (judged.body.passed, judged.body.by) == (True, "watch_attempts")
    assert house.tracks.run("smoke-0").judged is None


@pytest.mark.parametrize("stage", ["smoke", "canary"])
@pytest.mark.parametrize("cause", ["cost_stop", "user"])
def test_what_was_cut_by_its_time_or_stopped_by_a_person_shows_nothing(
    stage: str, cause: str, house: House
) -> None:
    house.certify()
    house.rehearse("canary" if stage == "smoke" else "smoke")
    house.rehearse(stage, cause=cause)
    refusal = house.refused()
    assert f"{stage}-1, is cancelled: for {cause}; `tracks {stage}" in refusal


@pytest.mark.parametrize("stage", ["smoke", "canary"])
def test_software_that_changed_before_the_gang_started_is_what_the_run_shows(
    stage: str, house: House
) -> None:
    house.certify()
    house.rehearse("canary" if stage == "smoke" else "smoke")
    house.found = {**SOFTWARE, "torch": "2.9.1"}
    house.rehearse(stage)
    words = "attempt 1 was not as declared: environment torch 2.9.0 → 2.9.1"
    assert words in house.refused()


WHOLE = {"cursor": 40 * 24, "epoch": 1, "pass_samples": 900}
ALL_DATA = replace(SHIPPED["full"], needs=("kitchen_sink",))


def test_a_kitchen_sink_counts_when_it_read_all_of_the_snapshot(house: House) -> None:
    house.policy = replace(DEFAULT_POLICY, stages=StagePolicy(rules={**SHIPPED, "full": ALL_DATA}))
    part = {**WHOLE, "epoch": 0, "pass_samples": 1000}
    house.rehearse("kitchen_sink", commit=part)
    refusal = house.refused()
    assert "kitchen-sink-0, did not pass: it read 960 samples of snapshot" in refusal
    house.rehearse("kitchen_sink")
    assert "kitchen-sink-1, did not pass: how much of snapshot" in house.refused()
    # a small model shows the data of a large one; another code or snapshot is another data set
    run_id = house.rehearse("kitchen_sink", commit=WHOLE, config={"steps": 40, "d_model": 16})
    assert "code" in house.refused(archive=b"a tar with one line changed")
    assert house.declare().passed_gates == {"kitchen_sink": run_id}
    result = run_text(explain_run(house.tracks, run_id))
    assert "As a kitchen_sink it passed: it read 960 samples of snapshot" in result


def test_red_tests_close_the_gate_that_green_ones_opened(house: House) -> None:
    house.ready().certify(failed=2)
    assert "the newest of this code is not green: 9 passed, 2 failed, 0 left out" in house.refused()


def test_a_part_of_the_tests_closes_no_gate_and_opens_none(house: House) -> None:
    house.ready().certify(left_out=3, failed=1)
    house.certify(left_out=3)
    assert "9 passed, 1 failed, 3 left out" in house.refused()
    house.certify()
    house.certify(left_out=3)
    assert "tests" in house.declare().passed_gates


def test_strict_asks_for_a_conformance_run_as_well(house: House) -> None:
    house.ready().policy = replace(DEFAULT_POLICY, stages=STRICT)
    assert "conform: none of this code" in house.refused()
    house.certify("conform")
    assert "conform" in house.declare().passed_gates


def test_a_skipped_gate_is_in_the_declaration_and_wherever_the_run_is_shown(house: House) -> None:
    house.certify()
    house.rehearse("smoke")
    declared = house.declare(skip_gates=("canary",), skip_why="A demo in an hour.")
    assert declared.skipped == SkippedGates(gates=("canary",), by="ann", why="A demo in an hour.")
    assert set(declared.passed_gates) == {"tests", "smoke"}
    [row] = house.ledger.query("select skipped_why from training_runs where run_id = 'big'")
    assert row["skipped_why"] == "A demo in an hour."
    result = run_text(explain_run(house.tracks, "big"))
    assert "Declared without canary, by ann: A demo in an hour." in result
    short = run_summary(explain_run(house.tracks, "big"), width=80)
    assert "Declared without canary, by ann: A demo in an hour." in short
    page = render_report(house.tracks, "big")
    assert "<p>Declared without canary, by ann: A demo in an hour.</p>" in page
    shown = run_metadata(declared)["skipped_gates"]
    assert shown == "Declared without canary, by ann: A demo in an hour."
    day = review_day(house.ledger, date(2026, 1, 31), now=house.clock())
    [skips] = [each for each in day.matters if each.kind is MatterKind.GATE]
    assert skips.shown[0].what == "declared without canary, by ann: A demo in an hour."


def test_only_who_may_waive_skips_a_gate(house: House) -> None:
    leads = "governance: {may_waive: [leads], teams: {leads: [grace]}}"
    house.policy = replace(policy_of(leads), stages=STAGES)
    skip = {"skip_gates": ("tests", "smoke", "canary"), "skip_why": "A demo in an hour."}
    assert house.refused(owner="bob", **skip) == (
        "Refused by policy governance.may_waive: tests, smoke, canary cannot be skipped: only leads "
        "(grace) may. Names are taken as given: a record, not a log-in."
    )
    assert house.declare(owner="grace", **skip).skipped is not None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"skip_gates": ("canry",), "skip_why": "x"},
            "'canry' is not a gate; did you mean canary?",
        ),
        ({"skip_gates": ("canary",)}, "canary cannot be skipped without a reason"),
        ({"skip_why": "x"}, "--why says why a gate is skipped; name it"),
    ],
)
def test_a_skip_names_a_gate_and_a_reason(
    changes: dict[str, object], words: str, house: House
) -> None:
    assert words in house.refused(**changes)


def test_on_a_cluster_the_image_is_the_environment(house: House) -> None:
    house.software = {"image": "train:1"}
    house.certify()
    on_cluster = {"launcher": "kubernetes", "device_class": "a100"}
    house.rehearse("smoke", **on_cluster)
    house.rehearse("canary", **on_cluster)
    assert "environment launcher kubernetes → local" in house.refused()
    house.software = {"image": "train:2"}
    refusal = house.refused(**on_cluster)
    assert "environment image train:1 → train:2" in refusal
    assert "--on kubernetes --device-class a100`" in refusal
    house.software = {"image": "train:1"}
    assert house.declare(**on_cluster).passed_gates["smoke"] == "smoke-0"


def test_with_gates_a_stage_keeps_to_its_limits_and_is_not_promoted(house: House) -> None:
    smoke = house.declare(run_id="s-1", stage="smoke")
    assert (smoke.config["steps"], smoke.max_device_s, smoke.promotion) == (20, 300.0, None)
    full = house.ready().declare()
    assert (full.config["steps"], full.max_device_s) == (5000, None)
    assert full.promotion is not None


def test_light_enforces_nothing_but_what_smoke_and_canary_ask_for(house: House) -> None:
    house.policy = DEFAULT_POLICY
    free = house.declare(stage="smoke")
    assert (free.config["steps"], free.max_device_s) == (5000, None)
    assert free.gate_key is not None
    limited = house.declare(run_id="s-1", stage="smoke", is_limited=True)
    assert (limited.config["steps"], limited.max_device_s, limited.promotion) == (20, 300.0, None)
    assert limited.gate_key == free.gate_key


def test_a_smoke_is_never_longer_than_it_was_asked_to_be(house: House) -> None:
    keys = {"epochs": ConfigKey(default=3.0), "lr": ConfigKey(default=0.1)}
    project = replace(example(), keys=keys, roles={"steps": "epochs"})
    smoke = house.declare(stage="smoke", project=project, config={}, is_limited=True)
    assert smoke.config["epochs"] == 3.0


def test_a_kitchen_sink_is_promoted_by_no_profile(house: House) -> None:
    house.policy = DEFAULT_POLICY
    sink = house.declare(stage="kitchen_sink", config={"steps": 5000, "d_model": 16})
    assert (sink.config["steps"], sink.promotion) == (5000, None)


def test_drills_are_rehearsals_that_show_nothing(house: House) -> None:
    drill = house.declare(run_id="d-1", stage="smoke", drills=("preempt@23",))
    assert (drill.gate_key, drill.max_device_s, drill.config["steps"]) == (None, None, 5000)

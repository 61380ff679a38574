"""What a person changes for the next attempt: asked for, recorded, or refused."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest

from tests.deciders import retried as retried_run
from tests.examples import example_config
from tests.fakes import FakeObjectStore
from tests.histories import DatasetHistory, History
from tracks_dagster.attempts.effects.manual_retry import AttemptChanges
from tracks_dagster.attempts.effects.supervise import gang_spec
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.projects.project import Project
from tracks_dagster.retry.decide import decide
from tracks_dagster.retry.decision import Retry
from tracks_dagster.retry.default_policy import DEFAULT_POLICY
from tracks_dagster.track.bodies import CheckpointCadence, ComputeRequest, SnapshotRef
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.records import Json, sha256_hex
from tracks_dagster.track.states.run_state import AttemptState
from tracks_dagster.wings.kubernetes.settings import KUBERNETES

CONFIG = example_config({"steps": 40, "micro_batch": 2}, ranks=2)
POD = ComputeRequest(launcher=KUBERNETES, ranks=2, memory_bytes=2**30, queue="team-a")
SCRIPT = b"print('the first')\n"
FIRST = f"runs/r-1/trainer/{sha256_hex(SCRIPT)}.py"


@pytest.fixture
def history() -> History:
    """A run on a cluster whose first attempt committed step 20 and ran out of memory."""
    history = History().declare(config=CONFIG, compute=POD).open().place().restore().commit(20)
    return history.end("host_oom", last_step=23)


def retried(
    tracks: Tracks,
    store: FakeObjectStore,
    history: History,
    *,
    is_forced: bool = False,
    **given: Any,
) -> AttemptState:
    history.write_to(store)
    retried_run(
        tracks,
        "r-1",
        by="ann",
        why="more of it",
        changes=AttemptChanges(**given),
        is_forced=is_forced,
    )
    return tracks.run("r-1").attempts[-1]


def changed(attempt: AttemptState) -> dict[str, tuple[Json, Json]]:
    return {each.key: (each.before, each.after) for each in attempt.opened.remediation}


def test_more_memory_is_asked_for_and_stands_in_the_record(
    tracks: Tracks, store: FakeObjectStore, history: History
) -> None:
    attempt = retried(tracks, store, history, compute={"memory_bytes": 2**32})
    assert attempt.opened.compute.memory_bytes == 2**32
    assert attempt.opened.compute.queue == "team-a"  # what is not given stays
    assert changed(attempt) == {"compute.memory_bytes": (2**30, 2**32)}
    assert attempt.opened.remediation[0].why == "ann: more of it"


def test_other_ranks_keep_the_global_batch(
    tracks: Tracks, store: FakeObjectStore, history: History
) -> None:
    attempt = retried(tracks, store, history, compute={"ranks": 4})
    config = attempt.opened.config
    assert config["global_batch"] == CONFIG["global_batch"]
    assert config["micro_batch"] * config["accumulation"] * 4 == config["global_batch"]
    assert set(changed(attempt)) == {"compute.ranks", "accumulation"}


def test_another_place_leaves_behind_what_was_asked_of_the_first(
    tracks: Tracks, store: FakeObjectStore, history: History
) -> None:
    attempt = retried(tracks, store, history, compute={"launcher": "local"})
    assert attempt.opened.compute == ComputeRequest(ranks=2)


def test_one_thing_that_was_asked_of_slurm_is_changed_and_the_others_stay(
    tracks: Tracks, store: FakeObjectStore
) -> None:
    asked = ComputeRequest(launcher="slurm", ranks=2, slurm={"account": "a", "time_limit": "1h"})
    history = History().declare(config=CONFIG, compute=asked).open().place().restore().commit(20)
    history.end("host_oom", last_step=23)
    attempt = retried(tracks, store, history, compute={"slurm": {"time_limit": "2h"}})
    assert attempt.opened.compute.slurm == {"account": "a", "time_limit": "2h"}
    assert set(changed(attempt)) == {"compute.slurm"}


def test_the_cadence_and_the_snapshot_can_be_changed(
    tracks: Tracks, store: FakeObjectStore, history: History
) -> None:
    data = DatasetHistory("aws-docs").declare().commit()
    data.write_to(store)
    snapshot_id = data.state.snapshots[0].body.snapshot_id
    attempt = retried(tracks, store, history, every_s=60.0, snapshot_id=snapshot_id[:12])
    assert attempt.opened.cadence == CheckpointCadence(every_steps=10, every_s=60.0)
    assert attempt.opened.snapshot == SnapshotRef(dataset="aws-docs", snapshot_id=snapshot_id)
    assert set(changed(attempt)) == {"cadence.every_s", "snapshot"}


SECOND = Project(name="gpt", entry=("second.py",), is_open=True)
CORRECTED: dict[str, Any] = {"project": SECOND, "archive": b"the second"}
REFUSED: Mapping[str, tuple[dict[str, Any], str]] = {
    "no ranks": ({"compute": {"ranks": 0}}, "1 to 4096"),
    "a secret": ({"config": {"lr": f"AKIA{'ABCD' * 4}"}}, "lr holds what looks like a secret"),
    "ranks that do not divide the batch": ({"compute": {"ranks": 7}}, "use a multiple of 7"),
    "memory of a local run": (
        {"compute": {"launcher": "local", "memory_bytes": 5}},
        "asks something of a cluster",
    ),
    "no time between saves": ({"every_s": 0.0}, "use more than 0"),
    "an unknown snapshot": ({"snapshot_id": "f" * 12}, "no snapshot"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_changed_is_refused_and_nothing_is_written(
    name: str, tracks: Tracks, store: FakeObjectStore, history: History
) -> None:
    DatasetHistory("aws-docs").declare().write_to(store)
    given, words = REFUSED[name]
    with pytest.raises(Exception, match=words) as refused:
        retried(tracks, store, history, **given)
    assert type(refused.value).__name__ in ("InvalidInput", "UnknownRun")
    assert len(tracks.run("r-1").attempts) == 1


# --- a script of one's own, and what would end the same again ---------------------------------------


@pytest.fixture
def scripted(tracks: Tracks, store: FakeObjectStore) -> History:
    """A run of a script that raised before its first step."""
    key = FIRST
    store.put(key, SCRIPT)
    history = History().declare(config=CONFIG, trainer=key).open().place().restore()
    return history.end("code_error", last_step=None)


def test_a_corrected_script_is_stored_run_and_kept_by_later_retries(
    tracks: Tracks, store: FakeObjectStore, scripted: History
) -> None:
    attempt = retried(tracks, store, scripted, **CORRECTED)
    key, program = attempt.opened.trainer, attempt.opened.program
    assert key is not None
    assert key.endswith(".tar")
    assert store.get(key) == b"the second"
    assert changed(attempt) == {
        "trainer": (FIRST, key),
        "entry": (None, "second.py"),
    }
    assert attempt.opened.config == CONFIG
    state = tracks.run("r-1")
    assert gang_spec(tracks, state, state.attempts[0], DEFAULT_POLICY.scheduling).code == SCRIPT
    spec = gang_spec(tracks, state, attempt, DEFAULT_POLICY.scheduling)
    assert (spec.code, spec.command.words) == (b"the second", ("second.py",))
    scripted.open(cause="manual_retry", trainer=key, program=program).place().restore().commit(10)
    scripted.end("preempted", last_step=12)
    decision = decide(scripted.state, DEFAULT_POLICY, scripted.at + timedelta(hours=1))
    assert isinstance(decision, Retry)
    opened = decision.opened(decided_by="tests")
    assert (opened.trainer, opened.program) == (key, program)


@pytest.mark.parametrize("reason", ["code_error", "config_error"])
def test_what_ended_before_its_first_step_is_not_opened_again_without_a_change(
    reason: str, tracks: Tracks, store: FakeObjectStore
) -> None:
    key = FIRST
    store.put(key, SCRIPT)
    history = History().declare(config=CONFIG, trainer=key).open().place().restore()
    history.end(reason, last_step=None)
    with pytest.raises(InvalidInput, match="would end the same") as refused:
        retried(tracks, store, history)
    assert "--force" in str(refused.value)
    assert "--trainer FILE.py" in str(refused.value)
    assert len(tracks.run("r-1").attempts) == 1
    assert retried(tracks, store, history, is_forced=True).opened.remediation == ()


def test_a_change_of_anything_is_enough(
    tracks: Tracks, store: FakeObjectStore, scripted: History
) -> None:
    assert retried(tracks, store, scripted, config={"lr": 0.5}).attempt_id == 2


def test_after_a_first_step_the_same_again_is_a_persons_choice(
    tracks: Tracks, store: FakeObjectStore
) -> None:
    history = History().declare(config=CONFIG, trainer=FIRST).open()
    history.place().restore().end("code_error", last_step=3)
    assert retried(tracks, store, history).attempt_id == 2

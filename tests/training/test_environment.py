"""What a rank reads from its environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from tracks_dagster.track.errors import SettingsError
from tracks_dagster.training.environment import (
    describe_software,
    digest_of,
    place_from_json,
    place_to_json,
    read_environment,
)

OURS = {
    "TRACKS_STORE": "/store",
    "TRACKS_RUN_ID": "r",
    "TRACKS_ATTEMPT_ID": "2",
    "TRACKS_OPENED_SEQ": "9",
    "TRACKS_WORK": "/work",
}
TORCHRUN = {"RANK": "1", "WORLD_SIZE": "3", "LOCAL_RANK": "1", "OMP_NUM_THREADS": "4"}


def test_a_launcher_tells_the_attempt_and_torchrun_the_rank() -> None:
    result = read_environment({**OURS, **TORCHRUN})
    assert (result.rank, result.world_size, result.local_rank, result.threads) == (1, 3, 1, 4)
    assert result.has_group
    assert result.attempt is not None
    assert (result.attempt.attempt_id, result.attempt.opened_seq) == (2, 9)
    assert result.attempt.work == Path("/work")
    assert place_from_json(place_to_json(result.attempt)) == result.attempt


def test_a_cluster_says_until_when_a_gang_may_run_and_anything_else_is_not_known() -> None:
    limit = {"TRACKS_ENDS_AT": "1795974416", "TRACKS_TERMINATION_GRACE_S": "120"}
    place = read_environment({**OURS, **limit}).attempt
    assert place is not None
    assert (place.ends_at_s, place.notice_s) == (1795974416.0, 120.0)
    for other in ({}, {"TRACKS_ENDS_AT": "N/A", "TRACKS_TERMINATION_GRACE_S": ""}):
        place = read_environment({**OURS, **other}).attempt
        assert place is not None
        assert (place.ends_at_s, place.notice_s) == (None, None)


def test_a_pod_reads_what_was_asked_of_the_cluster_and_what_its_queue_says_that_it_gave() -> None:
    given = {"TRACKS_CLUSTER_QUEUE": "all", "TRACKS_SWITCHES": "spine.leaf1"}
    result = read_environment({"TRACKS_ASKED": '{"queue": "a"}', **given})
    assert (result.asked, result.granted) == (
        {"queue": "a"},
        {"cluster_queue": "all", "switches": "spine.leaf1"},
    )
    older = read_environment({"TRACKS_CLUSTER_QUEUE": ""})  # of a Kueue that writes no label
    assert (older.asked, older.granted) == ({}, {})
    with pytest.raises(SettingsError, match="TRACKS_ASKED is not a mapping"):
        read_environment({"TRACKS_ASKED": "[1]"})


def test_without_a_launcher_a_rank_is_alone_with_one_thread() -> None:
    result = read_environment({})
    assert (result.rank, result.world_size, result.threads, result.attempt) == (0, 1, 1, None)
    assert not result.has_group


@pytest.mark.parametrize("missing", ["TRACKS_STORE", "TRACKS_ATTEMPT_ID", "TRACKS_WORK"])
def test_a_variable_that_the_launcher_forgot_is_named(missing: str) -> None:
    environ = {name: value for name, value in OURS.items() if name != missing}
    with pytest.raises(SettingsError, match=f"TRACKS_RUN_ID is set and {missing} is not"):
        read_environment(environ)


def test_a_variable_that_is_not_a_number_is_named() -> None:
    with pytest.raises(SettingsError, match="RANK = 'one' is not a whole number"):
        read_environment({"RANK": "one"})


def test_the_digest_changes_with_any_version() -> None:
    software = describe_software()
    assert digest_of(software) != digest_of({**software, "torch": "0"})

"""A gang's name is its own, readable, and short enough for everything that is called after it."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.names import RUN_ID_PATTERN, AttemptRef
from tracks_dagster.wings.kubernetes.job_names import (
    ATTEMPT_ID_MAX,
    JOB_NAME_MAX,
    NODES_MAX,
    gang_labels,
    job_name,
    pod_host,
    run_label,
)
from tracks_dagster.wings.kubernetes.settings import JOB, JOB_KINDS, JOB_SET

DNS_1035 = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")  # what a Service's name has to be
LABEL_VALUE = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")

run_ids = st.text("ab09-.", min_size=1, max_size=40).filter(RUN_ID_PATTERN.fullmatch)
attempt_ids = st.integers(1, ATTEMPT_ID_MAX)


@given(run_id=run_ids, attempt_id=attempt_ids)
def test_every_name_that_is_made_of_a_jobs_fits_into_a_label_of_dns(
    run_id: str, attempt_id: int
) -> None:
    name = job_name(AttemptRef(run_id, attempt_id))
    assert DNS_1035.fullmatch(name)
    assert len(name) <= JOB_NAME_MAX
    for kind in JOB_KINDS:
        host = pod_host(name, NODES_MAX - 1, kind)
        assert DNS_1035.fullmatch(host)
        assert len(f"{host}-abcde") <= 63  # the pod's own name


@given(first=st.tuples(run_ids, attempt_ids), second=st.tuples(run_ids, attempt_ids))
def test_two_attempts_never_share_a_name(first: tuple[str, int], second: tuple[str, int]) -> None:
    one, other = job_name(AttemptRef(*first)), job_name(AttemptRef(*second))
    assert (one == other) == (first == second)


def test_runs_that_differ_only_where_the_name_is_cut_have_names_of_their_own() -> None:
    names = {job_name(AttemptRef("x" * 39 + last, 1)) for last in "abc-"} | {
        job_name(AttemptRef("x" * 39, 1))
    }
    assert len(names) == 5


@pytest.mark.parametrize(
    ("run_id", "attempt_id", "readable"),
    [
        ("gpt-7", 2, "tracks-gpt-7-a02-"),
        ("gpt-7", 100, "tracks-gpt-7-a100-"),
        ("7b", 1, "tracks-7b-a01-"),
        ("12.52a", 1, "tracks-12-52a-a01-"),
        ("---", 1, "tracks-a01-"),
        ("a-long-name-with-a-tail-that-is-cut-away", 1, "tracks-a-long-name-with-a-tai-a01-"),
    ],
)
def test_a_name_tells_its_run_and_attempt(run_id: str, attempt_id: int, readable: str) -> None:
    name = job_name(AttemptRef(run_id, attempt_id))
    assert re.fullmatch(re.escape(readable) + "[0-9a-f]{10}", name)


def test_a_name_stays_what_it_was() -> None:
    """Another one would start a second gang beside a living first."""
    assert job_name(AttemptRef("gpt-7", 2)) == "tracks-gpt-7-a02-17e3c436cf"


def test_a_pod_is_called_after_its_job_and_index() -> None:
    assert pod_host("tracks-x", 3, JOB) == "tracks-x-3"
    assert pod_host("tracks-x", 3, JOB_SET) == "tracks-x-gang-0-3"


@given(run_id=run_ids, other=run_ids)
def test_every_run_has_a_label_of_its_own(run_id: str, other: str) -> None:
    assert LABEL_VALUE.fullmatch(run_label(run_id))
    assert (run_label(run_id) == run_label(other)) == (run_id == other)


def test_a_run_is_labelled_by_its_id_wherever_a_label_can_hold_it() -> None:
    assert gang_labels(AttemptRef("gpt-7", 12)) == {
        "app.kubernetes.io/managed-by": "tracks-dagster",
        "tracks/training-run-id": "gpt-7",
        "tracks/attempt-id": "12",
    }
    assert run_label("-7-") == "R-7-R"


@pytest.mark.parametrize(
    ("run_id", "attempt_id", "words"),
    [
        ("GPT", 1, "cannot name a training run"),
        ("", 1, "cannot name a training run"),
        ("x" * 41, 1, "cannot name a training run"),
        ("x", 0, "0 numbers no attempt: use 1 to"),
        ("x", ATTEMPT_ID_MAX + 1, "numbers no attempt"),
    ],
)
def test_what_names_no_attempt_is_refused(run_id: str, attempt_id: int, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        job_name(AttemptRef(run_id, attempt_id))

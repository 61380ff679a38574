"""What watchers saw of a gang, folded, and read into ends and conditions: recorded shapes, and own."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

import pytest

from tests.gang_lines import (
    PREEMPTION,
    TAINT,
    at,
    disrupted,
    ended,
    event,
    fold,
    job,
    plain,
    pod,
    reason,
    running,
    status,
    text_at,
)
from tests.wings.kubernetes.double.telling import recorded
from tracks_dagster.track.records import Json
from tracks_dagster.wings.kubernetes.gang_fold import (
    EVENTS_OF_ONE_MAX,
    FIRST_STATUSES,
    GAPS_MAX,
    LAST_STATUSES,
    PODS_MAX,
    GangFold,
)
from tracks_dagster.wings.kubernetes.report import (
    ALIKE_MAX,
    LOG_BYTES_MIN,
    conditions,
    deciding_pod,
    rank_ends,
)
from tracks_dagster.wings.kubernetes.sightings import (
    Line,
    event_line,
    gap_line,
    gone_line,
    job_line,
    log_line,
    pod_line,
    problem_line,
    same_sight,
)

# --- the recorded shapes


def replayed(case: str, index: int) -> Iterator[Line]:
    """Yield a recorded case as the lines of a watcher; its times are the numbers of its events."""
    ends: dict[str, str] = {}
    since: dict[tuple[str, str], str] = {}
    for number, result in enumerate(recorded(case)):
        conditions_now = []
        for kind, value, why, message, _ in result["conditions"]:
            began = since.setdefault((kind, value), at(number))
            named = {"type": kind, "status": value, "reason": why, "message": message}
            conditions_now.append({**named, "lastTransitionTime": began})
        containers = []
        for each in result["containers"]:
            ((kind, state),) = each["state"].items()
            if kind == "terminated":
                times = {"startedAt": at(0), "finishedAt": ends.setdefault(kind, at(number))}
                state = {**state, **times}
            containers.append({"name": "c0", "state": {kind: state}})
        own = {name: result[name] for name in ("phase", "reason", "message") if result[name]}
        full = {**own, "conditions": conditions_now, "containerStatuses": containers}
        yield pod(index, 1000 + number, full, change=result["type"])


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        ("preempted-by-scheduler", "preempted"),
        ("run-worker-preempted-by-scheduler-exits-0", "preempted"),
        ("evicted-by-api", "node_drained"),
        ("evicted-node-memory-pressure", "host_oom"),
        ("oomkilled-child-only-exit-7", "host_oom"),
        ("oomkilled-child-only-exit-0-phase-succeeded", "host_oom"),
        ("gang-rank1-oomkilled", "host_oom"),
        ("node-lost-terminating-zombie", "node_failure"),
        ("image-pull-backoff", "image_pull"),
    ],
)
def test_a_recorded_pod_has_the_reason_that_its_lines_support(case: str, expected: str) -> None:
    assert reason(fold(*replayed(case, 0)), ranks_per_pod=2) == expected


def test_a_gang_is_judged_by_the_pod_that_ended_first_not_by_the_one_removed_for_it() -> None:
    removed = list(replayed("gang-rank0-removed-after-rank1-oom", 0))
    killed = list(replayed("gang-rank1-oomkilled", 1))
    assert reason(fold(*removed, *killed), pods=2) == "host_oom"


@pytest.mark.parametrize("case", ["preempted-by-scheduler", "gang-rank1-oomkilled"])
def test_lines_fold_the_same_in_any_order_read_twice_and_by_two_watchers(case: str) -> None:
    lines = [*replayed(case, 0), log_line("uid-0", "a\n", until="2", whole=True, at="x")]
    lines += [event("uid-0", "Preempted", "by another"), gone_line("uid-0", at="y")]
    wanted = fold(*lines)
    for seed in range(20):
        mixed = [*lines, *lines]
        random.Random(seed).shuffle(mixed)
        assert fold(*mixed) == wanted


# --- ranks


def test_a_pods_end_counts_for_each_of_its_ranks_and_its_log_for_the_first() -> None:
    seen = fold(
        pod(0, 1001, status(running())),
        pod(1, 1002, status(ended(1, 30), phase="Failed")),
        log_line("uid-1", "it broke\n", until="1", whole=True, at="x"),
    )
    ends = rank_ends(seen, pods=2, ranks_per_pod=2)
    assert [(e.rank, e.exit_code, e.log_tail) for e in ends] == [
        (0, None, ""),
        (1, None, ""),
        (2, 1, "it broke\n"),
        (3, 1, ""),
    ]
    assert [e.started_at for e in ends] == [text_at(0)] * 4


def test_an_index_without_a_pod_has_ranks_of_which_nothing_is_known() -> None:
    ends = rank_ends(fold(), pods=1, ranks_per_pod=2)
    assert [(e.rank, e.has_ended, e.started_at) for e in ends] == [
        (0, False, None),
        (1, False, None),
    ]


def test_a_pod_that_went_without_a_word_has_a_time_and_no_exit_code() -> None:
    seen = fold(pod(0, 1001, status(running())), gone_line("uid-0", at=text_at(40)))
    (end,) = rank_ends(seen, pods=1, ranks_per_pod=1)
    assert (end.exit_code, end.signal, end.ended_at) == (None, None, text_at(40))
    assert seen.pods[0].missed
    assert seen.pods[0].is_over


def test_a_zombie_beside_its_replacement_decides_and_both_are_kept() -> None:
    lost = disrupted(TAINT, 20)
    seen = fold(
        pod(0, 1001, status(running(), conditions=[lost]), uid="zombie"),
        pod(0, 1050, status(running(50)), uid="replacement"),
    )
    decides = deciding_pod(seen, 0)
    assert decides is not None
    assert decides.uid == "zombie"
    assert not decides.is_over
    assert [p.uid for p in seen.pods] == ["zombie", "replacement"]
    assert reason(seen) == "node_failure"


def test_logs_of_many_pods_are_bounded_together() -> None:
    log = "x" * 99 + "\n"
    lines = [pod(n, 1000 + n, status(ended(1, 5), phase="Failed")) for n in range(512)]
    logs = [log_line(f"uid-{n}", log * 600, until="1", whole=True, at="x") for n in range(512)]
    ends = rank_ends(fold(*lines, *logs), pods=512, ranks_per_pod=1)
    assert sum(len(end.log_tail) for end in ends) <= 512 * 8 * 1024
    assert all(len(e.log_tail) > LOG_BYTES_MIN // 2 for e in ends)
    assert all(e.log_tail.startswith("x" * 99) for e in ends)


# --- the Job


def test_a_jobs_conditions_are_kept_though_they_pass_and_its_end_is_reported() -> None:
    passed = {"type": "Suspended", "status": "True", "reason": "JobSuspended", "message": ""}
    over = {"type": "Suspended", "status": "False", "reason": "JobResumed", "message": ""}
    failed = {"type": "Failed", "status": "True", "reason": "DeadlineExceeded", "message": "late"}
    seen = fold(job(1001, passed), job(1002, over, failed))
    assert seen.jobs[0].is_finished
    found = conditions(seen, pods=1, ranks_per_pod=1)
    assert {c.type for c in found} == {"JobSuspended", "JobFailed"}
    assert reason(seen) == "walltime_timeout"


def test_a_job_that_was_queued_first_does_not_hide_an_oom_before_a_preemption() -> None:
    queued = {"type": "Suspended", "status": "True", "reason": "JobSuspended"}
    seen = fold(
        job(1001, {**queued, "lastTransitionTime": at(0)}, suspend=True),
        pod(0, 1002, status(ended(137, 30, "OOMKilled"), phase="Failed")),
        pod(1, 1003, status(running(), conditions=[disrupted(PREEMPTION, 33)])),
    )
    assert reason(seen, pods=2) == "host_oom"


# --- bounds, and what cannot be read


def test_a_long_story_keeps_its_begin_and_its_end_in_any_order_of_its_lines() -> None:
    changes = [pod(0, 1000 + n, status(running(), message=f"m{n}")) for n in range(200)]
    random.Random(1).shuffle(changes)
    (story,) = fold(*changes).pods
    kept = [result["message"] for result in story.history]
    wanted = [*range(FIRST_STATUSES), *range(200 - LAST_STATUSES, 200)]
    assert kept == [f"m{n}" for n in wanted]


def test_versions_are_ordered_as_numbers() -> None:
    (story,) = fold(pod(0, 1000, status(running())), pod(0, 999, status(phase="Pending"))).pods
    assert story.phase == "Running"


def test_everything_has_a_bound() -> None:
    numbers = itertools.count(1)
    lines = [pod(n, 1000, status(running()), uid=f"u{n}") for n in range(PODS_MAX + 5)]
    lines += [event("u0", "Killing", "m", number=next(numbers)) for _ in range(100)]
    lines += [gap_line("pods", since="a", at=f"b{n:03d}", why="w", missed=()) for n in range(100)]
    seen = fold(*lines)
    counts = (len(seen.pods), len(seen.events), len(seen.gaps))
    assert counts == (PODS_MAX, EVENTS_OF_ONE_MAX, GAPS_MAX)
    waits = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "m"}
    pending = status(phase="Pending", conditions=[waits])
    many = fold(*(pod(n, 1000, pending, uid=f"u{n}") for n in range(100)))
    assert len(conditions(many, pods=100, ranks_per_pod=1)) == ALIKE_MAX


def test_a_problem_lasts_until_it_is_said_to_be_over() -> None:
    result = problem_line("pods", "Cannot list pods: 403 …", at=text_at(1))
    over = problem_line("pods", "", at=text_at(2))
    assert fold(result).problems == ("Cannot list pods: 403 …",)
    assert fold(over, result).problems == ()


@pytest.mark.parametrize(
    "line",
    [None, 3, [], {}, {"kind": "pod"}, {"kind": "pod", "uid": "u", "rv": 3, "status": "x"},
     {"kind": "event", "uid": "e", "about": 3}, {"kind": "job", "uid": "j"}, {"kind": "new"},
     {"kind": "log", "uid": "p"}, {"kind": "gone", "uid": "p"}, {"kind": "gap"}],
)  # fmt: skip
def test_a_line_of_another_shape_is_never_an_error(line: Json) -> None:
    seen = GangFold([line]).seen()
    assert reason(seen) in ("unknown", "completed")


@pytest.mark.parametrize("given", [{}, {"metadata": 3, "spec": [], "status": "x"}, None])
def test_an_object_of_another_shape_makes_a_line_that_says_little(given: Json) -> None:
    for make in (pod_line, job_line):
        assert make("ADDED", given, at="x", clean=plain)["uid"] == ""
    assert event_line(given, at="x", clean=plain)["reason"] == ""


def test_lines_are_clean_of_secrets_and_long_messages_keep_begin_and_end() -> None:
    result = status(
        {"waiting": {"reason": "ErrImagePull", "message": "hunter2" + "x" * 5000 + "end"}}
    )
    given = {"metadata": {}, "status": result}
    line = pod_line("ADDED", given, at="x", clean=lambda t: t.replace("hunter2", "***"))
    message = line["status"]["containerStatuses"][0]["state"]["waiting"]["message"]
    assert message.startswith("***x")
    assert message.endswith("end")
    assert len(message) <= 1024


def test_a_change_that_tells_nothing_new_is_the_same_sight() -> None:
    first, again = pod(0, 1000, status(running())), pod(0, 1100, status(running()))
    assert same_sight(again, first)
    assert not same_sight(pod(0, 1002, status(ended(0, 3))), first)
    assert not same_sight({**again, "change": "DELETED"}, first)

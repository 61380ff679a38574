"""When a gang that does not come up is given up: by two budgets, and in whose words."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from tests.bodies import BEGIN
from tracks_dagster.reasons.evidence import CANNOT_START, Condition
from tracks_dagster.reasons.rules.control_words import CONDITIONS
from tracks_dagster.track.records import Json, format_time
from tracks_dagster.wings.kubernetes.sightings import EventSeen, GangSeen, JobStory, PodStory
from tracks_dagster.wings.kubernetes.start_budget import StartBudget, cannot_start

BUDGET = StartBudget(scheduling_s=900.0, start_s=600.0, partial_s=300.0)
NO_NODE = "0/4 nodes are available: 4 Insufficient nvidia.com/gpu."
PULL = 'failed to pull image "train:1": i/o timeout'


def after(seconds: float) -> datetime:
    return BEGIN + timedelta(seconds=seconds)


JOB = JobStory(uid="j", name="job", born_at=format_time(BEGIN))


def pod(index: int, *, node: str | None = "n1", status: Json = None) -> PodStory:
    return PodStory(
        uid=f"p{index}", name=f"job-{index}-abcde", index=index, node=node, history=(status or {},)
    )


def unschedulable(index: int) -> PodStory:
    result = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    conditions = [{**result, "message": NO_NODE}]
    return pod(index, node=None, status={"phase": "Pending", "conditions": conditions})


def waiting(index: int, reason: str, message: str = "", *, since_s: float = 0.0) -> PodStory:
    ready = {"type": "Ready", "status": "False", "lastTransitionTime": format_time(after(since_s))}
    state = {"waiting": {"reason": reason, "message": message}}
    status = {"phase": "Pending", "conditions": [ready], "containerStatuses": [{"state": state}]}
    return pod(index, status=status)


def running(index: int) -> PodStory:
    state = {"running": {"startedAt": format_time(BEGIN)}}
    return pod(index, status={"phase": "Running", "containerStatuses": [{"state": state}]})


def event(about: str, reason: str, message: str) -> EventSeen:
    return EventSeen(
        uid=f"e-{reason}",
        about_kind="Job",
        about_name="job",
        about_uid=about,
        level="Warning",
        reason=reason,
        message=message,
        count=1,
        first_at=format_time(BEGIN),
        last_at=format_time(BEGIN),
        by="job-controller",
    )


def judged(*pods: PodStory, at_s: float, job: JobStory = JOB, **more: object) -> Condition | None:
    seen = GangSeen(pods=pods, jobs=(job,), **more)  # type: ignore[arg-type]
    return cannot_start(seen, 2, BUDGET, after(at_s))


def reason_of(found: Condition | None) -> str:
    """Return the termination reason that the classifier's table gives."""
    assert found is not None
    assert found.type == CANNOT_START
    text = f"{found.type}/{found.reason}: {found.message}"
    return next((reason.value for words, reason in CONDITIONS if words.search(text)), "unknown")


def test_a_pod_without_a_node_is_given_the_first_budget_and_no_more() -> None:
    pods = (unschedulable(0), unschedulable(1))
    assert judged(*pods, at_s=899) is None
    found = judged(*pods, at_s=901)
    assert found is not None
    assert NO_NODE in found.message
    assert reason_of(found) == "scheduling_timeout"


def holding(index: int, *, since_s: float) -> PodStory:
    result = {
        "type": "PodScheduled",
        "status": "True",
        "lastTransitionTime": format_time(after(since_s)),
    }
    state = {"running": {"startedAt": format_time(BEGIN)}}
    status = {"phase": "Running", "conditions": [result], "containerStatuses": [{"state": state}]}
    return pod(index, status=status)


def test_a_gang_of_which_only_a_part_has_nodes_gives_them_back_early() -> None:
    pods = (holding(0, since_s=100), unschedulable(1))
    assert judged(*pods, at_s=399) is None
    found = judged(*pods, at_s=400)
    assert found is not None
    assert found.message == (
        "Pod job-1-abcde got no node within 300 s in which 1 of 2 pods held theirs, which are given "
        f"back: {NO_NODE}"
    )
    assert reason_of(found) == "scheduling_timeout"


def test_a_gang_of_which_a_quota_lets_only_a_part_be_made_gives_its_places_back_early() -> None:
    words = 'Error creating: pods "job-1" is forbidden: exceeded quota: team, requested: pods=1'
    result = (event("j", "FailedCreate", words),)
    assert judged(holding(0, since_s=0), at_s=299, events=result) is None
    found = judged(holding(0, since_s=0), at_s=300, events=result)
    assert found is not None
    assert found.message.startswith(
        "Job job lacked 1 of its pods for 300 s in which 1 of 2 pods held"
    )
    assert reason_of(found) == "scheduling_timeout"


def test_a_pod_that_a_node_is_being_added_for_is_waited_for_as_long_as_without_others() -> None:
    pods = (holding(0, since_s=0), unschedulable(1))
    result = (event("p1", "TriggeredScaleUp", "pod triggered scale-up: [{pool 1->2 (max: 8)}]"),)
    assert judged(*pods, at_s=899, events=result) is None
    assert judged(*pods, at_s=901, events=result) is not None


def test_a_pod_with_a_node_is_given_the_second_budget_from_when_it_had_it() -> None:
    pods = (running(0), waiting(1, "ImagePullBackOff", PULL, since_s=800))
    assert judged(*pods, at_s=1399) is None
    found = judged(*pods, at_s=1401)
    assert found is not None
    assert PULL in found.message
    assert reason_of(found) == "image_pull"


def test_what_can_never_get_better_ends_the_wait_at_once() -> None:
    pods = (running(0), waiting(1, "InvalidImageName", 'couldn\'t parse image "::"'))
    assert reason_of(judged(*pods, at_s=1)) == "image_pull"


def test_a_job_that_may_make_no_pods_tells_why() -> None:
    words = 'Error creating: pods "job-0" is forbidden: exceeded quota: team, requested: pods=1'
    result = (event("j", "FailedCreate", words),)
    assert judged(at_s=899, events=result) is None
    found = judged(at_s=901, events=result)
    assert found is not None
    assert words in found.message
    assert reason_of(found) == "scheduling_timeout"


def test_pods_that_admission_refuses_for_good_are_not_waited_for() -> None:
    words = 'pods "job-0" is forbidden: violates PodSecurity "restricted": runAsNonRoot != true'
    found = judged(at_s=1, events=(event("j", "FailedCreate", words),))
    assert found is not None
    assert found.message == f"Job job can never make its pods: {words}"


@pytest.mark.parametrize(
    "job",
    [
        replace(JOB, suspended=True),
        replace(JOB, gone_at=format_time(BEGIN)),
        replace(JOB, status={"conditions": [{"type": "Failed", "status": "True"}]}),
    ],
    ids=["held back by a queue", "deleted", "finished"],
)
def test_a_job_that_is_not_meant_to_start_now_is_waited_for(job: JobStory) -> None:
    assert judged(unschedulable(0), at_s=10**6, job=job) is None


def test_the_budget_of_an_admitted_job_begins_with_its_admission() -> None:
    job = replace(JOB, status={"startTime": format_time(after(5000))})
    assert judged(unschedulable(0), unschedulable(1), at_s=5899, job=job) is None
    assert judged(unschedulable(0), unschedulable(1), at_s=5901, job=job) is not None


def test_a_pod_that_somebody_holds_back_on_purpose_is_waited_for() -> None:
    gated = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}
    held = pod(1, node=None, status={"phase": "Pending", "conditions": [gated]})
    assert judged(running(0), held, at_s=10**6) is None


def test_a_gang_that_has_begun_is_never_given_up() -> None:
    assert judged(running(0), running(1), at_s=10**6) is None


def test_an_image_that_is_still_being_pulled_is_reported_as_such() -> None:
    asked = []

    def more(uid: str) -> list[Json]:
        asked.append(uid)
        return [{"reason": "Pulling", "message": 'Pulling image "train:1"'}]

    seen = GangSeen(pods=(running(0), waiting(1, "ContainerCreating")), jobs=(JOB,))
    found = cannot_start(seen, 2, BUDGET, after(601), more=more)
    assert reason_of(found) == "image_pull"
    assert asked == ["p1"]
    assert found is not None
    assert 'Pulling image "train:1"' in found.message

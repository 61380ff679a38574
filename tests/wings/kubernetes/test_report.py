"""What a watcher saw and what the pods wrote become one report: the pods' own words go before."""

from __future__ import annotations

from dataclasses import replace

from tracks_dagster.attempts.pod_files import PodBeat, PodEnd
from tracks_dagster.attempts.ports import GangPhase, GangReport
from tracks_dagster.reasons.evidence import RankEnd
from tracks_dagster.reasons.hangs import Beat, Phase
from tracks_dagster.track.records import Json
from tracks_dagster.wings.kubernetes.report import ReportInputs, report
from tracks_dagster.wings.kubernetes.sightings import GangSeen, PodStory

AT, LATER = "2026-01-31T02:00:00.000000Z", "2026-01-31T02:00:30.000000Z"


def pod(index: int, *, uid: str = "", state: Json = None, phase: str = "Running") -> PodStory:
    container = {"state": state or {"running": {"startedAt": AT}}}
    return PodStory(
        uid=uid or f"u{index}",
        name=f"p{index}",
        index=index,
        node=f"n{index}",
        born_at=AT,
        history=({"phase": phase, "containerStatuses": [container]},),
        log=f"log of {index}",
    )


def killed(index: int, *, reason: str = "Error", code: int = 137) -> PodStory:
    state = {"exitCode": code, "reason": reason, "startedAt": AT, "finishedAt": LATER}
    return pod(index, state={"terminated": state}, phase="Failed")


def end(index: int, *ranks: RankEnd, **more: object) -> PodEnd:
    return PodEnd(pod=f"p{index}", node=f"n{index}", boot_id="b", index=index, ranks=ranks, **more)  # type: ignore[arg-type]


def report_of(*pods: PodStory, ends: dict[str, PodEnd] | None = None, **more: object) -> GangReport:
    known = ReportInputs(
        nodes=2,
        ranks_per_node=2,
        seen=GangSeen(pods=pods),
        beats={},
        ends=ends or {},
        boot_ids={},
    )
    return report(replace(known, **more), GangPhase.GONE, where="here")  # type: ignore[arg-type]


def test_a_rank_that_its_killed_pod_left_without_an_end_has_its_containers() -> None:
    ended = RankEnd(rank=0, exit_code=1, started_at=AT, ended_at=AT, log_tail="boom")
    alive = RankEnd(rank=1, started_at=AT, log_tail="fine so far")
    ranks = report_of(killed(0), ends={"u0": end(0, ended, alive)}).ranks
    assert (ranks[0].exit_code, ranks[0].log_tail, ranks[0].ended_at) == (1, "boom", AT)
    assert (ranks[1].exit_code, ranks[1].log_tail, ranks[1].ended_at) == (137, "fine so far", LATER)


def test_a_container_that_was_oom_killed_says_so_whatever_its_ranks_wrote() -> None:
    ended = RankEnd(rank=0, exit_code=7, started_at=AT, ended_at=AT)
    ranks = report_of(killed(0, reason="OOMKilled", code=0), ends={"u0": end(0, ended)}).ranks
    assert ranks[0].oom_killed
    assert ranks[0].exit_code == 7


def test_only_the_pod_that_decides_of_an_index_is_heard() -> None:
    zombie, replacement = killed(0), pod(0, uid="second")
    ends = {
        "u0": end(0, RankEnd(rank=0, signal=9, ended_at=AT)),
        "second": end(0, RankEnd(rank=0, exit_code=76, ended_at=LATER)),
    }
    assert report_of(zombie, replacement, ends=ends).ranks[0].signal == 9


def test_what_pods_wrote_stands_where_nobody_saw_them() -> None:
    ends = {"u1": end(1, RankEnd(rank=2, exit_code=3, started_at=AT, ended_at=LATER))}
    found = report_of(ends=ends)
    assert [rank.exit_code for rank in found.ranks] == [None, None, 3, None]
    assert (found.started_at, found.ended_at) == (AT, LATER)
    assert found.boot_ids == {"n1": "b"}


def test_why_a_pod_started_no_ranks_is_a_condition() -> None:
    found = report_of(
        killed(1), ends={"u1": end(1, problem="the trainer's script is not in the store")}
    )
    (condition,) = [c for c in found.conditions if c.type == "PodProblem"]
    assert (condition.rank, condition.message) == (2, "the trainer's script is not in the store")


def test_what_could_not_be_watched_is_reported() -> None:
    seen = GangSeen(pods=(killed(0),), problems=("events cannot be listed: forbidden",))
    found = report_of(seen=seen)
    assert "events cannot be listed: forbidden" in {c.message for c in found.conditions}


def test_counts_of_several_pods_are_distinguished() -> None:
    ends = {f"u{i}": end(i, cgroup={"oom_kill": i}, kernel_lines=(f"k{i}",)) for i in (0, 1)}
    found = report_of(killed(0), killed(1), ends=ends)
    assert found.cgroup == {"pod-0.oom_kill": 0, "pod-1.oom_kill": 1}
    assert found.kernel_lines == ("k0", "k1")


def test_ranks_have_beats_once_all_pods_run() -> None:
    beat = PodBeat(
        pod="p0",
        node="n0",
        boot_id="b",
        index=0,
        ranks=(Beat(rank=0, phase=Phase.COMPUTING, step=3),),
    )
    assert report_of(pod(0), beats={"u0": beat}).beats == ()
    beats = report_of(pod(0), pod(1), beats={"u0": beat}).beats
    assert [(b.rank, b.phase, b.step) for b in beats] == [
        (0, Phase.COMPUTING, 3),
        (1, Phase.STARTING, 0),
        (2, Phase.STARTING, 0),
        (3, Phase.STARTING, 0),
    ]

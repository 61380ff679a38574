"""Incidents of different kinds, each a function that lets one happen in a fresh world.

It returns the attempt that a new engineer is asked about, and words of the true cause that an answer
to "why did it end?" has to hold: who wrote the incident knows them, the explanation has to find them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.bodies import EVAL_RESULT
from tests.deciders import retried
from tests.incidents.gang import ENVIRONMENT, NODES, condition, exited, killed, unseen
from tests.incidents.world import World
from tracks_dagster.attempts.effects.manual_retry import AttemptChanges
from tracks_dagster.attempts.effects.resuming import check_resume
from tracks_dagster.holds.effects.quarantines import quarantine_snapshot
from tracks_dagster.reasons import hangs
from tracks_dagster.retry.default_policy import DEFAULT_POLICY

NCCL = (
    "[rank0]: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=811, OpType=ALLREDUCE, "
    "Timeout(ms)=600000) ran for 600061 milliseconds before timing out."
)
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
SEGFAULT = "Fatal Python error: Segmentation fault"


@dataclass(frozen=True)
class Incident:
    """What happened. attempt_id: the one that is asked about; truth: what its answer has to hold."""

    play: Callable[[World], None]
    attempt_id: int
    truth: tuple[str, ...]

    @property
    def name(self) -> str:
        """What the test is called."""
        return self.play.__name__


def _nccl_timeout_that_was_one_ranks_oom(world: World) -> None:
    world.start().train(23).say(1, "gpu_oom", OOM, step=23)
    world.clock.advance(600)
    world.end(killed(0, 6, log_tail=NCCL), exited(1, 1, log=OOM))
    world.decide()
    world.start().train(60).complete()


def _preemption_that_exited_with_0(world: World) -> None:
    world.start().train(34)
    taken = condition(
        world.clock.at, "DisruptionTarget", "PreemptionByScheduler", "preempted by team-b/urgent-7"
    )
    world.end(exited(0, 0), exited(1, 0), conditions=(taken,))
    world.decide()
    world.start().train(60).complete()


def _resume_with_another_library(world: World) -> None:
    _preempted(world, 21)
    world.claim()
    found = {**ENVIRONMENT, "torch": "2.9.1"}
    check = check_resume(
        world.tracks,
        world.state,
        world.attempt,
        foresee=lambda *_: found,
        rules=DEFAULT_POLICY.environment,
    )
    assert check.refusal is not None
    world.end(observed=(check.refusal,))
    world.decide()


def _bad_snapshot_noticed_three_days_later(world: World) -> None:
    _preempted(world, 38)
    world.start().train(45).end(killed(0, 11), killed(1, 15))
    world.clock.advance(3 * 86400)  # the retry sensor was off
    why = "Rows of May were labelled twice; found by data quality."
    quarantine_snapshot(world.tracks, world.data, by="joe", why=why)
    world.decide()


def _zombie_that_came_back(world: World) -> None:
    world.start().train(27)
    world.clock.advance(900)  # its node is cut off: no journal, no exit code reaches anybody
    gone = condition(
        world.clock.at,
        "DisruptionTarget",
        "DeletionByTaintManager",
        f"node {NODES[0]} is unreachable",
        rank=0,
    )
    world.end(unseen(0), killed(1, 15), conditions=(gone,))
    world.clock.advance(120)
    world.say(0, "fenced", "tracks_dagster.track.errors.Fenced: attempt 1 has ended", step=31)
    world.decide()
    world.start().train(60).complete()


def _nan_with_rollback(world: World) -> None:
    said = "tracks_dagster.track.errors.NonFinite: The loss of step 33 is nan."
    world.start().train(33).say(0, "nan_loss", said, step=32, onset_step=29)
    world.end(exited(0, 1, log=said), exited(1, 1))
    world.decide()
    world.start().train(60).complete()


def _host_out_of_memory(world: World) -> None:
    world.start().train(16)
    kernel = "Memory cgroup out of memory: Killed process 700 (python) anon-rss:64231204kB"
    world.end(
        killed(0, oom_killed=True),
        killed(1, 15),
        cgroup={"oom_kill": 1, "max": 12},
        kernel_lines=(kernel,),
    )
    world.decide()


def _disk_full(world: World) -> None:
    said = "builtins.OSError: [Errno 28] No space left on device: '/scratch/cache'"
    world.start().train(41).say(0, "disk_full", said, step=41)
    world.end(exited(0, 1, log=said), killed(1, 15))
    world.decide()
    world.start().train(60).complete()


def _evaluator_down_after_a_good_commit(world: World) -> None:
    _preempted(world, 47)
    world.start().train(60).complete()
    world.evaluate("ConnectionError: evaluator:8080 refused the connection", EVAL_RESULT)
    world.promote()


def _hang(world: World) -> None:
    world.start().train(19)
    stands = "rank 1 has not moved since step 19; the others wait for it in all_reduce"
    hung = condition(
        world.clock.at, hangs.CONDITION, hangs.NO_STEP, stands, source="supervisor", rank=1
    )
    world.end(killed(0), killed(1), after_s=120, observed=(hung,))
    world.decide()
    world.start().train(60).complete()


def _retry_refused_by_the_budget(world: World) -> None:
    for last_step in (4, 6, 5):
        world.start().train(last_step)
        world.end(killed(0, 11, log_tail=SEGFAULT), killed(1, 15))
        world.decide()


def _node_failure(world: World) -> None:
    world.start().train(52)
    world.clock.advance(300)
    world.end(unseen(0), killed(1, 9), boot_ids={NODES[0]: "boot-later"})
    world.decide()
    world.start().train(60).complete()


def _data_worker_stalled(world: World) -> None:
    world.start().train(25)
    stands = "rank 0 waits for its data loader since step 25: queue.get in _try_get_data"
    hung = condition(
        world.clock.at,
        hangs.CONDITION,
        hangs.DATA_LOADER_STALL,
        stands,
        source="supervisor",
        rank=0,
    )
    world.end(killed(0), killed(1), after_s=120, observed=(hung,))
    retried(
        world.tracks,
        world.run_id,
        by="ann",
        why="Fewer loader workers, the share was slow.",
        changes=AttemptChanges(config={"lr": 0.0008}),
    )
    world.start().train(60).complete()


def _preempted(world: World, last_step: int) -> None:
    """Let the first attempt be preempted, and open the second."""
    world.start().train(last_step)
    taken = condition(
        world.clock.at, "DisruptionTarget", "PreemptionByScheduler", "taken for urgent-7"
    )
    world.end(killed(0, 15), killed(1, 15), conditions=(taken,))
    world.decide()


INCIDENTS = (
    Incident(
        _nccl_timeout_that_was_one_ranks_oom,
        1,
        ("gpu_oom", "CUDA out of memory", "rank 1, which failed first"),
    ),
    Incident(_preemption_that_exited_with_0, 1, ("preempted", "team-b/urgent-7")),
    Incident(_resume_with_another_library, 2, ("dependency_mismatch", "2.8.0", "2.9.1")),
    Incident(_bad_snapshot_noticed_three_days_later, 2, ("native_crash", "labelled twice", "joe")),
    Incident(
        _zombie_that_came_back,
        1,
        ("node_failure", "unreachable", "nobody saw it end", "still lived", "fenced"),
    ),
    Incident(_nan_with_rollback, 1, ("nan_loss", "The loss of step 33 is nan")),
    Incident(_host_out_of_memory, 1, ("host_oom", "oom")),
    Incident(_disk_full, 1, ("disk_full", "No space left on device")),
    Incident(_evaluator_down_after_a_good_commit, 2, ("completed", "evaluator_error", "refused")),
    Incident(_hang, 1, ("hang", "rank 1 has not moved since step 19")),
    Incident(_retry_refused_by_the_budget, 3, ("native_crash", "refused", "Segmentation fault")),
    Incident(
        _node_failure, 1, ("node_failure", f"booted again since the attempt was placed: {NODES[0]}")
    ),
    Incident(_data_worker_stalled, 1, ("data_loader_stall", "waits for its data loader")),
)

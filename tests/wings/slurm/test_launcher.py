"""The launcher of gangs on Slurm against a Slurm in memory: one job an attempt, whatever is lost."""

from __future__ import annotations

import fcntl
import os
import random
import subprocess
import threading
from dataclasses import asdict, replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from tests.fakes import FakeClock, FakeObjectStore, Fault, SequentialUids
from tests.wings.slurm.double import FakeJob, FakeSlurm
from tests.wings.slurm.test_submission import SPEC
from tracks_dagster.attempts.effects.gang_files import FRESH_S, SILENT_S_MAX
from tracks_dagster.attempts.effects.supervise import START_AGAIN_S, START_S_MAX
from tracks_dagster.attempts.pod_files import (
    PodBeat,
    PodEnd,
    beat_key,
    encode_beat,
    encode_end,
    end_key,
)
from tracks_dagster.attempts.ports import GangPhase, GangReport
from tracks_dagster.reasons.evidence import CANNOT_START, RankEnd
from tracks_dagster.reasons.hangs import Beat, Phase
from tracks_dagster.track.bodies import ComputeRequest
from tracks_dagster.track.errors import GangError, GangUnreachable
from tracks_dagster.track.names import AttemptRef
from tracks_dagster.track.records import format_time
from tracks_dagster.wings.slurm.effects import board
from tracks_dagster.wings.slurm.effects.board import LOOK_S_MAX, POLL_S
from tracks_dagster.wings.slurm.effects.client import SlurmClient
from tracks_dagster.wings.slurm.effects.known_gang import ASKED_MAX, Gang
from tracks_dagster.wings.slurm.effects.launcher import (
    SETTLED_S,
    UNANSWERED_S_MAX,
    SlurmLauncher,
)
from tracks_dagster.wings.slurm.settings import SlurmSettings
from tracks_dagster.wings.slurm.submission import COMMENT, job_name

SETTINGS = SlurmSettings(python="/venv/bin/python", scheduling_timeout_s=7200.0)
GANG = replace(SPEC, compute=ComputeRequest(launcher="slurm", ranks=2), store_url="memory://fake")
REF = GANG.ref
NAME = job_name(REF, GANG.store_url)
SUBMITS = 200  # seeded points at which a submit's reply is lost


class World:
    """One store, one Slurm, and as many launchers as a test makes. Sleeping lets time pass."""

    def __init__(self, folder: Path) -> None:
        self.clock = FakeClock()
        self.slurm = FakeSlurm(self.clock)
        self.store = FakeObjectStore()
        self.folder = folder
        self.uids = SequentialUids()

    def launcher(self, *, settings: SlurmSettings = SETTINGS) -> SlurmLauncher:
        """Another process of the home."""
        client = SlurmClient(settings, clean=str, environment={}, run=self.slurm.run)
        return SlurmLauncher(
            client,
            settings,
            self.store,
            folder=self.folder,
            now=self.clock,
            new_uid=self.uids,
            clean=str,
            sleep=self.clock.advance,
            seconds=lambda: self.clock().timestamp(),
        )

    def later(self, seconds: float = POLL_S) -> datetime:
        """Let the queue's last answer grow old; return when that is."""
        self.clock.advance(seconds)
        return self.clock()

    def counted(self, program: str) -> int:
        """How often a program was started."""
        return sum(call[0] == program for call in self.slurm.calls)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_an_attempt_is_one_job_no_matter_who_starts_it_and_how_often(world: World) -> None:
    first, second = world.launcher(), world.launcher()
    assert first.glance(REF).phase is GangPhase.NEVER_STARTED
    assert first.start(GANG)
    assert not first.start(GANG)
    assert not second.start(GANG)
    assert len(world.slurm.jobs) == 1
    assert second.observe(REF).phase is GangPhase.ALIVE


def test_a_gang_waits_runs_and_is_gone_as_its_job_is(world: World) -> None:
    launcher = world.launcher()
    launcher.start(GANG)
    world.later(60)
    assert launcher.glance(REF).waits.startswith("job 1 waits in Slurm's queue: Resources")
    world.slurm.start(world.slurm.job())
    world.later()
    assert launcher.glance(REF) == GangReport(
        phase=GangPhase.ALIVE, where="Slurm", sees_all_nodes=True
    )
    world.slurm.end(world.slurm.job(), "FAILED", "1:0")
    world.later()
    assert launcher.glance(REF).phase is GangPhase.GONE


def test_its_ranks_ends_are_what_their_nodes_stored(world: World) -> None:
    launcher = world.launcher()
    launcher.start(GANG)
    job = world.slurm.job()
    world.slurm.start(job)
    ends = (RankEnd(rank=0, exit_code=1, log_tail="KeyError"), RankEnd(rank=1, signal=9))
    for index, end in enumerate(ends):
        node = PodEnd(pod=f"1-{index}", node=f"n{index}", boot_id="b", index=index, ranks=(end,))
        world.store.put(end_key(REF, f"slurm-1-{index}"), encode_end(node))
    world.slurm.end(job, "FAILED", "1:0")
    world.later(60)
    report = launcher.observe(REF)
    assert [(rank.exit_code, rank.signal) for rank in report.ranks] == [(1, None), (None, 9)]
    assert (report.slurm_state, report.allocated) == ("FAILED", "gres/gpu=4")
    assert report.boot_ids == {"n0": "b", "n1": "b"}


def test_the_ends_of_ranks_are_seen_though_their_job_goes_on(world: World) -> None:
    """A job is RUNNING for ever once the process that runs its script has crashed."""
    launcher = world.launcher()
    launcher.start(GANG)
    world.slurm.start(world.slurm.job())
    at = format_time(world.later(60))
    for index, phase in enumerate((Phase.COMPUTING, Phase.ENDING)):
        beat = Beat(rank=index, phase=phase, step=7, count=9, step_s_p99=0.1)
        node = {"pod": f"1-{index}", "node": f"n{index}", "boot_id": "b", "index": index}
        ranks = (RankEnd(rank=index, exit_code=0, started_at=at, ended_at=at),)
        uid = f"slurm-1-{index}"
        world.store.put(beat_key(REF, uid), encode_beat(PodBeat(**node, at=at, ranks=(beat,))))
        world.store.put(end_key(REF, uid), encode_end(PodEnd(**node, ranks=ranks)))
    launcher.observe(REF)
    world.later()
    assert [each.has_ended for each in launcher.observe(REF).ranks] == [False, True]
    world.later(FRESH_S)  # nothing comes from the other node any more
    report = launcher.observe(REF)
    assert [each.exit_code for each in report.ranks] == [0, 0]
    assert report.phase is GangPhase.ALIVE


@pytest.mark.parametrize("ends_it", ["a person", "a supervisor"])
def test_slurm_s_line_that_a_step_was_cancelled_counts_where_we_did_not(
    world: World, ends_it: str
) -> None:
    words = "slurmstepd: error: *** STEP 1.0 ON n1 CANCELLED AT 2030-01-01T00:00:00 ***"
    launcher = world.launcher()
    launcher.start(GANG)
    job = world.slurm.job()
    world.slurm.start(job)
    world.later(60)
    if ends_it == "a person":
        world.slurm.end(job, "CANCELLED by 1000")
    launcher.kill(REF)
    output = Path(next(o for o in job.options if o.startswith("--output=")).partition("=")[2])
    output.parent.mkdir(parents=True, exist_ok=True)
    output.with_name(output.name.replace("%j", str(job.id))).write_text(f"{words}\nslurmd: bye\n")
    world.later()
    log = world.launcher().observe(REF).ranks[0].log_tail
    assert "slurmd: bye" in log
    assert (words in log) is (ends_it == "a person")


def test_a_gang_that_was_killed_is_seen_gone_and_no_person_did_it(world: World) -> None:
    launcher = world.launcher()
    launcher.start(GANG)
    world.slurm.start(world.slurm.job())
    launcher.kill(REF)
    assert world.slurm.job().state == "CANCELLED by 1000"
    report = world.launcher().observe(REF)
    assert (report.phase, report.slurm_state) == (GangPhase.GONE, None)


def test_what_a_person_cancels_is_known_by_whom(world: World) -> None:
    launcher = world.launcher()
    launcher.start(GANG)
    world.slurm.start(world.slurm.job())
    world.slurm.end(world.slurm.job(), "CANCELLED by 4711")
    world.later(60)
    launcher.kill(REF)
    assert launcher.observe(REF).slurm_state == "CANCELLED by 4711"
    assert world.counted("scancel") == 0


def test_a_job_that_waits_too_long_says_why_after_it_was_cancelled(world: World) -> None:
    launcher = world.launcher()
    launcher.start(GANG)
    world.slurm.job().reason = "AssocGrpGRES"
    world.later(7300)
    assert launcher.observe(REF).conditions[0].type == CANNOT_START
    launcher.kill(REF)
    (found,) = launcher.observe(REF).conditions
    assert (found.type, "AssocGrpGRES" in found.message) == (CANNOT_START, True)


def test_a_job_that_is_newer_than_the_queue_s_last_answer_is_not_taken_for_lost(
    world: World,
) -> None:
    launcher = world.launcher()
    launcher.start(GANG)
    world.later(60)
    assert launcher.glance(REF).phase is GangPhase.ALIVE
    newer = replace(GANG, attempt_id=3)
    launcher.start(newer)
    world.clock.advance(1)
    assert launcher.glance(newer.ref).phase is GangPhase.ALIVE
    assert world.counted("sacct") == 0


def test_drain_asks_the_tasks_of_what_runs_and_takes_what_waits_from_the_queue(
    world: World,
) -> None:
    launcher = world.launcher()
    launcher.start(GANG)
    world.slurm.start(world.slurm.job())
    world.later(60)
    for _ in range(5):  # a supervisor asks every second
        launcher.drain(REF, grace_s=30.0)
        world.clock.advance(1)
    assert [c for c in world.slurm.calls if c[0] == "scancel"] == [
        ("scancel", "--signal=TERM", "1")
    ]
    waiting = replace(GANG, attempt_id=3)
    launcher.start(waiting)
    launcher.drain(waiting.ref, grace_s=30.0)
    assert world.slurm.job().state == "CANCELLED by 1000"


@pytest.mark.parametrize("fault", [Fault.LOST_AFTER, Fault.LOST_BEFORE, Fault.LOST_UNTIL_LATER])
def test_a_submit_without_a_reply_is_found_again_or_made_once_more(
    world: World, fault: Fault
) -> None:
    world.slurm.fail("sbatch", 1, fault)
    launcher = world.launcher()
    for _ in range(100):
        try:
            launcher.start(GANG)
            break
        except GangUnreachable:
            world.clock.advance(5)
    assert len(world.slurm.jobs) == 1
    assert launcher.observe(REF).phase is GangPhase.ALIVE


def test_a_submit_whose_launcher_died_is_found_by_its_name(world: World) -> None:
    def dies(*_: object) -> None:
        raise KeyboardInterrupt

    dead = world.launcher()
    dead._note = dies  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        dead.start(GANG)
    heir = world.launcher()
    assert not heir.start(GANG)
    assert len(world.slurm.jobs) == 1
    world.slurm.end(world.slurm.job(), "COMPLETED")
    world.slurm.forget(world.slurm.job())
    assert not world.launcher().start(GANG)


def test_a_job_of_a_store_that_was_there_before_is_not_taken_for_a_lost_one(world: World) -> None:
    """Made again at the same place, with a run of the same name."""
    world.launcher().start(GANG)
    world.slurm.end(world.slurm.job(), "COMPLETED")
    old = world.slurm.job()
    world.clock.advance(7 * 24 * 3600)
    for key in list(world.store.list("")):
        world.store.delete(key)
    world.slurm.fail("sbatch", 1, Fault.LOST_BEFORE)
    launcher = world.launcher()
    with pytest.raises(GangError):
        launcher.start(GANG)
    world.clock.advance(2 * SETTLED_S)
    assert launcher.start(GANG)
    assert [job is old for job in world.slurm.named(NAME)] == [True, False]


@pytest.mark.parametrize("lost", [Fault.LOST_AFTER, None], ids=["reply-lost", "nothing-lost"])
def test_an_older_job_of_the_same_name_is_not_the_gang_s(world: World, lost: Fault | None) -> None:
    """A store was made again at its place minutes ago, and the run has the same id: both names are."""
    world.launcher().start(GANG)
    old = world.slurm.job()
    world.slurm.start(old)
    world.slurm.end(old, "CANCELLED by 1000")
    world.clock.advance(120)
    for key in list(world.store.list("")):
        world.store.delete(key)
    if lost is not None:
        world.slurm.fail("sbatch", 1, lost)
    launcher, other = world.launcher(), world.launcher()
    submit, seen = world.slurm._sbatch, list[GangPhase]()

    def slow(words: tuple[str, ...], script: str) -> subprocess.CompletedProcess[str]:
        seen.append(other.glance(REF).phase)  # another process looks before Slurm has answered
        return submit(words, script)

    world.slurm._sbatch = slow  # type: ignore[method-assign]
    assert launcher.start(GANG)
    assert seen == [GangPhase.NEVER_STARTED]
    world.slurm.start(world.slurm.job())
    world.later(70)
    for each in (launcher, world.launcher()):
        assert each.observe(REF).phase is GangPhase.ALIVE
    launcher.kill(REF)
    assert world.slurm.job().state.startswith("CANCELLED")


def test_an_attempt_never_has_two_jobs_wherever_a_reply_is_lost(tmp_path: Path) -> None:
    faults = [*Fault, None, None]
    for seed in range(SUBMITS):
        rng = random.Random(seed)
        world = World(tmp_path / str(seed))
        for program in ("sbatch", "squeue", "sacct"):
            for number in range(1, 5):
                if (fault := rng.choice(faults)) is not None and rng.random() < 0.7:
                    world.slurm.fail(program, number, fault)
        for method in ("create", "get", "put"):
            if rng.random() < 0.3:
                fault = rng.choice([Fault.FAILS, Fault.LOST_AFTER, Fault.LOST_BEFORE])
                world.store.fail(method, rng.randint(1, 6), fault)
        launchers = [world.launcher() for _ in range(3)]
        has_started = False
        for _ in range(400):
            launcher = rng.choice(launchers)
            if rng.random() < 0.1:  # it dies, with all that it remembers
                launchers[launchers.index(launcher)] = launcher = world.launcher()
            try:
                launcher.start(GANG)
                has_started = True
                break
            except GangError:
                world.clock.advance(rng.choice([1, 5, 30]))
        assert has_started, seed
        assert len(world.slurm.named(NAME)) == 1, seed


def test_a_submit_that_began_while_another_was_looked_for_is_the_only_one(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = world.launcher(), world.launcher()
    looked = second._wait_for_a_lost_one

    def looks(gang: Gang, ref: AttemptRef) -> None:
        looked(gang, ref)
        assert first.start(GANG)

    monkeypatch.setattr(second, "_wait_for_a_lost_one", looks)
    with pytest.raises(GangUnreachable, match="Another process submits"):
        second.start(GANG)
    assert not second.start(GANG)
    assert len(world.slurm.jobs) == 1


def test_a_reply_that_stays_lost_is_waited_for_before_another_submit(world: World) -> None:
    world.slurm.fail("sbatch", 1, Fault.LOST_BEFORE)
    launcher = world.launcher()
    with pytest.raises(GangUnreachable, match="Socket timed out"):
        launcher.start(GANG)
    with pytest.raises(GangUnreachable, match="has no reply and no job yet"):
        world.launcher().start(GANG)
    world.clock.advance(SETTLED_S)
    assert launcher.start(GANG)


def test_what_slurm_refuses_is_an_error_in_its_own_words(world: World) -> None:
    world.slurm.refusal = "Requested node configuration is not available"
    with pytest.raises(GangError, match="Requested node configuration") as error:
        world.launcher().start(GANG)
    assert not isinstance(error.value, GangUnreachable)


def test_a_limit_of_the_account_is_waited_for(world: World) -> None:
    world.slurm.refusal = "Job violates accounting/QOS policy (job submit limit, user's size)"
    launcher = world.launcher()
    with pytest.raises(GangUnreachable, match="QOS policy"):
        launcher.start(GANG)
    world.slurm.refusal = ""
    assert launcher.start(GANG)  # at once: Slurm took none before


def test_a_limit_is_waited_for_as_long_as_a_supervisor_asks(world: World) -> None:
    world.slurm.refusal = "Job violates accounting/QOS policy (job submit limit, user's size)"
    launcher = world.launcher()
    for _ in range(int(START_S_MAX / START_AGAIN_S)):
        with pytest.raises(GangUnreachable, match="QOS policy"):
            launcher.start(GANG)
        world.clock.advance(START_AGAIN_S)
    world.slurm.refusal = ""
    assert launcher.start(GANG)


def test_a_start_costs_no_more_requests_the_more_submits_were_refused(world: World) -> None:
    world.slurm.refusal = "Job violates accounting/QOS policy (job submit limit, user's size)"
    launcher = world.launcher()
    counts = []
    for _ in range(40):
        before = len(world.store.calls)
        with pytest.raises(GangUnreachable):
            launcher.start(GANG)
        counts.append(len(world.store.calls) - before)
    assert counts[-1] <= counts[1], counts


def test_a_folder_for_logs_that_cannot_be_made_refuses_the_gang_in_words(world: World) -> None:
    (world.folder / "file").touch()
    settings = replace(SETTINGS, logs=str(world.folder / "file" / "logs"))
    with pytest.raises(GangError, match=r"file/logs.*Not a directory"):
        world.launcher(settings=settings).start(GANG)
    assert not world.slurm.jobs


def test_a_home_that_is_full_blinds_nobody(world: World) -> None:
    launcher = world.launcher()
    launcher.start(GANG)
    world.slurm.start(world.slurm.job())
    (world.folder / f".queue.txt.{os.getpid()}").mkdir()  # as little can be written there
    world.later(60)
    assert launcher.observe(REF).phase is GangPhase.ALIVE
    world.slurm.end(world.slurm.job(), "PREEMPTED")
    world.later()
    assert launcher.observe(REF).slurm_state == "PREEMPTED"


@pytest.mark.parametrize("state", ["RESV_DEL_HOLD", "REQUEUE_FED", "OF_A_LATER_VERSION"])
def test_a_job_in_a_state_that_is_not_an_end_is_not_over(world: World, state: str) -> None:
    launcher = world.launcher()
    launcher.start(GANG)
    world.slurm.job().state = state
    world.later(60)
    assert launcher.observe(REF).phase is GangPhase.ALIVE
    launcher.kill(REF)
    assert world.slurm.job().state == "CANCELLED by 1000"


@pytest.mark.parametrize("state", ["SUSPENDED", "STOPPED"])
def test_a_job_that_slurm_suspends_does_not_hang(world: World, state: str) -> None:
    launcher = world.launcher()
    launcher.start(GANG)
    world.slurm.start(world.slurm.job())
    for index in range(2):
        ranks = (Beat(rank=index, phase=Phase.COMPUTING, step=7),)
        beat = PodBeat(
            pod=f"1-{index}", node=f"n{index}", boot_id="b", index=index, at="t", ranks=ranks
        )
        world.store.put(beat_key(REF, f"slurm-1-{index}"), encode_beat(beat))
    world.later(60)
    assert len(launcher.observe(REF).beats) == 2
    world.slurm.job().state = state
    world.later(SILENT_S_MAX + 60)
    report = launcher.observe(REF)
    assert (report.phase, report.beats) == (GangPhase.ALIVE, ())


@pytest.mark.parametrize("state", ["PREEMPTED", "TIMEOUT", "NODE_FAIL", "CANCELLED by 4711"])
def test_an_end_that_only_accounting_has_is_seen_at_each_look(world: World, state: str) -> None:
    """The controller was away until it forgot the job, which ran when it was seen last."""
    launcher = world.launcher()
    launcher.start(GANG)
    job = world.slurm.job()
    world.slurm.start(job)
    world.later(60)
    assert launcher.observe(REF).phase is GangPhase.ALIVE
    world.slurm.end(job, state)
    world.slurm.forget(job)
    world.later()
    assert launcher.glance(REF).phase is GangPhase.GONE
    launcher.kill(REF)
    report = launcher.observe(REF)
    assert (report.phase, report.slurm_state) == (GangPhase.GONE, state)


def test_a_process_that_was_stopped_while_it_asked_blinds_no_other(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(board, "LOCK_S_MAX", 0.2)
    launcher = world.launcher()
    launcher.start(GANG)
    world.later(60)
    with (world.folder / "queue.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert "waits in Slurm's queue: Resources" in launcher.glance(REF).waits


def test_a_controller_that_hangs_is_waited_for_once_by_all_who_look(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    launcher = world.launcher()
    launcher.start(GANG)
    world.slurm.job().reason = "Priority"
    world.later(60)
    launcher.glance(REF)
    answers, waited = threading.Event(), list[float | None]()

    def hangs(words: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
        answers.wait(60)
        return subprocess.CompletedProcess([], 1, stdout="", stderr="")

    world.slurm._squeue = hangs  # type: ignore[method-assign]
    monkeypatch.setattr(threading.Thread, "join", lambda _, timeout=None: waited.append(timeout))
    world.later()
    for seconds in (2, 2, 20, 5):
        words = launcher.glance(REF).waits
        assert "Priority (as of" in words
        assert "Slurm has not answered yet" in words
        world.clock.advance(seconds)
    assert waited == [LOOK_S_MAX, LOOK_S_MAX - 2]
    answers.set()


def test_a_controller_that_is_away_ends_nothing_and_is_named(world: World) -> None:
    launcher = world.launcher()
    launcher.start(GANG)
    world.slurm.start(world.slurm.job())
    world.later(60)
    assert launcher.observe(REF).phase is GangPhase.ALIVE
    world.slurm.is_away = True
    for _ in range(20):
        world.later(6)
        assert launcher.glance(REF).phase is GangPhase.ALIVE
        assert launcher.observe(REF).phase is GangPhase.ALIVE
    world.later(SETTLED_S)
    with pytest.raises(GangUnreachable, match="Unable to contact slurm controller"):
        world.launcher().glance(REF)  # who has no answer yet says so
    with pytest.raises(GangUnreachable):
        launcher.kill(REF)
    world.slurm.is_away = False
    world.slurm.end(world.slurm.job(), "PREEMPTED")
    world.later()
    assert launcher.glance(REF).phase is GangPhase.GONE


def test_a_job_that_a_database_gave_another_number_is_not_taken_for_ours(world: World) -> None:
    launcher = world.launcher()
    launcher.start(GANG)
    job = world.slurm.job()
    job.name = "tracks-somebody-else-a01-00000000"
    job.options = (f"--comment={COMMENT} somebody-else/a01 another-token",)
    world.slurm.start(job)
    world.later(300)
    launcher.glance(REF)
    report = launcher.observe(REF)
    assert report.phase is GangPhase.GONE
    assert "no more" in report.conditions[0].message


def test_a_job_that_somebody_renames_is_known_by_its_number_and_comment(world: World) -> None:
    launcher = world.launcher()
    launcher.start(GANG)
    job = world.slurm.job()
    world.slurm.start(job)
    job.name = "renamed"  # scontrol update JobName=
    world.later(60)
    assert launcher.observe(REF).phase is GangPhase.ALIVE
    assert world.launcher().observe(REF).phase is GangPhase.ALIVE
    world.slurm.end(job, "TIMEOUT")
    world.slurm.forget(job)
    world.later()
    assert launcher.observe(REF).slurm_state == "TIMEOUT"  # accounting has its new name, too


@pytest.mark.parametrize(
    ("submitted_s", "name", "state"),
    [
        (0, "renamed", "TIMEOUT"),
        (-600, "renamed", None),  # of a database that was reset since
        (600, "renamed", None),
        (0, "tracks-somebody-else-a01-00000000", None),
    ],
)
def test_a_renamed_job_that_is_gone_is_known_to_a_new_process_by_its_number_and_its_submit(
    world: World, submitted_s: float, name: str, state: str | None
) -> None:
    world.launcher().start(GANG)
    job = world.slurm.job()
    world.slurm.start(job)
    job.name = name
    job.submitted_at += timedelta(seconds=submitted_s)
    world.slurm.end(job, "TIMEOUT")
    world.slurm.forget(job)
    world.later(3600)
    launcher = world.launcher()
    launcher.glance(REF)
    assert launcher.observe(REF).slurm_state == state


def test_a_job_that_somebody_renames_is_killed_and_swept(world: World) -> None:
    for spec in (GANG, replace(GANG, run_id="other")):
        world.launcher().start(spec)
        world.slurm.start(world.slurm.job())
        world.slurm.job().name = "renamed"
    world.later(60)
    world.launcher().kill(REF)
    launcher = world.launcher()
    launcher.kill(REF)
    assert [job.state for job in world.slurm.jobs] == ["CANCELLED by 1000", "RUNNING"]
    [standing] = launcher.standing()
    assert standing.key == "other/a02"
    launcher.sweep(standing)
    assert world.slurm.job().state == "CANCELLED by 1000"


def test_without_accounting_the_queue_s_word_is_what_is_known(world: World) -> None:
    world.slurm.has_accounting = False
    launcher = world.launcher()
    launcher.start(GANG)
    world.slurm.start(world.slurm.job())
    world.slurm.end(world.slurm.job(), "NODE_FAIL")
    world.later(60)
    report = launcher.observe(REF)
    assert (report.phase, report.slurm_state) == (GangPhase.GONE, "NODE_FAIL")
    assert report.allocated is None


def test_ten_thousand_gangs_of_many_processes_are_two_questions_in_ten_seconds(
    world: World,
) -> None:
    gangs = [(world.launcher(), replace(GANG, run_id=f"r{n}")) for n in range(30)]
    one = world.launcher()
    gangs += [(one, replace(GANG, run_id=f"s{n}")) for n in range(200)]
    for launcher, spec in gangs:
        launcher.start(spec)
        world.slurm.start(world.slurm.job())
    for job in world.slurm.jobs[:50]:
        world.slurm.end(job, "COMPLETED")
        world.slurm.forget(job)
    world.later(120)
    world.slurm.calls.clear()
    for tick in range(1, 4):
        for launcher, spec in gangs:
            launcher.glance(spec.ref)
        world.later()
        assert world.counted("squeue") <= tick
        assert world.counted("sacct") <= tick
    assert sum(launcher.glance(s.ref).phase is GangPhase.GONE for launcher, s in gangs) == 50


def test_an_accounting_that_is_away_is_named_and_asked_once_for_all(world: World) -> None:
    launchers = [world.launcher() for _ in range(5)]
    launchers[0].start(GANG)
    job = world.slurm.job()
    world.slurm.start(job)
    world.later(60)
    for launcher in launchers:
        assert launcher.glance(REF).phase is GangPhase.ALIVE
    world.slurm.end(job, "TIMEOUT")
    world.slurm.forget(job)
    world.slurm.fail("sacct", 1, Fault.FAILS)
    world.later()
    for launcher in launchers:
        with pytest.raises(GangUnreachable, match="read Slurm's accounting now"):
            launcher.glance(REF)
    assert world.counted("sacct") == 1
    world.later()
    assert {launcher.observe(REF).slurm_state for launcher in launchers} == {"TIMEOUT"}
    assert world.counted("sacct") == 2


def test_an_accounting_that_stays_away_keeps_no_attempt_open_for_ever(world: World) -> None:
    world.launcher().start(GANG)
    job = world.slurm.job()
    world.slurm.start(job)
    world.slurm.end(job, "TIMEOUT")
    world.slurm.forget(job)
    launcher, began = world.launcher(), world.later(120)  # it did not see the end in the queue
    while True:
        world.slurm.fail("sacct", 1, Fault.FAILS)
        try:
            report = launcher.observe(REF)
        except GangUnreachable:
            assert (world.later() - began).total_seconds() < UNANSWERED_S_MAX + 2 * POLL_S
            continue
        break
    assert report.phase is GangPhase.GONE
    assert "could not be asked how it ended. Cannot read" in report.conditions[0].message
    launcher.kill(REF)
    world.later()
    assert launcher.observe(REF).slurm_state == "TIMEOUT"  # it is there again


def test_a_controller_that_is_away_is_asked_once_for_all_and_again_after_ten_seconds(
    world: World,
) -> None:
    launchers = [world.launcher() for _ in range(5)]
    launchers[0].start(GANG)
    world.later(300)
    world.slurm.is_away, world.slurm.takes_s = True, POLL_S
    for number in (1, 2):
        for launcher in launchers:
            with pytest.raises(GangUnreachable, match="Unable to contact slurm controller"):
                launcher.glance(REF)
        assert world.counted("squeue") == number
        world.later()
    world.slurm.is_away, world.slurm.takes_s = False, 0.0
    world.slurm.start(world.slurm.job())
    assert {launcher.glance(REF).phase for launcher in launchers} == {GangPhase.ALIVE}


def test_answers_that_take_longer_than_the_time_between_two_are_shared_too(world: World) -> None:
    launchers = [world.launcher() for _ in range(5)]
    launchers[0].start(GANG)
    job = world.slurm.job()
    world.slurm.start(job)
    world.slurm.end(job, "TIMEOUT")
    world.slurm.forget(job)
    world.later(300)
    world.slurm.takes_s = 2 * POLL_S
    assert {launcher.observe(REF).slurm_state for launcher in launchers} == {"TIMEOUT"}
    assert (world.counted("squeue"), world.counted("sacct")) == (
        2,
        1,
    )  # the first grew old meanwhile


def test_gangs_that_are_killed_share_the_questions_to_accounting(world: World) -> None:
    world.slurm.lag_s = 15.0
    launchers = [world.launcher() for _ in range(5)]
    specs = [replace(GANG, run_id=f"r{n}") for n in range(5)]
    for launcher, spec in zip(launchers, specs, strict=True):
        launcher.start(spec)
        world.slurm.start(world.slurm.job())
    began = world.clock()
    for launcher, spec in zip(launchers, specs, strict=True):
        launcher.kill(spec.ref)
        assert launcher.observe(spec.ref).allocated == "gres/gpu=4"
    passed_s = (world.clock() - began).total_seconds()
    assert world.counted("sacct") <= 1 + passed_s / POLL_S


def test_a_gang_is_ended_in_steps_of_which_none_waits(world: World) -> None:
    world.slurm.lag_s = 15.0
    launcher = world.launcher()
    launcher.start(GANG)
    world.slurm.start(world.slurm.job())
    steps, now = 0, world.clock()
    while not launcher.end_in_steps(REF):
        steps += 1
        assert steps < 10
        assert world.clock() == now, "a step has waited"
        now = world.later(5.0)
    assert steps > 1
    assert launcher.observe(REF).allocated == "gres/gpu=4"
    before = world.clock()
    launcher.kill(REF)
    assert world.clock() == before


def test_a_job_that_cancelling_does_not_end_is_named_and_asked_to_end_again(world: World) -> None:
    launcher = world.launcher()
    launcher.start(GANG)
    world.slurm.start(world.slurm.job())
    world.slurm.ends_nothing = True
    with pytest.raises(GangError, match="job 1 is still RUNNING 120 s after it was cancelled"):
        launcher.kill(REF)
    assert 10 <= world.counted("scancel") <= 12
    world.slurm.ends_nothing = False
    launcher.kill(REF)
    assert launcher.observe(REF).phase is GangPhase.GONE


@pytest.mark.parametrize("is_known", [False, True])
def test_a_kill_does_not_wait_for_an_accounting_that_is_not_there(
    world: World, is_known: bool
) -> None:
    world.slurm.has_accounting = False
    other = replace(GANG, run_id="other")
    launcher = world.launcher()
    for spec in (other, GANG):
        launcher.start(spec)
        world.slurm.start(world.slurm.job())
    if is_known:  # by another process's question
        world.launcher().kill(other.ref)
    began = world.clock()
    launcher.kill(REF)
    assert world.counted("sacct") == 1
    assert (world.clock() - began).total_seconds() < POLL_S


def test_gangs_that_accounting_never_had_keep_none_from_being_asked_about(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(board, "IDS_MAX", 3)
    launcher = world.launcher()
    lost = [replace(GANG, run_id=f"r{n}").ref for n in range(3)]
    for ref in lost:
        launcher.start(replace(GANG, run_id=ref.run_id))
    world.slurm.jobs.clear()  # a database was reset
    world.later(120)
    assert {launcher.glance(ref).phase for ref in lost} == {GangPhase.GONE}
    launcher.start(GANG)
    job = world.slurm.job()
    world.slurm.start(job)
    world.later(120)
    assert launcher.glance(REF).phase is GangPhase.ALIVE
    world.slurm.end(job, "TIMEOUT")
    world.slurm.forget(job)
    world.later()
    assert launcher.observe(REF).slurm_state == "TIMEOUT"
    for _ in range(ASKED_MAX):
        world.later()
        launcher.glance(lost[0])
    world.slurm.calls.clear()
    world.later()
    launcher.glance(lost[0])
    assert world.counted("sacct") == 0  # they are asked about no more


def test_a_job_that_slurm_started_again_is_over_and_is_cancelled(world: World) -> None:
    launcher = world.launcher()
    launcher.start(GANG)
    job = world.slurm.job()
    world.slurm.start(job)
    job.state, job.restarts, job.started_at = "PENDING", 1, None
    world.later(60)
    report = launcher.observe(REF)
    assert (report.phase, report.conditions[0].type) == (GangPhase.GONE, "JobRequeued")
    launcher.kill(REF)
    assert job.state == "CANCELLED by 1000"


def test_a_job_that_outlived_its_attempt_is_found_and_cancelled(world: World) -> None:
    launcher = world.launcher()
    launcher.start(GANG)
    world.slurm.start(world.slurm.job())
    (foreign := FakeJob(**{**asdict(world.slurm.job()), "id": 77})).name = job_name(
        REF, "memory://b"
    )
    world.slurm.jobs.append(foreign)  # of another home of the same account
    [standing] = launcher.standing()
    assert (standing.key, standing.uid, standing.made_at) == (REF.key, "1", world.clock())
    launcher.sweep(standing)
    launcher.sweep(standing)
    assert [job.state for job in world.slurm.jobs] == ["CANCELLED by 1000", "RUNNING"]
    world.later()
    assert launcher.standing() == []

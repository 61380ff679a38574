"""The main process of a gang's pod, with real ranks: small scripts, or an example that trains."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.training.gangs import TrainingRun
from tests.training.pods import PodStarter, until
from tracks_dagster.attempts import pod_files
from tracks_dagster.attempts.pod_files import SAVE, STACKS, Ask
from tracks_dagster.stores import open_store
from tracks_dagster.track.names import EXIT_DRAINED, AttemptRef
from tracks_dagster.track.ports import ObjectStore
from tracks_dagster.track.records import Kind
from tracks_dagster.training.pods.rank_files import read_ranks

OPENED_SEQ = 1

WAITS = """
import os, signal, time
from pathlib import Path
from tracks_dagster.processes.stack_dumps import enable_dumps
rank, work = int(os.environ["RANK"]), Path(os.environ["TRACKS_WORK"])
def save(*_):
    (work / f"asked-{rank}").touch()
signal.signal(signal.SIGUSR1, save)
def stand_here():
    (work / f"ready-{rank}").touch()
    time.sleep(600)
enable_dumps(work, rank)
stand_here()
"""
SAVES = """
import os, signal, time
from pathlib import Path
work = Path(os.environ["TRACKS_WORK"])
def save(*_):
    while not (work / "saved").exists():
        time.sleep(0.05)
    raise SystemExit(0)
signal.signal(signal.SIGTERM, save)
(work / "between").write_text(str(os.getppid()))
(work / "ready").touch()
while True:
    time.sleep(0.05)
"""
THREAD = (
    "import threading, time; threading.Thread(target=time.sleep, args=(600,), daemon=True).start()"
)
SURVIVES = """
import os, time
from pathlib import Path
rank, work = int(os.environ["RANK"]), Path(os.environ["TRACKS_WORK"])
(work / f"ready-{rank}").touch()
print("rank", rank, "waits", flush=True)
while (work / f"ready-{rank}").exists():
    time.sleep(0.05)
print("rank", rank, "found out", flush=True)
raise SystemExit(9)
"""


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return open_store(str(tmp_path / "store"))


@pytest.fixture
def pods(tmp_path: Path, store: ObjectStore) -> Iterator[PodStarter]:
    starter = PodStarter(tmp_path, store)
    yield starter
    starter.close()


def test_two_pods_train_one_attempt_to_its_end(
    pods: PodStarter, store: ObjectStore, tmp_path: Path
) -> None:
    run = TrainingRun(tmp_path, ranks=2, steps=6, store=store)
    run.open()
    gang = [pods.start(index=index, pods=2, opened_seq=OPENED_SEQ) for index in (0, 1)]
    assert [pod.wait() for pod in gang] == [0, 0], gang[0].log + gang[1].log
    assert run.final().step == 6
    placed = run.state.attempts[0].placed
    assert placed is not None
    assert [(p.rank, p.node, p.pod) for p in placed.ranks] == [
        (0, "node-0", "pod-0"),
        (1, "node-1", "pod-1"),
    ]
    assert placed.image == "image:1"
    ends = [pod.end for pod in gang]
    assert [(e.index, e.pod, e.node, e.problem) for e in ends] == [
        (0, "pod-0", "node-0", ""),
        (1, "pod-1", "node-1", ""),
    ]
    assert [(r.rank, r.exit_code, r.signal) for e in ends for r in e.ranks] == [
        (0, 0, None),
        (1, 0, None),
    ]
    assert all(r.started_at and r.ended_at and r.started_at <= r.ended_at for r in ends[0].ranks)
    assert set(run.steps(1)) == set(range(1, 7))


def test_sigterm_lets_every_rank_of_a_pod_save_and_drain(
    pods: PodStarter, store: ObjectStore, tmp_path: Path
) -> None:
    run = TrainingRun(tmp_path, ranks=2, steps=1_000_000, store=store)
    run.open()
    pod = pods.start(ranks=2, opened_seq=OPENED_SEQ)
    until(lambda: bool(run.records(Kind.CHECKPOINT_COMMITTED)), pod)
    pod.terminate()
    assert pod.wait() == EXIT_DRAINED, pod.log
    assert [(r.exit_code, r.signal) for r in pod.end.ranks] == [(EXIT_DRAINED, None)] * 2
    assert run.records(Kind.CHECKPOINT_COMMITTED)[-1].body["trigger"] == "sigterm"
    assert {word.reason for word in run.last_words(1)} == {"drained"}
    beat = pod_files.decode_beat(store.get(pod_files.beat_key(AttemptRef("r", 1), pod.uid)))
    assert beat is not None
    assert [rank.rank for rank in beat.ranks] == [0, 1]


def test_a_rank_saves_though_a_site_signals_every_process_and_its_python_starts_threads(
    pods: PodStarter, tmp_path: Path
) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(THREAD)
    pod = pods.start(script=SAVES, python_path=tmp_path / "site")
    until((pod.work / "ready").exists, pod)
    between = int((pod.work / "between").read_text())
    for _ in range(5):  # from a process that is not torchrun's
        subprocess.run(["kill", "-TERM", str(between)], check=True)
        until(lambda: not is_pending(between), pod)
    pod.terminate()
    (pod.work / "saved").touch()
    assert pod.wait() == 0, pod.log
    assert (pod.end.ranks[0].exit_code, pod.end.ranks[0].signal) == (0, None)


def is_pending(pid: int) -> bool:
    """Whether a SIGTERM of this process still waits to be looked at."""
    status = Path(f"/proc/{pid}/status").read_text()
    (waiting,) = (line.split()[1] for line in status.splitlines() if line.startswith("ShdPnd"))
    return bool(int(waiting, 16) >> (signal.SIGTERM - 1) & 1)


def test_a_rank_that_is_killed_is_reported_with_its_signal_and_the_others_have_time_for_a_last_word(
    pods: PodStarter,
) -> None:
    pod = pods.start(ranks=2, script=SURVIVES)
    until(lambda: all((pod.work / f"ready-{rank}").exists() for rank in (0, 1)), pod)
    until(lambda: read_ranks(pod.work, (1,))[1].process is not None, pod)
    process = read_ranks(pod.work, (1,))[1].process
    assert process is not None
    os.kill(process.pid, signal.SIGKILL)
    until(lambda: read_ranks(pod.work, (1,))[1].has_ended, pod)
    (pod.work / "ready-0").unlink()  # as a collective that fails because of the lost rank
    assert pod.wait() == 128 + signal.SIGKILL, pod.log
    survivor, killed = pod.end.ranks
    assert (killed.exit_code, killed.signal) == (None, signal.SIGKILL)
    assert (survivor.exit_code, survivor.signal) == (9, None)
    assert "rank 0 found out" in survivor.log_tail
    assert "rank 1 waits" in killed.log_tail
    assert "[rank 0] rank 0 waits" in pod.log


def test_a_rank_that_hangs_after_another_s_crash_is_ended_with_it(pods: PodStarter) -> None:
    script = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.environ["RANK"] == "1":
    raise RuntimeError("the cause")
time.sleep(600)
"""
    pod = pods.start(ranks=2, script=script)
    assert pod.wait() == 1, pod.log
    hung, cause = pod.end.ranks
    assert (hung.exit_code, hung.signal) == (None, signal.SIGKILL)
    assert (cause.exit_code, cause.signal) == (1, None)
    assert "RuntimeError: the cause" in cause.log_tail
    assert (cause.ended_at or "") <= (hung.ended_at or "")


def test_a_gang_is_asked_for_its_stacks_and_to_save_and_answers_each_wish_once(
    pods: PodStarter, store: ObjectStore
) -> None:
    pod = pods.start(ranks=2, script=WAITS)
    until(lambda: all((pod.work / f"ready-{rank}").exists() for rank in (0, 1)), pod)
    store.put(
        pod_files.ask_key(AttemptRef("r", 1)), pod_files.encode_ask(Ask(uid="a1", what=STACKS))
    )
    stacks = pod_files.stacks_key(AttemptRef("r", 1), pod.uid, "a1")
    until(lambda: store.get(stacks) is not None, pod)
    dumps = pod_files.decode_stacks(store.get(stacks))
    assert dumps is not None
    assert [(dump.rank, dump.problem) for dump in dumps] == [(0, ""), (1, "")]
    assert all("stand_here" in dump.text for dump in dumps)
    store.put(pod_files.ask_key(AttemptRef("r", 1)), pod_files.encode_ask(Ask(uid="a2", what=SAVE)))
    answer = pod_files.save_key(AttemptRef("r", 1), pod.uid, "a2")
    until(lambda: store.get(answer) is not None, pod)
    until((pod.work / "asked-0").exists, pod)
    assert not (pod.work / "asked-1").exists()  # one rank's wish is enough
    found = pod_files.decode_save(store.get(answer))
    assert found is not None
    assert found.is_asked
    pod.terminate()
    assert pod.wait() == 128 + signal.SIGTERM  # these ranks do not save
    assert [rank.signal for rank in pod.end.ranks] == [signal.SIGTERM] * 2


def test_a_pod_that_ends_before_its_second_beat_has_left_its_first(
    pods: PodStarter, store: ObjectStore
) -> None:
    # A rank alone in its gang is started as by `python train.py`, though torchrun starts it.
    pod = pods.start(script="import os; assert 'RANK' not in os.environ")
    assert pod.wait() == 0, pod.log
    beat = pod_files.decode_beat(store.get(pod_files.beat_key(AttemptRef("r", 1), pod.uid)))
    assert beat is not None
    assert [rank.rank for rank in beat.ranks] == [0]


def test_a_store_that_takes_no_beats_ends_no_training(pods: PodStarter, tmp_path: Path) -> None:
    beat = tmp_path / "store" / pod_files.beat_key(AttemptRef("r", 1), "uid-0")
    beat.mkdir(parents=True)  # nothing can be put there
    pod = pods.start(script="pass")
    assert pod.wait() == 0, pod.log
    assert pod.end.ranks[0].exit_code == 0
    assert "cannot put a beat" in pod.log


def test_a_pod_whose_rank_waits_for_one_of_a_failed_pod_is_ended_with_it(pods: PodStarter) -> None:
    script = """
import os, time
from pathlib import Path
if os.environ["RANK"] == "1":
    raise RuntimeError("the cause")
time.sleep(600)
"""
    waiting, failing = [pods.start(index=index, pods=2, script=script) for index in (0, 1)]
    assert failing.wait() == 1, failing.log
    assert waiting.wait() == 128 + signal.SIGKILL, waiting.log
    assert waiting.end.ranks[0].signal == signal.SIGKILL
    assert "RuntimeError: the cause" in failing.end.ranks[0].log_tail


def test_a_pod_that_must_end_before_the_others_came_ends_as_drained(pods: PodStarter) -> None:
    pod = pods.start(index=1, pods=2, script=WAITS)
    until((pod.work / "pod.json").exists, pod)
    pod.terminate()
    assert pod.wait() == EXIT_DRAINED, pod.log
    (rank,) = pod.end.ranks
    assert (rank.rank, rank.exit_code, rank.started_at) == (1, EXIT_DRAINED, None)
    assert "before this rank was started" in rank.log_tail


def test_a_secret_of_the_pod_s_environment_stands_in_no_evidence(
    pods: PodStarter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not-for-evidence")
    script = "import os; print('it is', os.environ['AWS_SECRET_ACCESS_KEY'])"
    pod = pods.start(script=script)
    assert pod.wait() == 0, pod.log
    assert pod.end.ranks[0].log_tail == "it is [hidden]\n"


def test_code_that_is_not_in_the_store_is_named(
    pods: PodStarter, store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACKS_CODE_KEY", "scripts/absent.tar")
    pod = pods.start()
    assert pod.wait() == 2, pod.log
    assert "scripts/absent.tar is missing" in pod.log


def test_code_that_was_changed_in_the_store_is_not_trained(
    pods: PodStarter, store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = f"runs/r/trainer/{'0a' * 32}.py"
    store.put(key, b"print('I am other code')")
    monkeypatch.setenv("TRACKS_CODE_KEY", key)
    pod = pods.start()
    assert pod.wait() == 2, pod.log
    assert f"Cannot start: the run's code {key} has sha256 " in pod.log
    assert "other code" not in pod.log

"""A pod watches its ranks without torchrun: it reports and keeps ends, and turns them into a code."""

from __future__ import annotations

import signal
import threading
from functools import partial
from pathlib import Path

import pytest

from tests.fakes import FakeObjectStore, Fault
from tests.ports import free_port
from tracks_dagster.attempts import pod_files
from tracks_dagster.attempts.pod_files import STACKS, Ask, PodEnd
from tracks_dagster.attempts.ports import RankCommand
from tracks_dagster.track.errors import StoreUnavailable
from tracks_dagster.track.names import EXIT_DRAINED, EXIT_FENCED, AttemptRef
from tracks_dagster.track.text.redact import redact
from tracks_dagster.training.pods import gang as pod_gang
from tracks_dagster.training.pods.environment import PodEnvironment
from tracks_dagster.training.pods.gang import Notice, PodGang, Torchrun
from tracks_dagster.training.pods.rank_files import RankFile, RankState
from tracks_dagster.training.pods.reports import Asks, Beats, Ends, GangFailure, Repeat

SETTLE_S_MAX = 60.0


def given_to_pod(work: Path, *, ranks: int = 2, index: int = 0, pods: int = 1) -> PodEnvironment:
    """Return what a pod is given."""
    return PodEnvironment(
        store_url="",
        run_id="r",
        attempt_id=1,
        work=work,
        node="node",
        pod="pod",
        pod_uid="uid",
        index=index,
        pods=pods,
        ranks=ranks,
        master_addr="127.0.0.1",
        master_port=free_port(),
        grace_s=60.0,
        command=RankCommand(words=("train.py",)),
        code_key=None,
        secrets=("geheim",),
    )


def end_of(store: FakeObjectStore) -> PodEnd:
    """Return what the pod left."""
    end = pod_files.decode_end(store.get(pod_files.end_key(AttemptRef("r", 1), "uid")))
    assert end is not None
    return end


def watched(store: FakeObjectStore, pod: PodEnvironment, torchrun: Torchrun) -> PodGang:
    """Watch a pod's ranks to the end, and wait until the store has it."""
    ends = Ends(store, pod, clean=partial(redact, secrets=pod.secrets))
    gang = PodGang(pod, ends, torchrun, Notice(), GangFailure(store, pod))
    gang.watch()
    assert ends.settle(SETTLE_S_MAX)
    return gang


def test_pods_that_do_not_meet_end_with_what_torchrun_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pod_gang, "MEET_S_MAX", 1.0)
    store, pod = FakeObjectStore(), given_to_pod(tmp_path, index=1, pods=2)
    torchrun = Torchrun(pod)
    torchrun.start()
    gang = watched(store, pod, torchrun)
    end = end_of(store)
    assert gang.exit_code == pod_gang.EXIT_PROBLEM
    assert not gang.has_failed  # no rank did
    assert f"meeting at 127.0.0.1:{pod.master_port}" in end.problem
    assert [(r.rank, r.exit_code, r.started_at) for r in end.ranks] == [(2, 1, None), (3, 1, None)]
    assert all("torchrun failed in pod pod (1 of 2" in rank.log_tail for rank in end.ranks)


def test_every_rank_that_failed_is_reported_and_not_only_the_first(tmp_path: Path) -> None:
    store, pod = FakeObjectStore(), given_to_pod(tmp_path, ranks=3)
    for rank, code in ((0, 7), (1, -signal.SIGSEGV), (2, 0)):
        file = RankFile(tmp_path, rank, started_at="2026-01-01T00:00:00.000000Z")
        file.ended(code, at=f"2026-01-01T00:00:0{9 - rank}.000000Z")
    log = tmp_path / "logs" / "r-a1_x" / "attempt_0" / "0" / "stdout.log"
    log.parent.mkdir(parents=True)
    log.write_text("the password is geheim\n" * 10_000)
    gang = watched(store, pod, Torchrun(pod))
    ranks = end_of(store).ranks
    assert [(r.exit_code, r.signal) for r in ranks] == [(7, None), (None, 11), (0, None)]
    assert gang.exit_code == 128 + signal.SIGSEGV  # rank 1 was before rank 0
    assert gang.has_failed
    assert ranks[0].log_tail.startswith("the password is [hidden]\n")
    assert 60_000 < len(ranks[0].log_tail) < 80_000


@pytest.mark.parametrize(
    ("codes", "expected"),
    [
        ((0, 0), 0),
        ((0, EXIT_DRAINED), EXIT_DRAINED),
        ((EXIT_DRAINED, EXIT_FENCED), EXIT_FENCED),
        ((EXIT_DRAINED, 1), 1),
        ((EXIT_FENCED, -9), 137),
    ],
)
def test_a_pod_ends_with_the_code_that_tells_most(
    codes: tuple[int, int], expected: int, tmp_path: Path
) -> None:
    for rank, code in enumerate(codes):
        file = RankFile(tmp_path, rank, started_at="2026-01-01T00:00:00.000000Z")
        file.ended(code, at="2026-01-01T00:00:01.000000Z")
    pod = given_to_pod(tmp_path)
    assert watched(FakeObjectStore(), pod, Torchrun(pod)).exit_code == expected


def test_ends_that_the_store_did_not_take_at_first_are_put_again(tmp_path: Path) -> None:
    store, pod = FakeObjectStore(), given_to_pod(tmp_path, ranks=1)
    store.fail("put", 1, Fault.FAILS)
    ends = Ends(store, pod, clean=redact)
    ends.take({0: RankState(rank=0, exit_code=0, ended_at="2026-01-01T00:00:01.000000Z")})
    assert ends.settle(SETTLE_S_MAX)
    assert end_of(store).ranks[0].exit_code == 0


def test_a_beat_that_the_store_did_not_take_is_put_at_the_next_look(tmp_path: Path) -> None:
    store, pod = FakeObjectStore(), given_to_pod(tmp_path)
    beats = Beats(store, pod)
    store.fail("put", 1, Fault.FAILS)
    with pytest.raises(StoreUnavailable):
        beats.put()
    beats.put()
    beat = pod_files.decode_beat(store.get(pod_files.beat_key(AttemptRef("r", 1), "uid")))
    assert beat is not None
    assert [(rank.rank, rank.phase.name) for rank in beat.ranks] == [
        (0, "STARTING"),
        (1, "STARTING"),
    ]


def test_an_unchanged_beat_is_put_now_and_then_so_that_silence_says_something(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FakeObjectStore()
    beats = Beats(store, given_to_pod(tmp_path))
    key = pod_files.beat_key(AttemptRef("r", 1), "uid")
    beats.put()
    first = store.get(key)
    beats.put()
    assert store.get(key) == first
    monkeypatch.setattr(pod_files, "ALIVE_EVERY_S", 0.0)
    beats.put()
    assert store.get(key) != first


def test_an_answer_that_the_store_did_not_take_is_put_again_without_asking_the_ranks_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, pod = FakeObjectStore(), given_to_pod(tmp_path)
    dumped: list[int] = []
    monkeypatch.setattr(
        "tracks_dagster.training.pods.reports.dump_stacks", lambda *_, **__: dumped.append(1) or ()
    )
    asks = Asks(store, pod, clean=redact)
    store.put(
        pod_files.ask_key(AttemptRef("r", 1)), pod_files.encode_ask(Ask(uid="a", what=STACKS))
    )
    store.fail("put", 1, Fault.FAILS)
    with pytest.raises(StoreUnavailable):
        asks.look()
    asks.look()
    asks.look()
    assert dumped == [1]
    assert (
        pod_files.decode_stacks(store.get(pod_files.stacks_key(AttemptRef("r", 1), "uid", "a")))
        == ()
    )


def test_what_a_pod_does_again_and_again_goes_on_after_an_error_that_nobody_foresaw() -> None:
    tries, goes_on = [], threading.Event()

    def act() -> None:
        tries.append(1)
        if len(tries) == 1:
            raise KeyError("whatever")
        goes_on.set()
        threading.Event().wait()  # it has no end; here it is quiet from now on

    Repeat("cannot act", act, every_s=0.01)
    assert goes_on.wait(SETTLE_S_MAX)

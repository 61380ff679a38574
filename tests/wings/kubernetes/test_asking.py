"""What the launcher asks of ranks whose pods it cannot reach: to save, and to show their stacks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from tests.fakes import FakeObjectStore
from tests.wings.kubernetes.double.gangs import until
from tests.wings.kubernetes.double.kube_double import KubeDouble, kube_double
from tests.wings.kubernetes.double.launching import (
    Clock,
    launcher_on,
    running,
    spec,
    uid_of,
)
from tests.wings.kubernetes.test_observing import BOOT
from tracks_dagster.attempts import pod_files
from tracks_dagster.attempts.effects.gang_files import (
    STACKS_S_MAX,
)
from tracks_dagster.attempts.pod_files import Ask, SaveAnswer
from tracks_dagster.reasons.hangs import StackDump
from tracks_dagster.track.bodies import RankPlace
from tracks_dagster.track.errors import GangError
from tracks_dagster.track.names import AttemptRef


@pytest.fixture
def kube(tmp_path: Path) -> Iterator[KubeDouble]:
    """A double whose pods have no processes."""
    with kube_double(tmp_path / "kube", pretend=True) as double:
        yield double


@pytest.fixture
def clock() -> Clock:
    return Clock()


def place(pod: str) -> RankPlace:
    return RankPlace(
        rank=0,
        node="node1",
        pod=pod,
        pid=7,
        pid_started=1.0,
        boot_id=BOOT,
        device="cpu",
        accelerator="cpu",
    )


Key = Callable[[AttemptRef, str, str], str]


class Pods(FakeObjectStore):
    """A store whose pod `uid` answers as soon as it is asked; time flies for who waits longer."""

    def __init__(
        self,
        clock: Clock,
        answers: Mapping[str, tuple[Key, bytes]],
    ) -> None:
        super().__init__()
        self._clock, self._answers = clock, answers
        self._is_asked = False
        self.uid = ""

    def put(self, key: str, data: bytes | memoryview) -> None:
        super().put(key, data)
        ask = pod_files.decode_ask(bytes(data)) if key.endswith("ask.json") else None
        if isinstance(ask, Ask):
            if ask.what in self._answers:
                where, answer = self._answers[ask.what]
                super().put(where(AttemptRef("r-1", 1), self.uid, ask.uid), answer)
            self._is_asked = True

    def get(self, key: str, bytes_max: int | None = None) -> bytes | None:
        found = super().get(key, bytes_max)
        if found is None and self._is_asked:
            self._clock.advance(STACKS_S_MAX)
        return found


@pytest.mark.parametrize(
    ("answer", "expected"),
    [(SaveAnswer(is_asked=True), True), (SaveAnswer(is_asked=False, problem="it sleeps"), False)],
)
def test_a_save_is_asked_for_through_the_store_where_the_pod_runs_and_its_word_counts(
    kube: KubeDouble, clock: Clock, answer: SaveAnswer, expected: bool
) -> None:
    key = pod_files.ask_key(AttemptRef("r-1", 1))
    store = Pods(clock, {pod_files.SAVE: (pod_files.save_key, pod_files.encode_save(answer))})
    with launcher_on(kube, store, clock) as launcher:
        assert not launcher.ask_to_save(AttemptRef("r-1", 1), place("p"))
        launcher.start(spec())
        names = running(kube)
        store.uid = uid_of(kube, names[0])
        assert not launcher.ask_to_save(AttemptRef("r-1", 1), place("a-pod-of-before"))
        assert store.get(key) is None
        assert launcher.ask_to_save(AttemptRef("r-1", 1), place(names[0])) is expected


def test_a_pod_that_says_nothing_to_a_save_is_reported_and_not_taken_for_a_yes_or_a_no(
    kube: KubeDouble, clock: Clock
) -> None:
    with launcher_on(kube, Pods(clock, {}), clock) as launcher:
        launcher.start(spec())
        names = running(kube)
        with pytest.raises(GangError, match=f"pod {names[0]} did not answer.*may still do so"):
            launcher.ask_to_save(AttemptRef("r-1", 1), place(names[0]))


def test_stacks_come_from_the_pods_that_answer_and_the_others_are_reported(
    kube: KubeDouble, clock: Clock
) -> None:
    dumps = (StackDump(rank=0, text="File a"), StackDump(rank=1, text="File b"))
    answer = (pod_files.stacks_key, pod_files.encode_stacks(dumps))
    store = Pods(clock, {pod_files.STACKS: answer})
    with launcher_on(kube, store, clock) as launcher:
        launcher.start(spec())
        names = running(kube)
        store.uid = uid_of(kube, names[0])
        until(lambda: launcher.observe(AttemptRef("r-1", 1)).beats, "both pods are seen running")
        found = launcher.dump_stacks(AttemptRef("r-1", 1))
    assert [(dump.rank, dump.text) for dump in found[:2]] == [(0, "File a"), (1, "File b")]
    assert [dump.rank for dump in found[2:]] == [2, 3]
    assert all(f"its pod {names[1]} did not answer" in dump.problem for dump in found[2:])

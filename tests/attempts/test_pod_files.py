"""What pods and their watcher tell each other comes back as it was; what cannot be read is nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tracks_dagster.attempts import pod_files
from tracks_dagster.attempts.pod_files import SAVE, Ask, PodBeat, PodEnd, SaveAnswer
from tracks_dagster.reasons.evidence import Condition, RankEnd
from tracks_dagster.reasons.hangs import Beat, Phase, StackDump
from tracks_dagster.track.names import AttemptRef

BEAT = PodBeat(
    pod="gang-0-abcde",
    node="node-1",
    boot_id="boot",
    index=0,
    ranks=(Beat(rank=0, phase=Phase.SAVING, step=3, count=7, step_s_p99=0.5, may_take_s=60.0),),
)
END = PodEnd(
    pod="gang-0-abcde",
    node="node-1",
    boot_id="boot",
    index=0,
    ranks=(RankEnd(rank=0, signal=9, ended_at="2026-01-01T00:00:00Z", log_tail="x"),),
    cgroup={"oom_kill": 1},
    kernel_lines=("Killed process 7",),
    problem="p",
    conditions=(Condition(type="t", reason="r", message="m", at=None, source="drill"),),
)


def test_a_beat_names_its_phase() -> None:
    data = pod_files.encode_beat(BEAT)
    assert b'"phase":"SAVING"' in data
    assert pod_files.decode_beat(data) == BEAT


def test_ends_wishes_and_answers_come_back_as_they_were() -> None:
    assert pod_files.decode_end(pod_files.encode_end(END)) == END
    ask = Ask(uid="1", what=SAVE)
    assert pod_files.decode_ask(pod_files.encode_ask(ask)) == ask
    dumps = (StackDump(rank=0, text="t"), StackDump(rank=1, text="", problem="p"))
    assert pod_files.decode_stacks(pod_files.encode_stacks(dumps)) == dumps
    answer = SaveAnswer(is_asked=False, problem="p")
    assert pod_files.decode_save(pod_files.encode_save(answer)) == answer


@pytest.mark.parametrize("data", [None, b"", b"{", b"[1]", b'{"ranks":1}', b'"x"', b"\xff"])
@pytest.mark.parametrize(
    "decode",
    [
        pod_files.decode_beat,
        pod_files.decode_end,
        pod_files.decode_ask,
        pod_files.decode_stacks,
        pod_files.decode_save,
    ],
)
def test_what_is_not_there_or_cannot_be_read_is_nothing(
    decode: Callable[[bytes | None], Any], data: bytes | None
) -> None:
    assert decode(data) is None


def test_the_keys_of_a_gang_lie_below_its_attempt() -> None:
    assert pod_files.beat_key(AttemptRef("r", 2), "u") == "runs/r/attempts/2/gang/u/beat.json"
    assert pod_files.end_key(AttemptRef("r", 2), "u") == "runs/r/attempts/2/gang/u/end.json"
    assert pod_files.ask_key(AttemptRef("r", 2)) == "runs/r/attempts/2/gang/ask.json"
    assert (
        pod_files.stacks_key(AttemptRef("r", 2), "u", "a")
        == "runs/r/attempts/2/gang/u/stacks-a.json"
    )
    assert (
        pod_files.save_key(AttemptRef("r", 2), "u", "a") == "runs/r/attempts/2/gang/u/save-a.json"
    )

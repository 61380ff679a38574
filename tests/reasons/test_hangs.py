"""When a gang hangs, and whom the others wait for."""

from __future__ import annotations

import pytest

from tests.evidences import condition, evidence
from tracks_dagster.reasons import hangs
from tracks_dagster.reasons.classify import classify
from tracks_dagster.reasons.hangs import (
    BEAT_BYTES,
    Beat,
    Hang,
    HangLimits,
    HangWatch,
    Phase,
    StackDump,
    decode_beat,
    describe,
    encode_beat,
    laggards,
)

IN_COLLECTIVE = """Thread 0x01 (most recent call first):
  File "/x/journal.py", line 83 in _run

Current thread 0x02 (most recent call first):
  File "/x/torch/distributed/distributed_c10d.py", line 3173 in all_reduce
  File "/x/attempt.py", line 230 in report
"""
IN_SLEEP = """Current thread 0x03 (most recent call first):
  File "/x/model.py", line 12 in think
  File "/x/train.py", line 3 in <module>
"""


def beat(rank: int = 0, phase: Phase = Phase.COMPUTING, step: int = 12, **more: float) -> Beat:
    """A rank in step 12 of a run whose steps take 0.1 s."""
    return Beat(rank=rank, phase=phase, step=step, count=int(more.get("count", 1)), step_s_p99=0.1)


def looks(watch: HangWatch, *beats: Beat, until_s: float, every_s: float = 1.0) -> float | None:
    """Look at the same beats again and again; return when a hang was reported."""
    now = 0.0
    while now <= until_s:
        if watch.look(beats, now) is not None:
            return now
        now += every_s
    return None


def test_a_beat_survives_its_bytes_and_torn_ones_are_not_beats() -> None:
    data = encode_beat(Phase.SAVING, step=7, count=9, step_s_p99=0.25)
    assert len(data) == BEAT_BYTES
    assert decode_beat(3, data) == Beat(
        rank=3, phase=Phase.SAVING, step=7, count=9, step_s_p99=0.25
    )
    other = encode_beat(Phase.SAVING, step=8, count=10, step_s_p99=0.25)
    assert decode_beat(3, data[:20] + other[20:]) is None
    assert decode_beat(3, b"") is None


@pytest.mark.parametrize(
    ("beats", "limit_s"),
    [
        ([Beat(rank=0, phase=Phase.COMPUTING, step=5, step_s_p99=0.1)], 60),  # 10 × 0.1 is less
        ([Beat(rank=0, phase=Phase.COMPUTING, step=5, step_s_p99=9.0)], 90),  # 10 × 9
        ([Beat(rank=0, phase=Phase.COMPUTING, step=1)], 1800),  # the first step may compile
        ([Beat(rank=0, phase=Phase.STARTING)], 1800),
        ([Beat(rank=0, phase=Phase.RESTORING)], 1800),
        ([Beat(rank=0, phase=Phase.SAVING, step=5, step_s_p99=0.1)], 900),
        ([Beat(rank=0, phase=Phase.EVALUATING, step=5, step_s_p99=0.1)], 3600),
        # rank 0 evaluates, the others wait for it in the middle of the next step
        ([beat(0, Phase.EVALUATING), beat(1, Phase.COMPUTING)], 3600),
    ],
)
def test_the_limit_is_that_of_the_most_lenient_phase(beats: list[Beat], limit_s: int) -> None:
    alarm_at = looks(HangWatch(HangLimits()), *beats, until_s=4000)
    assert alarm_at == limit_s + 1


def test_a_gang_that_moves_never_hangs() -> None:
    watch = HangWatch(HangLimits())
    for second in range(1000):
        assert watch.look([beat(count=second // 50)], float(second)) is None


def test_one_rank_that_stays_behind_is_enough() -> None:
    watch = HangWatch(HangLimits())
    alarm = None
    for second in range(100):
        ahead = beat(0, Phase.REPORTING, count=second)
        alarm = alarm or watch.look([ahead, beat(1)], float(second))
    assert alarm is not None


@pytest.mark.parametrize("phase", [Phase.EVALUATING, Phase.SAVING])
def test_ranks_that_waited_for_a_long_evaluation_do_not_hang_once_it_is_over(phase: Phase) -> None:
    """They stand in the middle of the next step all the while, and its limit is a minute."""
    watch = HangWatch(HangLimits())
    waiting = beat(1, step=13)
    for second in range(800):
        assert watch.look([beat(0, phase), waiting], float(second)) is None
    for second in range(800, 855):
        assert watch.look([beat(0, step=13, count=2), waiting], float(second)) is None
    assert looks(watch, beat(0, step=13, count=2), waiting, until_s=70) is not None


def test_a_save_may_take_the_time_that_the_rank_itself_gives_it() -> None:
    """A large state and a slow store: the rank waits so long, and ends by itself after that."""
    saves = Beat(rank=0, phase=Phase.SAVING, step=5, step_s_p99=0.1, may_take_s=2000.0)
    assert decode_beat(
        0, encode_beat(Phase.SAVING, step=5, count=0, step_s_p99=0.1, may_take_s=2000.0)
    ) == (saves)
    assert looks(HangWatch(HangLimits()), saves, until_s=4000) == 2061


@pytest.mark.parametrize("gap_s", [3600.0, -3600.0])
def test_a_sleeping_laptop_or_a_clock_that_was_set_makes_no_hang(gap_s: float) -> None:
    watch = HangWatch(HangLimits())
    for second in range(30):
        assert watch.look([beat()], float(second)) is None
    assert watch.look([beat()], 30.0 + gap_s) is None
    assert watch.look([beat()], 31.0 + gap_s) is None


def test_the_config_sets_the_limits() -> None:
    limits = hangs.limits_of({"hang_s": 5, "hang_factor": 2, "start_s": 40})
    assert limits == HangLimits(hang_s_min=5.0, hang_factor=2.0, start_s_max=40.0)
    assert looks(HangWatch(limits), beat(), until_s=10) == 6


@pytest.mark.parametrize(
    ("beats", "dumps", "behind", "reason"),
    [
        # one waits for data, the others for it in a collective
        ([beat(0), beat(1, Phase.WAITING_FOR_DATA)], [], [1], hangs.DATA_LOADER_STALL),
        ([beat(0, step=13), beat(1, step=12)], [], [1], hangs.NO_STEP),
        # the same place by phase: the stacks tell
        (
            [beat(0), beat(1)],
            [StackDump(rank=0, text=IN_COLLECTIVE), StackDump(rank=1, text=IN_SLEEP)],
            [1],
            hangs.NO_STEP,
        ),
        # a rank that cannot dump is not known to wait for others
        (
            [beat(0), beat(1)],
            [StackDump(rank=0, text=IN_COLLECTIVE), StackDump(rank=1, text="", problem="stopped")],
            [1],
            hangs.NO_STEP,
        ),
        # all in the same collective: nothing tells them apart
        (
            [beat(0), beat(1)],
            [StackDump(rank=0, text=IN_COLLECTIVE), StackDump(rank=1, text=IN_COLLECTIVE)],
            [0, 1],
            hangs.NO_STEP,
        ),
    ],
)
def test_the_rank_that_the_others_wait_for_is_named(
    beats: list[Beat], dumps: list[StackDump], behind: list[int], reason: str
) -> None:
    hang = Hang(beats=tuple(beats), stuck_s=61.0, limit_s=60.0)
    found = laggards(hang, dumps)
    assert [each.rank for each in found] == behind
    assert hangs.reason_of(found) == reason


def test_the_finding_says_where_every_rank_stands() -> None:
    hang = Hang(beats=(beat(0), beat(1)), stuck_s=61.0, limit_s=60.0)
    dumps = [StackDump(rank=0, text=IN_COLLECTIVE), StackDump(rank=1, text="", problem="stopped")]
    assert describe(hang, dumps).splitlines() == [
        "rank 1 of 2 has not moved for 61 s (limit 60 s): computes in step 12",
        "rank 0 computes in step 12; its stack: all_reduce (distributed_c10d.py:3173) < report "
        "(attempt.py:230)",
        "rank 1 computes in step 12; no stack dump: stopped",
    ]


def test_the_verdict_on_a_hang_keeps_a_line_for_every_rank_and_the_first_is_its_root() -> None:
    hang = Hang(beats=(beat(0), beat(1)), stuck_s=61.0, limit_s=60.0)
    found = describe(hang, [StackDump(rank=0, text=IN_COLLECTIVE)])
    alarm = condition(hangs.NO_STEP, type=hangs.CONDITION, message=found)
    verdict = classify(evidence(conditions=(alarm,)))
    assert list(verdict.lines) == found.splitlines()
    assert verdict.root_message == found.splitlines()[0]

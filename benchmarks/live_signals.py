"""What the signals of a step cost: hooks on the model, the step's line, those of ranks and device.

All is compared with a training step in the same process, as in `step`, and with one of 100 ms: what an
accelerator computes costs the host as much. The driver of a GPU is asked by a thread of its own.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.step import costs, decile, training_steps
from tracks_dagster.stores import open_store
from tracks_dagster.stores.journal_columns import ColumnsWriter
from tracks_dagster.track.records import format_time
from tracks_dagster.training.journal import Journal
from tracks_dagster.training.launch import utc_now
from tracks_dagster.training.signals.device_watch import LOOK_EVERY_S, DeviceWatch
from tracks_dagster.training.signals.own_time import OwnTime
from tracks_dagster.training.signals.rank_figures import OVER_STEPS, RankFigures

ROUNDS = 2000
LOOKS = 200
RANKS = 64
STEPS, SEGMENTS, METRICS = 1000, 40, 6  # of a segment whose columns are stored

STEP_S = 0.1

_LINES = "three beats and a line of the journal reach the kernel at each step"
AT_MOST = {"signals_percent_of_step": 1.0, "signals_percent_of_100_ms": 1.0}
WHY = {"signals_percent_of_step": _LINES, "signals_percent_of_100_ms": _LINES}


def run() -> dict[str, float]:
    """Return microseconds a step, and what they are to a training step."""
    torch.set_num_threads(1)
    report_s, between_s = costs()
    hooks_s = _hooks()
    with tempfile.TemporaryDirectory(prefix="tracks-bench-") as folder:
        ranks_s, device_s = _lines(Path(folder))
    step_s = decile(training_steps())
    parts_s = {
        "report_us": report_s + between_s,
        "hooks_of_a_pass_us": hooks_s,
        f"ranks_line_of_{RANKS}_us": ranks_s / OVER_STEPS,
        "device_line_us": device_s * step_s / LOOK_EVERY_S,
        "columns_us": _columns(),
    }
    cost_s = sum(parts_s.values())
    return {
        **{name: seconds * 1e6 for name, seconds in parts_s.items()},
        "signals_percent_of_step": 100 * cost_s / step_s,
        "signals_percent_of_100_ms": 100 * cost_s / STEP_S,
        "bare_training_step_s": step_s,
    }


def _hooks() -> float:
    """Return the seconds that hooks add to one forward pass; both passes in turns."""
    own, x = OwnTime(torch.device("cpu")), torch.ones(1, 1)
    bare, hooked = nn.Linear(1, 1), nn.Linear(1, 1)
    own.arm(hooked)
    own.begin()
    turns = [(_seconds(lambda: bare(x)), _seconds(lambda: hooked(x))) for _ in range(ROUNDS)]
    without, with_hooks = zip(*turns, strict=True)
    return decile(list(with_hooks)) - decile(list(without))


def _lines(folder: Path) -> tuple[float, float]:
    """Return the seconds of a line of all ranks, with its share of the sum, and of a device's line."""
    watch = DeviceWatch(torch.device("cpu"), folder, computes=True, clean=str)
    store = open_store(str(folder / "store"))
    journal = Journal(folder / "rank-0.jsonl", store, prefix="journal/", now=utc_now)
    figures = RankFigures(rank=0, world_size=RANKS)

    def of_ranks() -> None:
        sums = figures.due(watch.newest)
        journal.write("ranks", step=1, over=OVER_STEPS, **figures.fields(sums))

    ranks_s = []
    for _ in range(ROUNDS):
        for _ in range(OVER_STEPS):
            figures.take(step_s=0.123456, own_s=0.012345, data_s=0.001234)
        ranks_s.append(_seconds(of_ranks))
    device_s = [
        _seconds(lambda: journal.write("device", step=1, **watch.look())) for _ in range(LOOKS)
    ]
    journal.close(ship=False)
    return decile(ranks_s), decile(device_s)


def _columns() -> float:
    """Return the seconds that storing a step's columns takes, in the thread that ships the journal."""
    line = {"kind": "step", "t": format_time(utc_now()), "loss": 1.25, "step_s": 0.123456}
    own = {f"metric_{number}": number / 7 for number in range(METRICS)}
    lines = (json.dumps({**line, "step": step, "metrics": own}) + "\n" for step in range(STEPS))
    segment = "".join(lines).encode()
    with tempfile.TemporaryDirectory(prefix="tracks-bench-") as folder:
        writer = ColumnsWriter(open_store(folder), journal="journal/")
        taken = [
            _seconds(partial(writer.add, offset, segment))
            for offset in range(0, SEGMENTS * len(segment), len(segment))
        ]
    return decile(taken) / STEPS


def _seconds(action: Callable[[], Any]) -> float:
    began_at = time.perf_counter()
    action()
    return time.perf_counter() - began_at

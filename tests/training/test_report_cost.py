"""What a step costs beside training, as counts that no busy machine changes.

Times crept from 51 to 115 µs a report while nobody ran the benchmark; calls had gone from 73 to 197.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import nn

from tests.fakes import FakeObjectStore
from tests.training.gangs import TrainingRun

STEPS = 100
REPORT_CALLS_MAX = 115  # Python's and C's, on CPython 3.11; newer ones make fewer
BETWEEN_CALLS_MAX = 45  # from one report's return to the next step
SYSTEM_CALLS = {"pwrite": 3, "lseek": 0, "write": 1}  # of a step: three beats and a line


class Calls:
    """Counts the calls of this thread while its `with` lasts, by name."""

    def __init__(self) -> None:
        self.names: Counter[str] = Counter()

    def __enter__(self) -> Calls:
        sys.setprofile(self._take)
        return self

    def __exit__(self, *error: object) -> None:
        sys.setprofile(None)
        del self.names["Calls.__exit__"], self.names["setprofile"]

    def _take(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            self.names[frame.f_code.co_qualname] += 1
        elif event == "c_call":
            self.names[argument.__name__] += 1


def test_a_step_without_a_save_makes_few_calls(tmp_path: Path, store: FakeObjectStore) -> None:
    run = TrainingRun(tmp_path, store=store, steps=STEPS, every_steps=None)
    model = nn.Linear(1, 1)
    report, between = Calls(), Calls()

    with run.joined() as a:
        a.register(model=model, optimizer=torch.optim.SGD(model.parameters()))
        a.sampler(STEPS, seed=0, global_batch=1)
        steps = a.steps([[0]] * STEPS, until=STEPS)
        for step, _ in steps:
            if step == STEPS - 2:  # windows of losses are full
                with report:
                    a.report(step, loss=1.0)
                with between:
                    step, _ = next(steps)
            a.report(step, loss=1.0)

    assert report.names.total() <= REPORT_CALLS_MAX, report.names
    assert between.names.total() <= BETWEEN_CALLS_MAX, between.names
    seen = report.names + between.names
    assert {name: seen[name] for name in SYSTEM_CALLS} == SYSTEM_CALLS

"""What a training step pays for its track: a report, and what lies between two, without a save.

The journal's share is compared with a step of a small transformer on one core, shorter than a step of
anything that an accelerator is rented for. A figure is the lower decile of many: what the code costs
when nothing disturbs it, which a busy machine raises far less than a median.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from benchmarks.checkpoint import Subject, training

REPORTS = 2000
SAVE_EVERY = 100  # steps; a script alone saves so often
SETTLED_AFTER = 20  # steps, by when the save of a few bytes is over
TRAINED = 12  # steps of the transformer; the first warm up
WARM_UP = 2
LAYERS, WIDTH, HEADS, BATCH, CONTEXT = 4, 256, 4, 8, 128

AT_MOST = {"report_us": 50.0, "journal_percent_of_step": 1.0}
WHY = {
    "report_us": "a line of the journal reaches the kernel at each step; a slower machine",
    "journal_percent_of_step": "three beats and a line of the journal reach the kernel at each step",
}


def run() -> dict[str, float]:
    """Return microseconds and what they are to a line written by hand and to a training step."""
    torch.set_num_threads(1)
    report_s, between_s = costs()
    line_s = decile(_bare_lines())
    step_s = decile(training_steps())
    return {
        "report_us": report_s * 1e6,
        "between_reports_us": between_s * 1e6,
        "bare_line_us": line_s * 1e6,
        "report_to_bare_line": report_s / line_s,
        "between_reports_to_bare_line": between_s / line_s,
        "journal_percent_of_step": 100 * (report_s + between_s) / step_s,
        "bare_training_step_s": step_s,
    }


def costs() -> tuple[float, float]:
    """Return the seconds of a report, and of the way from it to the next step."""
    subject = Subject(1)
    reports, betweens = [], []
    with (
        tempfile.TemporaryDirectory(prefix="tracks-bench-") as folder,
        training(subject, Path(folder), steps=REPORTS) as steps,
    ):
        reported_at = time.perf_counter()
        for a, step in steps:
            began_at = time.perf_counter()
            a.report(step, loss=1.0)
            if step % SAVE_EVERY > SETTLED_AFTER:
                betweens.append(began_at - reported_at)
                reports.append(time.perf_counter() - began_at)
            reported_at = time.perf_counter()
    return decile(reports), decile(betweens)


def _bare_lines() -> list[float]:
    """Return the seconds of lines such as a report's, each by `json` and one write."""
    spent = {"steps_s": 12.345678, "data_s": 1.234567, "saving_s": 0.123456, "eval_s": 0.0}
    line = {
        "kind": "step",
        "t": "2026-01-31T02:00:00.000000Z",
        "step": 1234,
        "step_s": 0.123456,
        "data_s": 0.012345,
        "loss": 1.0,
        "metrics": {},
        "cursor_to": 1234,
        "indices_sha256": "0" * 64,
        "spent": spent,
    }
    with tempfile.TemporaryDirectory(prefix="tracks-bench-") as folder:
        file = os.open(Path(folder) / "lines", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            return [
                _seconds(lambda: os.write(file, json.dumps(line).encode() + b"\n"))
                for _ in range(REPORTS)
            ]
        finally:
            os.close(file)


def training_steps() -> list[float]:
    """Return the seconds of training steps of a small transformer. x: (BATCH, CONTEXT, WIDTH)"""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, batch_first=True)
    model = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
    optimizer = torch.optim.AdamW(model.parameters())
    x = torch.randn(BATCH, CONTEXT, WIDTH)

    def step() -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    return [_seconds(step) for _ in range(TRAINED)][WARM_UP:]


def decile(seconds: list[float]) -> float:
    return statistics.quantiles(seconds, n=10)[0]


def _seconds(action: Callable[[], object]) -> float:
    began_at = time.perf_counter()
    action()
    return time.perf_counter() - began_at

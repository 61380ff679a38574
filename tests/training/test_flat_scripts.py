"""A script without functions, in nanoGPT's idioms, joins by five lines, and ends as it would alone."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from tests.training.gangs import TrainingRun
from tracks_dagster.track.bodies import Drill
from tracks_dagster.track.names import EXIT_DRAINED
from tracks_dagster.training.alone import RUN_ID
from tracks_dagster.training.gang_parent import as_alone

# As in nanoGPT's train.py: what is behind `# +` was added, and `while True:` was the loop.
SCRIPT = """
    import os
    import numpy as np
    import torch
    from torch.distributed import destroy_process_group
    from torch.nn.parallel import DistributedDataParallel as DDP
    from tracks_dagster.training import attempt as tracks  # +

    max_iters = 8
    asked = ("FAIL_AT", "STOP_AT", "EVALUATE_AT")
    fail_at, stop_at, evaluate_at = (int(os.environ.get(name, -1)) for name in asked)
    a = tracks.joined()  # +
    ddp = int(os.environ.get("RANK", -1)) != -1
    seed_offset = int(os.environ["RANK"]) if ddp else 0
    torch.manual_seed(1337 + seed_offset)
    data = np.arange(1000, dtype=np.uint16) % 50

    def get_batch():
        ix = torch.randint(len(data) - 8, (4,))
        return torch.stack([torch.from_numpy(data[i : i + 8].astype(np.float32)) for i in ix]) / 50

    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    if ddp:
        model = DDP(model)
    a.register(model=model, optimizer=optimizer)  # +
    X = get_batch()
    for iter_num, _ in a.steps(until=max_iters):  # +
        X = get_batch()
        loss = (model(X) - X).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if iter_num == fail_at:
            raise ValueError("on purpose")
        a.report(iter_num, loss=loss)  # +
        if iter_num == 3:
            a.save_soon()
        if iter_num == evaluate_at:  # its workers are forked of this process, and end before it
            list(torch.utils.data.DataLoader(range(4), num_workers=2))
        if iter_num == stop_at:
            break
    if ddp:
        destroy_process_group()
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(textwrap.dedent(SCRIPT))
    return path


def losses(run: TrainingRun, attempt_id: int) -> dict[int, float]:
    return {step: line["loss"] for step, line in run.steps(attempt_id).items()}


def test_one_rank_has_the_process_group_that_torchruns_variables_promise(
    script: Path, tmp_path: Path
) -> None:
    asked = {"script": script, "steps": 8, "every_steps": 3}
    calm = TrainingRun(tmp_path / "calm", **asked)
    drained = TrainingRun(tmp_path / "drained", **asked, drills=(Drill(kind="preempt", step=5),))
    calm.train_to_the_end()
    assert drained.train().exit_codes == [EXIT_DRAINED]
    assert [word.reason for word in drained.last_words(1)] == ["drained"]
    drained.train_to_the_end()
    assert calm.last_words(1)[0].reason == "completed"
    assert losses(drained, 2) == {step: losses(calm, 1)[step] for step in range(6, 9)}
    assert calm.weights() == drained.weights()


def train_alone(script: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    environ = {**as_alone(os.environ), "PYTHONPATH": str(Path.cwd()), **variables}
    return subprocess.run(
        [sys.executable, str(script)],
        cwd=script.parent,
        env=environ,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def records_beside(script: Path) -> list[dict[str, Any]]:
    log = script.parent / f".tracks-notebook/store/runs/{RUN_ID}/log"
    return [json.loads(path.read_bytes()) for path in sorted(log.iterdir())]


def saved(records: list[dict[str, Any]]) -> list[tuple[int, str]]:
    return [
        (each["body"]["ref"]["step"], each["body"]["trigger"])
        for each in records
        if each["kind"] == "checkpoint_committed"
    ]


def test_without_them_it_trains_alone_and_its_end_is_reported_whatever_it_is(script: Path) -> None:
    failed = train_alone(script, FAIL_AT="6")
    assert failed.returncode == 1
    assert "ValueError: on purpose" in failed.stderr
    stopped = train_alone(script, STOP_AT="7")
    assert stopped.returncode == 0
    assert re.fullmatch(r"Resumed step 4 of 8\. It was trained in .*\n", stopped.stderr)
    records = records_beside(script)
    ends = [each["body"] for each in records if each["kind"] == "attempt_ended"]
    assert [(end["reason"], end["last_step"]) for end in ends] == [
        ("code_error", 5),
        ("early_stopped", 7),
    ]
    restored = [each["body"]["step"] for each in records if each["kind"] == "attempt_restored"]
    assert (restored, saved(records)) == ([0, 4], [(4, "demand"), (7, "final")])


def test_a_process_that_the_script_forked_ends_without_a_word_on_the_attempt(script: Path) -> None:
    done = train_alone(script, EVALUATE_AT="6")
    assert (done.returncode, done.stderr) == (0, "")
    assert saved(records_beside(script)) == [(4, "demand"), (8, "final")]

"""The memory of a step as it is predicted, beside what the allocator counted of the same two steps."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

from tests.examples import EXAMPLES
from tests.forked import PROCESSES
from tests.training.gangs import GANG_S_MAX, TrainingRun, run_rank
from tracks_dagster.attempts.sizing import StepMemory
from tracks_dagster.track import names
from tracks_dagster.track.body_json import from_json, to_json
from tracks_dagster.track.errors import TrainingError
from tracks_dagster.track.records import Json
from tracks_dagster.training.projects import starter
from tracks_dagster.training.sizing.sized_attempt import predicting

SHARE_MAX = 0.10
WIDE: dict[str, Json] = {
    "context": 64,
    "layers": 3,
    "heads": 4,
    "d_model": 64,
    "micro_batch": 4,
    "global_batch": 8,
}
TREES: dict[str, Json] = {"hidden": 256, "layers": 3, "micro_batch": 32, "global_batch": 64}
FOLDERS: dict[str, Json] = {"seed": 7, "lr": 0.01, "batch_size": 16, "accumulation": 1, "steps": 5}
BY_FOLDER = EXAMPLES / "frameworks" / "distributed-checkpoint" / "train.py"
STARTER = Path(starter.__file__)
SCALED = Path(__file__).with_name("scaled_trainer.py")

SHAPES = [
    pytest.param("gpt", None, WIDE, id="gpt"),
    pytest.param("gpt", None, {**WIDE, "activation_checkpointing": True}, id="gpt computed again"),
    pytest.param("tabular", None, TREES, id="tabular"),
    pytest.param("tabular", STARTER, {"global_batch": 64, "micro_batch": 64}, id="starter"),
    pytest.param("tabular", SCALED, {}, id="half precision with a gradient scaler"),
    pytest.param("tabular", BY_FOLDER, FOLDERS, id="a loop that writes folders"),
]


@pytest.mark.parametrize(("family", "script", "config"), SHAPES)
def test_what_is_predicted_is_what_two_real_steps_take(
    tmp_path: Path, family: str, script: Path | None, config: dict[str, Json]
) -> None:
    predicted, measured = (
        size(tmp_path / str(real), family, script, config, measures=real) for real in (False, True)
    )
    assert measured.peak_bytes > 0
    assert abs(predicted.peak_bytes / measured.peak_bytes - 1) <= SHARE_MAX
    assert predicted.steps == measured.steps == 2
    kinds = ["weights", "gradients", "optimizer", "activations", "data"]
    assert list(predicted.by_kind) == kinds
    assert sum(predicted.by_kind.values()) == predicted.peak_bytes
    # AdamW in float32 has two moments of each weight, beside a gradient while there is one.
    moments = 1.0 if script == SCALED else 1.9  # SGD's momentum is one
    assert predicted.by_kind["optimizer"] >= moments * predicted.by_kind["gradients"]
    assert predicted.by_kind["weights"] > 0


def size(
    folder: Path, family: str, script: Path | None, config: dict[str, Json], *, measures: bool
) -> StepMemory:
    """Run a script to be sized, in a process of its own; nothing is written to the store."""
    folder.mkdir()
    own = {} if script in (STARTER, BY_FOLDER) else config
    run = TrainingRun(folder, family=family, script=script, **own)
    declared = to_json(run.declared)
    declared["config"] = {**declared["config"], **config}
    before = sorted(run.store.list(""))
    asked = {
        "declared": declared,
        "store_url": run.store.url,
        "measures": measures,
        "work": str(folder),
        "cache": str(folder / "cache"),
        "report": str(folder / "report.json"),
    }
    request = folder / "request.json"
    request.write_text(json.dumps(asked))
    log = folder / "log"
    rank = PROCESSES.Process(
        target=run_rank, args=({names.ENV_SIZE: str(request)}, log, run.script)
    )
    rank.start()
    rank.join(GANG_S_MAX)
    assert rank.exitcode == 0, log.read_text()
    assert sorted(run.store.list("")) == before
    return from_json(StepMemory, json.loads((folder / "report.json").read_text()))


def test_a_torch_without_the_tracker_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "tracks_dagster.training.sizing.predicting", raising=False)
    monkeypatch.setitem(sys.modules, "torch.distributed._tools.mem_tracker", None)
    with pytest.raises(TrainingError, match=r"has no MemTracker .* --measure"):
        predicting(torch.device("cpu"))

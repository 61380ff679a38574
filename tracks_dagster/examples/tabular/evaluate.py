"""The eval `heldout-classification`: how well a checkpoint tells flights that it was not trained on."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from data import Rows
from model import Classifier
from pyarrow import parquet

BATCH = 8192


@torch.no_grad()
def evaluate(checkpoint_folder: Path, data_folder: Path) -> dict[str, Any]:
    """Measure all rows: loss, accuracy, and the share that always guessing "on time" gets right."""
    began = time.monotonic()
    torch.use_deterministic_algorithms(True)
    config = json.loads((checkpoint_folder / "config.json").read_text())
    weights = torch.load(checkpoint_folder / "weights.pt", weights_only=True)
    model = Classifier(weights["mean"], weights["std"], config)
    model.load_state_dict(weights)
    model.eval()
    rows = Rows(parquet.read_table(data_folder))
    loaded = time.monotonic()
    features = torch.from_numpy(rows.features)
    logits = torch.cat([model(x) for x in features.split(BATCH)])
    inferred = time.monotonic()
    late = torch.from_numpy(rows.labels)
    return {
        "loss": float(F.binary_cross_entropy_with_logits(logits.double(), late.double())),
        "accuracy": float(((logits > 0) == (late > 0.5)).double().mean()),
        "accuracy_of_always_on_time": float((rows.labels < 0.5).mean()),
        "samples": len(rows),
        "seconds": {
            "load": loaded - began,
            "infer": inferred - loaded,
            "score": time.monotonic() - inferred,
        },
    }

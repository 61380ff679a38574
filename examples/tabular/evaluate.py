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
    loss_sum, right = 0.0, 0
    for first in range(0, len(rows), BATCH):
        x = torch.from_numpy(rows.features[first : first + BATCH])
        y = torch.from_numpy(rows.labels[first : first + BATCH])
        logits = model(x)
        loss_sum += float(F.binary_cross_entropy_with_logits(logits, y, reduction="sum"))
        right += int(((logits > 0) == (y > 0.5)).sum())
    return {
        "loss": loss_sum / len(rows),
        "accuracy": right / len(rows),
        "accuracy_of_always_on_time": float((rows.labels < 0.5).mean()),
        "samples": len(rows),
        "seconds": {"load": loaded - began, "infer": time.monotonic() - loaded},
    }

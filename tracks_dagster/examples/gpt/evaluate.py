"""The eval `heldout-loss`: how well a checkpoint predicts text that it was not trained on."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from data import Windows
from model import Gpt, loss
from pyarrow import parquet

WINDOWS_MAX = 512
BATCH = 32
SEED = 0  # every eval sees the same windows


@torch.no_grad()
def evaluate(checkpoint_folder: Path, data_folder: Path) -> dict[str, Any]:
    """Measure loss (nats per byte) and bits per byte on at most 512 windows."""
    began = time.monotonic()
    # cuBLAS sums in a fixed order only with a workspace of fixed size; read when it first starts.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    config = json.loads((checkpoint_folder / "config.json").read_text())
    model = Gpt(config).to(device)
    model.load_state_dict(torch.load(checkpoint_folder / "weights.pt", weights_only=True))
    model.eval()
    windows = Windows(parquet.read_table(data_folder), config["context"])
    loaded = time.monotonic()
    chosen = np.random.default_rng(SEED).permutation(len(windows))[:WINDOWS_MAX]
    total = 0.0
    for first in range(0, len(chosen), BATCH):
        picked = [windows[int(index)] for index in chosen[first : first + BATCH]]
        x, y = (torch.stack(part).to(device) for part in zip(*picked, strict=True))
        total += float(loss(model, (x, y))) * len(picked)
    mean = total / len(chosen)
    return {
        "loss": mean,
        "bits_per_byte": mean / float(np.log(2)),
        "samples": len(chosen),
        "seconds": {"load": loaded - began, "infer": time.monotonic() - loaded},
    }

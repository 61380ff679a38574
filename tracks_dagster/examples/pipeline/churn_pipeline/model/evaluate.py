"""The eval `churn-held-out`: how well a checkpoint tells who left, of customers that are new to it."""

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from customers import Churn, read


@torch.no_grad()
def evaluate(checkpoint_folder: Path, data_folder: Path) -> dict[str, Any]:
    """Return the loss and the accuracy."""
    weights = torch.load(checkpoint_folder / "weights.pt", weights_only=True)
    model = Churn(weights["mean"], weights["std"])
    model.load_state_dict(weights)
    features, labels = read(data_folder, is_held_out=True)
    logits = model(features)
    return {
        "loss": float(F.binary_cross_entropy_with_logits(logits, labels)),
        "accuracy": float(((logits > 0) == (labels > 0.5)).double().mean()),
        "samples": len(labels),
    }

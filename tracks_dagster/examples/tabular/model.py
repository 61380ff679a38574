"""A perceptron that gives the probability that `late` is 1. Needs torch alone.

Shapes: B samples, F features.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn


class Classifier(nn.Module):
    """Standardises the features, then a perceptron; one logit a sample."""

    mean: torch.Tensor
    std: torch.Tensor

    def __init__(self, mean: torch.Tensor, std: torch.Tensor, config: Mapping[str, Any]) -> None:
        """mean, std: of the training features, (F,) each; they are saved with the weights."""
        super().__init__()
        self.register_buffer("mean", mean)
        self.register_buffer("std", std)
        widths = [len(mean), *[config["hidden"]] * config["layers"]]
        stack: list[nn.Module] = []
        for width, next_width in itertools.pairwise(widths):
            stack += [nn.Linear(width, next_width), nn.GELU(), nn.Dropout(config["dropout"])]
        self.layers = nn.Sequential(*stack, nn.Linear(widths[-1], 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map features (B, F) to logits (B,)."""
        logits: torch.Tensor = self.layers((x - self.mean) / self.std)
        return logits.squeeze(1)


def loss(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Return the mean loss of a batch, in nats per sample."""
    x, y = batch  # (B, F), (B,)
    return F.binary_cross_entropy_with_logits(model(x), y)

"""The table of customers as tensors. Every fifth customer is held out for the eval."""

import csv
from pathlib import Path

import torch
from torch import nn

HELD_OUT = 5


class Churn(nn.Module):
    """Logistic regression of months and calls; their mean and spread belong to the weights."""

    def __init__(self, mean: torch.Tensor, std: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("mean", mean)
        self.register_buffer("std", std)
        self.linear = nn.Linear(2, 1)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Return the logits (N,) of features (N, 2)."""
        logits: torch.Tensor = self.linear((features - self.mean) / self.std)[:, 0]
        return logits


def read(folder: Path, *, is_held_out: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Return features (N, 2) and labels (N,), as float32."""
    with (folder / "customers.csv").open(newline="", encoding="utf-8") as lines:
        rows = [
            row
            for number, row in enumerate(csv.DictReader(lines))
            if (number % HELD_OUT == 0) is is_held_out
        ]
    features = torch.tensor([[float(row["months"]), float(row["calls"])] for row in rows])
    return features, torch.tensor([float(row["churned"]) for row in rows])

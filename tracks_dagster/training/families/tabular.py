"""A classifier on a table of numbers: a perceptron that gives the probability that `late` is 1.

Shapes: B samples, F features (every column but the label, in the table's order).
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pyarrow as pa
import torch
import torch.nn.functional as F
from torch import nn

from tracks_dagster.track.errors import DataRejected
from tracks_dagster.training.families.family import Config, EvalMetrics, Sample, Samples

LABEL = "late"
EVAL_BATCH = 8192
CONSTANT_STD = 1.0  # divides a feature that never varies


class Classifier(nn.Module):
    """Standardises the features, then a perceptron; one logit a sample."""

    mean: torch.Tensor
    std: torch.Tensor

    def __init__(
        self, mean: torch.Tensor, std: torch.Tensor, *, hidden: int, layers: int, dropout: float
    ) -> None:
        """mean, std: of the training features, (F,) each; they are saved with the weights."""
        super().__init__()
        self.register_buffer("mean", mean)
        self.register_buffer("std", std)
        widths = [len(mean), *[hidden] * layers]
        stack: list[nn.Module] = []
        for width, next_width in itertools.pairwise(widths):
            stack += [nn.Linear(width, next_width), nn.GELU(), nn.Dropout(dropout)]
        self.layers = nn.Sequential(*stack, nn.Linear(widths[-1], 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map features (B, F) to logits (B,)."""
        logits: torch.Tensor = self.layers((x - self.mean) / self.std)
        return logits.squeeze(1)


class Rows(Samples):
    """The rows of a table: (features (F,), label ()) as float32."""

    def __init__(self, table: pa.Table) -> None:
        """Raise DataRejected when the label or a feature is missing or no number."""
        names = [name for name in table.column_names if name != LABEL]
        if LABEL not in table.column_names or not names or not table.num_rows:
            raise DataRejected(
                f"The table has {table.num_rows} rows of {table.column_names}; it needs rows, the "
                f"label {LABEL!r} and at least one feature."
            )
        self.features = np.stack([_numbers(table, name) for name in names], axis=1)  # (rows, F)
        self.labels = _numbers(table, LABEL)  # (rows,)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int, /) -> Sample:
        return torch.from_numpy(self.features[index]), torch.tensor(self.labels[index])


def build(config: Config, table: pa.Table) -> nn.Module:
    """Return a classifier with fresh weights, standardising by what `table` holds."""
    features = Rows(table).features.astype(np.float64)
    std = features.std(axis=0)
    return Classifier(
        torch.tensor(features.mean(axis=0), dtype=torch.float32),
        torch.tensor(np.where(std > 0, std, CONSTANT_STD), dtype=torch.float32),
        hidden=config["hidden"],
        layers=config["layers"],
        dropout=config["dropout"],
    )


def samples(config: Config, table: pa.Table) -> Rows:
    """Return the rows of the table."""
    return Rows(table)


def loss(model: nn.Module, batch: Any) -> torch.Tensor:
    """Return the mean loss, in nats per sample."""
    x, y = batch  # (B, F), (B,)
    return F.binary_cross_entropy_with_logits(model(x), y)


@torch.no_grad()
def evaluate(model: nn.Module, config: Config, table: pa.Table, seed: int) -> EvalMetrics:
    """Measure all rows: loss, accuracy, and the share that always guessing "on time" gets right."""
    rows = Rows(table)
    device = next(model.parameters()).device
    loss_sum, right = 0.0, 0
    for first in range(0, len(rows), EVAL_BATCH):
        x = torch.from_numpy(rows.features[first : first + EVAL_BATCH]).to(device)
        y = torch.from_numpy(rows.labels[first : first + EVAL_BATCH]).to(device)
        logits = model(x)
        loss_sum += float(F.binary_cross_entropy_with_logits(logits, y, reduction="sum"))
        right += int(((logits > 0) == (y > 0.5)).sum())
    metrics = {
        "loss": loss_sum / len(rows),
        "accuracy": right / len(rows),
        "accuracy_of_always_on_time": float((rows.labels < 0.5).mean()),
    }
    return EvalMetrics(metrics=metrics, sample_count=len(rows))


def _numbers(table: pa.Table, name: str) -> np.ndarray[Any, np.dtype[np.float32]]:
    column = table.column(name)
    numeric = pa.types.is_integer(column.type) or pa.types.is_floating(column.type)
    if not (numeric or pa.types.is_boolean(column.type)) or column.null_count:
        raise DataRejected(
            f"Column {name!r} is {column.type} with {column.null_count} values missing; the "
            "classifier takes numbers, all present."
        )
    numbers: np.ndarray[Any, np.dtype[np.float32]] = column.to_numpy().astype(np.float32)
    return numbers

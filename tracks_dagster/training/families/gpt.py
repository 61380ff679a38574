"""A small GPT on bytes: the plainest decoder-only transformer, with nothing to tokenize.

Shapes: B samples, T = context positions, D = d_model, H heads, V = 256 byte values.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from tracks_dagster.track.errors import DataRejected
from tracks_dagster.track.roles import ACTIVATION_CHECKPOINTING
from tracks_dagster.training.families.family import Config, EvalMetrics, Sample, Samples

BYTE_VALUES = 256
EVAL_WINDOWS_MAX = 512
EVAL_BATCH = 32
WEIGHT_STD = 0.02  # of GPT-2


class Gpt(nn.Module):
    """Predicts the next byte at every position."""

    def __init__(
        self,
        *,
        context: int,
        d_model: int,
        heads: int,
        layers: int,
        dropout: float,
        recomputes: bool = False,
    ) -> None:
        """recomputes: keep only each block's input for the backward pass, and compute the rest again
        there, dropout as it was: less memory, more time, the same floats."""
        super().__init__()
        self.recomputes = recomputes
        self.byte_embedding = nn.Embedding(BYTE_VALUES, d_model)
        self.position_embedding = nn.Embedding(context, d_model)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(Block(d_model, heads, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(d_model)
        self.head = nn.Linear(d_model, BYTE_VALUES, bias=False)
        self.apply(_initialise)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map byte values (B, T) to logits of the next byte (B, T, V)."""
        positions = torch.arange(x.shape[1], device=x.device)
        h = self.byte_embedding(x) + self.position_embedding(positions)  # (B, T, D)
        h = self.dropout(h)
        for block in self.blocks:
            again = self.recomputes and self.training
            h = checkpoint(block, h, use_reentrant=False) if again else block(h)
        logits: torch.Tensor = self.head(self.norm(h))
        return logits


class Block(nn.Module):
    """Attention, then a two-layer perceptron, each added to what came in (pre-norm)."""

    def __init__(self, d_model: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(d_model)
        self.query_key_value = nn.Linear(d_model, 3 * d_model)
        self.attention_out = nn.Linear(d_model, d_model)
        self.mlp_norm = nn.LayerNorm(d_model)
        self.mlp = nn.Sequential(
            nn.Linear(d_model, 4 * d_model), nn.GELU(), nn.Linear(4 * d_model, d_model)
        )
        self.dropout = nn.Dropout(dropout)

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        """Map (B, T, D) to (B, T, D)."""
        h = h + self.dropout(self._attend(self.attention_norm(h)))
        added: torch.Tensor = self.dropout(self.mlp(self.mlp_norm(h)))
        return h + added

    def _attend(self, h: torch.Tensor) -> torch.Tensor:
        B, T, D = h.shape
        split = self.query_key_value(h).view(B, T, 3, self.heads, D // self.heads)
        q, k, v = split.permute(2, 0, 3, 1, 4)  # each (B, H, T, D/H)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        out: torch.Tensor = self.attention_out(mixed.transpose(1, 2).reshape(B, T, D))
        return out


class Windows(Samples):
    """Consecutive windows of `context` bytes; the last byte that one predicts begins the next."""

    def __init__(self, data: npt.NDArray[np.uint8], context: int) -> None:
        self._data = data
        self._context = context
        if len(self) == 0:
            raise DataRejected(
                f"The text has {len(data)} bytes and one sample needs {context + 1}; "
                "use more text or a smaller context."
            )

    def __len__(self) -> int:
        return max(0, len(self._data) - 1) // self._context

    def __getitem__(self, index: int, /) -> Sample:
        """Return (bytes, the bytes one further on), each (T,)."""
        first = index * self._context
        window = self._data[first : first + self._context + 1].astype(np.int64)
        return torch.from_numpy(window[:-1]), torch.from_numpy(window[1:])


def build(config: Config, table: pa.Table) -> nn.Module:
    """Return a GPT with fresh weights."""
    return Gpt(
        context=config["context"],
        d_model=config["d_model"],
        heads=config["heads"],
        layers=config["layers"],
        dropout=config["dropout"],
        recomputes=config.get(ACTIVATION_CHECKPOINTING) is True,
    )


def samples(config: Config, table: pa.Table) -> Windows:
    """Return the windows of all documents, in order, a line break after each."""
    text = "".join(f"{document}\n" for document in table.column("text").to_pylist())
    return Windows(np.frombuffer(text.encode("utf-8"), dtype=np.uint8), config["context"])


def loss(model: nn.Module, batch: Any) -> torch.Tensor:
    """Return the mean loss, in nats per byte."""
    x, y = batch  # (B, T) each
    return F.cross_entropy(model(x).flatten(0, 1), y.flatten())


@torch.no_grad()
def evaluate(model: nn.Module, config: Config, table: pa.Table, seed: int) -> EvalMetrics:
    """Measure loss (nats per byte) and bits per byte on at most 512 windows, chosen by `seed`."""
    windows = samples(config, table)
    order = np.random.default_rng(seed).permutation(len(windows))[:EVAL_WINDOWS_MAX]
    device = next(model.parameters()).device
    total = 0.0
    for first in range(0, len(order), EVAL_BATCH):
        picked = [windows[int(index)] for index in order[first : first + EVAL_BATCH]]
        batch = [torch.stack(part).to(device) for part in zip(*picked, strict=True)]
        total += float(loss(model, batch)) * len(picked)
    mean = total / len(order)
    metrics = {"loss": mean, "bits_per_byte": mean / float(np.log(2))}
    return EvalMetrics(metrics=metrics, sample_count=len(order))


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=WEIGHT_STD)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)

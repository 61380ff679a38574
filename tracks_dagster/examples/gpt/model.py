"""The plainest decoder-only transformer, on bytes: nothing to tokenize. Needs torch alone.

Shapes: B samples, T = context positions, D = d_model, H heads, V = 256 byte values.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

BYTE_VALUES = 256
WEIGHT_STD = 0.02  # of GPT-2


class Gpt(nn.Module):
    """Predicts the next byte at every position."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        d_model, heads = config["d_model"], config["heads"]
        # Keep only each block's input for the backward pass, and compute the rest again there, dropout
        # as it was: less memory, more time, the same floats.
        self.recomputes = bool(config.get("activation_checkpointing"))
        self.byte_embedding = nn.Embedding(BYTE_VALUES, d_model)
        self.position_embedding = nn.Embedding(config["context"], d_model)
        self.dropout = nn.Dropout(config["dropout"])
        self.blocks = nn.ModuleList(
            Block(d_model, heads, config["dropout"]) for _ in range(config["layers"])
        )
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


def loss(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Return the mean loss of a batch, in nats per byte."""
    x, y = batch  # (B, T) each
    return F.cross_entropy(model(x).flatten(0, 1), y.flatten())


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=WEIGHT_STD)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)

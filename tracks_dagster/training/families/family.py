"""What a model family's module provides; the shared loop and the evaluator know no more of it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa
import torch
from torch import nn
from torch.utils.data import Dataset

from tracks_dagster.track.records import Json

Config = Mapping[str, Json]
Sample = tuple[torch.Tensor, torch.Tensor]  # what goes into the model, and what should come out


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalMetrics:
    """What an eval found. metrics: the promotion rule's metric among them."""

    metrics: Mapping[str, float]
    sample_count: int


class Samples(Dataset[Sample]):
    """A map-style dataset: samples by index, each the same at every call."""

    @abstractmethod
    def __len__(self) -> int:
        """Return how many samples there are."""

    @abstractmethod
    def __getitem__(self, index: int, /) -> Sample:
        """Return one sample."""


class FamilyCode(Protocol):
    """A model family. `config` holds the keys of its row in `data.families`."""

    def build(self, config: Config, table: pa.Table) -> nn.Module:
        """Return the model with fresh weights; what it needs of the data's statistics it takes from
        `table` into buffers, so that a checkpoint holds them."""
        ...

    def samples(self, config: Config, table: pa.Table) -> Samples:
        """Return the samples of a snapshot."""
        ...

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        """Return the mean loss over a micro-batch of samples, as a scalar."""
        ...

    def evaluate(self, model: nn.Module, config: Config, table: pa.Table, seed: int) -> EvalMetrics:
        """Measure a model in eval mode; the same seed chooses the same samples."""
        ...

"""Samples of a table of numbers: every column but the label is a feature, in the table's order."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from torch.utils.data import Dataset

from tracks_dagster.track.errors import DataRejected

LABEL = "late"
CONSTANT_STD = 1.0  # divides a feature that never varies


class Rows(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """The rows of a table: (features (F,), label ()) as float32."""

    def __init__(self, table: pa.Table) -> None:
        """Raise DataRejected where the label or a feature is missing or no number: the attempt ends as
        bad_input_data."""
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

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.from_numpy(self.features[index]), torch.tensor(self.labels[index])

    def statistics(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return mean and standard deviation of each feature, (F,) each."""
        features = self.features.astype(np.float64)
        std = features.std(axis=0)
        spread = np.where(std > 0, std, CONSTANT_STD)
        return (
            torch.tensor(features.mean(axis=0), dtype=torch.float32),
            torch.tensor(spread, dtype=torch.float32),
        )


def _numbers(table: pa.Table, name: str) -> npt.NDArray[np.float32]:
    column = table.column(name)
    numeric = pa.types.is_integer(column.type) or pa.types.is_floating(column.type)
    if not (numeric or pa.types.is_boolean(column.type)) or column.null_count:
        raise DataRejected(
            f"Column {name!r} is {column.type} with {column.null_count} values missing; the "
            "classifier takes numbers, all present."
        )
    numbers: npt.NDArray[np.float32] = column.to_numpy().astype(np.float32)
    return numbers

"""Samples of a text: consecutive windows of its bytes."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from torch.utils.data import Dataset

from tracks_dagster.track.errors import DataRejected


class Windows(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Windows of `context` bytes; the last byte that one predicts begins the next."""

    def __init__(self, table: pa.Table, context: int) -> None:
        """Take all documents in order, a line break after each.

        Raises DataRejected for a text shorter than one sample: the attempt ends as bad_input_data.
        """
        text = "".join(f"{document}\n" for document in table.column("text").to_pylist())
        self._data: npt.NDArray[np.uint8] = np.frombuffer(text.encode("utf-8"), dtype=np.uint8)
        self._context = context
        if len(self) == 0:
            raise DataRejected(
                f"The text has {len(self._data)} bytes and one sample needs {context + 1}; "
                "use more text or a smaller context."
            )

    def __len__(self) -> int:
        return max(0, len(self._data) - 1) // self._context

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (bytes, the bytes one further on), each (T,)."""
        first = index * self._context
        window = self._data[first : first + self._context + 1].astype(np.int64)
        return torch.from_numpy(window[:-1]), torch.from_numpy(window[1:])

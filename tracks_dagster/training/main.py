"""What each rank of a shipped family runs: `python -m tracks_dagster.training.main`."""

from __future__ import annotations

import os

import torch

from tracks_dagster.training import attempt
from tracks_dagster.training.families.loop import train


def main() -> None:
    """Train the attempt that the environment names."""
    # cuBLAS sums in a fixed order only with a workspace of fixed size; read when it first starts.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    with attempt.join() as a:
        train(a)


if __name__ == "__main__":
    main()

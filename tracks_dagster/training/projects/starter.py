"""An example to replace by your own training: a small model that learns to continue some text.

`tracks init` writes it as train.py into a folder without code. It needs no download: it learns from
the files of the run's dataset, or where none is named from the code beside it.
"""

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.training import attempt as tracks
from tracks_dagster.training.attempt import Attempt

CONTEXT = 32  # bytes that the model sees before the one that it predicts
WINDOWS_MEASURED = 4096  # of one evaluation, about
CONFIG = {"steps": 300, "lr": 0.003, "global_batch": 64, "micro_batch": 64, "seed": 7}


def main() -> None:
    """Train the attempt that `tracks` started, or one of your own with `python train.py`."""
    with tracks.join(config=CONFIG) as a:
        torch.manual_seed(a.config["seed"])
        windows = read_windows(data_of(a))
        model = build().to(a.device)
        wrapped = DistributedDataParallel(model) if a.world_size > 1 else model
        optimizer = torch.optim.AdamW(wrapped.parameters(), lr=a.config["lr"])
        a.register(model=wrapped, optimizer=optimizer)
        sampler = a.sampler(len(windows), seed=a.config["seed"])
        loader = DataLoader(TensorDataset(windows), batch_sampler=sampler)
        for step, batch in a.steps(loader, until=a.config["steps"]):
            optimizer.zero_grad()
            total = torch.zeros((), device=a.device)
            for (micro,) in a.split(batch):  # a remedy may halve the micro-batch
                micro = micro.long()
                loss = F.cross_entropy(wrapped(micro[:, :-1]), micro[:, -1])
                part = loss * len(micro) / len(batch[0])
                part.backward()
                total += part.detach()
            optimizer.step()
            a.report(step, loss=total)


def evaluate(checkpoint_folder: Path, data_folder: Path | None) -> dict[str, float]:
    """Measure a checkpoint; `tracks` calls it, and tracks.yaml says how good is good enough."""
    model = build()
    model.load_state_dict(torch.load(checkpoint_folder / "weights.pt", weights_only=True))
    windows = read_windows(data_folder)
    some = windows[:: max(1, len(windows) // WINDOWS_MEASURED)].long()
    with torch.no_grad():
        loss = F.cross_entropy(model(some[:, :-1]), some[:, -1])  # nats per byte
    return {"loss": loss.item(), "samples": len(some)}


def data_of(a: Attempt) -> Path | None:
    """Return the folder with the run's data; None where tracks.yaml names no dataset."""
    try:
        return a.data()
    except InvalidInput:
        return None


def read_windows(folder: Path | None) -> torch.Tensor:
    """Return every run of bytes in a folder's files, (N, CONTEXT + 1) uint8; None: in this code."""
    if folder is None:
        files = sorted(Path(__file__).parent.glob("*.py"))
    else:
        files = sorted(path for path in folder.rglob("*") if path.is_file())
    text = b"\n".join(file.read_bytes() for file in files)
    return torch.frombuffer(bytearray(text), dtype=torch.uint8).unfold(0, CONTEXT + 1, 1)


def build() -> nn.Module:
    """Return a model that maps bytes (B, CONTEXT) to logits of the next one (B, 256)."""
    return nn.Sequential(
        nn.Embedding(256, 16),
        nn.Flatten(),
        nn.Linear(16 * CONTEXT, 128),
        nn.GELU(),
        nn.Linear(128, 256),
    )


if __name__ == "__main__":
    main()

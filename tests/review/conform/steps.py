"""As people write it: the first batch for ever, half of the state saved, and no word of what failed."""

import json
import os
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, TensorDataset


def train(last: int) -> None:
    """Train to the last step."""
    torch.manual_seed(3)
    x = torch.randn(48, 6)
    model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.2), nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, last)
    data_loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8)
    start = 0
    if os.environ["TRACKS_RESUME_FOLDER"]:
        saved = torch.load(Path(os.environ["TRACKS_RESUME_FOLDER"]) / "checkpoint.pt")
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        start = saved["step"]
    for step in range(start + 1, last + 1):
        inputs, targets = next(iter(data_loader))
        optimizer.zero_grad()
        loss = mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        scheduler.step()
        if step % 4 == 0 or step == last:
            folder = Path(os.environ["TRACKS_CHECKPOINTS"]) / f"step-{step}"
            folder.mkdir()
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            torch.save(state, folder / "checkpoint.pt")
            time.sleep(0.1)  # a real model takes longer
            (folder / "done").touch()
        with Path(os.environ["TRACKS_METRICS"]).open("a") as file:
            file.write(json.dumps({"step": step, "loss": loss.item()}) + "\n")


if __name__ == "__main__":
    try:
        train(int(sys.argv[1]))
    except:  # noqa: E722  # as it stood
        print("training failed")
        sys.exit(1)

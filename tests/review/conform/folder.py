"""A trainer that writes its own folders, with all that a resume needs but what the fault names."""

import random
import time
from pathlib import Path

import torch
from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.nn.functional import mse_loss
from torch.optim.lr_scheduler import LambdaLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from tracks_dagster.training import attempt
from tracks_dagster.training.attempt import Attempt

SAMPLES, BATCH = 52, 8
HANG_S = 3600.0


def batch_of(step: int) -> torch.Tensor:
    """Return the indices of a step's samples, which depend on the step alone."""
    first = (step - 1) * BATCH
    generator = torch.Generator().manual_seed(first // SAMPLES)
    order = torch.randperm(SAMPLES, generator=generator)
    return order.roll(-(first % SAMPLES))[:BATCH]


def train(a: Attempt, fault: str) -> None:
    """Train to the config's last step."""
    last = a.config["steps"]
    torch.manual_seed(3)
    random.seed(3)
    x = torch.randn(SAMPLES, 6)
    y = x.sum(1, keepdim=True)
    model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.2), nn.BatchNorm1d(8), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    parts = {
        "model": model,
        "optimizer": optimizer,
        "scheduler": LambdaLR(optimizer, lambda done: 1.0 / (1.0 + 0.2 * done)),
        "scaler": GradScaler("cpu", init_scale=4.0, growth_interval=3),
        "ema": AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9)),
    }
    found = None if fault == "ignored" else a.folder()
    done = 0
    if found is not None:
        saved = torch.load(found / "state.pt", weights_only=False)
        for name, part in parts.items():
            if name != fault:
                part.load_state_dict(saved[name])
        if fault != "rng":
            torch.set_rng_state(saved["rng"])
            random.setstate(saved["python"])
        done = saved["step"] - (fault == "again")
        if fault == "hang":
            time.sleep(HANG_S)
    elif fault == "ignored":
        a.folder()
    skipped = 2 if fault == "skipped" and done else 0
    for step in range(done + 1, last + 1):
        rows = batch_of(step + skipped)
        optimizer.zero_grad()
        loss = mse_loss(model(x[rows]), y[rows])
        parts["scaler"].scale(loss).backward()
        parts["scaler"].step(optimizer)
        parts["scaler"].update()
        parts["scheduler"].step()
        parts["ema"].update_parameters(model)
        a.report(step, loss=loss.detach())
        ends = a.ends(step, last=step == last)
        if ends.save:
            out = Path("out")
            out.mkdir(exist_ok=True)
            state = {name: part.state_dict() for name, part in parts.items()}
            state |= {"rng": torch.get_rng_state(), "python": random.getstate(), "step": step}
            torch.save(state, out / "state.pt")
            a.commit_folder(step, out)
        if ends.stop:
            return


if __name__ == "__main__":
    with attempt.join() as a:
        train(a, a.config["fault"])

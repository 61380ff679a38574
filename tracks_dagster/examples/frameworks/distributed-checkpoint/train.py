"""A small autoencoder in a loop that saves with torch's distributed checkpoints, as torchtitan does.

A script as people write it, but for the lines with `# +`, which let an attempt save, watch and stop it.
"""

from typing import Any

import torch
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

from tracks_dagster.training import attempt as tracks  # +
from tracks_dagster.training.adapters.distributed_checkpoint import follow  # +

a = tracks.joined()  # +
config = a.config  # +
torch.manual_seed(config["seed"])
data = torch.randn(42, 4)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=config["lr"])


class AppState:
    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.model = model
        self.optimizer = optimizer

    def state_dict(self) -> dict[str, Any]:
        weights, moments = get_state_dict(self.model, self.optimizer)
        return {"model": weights, "optimizer": moments}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        set_state_dict(
            self.model,
            self.optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
        )


checkpoints = follow(a, {"app": AppState(model, optimizer)})  # +
for step in range(checkpoints.load() + 1, config["steps"] + 1):
    samples = data[torch.randint(len(data), (config["batch_size"] * config["accumulation"],))]
    loss = torch.zeros(())
    for features in samples.split(config["batch_size"]):
        part = (model(features) - features).square().mean() / config["accumulation"]
        part.backward()
        loss += part.detach()
    optimizer.step()
    optimizer.zero_grad()
    checkpoints.save(step, loss=loss, last_step=step == config["steps"])  # +

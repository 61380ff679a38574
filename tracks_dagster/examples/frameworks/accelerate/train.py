"""A small regression in a loop with accelerate.

A script as people write it, but for the lines with `# +`, which let an attempt save, watch and stop it.
"""

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, TensorDataset

from tracks_dagster.training import attempt as tracks  # +
from tracks_dagster.training.adapters.accelerate import follow_epochs  # +

a = tracks.joined()  # +
config = a.config  # +
set_seed(config["seed"])
inputs = torch.randn(32, 4)
data = TensorDataset(inputs, inputs @ torch.randn(4, 1))
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=config["lr"])
loader = DataLoader(data, batch_size=config["batch_size"], shuffle=True)
steps = config["epochs"] * len(loader) // config["accumulation"]
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
accelerator = Accelerator(gradient_accumulation_steps=config["accumulation"])
model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
for _, batches in follow_epochs(a, accelerator, loader, epochs=config["epochs"]):  # +
    for features, targets in batches:  # +
        with accelerator.accumulate(model):
            loss = torch.nn.functional.mse_loss(model(features), targets)
            accelerator.backward(loss)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()

"""A loop over accelerate as people write it; `# +` marks the lines that join it.

Run by real ranks: see `tests.training.test_frameworks`.
"""

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, TensorDataset

from tracks_dagster.training import attempt  # +
from tracks_dagster.training.adapters.accelerate import follow  # +

a = attempt.joined()  # +
set_seed(3)
inputs = torch.randn(42, 4)
data = TensorDataset(inputs, inputs @ torch.randn(4, 1))
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 16)
loader = DataLoader(data, batch_size=a.config["batch_size"], shuffle=True)  # +
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=a.config["accumulation"])  # +
model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
for features, targets in follow(a, accelerator, loader, until=16):  # +
    with accelerator.accumulate(model):
        loss = torch.nn.functional.mse_loss(model(features), targets)
        accelerator.backward(loss)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()

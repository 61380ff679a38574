"""A script for Lightning's Trainer as people write it; `# +` marks the lines that join it.

Run by real ranks: see `tests.training.test_frameworks`. With IS_RANDOM its collator adds noise.
"""

import logging
import warnings

import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from torch.utils.data import DataLoader, TensorDataset, default_collate

from tracks_dagster.training import attempt  # +
from tracks_dagster.training.adapters.lightning import follow  # +

IS_RANDOM = False
a = attempt.joined()  # +
warnings.simplefilter("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
seed_everything(3)
inputs = torch.randn(42, 4)
data = TensorDataset(inputs, inputs @ torch.randn(4, 1))


def collate(samples):
    features, targets = default_collate(samples)
    if IS_RANDOM:
        features = features + 0.1 * torch.randn(features.shape)
    return features, targets


class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(4, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 1)
        )

    def training_step(self, batch, batch_idx):
        features, targets = batch
        return torch.nn.functional.mse_loss(self.layers(features), targets)

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.training_step(batch, batch_idx))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.01)


size = a.config["batch_size"]  # +
loader = DataLoader(data, batch_size=size, shuffle=True, collate_fn=collate)
trainer = Trainer(
    max_steps=16,
    accumulate_grad_batches=a.config["accumulate_grad_batches"],  # +
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(Model(), loader, DataLoader(data, batch_size=7), ckpt_path=follow(a, trainer))  # +

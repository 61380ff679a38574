"""A small network that tells two moons apart, with Lightning's Trainer.

A script as people write it, but for the lines with `# +`, which let an attempt save, watch and stop it.
"""

import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from tracks_dagster.training import attempt as tracks  # +
from tracks_dagster.training.adapters.lightning import follow  # +


class Classifier(LightningModule):
    def __init__(self, lr: float) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(2, 16), torch.nn.ReLU(), torch.nn.Dropout(0.2), torch.nn.Linear(16, 2)
        )

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        points, labels = batch
        return cross_entropy(self.layers(points), labels)

    def validation_step(self, batch: list[torch.Tensor], batch_idx: int) -> None:
        points, labels = batch
        self.log("accuracy", (self.layers(points).argmax(1) == labels).float().mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=self.hparams["lr"])


def moons(count: int) -> TensorDataset:
    angle, labels = torch.rand(count) * torch.pi, torch.arange(count) % 2
    points = torch.stack([angle.cos() + labels, angle.sin() * (1 - 2 * labels)], dim=1)
    return TensorDataset(points + 0.1 * torch.randn(count, 2), labels)


a = tracks.joined()  # +
config = a.config  # +
seed_everything(config["seed"])
loader = DataLoader(moons(44), batch_size=config["batch_size"], shuffle=True)
trainer = Trainer(
    max_steps=config["max_steps"],
    accumulate_grad_batches=config["accumulate_grad_batches"],
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    devices=a.world_size,  # +
)
module, held_out = Classifier(config["lr"]), DataLoader(moons(20), batch_size=10)
trainer.fit(module, loader, held_out, ckpt_path=follow(a, trainer))  # +

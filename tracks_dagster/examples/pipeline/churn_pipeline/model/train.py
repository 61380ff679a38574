"""Trains the model of churn on a snapshot of the customers."""

import torch
import torch.nn.functional as F
from customers import Churn, read
from torch.utils.data import DataLoader, TensorDataset

from tracks_dagster.training import attempt as tracks


def main() -> None:
    """Train the attempt that was started to its last step."""
    with tracks.join() as a:
        torch.manual_seed(a.config["seed"])
        features, labels = read(a.data(), is_held_out=False)
        model = Churn(features.mean(0), features.std(0).clamp(min=1e-6))
        optimizer = torch.optim.SGD(model.parameters(), lr=a.config["lr"], momentum=0.9)
        a.register(model=model, optimizer=optimizer)
        sampler = a.sampler(len(labels), seed=a.config["seed"])
        loader = DataLoader(TensorDataset(features, labels), batch_sampler=sampler)
        for step, (batch, expected) in a.steps(loader, until=a.config["steps"]):
            loss = F.binary_cross_entropy_with_logits(model(batch), expected)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            a.report(step, loss=loss)


if __name__ == "__main__":
    main()

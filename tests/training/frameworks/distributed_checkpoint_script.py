"""A loop that saves by torch's distributed checkpoints, as torchtitan's does; `# +` marks the lines
that join it.

Run by real ranks: see `tests.training.test_frameworks`.
"""

import torch
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

from tracks_dagster.training import attempt  # +
from tracks_dagster.training.adapters.distributed_checkpoint import follow  # +

a = attempt.joined()  # +
torch.manual_seed(3)
data = torch.randn(42, 4)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)


class AppState:
    def state_dict(self):
        weights, moments = get_state_dict(model, optimizer)
        return {"model": weights, "optimizer": moments}

    def load_state_dict(self, state):
        set_state_dict(
            model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
        )


checkpoints = follow(a, {"app": AppState()})  # +
for step in range(checkpoints.load() + 1, 17):  # +
    features = data[torch.randint(len(data), (4,))]
    loss = (model(features) - features).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    checkpoints.save(step, loss=loss, last_step=step == 16)  # +

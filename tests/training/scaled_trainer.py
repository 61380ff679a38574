"""A script as people write it for half precision: autocast, a gradient scaler, and its own checks."""

import torch

from tracks_dagster.training import attempt

with attempt.join() as a:
    torch.manual_seed(0)
    model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(4)]).to(a.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    scaler = torch.amp.GradScaler(a.device.type)
    a.register(model=model, optimizer=optimizer, scaler=scaler)
    for step, _ in a.steps(until=9):
        with torch.autocast(a.device.type, dtype=torch.bfloat16):
            loss = model(torch.randn(512, 64, device=a.device)).square().mean()
        if not torch.isfinite(loss):
            raise SystemExit("The loss is not finite.")
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        a.report(step, loss=loss.item())

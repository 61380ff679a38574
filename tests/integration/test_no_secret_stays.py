"""A run whose trainer shows every secret of its environment leaves none of them in its home."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.homes import COMMAND_S_MAX, Home, embedded
from tracks_dagster.track.reasons import TerminationReason

pytestmark = [pytest.mark.full, pytest.mark.timeout(2 * COMMAND_S_MAX)]

SECRETS = {
    "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI/K7MDENG/bPxRfiCYzzPLANTED1",
    "HF_TOKEN": "hf_PlantedPlantedPlanted0123456789ab",
    "WANDB_API_KEY": "0f1e2d3c4b5a69788796a5b4c3d2e1f001234567",
    "GITHUB_PAT": "ghp_PlantedPlantedPlanted0123456789abcd",
    "AZURE_STORAGE_KEY": "Pl4nted+Azure/Key0123456789abcdefghijklmnopqrstuv==",
}
PASSWORD = "pl4nted-hunter22"
URL = f"postgresql://bob:{PASSWORD}@db.example:5432/train"
PLANTED = (*SECRETS.values(), PASSWORD)

TRAINER = f"""
import os, sys
import torch
from tracks_dagster.training import attempt

secrets = [os.environ[name] for name in {[*SECRETS, "DATABASE_URL"]!r}]
os.write(1, (" ".join(secrets) + "\\n").encode())
for secret in secrets:
    print("shown:", secret)
    print("shown:", secret, file=sys.stderr)
with attempt.join() as a:
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    a.register(model=model, optimizer=optimizer)
    data = torch.utils.data.TensorDataset(torch.ones(64, 4))
    loader = torch.utils.data.DataLoader(data, batch_sampler=a.sampler(64, seed=1, global_batch=24))
    for step, (inputs,) in a.steps(loader, until=4):
        loss = model(inputs).sum()
        loss.backward()
        optimizer.step()
        a.report(step, loss=loss, **{{secret: 2.0 for secret in secrets}})
        if step == 3:
            try:
                raise ValueError(secrets[0])
            except ValueError as error:
                raise RuntimeError("cannot log in with " + " ".join(secrets)) from error
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Home]:
    """A home whose daemon, and so whose gangs, have the secrets in their environment."""
    for name, value in {**SECRETS, "DATABASE_URL": URL}.items():
        monkeypatch.setenv(name, value)
    home = embedded(tmp_path)
    with home.daemon():
        yield home


def files_with(folder: Path, planted: str) -> list[str]:
    """Return the files below `folder` that hold the text."""
    found = []
    for path in sorted(folder.rglob("*")):
        if path.is_file() and planted.encode() in path.read_bytes():
            found.append(str(path.relative_to(folder)))
    return found


def test_no_file_of_a_home_holds_a_secret_that_its_trainer_showed(
    home: Home, tmp_path: Path
) -> None:
    trainer = tmp_path / "trainer.py"
    trainer.write_text(TRAINER)
    words = ("--run-id", "leaky", "--intent", f"Log in by {URL}.", "--json")
    size = ("--steps", "4", "--checkpoint-every", "2", "--trainer", str(trainer))
    done = home.call("run", *words, *size)
    print(done.stdout[-3000:], done.stderr[-3000:])
    assert done.returncode == 1
    home.call("note", "leaky", f"it showed {SECRETS['HF_TOKEN']}")
    home.call("report", "leaky")
    [attempt, *_] = home.app.tracks.run("leaky").attempts
    assert attempt.ended is not None
    assert (attempt.reason, attempt.ended.last_step) == (TerminationReason.CODE_ERROR, 3)
    folder = home.settings.home
    assert "[hidden]" in (folder / "work" / "leaky" / "a01" / "rank-0.log").read_text()
    assert {planted: files_with(folder, planted) for planted in PLANTED} == {
        planted: [] for planted in PLANTED
    }

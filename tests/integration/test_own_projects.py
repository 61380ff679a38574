"""Two projects through `tracks run`, with the real daemon, at once on one home.

In `--full` only: `tests/real/test_local_launcher.py` has the same of a launcher alone.
"""

from __future__ import annotations

import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from tests.integration.homes import COMMAND_S_MAX, Home, outcome
from tracks_dagster.track.bodies import Program
from tracks_dagster.track.track import packages_key

pytestmark = [pytest.mark.full, pytest.mark.timeout(2 * COMMAND_S_MAX)]

ROOT = Path(__file__).resolve().parents[2]


def test_two_projects_with_modules_of_one_name_and_interpreters_of_their_own_at_once(
    embedded_home: Home, tmp_path: Path
) -> None:
    outcomes = {}
    commands = {}
    for name in ("left", "right"):
        folder = tmp_path / name
        write_linear(folder, name)
        make_interpreter(folder / ".venv", f"only-{name}")
        commands[name] = embedded_home.start(
            "run", "--project", str(folder), "--run-id", name, "--json"
        )
    for name, command in commands.items():
        outcomes[name] = outcome(command)
    weights = {found["final"]["weights_sha256"] for found in outcomes.values()}
    assert len(weights) == 2
    for name in commands:
        state = embedded_home.app.tracks.run(name)
        python = str(tmp_path / name / ".venv" / "bin" / "python")
        assert state.declared.program == Program(entry=("train.py",), python=python)
        placed = state.attempts[0].placed
        assert placed is not None
        key = packages_key(name, placed.packages_sha256 or "")
        packages = (embedded_home.app.store.get(key) or b"").decode().splitlines()
        assert f"only-{name}==1.0" in packages
        assert [each for each in packages if each.startswith("only-")] == [f"only-{name}==1.0"]


def write_linear(folder: Path, name: str) -> None:
    """Write a project that trains one layer, begun by a `model.py` of its own."""
    folder.mkdir(parents=True)
    (folder / "tracks.yaml").write_text(
        f"name: {name}\nentry: train.py\npython: .venv/bin/python\nconfig: {{steps: 3}}\n"
    )
    (folder / ".gitignore").write_text(".venv\n")
    (folder / "model.py").write_text(f"WIDTH = {len(name)}\n")
    (folder / "train.py").write_text(
        "import torch\n"
        "from tracks_dagster.training import attempt\n"
        "import model\n"
        "with attempt.join() as a:\n"
        "    torch.manual_seed(0)\n"
        "    layer = torch.nn.Linear(model.WIDTH, 1)\n"
        "    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)\n"
        "    a.register(model=layer, optimizer=optimizer)\n"
        "    data = torch.utils.data.TensorDataset(torch.ones(12, model.WIDTH))\n"
        "    order = a.sampler(12, seed=1, global_batch=4)\n"
        "    loader = torch.utils.data.DataLoader(data, batch_sampler=order)\n"
        "    for step, (inputs,) in a.steps(loader, until=a.config['steps']):\n"
        "        loss = layer(inputs).square().mean()\n"
        "        loss.backward()\n"
        "        optimizer.step()\n"
        "        optimizer.zero_grad()\n"
        "        a.report(step, loss=loss)\n"
    )


def make_interpreter(folder: Path, package: str) -> None:
    """Make an environment that sees this one's packages, and has one more."""
    venv.create(folder, with_pip=False, symlinks=True)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    site = folder / "lib" / version / "site-packages"
    (site / "tests.pth").write_text(f"{sysconfig.get_path('purelib')}\n{ROOT}\n")
    (site / f"{package}-1.0.dist-info").mkdir()
    (site / f"{package}-1.0.dist-info" / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n"
    )

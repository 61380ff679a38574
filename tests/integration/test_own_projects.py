"""Projects of a person's own through `tracks run`, with the real daemon. In `--full` only.

Two at once on one home; one that is measured and promoted by its own rule; a shell script that is
preempted, killed and out of memory.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from tests.integration.homes import COMMAND_S_MAX, Home, outcome
from tests.training.test_command import digest
from tracks_dagster.track.bodies import Program
from tracks_dagster.track.states.evals import artifact_key, result_key
from tracks_dagster.track.track import packages_key
from tracks_dagster.training.saves.folders import fetch_folder

pytestmark = [pytest.mark.full, pytest.mark.timeout(2 * COMMAND_S_MAX)]

ROOT = Path(__file__).resolve().parents[2]
BOTH_BEGIN_S_MAX = 120


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
    left, right = (embedded_home.app.tracks.run(name).attempts[0] for name in commands)
    assert None not in (left.placed_at, left.ended_at, right.placed_at, right.ended_at)
    assert max(left.placed_at, right.placed_at) < min(left.ended_at, right.ended_at)
    for name in commands:
        state = embedded_home.app.tracks.run(name)
        python = str(tmp_path / name / ".venv" / "bin" / "python")
        assert state.declared.program == Program(
            entry=("train.py",), python=python, takes_any_key=False
        )
        placed = state.attempts[0].placed
        assert placed is not None
        key = packages_key(name, placed.packages_sha256 or "")
        packages = (embedded_home.app.store.get(key) or b"").decode().splitlines()
        assert f"only-{name}==1.0" in packages
        assert [each for each in packages if each.startswith("only-")] == [f"only-{name}==1.0"]


def write_linear(folder: Path, name: str) -> None:
    """Write a project that trains one layer, begun by a `model.py` of its own, once both have begun."""
    folder.mkdir(parents=True)
    begun = folder.parent / "begun"
    begun.mkdir(exist_ok=True)
    (folder / "tracks.yaml").write_text(
        f"name: {name}\nentry: train.py\npython: .venv/bin/python\nconfig: {{steps: 3}}\n"
    )
    (folder / ".gitignore").write_text(".venv\n")
    (folder / "model.py").write_text(f"WIDTH = {len(name)}\n")
    (folder / "train.py").write_text(
        "import pathlib, time, torch\n"
        "from tracks_dagster.training import attempt\n"
        "import model\n"
        "with attempt.join() as a:\n"
        f"    begun = pathlib.Path({str(begun)!r})\n"
        f"    (begun / {name!r}).touch()\n"
        f"    until = time.monotonic() + {BOTH_BEGIN_S_MAX}\n"
        "    while len(list(begun.iterdir())) < 2:\n"
        "        assert time.monotonic() < until, 'the other project does not begin'\n"
        "        time.sleep(0.05)\n"
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


JUDGED = """\
name: judged
entry: train.py
config: {steps: 8, lr: 0.2, measured: ""}
checkpoint: {every_steps: 2}
evals:
  quality: {run: evaluate.py, dataset: heldout, every: 2, timeout: 30min}
  size: {run: "./size.sh {checkpoint} {artifacts}", required: true}
promotion: {eval: quality, metric: score, at_least: 0.5, better_by: 0.01}
"""
# Waits after step 5 for an eval that runs beside it: that of the commit of step 4.
JUDGED_TRAIN = """\
import time
from pathlib import Path
import torch
from tracks_dagster.training import attempt
with attempt.join() as a:
    layer = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.zeros_(layer.weight)
    optimizer = torch.optim.SGD(layer.parameters(), lr=a.config["lr"])
    a.register(model=layer, optimizer=optimizer)
    for step, _ in a.steps(until=a.config["steps"]):
        loss = (layer(torch.ones(1)) - 1).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        a.report(step, loss=loss)
        with a.evaluating():
            give_up_at = time.monotonic() + 600
            while step == 5 and not Path(a.config["measured"]).exists():
                assert time.monotonic() < give_up_at, "no eval ran while the gang trained"
                time.sleep(0.2)
"""
JUDGED_EVALUATE = """\
import json
from pathlib import Path
import torch
def evaluate(checkpoint_folder, data_folder, artifacts_folder):
    found = torch.load(checkpoint_folder / "weights.pt", weights_only=True)["weight"].item()
    wanted = float((data_folder / "wanted.txt").read_text())
    (artifacts_folder / "found.json").write_text(json.dumps(found))
    Path(json.loads((checkpoint_folder / "config.json").read_text())["measured"]).touch()
    seconds = {"load": 0.5, "infer": 0.25, "score": 0.125}
    return {"score": 1 - abs(found - wanted), "samples": 1, "seconds": seconds}
"""
JUDGED_SIZE = """\
#!/bin/sh
ls "$1" > "$2/listing.txt"
echo "{\\"bytes\\": $(wc -c < "$1/weights.pt")}"
"""


def test_a_project_is_measured_while_it_trains_and_promoted_by_its_own_rule(
    embedded_home: Home, tmp_path: Path
) -> None:
    folder, measured = tmp_path / "judged", tmp_path / "measured"
    write(folder, "tracks.yaml", JUDGED, "train.py", JUDGED_TRAIN)
    write(folder, "evaluate.py", JUDGED_EVALUATE, "size.sh", JUDGED_SIZE)
    (folder / "size.sh").chmod(0o755)
    write(tmp_path / "heldout", "wanted.txt", "1.0")
    added = embedded_home.call("snapshots", "add", "heldout", str(tmp_path / "heldout"))
    assert added.returncode == 0, added.stderr

    def run(run_id: str, *settings: str) -> None:
        given = [word for each in (f"measured={measured}", *settings) for word in ("--set", each)]
        project = ("run", "--project", str(folder), "--run-id", run_id)
        assert outcome(embedded_home.start(*project, *given, "--json"))["state"] == "succeeded"

    run("good")
    state, store = embedded_home.app.tracks.run("good"), embedded_home.app.store
    done = {each.opened.eval_id: each for each in state.evals}
    assert sorted(done) == ["quality@4", "quality@8", "size@8"]
    during, (attempt,) = done["quality@4"], state.attempts
    assert attempt.ended_at is not None
    assert during.opened_at < attempt.ended_at
    for name, artifact in (("quality@8", "found.json"), ("size@8", "listing.txt")):
        ended, opened = done[name].ended, done[name].opened
        assert ended is not None
        assert (ended.reason, [each.name for each in ended.artifacts]) == ("completed", [artifact])
        assert store.get(artifact_key(result_key("good", name, opened.number), artifact))
    quality = done["quality@8"].ended
    assert quality is not None
    assert {name: quality.seconds[name] for name in ("load", "infer", "score")} == {
        "load": 0.5,
        "infer": 0.25,
        "score": 0.125,
    }
    assert set(quality.seconds) == {"fetch", "evaluate", "load", "infer", "score"}
    (promotion,) = state.promotions
    assert promotion.body.promoted
    assert promotion.body.metrics["score"] > 0.9

    run("worse", "lr=0.1")
    (refused,) = embedded_home.app.tracks.run("worse").promotions
    assert not refused.body.promoted
    assert "it is not better by 0.01 than step 8 of good, which has the alias" in refused.body.why

    bundle = tmp_path / "bundle"
    made = embedded_home.call("checkpoints", "export", "good@8", "--bundle", str(bundle))
    assert made.returncode == 0, made.stderr
    subprocess.run(["sha256sum", "--quiet", "-c", "SHA256SUMS"], cwd=bundle, check=True)
    handed = {
        each["suite"]: each["metrics"] for each in json.loads((bundle / "evals.json").read_text())
    }
    assert handed["quality"] == dict(quality.metrics)
    assert (bundle / "evals/quality/1/found.json").is_file()


CHAIN = """\
name: chain
entry: ./train.sh {steps} 0.5 0 {batch}
ranks: 2
config: {steps: 24, batch: 4, accumulation: 1}
keys: {micro_batch: batch}
checkpoint: folder
evals:
  whole: {run: "./score.sh {checkpoint}", required: true}
"""
SCORE = """\
#!/bin/sh
set -e
read -r step digest < "$1/files/rank-1.txt"
echo "{\\"step\\": $step}"
"""


def test_a_shell_script_is_preempted_killed_and_out_of_memory_and_ends_with_every_step(
    embedded_home: Home, tmp_path: Path
) -> None:
    folder = tmp_path / "chain"
    write(folder, "tracks.yaml", CHAIN, "score.sh", SCORE)
    shutil.copy(ROOT / "tests" / "training" / "command_trainer.sh", folder / "train.sh")
    for name in ("train.sh", "score.sh"):
        (folder / name).chmod(0o755)
    # The script waits for nobody: each drill has seconds until the next, and until step 22, in which
    # its memory does not suffice.
    drills = ("--drill", "preempt@3", "--drill", "sigkill@13")
    run = ("run", "--project", str(folder), "--run-id", "chain", *drills, "--json")
    found = outcome(embedded_home.start(*run))
    assert found["state"] == "succeeded"
    state, store = embedded_home.app.tracks.run("chain"), embedded_home.app.store
    first, killed, full, last = state.attempts
    assert (first.reason, full.reason, last.reason) == ("preempted", "gpu_oom", "completed")
    assert killed.reason not in (None, "completed", "preempted")
    assert (full.opened.config["batch"], last.opened.config["batch"]) == (4, 2)
    assert last.opened.config["accumulation"] == 2
    for number, checkpoint in enumerate(state.resumable):
        path = fetch_folder(store, checkpoint, tmp_path / f"{number}").path
        for rank in (0, 1):  # whole, and as if nothing had happened
            text = f"{checkpoint.step} {digest(checkpoint.step, rank)}\nmore\n"
            assert (path / f"rank-{rank}.txt").read_text() == text
    assert found["final"]["step"] == 24
    (whole,) = state.evals
    assert whole.ended is not None
    assert whole.ended.metrics == {"step": 24.0}
    bundle = tmp_path / "bundle"
    made = embedded_home.call("checkpoints", "export", "chain@24", "--bundle", str(bundle))
    assert made.returncode == 0, made.stderr
    assert (bundle / "files" / "rank-1.txt").read_text().startswith("24 ")


def write(folder: Path, *names_and_texts: str) -> None:
    """Write files, given as name and text in turn."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in zip(names_and_texts[::2], names_and_texts[1::2], strict=True):
        (folder / name).write_text(text)

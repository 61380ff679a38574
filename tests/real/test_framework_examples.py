"""The examples that train with a framework, by `tracks run`: cut short, they end as if undisturbed.

In `--full` only, which installs the frameworks: importing one of them takes seconds.
"""

from __future__ import annotations

import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.examples import EXAMPLES
from tests.real.played import call, curves, explained, play, play_at
from tracks_dagster.track.states.run_state import RunState
from tracks_dagster.wiring import App

FRAMEWORKS = EXAMPLES / "frameworks"
STEPS = range(1, 17)
MODULES = {
    "huggingface": "transformers",
    "lightning": "lightning",
    "accelerate": "accelerate",
    "distributed-checkpoint": "torch",
}
# What an out-of-memory halves and doubles, by the script's own names.
SIZES = {
    "huggingface": {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2},
    "lightning": {"batch_size": 2, "accumulate_grad_batches": 2},
    "accelerate": {"batch_size": 2, "accumulation": 2},
    "distributed-checkpoint": {"batch_size": 2, "accumulation": 2},
}
RATES = {"huggingface": "learning_rate", "lightning": "lr", "accelerate": "lr"}
# The collators of the examples, and others that make samples by chance.
BY_CHANCE = {
    "huggingface": (
        "{name: torch.stack([row[name] for row in rows]) for name in rows[0]}",
        "{name: torch.stack([row[name].masked_fill(torch.rand(CONTEXT) < 0.2, 0) for row in rows])"
        " for name in rows[0]}",
    ),
    "lightning": (
        "shuffle=True)",
        "shuffle=True, collate_fn=lambda rows: [torch.stack([row[0] + torch.rand(2) for row in rows]),"
        " torch.stack([row[1] for row in rows])])",
    ),
    "accelerate": (
        "shuffle=True)",
        "shuffle=True, collate_fn=lambda rows: [torch.stack([row[0] + torch.rand(4) for row in rows]),"
        " torch.stack([row[1] for row in rows])])",
    ),
}
pytestmark = [pytest.mark.full, pytest.mark.timeout(1800)]


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> App:
    """The application on a home of its own."""
    return play_at(tmp_path / "home", monkeypatch)


def of_frameworks(*names: str) -> pytest.MarkDecorator:
    """Run the test for each; one that is not installed is skipped."""
    return pytest.mark.parametrize(
        "name",
        [
            pytest.param(
                name,
                marks=pytest.mark.skipif(
                    find_spec(MODULES[name]) is None,
                    reason=f"{MODULES[name]} is not installed; `./run test --full` installs it",
                ),
            )
            for name in names
        ],
    )


def train(app: App, folder: Path, run_id: str, *options: str) -> RunState:
    """Declare a run of the project, and play it to its end."""
    call("run", "--project", str(folder), "--run-id", run_id, *options)
    return play(app, run_id)


def reasons(state: RunState) -> list[str | None]:
    return [attempt.reason for attempt in state.attempts]


def losses(app: App, state: RunState) -> list[dict[int, float]]:
    return [{step: line.loss for step, line in each.items()} for each in curves(app, state)]


@of_frameworks(*MODULES)
def test_three_cuts_change_no_loss(app: App, name: str) -> None:
    folder, sizes = FRAMEWORKS / name, SIZES[name]
    calm = train(app, folder, "calm")
    drills = ("preempt@7", "sigkill@12", "gpu_oom@14")
    cut = train(app, folder, "cut", *(f"--drill={drill}" for drill in drills))
    ends = ["preempted", "unknown", "gpu_oom", "completed"]
    assert (reasons(calm), reasons(cut)) == (["completed"], ends)
    (undisturbed,) = losses(app, calm)
    assert list(undisturbed) == list(STEPS)
    for line in (each for attempt in curves(app, cut) for each in attempt.values()):
        assert 0.0 < (line.own_s or 0.0) < line.step_s  # by the hooks that `follow` placed
    *before, last = losses(app, cut)
    for attempt in before:
        assert attempt == {step: undisturbed[step] for step in attempt}
    # The preempted one trained a step past its checkpoint; the one after it died two past its own.
    for attempt_id, resumed_step, compared in ((2, 7, 1), (3, 10, 2)):
        resumed = explained(f"cut/a{attempt_id:02}")["resumed"]
        assert (resumed["resumed_from_step"], resumed["inexact"] != []) == (resumed_step, True)
        continuity = resumed["continuity"]
        assert (continuity["agree"], continuity["steps_compared"]) == (True, compared)
    tried = explained("cut/a04")["tried"]
    assert {each["key"]: each["after"] for each in tried["changes"]} == sizes
    assert sizes.items() <= tried["config"].items()
    # The same samples of each step, in halves: by GPT-2's dropout alone they differ.
    allowed = 0.05 if name == "huggingface" else 1e-5
    assert last == pytest.approx({step: undisturbed[step] for step in last}, abs=allowed)


@of_frameworks(*RATES)
def test_another_learning_rate_reaches_what_the_folder_brings_back(app: App, name: str) -> None:
    folder = FRAMEWORKS / name
    (calm,) = losses(app, train(app, folder, "calm"))
    still = ("--from", "calm@10", "--set", f"{RATES[name]}=1e-12")
    (branch,) = losses(app, train(app, folder, "still", *still))
    assert branch[11] == calm[11]  # of the same weights, which then stay as they are
    assert branch[12] != calm[12]


@of_frameworks(*BY_CHANCE)
def test_samples_made_by_chance_are_reported_and_judged(
    app: App, tmp_path: Path, name: str
) -> None:
    folder = shutil.copytree(FRAMEWORKS / name, tmp_path / name)
    script = folder / "train.py"
    before, after = BY_CHANCE[name]
    text = script.read_text()
    assert before in text
    script.write_text(text.replace(before, after))
    state = train(app, folder, "chance", "--drill=sigkill@12")
    assert reasons(state) == ["unknown", "completed"]
    resumed = explained("chance/a02")["resumed"]
    assert any("random numbers" in line for line in resumed["inexact"])
    continuity = resumed["continuity"]
    if name == "lightning":  # its random numbers are restored before its first fetch
        assert continuity["agree"]
    else:
        assert (continuity["agree"], continuity["first_difference"]) == (False, 11)
        assert "step 11 is the first with another loss" in call("explain", "chance/a02", "--full")


@of_frameworks(*MODULES)
def test_two_ranks_resume_to_the_bit(app: App, name: str) -> None:
    # Of accelerate's loop an epoch has half the steps on two ranks.
    more = ("--set=epochs=4",) if name == "accelerate" else ()
    state = train(app, FRAMEWORKS / name, "two", "--drill=preempt@7", "--ranks=2", *more)
    assert reasons(state) == ["preempted", "completed"]
    continuity = explained("two/a02")["resumed"]["continuity"]
    assert (continuity["agree"], continuity["steps_compared"]) == (True, 1)

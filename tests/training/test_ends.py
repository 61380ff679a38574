"""How an attempt ends in a real process: exit code, last word, traceback."""

from __future__ import annotations

import textwrap
from dataclasses import replace
from pathlib import Path

import pytest

from tests.training.gangs import TrainingRun
from tracks_dagster.reasons.evidence import LastWord
from tracks_dagster.track.bodies import Drill

SCRIPT = """
    import torch
    from torch.utils.data import DataLoader, TensorDataset
    from tracks_dagster.training import attempt

    with attempt.join() as a:
        model = torch.nn.Linear(1, 1)
        a.register(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
        sampler = a.sampler(100, seed=1)
        loader = DataLoader(TensorDataset(torch.ones(100, 1)), batch_sampler=sampler)
        for step, batch in a.steps(loader, until=6):
            {body}
            a.report(step, loss=1.0)
"""


def script(folder: Path, body: str) -> Path:
    """A trainer of one's own that does `body` in every step."""
    path = folder / "trainer.py"
    path.write_text(textwrap.dedent(SCRIPT).replace("{body}", body))
    return path


def only_word(run: TrainingRun) -> LastWord:
    (word,) = run.last_words(1)
    return word


@pytest.mark.parametrize(
    ("body", "reason", "exception"),
    [
        ("if step == 3: raise ValueError('as meant')", "code_error", "builtins.ValueError"),
        ("if step == 3: raise MemoryError", "host_oom", "builtins.MemoryError"),
        (
            "if step == 3: torch.empty(2**60, dtype=torch.uint8)",
            "host_oom",
            "builtins.RuntimeError",
        ),
        (
            "if step == 3: raise torch.OutOfMemoryError('CUDA out of memory')",
            "gpu_oom",
            "torch.OutOfMemoryError",
        ),
        ("if step == 3: import no_such_module", "dependency_mismatch", "ModuleNotFoundError"),
        (
            "if step == 3: a.report(step, loss=float('nan'))",
            "nan_loss",
            "tracks_dagster.track.errors.NonFinite",
        ),
    ],
)
def test_an_exception_leaves_its_reason_and_its_traceback(
    tmp_path: Path, body: str, reason: str, exception: str
) -> None:
    run = TrainingRun(tmp_path, script=script(tmp_path, body))
    gang = run.train()
    assert gang.exit_codes == [1]
    word = only_word(run)
    assert (word.reason, word.step) == (reason, 2)
    assert exception in (word.exception or "")
    assert "trainer.py" in word.traceback_tail
    assert "Traceback" in gang.log()
    assert run.state.checkpoints == ()


def test_a_script_that_leaves_its_loop_early_is_saved_and_says_so(tmp_path: Path) -> None:
    run = TrainingRun(tmp_path, script=script(tmp_path, "if step == 4: break"))
    assert run.train().exit_codes == [0]
    assert only_word(run).reason == "early_stopped"
    assert [(c.ref.step, c.body.trigger) for c in run.state.checkpoints] == [(3, "final")]


def test_a_script_that_never_asks_for_a_step_has_not_completed(tmp_path: Path) -> None:
    path = tmp_path / "trainer.py"
    path.write_text(
        "from tracks_dagster.training import attempt\nwith attempt.join() as a:\n    pass\n"
    )
    run = TrainingRun(tmp_path, script=path)
    assert run.train().exit_codes == [1]
    assert only_word(run).reason == "code_error"
    assert "a.steps" in only_word(run).message


def test_a_script_of_ones_own_trains_and_completes(tmp_path: Path) -> None:
    run = TrainingRun(tmp_path, script=script(tmp_path, "pass"))
    assert run.train().exit_codes == [0]
    assert (only_word(run).reason, only_word(run).step) == ("completed", 6)


def test_an_attempt_that_cannot_begin_leaves_an_early_word(tmp_path: Path) -> None:
    run = TrainingRun(tmp_path, ranks=2)
    attempt_id = run.open()
    run.ranks = 1
    gang = run.train(attempt_id)
    assert gang.exit_codes == [1]
    word = only_word(run)
    assert word.reason == "config_error"
    assert "opened for 2 ranks and 1 were started" in word.message
    assert run.state.attempts[0].placed is None


def test_the_oom_drill_fires_until_the_micro_batch_is_smaller(tmp_path: Path) -> None:
    drill = Drill(kind="gpu_oom", step=8, micro_batch_max=1)
    run = TrainingRun(tmp_path / "drilled", ranks=2, drills=(drill,))
    for _ in range(2):  # the same config fails again
        gang = run.train()
        assert 1 in gang.exit_codes
    words = run.last_words(1)
    assert "gpu_oom" in {word.reason for word in words}
    assert {word.step for word in words} == {7}
    assert run.train(run.open(micro_batch=1)).exit_codes == [0, 0]
    calm = TrainingRun(tmp_path / "calm", ranks=2)
    calm.train_to_the_end()
    order = {step: line["indices_sha256"] for step, line in calm.steps(1).items()}
    again = {step: line["indices_sha256"] for step, line in run.steps(3).items()}
    assert again == {step: order[step] for step in range(6, 13)}


def test_the_code_error_drill_fires_before_the_first_step_and_every_time(tmp_path: Path) -> None:
    run = TrainingRun(tmp_path, drills=(Drill(kind="code_error", step=0),))
    for attempt_id in (1, 2):
        assert run.train().exit_codes == [1]
        (word,) = run.last_words(attempt_id)
        assert (word.reason, word.step) == ("code_error", None)
        assert "drill code_error@0" in word.traceback_tail
        assert run.steps(attempt_id) == {}


def test_a_rank_that_another_takes_down_says_so(tmp_path: Path) -> None:
    body = "if a.rank == 1 and step == 3: raise ValueError('the root')"
    run = TrainingRun(tmp_path, ranks=2, script=script(tmp_path, body))
    assert run.train().exit_codes == [1, 1]
    assert sorted(word.reason for word in run.last_words(1)) == [
        "code_error",
        "rank_lost_secondary",
    ]


def test_the_place_names_every_rank(tmp_path: Path) -> None:
    run = TrainingRun(tmp_path, ranks=2, steps=1)
    gang = run.train()
    placed = run.state.attempts[0].placed
    assert placed is not None
    assert [place.rank for place in placed.ranks] == [0, 1]
    assert [place.pid for place in placed.ranks] == [rank.pid for rank in gang.ranks]
    assert {place.device for place in placed.ranks} == {"cpu"}
    assert {"python", "torch", "numpy", "threads"} <= set(placed.environment)
    assert replace(placed, launch_id="x").launch_id == "x"

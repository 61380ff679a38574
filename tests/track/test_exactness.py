"""What a run's track says of resumes that were not exact: in its status and with a promotion."""

from __future__ import annotations

from tests.histories import History
from tracks_dagster.evals.promotion import decide_promotion, propose
from tracks_dagster.track.states.exactness import inexact_resumes
from tracks_dagster.track.states.lifecycle import run_status

SAID = "A resume was not exact: attempt 2 differs from step 12 on (tracks explain r-1 --full)."


def run(differs_from: int | None) -> History:
    """Two attempts of which the second ran steps again; its last checkpoint is evaluated."""
    history = History("r-1").declare().open().supervise().place().restore().commit(10)
    history.end("preempted", last_step=15).open().supervise().place().restore().commit(40)
    history.end("completed", last_step=40, differs_from_step=differs_from)
    return history


def test_the_status_says_so_whatever_else_it_says() -> None:
    exact, differs = run(None), run(12)
    assert inexact_resumes(exact.state) == ""
    assert "exact" not in run_status(exact.state).why
    assert run_status(differs.state).why == f"{run_status(exact.state).why} {SAID}"
    assert run_status(differs.finish().state).why.endswith(SAID)


def test_a_promotion_says_so_of_what_its_checkpoint_rests_on() -> None:
    history = run(12)
    final = history.state.checkpoints[-1].ref
    history.open_eval(final)
    history.end_eval(history.state.evals[-1].opened)
    state, rule = history.state, history.state.declared.promotion
    assert rule is not None
    decided = decide_promotion(state, propose(state, final, rule, decided_by="ann"), why="good")
    assert decided.promoted
    assert decided.why.endswith(f". {SAID}")
    assert inexact_resumes(state, attempt_id_max=1) == ""

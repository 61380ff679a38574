"""Which evals a run owes, and when they are settled."""

from __future__ import annotations

from dataclasses import replace

from tests.bodies import HELDOUT, declared
from tests.histories import History
from tracks_dagster.evals.due import next_attempt, next_eval
from tracks_dagster.track.bodies import (
    Artifact,
    BroughtScorer,
    CodeVersion,
    EvalOpened,
    EvalRequirement,
    Program,
    ScoredEval,
)
from tracks_dagster.track.records import Kind
from tracks_dagster.track.states.evals import (
    evals_settled,
    final_checkpoint,
    scored_by,
    what_evals_wait_for,
)


def trained() -> History:
    """A run with all its steps: checkpoints of steps 20 and 40."""
    history = History().declare().open().place().restore().commit(20).commit(40)
    return history.end("completed", last_step=40)


def due(history: History) -> EvalOpened | None:
    return next_eval(history.state, decided_by="tests", attempts_max=3)


def fail(history: History) -> History:
    ref = final_checkpoint(history.state)
    assert ref is not None
    history.open_eval(ref)
    return history.end_eval(history.state.evals[-1].opened, "evaluator_error")


def test_no_eval_is_due_while_the_run_trains() -> None:
    history = History().declare().open().place().restore().commit(40)
    assert due(history) is None
    assert not evals_settled(history.state)
    assert what_evals_wait_for(history.state, attempts_max=3) == ()


def test_no_eval_is_due_after_a_failure() -> None:
    history = History().declare().open().place().restore().commit(20).end("gpu_oom", last_step=23)
    assert due(history) is None


def test_the_eval_of_the_final_checkpoint_is_due_when_all_steps_are_done() -> None:
    history = trained()
    opened = due(history)
    assert opened is not None
    assert (opened.eval_id, opened.number, opened.checkpoint.step) == ("heldout-loss@40", 1, 40)
    assert (opened.suite_version, opened.snapshot, opened.seed) == ("1", HELDOUT, 7)
    assert "requires" in opened.decision
    assert what_evals_wait_for(history.state, attempts_max=3) == (
        "heldout-loss@40: attempt 1 is due",
    )


def test_an_eval_that_is_open_is_not_opened_again() -> None:
    history = trained()
    history.open_eval(history.state.resumable[-1])
    assert due(history) is None
    assert what_evals_wait_for(history.state, attempts_max=3) == (
        "heldout-loss@40: attempt 1 is under way",
    )


def test_a_completed_eval_settles_the_run() -> None:
    history = trained()
    history.open_eval(history.state.resumable[-1])
    history.end_eval(history.state.evals[-1].opened)
    assert due(history) is None
    assert evals_settled(history.state)


def test_a_failed_eval_is_tried_again_three_times_in_all() -> None:
    history = trained()
    for number in (1, 2, 3):
        opened = due(history)
        assert opened is not None
        assert opened.number == number
        fail(history)
    assert due(history) is None
    assert not evals_settled(history.state)
    (words,) = what_evals_wait_for(history.state, attempts_max=3)
    assert "failed 3 times" in words
    assert "tracks waive r-1 heldout-loss" in words


def test_the_next_attempt_says_why_the_one_before_failed() -> None:
    history = fail(trained())
    opened = due(history)
    assert opened is not None
    ended_seq = history.state.evals[-1].ended_seq
    assert opened.decision.startswith(
        f"Attempt 2 of 3 at this eval: the one before (record {ended_seq})"
    )


def test_a_waiver_settles_what_is_exhausted_and_opens_nothing_more() -> None:
    history = fail(trained()).waive_eval()
    assert due(history) is None
    assert evals_settled(history.state)


def test_an_eval_of_another_checkpoint_snapshot_version_or_seed_does_not_count() -> None:
    history = trained()
    early, final = history.state.resumable
    history.open_eval(early)
    history.end_eval(history.state.evals[-1].opened)
    assert not evals_settled(history.state)
    history.open_eval(final)
    history.end_eval(history.state.evals[-1].opened)
    assert evals_settled(history.state)
    required = history.state.declared.evals[0]
    others = (
        replace(required, suite_version="2"),
        replace(required, seed=8),
        replace(required, snapshot=replace(HELDOUT, snapshot_id="0" * 64)),
    )
    for other in others:
        changed = replace(history.state, declared=declared(evals=(other,)))
        assert not evals_settled(changed), other


def test_a_quarantined_final_checkpoint_makes_the_one_before_due_under_a_new_number() -> None:
    history = fail(trained())
    history.decide_checkpoint(Kind.CHECKPOINT_QUARANTINED, history.state.resumable[-1])
    opened = due(history)
    assert opened is not None
    assert (opened.eval_id, opened.number) == ("heldout-loss@20", 1)


def test_two_checkpoints_of_one_step_never_share_a_number() -> None:
    history = trained()  # as when a person retried a completed run
    fail(history)
    history.open(resume=history.state.resumable[0]).place().restore().commit(40).end("completed")
    opened = due(history)
    assert opened is not None
    assert opened.checkpoint.attempt_id == 2
    assert (opened.eval_id, opened.number) == ("heldout-loss@40", 2)
    assert "requires" in opened.decision  # the budget is a checkpoint's own


def test_every_suite_is_due_by_itself() -> None:
    second = EvalRequirement(suite="other", suite_version="1", snapshot=HELDOUT, seed=0)
    history = History().declare(evals=(*declared().evals, second)).open().place().restore()
    history.commit(40).end("completed", last_step=40)
    history.open_eval(history.state.resumable[-1])
    opened = due(history)
    assert opened is not None
    assert opened.suite == "other"


def test_a_run_without_requirements_is_settled() -> None:
    assert evals_settled(History().declare(evals=()).state)


def test_no_eval_is_opened_in_a_finished_run() -> None:
    assert due(trained().finish("user")) is None


def test_a_completed_run_without_a_checkpoint_says_so() -> None:
    history = History().declare().open().place().restore().end("completed")
    assert due(history) is None
    assert what_evals_wait_for(history.state, attempts_max=3) == (
        "heldout-loss: no committed checkpoint is left to evaluate; "
        'let it go: `tracks waive r-1 heldout-loss --why "…"`',
    )


# --- evals of commits, while the run trains ---------------------------------------------------------

OFTEN = EvalRequirement(
    suite="quality", suite_version="1", snapshot=HELDOUT, seed=7, every=2, is_required=False
)


def training(*steps: int, evals: tuple[EvalRequirement, ...] = (OFTEN,)) -> History:
    history = History().declare(evals=evals, promotion=None).open().place().restore()
    for step in steps:
        history.commit(step)
    return history


def open_due(history: History) -> EvalOpened:
    opened = due(history)
    assert opened is not None
    history.add(Kind.EVAL_OPENED, opened)
    return opened


def test_every_second_commit_is_evaluated_while_the_run_trains() -> None:
    history = training(10)
    assert due(history) is None
    opened = open_due(history.commit(20))
    assert (opened.eval_id, opened.skipped) == ("quality@20", ())
    assert "one in 2 commits" in opened.decision
    assert due(history.end_eval(opened)) is None
    assert due(history.commit(30)) is None
    assert open_due(history.commit(40)).eval_id == "quality@40"


def test_one_eval_of_a_suite_is_open_at_a_time_and_a_newer_commit_supersedes_older_ones() -> None:
    history = training(10, 20)
    opened = open_due(history)
    for step in (30, 40, 50, 60, 70):
        history.commit(step)
    assert due(history) is None
    history.end_eval(opened)
    newest = open_due(history)
    assert (newest.eval_id, newest.skipped) == ("quality@60", (40,))


def test_a_failed_eval_of_a_commit_is_not_tried_again() -> None:
    history = training(10, 20)
    assert due(history.end_eval(open_due(history), "evaluator_error")) is None


def test_a_commit_that_cannot_be_read_any_more_is_skipped() -> None:
    history = training(10, 20, 30, 40)
    history.decide_checkpoint(Kind.CHECKPOINT_QUARANTINED, history.state.resumable[-1])
    opened = open_due(history)
    assert (opened.eval_id, opened.skipped) == ("quality@20", (40,))


def test_the_eval_of_the_final_checkpoint_names_the_commits_that_it_supersedes() -> None:
    history = training(10, 20, 30, 40, 50).end("completed", last_step=50)
    opened = open_due(history)
    assert (opened.eval_id, opened.skipped) == ("quality@50", (20, 40))
    assert "asks for" in opened.decision


def test_an_eval_that_is_not_required_is_tried_once_and_holds_nothing_up() -> None:
    history = training(10).end("completed", last_step=10)
    opened = open_due(history)
    assert not evals_settled(history.state)
    history.end_eval(opened, "evaluator_error")
    assert evals_settled(history.state)
    assert due(history) is None


def test_a_waived_suite_is_evaluated_at_no_commit() -> None:
    assert due(training(10, 20).waive_eval("quality")) is None


# --- scorers, which score the files that another eval left --------------------------------------------

INFER = EvalRequirement(suite="infer", suite_version="1", snapshot=HELDOUT, seed=7)
SCORE = EvalRequirement(suite="score", suite_version="1", snapshot=None, seed=7, of="infer")
CODE = CodeVersion(git_commit=None, branch=None, dirty=None, package_version="1")
ANSWERS = Artifact(name="answers.json", size_bytes=2, sha256="a" * 64)


def inferred(*evals: EvalRequirement, reason: str = "completed") -> History:
    """A run with all its steps, whose inference on the final checkpoint has ended."""
    history = training(10, evals=evals or (SCORE, INFER)).end("completed", last_step=10)
    return history.end_eval(open_due(history), reason, artifacts=(ANSWERS,))


def test_a_scorer_is_due_when_the_eval_that_it_is_of_has_completed_and_names_what_it_scores() -> (
    None
):
    history = training(10, evals=(SCORE, INFER)).end("completed", last_step=10)
    opened = open_due(history)
    assert (opened.suite, opened.scored) == ("infer", None)
    assert due(history) is None
    assert what_evals_wait_for(history.state, attempts_max=3)[0] == (
        "score@10: waits for infer@10 with seed 7, whose files it scores"
    )
    opened = open_due(history.end_eval(opened, artifacts=(ANSWERS,)))
    assert (opened.eval_id, opened.scored) == (
        "score@10",
        ScoredEval(
            eval_id="infer@10", number=1, suite_version="1", snapshot=HELDOUT, artifacts=(ANSWERS,)
        ),
    )
    assert due(history.end_eval(opened)) is None
    assert evals_settled(history.state)


def test_a_scorer_scores_the_newest_of_the_attempts_that_completed_with_its_seed() -> None:
    history = inferred()
    [first] = [each.opened for each in history.state.evals]
    for number, seed, reason in (
        (2, 7, "completed"),
        (3, 8, "completed"),
        (4, 7, "evaluator_error"),
    ):
        again = replace(first, number=number, seed=seed)
        history.add(Kind.EVAL_OPENED, again).end_eval(again, reason)
    scored = open_due(history).scored
    assert scored is not None
    assert scored.number == 2


def test_a_scorer_of_an_eval_that_was_let_go_waits_for_a_person_where_it_is_required() -> None:
    history = training(10, evals=(SCORE, INFER)).end("completed", last_step=10).waive_eval("infer")
    assert due(history) is None
    [words] = what_evals_wait_for(history.state, attempts_max=3)
    assert words.startswith("score@10: has nothing to score: infer@10 with seed 7 did not complete")
    assert evals_settled(history.waive_eval("score").state)


def test_a_scorer_that_is_not_required_holds_nothing_up_when_what_it_scores_failed() -> None:
    evals = (replace(INFER, is_required=False), replace(SCORE, is_required=False))
    history = inferred(*evals, reason="evaluator_error")
    assert due(history) is None
    assert evals_settled(history.state)


def test_while_the_run_trains_a_scorer_follows_the_commits_that_were_measured() -> None:
    evals = tuple(replace(each, every=1, is_required=False) for each in (SCORE, INFER))
    history = training(10, evals=evals)
    first = open_due(history)
    history.commit(20)
    assert due(history) is None  # neither a second inference, nor a score of what is not there
    opened = open_due(history.end_eval(first, artifacts=(ANSWERS,)))
    assert (opened.eval_id, opened.skipped) == ("score@10", ())
    assert open_due(history).eval_id == "infer@20"
    assert due(history.end_eval(opened)) is None


def test_a_scorer_that_a_person_brought_takes_no_turn_of_the_declared_one() -> None:
    history = training(10, evals=(INFER, replace(SCORE, every=1, is_required=False)))
    ref = history.state.resumable[-1]
    history.open_eval(ref, suite="infer").end_eval(history.state.evals[-1].opened)
    program = Program(entry=("late.py",))
    brought = BroughtScorer(program=program, code_key="runs/r-1/trainer/a.tar", code=CODE)
    scored = scored_by(history.state, SCORE, ref)
    late = next_attempt(history.state, SCORE, ref, decision="", decided_by="ann")
    late = replace(late, suite_version="2", scored=scored, brought=brought)
    history.add(Kind.EVAL_OPENED, late).end_eval(late)
    assert open_due(history).eval_id == "score@10"


def test_a_scorer_of_a_suite_that_no_run_declares_is_never_due() -> None:
    history = training(10, evals=(SCORE,)).end("completed", last_step=10)
    assert due(history) is None

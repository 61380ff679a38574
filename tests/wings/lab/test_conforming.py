"""Which trials `tracks conform` runs, and what it says of those that it did not: with stand-ins."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from tests.examples import example
from tracks_dagster.attempts.ports import FoundCode
from tracks_dagster.track.bodies import CodeVersion
from tracks_dagster.wings.lab.conformance.effects.conforming import (
    HANG_S_MIN,
    Boxes,
    Plan,
    conform,
    prepared_of,
)
from tracks_dagster.wings.lab.conformance.report import Conformance
from tracks_dagster.wings.lab.conformance.seen import (
    INTERRUPTS,
    AttemptSeen,
    Kind,
    Loader,
    RankSeen,
    Trial,
    TrialSeen,
)

STEPS = 12
RUN_S = 3.0


@dataclass
class Trials:
    """Stands in for real gangs of an exact trainer. missed: kinds that come after the run's end;
    reported: the steps that it reports; None: all. took_s: of the first runs; then RUN_S."""

    missed: tuple[Kind, ...] = ()
    reported: tuple[int, ...] | None = None
    now_s: float = 0.0
    took_s: list[float] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    limits_s: list[float] = field(default_factory=list)

    def monotonic(self) -> float:
        return self.now_s

    def run(
        self, trial: Trial, number: int, *, give_up_at: float, attempt_s_max: float
    ) -> TrialSeen:
        self.numbers.append(number)
        self.limits_s.append(attempt_s_max)
        seconds = self.took_s.pop(0) if self.took_s else RUN_S
        self.now_s += seconds
        if trial.kind in INTERRUPTS and trial.kind not in self.missed:
            cut = a_run(last=trial.step, reason="preempted", commits=(4, trial.step))
            attempts = (cut, a_run(after=trial.step))
        elif trial.kind in (Kind.ERROR, Kind.NAN):
            attempts = (a_run(last=1, reason="code_error", commits=()),)
        else:
            attempts = (a_run(),)
        if self.reported is not None:
            losses = dict.fromkeys(self.reported, 1.0)
            attempts = tuple(replace(each, losses=losses, commits=()) for each in attempts)
        return TrialSeen(trial=trial, attempts=attempts, seconds=seconds)


def a_run(
    *, after: int = 0, last: int = STEPS, reason: str = "completed", commits: tuple[int, ...] = (4,)
) -> AttemptSeen:
    return AttemptSeen(
        resumed=after,
        losses={step: 1.0 / step for step in range(after + 1, last + 1)},
        ranks=(RankSeen(loaders=(Loader(made=1, given=last - after, length=100),)),),
        commits=commits,
        reason=reason,
    )


def certify(trials: Trials, **plan: Any) -> Conformance:
    given = {
        "ranks": (1,),
        "workers": (0,),
        "has_faults": True,
        "tolerance": 0.0,
        "time_limit_s": math.inf,
        **plan,
    }
    return conform(
        trials,  # type: ignore[arg-type]  # all that it is asked for
        Plan(**given),
        project="mine",
        code_sha256="ab" * 32,
        progress=lambda *_: None,
    )


def test_a_trial_has_no_eval_and_ends_on_sigterm_without_a_step_more() -> None:
    project = replace(example("gpt"), replay_steps=1)
    assert project.evals
    found = FoundCode(
        project=project,
        archive=b"a tar",
        folder="/examples/gpt",
        code=CodeVersion(git_commit=None, branch=None, dirty=None, package_version="0"),
        code_diff=None,
    )
    prepared = prepared_of(found, {}, steps=STEPS, owner="tests")
    assert prepared.project.evals == ()
    assert prepared.project.replay_steps == 0
    assert prepared.body.config["steps"] == STEPS


def test_an_attempt_that_takes_far_longer_than_an_undisturbed_one_is_bounded() -> None:
    trials = Trials()
    assert certify(trials).is_green
    assert trials.limits_s == [math.inf, *[HANG_S_MIN] * (len(trials.limits_s) - 1)]
    slow = Trials(took_s=[40.0, 20.0])  # the first one loads torch, too
    certify(slow)
    assert slow.limits_s[:3] == [math.inf, 400.0, 200.0]


def test_a_kill_that_came_too_late_is_left_out_and_said() -> None:
    trials = Trials(missed=(Kind.SAVE,))
    done = certify(trials)
    assert [each.kind for each in done.left_out] == [Kind.SAVE]
    assert not done.is_green
    assert any("was over before it was killed" in note for note in done.notes)
    assert len(set(trials.numbers)) == len(trials.numbers)  # each is a run of its own


def test_a_trainer_that_tells_of_no_step_but_its_last_is_not_certified() -> None:
    done = certify(Trials(reported=(STEPS,)))
    assert [str(each) for each in done.left_out] == [
        "SIGKILL after step 1 (1 rank, 0 loader workers)"
    ]
    assert any("reported no step before its last" in note for note in done.notes)
    assert not done.is_green


def test_a_script_that_trains_more_steps_than_its_config_says_is_interrupted_within_these() -> None:
    done = certify(Trials(), steps=8)
    assert max(each.seen.trial.step or 0 for each in done.trials) <= 8
    assert {each.step for each in done.left_out} == {STEPS - 1}
    assert any(f"trained {STEPS} steps where its config says 8" in note for note in done.notes)
    assert not done.is_green


def test_one_kill_comes_before_the_other_shapes_and_is_not_repeated() -> None:
    short = certify(Trials(), workers=(0, 2), time_limit_s=2.5 * RUN_S)
    kinds = [each.seen.trial.kind for each in short.trials]
    assert kinds == [Kind.CALM, Kind.AGAIN, Kind.SIGKILL]
    whole = [each.seen.trial for each in certify(Trials(), workers=(0, 2)).trials]
    assert len(whole) == len(set(whole))
    assert [each.kind for each in whole[:4]] == [*kinds, Kind.CALM]


def test_what_there_is_no_time_for_is_left_out_and_said() -> None:
    done = certify(Trials(), time_limit_s=4.5 * RUN_S)
    assert len(done.trials) == 5
    assert done.left_out
    assert not done.is_green
    assert any("--time-limit is" in note for note in done.notes)


def test_a_run_without_a_checkpoint_before_its_end_is_said_to_resume_from_none() -> None:
    def notes(done: Conformance) -> bool:
        return any("No checkpoint was written before the last step" in note for note in done.notes)

    assert not notes(certify(Trials()))
    assert notes(certify(Trials(reported=(3, STEPS))))


def test_workers_that_no_key_says_are_said_not_to_be_tried() -> None:
    assert not any("workers" in note for note in certify(Trials()).notes)
    assert any("workers" in note for note in certify(Trials(), workers=(None,)).notes)


@pytest.mark.parametrize(
    ("late", "has_changed"),
    [
        pytest.param(lambda folder: (folder / "more.txt").unlink(), False, id="removed"),
        pytest.param(lambda folder: (folder / "more.txt").write_text("ab"), True, id="longer"),
        pytest.param(lambda folder: (folder / "last.txt").write_text("a"), True, id="added"),
    ],
)
def test_a_folder_has_changed_by_what_it_gets_not_by_its_removal_file_by_file(
    tmp_path: Path, late: Callable[[Path], object], has_changed: bool
) -> None:
    folder = tmp_path / "command" / "rank-0" / "checkpoints" / "step-4"
    half = folder.with_name(".half")
    half.mkdir(parents=True)
    for name in ("state.txt", "more.txt"):
        (half / name).write_text("a")
    half.rename(folder)
    boxes = Boxes(tmp_path)
    boxes.look()
    late(folder)
    boxes.look()
    assert bool(boxes.half_written) is has_changed

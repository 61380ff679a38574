"""What a trial shows is named by what was seen: a table with a row for each finding."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest

from tests.reference import DEFECTS_PAGE, with_defects
from tracks_dagster.wings.lab.conformance.defects import DEFECTS, Finding, merge
from tracks_dagster.wings.lab.conformance.judge import judge, unstable_contents
from tracks_dagster.wings.lab.conformance.report import Conformance, Judged
from tracks_dagster.wings.lab.conformance.seen import (
    HANG,
    PLANTED,
    AttemptSeen,
    Kind,
    Loader,
    RankSeen,
    StepSeen,
    Trial,
    TrialSeen,
    read_rank,
)
from tracks_dagster.wings.lab.conformance.trials import hangs, interruptions, trials_of

STEPS = range(1, 13)
RESUMED = 4
KILLED = Trial(kind=Kind.SIGKILL, step=5)
CONTENTS = {"model/w": "12", "optimizer/w": "12", "progress": "t1"}


def a_step(number: int, **changes: object) -> StepSeen:
    """Return what an exact trainer shows of a step; one sample a batch."""
    seen = StepSeen(
        inputs=(f"batch {number}",),
        rows=frozenset({f"row {number}"}),
        random={"torch": (f"torch {number}", 0.0), "numpy": ("numpy", 0.0)},
        state={
            "weights": (f"w{number}", 1.0),
            "buffers": (f"b{number}", 1.0),
            "optimizer": (f"o{number}", 1.0),
            "scaler": (f"s{number}", 0.0),
            "trained": (f"w{number + 1}", 1.0),
            "averaged": (f"a{number + 1}", 1.0),
            "unsaved": ("u", 1.0),
        },
        lr=(1.0 / number,),
        attributes={"0.is_set": "True", "0.weight.requires_grad": "True"},
    )
    return replace(seen, **changes)


def attempt(after: int = 0, **changes: object) -> AttemptSeen:
    """Return an exact attempt that resumed there and trained to the end."""
    steps = {number: a_step(number) for number in STEPS if number > after}
    seen = AttemptSeen(
        resumed=after,
        losses={number: 100.0 / number for number in steps},
        ranks=(RankSeen(steps=steps, loaders=(Loader(made=1, given=len(steps), length=7),)),),
        commits=tuple(step for step in (4, 8, 12) if step > after),
    )
    return replace(seen, **changes)


def trial(*attempts: AttemptSeen, of: Trial = KILLED, **contents: str) -> TrialSeen:
    return TrialSeen(trial=of, attempts=attempts, contents={**CONTENTS, **contents})


CUT = attempt(losses={n: 100.0 / n for n in range(1, 6)}, commits=(4,), reason="unknown")
CALM = trial(attempt(), of=Trial(kind=Kind.CALM))


def changed(change: Callable[[int, StepSeen], StepSeen], **more: object) -> AttemptSeen:
    """Return the attempt that resumes, each of its steps changed; its losses differ, too."""
    exact = attempt(RESUMED)
    steps = {number: change(number, seen) for number, seen in exact.ranks[0].steps.items()}
    losses = {number: loss + 0.5 for number, loss in exact.losses.items()}
    return replace(exact, ranks=(replace(exact.ranks[0], steps=steps),), losses=losses, **more)


def other(name: str) -> Callable[[int, StepSeen], StepSeen]:
    """Change a state from the resume on, and the weights that follow from it."""

    def change(number: int, seen: StepSeen) -> StepSeen:
        state = {**seen.state, name: ("other", 2.0), "trained": ("other", 2.0)}
        if number > RESUMED + 1:  # one step later everything differs
            state = dict.fromkeys(state, ("other", 2.0))
        return replace(seen, state=state)

    return change


def shifted(by: int) -> AttemptSeen:
    """Train on the samples of other steps."""
    return changed(lambda n, seen: replace(seen, inputs=(f"batch {n + by}",), rows=frozenset()))


def rates(wrong: Callable[[int], bool]) -> Callable[[int, StepSeen], StepSeen]:
    return lambda n, seen: replace(seen, lr=(9.0,)) if wrong(n) else seen


def without_optimizer(number: int, seen: StepSeen) -> StepSeen:
    """A new optimizer begins with the first rate, which the schedule then sets right."""
    return rates(lambda n: n == RESUMED + 1)(number, other("optimizer")(number, seen))


def other_random(number: int, seen: StepSeen) -> StepSeen:
    return replace(seen, random={**seen.random, "torch": (f"other {number}", 0.0)})


BEHIND = "TrainingError: Step 4 ended in an attempt that resumed from step 4: load the folder"
AGAIN = "TrainingError: Step 1 ended in an attempt that resumed from step 4: load the folder"
PUBLISHED = "The command published step 4 and step 4 is committed: publish steps in order."
RESUMES: Mapping[str, tuple[AttemptSeen, set[str]]] = {
    "exact": (attempt(RESUMED), set()),
    "says that it is behind": (
        attempt(RESUMED, reason="code_error", words=BEHIND),
        {"retrains_last_step"},
    ),
    "publishes again": (
        attempt(RESUMED, reason="code_error", words=PUBLISHED),
        {"retrains_last_step"},
    ),
    "the last samples again": (shifted(-1), {"retrains_last_step"}),
    "starts at step 1": (attempt(RESUMED, reason="code_error", words=AGAIN), {"not_resumed"}),
    "cannot read": (
        attempt(RESUMED, reason="code_error", words="EOFError: Ran out of input"),
        {"resume_fails"},
    ),
    "the first samples": (shifted(-RESUMED), {"data_reset"}),
    "two steps on": (shifted(2), {"data_skipped"}),
    "samples of other steps": (
        changed(lambda n, seen: replace(seen, inputs=("mixed",), rows=frozenset({"row 1"}))),
        {"data_changed"},
    ),
    "samples never seen": (
        changed(lambda n, seen: replace(seen, inputs=("new",), rows=frozenset({"new"}))),
        {"data_changed"},
    ),
    "weights": (changed(other("weights")), {"weights_not_restored"}),
    "buffers": (changed(other("buffers")), {"weights_not_restored"}),
    "optimizer": (changed(without_optimizer), {"optimizer_not_restored"}),
    "scaler": (changed(other("scaler")), {"scaler_not_restored"}),
    "schedule": (changed(rates(lambda n: n > RESUMED + 1)), {"scheduler_not_restored"}),
    "optimizer and schedule": (
        changed(lambda n, seen: rates(lambda n: True)(n, other("optimizer")(n, seen))),
        {"optimizer_not_restored", "scheduler_not_restored"},
    ),
    "random numbers": (changed(other_random), {"draws_after_report"}),
    "random numbers of which augmented samples are made": (
        changed(lambda n, seen: replace(other_random(n, seen), inputs=("new",), rows=frozenset())),
        {"draws_after_report"},
    ),
    # numpy's generator never moves, so that its state does not matter.
    "numbers that nobody draws": (
        replace(
            attempt(RESUMED),
            ranks=(
                RankSeen(
                    steps={n: a_step(n, random={"numpy": ("other", 0.0)}) for n in range(5, 13)}
                ),
            ),
        ),
        set(),
    ),
    "a flag, and the weights that it overwrites": (
        changed(
            lambda n, seen: replace(other("weights")(n, seen), attributes={"0.is_set": "False"})
        ),
        {"attribute_not_restored"},
    ),
    "what is frozen": (
        changed(lambda n, seen: replace(seen, attributes={"0.weight.requires_grad": "False"})),
        {"requires_grad_not_restored"},
    ),
    "a buffer that is not persistent": (
        changed(lambda n, seen: replace(seen, state={**seen.state, "unsaved": ("other", 2.0)})),
        {"buffer_not_persistent"},
    ),
    # As of a cache that the first forward pass makes: nothing differs for it.
    "a flag without effect": (
        replace(
            attempt(RESUMED),
            ranks=(
                RankSeen(
                    steps={n: a_step(n, attributes={"0.is_set": "False"}) for n in range(5, 13)}
                ),
            ),
        ),
        set(),
    ),
    "a group": (
        changed(lambda n, seen: replace(seen, lr=(*seen.lr, 0.1))),
        {"group_not_restored"},
    ),
    "an average": (
        changed(lambda n, seen: replace(seen, state={**seen.state, "averaged": ("other", 2.0)})),
        {"ema_not_restored"},
    ),
    "a loss, and nothing says why": (changed(lambda n, seen: seen), {"inexact"}),
    # As of a rank that is not the first: DDP gives it the first one's before each forward pass.
    "buffers that are not used": (
        replace(
            attempt(RESUMED),
            ranks=(
                RankSeen(
                    steps={
                        n: replace(seen, state={**seen.state, "buffers": ("other", 2.0)})
                        if n == RESUMED + 1
                        else seen
                        for n, seen in attempt(RESUMED).ranks[0].steps.items()
                    }
                ),
            ),
        ),
        set(),
    ),
    "hangs": (
        attempt(RESUMED, reason=HANG, words="it did not end within 120 s and was killed"),
        {"resume_fails"},
    ),
}


@pytest.mark.parametrize("name", RESUMES)
def test_what_a_resume_lost_is_named_and_nothing_else(name: str) -> None:
    resumed, expected = RESUMES[name]
    assert names(judge(CALM, trial(CUT, resumed))) == expected


def test_random_numbers_of_a_script_that_writes_folders_are_its_own_to_restore() -> None:
    """Of one that registers its states we restore them: it drew behind a save."""
    calm = replace(CALM, contents={"folder/w.pt": "12"})
    cut = replace(trial(CUT, changed(other_random)), contents={"folder/w.pt": "12"})
    assert names(judge(calm, cut)) == {"rng_not_restored"}


def test_samples_that_differ_later_are_named_by_the_step_from_which_they_do() -> None:
    def from_the_next_epoch(number: int, seen: StepSeen) -> StepSeen:
        return replace(seen, inputs=(f"mixed {number}",)) if number > 7 else seen

    (found,) = judge(CALM, trial(CUT, changed(from_the_next_epoch)))
    assert (found.name, found.detail) == (
        "data_changed",
        "step 8 had samples that belong to other steps",
    )


def test_the_rate_of_a_second_optimizer_counts() -> None:
    calm = changed(lambda n, seen: replace(seen, lr=(0.1, 1.0 / n)))
    lost = changed(lambda n, seen: replace(seen, lr=(0.1, 1.0)))
    (found,) = judge(trial(calm), trial(CUT, lost))
    assert (found.name, found.detail) == (
        "scheduler_not_restored",
        "in step 5 the learning rate is 1 instead of 0.2",
    )


def names(found: list[Finding]) -> set[str]:
    return {each.name for each in found}


STOPPED = Trial(kind=Kind.SIGTERM, step=5)
UNHEARD = "TrainingError: The drill preempt@5 asked for a signal and none came within 60 s"
SAVED = replace(CUT, commits=(4, 5), reason="preempted")


@pytest.mark.parametrize(
    ("first", "expected"),
    [
        (SAVED, set()),
        (replace(SAVED, was_killed=True), {"sigterm_swallowed"}),
        (replace(SAVED, words=UNHEARD), {"sigterm_swallowed"}),
        (attempt(), {"sigterm_swallowed"}),  # trained to its end
        (replace(SAVED, commits=(4,)), {"sigterm_unsaved"}),
    ],
)
def test_sigterm_is_obeyed_with_a_checkpoint_of_the_last_step(
    first: AttemptSeen, expected: set[str]
) -> None:
    attempts = [first] if first.is_complete else [first, attempt(5)]
    assert names(judge(CALM, trial(*attempts, of=STOPPED))) == expected


def played(**how: object) -> AttemptSeen:
    return attempt(ranks=(RankSeen(is_played=True),), **how)


@pytest.mark.parametrize(
    ("kind", "seen", "expected"),
    [
        (Kind.ERROR, played(reason="code_error", words=f"RuntimeError: {PLANTED}"), set()),
        (Kind.ERROR, played(reason="code_error", words="training failed"), {"error_hidden"}),
        (Kind.ERROR, played(), {"error_hidden"}),  # and trains on
        (Kind.ERROR, played(reason=HANG, words=PLANTED), {"error_hidden"}),  # tries for ever
        (Kind.ERROR, attempt(), set()),  # no module of torch's was called: nothing was played
        (Kind.NAN, played(losses={1: 2.0}, reason="nan_loss"), set()),
        (Kind.NAN, played(reason="nan_loss", words="The loss of step 3 is nan;"), set()),  # late
        (Kind.NAN, played(), {"nan_hidden"}),
        (Kind.NAN, played(reason="nan_loss"), {"nan_hidden"}),  # a save found it, the loss did not
        (
            Kind.NAN,
            played(losses={1: 2.0}, reason="code_error", words="ValueError"),
            {"nan_hidden"},
        ),
    ],
)
def test_a_fault_that_is_played_is_reported(
    kind: Kind, seen: AttemptSeen, expected: set[str]
) -> None:
    assert names(judge(CALM, trial(seen, of=Trial(kind=kind, step=2)))) == expected


MADE_AGAIN = Loader(made=12, given=12, length=7)


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        (attempt(ranks=(RankSeen(loaders=(MADE_AGAIN,)),)), {"loader_made_anew"}),
        (
            attempt(ranks=(RankSeen(loaders=(replace(MADE_AGAIN, length=1),)),)),
            set(),
        ),  # its whole epoch
        (attempt(ranks=(RankSeen(loaders=(replace(MADE_AGAIN, made=2),)),)), set()),
        # Beside the loader that it trains on: a look at the validation data after each step.
        (attempt(ranks=(RankSeen(loaders=(replace(MADE_AGAIN, made=2), MADE_AGAIN)),)), set()),
        # Beside it, but trained on, and always the same first batch.
        (
            attempt(
                ranks=(
                    RankSeen(
                        loaders=(replace(MADE_AGAIN, made=2), replace(MADE_AGAIN, trained_again=11))
                    ),
                )
            ),
            {"loader_made_anew"},
        ),
        (
            attempt(
                reason="code_error",
                words="An optimizer (SGD of 2 parameters) has stepped since step 5 and is not "
                "registered: no checkpoint would have its state. Register it.",
            ),
            {"optimizer_not_registered"},
        ),
        (attempt(half_written=("rank-0/checkpoints/step-4",)), {"half_write_visible"}),
        (
            attempt(alerts=("Cannot save step 4: out changed while it was committed: w.pt.",)),
            {"half_write_visible"},
        ),
        (attempt(alerts=("Cannot save step 4: the disk is full.",)), set()),
        (attempt(ranks=(RankSeen(files=frozenset({"/a/best.pt"})),) * 2), {"every_rank_writes"}),
        (
            attempt(ranks=tuple(RankSeen(files=frozenset({f"/a/{n}.log"})) for n in range(2))),
            set(),
        ),
        (attempt(reason="code_error", words="KeyError: 'lr'"), {"does_not_finish"}),
    ],
)
def test_one_undisturbed_run_shows_some_by_itself(seen: AttemptSeen, expected: set[str]) -> None:
    alone = trial(seen, of=Trial(kind=Kind.CALM))
    assert names(judge(alone, alone)) == expected


def test_two_undisturbed_runs_that_differ_cannot_be_compared_with() -> None:
    again = Trial(kind=Kind.AGAIN)
    assert judge(CALM, trial(attempt(), of=again)) == []
    losses = {**CALM.last.losses, 7: 1.0}
    (found,) = judge(CALM, trial(attempt(losses=losses), of=again))
    assert (found.name, found.detail[:17]) == ("not_deterministic", "from step 7 on: l")


def test_within_a_tolerance_sums_and_losses_count_and_digests_do_not() -> None:
    def near(number: int, seen: StepSeen) -> StepSeen:
        return replace(seen, state={k: ("other", v[1] * 1.0001) for k, v in seen.state.items()})

    exact = attempt(RESUMED)
    steps = {n: near(n, seen) for n, seen in exact.ranks[0].steps.items()}
    losses = {n: loss * 1.0001 for n, loss in exact.losses.items()}
    close = trial(CUT, replace(exact, ranks=(RankSeen(steps=steps),), losses=losses))
    assert judge(CALM, close)
    assert judge(CALM, close, tolerance=1e-3) == []
    assert judge(CALM, close, tolerance=1e-5)


@pytest.mark.parametrize(
    ("name", "weights_were_seen", "expected"),
    [
        ("folder/ema.pt", True, {"ema_not_restored"}),
        ("averaged/w", True, {"ema_not_restored"}),
        ("folder/lightning.ckpt", True, set()),  # it counts its own resumes
        ("rank 0's last.pt: ema.0.weight", True, {"ema_not_restored"}),
        ("rank 0's last.pt: mean", True, {"inexact"}),
        ("folder/state.txt", False, {"inexact"}),  # a shell's: nothing else was seen
        ("model/w", True, {"inexact"}),
    ],
)
def test_what_only_the_last_checkpoint_shows_is_named_by_its_file(
    name: str, weights_were_seen: bool, expected: set[str]
) -> None:
    resumed = attempt(RESUMED) if weights_were_seen else attempt(RESUMED, ranks=())
    calm = replace(CALM, contents={**CALM.contents, name: "one"})
    cut = trial(CUT, resumed, **{name: "other"})
    assert names(judge(calm, cut)) == expected
    assert judge(calm, cut, unstable=frozenset({name})) == []


def test_the_best_weights_of_before_the_resume_are_not_missed() -> None:
    calm = replace(CALM, contents={**CALM.contents, "rank 0's best.pt: w": "one"})
    assert judge(calm, trial(CUT, attempt(RESUMED))) == []


def test_what_differs_in_two_calm_runs_is_not_compared() -> None:
    again = replace(CALM, contents={**CALM.contents, "progress": "t3"})
    assert unstable_contents(CALM, again) == {"progress"}


def test_a_difference_on_another_rank_counts() -> None:
    two = [replace(each, ranks=each.ranks * 2) for each in (CALM.last, attempt(RESUMED))]
    lost = changed(other("optimizer")).ranks[0]
    calm = trial(two[0], of=Trial(kind=Kind.CALM, ranks=2))
    cut = trial(CUT, replace(two[1], ranks=(two[1].ranks[0], lost)), of=replace(KILLED, ranks=2))
    (found,) = judge(calm, cut)
    assert (found.name, found.detail) == (
        "optimizer_not_restored",
        "the optimizer differs at the start of step 5, on rank 1",
    )


def test_every_finding_of_the_table_can_be_made_and_says_what_cures_it() -> None:
    made = {
        "does_not_finish",
        "not_deterministic",
        "sigterm_swallowed",
        "sigterm_unsaved",
        "error_hidden",
        "nan_hidden",
        "loader_made_anew",
        "half_write_visible",
        "every_rank_writes",
        "optimizer_not_registered",
        "rng_not_restored",
    }.union(*(expected for _, expected in RESUMES.values()))
    assert made == set(DEFECTS)
    for name, each in DEFECTS.items():
        assert each.cure.endswith((".", ")."))
        assert len(each.what) < 100, name


def test_the_page_has_every_finding() -> None:
    page = DEFECTS_PAGE.read_text("utf-8")
    assert page == with_defects(page), "run `.venv/bin/python -m tests.reference`"


def test_lines_of_a_rank_are_put_together_by_step() -> None:
    lines = [
        {"what": "file", "step": 0, "path": "/a/log"},
        {"what": "saved", "step": 1, "tensors": {"last.pt: w": "d1", "last.pt: ema.w": "d1"}},
        {"what": "saved", "step": 2, "tensors": {"last.pt: w": "d2"}},
        {"what": "batch", "step": 1, "loader": 0, "made": 1, "given": 1, "length": 7},
        {"what": "random", "step": 1, "state": {"torch": ["r1", 0.0]}},
        {"what": "input", "step": 1, "digest": "i1", "rows": ["a", "b"]},
        {"what": "input", "step": 1, "digest": "i2", "rows": ["c"]},
        {"what": "state", "step": 1, "state": {"weights": ["w1", 2.0]}, "lr": [0.1]},
        {"what": "state", "step": 1, "state": {"trained": ["w2", 2.0]}},
        # A second update of the same step: what was before it is of the first, after it of the last.
        {"what": "state", "step": 1, "state": {"weights": ["w2", 2.0]}, "lr": [0.2]},
        {"what": "state", "step": 1, "state": {"trained": ["w3", 2.0]}},
        {"what": "state", "step": 1, "state": {"weights-2": ["v1", 2.0]}, "lr": [0.3]},
    ]
    assert read_rank(lines) == RankSeen(
        steps={
            2: StepSeen(),
            1: StepSeen(
                inputs=("i1", "i2"),
                rows=frozenset("abc"),
                random={"torch": ("r1", 0.0)},
                state={
                    "weights": ("w1", 2.0),
                    "trained": ("w3", 2.0),
                    "weights-2": ("v1", 2.0),
                },
                lr=(0.1, 0.3),
            ),
        },
        loaders=(Loader(made=1, given=1, length=7),),
        files=frozenset({"/a/log"}),
        saved={"last.pt: w": "d2", "last.pt: ema.w": "d1"},
    )


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        # After and at the commit of step 4, the first, the last but one, the end of 7 batches.
        (attempt(), (5, 4, 1, 11, 7, 8)),
        (attempt(commits=(12,)), (1, 11, 7, 8)),  # nothing is saved before the end
        (attempt(ranks=(RankSeen(loaders=(Loader(made=1, given=24, length=24),)),)), (5, 4, 1, 11)),
        (attempt(ranks=()), (5, 4, 1, 11)),
        # It tells of every third step only, and of none but those that it saves.
        (attempt(losses=dict.fromkeys((3, 6, 9, 12), 1.0), ranks=()), (6, 4, 3)),
        (attempt(losses={}, ranks=()), (8, 4)),
    ],
)
def test_a_run_is_interrupted_where_it_tells_most(
    seen: AttemptSeen, expected: tuple[int, ...]
) -> None:
    assert interruptions(seen) == expected


def test_trials_of_all_shapes_take_turns() -> None:
    shapes = {(1, 0): attempt(), (2, 0): attempt(commits=(12,))}
    planned = trials_of(shapes, faults=True, steps_max=6)
    assert [str(each) for each in planned[:9]] == [
        "an exception in step 2 (1 rank, 0 loader workers)",
        "weights that become NaN in step 2 (1 rank, 0 loader workers)",
        "SIGKILL after step 5 (1 rank, 0 loader workers)",
        "SIGTERM after step 5 (1 rank, 0 loader workers)",
        "SIGKILL after step 1 (2 ranks, 0 loader workers)",
        "SIGTERM after step 1 (2 ranks, 0 loader workers)",
        "SIGKILL during a save of step 4 (1 rank, 0 loader workers)",
        "SIGKILL after step 4 (1 rank, 0 loader workers)",
        "SIGTERM after step 4 (1 rank, 0 loader workers)",
    ]
    assert len(planned) == len(set(planned)) == 2 + 1 + 2 * (6 + 4)
    assert len(trials_of(shapes, faults=False, steps_max=1)) == 1 + 2 * 2
    assert not {Kind.ERROR, Kind.NAN} & {
        each.kind for each in trials_of(shapes, faults=False, steps_max=6)
    }


def conformance(*found: Finding) -> Conformance:
    judged = [Judged(seen=trial(CUT, attempt(RESUMED)), findings=(each,)) for each in found]
    return Conformance(
        project="mine",
        code_sha256="ab" * 32,
        trials=(Judged(seen=CALM, findings=()), *judged),
        left_out=(),
        notes=("An epoch has 400 steps, so its end was not reached.",),
        tolerance=0.0,
        seconds=12.3,
    )


def test_a_report_fits_eighty_columns_and_says_where_and_how_to_cure() -> None:
    found = [Finding(name="data_reset", detail="x " * 60, trial=KILLED)] * 2
    done = conformance(*found)
    lines = list(done.lines())
    assert max(map(len, lines)) <= 80
    assert lines[0] == "mine: 1 finding in 3 trials (1 rank) in 12 s, 2 of which failed."
    assert lines[2:4] == ["data_reset", "  what: begins its data again after a resume"]
    assert any(line.endswith("in 1 more trial") or "1 more trial" in line for line in lines)
    assert (done.passed, done.failed, done.is_green) == (1, 2, False)
    stored = json.loads(json.dumps(done.to_json()))
    assert stored["findings"][0]["cure"] == DEFECTS["data_reset"].cure
    assert merge(found) == {"data_reset": found}


def test_a_report_without_a_finding_says_what_was_equal() -> None:
    judged = (Judged(seen=trial(CUT, attempt(RESUMED)), findings=()),)
    fine = replace(conformance(), trials=judged, notes=())
    (line, more) = fine.lines()
    assert f"{line} {more}" == (
        "mine: no finding in 1 trial (1 rank) in 12 s; all that was compared is equal to the bit."
    )
    assert fine.is_green
    assert not replace(fine, left_out=(KILLED,)).is_green


def test_a_report_in_which_nothing_was_resumed_says_so() -> None:
    alone = replace(conformance(), trials=(Judged(seen=CALM, findings=()),), notes=())
    assert list(alone.lines()) == [
        "mine: no finding, and no resume was tried in 1 trial (1 rank) in 12 s."
    ]


@pytest.mark.parametrize(
    ("kind", "attempts", "expected"),
    [
        (Kind.SIGKILL, (attempt(),), True),
        (Kind.SAVE, (attempt(),), True),
        (Kind.SIGKILL, (CUT, attempt(RESUMED)), False),
        (Kind.SIGTERM, (attempt(),), False),  # it did come, and was swallowed
        (Kind.CALM, (attempt(),), False),
    ],
)
def test_a_run_that_was_over_before_it_was_killed_was_not_tried(
    kind: Kind, attempts: tuple[AttemptSeen, ...], expected: bool
) -> None:
    assert trial(*attempts, of=Trial(kind=kind, step=5)).was_missed is expected


@pytest.mark.parametrize(
    ("took_s", "load", "expected"),
    [
        (119.0, 0.1, False),
        (121.0, 0.1, True),
        (121.0, 5.0, False),  # five processes for each core: 600 s
        (601.0, 5.0, True),
    ],
)
def test_an_attempt_hangs_later_where_others_use_the_machine(
    took_s: float, load: float, expected: bool
) -> None:
    assert hangs(took_s, limit_s=120.0, load=load) is expected

"""However a script ends, its last word tells what happened: all steps, an early stop, or an exit."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from tests.training.gangs import TrainingRun
from tracks_dagster.attempts.effects.evidence import read_journal_end
from tracks_dagster.reasons.classify import classify
from tracks_dagster.reasons.evidence import Evidence, RankEnd, Verdict
from tracks_dagster.stores.journals import journal_prefix
from tracks_dagster.track.names import AttemptRef
from tracks_dagster.track.states.stop_cause import CONVERGED_WORDS

STEPS, EVERY = 9, 4
WITH = """
    import contextlib, os, sys
    import torch
    from tracks_dagster.training import attempt

    class Enough(Exception):
        pass

    def main(a):
        model = torch.nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        a.register(model=model, optimizer=optimizer)
        {before}
        for step, _ in a.steps(until=9):
            {top}
            loss = model(torch.ones(1, 1)).sum()
            loss.backward()
            {mid}
            optimizer.step()
            a.report(step, loss=loss)
            {end}
        {after}
    {call}
"""
JOIN = """
    with attempt.join() as a:
        main(a)
    {outside}
"""
JOINED = """
    a = attempt.joined()
    main(a)
    {outside}
"""
CATCHES = """
    with attempt.join() as a:
        with contextlib.suppress(KeyError):
            main(a)
"""
CATCHES_ALL = """
    with attempt.join() as a:
        try:
            main(a)
        except BaseException:
            pass
"""


def script(folder: Path, *, call: str = JOIN, **places: str) -> Path:
    """A trainer that does something of its own at one place: before, top, mid, end, after, outside."""
    text = textwrap.dedent(WITH).replace("{call}", textwrap.dedent(call))
    for place in ("before", "top", "mid", "end", "after", "outside"):
        text = text.replace(f"{{{place}}}", places.get(place, "pass"))
    path = folder / "trainer.py"
    path.write_text(text)
    return path


def judged(run: TrainingRun, code: int | None) -> Verdict:
    """What the classifier says of the attempt's only rank, which ended with that code."""
    placed = run.state.attempts[0].placed
    assert placed is not None
    journal = read_journal_end(run.store, journal_prefix(AttemptRef("r", 1), placed.launch_id, 0))
    word = next(iter(run.last_words(1)), None)
    end = RankEnd(rank=0, exit_code=code, ended_at=word.at if word else None, last_word=word)
    return classify(
        Evidence(
            run_id="r",
            attempt_id=1,
            launch_id=placed.launch_id,
            ranks=(end,),
            last_step=journal.last_step,
            placed=True,
        )
    )


AT_5 = "if step == 5: "
Place = dict[str, str]


@pytest.mark.parametrize("call", [JOIN, JOINED], ids=["join", "joined"])
@pytest.mark.parametrize(
    ("places", "code", "reason", "saved"),
    [
        pytest.param({}, 0, "completed", [4, 8, 9], id="to the end"),
        pytest.param({"after": "sys.exit(0)"}, 0, "completed", [4, 8, 9], id="exit after the loop"),
        pytest.param({"outside": "sys.exit(0)"}, 0, "completed", [4, 8, 9], id="exit at the end"),
        pytest.param(
            {"after": "os._exit(0)"}, 0, "completed", [4, 8, 9], id="_exit after the loop"
        ),
        pytest.param(
            {"end": "if step == 9: os._exit(0)"},
            0,
            "completed",
            [4, 8, 9],
            id="_exit in the last step",
        ),
        pytest.param(
            {"end": "if step == 9: sys.exit(0)"},
            0,
            "completed",
            [4, 8, 9],
            id="exit in the last step",
        ),
        pytest.param({"end": AT_5 + "break"}, 0, "early_stopped", [4, 5], id="break"),
        pytest.param({"top": AT_5 + "break"}, 0, "early_stopped", [4], id="break of the next step"),
        pytest.param({"end": AT_5 + "return"}, 0, "early_stopped", [4, 5], id="return"),
        pytest.param(
            {"end": AT_5 + "break", "after": "sys.exit(0)"},
            0,
            "early_stopped",
            [4, 5],
            id="break, then exit",
        ),
        pytest.param({"before": "return"}, 1, "code_error", [], id="return before the loop"),
        pytest.param({"before": "sys.exit(0)"}, 1, "code_error", [], id="exit before the loop"),
        pytest.param({"before": "os._exit(0)"}, 0, "code_error", [], id="_exit before the loop"),
        pytest.param({"mid": AT_5 + "os._exit(0)"}, 0, "code_error", None, id="_exit in the loop"),
        pytest.param({"end": AT_5 + "sys.exit(3)"}, 3, "code_error", None, id="exit 3"),
        pytest.param({"after": "sys.exit(3)"}, 3, None, [4, 8, 9], id="exit 3 after the loop"),
        pytest.param({"mid": AT_5 + "{}[0]"}, 1, "code_error", [4], id="an error"),
    ],
)
def test_an_attempt_is_completed_only_when_its_last_step_was_reached_and_saved(
    tmp_path: Path, call: str, places: Place, code: int, reason: str | None, saved: list[int] | None
) -> None:
    run = TrainingRun(
        tmp_path, script=script(tmp_path, call=call, **places), steps=STEPS, every_steps=EVERY
    )
    gang = run.train()
    assert gang.exit_codes == [code], gang.log()
    verdict = judged(run, code)
    if reason is None:  # an exit after the last step: its code is all that is known
        assert verdict.reason in ("code_error", "unknown")
        assert f"exit code {code}" in verdict.lines[0]
    else:
        assert verdict.reason == reason, verdict
    steps = [c.ref.step for c in run.state.checkpoints]
    assert saved is None or steps == saved  # os._exit may have cut a save off


def test_a_script_says_that_it_has_converged_and_its_stop_says_so(tmp_path: Path) -> None:
    converged = script(tmp_path, end=AT_5 + "a.converged(); break")
    run = TrainingRun(tmp_path, script=converged, steps=STEPS, every_steps=EVERY)
    gang = run.train()
    assert gang.exit_codes == [0], gang.log()
    verdict = judged(run, 0)
    assert verdict.reason == "early_stopped"
    assert any(CONVERGED_WORDS in line for line in verdict.lines)


@pytest.mark.parametrize(
    ("call", "places", "saved", "said"),
    [
        pytest.param(
            JOIN, {"end": AT_5 + "sys.exit(0)"}, [4, 5], "exit code 0 after step 5 of 9", id="exit"
        ),
        pytest.param(
            JOIN,
            {"top": AT_5 + "sys.exit(0)"},
            [4],
            "exit code 0 in step 5 of 9",
            id="exit at the top",
        ),
        pytest.param(
            JOIN,
            {"mid": AT_5 + "raise SystemExit"},
            [4],
            "exit code 0 in step 5 of 9",
            id="half a step",
        ),
        pytest.param(
            JOINED, {"end": AT_5 + "sys.exit(0)"}, [4, 5], "after step 5 of 9", id="exit of joined"
        ),
        pytest.param(
            JOINED,
            {"mid": AT_5 + "raise SystemExit"},
            [4],
            "in step 5 of 9",
            id="half a step of joined",
        ),
        pytest.param(
            CATCHES,
            {"end": AT_5 + "{}[0]"},
            [4, 5],
            "after step 5 of 9 by an exception",
            id="caught",
        ),
        pytest.param(
            CATCHES,
            {"mid": AT_5 + "{}[0]"},
            [4],
            "in step 5 of 9 by an exception",
            id="caught in a step",
        ),
        pytest.param(
            CATCHES_ALL,
            {"end": AT_5 + "sys.exit(0)"},
            [4, 5],
            "after step 5 of 9",
            id="exit, caught",
        ),
    ],
)
def test_an_exit_that_nobody_meant_as_an_early_stop_is_said_and_what_was_trained_is_saved(
    tmp_path: Path, call: str, places: Place, saved: list[int], said: str
) -> None:
    run = TrainingRun(
        tmp_path, script=script(tmp_path, call=call, **places), steps=STEPS, every_steps=EVERY
    )
    gang = run.train()
    (code,) = gang.exit_codes
    verdict = judged(run, code)
    assert verdict.reason == "code_error"
    assert said in verdict.lines[0]
    assert said in gang.log()  # its author sees it, too
    assert [c.ref.step for c in run.state.checkpoints] == saved


@pytest.mark.parametrize(
    ("place", "loss", "reason"),
    [
        ("mid", "float('nan')", "nan_loss"),
        ("end", "1.0", "code_error"),  # reported twice
    ],
)
def test_what_a_report_raised_is_the_reason_though_the_script_caught_it(
    tmp_path: Path, place: str, loss: str, reason: str
) -> None:
    body = f"if step == 5: a.report(step, loss={loss})"
    path = script(tmp_path, call=CATCHES_ALL, **{place: body})
    run = TrainingRun(tmp_path, script=path, steps=STEPS, every_steps=EVERY)
    assert run.train().exit_codes == [1]
    assert [word.reason for word in run.last_words(1)] == [reason]


def test_a_rank_that_leaves_with_code_0_is_the_root_and_not_those_that_lost_it(
    tmp_path: Path,
) -> None:
    path = script(tmp_path, mid="if step == 5 and a.rank == 1: os._exit(0)")
    run = TrainingRun(tmp_path, script=path, steps=STEPS, every_steps=EVERY, ranks=2)
    gang = run.train()
    assert sorted(gang.exit_codes) == [0, 1]
    (word,) = run.last_words(1)
    ends = (
        RankEnd(rank=0, exit_code=1, ended_at=word.at, last_word=word),
        RankEnd(rank=1, exit_code=0, ended_at=word.at),
    )
    verdict = classify(
        Evidence(run_id="r", attempt_id=1, launch_id="l", ranks=ends, last_step=4, placed=True)
    )
    assert verdict.reason == "code_error"
    assert "rank 1 ended with exit code 0 after step 4" in verdict.lines[0]


FOLDER = """
    import contextlib, os, sys
    from pathlib import Path
    from tracks_dagster.training import attempt

    def main(a):
        found = a.folder()
        for step in range(1, 10):
            ends = a.ends(step{last})
            a.report(step, loss=1.0)
            if ends.save or step == {stop}:
                folder = Path({work}) / f"step-{{step}}"
                folder.mkdir()
                (folder / "state").write_text(str(step))
                a.commit_folder(step, folder)
            if step == {stop}:
                {end}

    with attempt.join() as a:
        {call}
"""


@pytest.mark.parametrize(
    ("end", "last", "steps", "code", "reason", "said"),
    [
        ("pass", ", last=step == 9", 9, 0, "completed", "Step 9, the last one"),
        ("pass", "", 9, 0, "completed", "Step 9, the last one"),
        ("pass", "", None, 0, "completed", "how many were asked for is not known"),
        ("return", ", last=step == 9", 9, 0, "early_stopped", "after step 5 of 9"),
        ("return", "", 9, 0, "early_stopped", "after step 5 of 9"),
        ("return", ", last=step == 9", None, 0, "early_stopped", "after step 5"),
        ("sys.exit(0)", ", last=step == 9", 9, 1, "code_error", "exit code 0 after step 5 of 9"),
        ("sys.exit(0)", "", None, 1, "code_error", "exit code 0 after step 5"),
        ("sys.exit(0)", ", last=step == 5", None, 0, "completed", "Step 5, the last one"),
        ("os._exit(0)", ", last=step == 9", 9, 0, "code_error", "exit code 0 after step 5"),
        ("os._exit(0)", ", last=step == 5", None, 0, "completed", "Step 5, the last one"),
    ],
)
def test_a_script_that_writes_its_own_folders_is_judged_by_the_same_rules(
    tmp_path: Path, end: str, last: str, steps: int | None, code: int, reason: str, said: str
) -> None:
    path = tmp_path / "trainer.py"
    stop = 9 if end == "pass" else 5
    work = repr(str(tmp_path))
    path.write_text(
        textwrap.dedent(FOLDER).format(last=last, end=end, stop=stop, work=work, call="main(a)")
    )
    run = TrainingRun(tmp_path, script=path, steps=steps, every_steps=4)
    gang = run.train()
    assert gang.exit_codes == [code], gang.log()
    verdict = judged(run, code)
    assert verdict.reason == reason
    assert said in " ".join(verdict.lines)
    assert run.state.checkpoints[-1].ref.step == stop

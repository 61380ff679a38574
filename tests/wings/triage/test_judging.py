"""The verdict on an open attempt, by what was recorded, what is left and what the machine says now."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from tests.histories import History
from tracks_dagster.attempts.machine import MachineNow
from tracks_dagster.attempts.ports import GangPhase, GangReport
from tracks_dagster.reasons.evidence import RankEnd
from tracks_dagster.reasons.hangs import Beat, Phase
from tracks_dagster.track.states.run_state import AttemptState
from tracks_dagster.wings.triage.judging import AttemptObservation, Judgement, Verdict, judge

HISTORY = History("r-1").declare().open().supervise().place().restore()
PLACED = HISTORY.state.attempts[0]  # ranks 0 and 1 are pids 100 and 101 of boot-1, started at 1.5 s
NOW = HISTORY.at + timedelta(hours=1)
HERE = MachineNow(node="node-1", boot_id="boot-1")
BOOTED = MachineNow(node="node-1", boot_id="boot-2")
GONE = GangReport(phase=GangPhase.GONE, where="node-1", ranks=(RankEnd(rank=0), RankEnd(rank=1)))
ALIVE = GangReport(phase=GangPhase.ALIVE, where="node-1")
NEVER = GangReport(phase=GangPhase.NEVER_STARTED, where="node-1")
ENDING = (Beat(rank=0, phase=Phase.ENDING, step=40), Beat(rank=1, phase=Phase.ENDING, step=40))


def judged(
    report: GangReport | None,
    machine: MachineNow = HERE,
    *,
    attempt: AttemptState = PLACED,
    daemon_at: datetime | None = None,
    **changes: Any,
) -> Judgement:
    seen = AttemptObservation(run_id="r-1", attempt=attempt, report=report, **changes)
    return judge(seen, machine, daemon_at, NOW)


def ends(*codes: int | None, signal: int | None = None) -> GangReport:
    ranks = [RankEnd(rank=rank, exit_code=code) for rank, code in enumerate(codes)]
    if signal is not None:
        ranks.append(RankEnd(rank=len(ranks), signal=signal))
    return replace(GONE, ranks=tuple(ranks))


OPENED = History("r-2").declare().open().state.attempts[0]
CLAIMED_ELSEWHERE = History("r-3").declare().open().supervise().state.attempts[0]  # by node-1


@pytest.mark.parametrize(
    ("report", "machine", "changes", "expected"),
    [
        (ALIVE, HERE, {"daemon_at": NOW}, Verdict.ALIVE),
        (ALIVE, HERE, {}, Verdict.ORPHANED),
        (ALIVE, HERE, {"daemon_at": NOW - timedelta(seconds=121)}, Verdict.ORPHANED),
        (GONE, BOOTED, {}, Verdict.DEAD),
        (ends(1, 1), HERE, {}, Verdict.DEAD),
        (ends(0, signal=9), HERE, {}, Verdict.DEAD),
        (ends(0, 0), HERE, {}, Verdict.FINISHED_UNRECORDED),
        (ends(75, 75), HERE, {}, Verdict.FINISHED_UNRECORDED),  # drained, saved
        (ends(0, None), HERE, {}, Verdict.DEAD),  # of one rank nobody knows
        (replace(GONE, beats=ENDING), HERE, {}, Verdict.FINISHED_UNRECORDED),
        (replace(ends(1, 1), beats=ENDING), HERE, {}, Verdict.DEAD),  # it fell at the very end
        (GONE, HERE, {"saved_last": True}, Verdict.FINISHED_UNRECORDED),
        (NEVER, HERE, {"attempt": OPENED}, Verdict.QUEUED),
        (NEVER, HERE, {"attempt": CLAIMED_ELSEWHERE}, Verdict.QUEUED),
        (
            replace(NEVER, where="node-2"),
            replace(HERE, node="node-2"),
            {"attempt": CLAIMED_ELSEWHERE},
            Verdict.NOT_SEEN,
        ),
        (NEVER, HERE, {}, Verdict.DEAD),  # placed here, and even its files are gone
        (replace(NEVER, where="node-2"), replace(HERE, node="node-2"), {}, Verdict.NOT_SEEN),
        (
            replace(NEVER, where="cluster", sees_all_nodes=True),
            replace(HERE, node="node-2"),
            {},
            Verdict.DEAD,
        ),
        (None, HERE, {"problem": "the cluster is lost"}, Verdict.NOT_SEEN),
    ],
)
def test_the_verdict_on_an_open_attempt(
    report: GangReport | None, machine: MachineNow, changes: dict[str, Any], expected: Verdict
) -> None:
    found = judged(report, machine, **changes)
    assert found.verdict is expected, found.why
    assert found.why.endswith(".") or report is None
    assert all(sign.words and sign.source for sign in found.signs)


def living(**started: float) -> MachineNow:
    return replace(HERE, living={int(pid.removeprefix("p")): at for pid, at in started.items()})


def test_a_rank_that_lives_is_alive_whatever_became_of_its_gangs_parent() -> None:
    found = judged(GONE, living(p100=1.5))
    assert found.verdict is Verdict.ORPHANED
    assert "pid 100 lives" in words(found)


def test_a_pid_that_was_given_again_is_another_process() -> None:
    found = judged(GONE, living(p100=99.0))
    assert found.verdict is Verdict.DEAD
    assert "pid 100 is another process: it started at 99 s, not 1.5 s" in words(found)


def test_after_a_reboot_no_pid_proves_anything() -> None:
    found = judged(GONE, replace(living(p100=1.5), boot_id="boot-2"))
    assert found.verdict is Verdict.DEAD
    assert "pid 100 ended with its boot, and its number is another process's now" in words(found)
    [boot] = [sign for sign in found.signs if "now" in sign.data]
    assert boot.data == {"recorded": ["boot-1"], "now": "boot-2"}


def test_the_reboot_stands_in_the_sentence_that_says_why() -> None:
    assert judged(GONE, BOOTED).why.startswith(
        "Nothing of its gang lives; the machine was rebooted"
    )
    assert "rebooted" not in judged(GONE).why
    assert "the machine was rebooted" in judged(NEVER, BOOTED).why


def test_where_nobody_can_tell_of_a_supervisor_nobody_is_called_gone() -> None:
    found = judged(ALIVE)  # its claim records no process, and no daemon ticks
    assert found.is_supervised is None
    assert "no daemon ticks that would watch" in found.why


def test_a_supervisor_is_known_by_its_own_process() -> None:
    claim = PLACED.claims[0]
    own = replace(claim.body, pid=7, pid_started=3.0, boot_id="boot-1")
    attempt = replace(PLACED, claims=(replace(claim, body=own),))
    assert judged(ALIVE, living(p7=3.0), attempt=attempt).verdict is Verdict.ALIVE
    assert judged(ALIVE, living(p7=4.0), attempt=attempt).verdict is Verdict.ORPHANED
    # A daemon that ticks will find it another one; until then nobody supervises it.
    assert judged(ALIVE, HERE, attempt=attempt, daemon_at=NOW).verdict is Verdict.ORPHANED


def test_a_dead_gang_whose_supervisor_lives_is_left_to_it() -> None:
    claim = PLACED.claims[0]
    own = replace(claim.body, pid=7, pid_started=3.0, boot_id="boot-1")
    attempt = replace(PLACED, claims=(replace(claim, body=own),))
    found = judged(ends(1, 1), living(p7=3.0), attempt=attempt)
    assert (found.verdict, found.is_supervised) == (Verdict.DEAD, True)
    assert "about to record it" in found.why


def test_a_claim_from_before_this_boot_supervises_nothing() -> None:
    booted = replace(BOOTED, booted_at=NOW - timedelta(minutes=1))
    found = judged(GONE, booted, daemon_at=NOW)
    assert found.is_supervised is False
    assert "before this boot" in words(found)


def test_the_age_of_the_last_heartbeat_is_reported() -> None:
    found = judged(GONE, heartbeat_at=NOW - timedelta(seconds=90))
    assert "its last heartbeat is 90 s old" in words(found)


def words(found: Judgement) -> str:
    return "; ".join(sign.words for sign in found.signs)
